"""What a comparison gives: summaries, contrasts, profiles, and all of it together."""

import dataclasses
from typing import NamedTuple

import numpy as np

from rlref.reports.methods import Method

QUANTITIES = {"final": "final score", "area": "mean score over training"}


@dataclasses.dataclass(frozen=True)
class Summary:
    """One method's seeds in one quantity. Failed seeds count as the lowest score of any method there."""

    method: str
    scores: tuple[float, ...]
    """of each seed, NaN where it failed; over all environments normalised, an environment's after another's"""
    failed: int
    """seeds without a score"""
    iqm: float
    low: float
    high: float
    """`low` and `high`: the 95 % bootstrap interval of the IQM"""
    mean: float
    median: float
    min: float
    max: float

    @property
    def num_seeds(self) -> int:
        """Over all environments the seeds of all of them, together."""
        return len(self.scores)


@dataclasses.dataclass(frozen=True)
class Contrast:
    """One method against the baseline in one quantity. Intervals are 95 % bootstrap intervals."""

    method: str
    baseline: str
    difference: float
    """IQM of the method minus IQM of the baseline"""
    low: float
    high: float
    p: float
    """of the permutation test, two-sided"""
    p_holm: float
    """the same after Holm's correction for the number of methods"""
    smallest_p: float
    """the smallest `p_holm` that any split of these scores could give: from .05 on nothing can be decided"""
    probability: float
    """that a seed of the method beats one of the baseline, a tie counting half"""
    probability_low: float
    probability_high: float
    paired: bool
    """whether seed i was compared with seed i"""
    seeds_needed: int | None
    """per method, to show a difference of this size in four of five comparisons of two methods; None if it is 0"""
    verdict: str
    """`better` or `worse` if p_holm < .05 and 0 is outside [low, high]; else `not shown` or `undecidable`"""
    sentence: str


@dataclasses.dataclass(frozen=True)
class Profile:
    """One method's performance profile: the share of its seeds above each threshold, with a pointwise 95 % band."""

    method: str
    thresholds: np.ndarray
    """`[T]`, the same for all methods; in the unit of the scores"""
    share: np.ndarray
    """`[T]`"""
    low: np.ndarray
    high: np.ndarray


@dataclasses.dataclass(frozen=True)
class QuantityResult:
    """All methods in one quantity, on one environment or on all of them."""

    environment: str | None
    """None: all of them, scores normalised as (score - random) / (reference - random)"""
    quantity: str
    """a key of `QUANTITIES`"""
    summaries: tuple[Summary, ...]
    """in the order of the methods: the baseline's first"""
    contrasts: tuple[Contrast, ...]
    """of every method but the baseline"""
    profiles: tuple[Profile, ...]
    """in the order of the methods"""


class Scale(NamedTuple):
    """What normalises the scores of an environment: there 0 is a random policy, and 1 the reference."""

    environment: str
    random: float
    reference: float
    source: str
    """whose score the reference is"""


class Difference(NamedTuple):
    """A setting that is not the same in all runs on an environment."""

    environment: str
    setting: str
    values: tuple[str, ...]
    """in the order of the methods; "-" where a method has no such setting"""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What `compare` found."""

    methods: tuple[Method, ...]
    """the baseline first; learning curves are those of their runs"""
    environments: tuple[str, ...]
    results: tuple[QuantityResult, ...]
    """per environment and quantity"""
    overall: tuple[QuantityResult, ...]
    """per quantity, over all environments; none for a single one"""
    scales: tuple[Scale, ...]
    """per environment, of several; none for a single one"""
    differing: tuple[Difference, ...]
    warnings: tuple[str, ...]
    """what speaks against reading too much into it"""
    sentences: tuple[str, ...]
    """what it comes to: a sentence per contrast, then what the runs differ in"""
