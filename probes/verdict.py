"""What a report says: the verdict, a sentence that says why, and where to look."""

import collections
import json
import math
from pathlib import Path
from typing import Any, Literal

import numpy as np

from probes import solve
from probes.check import OracleResult, Report, RungResult, Skipped, error
from probes.environments import Tables
from probes.ladder import LADDER
from probes.oracles.base import LIKENESS

Word = Literal["WRONG", "DIFFERS", "NOT ENOUGH", "RIGHT"]
EXIT_CODES: dict[Word, int] = {"RIGHT": 0, "WRONG": 1, "DIFFERS": 3, "NOT ENOUGH": 3}
CAUGHT_BY = Path(__file__).parent / "caught_by.json"
"""agent -> a planted bug -> the checks that are known to fail on it, with an empty name among them if the rungs alone
were tried and found nothing; written by scripts/mutation_score.py"""
ENOUGH = 0.5  # of the planted bugs, which the checks that ran must be known to find


def word(report: Report) -> Word:
    """WRONG if a truth or a definition fails, DIFFERS if likeness alone does, NOT ENOUGH if too little was run."""
    if report.wrong:
        return "WRONG"
    if report.differing:
        return "DIFFERS"
    if not report.whole:
        return "RIGHT" if number_run(report) else "NOT ENOUGH"
    found, bugs = could_find(report)
    return "NOT ENOUGH" if found < ENOUGH * bugs or report.unseen else "RIGHT"


def number_run(report: Report) -> int:
    """How many checks could be run, whatever came of them."""
    return sum(c.fault is not None for c in report.oracles) + sum(isinstance(r, RungResult) for r in report.rungs)


def could_find(report: Report) -> tuple[int, int]:
    """How many of the bugs planted in rlref's agent of this kind the checks that ran find; of how many.

    Of those alone of which it is known: of some it was never tried what the rungs make of them.
    """
    bugs = json.loads(CAUGHT_BY.read_text())[report.original].values()
    ran = {c.oracle.name for c in report.oracles if c.fault is not None}
    ran |= {r.probe.name for r in report.rungs if isinstance(r, RungResult)}
    known = [checks for checks in bugs if ran & set(checks) or "" in checks or not LADDER.keys().isdisjoint(checks)]
    return sum(bool(ran & set(checks)) for checks in known), len(known)


def cause(report: Report, failure: RungResult) -> str:
    """The known bug whose wrong answer is nearest to what a failing rung measured; '' if none is near.

    Bugs of bootstrapping have wrong answers on several rungs, some of which coincide: all of these rungs are asked.
    """
    if failure.probe.fingerprints:
        rungs = [r for r in report.rungs if isinstance(r, RungResult) and r.probe.fingerprints]
        by_rung = [_distances(rung) for rung in rungs]
        distances = {name: max(by_name[name] for by_name in by_rung) for name in solve.WRONG}
        near = min(distances, key=lambda name: distances[name])
        return near if distances[near] <= 2 else ""
    votes: collections.Counter[str] = collections.Counter()
    for (case, answer), passed in zip(failure.rows(), failure.passed, strict=True):
        if not passed:
            wrong = failure.probe.wrong(case)
            distance = {n: error(failure.probe, failure.kind, case, answer, to) for n, to in wrong.items()}
            near = min(distance, key=lambda n: distance[n])
            votes[near if distance[near] <= 2 else ""] += 1
    name, count = votes.most_common(1)[0]
    # A bug leads every seed to its wrong answer; what only some seeds end at, chance may have led them to.
    return name if count >= 0.75 * len(failure.passed) else ""


def _distances(rung: RungResult) -> dict[str, float]:
    """How far a rung is from what each bug of bootstrapping would give there, in tolerances; the median over seeds."""
    distances: dict[str, list[float]] = {name: [] for name in solve.WRONG}
    for case, answer in rung.rows():
        wrong = rung.probe.wrong(case)
        for name, learner in solve.WRONG.items():
            # Without a wrong answer here, the bug leaves the rung right, or its values grow without bound.
            distance = error(rung.probe, rung.kind, case, answer, wrong.get(name))
            if name not in wrong and solve.diverges(case.params, rung.probe.gamma, learner):
                distance = 0.0 if distance > 4 else math.inf
            distances[name].append(distance)
    return {name: float(np.median(x)) for name, x in distances.items()}


