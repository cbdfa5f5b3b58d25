"""`rlref envs`: the environments that can be trained."""

import argparse
import json
import sys
from typing import Any


def add_to(commands: Any) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser("envs", help="list the environments that can be trained")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(call=run)


def run(options: argparse.Namespace) -> int:
    """`rlref envs`."""
    from rlref.envs.gymnax_envs import list_envs

    rows = list_envs()
    if options.json:
        print(json.dumps([row._asdict() for row in rows], indent=1))
        return 0
    from rich.console import Console
    from rich.table import Table

    table = Table("environment", "observations", "actions", "time limit", "note", box=None)
    table.columns[0].no_wrap = True
    for row in rows:
        table.add_row(row.env_id, row.observations, row.actions, str(row.time_limit or "none"), row.note)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    return 0
