"""`rlref train AGENT [options]`, `rlref train --resume RUN [options]`."""

import argparse
import contextlib
import dataclasses
import functools
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rlref.cli.agent_options import add_agent_command, agent_and_rest, look_ahead, read_options, usage
from rlref.cli.terminal import Terminal, exit_code, print_verdict
from rlref.errors import UsageError

if TYPE_CHECKING:
    from rlref.runs.run import Run
    from rlref.tuned import Tuned


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
    reset: Literal["every", "pool"] = "every"
    """start every episode anew, or from a pool of states that each environment draws once (suites within jax)"""
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


def add_to(commands: Any) -> None:
    """Add the command to the parser's."""
    add_agent_command(commands, "train", "train an agent over many seeds", run)


def run(given: argparse.Namespace) -> int:
    """`rlref train AGENT [options]`, `rlref train --resume RUN [options]`."""
    command = ["rlref", "train", *given.arguments]
    agent, arguments = agent_and_rest(given.arguments)
    ahead = look_ahead(arguments)
    if ahead.resume is True:
        raise UsageError("--resume takes a run's folder, as in --resume runs/mine")
    if agent is None and ahead.resume is None:
        return usage("train", arguments)
    processes = {name: getattr(ahead, name) for name in ("coordinator", "num_processes", "process_id")}
    if ahead.distributed is True:
        join_processes(**processes)
    elif alone := [name for name, x in processes.items() if x is not None]:
        raise UsageError(f"--{alone[0].replace('_', '-')} goes with --distributed")
    if ahead.resume is not None:
        return resume_run(Path(ahead.resume), agent, arguments, command)
    return new_run(agent or "", ahead, arguments, command)


def tuned_in_words(start: "Tuned", config: Any, budget: int) -> str:
    """Which settings come from the table, and which of it were given otherwise."""
    from rlref.settings import LENGTHS, plain

    kept, other = [], []
    for name, x in start.settings.items():
        same = plain(getattr(config, name)) == plain(x) and not (budget and name in LENGTHS)
        kept.append(f"{name} {setting_text(x)}") if same else other.append(name)
    given = f"; given otherwise: {', '.join(other)}" if other else ""
    return f"settings tuned for {config.env_id}: {', '.join(kept) or 'none'}{given} (--defaults: without them)"


def otherwise_tuned(original: "Tuned | None", config: Any) -> str:
    """A line on what the original of a user's file has for the environment, and `config` has not; '' if nothing."""
    from rlref.settings import plain

    settings = original.settings if original else {}
    others = [f"{name} {setting_text(x)}" for name, x in settings.items() if plain(getattr(config, name)) != plain(x)]
    return f"the file's own settings; the original's for {config.env_id} have {', '.join(others)}" if others else ""


def setting_text(x: Any) -> str:
    """A setting in a line of text."""
    return f"{x:g}" if isinstance(x, float) else f"{x:,}" if isinstance(x, int) and not isinstance(x, bool) else str(x)


def join_processes(**given: Any) -> None:
    """Join the other processes of this run: `coordinator`, `num_processes` and `process_id`, as text or None."""
    from rlref.runs import hosts

    for name, x in given.items():
        if x is True or (name != "coordinator" and x is not None and not x.isdecimal()):
            what = "HOST:PORT" if name == "coordinator" else "a whole number"
            raise UsageError(f"--{name.replace('_', '-')} takes {what}" + ("" if x is True else f", not {x!r}"))
    numbers = (None if given[name] is None else int(given[name]) for name in ("num_processes", "process_id"))
    # Gloo greets on standard output, from C++; that is for what was asked for.
    sys.stdout = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), 1)
    hosts.initialize(given["coordinator"], *numbers)


