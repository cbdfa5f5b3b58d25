"""A comparison in words, as tables, and as JSON."""

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rlref import stats
from rlref.reports.comparison_result import QUANTITIES, Comparison, Contrast, Difference, Summary

Array = np.ndarray


class Table(NamedTuple):
    """A title, and rows of the same columns: `pandas.DataFrame(rows)`. Numbers are text, rounded for reading."""

    title: str
    rows: list[dict[str, str]]


def contrast_in_words(contrast: Contrast, method: Sequence[Array], baseline: Sequence[Array], comparisons: int) -> str:
    """A contrast in one sentence."""
    c = contrast
    corrected = f" (Holm, {comparisons} comparisons)" * (comparisons > 1)
    found = f"IQM difference {with_interval(c.difference, c.low, c.high)}, {p_in_words(c.p_holm)}{corrected}"
    if c.verdict in ("better", "worse"):
        return f"{c.method} is {c.verdict} than {c.baseline}: {found}"
    if c.verdict == "undecidable":
        return f"{c.method} against {c.baseline}: {why_undecidable(c, method, baseline, comparisons)}"
    one, other = len(method[0]), len(baseline[0])
    seeds = f"{one} pairs of seeds" if c.paired else f"{one} seeds" if one == other else f"{one} against {other} seeds"
    each = " per environment" * (len(method) > 1)
    more = ""
    if c.p_holm < stats.ALPHA:
        more = "; they are not distributed alike, but their IQMs may well be equal"
    elif c.seeds_needed and c.seeds_needed > max(one, other):
        more = f"; about {c.seeds_needed:,} per method{' and environment' * bool(each)} would show one of this size"
    return f"no difference shown between {c.method} and {c.baseline} with these {seeds}{each}: {found}{more}"


def why_undecidable(c: Contrast, method: Sequence[Array], baseline: Sequence[Array], comparisons: int) -> str:
    """Whether there are too few seeds or too many ties; the smallest p possible without ties tells which."""
    pooled = np.concatenate([*method, *baseline])
    if (pooled == pooled[0]).all():
        return f"no difference: all {len(pooled)} scores are {number(pooled[0])}"
    if c.paired and all(np.array_equal(x, y) for x, y in zip(method, baseline, strict=True)):
        return "no difference: the scores are the same, seed by seed"
    one, other = (sum(map(len, x)) for x in (method, baseline))
    if min(one, other) < stats.least_seeds():
        return (
            f"too few seeds to decide anything: {one} against {other}; it takes {stats.least_seeds()} of each at least"
        )
    untied = [(np.arange(len(x)), len(x) + np.arange(len(y))) for x, y in zip(method, baseline, strict=True)]
    possible = stats.permutation_test([x for x, _ in untied], [y for _, y in untied], paired=c.paired).smallest
    among = f" and {comparisons} comparisons" * (comparisons > 1)
    least = f"the smallest p that can come out is {p_in_words(c.smallest_p, '')}"
    if possible * comparisons >= stats.ALPHA:
        return f"too few seeds to decide anything: with {len(method[0])} against {len(baseline[0])}{among} {least}"
    tied = sum(n for n in Counter(pooled.tolist()).values() if n > 1)
    return (
        f"nothing can be decided: {tied} of {len(pooled)} scores are tied{among}, and {least}; "
        "the IQM does not see the worst quarter, so look at the lowest scores"
    )


def difference_in_words(differing: Sequence[Difference]) -> str:
    names = list(dict.fromkeys(row.setting for row in differing))
    if not names:
        return "the runs have the same settings"
    if len(names) == 1:
        return f"the runs differ in {names[0]} alone"
    listed = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    return f"the runs differ in {len(names)} settings ({listed}): no difference can be put down to one of them"


