"""The definition of a health check, the registry of all checks, and which findings can explain which others.

The checks themselves are in rlref/health/checks, one file per subject.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlref.health.series import Series


class Measurement(NamedTuple):
    """A check's quantity and limit, both broadcastable to `[S, U]`; bad is above the limit, or below if not `above`."""

    value: Any
    limit: Any
    above: bool = True


class Check(NamedTuple):
    """One check; `meaning` is its function's docstring."""

    name: str
    severity: str
    kinds: tuple[str, ...]
    title: str
    what: str
    """what its value is"""
    measure: Callable[[Series], Measurement]
    meaning: str
    tries: str
    turns: tuple[str, ...]
    """the settings that `tries` speaks of; a finding says what they are"""
    source: str
    window: float
    """share of the training for which it has to last; 0: a single update"""
    share: float
    """share of the window's defined updates that must be beyond the limit"""
    explains: tuple[str, ...]
    """checks whose findings this one can explain"""
    shared_by_seeds: bool
    """whether all seeds share its value; its findings then name no seeds"""


CHECKS: dict[str, Check] = {}


def check(
    severity: str,
    kinds: tuple[str, ...],
    title: str,
    what: str,
    *,
    tries: str,
    source: str,
    turns: Sequence[str] = (),
    window: float = 0.0,
    share: float = 0.5,
    explains: Sequence[str] = (),
    shared_by_seeds: bool = False,
) -> Callable[[Callable[[Series], Measurement]], Callable[[Series], Measurement]]:
    """Register a check."""

    def register(measure: Callable[[Series], Measurement]) -> Callable[[Series], Measurement]:
        name, meaning = measure.__name__, " ".join((measure.__doc__ or "").split())
        CHECKS[name] = Check(
            name,
            severity,
            kinds,
            title,
            what,
            measure,
            meaning,
            tries,
            tuple(turns),
            source,
            window,
            share,
            tuple(explains),
            shared_by_seeds,
        )
        return measure

    return register


def above(value: Any, limit: Any, where: Any = True) -> Measurement:
    """Bad where `value` is above `limit`; only updates where `where` is true count."""
    return Measurement(np.where(where, value, np.nan), limit)


def below(value: Any, limit: Any, where: Any = True) -> Measurement:
    """Bad where `value` is below `limit`; only updates where `where` is true count."""
    return Measurement(np.where(where, value, np.nan), limit, above=False)


# Groups of checks for `explains`: symptoms that can be due to the finding of another check.
OUTCOME = ("no_progress", "worse_than_start", "fell_back", "length_constant", "max_return_far", "kl_tiny")
POLICY = ("entropy_maximal", "entropy_collapse", "entropy_plateau", "policy_stuck", "dormant_units", *OUTCOME)
CRITIC = (
    "explained_variance_negative", "explained_variance_zero", "value_bias", "value_bound", "value_impossible",
    "advantage_mean", "overestimation_grows", "targets_out_of_range", "targets_huge", "values_drift",
)  # fmt: skip
STEPS = (
    "kl_high", "kl_huge", "kl_rises", "update_ratio_high", "update_ratio_low", "gradient_clipped", "gradient_zero",
    "ratio_never_moves",
)  # fmt: skip
SEARCH = ("search_collapse", "kl_at_floor", "search_widens", "policy_apart", *OUTCOME)
EVERYTHING = (*STEPS, *CRITIC, *POLICY, *SEARCH)