def numbers(x: np.ndarray, where: np.ndarray) -> str:
    """A few numbers in brackets, those at which `where` is finite."""
    kept = [f"{y:.3g}" for y in np.asarray(x, np.float64)[np.isfinite(where)]]
    return f"({', '.join(kept[:8])}{', ...' if len(kept) > 8 else ''})"


def expected_and_measured(result: RungResult) -> tuple[str, str]:
    """Of the seed that is furthest off: what its truth is, and what it answers, where the truth says something."""
    case, answer = list(result.rows())[result.worst]
    pairs: list[tuple[str, np.ndarray, Any]] = []
    to = result.probe.values(result.kind, case, case.truth)
    if to is not None and answer.value is not None:
        pairs.append(("Q" if result.kind == "dqn" else "V", to, answer.value))
    if case.truth.policy is not None:
        name = "pi" if isinstance(case.params, Tables) else "mean"
        pairs.append((name, case.truth.policy, answer.policy))
    # What the truth leaves open is left out; what was measured as NaN is not.
    shown = [(f"{n} {numbers(to, to)}", f"{n} {numbers(x, to)}") for n, to, x in pairs]
    return " ".join(a for a, _ in shown), " ".join(b for _, b in shown)


def verdict(report: Report) -> str:
    """The outcome in a few sentences, of which the first has it all."""
    said = word(report)
    sentence = {"WRONG": wrong, "DIFFERS": differs, "NOT ENOUGH": not_enough, "RIGHT": right}[said](report)
    return " ".join([f"{said}{sentence}", *(f"{note[0].upper()}{note[1:]}" for note in report.notes)])


def wrong(report: Report) -> str:
    """Of the first truth or definition that fails; and where to look."""
    first = report.wrong[0]
    if isinstance(first, OracleResult):
        said = f" at {first.oracle.name}: look at {first.oracle.isolates}. {first.fault}."
    else:
        said = f" at {first.name}: look at {first.probe.isolates}. {what_is_found(first, report)}."
    # What is not as in rlref's file, if that was asked before, is nearer to the fault than what a training ends at.
    near = next((x for x in report.failures if isinstance(x, OracleResult)), first)
    if near is not first and isinstance(near, OracleResult) and not near.meant:
        said += f" Look first at {functions_of(near, report)}, where {near.oracle.name} fails: {near.fault}."
    if report.undo is not None:
        undo = str(report.undo)
        said += f" {undo[0].upper()}{undo[1:]}, and {first.name} passes."
    return said


def differs(report: Report) -> str:
    """What is not as in rlref's file, and the question whether that is meant."""
    first, *others = report.differing
    names = [x.name for x in (first, *others)]
    functions = functions_of(first, report)
    said = f" at {first.name}: {functions} does otherwise than rlref's. {what_is_found(first, report)}."
    if others:
        said += f" So at {', '.join(names[1:])}."
    if report.undo is not None:
        said += (
            f" It is as in rlref if you {report.undo}."
            if str(report.undo).startswith("undo")
            else (f" To have it as in rlref, {report.undo}.")
        )
    meant = ", ".join(f'"{name}": "why"' for name in names)
    said += " All that any right agent must do holds." if report.whole else " Nothing else was found of what was asked."
    return f"{said} Is it meant? Then write into the file: PROBE_MEANT = {{{meant}}}"


def what_is_found(result: OracleResult | RungResult, report: Report) -> str:
    """What a check that fails says."""
    if isinstance(result, OracleResult):
        return str(result.fault)
    expected, measured = expected_and_measured(result)
    if result.ok:
        seeds = f", in {int(result.passed.sum())} of {len(result.passed)} seeds" if result.failures else ""
        return f"It gets there, but more slowly or less exactly: only when trained for longer{seeds}"
    why = cause(report, result)
    return (
        f"{int(result.passed.sum())} of {len(result.passed)} seeds pass; expected {expected}, measured {measured} "
        f"(seed {result.seeds[result.worst]})" + (f". That is what comes out if {why}" if why else "")
    )


def functions_of(result: OracleResult | RungResult, report: Report) -> str:
    """What a check that failed is about, in names of the file: those that were changed, if that is known."""
    changed = [] if report.changes is None or report.changes.too_different else [x.name for x in report.changes.changed]
    called = result.oracle.needs if isinstance(result, OracleResult) else {}
    needs = [name for name in called if name not in ("init", "forward", "Batch", "Buffer")]
    names = [name for name in changed if name in needs] or [name for name in changed if name != "Config"] or needs[-1:]
    return " or ".join(f"`{name}`" for name in names[:4]) or "the file"


