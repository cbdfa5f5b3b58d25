"""Figures in words: numbers, labels, captions, and alternative text."""

import re
import zlib
from collections.abc import Sequence

import numpy as np

from rlref import metrics as metric_table
from rlref import stats
from rlref.contract import NAMES
from rlref.health import findings
from rlref.health.explained import NO_SPREAD, fit_in_words
from rlref.health.series import kind_of
from rlref.reports.curve_statistics import iqm_along
from rlref.reports.figure_data import Group


def number(x: float) -> str:
    """A number for reading; 'undefined' for NaN."""
    if np.isnan(x):
        return "undefined"
    return f"{x:,.0f}" if 1e4 <= abs(x) < 1e9 else f"{x + 0.0:.4g}"  # + 0.0: -0 is 0


def last_of(x: np.ndarray) -> float:
    """The last defined number; NaN if there is none."""
    defined = x[np.isfinite(x)]
    return float(defined[-1]) if len(defined) else float("nan")


def sentence_case(text: str) -> str:
    return text[:1].upper() + text[1:]


def slug(text: str) -> str:
    """`text` as a part of a file's name or of an id; different texts give different ones."""
    safe = re.sub(r"[^\w.]+", "-", text).strip("-.")
    return safe if safe == text else f"{safe}-{zlib.crc32(text.encode(errors='backslashreplace')):08x}"


def shortened(text: str, most: int) -> str:
    """`text` in at most `most` characters, without its middle; invalid Unicode, as in a folder's name, is escaped."""
    text = text.encode(errors="backslashreplace").decode()
    most = max(most, 5)
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[:half]}…{text[-half:]}"


def distinct(labels: Sequence[str], most: int) -> list[str]:
    """`labels` in at most `most` characters each; numbered from 1 where two would become alike."""
    short = [shortened(label, most) for label in labels]
    if len(set(short)) == len(short):
        return short
    return [f"{i} {shortened(label, most - 4)}" for i, label in enumerate(labels, 1)]


def defined_as(name: str, groups: Sequence[Group]) -> str:
    """A sentence that defines a metric, without the parts for agents that are not drawn."""
    if name not in metric_table.BY_NAME:
        return "A metric of this agent's own."
    drawn = {kind_of(group.metrics) for group in groups}
    definition = metric_table.BY_NAME[name].definition
    if others := "|".join(x.upper() for x in NAMES if x not in drawn):
        definition = re.sub(rf"; ({others}): (?:[^()]|\([^()]*\))*?(?=; (?:PPO|DQN|CEM): |$)", "", definition)
    return f"{sentence_case(definition)}."


def says_nothing(name: str, groups: Sequence[Group]) -> str:
    """A sentence where explained variance ends without a meaning; '' where it has one, and for other metrics."""
    fits = {g.label: fit_in_words(g.metrics) for g in groups} if name == "explained_variance" else {}
    told = {label: fit for label, fit in fits.items() if NO_SPREAD in fit}
    what = "; ".join(f"{label}: {fit}" if len(groups) > 1 else fit for label, fit in told.items())
    return f"It says nothing at the end: {what}." if told else ""


def path_in_words(name: str, group: Group, named: bool) -> str:
    """Where a metric's IQM starts and ends, and the range in which its seeds end."""
    x, steps = group.values(name), group.mean_steps
    iqm = iqm_along(x)
    defined = np.flatnonzero(np.isfinite(iqm))
    first, last = defined[0], defined[-1]
    unit = "steps" if "env_steps" in group.metrics else "updates"
    whose = f"{group.label}: " if named else ""
    ends = stats.last(x)
    ends = ends[np.isfinite(ends)]
    spread = f"; seeds end between {number(ends.min())} and {number(ends.max())}" if len(ends) > 1 else ""
    if first == last:
        only = f"{number(iqm[last])} at {number(steps[last])} {unit}, its only defined value"
        return f"{whose}IQM of {name}: {only}{spread}."
    verb = "rises" if iqm[last] > iqm[first] else "falls" if iqm[last] < iqm[first] else "goes"
    start, end = (f"{number(iqm[u])} at {number(steps[u])}" for u in (first, last))
    return f"{whose}IQM of {name} {verb} from {start} to {end} {unit}{spread}."


def scores_in_words(group: Group, label: str) -> str:
    """The best score, and the seeds with the worst ones; after the label if there is one."""
    scores = group.scores
    defined = np.flatnonzero(np.isfinite(scores))
    undefined = [seed for seed, x in zip(group.seeds, scores, strict=True) if not np.isfinite(x)]
    missing = f"; undefined: seeds {findings.ranges(undefined)}" if undefined else ""
    if not len(defined):
        told = "no score is defined"
    elif len(defined) > 1 and np.ptp(scores[defined]) == 0:
        told = f"all {len(defined)} seeds at {number(scores[defined[0]])}"
    else:
        best = scores[defined].max()
        worst = [i for i in defined[np.argsort(scores[defined], kind="stable")][:3] if scores[i] < best]
        listed = ", ".join(f"seed {group.seeds[i]} ({number(scores[i])})" for i in worst)
        told = f"worst {listed}, best {number(best)}" if worst else f"seed {group.seeds[defined[0]]} ({number(best)})"
    return f"{label}: {told}{missing}." if label else f"{sentence_case(told)}{missing}."
