"""The command line: `rlref train | diagnose | inspect | probe | envs | reproduce | export | play`.

rlref.commands has the others: `report | compare | sweep | ablate | baselines`.

Exit codes: 0 good, 1 a failure was found (a verdict or a finding is an ERROR, a seed became non-finite, a probe's check
failed, a run did not come out the same or could not be written), 2 wrong usage, 130 stopped by Ctrl-C, 143 by SIGTERM.
"""

import argparse
import contextlib
import dataclasses
import datetime
import functools
import io
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from rlref import commands
from rlref.errors import Stopped, UsageError, nearest

if TYPE_CHECKING:
    from rlref.runs import Run
    from rlref.tuned import Tuned
    from rlref.verdicts import Diagnosis

DESCRIPTION = """\
Reference reinforcement learning in JAX: single-file agents, many seeds, diagnostics.

  rlref train ppo                        CartPole-v1, 8 seeds: the main job
  rlref train dqn --env-id Acrobot-v1    another agent, another environment
  rlref train ./my_ppo.py                your own copy of an agent
  rlref train ppo --help                 every setting
  rlref probe ./my_ppo.py                whether an agent is right, and if not, which part is wrong
  rlref diagnose RUN                     what is wrong with it, in words; also of logs of CleanRL and SB3
  rlref report RUN                       one page that shows it; several runs: side by side
  rlref compare A B                      whether one is better than another, and how surely
  rlref baselines ENV                    a random policy, CEM, DQN and PPO: what to run first on a new problem
  rlref sweep ppo                        random search: which settings matter, and whether the best can be trusted
  rlref ablate ppo                       each option switched off, or on: which of them matter
  rlref inspect ENV                      what to look at before training: interface, scales, a random policy
  rlref train --resume RUN               go on with a run that was stopped or killed
  rlref reproduce RUN                    run it again, and say at which update the metrics part, if any
  rlref play RUN --seed 0                what a trained seed does, greedy and sampled; --gif draws it
  rlref export RUN --seed 0              one seed's parameters as a file of its own
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. Ctrl-C ends the process."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("rlref", description=DESCRIPTION, formatter_class=raw)
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    train = subparsers.add_parser("train", help="train an agent over many seeds", add_help=False, allow_abbrev=False)
    train.add_argument("--resume")
    train.add_argument("--distributed", action="store_true")
    probing = subparsers.add_parser("probe", help="check an agent against environments whose answers are known")
    probing.add_argument("agent", help="ppo, dqn, cem, or a file such as ./my_ppo.py")
    probing.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="this check alone; may be repeated"
    )
    probing.add_argument("--num-seeds", type=int, default=64, help="seeds per probe (default: 64)")
    probing.add_argument("--seed", type=int, default=0, help="the first seed's id (default: 0)")
    probing.add_argument("--fail-fast", action="store_true", help="stop at the first failure")
    probing.add_argument("--json", action="store_true", help="print JSON, and nothing else")
    again = subparsers.add_parser("reproduce", help="run a run again from its folder, and compare all metrics")
    again.add_argument("run", type=Path, help="the run's folder")
    again.add_argument("--updates", type=int, help="how many to compare, from the first (default: all)")
    again.add_argument("--json", action="store_true", help="print JSON, and nothing else")
    out = subparsers.add_parser("export", help="write one seed's parameters and settings to a file of its own")
    playing = subparsers.add_parser("play", help="play whole episodes with a trained seed, greedy and sampled")
    for command in (out, playing):
        what = "the run's folder" if command is out else "the run's folder, or a file that `rlref export` wrote"
        command.add_argument("run", type=Path, help=what)
        command.add_argument("--seed", type=int, help="which seed (default: the first)")
        command.add_argument("--setting", type=int, default=0, help="which setting, of a sweep (default: 0)")
        command.add_argument("--json", action="store_true", help="print JSON, and nothing else")
    out.add_argument("--out", type=Path, help="the file to write (default: seed-N.npz in the run's folder)")
    playing.add_argument("--episodes", type=int, default=100, help="how many (default: 100)")
    playing.add_argument("--episode-seed", type=int, default=0, help="which random numbers they meet (default: 0)")
    playing.add_argument("--gif", type=Path, help="draw the first greedy episode to this file")
    playing.add_argument("--agent", help="of an exported file: your own agent's file")
    verdict = subparsers.add_parser("diagnose", help="say what is wrong with a run, since when, and what to try")
    verdict.add_argument(
        "run", type=Path, nargs="+",
        help="the run's folder; or logs of CleanRL or Stable-Baselines3, one per seed: CSV, TensorBoard's, or a folder",
    )  # fmt: skip
    verdict.add_argument("--json", action="store_true", help="print JSON, and nothing else")
    inspecting = subparsers.add_parser("inspect", help="look at an environment, and a random policy in it")
    inspecting.add_argument("env", help="a gymnax id, or package.module:make_env")
    inspecting.add_argument("--episodes", type=int, default=100, help="how many (default: 100)")
    inspecting.add_argument("--gamma", type=float, default=0.99, help="discount per step (default: 0.99)")
    inspecting.add_argument("--seed", type=int, default=0, help="which random numbers it meets (default: 0)")
    inspecting.add_argument(
        "--env-params", nargs="+", default=[], metavar="NAME=VALUE", help="parameters of the environment"
    )
    inspecting.add_argument("--out", type=Path, help="folder for the pictures (default: inspect/ENV)")
    inspecting.add_argument("--json", action="store_true", help="print JSON, and nothing else")
    run = commands.add_to(subparsers)
    listing = subparsers.add_parser("envs", help="list the environments that can be trained")
    listing.add_argument("--json", action="store_true", help="print JSON")
    options, rest = parser.parse_known_args(arguments)
    use_compilation_cache()
    try:
        if options.command == "train":
            return train_command(options, rest)
        if options.command in commands.OF_AGENTS:
            return agent_command(options.command, rest)
        if rest:
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        run |= {"probe": probe_command, "envs": envs_command, "reproduce": reproduce_command}
        run |= {"export": export_command, "play": play_command, "diagnose": diagnose_command}
        run |= {"inspect": inspect_command}
        return run[options.command](options)
    except UsageError as error:
        print(f"rlref: error: {error}", file=sys.stderr)
        return 2
    except Stopped as stopped:
        return exit_code(str(stopped))
    except BrokenPipeError:  # `rlref ... | head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        sys.stdout.flush()
        print("rlref: stopped by Ctrl-C", file=sys.stderr, flush=True)
        os._exit(130)  # at once: a compiler's threads go on, and crash where the interpreter is taken down around them


def use_compilation_cache() -> None:
    """Keep compiled programs, so that what has not changed compiles once; jax's own settings come first."""
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # a user without a home
        return
    # By machine: a program compiled for one CPU may hold instructions that another one behind the same home lacks.
    folder = os.environ["JAX_COMPILATION_CACHE_DIR"] = str(cache / "rlref" / platform.node())
    if "jax" in sys.modules and sys.modules["jax"].config.jax_compilation_cache_dir is None:
        sys.modules["jax"].config.update("jax_compilation_cache_dir", folder)


