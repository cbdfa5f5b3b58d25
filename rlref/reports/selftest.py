"""Whether the comparison's error rate is as stated: one run's seeds are split in two and compared, many times."""

import dataclasses
from collections import Counter

import numpy as np

from rlref import stats
from rlref.errors import UsageError
from rlref.reports import compare
from rlref.runs.run import Run


@dataclasses.dataclass(frozen=True)
class SelfTest:
    """How often a run's seeds, split at random into two halves, are said to differ."""

    num_seeds: int
    tied: int
    """seeds that share their score with another"""
    splits: int
    shift: float
    """what was added to one half, in standard deviations of the scores"""
    rejected: float
    """share of splits with p < .05; about .05 without a shift, if the test is right"""
    excluded: float
    """share of splits whose bootstrap interval of the difference excludes 0; the interval is approximate"""
    usable: bool
    """whether these scores can give p < .05 at all"""
    sentence: str


def selftest(run: Run, splits: int = 1000, shift: float = 0.0) -> SelfTest:
    """Check the comparison on one run: compare a random half of its seeds with the other half, `splits` times.

    Both halves are of the same training, so whatever the scores are, p < .05 must come out in 5 % of the splits, or a
    little less, as with few seeds p takes few values: that checks the comparison, not the run. With `shift`, that many
    standard deviations are added to one half, and the difference should be found. Raises UsageError for a run with
    batched settings or fewer than four seeds.
    """
    if run.batched:
        raise UsageError(f"the run has several settings: choose one, as {run.path or 'PATH'}#0")
    scores = stats.failed_as_worst([compare.seeds_of([run])[0].final])[0]
    if len(scores) < 4:
        raise UsageError(f"the run has {len(scores)} seeds; two halves to compare take four at least")
    rng, half = np.random.default_rng(0), len(scores) // 2
    tests, outside = [], []
    for _ in range(splits):
        order = rng.permutation(scores)
        one, other = order[:half] + shift * scores.std(), order[half : 2 * half]
        tests.append(stats.permutation_test([one], [other], permutations=2000))
        difference = stats.iqm_difference([one], [other])
        outside.append(not difference.low <= 0 <= difference.high)
    rejected = float(np.mean([test.p < stats.ALPHA for test in tests]))
    tied = sum(n for n in Counter(scores.tolist()).values() if n > 1)
    usable = any(test.smallest < stats.ALPHA for test in tests)
    return SelfTest(
        num_seeds=len(scores),
        tied=tied,
        splits=splits,
        shift=shift,
        rejected=rejected,
        excluded=float(np.mean(outside)),
        usable=usable,
        sentence=selftest_in_words(len(scores), half, tied, splits, shift, rejected, float(np.mean(outside)), usable),
    )


def selftest_in_words(
    seeds: int, half: int, tied: int, splits: int, shift: float, rejected: float, excluded: float, usable: bool
) -> str:
    if not usable:
        why = f"{tied} of its {seeds} seeds are tied" if tied > half else f"{half} against {half} seeds are too few"
        return f"this run cannot tell whether the comparison is right: {why}"
    what = f"{half} of its {seeds} seeds against {half} others"
    moved = f", moved by {shift:g} standard deviations," if shift else ""
    right = "" if shift else ", where 5 % is right"
    p = f"p < .05 in {100 * rejected:.3g} % of {splits:,} random splits{right}"
    return f"{what}{moved}: {p}; the interval of the difference leaves 0 out in {100 * excluded:.3g} %"
