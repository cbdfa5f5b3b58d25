"""`rlref reproduce RUN`: run it again, and say at which update the metrics part, if any."""

import argparse
import contextlib
import dataclasses
from pathlib import Path
from typing import Any

from rlref.cli.terminal import Terminal


def add_to(commands: Any) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser("reproduce", help="run a run again from its folder, and compare all metrics")
    parser.add_argument("run", type=Path, help="the run's folder")
    parser.add_argument("--updates", type=int, help="how many to compare, from the first (default: all)")
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else")
    parser.set_defaults(call=run)


def run(options: argparse.Namespace) -> int:
    """`rlref reproduce RUN`."""
    from rlref.runs import files
    from rlref.runs.display import Silent
    from rlref.runs.reproduce import reproduce

    terminal = None if options.json else Terminal()
    with terminal or contextlib.nullcontext():
        report = reproduce(options.run, options.updates, display=terminal or Silent())
    if options.json:
        print(files.json_text(dataclasses.asdict(report)))
    else:
        print(f"{options.run}: {report.text()}")
    return 1 if report.difference else 0
