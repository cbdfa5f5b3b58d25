"""Statistics over seeds (Agarwal et al. 2021, "Deep RL at the Edge of the Statistical Precipice", arXiv:2108.13264).

What compares two methods takes a list per method, with an array of scores per environment ("stratum"): `[S]`, finite.
A seed that has no score, because it diverged or never finished an episode, is not left out there: a method whose bad
seeds are dropped looks better than it is. `failed_as_worst` gives such a seed the lowest score of all seeds on that
environment, of whatever method; that depends on the pooled scores alone, so a permutation test stays exact. How many
there were is for the caller to say.

All random numbers have a fixed seed: the same scores always give the same numbers.

Letters: `S` seeds, `N` seeds of all environments together, `R` resamples, `T` thresholds.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rlref.errors import UsageError

RESAMPLES = 2000
PERMUTATIONS = 20_000
ALPHA = 0.05
POWER = 0.8

Array = np.ndarray
Strata = Sequence[ArrayLike]


def iqm(scores: ArrayLike) -> float:
    """Interquartile mean: the mean of the middle half. Not-finite scores are left out; NaN if none is left."""
    x = np.asarray(scores, np.float64)
    x = x[np.isfinite(x)]
    return float(_iqm(x)) if x.size else float("nan")


def _iqm(scores: Array) -> Array:
    """Interquartile mean along the last axis, as Agarwal et al. compute it: floor(n / 4) scores go at each end."""
    from scipy import stats

    return stats.trim_mean(scores, 0.25, axis=-1)


def iqm_interval(scores: ArrayLike, confidence: float = 0.95, resamples: int = RESAMPLES) -> tuple[float, float]:
    """Percentile bootstrap interval of the IQM over seeds; (NaN, NaN) for fewer than two finite scores.

    The resampling has a fixed seed, so that the same scores always print the same interval.
    """
    x = np.asarray(scores, np.float64)
    x = x[np.isfinite(x)]
    if x.size < 2:
        return float("nan"), float("nan")
    return stratified_iqm_interval([x], confidence, resamples)


def failed_as_worst(groups: Sequence[ArrayLike]) -> list[Array]:
    """One environment's scores of several methods, where each that is not finite has become the lowest finite one.

    Raises UsageError if there is no finite score at all.
    """
    arrays = [np.asarray(x, np.float64) for x in groups]
    pooled = np.concatenate(arrays)
    if not np.isfinite(pooled).any():
        raise UsageError("no seed of any method has a score: there is nothing to compare")
    worst = pooled[np.isfinite(pooled)].min()
    return [np.where(np.isfinite(x), x, worst) for x in arrays]


def stratified_iqm_interval(
    strata: Strata, confidence: float = 0.95, resamples: int = RESAMPLES
) -> tuple[float, float]:
    """Percentile bootstrap interval of the IQM over the scores of all environments pooled.

    Seeds are resampled within each environment (Agarwal et al. 2021, section 4.1). For one environment it is
    `iqm_interval`. (NaN, NaN) if an environment has fewer than two seeds.
    """
    arrays = _arrays(strata)
    if min(map(len, arrays)) < 2:
        return float("nan"), float("nan")
    return _interval(_resampled_iqms(arrays, resamples, np.random.default_rng(0)), confidence)


class Estimate(NamedTuple):
    """A number and its bootstrap interval; NaN where fewer than two seeds cannot give one."""

    value: float
    low: float
    high: float


def iqm_difference(method: Strata, baseline: Strata, *, paired: bool = False, confidence: float = 0.95) -> Estimate:
    """IQM of a method minus that of the baseline, over all environments pooled.

    Its interval is a percentile bootstrap within each environment; with `paired`, seed i of both is drawn together.
    """
    a, b = _both(method, baseline, paired)
    value = float(_iqm(np.concatenate(a)) - _iqm(np.concatenate(b)))
    if min(map(len, [*a, *b])) < 2:
        return Estimate(value, float("nan"), float("nan"))
    one, other = _resampled_pair(a, b, paired)
    return Estimate(value, *_interval(one - other, confidence))


def probability_of_improvement(
    method: Strata, baseline: Strata, *, paired: bool = False, confidence: float = 0.95
) -> Estimate:
    """P(X > Y) + P(X = Y) / 2 for a seed of the method and one of the baseline, mean over environments.

    Agarwal et al. 2021, section 4.3, after Mann and Whitney 1947; a tie counts half. All pairs of seeds count, also
    those of different ids; `paired` says only that the bootstrap draws seed i of both together.
    """
    a, b = _both(method, baseline, paired)
    rng = np.random.default_rng(0)
    values, resampled = [], []
    for x, y in zip(a, b, strict=True):
        wins = (x[:, None] > y) + 0.5 * (x[:, None] == y)
        values.append(wins.mean())
        drawn = _counts(len(x), rng)
        against = drawn if paired else _counts(len(y), rng)
        resampled.append(((drawn @ wins) * against).sum(axis=1) / wins.size)
    value = float(np.mean(values))
    if min(map(len, [*a, *b])) < 2:
        return Estimate(value, float("nan"), float("nan"))
    return Estimate(value, *_interval(np.mean(resampled, axis=0), confidence))


class Profile(NamedTuple):
    """A performance profile: arrays `[T]`."""

    share: Array
    """of seeds whose score is above the threshold"""
    low: Array
    high: Array


def performance_profile(strata: Strata, thresholds: ArrayLike, confidence: float = 0.95) -> Profile:
    """The share of scores above each of `thresholds` `[T]`, mean over environments, with a pointwise bootstrap band.

    Agarwal et al. 2021, section 4.2 ("score distributions"). NaN bands if an environment has fewer than two seeds.
    """
    tau = np.asarray(thresholds, np.float64)
    rng = np.random.default_rng(0)
    shares, resampled = [], []
    arrays = _arrays(strata)
    for x in arrays:
        above = (x[:, None] > tau).astype(np.float64)
        shares.append(above.mean(axis=0))
        resampled.append(_counts(len(x), rng) @ above / len(x))
    share = np.mean(shares, axis=0)
    if min(map(len, arrays)) < 2:
        return Profile(share, np.full_like(share, np.nan), np.full_like(share, np.nan))
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.mean(resampled, axis=0), [tail, 1 - tail], axis=0)
    return Profile(share, low, high)


class PermutationTest(NamedTuple):
    """The outcome of a permutation test."""

    difference: float
    p: float
    smallest: float
    """the smallest p that these scores can give, however the labels fall: with few seeds, or many tied, it is large"""
    exhaustive: bool
    """whether all arrangements of the labels were looked at; else `p` is an estimate"""


def permutation_test(
    method: Strata, baseline: Strata, *, paired: bool = False, permutations: int = PERMUTATIONS
) -> PermutationTest:
    """Two-sided permutation test of the difference of IQMs, over all environments pooled.

    If both methods gave the same distribution of scores, each arrangement of the labels would be as likely as the one
    seen: any of them within an environment, or, with `paired`, those that swap the two scores of a seed. p is the share
    of arrangements whose difference is as far from 0. If there are more than `permutations`, it is estimated from that
    many random ones, as (1 + as extreme) / (1 + permutations): Phipson and Smyth 2010, who show that this never is too
    small, as the plain share would be. Where the methods' spreads differ, a small p does not mean that their IQMs do:
    look at the interval of `iqm_difference` too.
    """
    a, b = _both(method, baseline, paired)
    total = _arrangements(a, b, paired)
    exhaustive = total <= permutations
    draw = _every_arrangement if exhaustive else _random_arrangements
    extreme = np.abs(np.concatenate([_iqm(x) - _iqm(y) for x, y in draw(a, b, paired, permutations)]))
    difference = float(_iqm(np.concatenate(a)) - _iqm(np.concatenate(b)))
    # The same scores summed in another order differ in their last bits, which must not break a tie.
    slack = sum(map(len, [*a, *b])) * np.finfo(np.float64).eps * max(np.abs(x).max() for x in [*a, *b])
    own = 0 if exhaustive else 1

    def share(limit: float) -> float:
        return float(((extreme >= limit - slack).sum() + own) / (len(extreme) + own))

    return PermutationTest(difference, share(abs(difference)), share(max(abs(difference), extreme.max())), exhaustive)


def holm(p: Sequence[float]) -> list[float]:
    """p corrected for so many comparisons: the chance of any false one stays below the level (Holm 1979)."""
    order = np.argsort(p)
    steps = np.asarray(p, np.float64)[order] * np.arange(len(p), 0, -1)
    corrected = np.empty(len(p))
    corrected[order] = np.minimum(1, np.maximum.accumulate(steps))
    return corrected.tolist()


def least_seeds(paired: bool = False) -> int:
    """The fewest seeds per method on one environment of which `permutation_test` can come below .05, without ties.

    Of n seeds k = floor(n / 4) are trimmed at each end, and what is trimmed can change sides unseen. Of all splits of
    n + n seeds, the one that parts the better from the worse is then as extreme as 2 C(2k, k) of C(2n, n): 5 seeds. Of
    all 2^n swaps of pairs, up to 2^(2k + 1) can be as extreme as the most extreme one: 10 pairs are always enough.
    """

    def smallest(n: int) -> float:
        k = n // 4
        return 2.0 ** (1 + 2 * k - n) if paired else 2 * math.comb(2 * k, k) / math.comb(2 * n, n)

    return next(n for n in itertools.count(2) if smallest(n) < ALPHA)


def seeds_needed(method: Strata, baseline: Strata, *, paired: bool = False) -> int | None:
    """About how many seeds per method and environment would show a difference of the size seen; None if it is 0.

    That is with probability .8, at the level .05, two-sided: n = (z_.975 + z_.8)^2 (s_a^2 + s_b^2) / d^2, the sample
    size of a comparison of two normal means (Cohen 1988), where s^2 / n is the bootstrap's variance of an IQM over n
    seeds; with `paired`, that of the difference in place of the sum. On one environment at least `least_seeds`. The
    difference and the variances are themselves estimates from the seeds there are: a guide for planning, no promise.
    """
    from scipy.special import ndtri

    a, b = _both(method, baseline, paired)
    difference = _iqm(np.concatenate(a)) - _iqm(np.concatenate(b))
    if difference == 0 or min(map(len, [*a, *b])) < 2:
        return None
    one, other = _resampled_pair(a, b, paired)
    seeds_a, seeds_b = (np.mean([len(x) for x in strata]) for strata in (a, b))
    spread = seeds_a * np.var(one - other) if paired else seeds_a * np.var(one) + seeds_b * np.var(other)
    needed = (ndtri(1 - ALPHA / 2) + ndtri(POWER)) ** 2 * spread / difference**2
    return max(math.ceil(needed), least_seeds(paired) if len(a) == 1 else 2)


def _arrays(strata: Strata) -> list[Array]:
    """Scores per environment as float64. Raises UsageError unless there are some, all finite."""
    arrays = [np.asarray(x, np.float64) for x in strata]
    if not arrays or any(x.ndim != 1 or not len(x) for x in arrays):
        raise UsageError("scores must be a list with one array [seed] per environment, none of them empty")
    if not all(np.isfinite(x).all() for x in arrays):
        raise UsageError("a score is not finite: failed_as_worst gives such seeds a score")
    return arrays


def _both(method: Strata, baseline: Strata, paired: bool) -> tuple[list[Array], list[Array]]:
    """Both methods' scores. Raises UsageError where they do not fit each other."""
    a, b = _arrays(method), _arrays(baseline)
    if len(a) != len(b):
        raise UsageError(f"the methods have {len(a)} and {len(b)} environments; they must have the same")
    if paired and any(len(x) != len(y) for x, y in zip(a, b, strict=True)):
        raise UsageError("paired scores must be of the same seeds: the methods have different numbers of them")
    return a, b