def comparison_tables(comparison: Comparison) -> list[Table]:
    """Everything as tables for reading: scores and contrasts of each result, normalisation, and differing settings."""
    out = []
    for result in [*comparison.overall, *comparison.results]:
        name = f"{result.environment or 'All environments, normalised'}: {QUANTITIES[result.quantity]}"
        out.append(Table(name, [summary_row(one) for one in result.summaries]))
        baseline = result.summaries[0].method
        out.append(Table(f"{name}, against {baseline}", [contrast_row(one) for one in result.contrasts]))
    if comparison.scales:
        rows = [
            {
                "environment": scale.environment,
                "random policy": number(scale.random),
                "reference": number(scale.reference),
                "source of the reference": scale.source,
            }
            for scale in comparison.scales
        ]
        out.append(Table("Normalised: 0 is a random policy, 1 the reference", rows))
    if comparison.differing:
        labels = [method.label for method in comparison.methods]
        settings = [
            {"environment": row.environment, "setting": row.setting, **dict(zip(labels, row.values, strict=True))}
            for row in comparison.differing
        ]
        out.append(Table("Settings that differ", settings))
    return out


def summary_row(summary: Summary) -> dict[str, str]:
    s = summary
    return {
        "method": s.method,
        "seeds": f"{s.num_seeds}" + (f", {s.failed} failed" if s.failed else ""),
        "IQM [95 % interval]": with_interval(s.iqm, s.low, s.high),
        "mean": number(s.mean),
        "median": number(s.median),
        "min": number(s.min),
        "max": number(s.max),
    }


def contrast_row(contrast: Contrast) -> dict[str, str]:
    c = contrast
    return {
        "method": c.method,
        "IQM difference [95 % interval]": with_interval(c.difference, c.low, c.high),
        "p (Holm)": p_in_words(c.p_holm, ""),
        "P(better) [95 % interval]": f"{c.probability:.2f} {interval(c.probability_low, c.probability_high, 2)}",
        "seeds paired": "yes" if c.paired else "no",
        "seeds needed": "-" if c.seeds_needed is None else f"{c.seeds_needed:,}",
        "verdict": c.verdict,
    }


def comparison_to_json(comparison: Comparison) -> dict[str, Any]:
    """A comparison as plain dictionaries, lists, text and numbers; runs as their folders."""
    parts = {field.name: getattr(comparison, field.name) for field in dataclasses.fields(comparison)}
    parts["methods"] = [
        {"label": method.label, "runs": {name: run.path and str(run.path) for name, run in method.runs.items()}}
        for method in comparison.methods
    ]
    return {name: plain(x) for name, x in parts.items()}


def plain(x: Any) -> Any:
    if dataclasses.is_dataclass(x):
        return {field.name: plain(getattr(x, field.name)) for field in dataclasses.fields(x)}
    if isinstance(x, tuple) and hasattr(x, "_asdict"):
        return plain(x._asdict())
    if isinstance(x, dict):
        return {name: plain(y) for name, y in x.items()}
    if isinstance(x, np.ndarray):
        return x.tolist()
    return [plain(y) for y in x] if isinstance(x, tuple | list) else x


def number(x: float) -> str:
    return f"{x:,.0f}" if abs(x) >= 10_000 else f"{x + 0:.4g}"  # + 0: -0 is 0


def interval(low: float, high: float, decimals: int | None = None) -> str:
    """'[low, high]', with `decimals` if given; '[undefined]' for a single seed, which has no interval."""
    if not math.isfinite(low + high):
        return "[undefined]"
    return f"[{', '.join(number(x) if decimals is None else f'{x:.{decimals}f}' for x in (low, high))}]"


def with_interval(value: float, low: float, high: float) -> str:
    """'500 [499, 500]'."""
    return f"{number(value)} {interval(low, high)}"


def p_in_words(p: float, name: str = "p") -> str:
    """'p = .03', or 'p < .001'; without the name '.03' or '< .001'."""
    if p < 0.001:
        return f"{name} < .001".strip()
    return f"{name} = ".lstrip(" =") + f"{p:.2g}".lstrip("0")
