"""What a health check reads: metrics and training progress per update, and arithmetic along updates."""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlref.contract import RECURRENT


class UnknownError(Exception):
    """A metric or a setting that a check needs and this run does not have."""


class Series:
    """A run's metrics `[S, U]` as float64, its settings, and the training progress at each update."""

    def __init__(self, metrics: Mapping[str, np.ndarray], config: Mapping[str, Any], num_updates: int, exact: bool):
        self.metrics, self.config, self.exact = metrics, config, exact
        self.shape = next(iter(metrics.values())).shape
        self.read: set[str] = set()
        """names of the metrics that were read"""
        self.num_updates = max(num_updates, self.shape[1])
        self.progress = (np.arange(self.shape[1]) + 1) / self.num_updates
        """share of the planned training that is done after each update, `[U]`"""

    def __contains__(self, name: str) -> bool:
        return name in self.metrics

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.metrics:
            raise UnknownError(f"the metric {name}")
        self.read.add(name)
        return np.asarray(self.metrics[name], np.float64)

    def setting(self, name: str) -> Any:
        if name not in self.config:
            raise UnknownError(f"the setting {name}")
        return self.config[name]

    def window(self, share: float) -> int:
        """Number of updates in `share` of the training: 1 for a share of 0, else from 3 to 200."""
        return 1 if share == 0 else int(np.clip(round(share * self.num_updates), 3, 200))

    def smooth(self, x: np.ndarray, share: float = 0.1) -> np.ndarray:
        """Rolling mean over `share` of the training; NaN where less than half of the window is defined."""
        window, finite = self.window(share), np.isfinite(x)
        total, count = rolling_sum(np.where(finite, x, 0), window), rolling_sum(finite, window)
        return np.where(count >= window / 2, total / np.maximum(count, 1), np.nan)

    def at_start(self, x: np.ndarray) -> np.ndarray:
        """Mean of the first defined values, 2 % of the training long; NaN if none is in its first 10 %. `[S, 1]`"""
        begun = np.cumsum(np.isfinite(x), axis=1)
        early = np.arange(self.shape[1]) < self.window(0.1)
        return mean_where(x, early & (begun <= max(1, round(0.02 * self.num_updates))))

    def return_at_start(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of the first returns, `[S, 1]`. Raises UnknownError if no seed has any."""
        mean, std = self.at_start(self["return_mean"]), self.at_start(self["return_std"])
        if not np.isfinite(mean).any():
            raise UnknownError("an episode that ends in the first tenth of the training")
        return mean, std

    def lagged(self, x: np.ndarray, share: float) -> np.ndarray:
        """`x` delayed by `share` of the training; NaN where that is before the start."""
        lag = min(self.window(share), self.shape[1])
        return np.concatenate([np.full((self.shape[0], lag), np.nan), x[:, : self.shape[1] - lag]], axis=1)

    @property
    def enough_gradient_steps(self) -> Any:
        """Where there were more than 1000 gradient steps, so that a critic should have learned; True if unknown."""
        return np.cumsum(self["gradient_steps"], axis=1) > 1000 if "gradient_steps" in self else True

    @property
    def actions(self) -> np.ndarray:
        """Number of actions A of a Discrete space, as relative_entropy is entropy / log A. `[S, 1]`"""
        return np.round(np.exp(self.at_start(self["entropy"]) / self.at_start(self["relative_entropy"])))

    @property
    def kl(self) -> np.ndarray:
        """The exact KL; its estimate `approx_kl` where the exact one was not logged."""
        return self["kl"] if "kl" in self else self["approx_kl"]

    @property
    def score(self) -> np.ndarray:
        """The metric that a seed's score is read from, `[S, U]`."""
        return self["mean_policy_return"] if "mean_policy_return" in self else self["return_mean"]

    @functools.cached_property
    def kind(self) -> str:
        return kind_of(self.metrics)

    @property
    def more_kinds(self) -> tuple[str, ...]:
        """What it is besides its kind: "ppo_rnn", where it has a memory."""
        return RECURRENT if "memory_kl" in self else ()

    @functools.cached_property
    def discrete(self) -> bool:
        """Whether relative_entropy is a share of log A, starting near 1; for a Box it is a change in nats, from 0."""
        return bool(np.nanmax(self.at_start(self["relative_entropy"]), initial=-np.inf) > 0.5)


def kind_of(metrics: Mapping[str, Any]) -> str:
    """'ppo', 'dqn', 'cem', or '' where the metrics do not tell."""
    for kind, names in (
        ("cem", ("elite_mean",)),
        ("dqn", ("td_loss", "churn")),
        ("ppo", ("clip_fraction", "approx_kl")),
    ):
        if any(name in metrics for name in names):
            return kind
    return ""


def rolling_sum(x: np.ndarray, window: int) -> np.ndarray:
    """Sum over each update and up to `window` - 1 before it, along the last axis."""
    total = np.cumsum(x, axis=-1, dtype=np.float64)
    total[..., window:] -= total[..., :-window].copy()
    return total


def mean_where(x: np.ndarray, where: Any) -> np.ndarray:
    """Mean over the defined updates where `where` is true, `[S, 1]`; NaN if there are none."""
    some = np.isfinite(x) & where
    count = some.sum(axis=1, keepdims=True)
    return np.where(count > 0, np.where(some, x, 0).sum(axis=1, keepdims=True) / np.maximum(count, 1), np.nan)


def spread_so_far(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The largest maximum so far minus the smallest minimum so far."""
    return np.fmax.accumulate(high, axis=1) - np.fmin.accumulate(low, axis=1)


def largest(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The largest absolute value between a minimum and a maximum."""
    return np.maximum(np.abs(low), np.abs(high))


def largest_reward(m: Series) -> np.ndarray:
    """The largest |reward| so far."""
    return np.fmax.accumulate(largest(m["reward_min"], m["reward_max"]), axis=1)


def targets_vary(m: Series | Mapping[str, np.ndarray]) -> Any:
    """Where the spread of the targets is worth explaining: once a task is solved, all states may be worth the same."""
    return m["target_std"] > 0.1 * np.abs(m["target_mean"]) if "target_std" in m and "target_mean" in m else True