def _interval(resampled: Array, confidence: float) -> tuple[float, float]:
    """Percentile interval of a bootstrap distribution `[R]`."""
    tail = (1 - confidence) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return float(low), float(high)


def _indices(sizes: Sequence[int], resamples: int, rng: np.random.Generator) -> Array:
    """Seeds drawn with replacement within each environment, as places in the concatenated scores, `[R, N]`."""
    starts = np.cumsum([0, *sizes[:-1]])
    return np.concatenate(
        [start + rng.integers(0, n, (resamples, n)) for start, n in zip(starts, sizes, strict=True)], axis=1
    )


def _counts(n: int, rng: np.random.Generator) -> Array:
    """How often each of `n` seeds is drawn in each resample, `[R, n]`: a bootstrap for what is linear in the scores."""
    return rng.multinomial(n, np.full(n, 1 / n), size=RESAMPLES).astype(np.float64)


def _resampled_iqms(arrays: Sequence[Array], resamples: int, rng: np.random.Generator) -> Array:
    return _iqm(np.concatenate(arrays)[_indices([len(x) for x in arrays], resamples, rng)])


def _resampled_pair(a: Sequence[Array], b: Sequence[Array], paired: bool) -> tuple[Array, Array]:
    """Bootstrap distributions of both IQMs, `[R]` each; with `paired` of the same draws of seeds."""
    rng = np.random.default_rng(0)
    one = _resampled_iqms(a, RESAMPLES, rng)
    return one, _resampled_iqms(b, RESAMPLES, np.random.default_rng(0) if paired else rng)


