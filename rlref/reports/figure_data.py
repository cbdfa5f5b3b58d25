"""What is drawn: groups of seeds, marks, and a figure with its words. `S` seeds, `U` updates."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from rlref import stats

HUGE = 1e30  # larger values are clipped to it, as matplotlib's margins would overflow


class Group(NamedTuple):
    """Seeds that are drawn together: a run, or one of its settings. Arrays are `[S, U]`."""

    label: str
    metrics: dict[str, np.ndarray]
    seeds: list[int]

    @property
    def score(self) -> str:
        """The metric that is a seed's score, as in `runs.Run.score`."""
        return "mean_policy_return" if "mean_policy_return" in self.metrics else "return_mean"

    @property
    def scores(self) -> np.ndarray:
        """`[S]`, as `runs.Run.scores`; NaN where undefined."""
        if self.score not in self.metrics:
            return np.full(len(self.seeds), np.nan)
        return stats.final_scores(self.values(self.score), self.metrics.get("nonfinite"))

    def values(self, name: str) -> np.ndarray:
        """A metric `[S, U]` to draw: infinities are undefined."""
        x = np.asarray(self.metrics[name], np.float64)
        return np.clip(np.where(np.isfinite(x), x, np.nan), -HUGE, HUGE)

    @property
    def steps(self) -> np.ndarray:
        """Environment steps `[S, U]`; the number of the update, from 1, for metrics without them."""
        if "env_steps" in self.metrics:
            return self.values("env_steps")
        seeds, updates = next(iter(self.metrics.values())).shape
        return np.tile(np.arange(1.0, updates + 1), (seeds, 1))

    @property
    def mean_steps(self) -> np.ndarray:
        """Environment steps at each update `[U]`, the mean over seeds: with CEM, seeds differ."""
        steps = self.steps
        count = np.isfinite(steps).sum(axis=0)
        return np.where(count > 0, np.nansum(steps, axis=0) / np.maximum(count, 1), np.nan)

    def constant(self, name: str) -> float | None:
        """The one value that a metric has, in all seeds at all updates where it is defined; None where it varies."""
        x = self.values(name)[np.isfinite(self.values(name))]
        return float(x[0]) if len(x) and np.ptp(x) == 0 else None


class Mark(NamedTuple):
    """The onset of a finding: a vertical line with its number."""

    number: str
    update: int
    text: str


class Picture(NamedTuple):
    """A figure with its words."""

    name: str
    """of the file, and of the element in the page"""
    title: str
    caption: str
    alt: str
    """what it shows, in numbers"""
    figure: Figure
