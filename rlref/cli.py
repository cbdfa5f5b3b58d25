"""The command line: `rlref train | probe | envs`.

Exit codes: 0 good, 1 a failure was found (a seed became non-finite, a check failed), 2 wrong usage, 130 stopped by
Ctrl-C.
"""

import argparse
import contextlib
import dataclasses
import datetime
import functools
import io
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rlref.errors import UsageError, nearest

if TYPE_CHECKING:
    from rlref.runs import Run

DESCRIPTION = """\
Reference reinforcement learning in JAX: single-file agents, many seeds, diagnostics.

  rlref train ppo                        CartPole-v1, 8 seeds: the main job
  rlref train dqn --env-id Acrobot-v1    another agent, another environment
  rlref train ./my_ppo.py                your own copy of an agent
  rlref train ppo --help                 every setting
  rlref probe ./my_ppo.py                whether an agent is right, and if not, which part is wrong
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("rlref", description=DESCRIPTION, formatter_class=raw)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    train = commands.add_parser("train", help="train an agent over many seeds", add_help=False)
    train.add_argument("agent", nargs="?")
    probing = commands.add_parser("probe", help="check an agent against environments whose answers are known")
    probing.add_argument("agent", help="ppo, dqn, cem, or a file such as ./my_ppo.py")
    probing.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="this check alone; may be repeated"
    )
    probing.add_argument("--num-seeds", type=int, default=64, help="seeds per probe (default: 64)")
    probing.add_argument("--seed", type=int, default=0, help="the first seed's id (default: 0)")
    probing.add_argument("--fail-fast", action="store_true", help="stop at the first failure")
    probing.add_argument("--json", action="store_true", help="print JSON, and nothing else")
    listing = commands.add_parser("envs", help="list the environments that can be trained")
    listing.add_argument("--json", action="store_true", help="print JSON")
    options, rest = parser.parse_known_args(arguments)
    try:
        if options.command == "train":
            return train_command(options.agent, rest)
        if rest:
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        if options.command == "probe":
            return probe_command(options)
        return envs_command(options.json)
    except UsageError as error:
        print(f"rlref: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `rlref ... | head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("rlref: stopped by Ctrl-C before anything was trained", file=sys.stderr)
        return 130


@dataclasses.dataclass(frozen=True)
class TrainOptions:
    """How to run; the agent's own settings follow."""

    num_seeds: int = 8
    """seeds to train side by side"""
    seed: int = 0
    """the first seed's id"""
    run_dir: Path | None = None
    """folder to write the run to, which must not exist; None: a new one under runs/"""
    note: str = ""
    """the question that this run is to answer; kept with it"""
    env_params: tuple[str, ...] = ()
    """parameters of the environment, each as name=value"""
    eval_every: int = 0
    """updates between evaluations; 0 for none"""
    eval_episodes: int = 10
    """episodes of an evaluation, per seed, greedy and (but for DQN) sampled"""
    memory_gb: float | None = None
    """memory that training may take, in 1e9 bytes; None: 80 % of what is free"""
    json: bool = False
    """print the summary as JSON, and nothing else"""


@dataclasses.dataclass(frozen=True)
class Budget:
    """In environment steps, for agents whose own setting is a number of generations."""

    total_timesteps: int = 0
    """environment steps of one seed's candidates, at most: as many whole generations, instead of num_generations; 0:
    num_generations counts"""


def train_command(agent: str | None, arguments: Sequence[str]) -> int:
    """`rlref train AGENT [options]`."""
    from rlref.agents import NAMES

    if agent is None:
        wants_help = any(a in ("-h", "--help") for a in arguments)
        print(
            f"usage: rlref train AGENT [options]\n\nAGENT is {', '.join(NAMES)}, or your own file such as ./my_ppo.py; "
            f"`rlref train {NAMES[0]} --help` shows all options",
            file=sys.stdout if wants_help else sys.stderr,
        )
        return 0 if wants_help else 2
    import tyro

    from rlref.agents import load_agent

    module = load_agent(agent)
    config_class: Any = module.Config
    sections: list[Any] = [("run", TrainOptions), ("config", config_class)]
    settings = {f.name for f in dataclasses.fields(config_class)}
    if "num_generations" in settings and "total_timesteps" not in settings:
        sections.append(("budget", Budget))
    flat: Any = tyro.conf.OmitArgPrefixes
    both: Any = dataclasses.make_dataclass("Options", [(name, flat[section]) for name, section in sections])
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parsed, unknown = tyro.cli(
                both,
                prog=f"rlref train {agent}",
                args=list(arguments),
                description=module.__doc__,
                return_unknown_args=True,
            )
    except SystemExit as error:
        if not error.code:
            raise  # --help
        # tyro frames its message, and rules it off from the help below it.
        message, *_ = said.getvalue().partition("\n")[2].split("──")
        one_line = " ".join(line.strip("│ ") for line in message.splitlines()).strip()
        raise UsageError(f"{one_line.rstrip('.')}. `rlref train {agent} --help` shows all") from None
    if unknown:
        fields = [f.name.replace("_", "-") for _, c in sections for f in dataclasses.fields(c)]
        raise UsageError(
            f"there is no option {unknown[0]!r}.{nearest(unknown[0], [f'--{name}' for name in fields])} "
            f"`rlref train {agent} --help` shows all"
        )
    budget = parsed.budget.total_timesteps if hasattr(parsed, "budget") else 0
    given = {argument.partition("=")[0].replace("_", "-") for argument in arguments}
    if {"--total-timesteps", "--num-generations"} <= given:
        raise UsageError("--total-timesteps and --num-generations say the same; give one of them")
    return train_run(module, parsed.run, parsed.config, budget, ["rlref", "train", agent, *arguments])


