"""The commands that look, compare and search: `rlref report | compare | sweep | ablate | baselines`.

Each has its options, what it runs, and how it prints that. `rlref.cli` has the others.
"""

import argparse
import contextlib
import dataclasses
import datetime
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from rlref.errors import Stopped, UsageError


def add_to(commands: Any) -> dict[str, Any]:
    """Add the commands to a parser's; returns what runs each, by its name."""
    reporting = commands.add_parser("report", help="one page that shows a run, or several side by side")
    reporting.add_argument("run", nargs="+", help="a run's folder; or LABEL=PATH[,PATH...] to compare, as in compare")
    reporting.add_argument(
        "--out", type=Path, help="the page (default: report.html in the run's folder; of several, comparison.html)"
    )
    reporting.add_argument("--pictures", type=Path, help="a folder for each plot as PNG and SVG")
    reporting.add_argument(
        "--reference", nargs="+", default=[], metavar="ENV=SCORE", help="what counts as 1 when scores are normalised"
    )
    comparing = commands.add_parser("compare", help="say whether one method is better than another, and how surely")
    comparing.add_argument(
        "method", nargs="+", help="the baseline first: PATH, PATH#SETTING, or LABEL=PATH[,PATH...] with a run per env"
    )
    comparing.add_argument(
        "--reference", nargs="+", default=[], metavar="ENV=SCORE", help="what counts as 1 when scores are normalised"
    )
    comparing.add_argument(
        "--selftest",
        action="store_true",
        help="split one run's seeds in two and compare, many times: how often it errs",
    )
    comparing.add_argument("--splits", type=int, default=1000, help="of the self-test (default: 1000)")
    comparing.add_argument("--json", action="store_true", help="print JSON, and nothing else")
    simple = commands.add_parser("baselines", help="a random policy, CEM, DQN and PPO on one environment")
    simple.add_argument("env", help="a gymnax id, or package.module:make_env")
    simple.add_argument("--total-timesteps", type=int, default=500_000, help="of one seed (default: 500000)")
    simple.add_argument("--num-seeds", type=int, default=8, help="of every agent (default: 8)")
    simple.add_argument("--seed", type=int, default=0, help="the first seed's id (default: 0)")
    simple.add_argument(
        "--env-params", nargs="+", default=[], metavar="NAME=VALUE", help="parameters of the environment"
    )
    simple.add_argument("--run-dir", type=Path, help="folder of the runs (default: a new one under runs/)")
    simple.add_argument("--memory-gb", type=float, help="memory to train in (default: 80 %% of what is free)")
    simple.add_argument("--json", action="store_true", help="print JSON, and nothing else")
    for name, what in (("sweep", "search at random"), ("ablate", "switch each option off, or on")):
        commands.add_parser(name, help=f"{what}: `rlref {name} AGENT [options]`", add_help=False, allow_abbrev=False)
    return {"report": report_command, "compare": compare_command, "baselines": baselines_command}


@dataclasses.dataclass(frozen=True)
class FolderOptions:
    """Where, and in what environment, a command trains."""

    run_dir: Path | None = None
    """folder of the runs; the same command with the same folder goes on; None: a new one under runs/"""
    env_params: tuple[str, ...] = ()
    """parameters of the environment, each as name=value"""
    memory_gb: float | None = None
    """memory that training may take, in 1e9 bytes; None: 80 % of what is free"""
    json: bool = False
    """print JSON, and nothing else"""


@dataclasses.dataclass(frozen=True)
class SearchOptions(FolderOptions):
    """How to search; the agent's own settings follow: what the search begins from, and is compared with."""

    vary: tuple[str, ...] = ()
    """what to search: NAME=LOW:HIGH, NAME=LOW:HIGH:SCALE (linear, log, complement) or NAME=A,B,C each; none: the usual
    settings of the agent, in the usual ranges"""
    num_settings: int = 64
    """settings to draw"""
    num_seeds: int = 4
    """seeds of each: one half chooses the best, the other reports"""
    confirm_seeds: int = 32
    """fresh seeds of the best, its neighbours and the settings given; 0: do not confirm"""
    seed: int = 0
    """the first seed's id; settings are drawn by it as well"""


