"""`rlref probe AGENT`: whether an agent is right, and if not, which part is wrong."""

import argparse
import functools
import json
import os
import time
from typing import Any

from rlref.cli.terminal import compiling_takes
from rlref.errors import UsageError

MOST_SEEDS = 4096  # of 10^9, a slip, nothing is ever said
COLOURS = {"RIGHT": "green", "WRONG": "red", "DIFFERS": "yellow", "NOT ENOUGH": "yellow"}


def add_to(commands: Any) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser(
        "probe",
        help="check an agent against environments whose answers are known",
        epilog="Exit codes: 0 RIGHT; 1 WRONG, what must hold for any right agent fails; 2 the file cannot be checked; "
        "3 DIFFERS from rlref's own in its method, unless PROBE_MEANT in the file says that it is meant, or NOT ENOUGH "
        "of it could be checked. On the CPU, unless JAX_PLATFORMS says otherwise.",
    )
    parser.add_argument("agent", help="ppo, ppo_rnn, dqn, cem, or a file such as ./my_ppo.py")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this check alone; may be repeated")
    parser.add_argument("--num-seeds", type=int, default=64, help="seeds per probe (default: 64)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed's id (default: 0)")
    parser.add_argument("--fail-fast", action="store_true", help="stop at the first that shows the agent to be wrong")
    parser.add_argument("--no-bisect", action="store_true", help="do not look for the change that a failure comes from")
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else")
    limit = "end where a check makes no progress for so long (default: 300; 0: never)"
    parser.add_argument("--time-limit", type=float, default=300.0, metavar="SECONDS", help=limit)
    parser.set_defaults(call=run)


def run(options: argparse.Namespace) -> int:
    """`rlref probe AGENT`."""
    for name, value, least in (("num-seeds", options.num_seeds, 1), ("seed", options.seed, 0)):
        if value < least:
            raise UsageError(f"--{name} is {value}; it must be at least {least}")
    if options.num_seeds > MOST_SEEDS:
        raise UsageError(f"--num-seeds is {options.num_seeds}; it must be at most {MOST_SEEDS}")
    if not options.time_limit >= 0:
        raise UsageError(f"--time-limit is {options.time_limit:g}; it must be at least 0, and 0 is for never")
    began = time.perf_counter()
    # Hundreds of small programs, held to float32: an accelerator compiles them longer, and multiplies with less.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")  # oracles compile hundreds of small ones
    from probes import check, verdict
    from rlref.cli.watchdog import Watchdog

    probed = functools.partial(
        check.run,
        options.agent,
        only=options.only,
        num_seeds=options.num_seeds,
        seed=options.seed,
        fail_fast=options.fail_fast,
        bisect=not options.no_bisect,
    )
    dog = Watchdog(options.agent, options.time_limit, options.json)
    if options.json:
        first_failure = None

        def note(doing: str, oracles: list[Any], rungs: list[Any]) -> None:
            nonlocal first_failure
            dog.progress(doing)
            if first_failure is None and (
                any(x.fault for x in oracles) or any(not getattr(x, "ok", True) for x in rungs)
            ):
                first_failure = round(time.perf_counter() - began, 1)

        with dog:
            report = probed(watch=note)
        times = {"first_failure": first_failure, "all": round(time.perf_counter() - began, 1)}
        print(json.dumps(verdict.to_json(report) | {"seconds": times}, indent=1))
        return verdict.EXIT_CODES[verdict.word(report)]
    from rich.console import Console, Group
    from rich.live import Live
    from rich.spinner import Spinner

    told = False
    with Live(console=Console(stderr=True, highlight=False), transient=True) as live, dog:
        dog.before = live.stop

        def watch(doing: str, oracles: list[Any], rungs: list[Any]) -> None:
            nonlocal told
            dog.progress(doing)
            if not told:  # not sooner: the file may be no agent
                live.console.print(compiling_takes("up to a minute or so"))
            told = True
            live.update(Group(probe_table(oracles, rungs), Spinner("dots", doing)))

        report = probed(watch=watch)
    console = Console(highlight=False)
    console.print(probe_table(report.oracles, report.rungs))
    if report.changes is not None:
        console.print(str(report.changes), soft_wrap=True, markup=False)
    said = verdict.word(report)
    console.print(verdict.verdict(report), style=COLOURS[said], soft_wrap=True, markup=False)
    return verdict.EXIT_CODES[said]


def probe_table(oracles: list[Any], rungs: list[Any]) -> Any:
    """One line per check."""
    from rich.markup import escape
    from rich.table import Table

    from probes import check

    table = Table("check", "isolates", "result", box=None)
    for one in oracles:
        if one.fault is None:
            result = f"not checked: {escape(one.why)}"
        elif one.meant:
            result = f"differs, as meant: {escape(one.meant)}" if one.fault else "right"
        elif one.oracle.holds == "likeness":
            result = "[yellow]differs[/yellow]" if one.fault else "as in rlref"
        else:
            result = "[red]wrong[/red]" if one.fault else "right"
        table.add_row(one.oracle.name, one.oracle.isolates, result)
    for rung in rungs:
        if isinstance(rung, check.Skipped):
            result = f"not checked: {rung.why}"
        else:
            counted = f"{int(rung.passed.sum())} of {len(rung.passed)}{', given time' if rung.slow else ''}"
            result = counted if rung.ok else f"[red]{counted}[/red]"
        table.add_row(rung.probe.name, rung.probe.isolates, result)
    return table
