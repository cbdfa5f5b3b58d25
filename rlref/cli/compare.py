"""`rlref compare A B...`: whether one method is better than another, and how surely."""

import argparse
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from rlref.cli.terminal import plain_console, print_tables, print_warnings
from rlref.errors import UsageError


def add_to(commands: Any) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser("compare", help="say whether one method is better than another, and how surely")
    what = "the baseline first: PATH, PATH#SETTING, or LABEL=PATH[,PATH...] with a run per env"
    parser.add_argument("method", nargs="+", help=what)
    parser.add_argument(
        "--reference", nargs="+", default=[], metavar="ENV=SCORE", help="what counts as 1 when scores are normalised"
    )
    what = "split one run's seeds in two and compare, many times: how often it errs"
    parser.add_argument("--selftest", action="store_true", help=what)
    parser.add_argument("--splits", type=int, default=1000, help="of the self-test (default: 1000)")
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else")
    parser.set_defaults(call=run)


def run(options: argparse.Namespace) -> int:
    """`rlref compare A B...`, `rlref compare RUN --selftest`."""
    from rlref.reports import compare
    from rlref.reports.methods import read
    from rlref.reports.tables import comparison_tables, comparison_to_json
    from rlref.runs import files

    methods = read(options.method)
    if options.selftest:
        return selftest(options, methods)
    comparison = compare.compare(methods, references(options.reference))
    if options.json:
        print(files.json_text(comparison_to_json(comparison)))
        return 0
    console = plain_console()
    print_tables(console, comparison_tables(comparison))
    print_warnings(console, comparison.warnings)
    for text in comparison.sentences:
        console.print(text, style="bold")
    return 0


def selftest(options: argparse.Namespace, methods: Sequence[Any]) -> int:
    """`rlref compare RUN --selftest`; the exit code is 1 if the comparison errs too often, or hardly ever."""
    from rlref.reports.selftest import selftest
    from rlref.runs import files

    if len(methods) != 1 or len(methods[0].runs) != 1:
        raise UsageError("--selftest takes one run, whose seeds it splits")
    if options.splits < 1:
        raise UsageError(f"--splits is {options.splits}; it must be at least 1")
    (run,) = methods[0].runs.values()
    found = selftest(run, options.splits)
    print(files.json_text(dataclasses.asdict(found)) if options.json else found.sentence)
    return int(found.usable and options.splits >= 1000 and not 0.03 <= found.rejected <= 0.07)


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