@dataclasses.dataclass(frozen=True)
class AblateOptions(FolderOptions):
    """What to switch; the agent's own settings follow: what everything is compared with."""

    only: tuple[str, ...] = ()
    """the options to switch; none: all"""
    also: tuple[str, ...] = ()
    """more to try, each as NAME=A,B,C"""
    num_seeds: int = 16
    """seeds of every variant"""
    seed: int = 0
    """the first seed's id"""


def report_command(options: argparse.Namespace) -> int:
    """`rlref report RUN...`."""
    from rlref import compare, report

    methods = compare.read(options.run)
    if len(methods) == 1 and len(methods[0].runs) == 1:
        (run,) = methods[0].runs.values()
        written = report.write(run, options.out, options.pictures)
    else:
        out = options.out or Path("comparison.html")
        written = report.write_comparison(methods, out, options.pictures, references(options.reference))
    print(f"written to {written}" + (f", its plots to {options.pictures}" if options.pictures else ""))
    return 0


def compare_command(options: argparse.Namespace) -> int:
    """`rlref compare A B...`, `rlref compare RUN --selftest`."""
    from rlref import compare, runs

    methods = compare.read(options.method)
    if options.selftest:
        return selftest(options, methods)
    comparison = compare.compare(methods, references(options.reference))
    if options.json:
        print(runs.json_text(compare.to_json(comparison)))
        return 0
    console = plain_console()
    print_tables(console, compare.tables(comparison))
    print_warnings(console, comparison.warnings)
    for text in comparison.sentences:
        console.print(text, style="bold")
    return 0


def selftest(options: argparse.Namespace, methods: Sequence[Any]) -> int:
    """`rlref compare RUN --selftest`; the exit code is 1 if the comparison errs too often, or hardly ever."""
    from rlref import compare, runs

    if len(methods) != 1 or len(methods[0].runs) != 1:
        raise UsageError("--selftest takes one run, whose seeds it splits")
    if options.splits < 1:
        raise UsageError(f"--splits is {options.splits}; it must be at least 1")
    (run,) = methods[0].runs.values()
    found = compare.selftest(run, options.splits)
    print(runs.json_text(dataclasses.asdict(found)) if options.json else found.sentence)
    return int(found.usable and options.splits >= 1000 and not 0.03 <= found.rejected <= 0.07)


def sweep_command(module: ModuleType, options: SearchOptions, config: Any, env_params: Any) -> int:
    """`rlref sweep AGENT [options]`."""
    from rlref import runs, space, sweep

    folder = options.run_dir or new_folder("sweep", module.__name__.rpartition(".")[2], config.env_id)
    vary = space.parse(options.vary, module, config) or None
    with training(options.json, folder) as display:
        found = sweep.sweep(
            module,
            config,
            vary,
            num_settings=options.num_settings,
            num_seeds=options.num_seeds,
            seed=options.seed,
            confirm_seeds=options.confirm_seeds,
            env_params=env_params,
            folder=folder,
            memory_gb=options.memory_gb,
            display=display,
        )
    code = int(found.too_sensitive)
    if options.json:
        print(runs.json_text({"folder": str(folder), **sweep.to_json(found)}))
        return code
    console = plain_console()
    print_tables(console, sweep.tables(found))
    for text in sweep.sentences(found):
        console.print(text, style="bold")
    console.print(f"written to {folder}: trials.csv, sweep.json, settings.png, and the runs")
    return code