def _arrangements(a: Sequence[Array], b: Sequence[Array], paired: bool) -> int:
    """In how many ways the labels can fall."""
    return math.prod(2 ** len(x) if paired else math.comb(len(x) + len(y), len(x)) for x, y in zip(a, b, strict=True))


Pair = tuple[Array, Array]


def _every_arrangement(a: Sequence[Array], b: Sequence[Array], paired: bool, _: int) -> Iterator[Pair]:
    """All of them at once: scores of the two methods, `[arrangements, N]` each."""
    each = [(_all_swaps if paired else _all_splits)(x, y) for x, y in zip(a, b, strict=True)]
    places = np.indices([len(one) for one, _ in each]).reshape(len(each), -1)
    yield tuple(  # type: ignore[misc]
        np.concatenate([pair[side][i] for pair, i in zip(each, places, strict=True)], axis=1) for side in (0, 1)
    )


def _all_splits(x: Array, y: Array) -> Pair:
    pooled, everyone = np.concatenate([x, y]), range(len(x) + len(y))
    first = np.array(list(itertools.combinations(everyone, len(x))))
    rest = np.array([[i for i in everyone if i not in chosen] for chosen in map(set, first.tolist())])
    return pooled[first], pooled[rest]


def _all_swaps(x: Array, y: Array) -> Pair:
    swap = np.array(list(itertools.product([False, True], repeat=len(x))))
    return np.where(swap, y, x), np.where(swap, x, y)


