"""`rlref inspect ENV`: what to look at in an environment before training."""

import argparse
import contextlib
import sys
from pathlib import Path
from typing import Any

from rlref.cli.terminal import COLOURS
from rlref.errors import UsageError


def add_to(commands: Any) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser("inspect", help="look at an environment, and a random policy in it")
    parser.add_argument("env", help="an id, as `rlref envs` lists them, or package.module:make_env")
    parser.add_argument("--episodes", type=int, default=100, help="how many (default: 100)")
    parser.add_argument("--gamma", type=float, default=0.99, help="discount per step (default: 0.99)")
    parser.add_argument("--seed", type=int, default=0, help="which random numbers it meets (default: 0)")
    parser.add_argument(
        "--env-params", nargs="+", default=[], metavar="NAME=VALUE", help="parameters of the environment"
    )
    parser.add_argument("--out", type=Path, help="folder for the pictures (default: inspect/ENV)")
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else")
    parser.set_defaults(call=run)


def run(options: argparse.Namespace) -> int:
    """`rlref inspect ENV`."""
    from rich.console import Console

    from rlref.health import findings
    from rlref.inspection import pictures
    from rlref.inspection.inspect import inspect
    from rlref.runs import files

    folder = Path("inspect") / options.env.replace(":", "-") if options.out is None else options.out
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--out is {folder}, which is no folder")
    status: Any = contextlib.nullcontext() if options.json else Console(stderr=True).status(f"inspecting {options.env}")
    with status, contextlib.redirect_stdout(sys.stderr):  # an environment may print
        result = inspect(
            options.env,
            episodes=options.episodes,
            gamma=options.gamma,
            seed=options.seed,
            env_params_assignments=options.env_params,
        )
        drawn = pictures.draw(result, folder)
    code = findings.exit_code(result.findings)
    if options.json:
        found = [findings.to_json(finding) for finding in result.findings]
        report = {"env_id": result.env_id, "findings": found, "statistics": result.statistics}
        print(files.json_text(report | {"pictures": [str(path) for path in drawn]}))
        return code
    console = Console(highlight=False, soft_wrap=True, markup=False)
    print_statistics(console, result.statistics)
    for severity, line in findings.lines(result.findings) or [("", "nothing to remark")]:
        console.print(line, style=COLOURS[severity])
    for path in drawn:
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