@dataclasses.dataclass(frozen=True)
class TrainOptions:
    """How to run; the agent's own settings follow."""

    num_seeds: int = 8
    """seeds to train side by side"""
    seed: int = 0
    """the first seed's id"""
    run_dir: Path | None = None
    """folder to write the run to, which must not exist; None: a new one under runs/"""
    resume: Path | None = None
    """go on with the run in this folder: agent and settings come from there; more --total-timesteps extend it"""
    checkpoint_every: int | None = None
    """updates between checkpoints; None: about one a minute; 0: only when training ends or is stopped"""
    note: str = ""
    """the question that this run is to answer; kept with it"""
    env_params: tuple[str, ...] = ()
    """parameters of the environment, each as name=value"""
    eval_every: int = 0
    """updates between evaluations; 0 for none"""
    eval_episodes: int = 10
    """episodes of an evaluation, per seed, greedy and (but for DQN) sampled"""
    log: tuple[Literal["tensorboard", "csv", "parquet"], ...] | None = None
    """where metrics go as they come, besides the run's own files; None: to TensorBoard if tensorboardX is installed"""
    memory_gb: float | None = None
    """memory that training may take, in 1e9 bytes; None: 80 % of what is free"""
    distributed: bool = False
    """one of several processes that train this run together; jax finds the others under SLURM, Open MPI, on TPUs"""
    coordinator: str | None = None
    """host:port of process 0, where jax does not find the others by itself"""
    num_processes: int | None = None
    """how many processes there are, where jax does not know"""
    process_id: int | None = None
    """which of them this is, from 0, where jax does not know"""
    defaults: bool = False
    """start from the agent's own defaults, not from the settings tuned for the environment"""
    json: bool = False
    """print the summary as JSON, and nothing else"""


