"""`rlref report RUN...`: one page that shows a run, or several side by side."""

import argparse
from pathlib import Path
from typing import Any

from rlref.cli.compare import references


def add_to(commands: Any) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser("report", help="one page that shows a run, or several side by side")
    what = "a run's folder; or LABEL=PATH[,PATH...] to compare, as in compare"
    parser.add_argument("run", nargs="+", help=what)
    parser.add_argument(
        "--out", type=Path, help="the page (default: report.html in the run's folder; of several, comparison.html)"
    )
    parser.add_argument("--pictures", type=Path, help="a folder for each plot as PNG and SVG")
    parser.add_argument(
        "--reference", nargs="+", default=[], metavar="ENV=SCORE", help="what counts as 1 when scores are normalised"
    )
    parser.set_defaults(call=run)


def run(options: argparse.Namespace) -> int:
    """`rlref report RUN...`."""
    from rlref.reports.methods import read
    from rlref.reports.report import write, write_comparison

    methods = read(options.run)
    if len(methods) == 1 and len(methods[0].runs) == 1:
        (run,) = methods[0].runs.values()
        written = write(run, options.out, options.pictures)
    else:
        out = options.out or Path("comparison.html")
        written = write_comparison(methods, out, options.pictures, references(options.reference))
    print(f"written to {written}" + (f", its plots to {options.pictures}" if options.pictures else ""))
    return 0