def within(budget: int, module: ModuleType, config: Any, env: Any, env_params: Any) -> Any:
    """`config` with as many generations as the environment steps `budget` allow. Raises UsageError if that is none."""
    try:
        most = module.make(dataclasses.replace(config, num_generations=1), env, env_params).steps_per_update
    except ValueError as error:
        raise UsageError(str(error)) from error
    if budget < most:
        raise UsageError(f"--total-timesteps is {budget}; one generation takes up to {most} environment steps")
    return dataclasses.replace(config, num_generations=budget // most)


def train_run(module: ModuleType, options: TrainOptions, config: Any, budget: int, command: list[str]) -> int:
    from rlref import envs, runner

    env, env_params = envs.make_env(config.env_id)
    env_params = envs.with_params(env_params, options.env_params)
    if budget:
        config = within(budget, module, config, env, env_params)
    run_dir = options.run_dir
    if run_dir is None:
        stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")
        run_dir = Path("runs") / f"{module.__name__.rpartition('.')[2]}-{config.env_id.replace(':', '-')}-{stamp}"
    display = runner.Silent() if options.json else Terminal()
    with display if isinstance(display, Terminal) else contextlib.nullcontext():
        run = runner.train(
            module,
            config,
            num_seeds=options.num_seeds,
            seed=options.seed,
            env=env,
            env_params=env_params,
            run_dir=run_dir,
            note=options.note,
            eval_every=options.eval_every,
            eval_episodes=options.eval_episodes,
            memory_gb=options.memory_gb,
            command=command,
            display=display,
        )
    if options.json:
        print(json.dumps({"run_dir": str(run.path), **json.loads((run_dir / "summary.json").read_text())}))
    else:
        print_summary(run)
    if run.summary["status"] == "interrupted":
        return 130
    return 1 if run.summary["nonfinite"] else 0


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
        self.diagnostics = Text()
        self.live = Live(Group(self.bar, self.diagnostics), console=self.console)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *error: object) -> None:
        started = self.live.is_started
        self.live.stop()
        if started and not self.console.is_terminal:
            self.console.print()  # where it cannot redraw, rich leaves the last line open

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False)

    @contextlib.contextmanager
    def compiling(self, what: str) -> Iterator[None]:
        from rich import progress

        columns = (progress.SpinnerColumn(), progress.TextColumn("{task.description}"), progress.TimeElapsedColumn())
        with progress.Progress(*columns, console=self.console) as bar:
            bar.add_task(f"XLA compiles {what}", total=None)
            yield

    def progress(self, done: int, total: int, metrics: dict[str, Any]) -> None:
        from rlref import stats

        # IQM over seeds at the chunk's last update, of the seeds where it is defined.
        live = [f"{label} {stats.iqm(metrics[name][:, -1]):.4g}" for label, name in self.LIVE if name in metrics]
        live.append(f"{metrics['steps_per_second'][0, -1]:,.0f} steps/s")
        self.live.start()
        self.bar.update(self.task, completed=done, total=total)
        self.diagnostics.plain = "  ".join(live)


def print_summary(run: "Run") -> None:
    """The outcome in a few lines."""
    from rich.console import Console

    from rlref import runs, stats

    console = Console(highlight=False, soft_wrap=True)
    s = run.summary
    low, high = s["iqm_interval_95"]
    seeds = len(run.seeds)
    console.print(
        f"[bold]{s['score']}[/bold]  IQM {s['iqm']:.4g}  95% interval {low:.4g} to {high:.4g}  min {s['min']:.4g}  max "
        f"{s['max']:.4g}  ({seeds} seed{'s' * (seeds > 1)})"
    )
    names = ("entropy", "kl", "explained_variance", "eval_return_greedy", "eval_return_sampled")
    values = [f"{name} {stats.iqm(runs.last(run.metrics[name]).ravel()):.4g}" for name in names if name in run.metrics]
    console.print("at the end, IQM over seeds:  " + "  ".join(values))
    console.print(
        f"{s['env_steps']:,.0f} environment steps in {s['train_seconds']:.1f} s ({s['steps_per_second']:,} steps/s), "
        f"after {s['compile_seconds']:.1f} s of compiling"
    )
    if s["status"] == "interrupted":
        console.print("[yellow]stopped by Ctrl-C[/yellow]; what was reached is kept")
    for bad in s["nonfinite"]:
        where = f"seed {bad['seed']} became non-finite at update {bad['update']}"
        console.print(f"[red]{where}[/red]; the others trained on")
    if run.path:
        console.print(f"written to {run.path}; from Python: rlref.load({str(run.path)!r})")


def probe_command(options: argparse.Namespace) -> int:
    """`rlref probe AGENT`."""
    for name, value, least in (("num-seeds", options.num_seeds, 1), ("seed", options.seed, 0)):
        if value < least:
            raise UsageError(f"--{name} is {value}; it must be at least {least}")
    # An edited file compiles anew; one that has not changed need not.
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "rlref"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache))
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


def envs_command(as_json: bool) -> int:
    """`rlref envs`."""
    from rlref.envs import list_envs

    rows = list_envs()
    if as_json:
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