@dataclasses.dataclass(frozen=True)
class Budget:
    """In environment steps, for agents whose own setting is a number of generations."""

    total_timesteps: int = 0
    """environment steps of one seed's candidates, at most: as many whole generations, instead of num_generations; 0:
    num_generations counts"""


def train_command(given: argparse.Namespace, rest: Sequence[str]) -> int:
    """`rlref train AGENT [options]`, `rlref train --resume RUN [options]`."""
    agent, rest = agent_in(rest)
    if agent is None and given.resume is None:
        return usage("train", rest)
    # Options that are read before the others: what the others are depends on them.
    first = ["--resume", given.resume] if given.resume is not None else []
    arguments = [*first, *(["--distributed"] if given.distributed else []), *rest]
    command = ["rlref", "train", *([agent] if agent else []), *arguments]
    if given.distributed:
        join(rest)
    elif alone := [a for a in rest if a.partition("=")[0] in ("--coordinator", "--num-processes", "--process-id")]:
        raise UsageError(f"{alone[0]} goes with --distributed")
    from rlref import jobs
    from rlref.agents import load_agent

    if given.resume is not None:
        job = jobs.of_folder(Path(given.resume), agent)
        options, config, budget = parsed("train", TrainOptions, job.module, arguments, job)
        return resume_run(job, options, config, budget, command)
    module = load_agent(agent or "")
    start = tuned_for(module, arguments)
    options, config, budget = parsed("train", TrainOptions, module, arguments, start=start)
    if start is not None and not options.json:
        say_tuned(start, config, budget)
    return train_run(module, options, config, budget, command)


