"""Statistics over seeds (Agarwal et al. 2021, "Deep RL at the Edge of the Statistical Precipice", arXiv:2108.13264)."""

import numpy as np
from numpy.typing import ArrayLike


def iqm(scores: ArrayLike) -> float:
    """Interquartile mean: the mean of the middle half. Not-finite scores are left out; NaN if none is left."""
    from scipy import stats

    x = np.asarray(scores, np.float64)
    x = x[np.isfinite(x)]
    return float(stats.trim_mean(x, 0.25)) if x.size else float("nan")


def iqm_interval(scores: ArrayLike, confidence: float = 0.95, resamples: int = 2000) -> tuple[float, float]:
    """Percentile bootstrap interval of the IQM over seeds; (NaN, NaN) for fewer than two finite scores.

    The resampling has a fixed seed, so that the same scores always print the same interval.
    """
    from scipy import stats

    x = np.asarray(scores, np.float64)
    x = x[np.isfinite(x)]
    if x.size < 2:
        return float("nan"), float("nan")
    result = stats.bootstrap(
        (x,),
        lambda sample, axis: stats.trim_mean(sample, 0.25, axis=axis),
        confidence_level=confidence,
        n_resamples=resamples,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)