def ablate_command(module: ModuleType, options: AblateOptions, config: Any, env_params: Any) -> int:
    """`rlref ablate AGENT [options]`."""
    from rlref import ablate, runs, space

    folder = options.run_dir or new_folder("ablate", module.__name__.rpartition(".")[2], config.env_id)
    also = space.parse(options.also, module, config)
    if ranges := [name for name, x in also.items() if isinstance(x, space.Range)]:
        raise UsageError(f"--also takes values to try, as {ranges[0]}=A,B,C, not a range")
    with training(options.json, folder) as display:
        found = ablate.ablate(
            module,
            config,
            only=options.only,
            also=also,
            num_seeds=options.num_seeds,
            seed=options.seed,
            env_params=env_params,
            folder=folder,
            memory_gb=options.memory_gb,
            display=display,
        )
    if options.json:
        print(runs.json_text({"folder": str(folder), **ablate.to_json(found)}))
        return 0
    console = plain_console()
    print_tables(console, ablate.tables(found))
    print_warnings(console, found.comparison.warnings)
    for label, why in found.not_tried.items():
        console.print(f"not tried: {label}: {why}", style="dim")
    for text in ablate.sentences(found):
        console.print(text, style="bold")
    console.print(f"written to {folder}")
    return 0


def baselines_command(options: argparse.Namespace) -> int:
    """`rlref baselines ENV`."""
    from rlref import baselines, compare, envs, runs

    _, params = envs.make_env(options.env)
    folder = options.run_dir or new_folder("baselines", options.env)
    with training(options.json, folder) as display:
        found = baselines.baselines(
            options.env,
            total_timesteps=options.total_timesteps,
            num_seeds=options.num_seeds,
            seed=options.seed,
            env_params=envs.with_params(params, options.env_params),
            folder=folder,
            memory_gb=options.memory_gb,
            display=display,
        )
    if options.json:
        value = {"folder": str(folder), "unfit": found.unfit, "verdict": found.verdict}
        print(runs.json_text(value | {"comparison": compare.to_json(found.comparison)}))
        return 0
    console = plain_console()
    print_tables(console, [baselines.table(found)])
    print_warnings(console, found.comparison.warnings)
    for name, why in found.unfit.items():
        console.print(f"{name} cannot be trained here: {why}")
    console.print(found.verdict, style="bold")
    console.print(f"written to {folder}")
    return 0


def references(texts: Sequence[str]) -> dict[str, float]:
    """ENV=SCORE each. Raises UsageError for anything else."""
    scores = {}
    for text in texts:
        name, _, score = text.rpartition("=")
        try:
            scores[name] = float(score)
        except ValueError:
            name = ""
        if not name or not math.isfinite(scores[name]):
            raise UsageError(f"--reference takes ENV=SCORE, not {text!r}")
    return scores


def new_folder(*names: str) -> Path:
    """A folder under runs/ that nothing else has."""
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    return Path("runs") / "-".join((*names, stamp)).replace(":", "-")


@contextlib.contextmanager
def training(as_json: bool, folder: Path) -> Iterator[Any]:
    """Show the progress of several trainings one after the other, and how to go on where they are stopped."""
    from rlref import cli, runner

    terminal = None if as_json else cli.Terminal()
    try:
        with terminal or contextlib.nullcontext():
            yield terminal or runner.Silent()
    except Stopped as stopped:
        how = f"what was reached is kept: the same command with --run-dir {folder} goes on"
        print(f"stopped by {stopped}; {how}", file=sys.stderr)
        raise


def plain_console() -> Any:
    from rich.console import Console

    wide = None if sys.stdout.isatty() else 200  # in a file or a pipe, no line of a table is broken
    return Console(highlight=False, soft_wrap=True, markup=False, width=wide)


def print_warnings(console: Any, warnings: Sequence[str]) -> None:
    for text in warnings:
        console.print(f"warning: {text}", style="yellow")


def print_tables(console: Any, tables: Sequence[Any]) -> None:
    """Tables that are a title and rows of the same columns."""
    from rich.table import Table

    for title, rows in tables:
        if not rows:
            continue
        table = Table(*rows[0], box=None, title=title, title_justify="left", title_style="")
        for row in rows:
            table.add_row(*(str(x) for x in row.values()))
        console.print(table)


OF_AGENTS: dict[str, tuple[Any, Callable[..., int]]] = {
    "sweep": (SearchOptions, sweep_command),
    "ablate": (AblateOptions, ablate_command),
}
"""The commands that take an agent and its settings: their options, and what runs them."""