def agent_in(arguments: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """The agent, and what follows it: it is the first word, or none, as elsewhere a word is some option's value."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0], arguments[1:]
    return None, arguments


def usage(command: str, arguments: Sequence[str]) -> int:
    """What a command takes that was given no agent; returns the exit code."""
    from rlref.agents import NAMES

    wants_help = any(a in ("-h", "--help") for a in arguments)
    print(
        f"usage: rlref {command} AGENT [options]\n\nAGENT is {', '.join(NAMES)}, or your own file such as ./my_ppo.py; "
        f"`rlref {command} {NAMES[0]} --help` shows all options",
        file=sys.stdout if wants_help else sys.stderr,
    )
    return 0 if wants_help else 2


def agent_command(command: str, arguments: Sequence[str]) -> int:
    """`rlref sweep AGENT [options]`, `rlref ablate AGENT [options]`."""
    from rlref import envs, jobs
    from rlref.agents import load_agent

    agent, rest = agent_in(arguments)
    if agent is None:
        return usage(command, rest)
    module = load_agent(agent)
    options_class, run = commands.OF_AGENTS[command]
    options, config, budget = parsed(command, options_class, module, rest)
    env, env_params = envs.make_env(config.env_id)
    env_params = envs.with_params(env_params, options.env_params)
    if budget:
        config = jobs.within(budget, module, config, env, env_params)
    return run(module, options, config, env_params)


def tuned_for(module: ModuleType, arguments: Sequence[str]) -> "Tuned | None":
    """The settings that are known for the environment in `arguments`; these are read before all others."""
    from rlref import tuned

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--env-id", "--env_id", default=getattr(module.Config, "env_id", ""))
    parser.add_argument("--defaults", action=argparse.BooleanOptionalAction)
    try:
        given, _ = parser.parse_known_args(arguments)
    except argparse.ArgumentError:
        return None  # it will be said where all options are read
    return None if given.defaults else tuned.tuned(module, given.env_id)


def say_tuned(start: "Tuned", config: Any, budget: int) -> None:
    """Print which settings come from the table, and which of it were given otherwise."""
    from rlref import hosts, jobs

    if not hosts.is_first():
        return
    kept, other = [], []
    for name, x in start.settings.items():
        same = jobs.plain(getattr(config, name)) == jobs.plain(x) and not (budget and name in jobs.LENGTHS)
        kept.append(f"{name} {setting_text(x)}") if same else other.append(name)
    given = f"; given otherwise: {', '.join(other)}" if other else ""
    print(f"settings tuned for {config.env_id}: {', '.join(kept) or 'none'}{given} (--defaults: without them)")


def setting_text(x: Any) -> str:
    """A setting in a line of text."""
    return f"{x:g}" if isinstance(x, float) else f"{x:,}" if isinstance(x, int) and not isinstance(x, bool) else str(x)


def join(arguments: Sequence[str]) -> None:
    """Join the other processes; `arguments` may say where they are."""
    from rlref import hosts

    parser = argparse.ArgumentParser("rlref train", add_help=False, allow_abbrev=False)
    parser.add_argument("--coordinator")
    parser.add_argument("--num-processes", type=int)
    parser.add_argument("--process-id", type=int)
    known, _ = parser.parse_known_args(arguments)
    # Gloo greets on standard output, from C++; that is for what was asked for.
    sys.stdout = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), 1)
    hosts.initialize(known.coordinator, known.num_processes, known.process_id)


def parsed(
    command: str,
    options_class: Any,
    module: ModuleType,
    arguments: Sequence[str],
    job: Any = None,
    start: "Tuned | None" = None,
) -> tuple[Any, Any, int]:
    """How to run, the Config, and the budget in environment steps (0: the Config says it).

    Defaults are those of `job`, or the settings of `start` over the agent's.
    """
    import tyro

    agent = module.__name__.rpartition(".")[2]
    config_class: Any = module.Config
    sections: list[Any] = [("run", options_class), ("config", config_class)]
    settings = {f.name for f in dataclasses.fields(config_class)}
    if "num_generations" in settings and "total_timesteps" not in settings:
        sections.append(("budget", Budget))
    flat: Any = tyro.conf.OmitArgPrefixes
    both: Any = dataclasses.make_dataclass("Options", [(name, flat[section]) for name, section in sections])
    default = {}
    budgets = [Budget()] if len(sections) == 3 else []
    if start is not None:
        default["default"] = both(options_class(), config_class(**start.settings), *budgets)
    if job is not None:
        first_setting = {name: plain for name, plain in job.settings.items() if name in job.batched}
        evaluated = {"eval_every": job.eval_every, "eval_episodes": job.eval_episodes}
        options = TrainOptions(num_seeds=len(job.seeds), seed=job.seeds[0], **evaluated)
        config = dataclasses.replace(job.config, **{name: x[0] for name, x in first_setting.items()})
        default["default"] = both(options, config, *budgets)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            result, unknown = tyro.cli(
                both,
                prog=f"rlref {command} {agent}",
                args=list(arguments),
                description=module.__doc__,
                return_unknown_args=True,
                **default,
            )
    except SystemExit as error:
        if not error.code:
            raise  # --help
        # tyro frames its message, and rules it off from the help below it.
        message, *_ = said.getvalue().partition("\n")[2].split("──")
        one_line = " ".join(line.strip("│ ") for line in message.splitlines()).strip()
        raise UsageError(f"{one_line.rstrip('.')}. `rlref {command} {agent} --help` shows all") from None
    if unknown:
        fields = [f.name.replace("_", "-") for _, c in sections for f in dataclasses.fields(c)]
        raise UsageError(
            f"there is no option {unknown[0]!r}.{nearest(unknown[0], [f'--{name}' for name in fields])} "
            f"`rlref {command} {agent} --help` shows all"
        )
    given = {argument.partition("=")[0].replace("_", "-") for argument in arguments}
    if {"--total-timesteps", "--num-generations"} <= given:
        raise UsageError("--total-timesteps and --num-generations say the same; give one of them")
    return result.run, result.config, result.budget.total_timesteps if hasattr(result, "budget") else 0


def train_run(module: ModuleType, options: TrainOptions, config: Any, budget: int, command: list[str]) -> int:
    from rlref import envs, hosts, jobs, runner

    env, env_params = envs.make_env(config.env_id)
    given_params = envs.with_params(env_params, options.env_params)
    if budget:
        config = jobs.within(budget, module, config, env, given_params)
    run_dir = options.run_dir
    if run_dir is None:
        stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")
        name = f"{module.__name__.rpartition('.')[2]}-{config.env_id.replace(':', '-')}-{stamp}"
        run_dir = Path("runs") / hosts.of_first(name)
    return shown(
        options,
        functools.partial(
            runner.train,
            module,
            config,
            num_seeds=options.num_seeds,
            seed=options.seed,
            env_params=given_params,
            run_dir=run_dir,
            note=options.note,
            eval_every=options.eval_every,
            eval_episodes=options.eval_episodes,
            checkpoint_every=options.checkpoint_every,
            memory_gb=options.memory_gb,
            sinks=options.log,
            command=command,
        ),
    )


def resume_run(job: Any, options: TrainOptions, config: Any, budget: int, command: list[str]) -> int:
    """Go on with the run of `job`; any other option that is given must say what the run has."""
    from rlref import envs, jobs, runner

    path, differ = options.resume, []
    assert path is not None
    for name, x in job.settings.items():
        there = x[0] if name in job.batched else x
        now = jobs.plain(getattr(config, name))
        if now != there and name not in jobs.LENGTHS:
            differ.append(f"{name} is {x} there, not {now}")
    there = {"num_seeds": len(job.seeds), "seed": job.seeds[0], "run_dir": None, "note": "", "defaults": False}
    for name, x in (there | {"eval_every": job.eval_every, "eval_episodes": job.eval_episodes}).items():
        if getattr(options, name) != x:
            differ.append(f"{name} is {x or 'its own'} there, not {getattr(options, name)}")
    if repr(envs.with_params(job.env_params, options.env_params)) != repr(job.env_params):
        differ.append(f"env_params are {job.env_params} there, not {', '.join(options.env_params)}")
    if differ:
        raise UsageError(f"{path} goes on with its own settings: {'; '.join(differ)}")
    total = budget or None
    for name in jobs.LENGTHS:
        if name in job.settings and getattr(config, name) != job.settings[name]:
            total = getattr(config, name) * (job.agent.steps_per_update if name == "num_generations" else 1)
    return shown(
        options,
        functools.partial(
            runner.resume,
            path,
            total_timesteps=total,
            agent=job.module,
            checkpoint_every=options.checkpoint_every,
            memory_gb=options.memory_gb,
            sinks=options.log or (),
            command=command,
        ),
    )


def shown(options: TrainOptions, run_it: Callable[..., "Run"]) -> int:
    """Run a training with its progress shown, then its outcome; returns the exit code."""
    from rlref import findings, hosts, runner, runs

    terminal = None if options.json or not hosts.is_first() else Terminal()
    with terminal or contextlib.nullcontext():
        run = run_it(display=terminal or runner.Silent())
    if options.json and hosts.is_first():
        print(runs.json_text({"run_dir": str(run.path), **run.summary}))
    elif hosts.is_first():
        print_summary(run)
    if run.summary["status"] == "interrupted":
        return exit_code(run.summary["stopped_by"])
    bad = run.summary["nonfinite"] or run.summary["status"] == "incomplete"
    return 1 if bad else findings.exit_code(run.diagnose().findings)


def exit_code(signal: str) -> int:
    """Of a training that a signal stopped."""
    return 143 if signal == "SIGTERM" else 130


def reproduce_command(options: argparse.Namespace) -> int:
    """`rlref reproduce RUN`."""
    from rlref import runner, runs
    from rlref.reproduce import reproduce

    terminal = None if options.json else Terminal()
    with terminal or contextlib.nullcontext():
        report = reproduce(options.run, options.updates, display=terminal or runner.Silent())
    if options.json:
        print(runs.json_text(dataclasses.asdict(report)))
    else:
        print(f"{options.run}: {report.text()}")
    return 1 if report.difference else 0


def export_command(options: argparse.Namespace) -> int:
    """`rlref export RUN`."""
    from rlref import trained

    one = trained.of_folder(options.run)
    seed = one.job.seeds[0] if options.seed is None else options.seed
    row = one.row(seed, options.setting)
    setting = f"setting-{options.setting}-" if one.job.batched else ""
    path = options.run / f"{setting}seed-{seed}.npz" if options.out is None else options.out
    one.export(row, path)
    agent = one.job.name
    if options.json:
        print(json.dumps({"file": str(path), "agent": agent, "seed": seed, "setting": options.setting}))
    else:
        print(f"written to {path}; from Python, with a copy of {agent}.py: agent, state = {agent}.load({str(path)!r})")
    return 0


def play_command(options: argparse.Namespace) -> int:
    """`rlref play RUN`."""
    from rlref import runs, trained

    if options.episodes < 1:
        raise UsageError(f"--episodes is {options.episodes}; it must be at least 1")
    if options.gif is not None and options.gif.suffix.lower() != ".gif":
        raise UsageError(f"--gif is {options.gif}; it must end in .gif")
    read = trained.of_file if options.run.is_file() else trained.of_folder
    one = read(options.run, options.agent)
    seed = one.job.seeds[0] if options.seed is None else options.seed
    row = one.row(seed, options.setting)
    played = one.play(row, options.episodes, options.episode_seed)
    if options.gif is not None:
        one.draw(row, options.episode_seed, options.gif)
    if options.json:
        print(runs.json_text({how: {"returns": a.tolist(), "lengths": b.tolist()} for how, (a, b) in played.items()}))
        return 0
    from rich.console import Console
    from rich.table import Table

    table = Table("", "mean return", "std", "min", "max", "mean length", box=None)
    for how, (total, length) in played.items():
        numbers = (total.mean(), total.std(), total.min(), total.max(), length.mean())
        table.add_row(how, *(f"{x:.4g}" for x in numbers))
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{one.job.name} on {one.job.config.env_id}, seed {seed}: {options.episodes} episodes")
    console.print(table)
    if options.gif is not None:
        console.print(f"drawn to {options.gif}")
    return 0


def diagnose_command(options: argparse.Namespace) -> int:
    """`rlref diagnose RUN`."""
    from rlref import findings, foreign, runs, verdicts

    paths = options.run
    unknown: list[str] = []
    own = [p for p in paths if (p / "config.json").exists() or (p / "source" / "config.json").exists()]
    if own and len(paths) > 1:
        raise UsageError(f"{own[0]} is a run's folder: give one at a time (several paths are logs, one per seed)")
    if own:
        run = runs.load(paths[0])
        about = f"{run.agent} on {run.config.get('env_id', 'an environment')}, {run.summary['status']}"
        shape, verdict = next(iter(run.metrics.values())).shape, run.diagnose()
    else:
        log = foreign.read(paths)
        about, unknown = f"a log of {log.source}", log.unknown
        shape = next(iter(log.metrics.values())).shape
        # Not the settings that make a schedule: how their updates are counted differs.
        known = ("gamma", "target_kl", "max_grad_norm")
        config = {name: x for name, x in log.config.items() if name in known}
        verdict = verdicts.diagnose(log.metrics, config, seeds=log.seeds, kind=log.kind, exact=False)
    if options.json:
        print(runs.json_text(dataclasses.asdict(verdict)))
        return findings.exit_code(verdict.findings)
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    settings = f"{shape[0]} settings, " if len(shape) == 3 else ""
    console.print(f"{about}: {settings}{shape[-2]} seed{'s' * (shape[-2] > 1)}, {shape[-1]} updates")
    print_verdict(console, verdict)
    reasons: dict[str, list[str]] = {}
    for name, why in verdict.unchecked.items():
        reasons.setdefault(why, []).append(name)
    for why, names in reasons.items():
        console.print(f"not checked, for want of {why}: {', '.join(names)}", style="dim", markup=False)
    if unknown:
        console.print(f"in the log, and not used: {', '.join(unknown)}", style="dim", markup=False)
    return findings.exit_code(verdict.findings)


COLOURS = {"ERROR": "bold red", "WARN": "yellow", "INFO": "cyan", "": ""}


def print_verdict(console: Any, verdict: "Diagnosis", only: Sequence[str] = ("ERROR", "WARN", "INFO")) -> None:
    """One sentence, then the findings, of those that are as bad as `only` says."""
    from rlref import findings

    count = f"{len(verdict.checked)} checks"
    worst = [f for f in verdict.findings if f.worst != "INFO"]
    if worst:
        console.print(f"{count}; above all: {worst[0].title}. {worst[0].meaning}", style="bold", markup=False)
    elif verdict.checked:
        console.print(f"{count}: healthy", style="green")
    else:
        console.print("nothing could be checked", style="yellow")
    for severity, line in findings.lines([f for f in verdict.findings if f.worst in only]):
        console.print(line, style=COLOURS[severity], markup=False)


class Terminal:
    """Progress on a terminal: what is compiled and for how long, then a bar with the live diagnostics."""

    LIVE = (
        ("return", "return_mean"),
        ("of the mean policy", "mean_policy_return"),
        ("entropy", "entropy"),
        ("KL", "kl"),
        ("EV", "explained_variance"),
    )

    def __init__(self) -> None:
        from rich import progress
        from rich.console import Console, Group
        from rich.live import Live
        from rich.text import Text

        self.console = Console(stderr=True)
        self.bar = progress.Progress(
            progress.TextColumn("training"),
            progress.BarColumn(),
            progress.TaskProgressColumn(),
            progress.TimeElapsedColumn(),
            progress.TextColumn("ETA"),
            progress.TimeRemainingColumn(),
            console=self.console,
        )
        self.task = self.bar.add_task("", total=None)
        self.diagnostics, self.verdict = Text(), Text()
        self.next_verdict = 0.0  # when to ask for one again
        self.live = Live(Group(self.bar, self.diagnostics, self.verdict), console=self.console)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *error: object) -> None:
        started = self.live.is_started
        self.live.stop()
        if started and not self.console.is_terminal:
            self.console.print()  # where it cannot redraw, rich leaves the last line open

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False)

    def warn(self, text: str) -> None:
        self.console.print(f"warning: {text}", style="yellow", highlight=False, soft_wrap=True, markup=False)

    @contextlib.contextmanager
    def compiling(self, what: str) -> Iterator[None]:
        from rich import progress

        columns = (progress.SpinnerColumn(), progress.TextColumn("{task.description}"), progress.TimeElapsedColumn())
        with progress.Progress(*columns, console=self.console) as bar:
            bar.add_task(f"XLA compiles {what}", total=None)
            yield

    def progress(self, done: int, total: int, metrics: dict[str, Any], verdict: "Callable[[], Diagnosis]") -> None:
        from rlref import findings, stats

        # IQM over seeds at the chunk's last update, of the seeds where it is defined.
        live = [f"{label} {stats.iqm(metrics[name][:, -1]):.4g}" for label, name in self.LIVE if name in metrics]
        live.append(f"{metrics['steps_per_second'][0, -1]:,.0f} steps/s")
        self.live.start()
        self.bar.update(self.task, completed=done, total=total)
        self.diagnostics.plain = "  ".join(live)
        if (now := time.monotonic()) > self.next_verdict:
            worst = [f for f in verdict().findings if f.worst != "INFO"]
            self.verdict.plain = findings.sentence(worst[0]) if worst else "healthy so far"
            self.verdict.style = COLOURS[worst[0].worst] if worst else "green"
            # The checks cost what training might: 2 % of the time is theirs.
            self.next_verdict = time.monotonic() + max(1.0, 50 * (time.monotonic() - now))


def print_summary(run: "Run") -> None:
    """The outcome in a few lines."""
    from rich.console import Console

    from rlref import runs, stats

    console = Console(highlight=False, soft_wrap=True)
    s = run.summary
    seeds = len(run.seeds)
    settings = zip(s["iqm"], s["iqm_interval_95"], strict=True) if run.batched else [(s["iqm"], s["iqm_interval_95"])]
    for i, (iqm, (low, high)) in enumerate(settings):
        which = f"setting {i}  " if run.batched else ""
        console.print(f"{which}[bold]{s['score']}[/bold]  IQM {iqm:.4g}  95% interval {low:.4g} to {high:.4g}")
    console.print(f"min {s['min']:.4g}  max {s['max']:.4g}  ({seeds} seed{'s' * (seeds > 1)})")
    names = ("entropy", "kl", "explained_variance", "eval_return_greedy", "eval_return_sampled")
    values = [f"{name} {stats.iqm(runs.last(run.metrics[name]).ravel()):.4g}" for name in names if name in run.metrics]
    console.print("at the end, IQM over seeds:  " + "  ".join(values))
    console.print(
        f"{s['env_steps']:,.0f} environment steps in {s['train_seconds']:.1f} s ({s['steps_per_second']:,} steps/s), "
        f"after {s['compile_seconds']:.1f} s of compiling"
    )
    if s["status"] == "interrupted":
        by = {"SIGINT": "Ctrl-C"}.get(s["stopped_by"], s["stopped_by"])
        how = f"; go on with: rlref train --resume {run.path}" if run.path else ""
        console.print(f"[yellow]stopped by {by}[/yellow]; what was reached is kept{how}")
    for bad in s["nonfinite"]:
        where = f"seed {bad['seed']} became non-finite at update {bad['update']}"
        console.print(f"[red]{where}[/red]; the others trained on")
    print_verdict(console, run.diagnose(), only=("ERROR", "WARN"))
    if s["status"] == "incomplete":
        console.print(
            f"[red]not all of it could be written to {run.path}[/red]; once there is room, go on with: "
            f"rlref train --resume {run.path}"
        )
    elif run.path:
        console.print(f"written to {run.path}; from Python: rlref.load({str(run.path)!r})")


def probe_command(options: argparse.Namespace) -> int:
    """`rlref probe AGENT`."""
    for name, value, least in (("num-seeds", options.num_seeds, 1), ("seed", options.seed, 0)):
        if value < least:
            raise UsageError(f"--{name} is {value}; it must be at least {least}")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")  # oracles compile hundreds of small ones
    from probes import check

    run = functools.partial(
        check.run,
        options.agent,
        only=options.only,
        num_seeds=options.num_seeds,
        seed=options.seed,
        fail_fast=options.fail_fast,
    )
    if options.json:
        report = run()
        print(json.dumps(check.to_json(report), indent=1))
        return 0 if report.ok else 1
    from rich.console import Console, Group
    from rich.live import Live
    from rich.spinner import Spinner

    with Live(console=Console(stderr=True, highlight=False), transient=True) as live:

        def watch(doing: str, oracles: list[Any], rungs: list[Any]) -> None:
            live.update(Group(probe_table(oracles, rungs), Spinner("dots", doing)))

        report = run(watch=watch)
    console = Console(highlight=False)
    console.print(probe_table(report.oracles, report.rungs))
    console.print(check.verdict(report), style="green" if report.ok else "red", soft_wrap=True)
    return 0 if report.ok else 1


def probe_table(oracles: list[Any], rungs: list[Any]) -> Any:
    """One line per check."""
    from rich.table import Table

    from probes import check

    table = Table("check", "isolates", "result", box=None)
    for one in oracles:
        result = f"not checked: {one.why}" if one.fault is None else "[red]wrong[/red]" if one.fault else "right"
        table.add_row(one.oracle.name, one.oracle.isolates, result)
    for rung in rungs:
        if isinstance(rung, check.Skipped):
            result = f"not checked: {rung.why}"
        else:
            counted = f"{int(rung.passed.sum())} of {len(rung.passed)}"
            result = counted if rung.ok else f"[red]{counted}[/red]"
        table.add_row(rung.probe.name, rung.probe.isolates, result)
    return table


def inspect_command(options: argparse.Namespace) -> int:
    """`rlref inspect ENV`."""
    from rich.console import Console

    from rlref import findings, inspection_pictures, runs
    from rlref.inspection import inspect

    folder = Path("inspect") / options.env.replace(":", "-") if options.out is None else options.out
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--out is {folder}, which is no folder")
    shown: Any = contextlib.nullcontext() if options.json else Console(stderr=True).status(f"inspecting {options.env}")
    with shown, contextlib.redirect_stdout(sys.stderr):  # an environment may print
        result = inspect(
            options.env,
            episodes=options.episodes,
            gamma=options.gamma,
            seed=options.seed,
            env_params_assignments=options.env_params,
        )
        pictures = inspection_pictures.draw(result, folder)
    code = findings.exit_code(result.findings)
    if options.json:
        found = [findings.to_json(finding) for finding in result.findings]
        report = {"env_id": result.env_id, "findings": found, "statistics": result.statistics}
        print(runs.json_text(report | {"pictures": [str(path) for path in pictures]}))
        return code
    console = Console(highlight=False, soft_wrap=True, markup=False)
    print_statistics(console, result.statistics)
    for severity, line in findings.lines(result.findings) or [("", "nothing to remark")]:
        console.print(line, style=COLOURS[severity])
    for path in pictures:
        console.print(f"drawn to {path}")
    return code


def print_statistics(console: Any, statistics: dict[str, Any]) -> None:
    """What a random policy meets in an environment, as a table."""
    from rich.table import Table

    spaces = {name: statistics[name] for name in ("observation_space", "action_space") if name in statistics}
    if spaces:
        console.print("  ".join(f"{name.partition('_')[0]}s: {space}" for name, space in spaces.items()))
    if "steps" not in statistics:
        return
    table = Table("", "mean", "std", "min", "max", box=None)
    per = statistics["observation"].get("per_dimension", {"mean": []})
    rows = [(f"observation {i}", {k: x[i] for k, x in per.items()}) for i in range(len(per["mean"]))]
    if not 0 < len(rows) <= 12:
        rows = [("observation", statistics["observation"])]
    rows += [(name.replace("_", " "), statistics.get(name, {})) for name in ("reward", "return", "length")]
    target = f"value target, gamma {statistics['gamma']:g}, time limits as ends"
    rows.append((target, statistics.get("value_target", {})))
    for name, x in rows:
        if "mean" in x:
            table.add_row(name, *(f"{x[column]:.4g}" for column in ("mean", "std", "min", "max")))
    console.print(table)
    ends = "".join(f", {statistics[how]:.0%} {how}" for how in ("terminated", "truncated") if how in statistics)
    console.print(
        f"random policy: {statistics['episodes']} episodes{ends}; {statistics['steps']:,} steps, "
        f"{statistics['reward']['nonzero']:.2%} with a reward other than 0"
    )


def envs_command(options: argparse.Namespace) -> int:
    """`rlref envs`."""
    from rlref.envs import list_envs

    rows = list_envs()
    if options.json:
        print(json.dumps([row._asdict() for row in rows], indent=1))
        return 0
    from rich.console import Console
    from rich.table import Table

    table = Table("environment", "observations", "actions", "time limit", "note", box=None)
    for row in rows:
        table.add_row(row.env_id, row.observations, row.actions, str(row.time_limit or "none"), row.note)
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