def _random_arrangements(a: Sequence[Array], b: Sequence[Array], paired: bool, permutations: int) -> Iterator[Pair]:
    """So many random ones, in parts that fit into memory."""
    rng = np.random.default_rng(0)
    part = max(1, 2**22 // sum(map(len, [*a, *b])))
    draw: Callable[..., Pair] = _random_swaps if paired else _random_splits
    for start in range(0, permutations, part):
        count = min(part, permutations - start)
        each = [draw(x, y, count, rng) for x, y in zip(a, b, strict=True)]
        yield np.concatenate([x for x, _ in each], axis=1), np.concatenate([y for _, y in each], axis=1)


def _random_splits(x: Array, y: Array, count: int, rng: np.random.Generator) -> Pair:
    shuffled = rng.permuted(np.tile(np.concatenate([x, y]), (count, 1)), axis=1)
    return shuffled[:, : len(x)], shuffled[:, len(x) :]


def _random_swaps(x: Array, y: Array, count: int, rng: np.random.Generator) -> Pair:
    swap = rng.random((count, len(x))) < 0.5
    return np.where(swap, y, x), np.where(swap, x, y)


def last(x: Array) -> Array:
    """The last update's values along the last axis; for a row that stopped early, those of its own last update."""
    return np.take_along_axis(x, last_index(x)[..., None], axis=-1)[..., 0]


def final_scores(score: Array, nonfinite: Array | None = None) -> Array:
    """Each row's score at its last update; NaN for one that became non-finite and has had no score since.

    Args:
      score: along the last axis a value per update; NaN at updates that a row never reached, or without a score.
      nonfinite: as `score`, above 0 where a row's numbers are not finite; NaN at updates that it never reached.
    """
    scores = last(score)
    if nonfinite is None:
        return scores
    at_end = np.take_along_axis(score, last_index(nonfinite)[..., None], axis=-1)[..., 0]
    return np.where((nonfinite > 0).any(-1) & ~np.isfinite(at_end), np.nan, scores)


def last_index(x: Array) -> Array:
    """Where along the last axis the last finite value is; 0 if there is none."""
    reached = np.isfinite(x)
    return np.where(reached.any(-1), x.shape[-1] - 1 - np.argmax(reached[..., ::-1], axis=-1), 0)