def not_enough(report: Report) -> str:
    """What was not looked at."""
    whys = dict.fromkeys(
        [c.why for c in report.oracles if c.fault is None] + [r.why for r in report.rungs if isinstance(r, Skipped)]
    )
    if not report.whole:
        return f": none of the checks that were asked for could run: {'; '.join(whys)}."
    ran = number_run(report)
    found, bugs = could_find(report)
    if found >= ENOUGH * bugs:
        names = " and ".join(f"`{name}`" for name in report.unseen)
        meant = ", ".join(f'"{name}": "how you checked it"' for name in report.unseen)
        return (
            f": nothing is wrong in the {ran} checks that ran, but none of them runs {names}, at their settings. Check "
            f"that yourself, and write into the file: PROBE_MEANT = {{{meant}}}"
        )
    return (
        f": nothing is wrong in what was checked, but the {ran} checks that ran, of "
        f"{len(report.oracles) + len(report.rungs)}, find no more than {found} of {bugs} bugs that "
        f"were planted in rlref's {report.original}.py. The others could not run: {'; '.join(list(whys)[:6])}"
        f"{'; ...' if len(whys) > 6 else ''}."
    )


def right(report: Report) -> str:
    """That all holds, and on how many seeds."""
    rungs = [r for r in report.rungs if isinstance(r, RungResult)]
    open_ = len(report.oracles) + len(report.rungs) - number_run(report)
    seeds = ""
    if rungs:
        least = max(rungs, key=lambda rung: rung.failures)
        count = f"{int(least.passed.sum())} of {len(least.passed)}"
        seeds = f", each rung on {count} seeds (a failure rate below {100 * least.bound:.1f} %, at 95 %)"
    slow = ", ".join(r.name for r in rungs if r.slow and not r.meant)
    seeds += f"; more slowly or less exactly than rlref's at {slow}" if slow else ""
    answers: list[OracleResult | RungResult] = [*report.oracles, *rungs]
    declared = [x for x in answers if x.meant]
    meant = "".join(f"; meant: {x.name} ({x.meant})" for x in declared)
    rest = f"; {open_} not checked" if open_ else ""
    rest += "" if report.whole else "; the others were not asked for"
    return f": {report.agent} answers every check right{seeds}{meant}{rest}."


def to_json(report: Report) -> dict[str, Any]:
    """The report as plain data."""
    rungs = []
    for rung in report.rungs:
        about: dict[str, Any] = {"name": rung.name, "isolates": rung.probe.isolates, "holds": rung.probe.holds}
        if isinstance(rung, Skipped):
            rungs.append(about | {"status": "not checked", "why": rung.why})
            continue
        failed = any(rung is x for x in report.failures)
        status = "failed" if failed else "meant" if rung.meant else "passed"
        expected, measured = expected_and_measured(rung)
        rungs.append(
            about
            | {
                "holds": LIKENESS if failed and rung.is_likeness else rung.probe.holds,
                "status": status,
                "passed": int(rung.passed.sum()),
                "slow": rung.slow,
                "seeds": len(rung.passed),
                "failure_rate_below": rung.bound,
                "expected": expected,
                "measured": measured,
                "cause": "" if rung.ok else cause(report, rung),
            }
        )
    answers = {None: "not checked", "": "passed"}
    oracles = [
        {
            "name": c.oracle.name,
            "isolates": c.oracle.isolates,
            "holds": c.oracle.holds,
            "functions": list(c.oracle.needs),
            "status": answers.get(c.fault, "meant" if c.meant else "failed"),
            "why": c.fault or c.why,
        }
        for c in report.oracles
    ]
    changes, undo = report.changes, report.undo
    return {
        "agent": report.agent,
        "kind": report.kind,
        "verdict": word(report),
        "says": verdict(report),
        "notes": list(report.notes),
        "unseen": list(report.unseen),
        "original": changes and changes.original,
        "changed": [{"name": x.name, "lines": [x.first, x.last], "what": x.what} for x in changes.changed]
        if changes and not changes.too_different
        else [],
        "undo": undo and [{"name": n, "lines": list(x)} for n, x in zip(undo.names, undo.lines, strict=True)],
        "no_more_used": [{"name": x.name, "lines": [x.first, x.last]} for x in undo.unused] if undo else [],
        "oracles": oracles,
        "rungs": rungs,
    }
