"""The form of a health check, the register of all of them, and which of them may follow from which.

The checks themselves are in rlref/health/checks, one file per subject.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlref.health.series import Series


class Look(NamedTuple):
    """What a check looked at: bad is what is above `limit`, or below it. Both are `[S, U]`, or broadcast to it."""

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
    look: Callable[[Series], Look]
    meaning: str
    tries: str
    source: str
    window: float
    """share of the training that it has to last; 0: one update"""
    share: float
    """of the window's defined updates, how many must be beyond the limit"""
    explains: tuple[str, ...]
    """checks that follow from this one"""
    across: bool
    """whether it is about all seeds together, or all seeds share one value"""


CHECKS: dict[str, Check] = {}


def check(
    severity: str,
    kinds: tuple[str, ...],
    title: str,
    what: str,
    *,
    tries: str,
    source: str,
    window: float = 0.0,
    share: float = 0.5,
    explains: Sequence[str] = (),
    across: bool = False,
) -> Callable[[Callable[[Series], Look]], Callable[[Series], Look]]:
    """Register a check."""

    def register(look: Callable[[Series], Look]) -> Callable[[Series], Look]:
        name, meaning = look.__name__, " ".join((look.__doc__ or "").split())
        CHECKS[name] = Check(
            name, severity, kinds, title, what, look, meaning, tries, source, window, share, tuple(explains), across
        )
        return look

    return register


def above(value: Any, limit: Any, where: Any = True) -> Look:
    """Bad where `value` is above `limit`; looked at only where `where`."""
    return Look(np.where(where, value, np.nan), limit)


def below(value: Any, limit: Any, where: Any = True) -> Look:
    """Bad where `value` is below `limit`; looked at only where `where`."""
    return Look(np.where(where, value, np.nan), limit, above=False)


# What follows from what: a name stands for the checks whose cause may lie further up.
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
