"""`rlref envs [SUITE] [WORD ...]`: the environments that can be trained."""

import argparse
import json
import sys
from typing import Any

from rlref.errors import UsageError, nearest

MADE = 12  # environments of another suite whose spaces are shown: making one can take seconds


def add_to(commands: Any) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser("envs", help="list the environments that can be trained")
    parser.add_argument("suite", nargs="?", default="gymnax", help="whose (default: gymnax's, and the other suites)")
    parser.add_argument("words", nargs="*", help="those whose id contains one of these words")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(call=run)


def run(options: argparse.Namespace) -> int:
    """`rlref envs [SUITE] [WORD ...]`."""
    from rlref.envs.listing import list_envs
    from rlref.envs.suites import SUITES

    suite, _, name = options.suite.partition(":")  # an environment's id will do
    if suite != "gymnax" and suite not in SUITES:
        raise UsageError(f"there is no suite {suite!r}.{nearest(suite, SUITES)} There is gymnax, {', '.join(SUITES)}")
    rows = list_envs(suite, [*options.words, name] if name else options.words, MADE)
    if options.json:
        print(json.dumps([row._asdict() for row in rows], indent=1))
        return 0
    from rich.console import Console
    from rich.table import Table

    table = Table("environment", "observations", "actions", "time limit", "note", box=None)
    table.columns[0].no_wrap = True
    for row in rows:
        limit = (row.time_limit or "none") if row.actions else ""
        table.add_row(row.env_id, row.observations, row.actions, str(limit), row.note)
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    if len(rows) > MADE and suite != "gymnax":
        console.print(f"\n`rlref envs {suite} WORD` shows the spaces and limits of those whose id contains it")
    if suite == "gymnax":
        console.print("\nand of other suites, each an extra:")
        for other, about in SUITES.items():
            console.print(f" rlref envs {other:10} {about.about}")
    return 0
