"""Statistics over the course of training, for the figures.

Letters: `S` seeds, `U` updates, `P` updates that are drawn, `B` bins of updates.
"""

import numpy as np

POINTS = 200  # most updates at which the IQM is drawn
BINS = 100  # most bins of a seed's line, which goes through the lowest and the highest value of each
LINE_BINS = 5000  # most bins of all seeds' lines together, to keep the page small
RESAMPLES = 400  # most resamples of a bootstrap; at least 100 are drawn
MAX_RESAMPLED_SEEDS = 50_000  # most seeds in all resamples together, to keep it fast


def iqm_along(x: np.ndarray) -> np.ndarray:
    """`stats.iqm` of every column of `[..., S, P]`: `[..., P]`."""
    ordered = np.sort(x, axis=-2)  # NaN last
    count = np.isfinite(x).sum(axis=-2, keepdims=True)
    cut = count // 4
    rank = np.arange(x.shape[-2])[:, None]
    middle = (rank >= cut) & (rank < count - cut)
    total = np.where(middle, ordered, 0).sum(axis=-2)
    kept = middle.sum(axis=-2)
    return np.where(kept > 0, total / np.maximum(kept, 1), np.nan)


def interval_along(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """95 % percentile bootstrap interval over seeds of every column's IQM: two `[P]`; NaN for fewer than two seeds."""
    low = np.full(x.shape[1], np.nan)
    high = low.copy()
    defined = np.isfinite(x).sum(axis=0) >= 2
    if defined.any():
        resamples = int(np.clip(MAX_RESAMPLED_SEEDS // len(x), 100, RESAMPLES))
        chosen = np.random.default_rng(0).integers(len(x), size=(resamples, len(x)))
        means = np.concatenate([iqm_along(x[:, defined][part]) for part in np.array_split(chosen, 20)])
        low[defined], high[defined] = np.nanquantile(means, (0.025, 0.975), axis=0)
    return low, high


def drawn_updates(x: np.ndarray) -> np.ndarray:
    """The updates at which `x` `[S, U]` is drawn, `[P]`: at most POINTS, evenly spaced from the first to the last.

    A metric that is defined only at some updates, such as an evaluation's, is drawn at those.
    """
    defined = np.flatnonzero(np.isfinite(x).any(axis=0))
    updates = defined if is_sparse(x) else np.arange(x.shape[1])
    return updates[np.unique(np.linspace(0, len(updates) - 1, min(len(updates), POINTS)).round().astype(int))]


def is_sparse(x: np.ndarray) -> bool:
    """Whether `x` `[S, U]` is defined at several updates, and no two of them are neighbours."""
    defined = np.flatnonzero(np.isfinite(x).any(axis=0))
    return len(defined) > 1 and bool((np.diff(defined) > 1).all())


def extremes(x: np.ndarray) -> np.ndarray:
    """The updates `[S, 2 B]` of the lowest and the highest value of each bin, in order of time."""
    found = []
    for part in np.array_split(np.arange(x.shape[1]), min(BINS, LINE_BINS // len(x), x.shape[1])):
        values = x[:, part]
        lowest = np.where(np.isnan(values), np.inf, values).argmin(axis=1)
        highest = np.where(np.isnan(values), -np.inf, values).argmax(axis=1)
        found += [part[np.minimum(lowest, highest)], part[np.maximum(lowest, highest)]]
    return np.stack(found, axis=1)


def evenly(scores: np.ndarray, most: int) -> np.ndarray:
    """At most `most` rows, evenly from the lowest to the highest score; if there are more, only rows with a score."""
    if len(scores) <= most:
        return np.arange(len(scores))
    order = np.argsort(scores, kind="stable")
    if np.isfinite(scores).any():
        order = order[np.isfinite(scores[order])]
    return np.sort(order[np.unique(np.linspace(0, len(order) - 1, min(len(order), most)).round().astype(int))])
