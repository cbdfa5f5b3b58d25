"""The result of a comparison, and its parts: summaries, contrasts and performance profiles."""

import dataclasses
from typing import NamedTuple

import numpy as np

from rlref.reports.methods import Method

QUANTITIES = {"final": "final score", "area": "mean score over training"}


@dataclasses.dataclass(frozen=True)
class Summary:
    """One quantity over one method's seeds. A failed seed counts as the environment's lowest score of any method."""

    method: str
    scores: tuple[float, ...]
    """per seed, NaN where it failed; over all environments: normalised, one environment after the other"""
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
        """Number of seeds; over all environments, their sum."""
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
    """the smallest `p_holm` that any split of these scores could give; if not below .05, nothing can be decided"""
    probability: float
    """probability that a seed of the method beats one of the baseline; ties count half"""
    probability_low: float
    probability_high: float
    paired: bool
    """whether seeds with the same id were compared as pairs"""
    seeds_needed: int | None
    """seeds per method to show a difference of this size with 80 % power between two methods; None if it is 0"""
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
    """How the scores of an environment are normalised: 0 is a random policy, 1 the reference."""

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
    """the baseline first; their runs hold the learning curves"""
    environments: tuple[str, ...]
    results: tuple[QuantityResult, ...]
    """per environment and quantity"""
    overall: tuple[QuantityResult, ...]
    """per quantity, over all environments; empty if there is only one, or they cannot be pooled"""
    scales: tuple[Scale, ...]
    """per environment; empty if there is only one"""
    differing: tuple[Difference, ...]
    warnings: tuple[str, ...]
    """reasons to read the results with caution"""
    sentences: tuple[str, ...]
    """the conclusions: a sentence per contrast, then the settings in which the runs differ"""