def new_run(agent: str, ahead: argparse.Namespace, arguments: Sequence[str], command: list[str]) -> int:
    """Train an agent; `ahead` is what `look_ahead` gave of `arguments`."""
    from rlref import tuned
    from rlref.contract import load_agent, name_of
    from rlref.envs import make_env, with_params
    from rlref.envs.ids import split_pool
    from rlref.runs import hosts
    from rlref.runs.folder import new_folder
    from rlref.runs.job import generations_within
    from rlref.runs.training import train

    module = load_agent(agent)
    env_id = getattr(module.Config, "env_id", "") if ahead.env_id is None else ahead.env_id
    start = None if ahead.defaults or env_id is True else tuned.tuned(module, env_id)
    start_config = start and module.Config(**start.settings)
    options, config, budget = read_options("train", TrainOptions, module, arguments, config=start_config)
    if options.distributed and ahead.distributed is not True:
        raise UsageError("--distributed takes no value")
    if start is not None:
        said = tuned_in_words(start, config, budget)
    else:
        said = "" if ahead.defaults else otherwise_tuned(tuned.of_original(module, config.env_id), config)
    if said and not options.json and hosts.is_first():
        print(said)
    if options.reset == "pool":
        config = pooled(config)
        if not options.json and hosts.is_first():
            print(f"pool: each of {config.num_envs} environments starts from {split_pool(config.env_id)[0]} states")
    env, env_params = make_env(config.env_id)
    env_params = with_params(env_params, options.env_params)
    if budget:
        config = generations_within(budget, module, config, env, env_params)
    run_dir = options.run_dir
    if run_dir is None:  # one name for all processes
        run_dir = Path(hosts.broadcast_text(str(new_folder(name_of(module), config.env_id))))
    return train_and_report(
        options,
        functools.partial(
            train,
            module,
            config,
            num_seeds=options.num_seeds,
            seed=options.seed,
            env_params=env_params,
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


def pooled(config: Any) -> Any:
    """`config` with its environment around a pool. Raises UsageError where its size does not follow from num_envs."""
    from rlref.envs.ids import with_pool

    if not hasattr(config, "num_envs"):
        raise UsageError("--reset pool shares its states among num_envs environments, a setting that this agent lacks")
    return dataclasses.replace(config, env_id=with_pool(config.env_id, config.num_envs))


def resume_run(path: Path, agent: str | None, arguments: Sequence[str], command: list[str]) -> int:
    """Go on with a run; any other option that is given must say what the run has."""
    from rlref.envs import with_params
    from rlref.envs.ids import split_pool
    from rlref.runs.job import job_of_folder
    from rlref.runs.training import resume
    from rlref.settings import LENGTHS, plain

    job = job_of_folder(path, agent)
    starts, inner_id = split_pool(job.config.env_id)
    had = TrainOptions(
        num_seeds=len(job.seeds),
        seed=job.seeds[0],
        reset="pool" if starts else "every",
        eval_every=job.eval_every,
        eval_episodes=job.eval_episodes,
    )
    first_setting = {name: x[0] for name, x in job.settings.items() if name in job.batched}
    start = dataclasses.replace(job.config, **first_setting)
    options, config, budget = read_options("train", TrainOptions, job.module, arguments, had, start)
    if options.reset == had.reset == "pool" and config.env_id == inner_id:  # as it was begun
        config = dataclasses.replace(config, env_id=job.config.env_id)
    differ = []
    for name, x in job.settings.items():
        there = x[0] if name in job.batched else x
        now = plain(getattr(config, name))
        if now != there and name not in LENGTHS:
            differ.append(f"{name} is {x} there, not {now}")
    names = ("num_seeds", "seed", "run_dir", "note", "defaults", "reset", "eval_every", "eval_episodes")
    pairs = [(name, getattr(had, name), getattr(options, name)) for name in names]
    differ += [f"{name} is {there or 'its own'} there, not {now}" for name, there, now in pairs if now != there]
    if repr(with_params(job.env_params, options.env_params)) != repr(job.env_params):
        differ.append(f"env_params are {job.env_params} there, not {', '.join(options.env_params)}")
    if differ:
        raise UsageError(f"{path} goes on with its own settings: {'; '.join(differ)}")
    total = budget or None
    for name in LENGTHS:
        if name in job.settings and getattr(config, name) != job.settings[name]:
            total = getattr(config, name) * (job.agent.steps_per_update if name == "num_generations" else 1)
    return train_and_report(
        options,
        functools.partial(
            resume,
            path,
            total_timesteps=total,
            agent=job.module,
            checkpoint_every=options.checkpoint_every,
            memory_gb=options.memory_gb,
            sinks=options.log or (),
            command=command,
        ),
    )


def train_and_report(options: TrainOptions, run_it: Callable[..., "Run"]) -> int:
    """Run a training with its progress shown, then its outcome; returns the exit code."""
    from rlref.health import findings
    from rlref.runs import files, hosts
    from rlref.runs.display import Silent

    terminal = None if options.json or not hosts.is_first() else Terminal()
    with terminal or contextlib.nullcontext():
        run = run_it(display=terminal or Silent())
    if options.json and hosts.is_first():
        print(files.json_text({"run_dir": str(run.path), **run.summary}))
    elif hosts.is_first():
        print_summary(run)
    if run.summary["status"] == "interrupted":
        return exit_code(run.summary["stopped_by"])
    bad = run.summary["nonfinite"] or run.summary["status"] == "incomplete"
    return 1 if bad else findings.exit_code(run.diagnose().findings)


def print_summary(run: "Run") -> None:
    """The outcome in a few lines."""
    from rich.console import Console

    from rlref import stats
    from rlref.health.explained import fit_in_words

    console = Console(highlight=False, soft_wrap=True)
    s = run.summary
    seeds = len(run.seeds)
    settings = zip(s["iqm"], s["iqm_interval_95"], strict=True) if run.batched else [(s["iqm"], s["iqm_interval_95"])]
    for i, (iqm, (low, high)) in enumerate(settings):
        which = f"setting {i}  " if run.batched else ""
        between = f"  95% interval {low:.4g} to {high:.4g}" if math.isfinite(low) else ""  # one seed has none
        console.print(f"{which}[bold]{s['score']}[/bold]  IQM {iqm:.4g}{between}")
    console.print(f"min {s['min']:.4g}  max {s['max']:.4g}  ({seeds} seed{'s' * (seeds > 1)})")
    names = ("entropy", "kl", "explained_variance", "eval_return_greedy", "eval_return_sampled")
    values = [
        fit_in_words(run.metrics)
        if name == "explained_variance"
        else f"{name} {stats.iqm(stats.last(run.metrics[name]).ravel()):.4g}"
        for name in names
        if name in run.metrics
    ]
    console.print("at the end, IQM over seeds:  " + "  ".join(values))
    console.print(
        f"{s['env_steps']:,.0f} environment steps in {s['train_seconds']:.1f} s ({s['steps_per_second']:,} steps/s), "
        f"after {s['compile_seconds']:.1f} s of compiling"
    )
    if s["status"] == "interrupted":
        by = {"SIGINT": "Ctrl-C"}.get(s["stopped_by"], s["stopped_by"])
        how = f"; go on with: rlref train --resume {run.path}" if run.path else ""
        kept = f"; what was reached is kept{how}" if s["all_written"] else ""
        console.print(f"[yellow]stopped by {by}[/yellow]{kept}")
    for bad in s["nonfinite"]:
        where = f"seed {bad['seed']} became non-finite at update {bad['update']}"
        console.print(f"[red]{where}[/red]; the others trained on")
    print_verdict(console, run.diagnose(), only=("ERROR", "WARN"))
    if not s["all_written"]:
        console.print(
            f"[red]not all of it could be written to {run.path}[/red]; once there is room, go on with: "
            f"rlref train --resume {run.path}"
        )
    elif run.path:
        console.print(f"written to {run.path}; from Python: rlref.load({str(run.path)!r})")
