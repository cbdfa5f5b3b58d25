import itertools

import numpy as np
import pytest
import scipy.stats

from rlref import stats
from rlref.errors import UsageError

# Normalised scores of ten seeds on each of three tasks, two of them tied within a task.
TASKS = np.round(np.random.default_rng(7).beta([[5], [2], [0.7]], [[2], [2], [0.5]], (3, 10)), 2)
OTHER = np.round(np.random.default_rng(8).beta([[4], [3], [0.9]], [[2], [2], [0.5]], (3, 10)), 2)


def test_iqm_is_the_mean_of_the_middle_half():
    assert stats.iqm([100, 1, 2, 3, 4, 5, 6, -100]) == pytest.approx((2 + 3 + 4 + 5) / 4)


def test_iqm_leaves_out_what_is_undefined():
    assert stats.iqm([np.nan, 1.0, 3.0]) == 2
    assert np.isnan(stats.iqm([np.nan]))


def test_interval_covers_the_iqm_of_normal_scores():
    # Each interval of 95 % should cover the truth; 200 intervals, of 20 scores each, cover it at least 170 times.
    rng = np.random.default_rng(1)
    covered = [
        low <= 3 <= high for low, high in (stats.iqm_interval(rng.normal(3, 1, 20), resamples=300) for _ in range(200))
    ]
    assert 170 <= sum(covered) <= 199


def test_interval_is_the_same_every_time():
    assert stats.iqm_interval([1, 2, 3, 4, 9]) == stats.iqm_interval([1, 2, 3, 4, 9])


def test_interval_of_one_seed_is_undefined():
    assert np.isnan(stats.iqm_interval([1.0])).all()


def test_interval_of_equal_scores_is_that_score():
    assert stats.iqm_interval([500.0] * 8) == (500, 500)


def middle_half(scores):
    """The IQM as a definition: sorted, a quarter of them (rounded down) cut at each end, and the rest averaged."""
    ordered = sorted(float(x) for x in np.ravel(scores))
    cut = len(ordered) // 4
    return sum(ordered[cut : len(ordered) - cut]) / (len(ordered) - 2 * cut)


def resampled(tasks, rng):
    """One resample of the published procedure: each task's runs drawn with replacement from that task alone."""
    return [[task[rng.integers(len(task))] for _ in task] for task in tasks]


def percentiles(values):
    return np.percentile(values, [2.5, 97.5])


def test_iqm_of_many_tasks_is_the_textbook_value():
    assert stats.iqm(TASKS) == pytest.approx(middle_half(TASKS), abs=1e-6)
    assert stats.iqm(TASKS[0]) == pytest.approx(middle_half(TASKS[0]), abs=1e-6)
    assert stats.iqm(TASKS) != pytest.approx(
        np.mean([middle_half(task) for task in TASKS]), abs=1e-3
    )  # pooled, not mean


def test_stratified_interval_agrees_with_the_published_procedure():
    rng = np.random.default_rng(123)
    oracle = percentiles([middle_half(resampled(TASKS, rng)) for _ in range(6000)])
    assert stats.stratified_iqm_interval(TASKS) == pytest.approx(oracle, abs=0.01)
    # Seeds drawn from all tasks together, as no task were, give a wider interval: this is what the test can tell.
    assert np.ptp(stats.iqm_interval(TASKS.ravel())) > np.ptp(oracle) + 0.02


def test_stratified_interval_of_one_environment_is_the_plain_one():
    assert stats.stratified_iqm_interval([TASKS[0]]) == stats.iqm_interval(TASKS[0])
    assert np.isnan(stats.stratified_iqm_interval([TASKS[0], [1.0]])).all()


def test_profile_is_the_share_above_each_threshold():
    rng = np.random.default_rng(5)
    thresholds = [0.3, 0.57, TASKS[1, 0], 2.0]

    def shares(tasks):
        return [np.mean([np.mean([score > t for score in task]) for task in tasks]) for t in thresholds]

    profile = stats.performance_profile(TASKS, thresholds)
    np.testing.assert_allclose(profile.share, shares(TASKS))
    low, high = np.percentile([shares(resampled(TASKS, rng)) for _ in range(2000)], [2.5, 97.5], axis=0)
    np.testing.assert_allclose(profile.low, low, atol=0.034)  # a step of a share of 30 runs
    np.testing.assert_allclose(profile.high, high, atol=0.034)


def test_probability_of_improvement_is_that_of_mann_and_whitney():
    u = [scipy.stats.mannwhitneyu(x, y).statistic / (len(x) * len(y)) for x, y in zip(TASKS, OTHER, strict=True)]
    assert stats.probability_of_improvement(TASKS, OTHER).value == pytest.approx(np.mean(u))
    assert stats.probability_of_improvement([[1, 2]], [[1, 1, 0]]).value == pytest.approx((0.5 + 0.5 + 1 + 3) / 6)


def test_probability_of_improvement_agrees_with_the_published_bootstrap():
    rng = np.random.default_rng(5)

    def probability(xs, ys):
        wins = [[(a > b) + 0.5 * (a == b) for a in x for b in y] for x, y in zip(xs, ys, strict=True)]
        return np.mean([np.mean(w) for w in wins])

    drawn = [probability(resampled(TASKS, rng), resampled(OTHER, rng)) for _ in range(1500)]
    found = stats.probability_of_improvement(TASKS, OTHER)
    assert (found.low, found.high) == pytest.approx(percentiles(drawn), abs=0.015)


def test_interval_of_a_difference_is_that_of_two_independent_bootstraps():
    rng = np.random.default_rng(5)
    drawn = [middle_half(resampled(TASKS, rng)) - middle_half(resampled(OTHER, rng)) for _ in range(4000)]
    found = stats.iqm_difference(TASKS, OTHER)
    assert found.value == pytest.approx(middle_half(TASKS) - middle_half(OTHER))
    assert (found.low, found.high) == pytest.approx(percentiles(drawn), abs=0.015)


def test_paired_interval_keeps_what_seeds_have_in_common():
    rng = np.random.default_rng(0)
    luck = rng.normal(0, 10, 20)
    better, worse = luck + 1 + rng.normal(0, 0.1, 20), luck
    assert np.ptp(stats.iqm_difference([better], [worse], paired=True)[1:]) < 3
    assert np.ptp(stats.iqm_difference([better], [worse])[1:]) > 8
    assert stats.permutation_test([better], [worse], paired=True).p < 0.01
    assert stats.permutation_test([better], [worse]).p > 0.5
    assert stats.seeds_needed([better], [worse], paired=True) < stats.seeds_needed([better], [worse]) / 10


@pytest.mark.parametrize(("paired", "kind"), [(False, "independent"), (True, "samples")])
def test_exhaustive_p_is_that_of_scipy(paired, kind):
    def difference(x, y, axis):
        return np.abs(scipy.stats.trim_mean(x, 0.25, axis=axis) - scipy.stats.trim_mean(y, 0.25, axis=axis))

    for seed in range(5):
        x, y = np.random.default_rng(seed).normal([[0], [1]], 1, (2, 7))
        oracle = scipy.stats.permutation_test(
            (x, y), difference, permutation_type=kind, alternative="greater", n_resamples=np.inf, vectorized=True
        )
        found = stats.permutation_test([x], [y], paired=paired)
        assert found.exhaustive
        assert found.p == pytest.approx(oracle.pvalue)


def test_stratified_test_swaps_within_environments_alone():
    a, b = [[1.0, 5.0, 2.0], [90.0, 60.0]], [[3.0, 0.0], [80.0, 95.0, 40.0]]
    extreme, seen = [], abs(middle_half([*a[0], *a[1]]) - middle_half([*b[0], *b[1]]))
    pools = [x + y for x, y in zip(a, b, strict=True)]
    for chosen in itertools.product(*(itertools.combinations(range(5), len(x)) for x in a)):
        one = [pool[i] for pool, own in zip(pools, chosen, strict=True) for i in own]
        other = [pool[i] for pool, own in zip(pools, chosen, strict=True) for i in range(5) if i not in own]
        extreme.append(abs(middle_half(one) - middle_half(other)) >= seen - 1e-9)
    assert len(extreme) == 100
    assert stats.permutation_test(a, b).p == pytest.approx(np.mean(extreme))


@pytest.mark.parametrize("paired", [False, True])
def test_sampled_p_agrees_with_the_exhaustive_one(paired):
    x, y = np.random.default_rng(3).normal([[0], [0.8]], 1, (2, 8))
    exact = stats.permutation_test([x], [y], paired=paired)
    sampled = stats.permutation_test([x], [y], paired=paired, permutations=200 if paired else 4000)
    assert (exact.exhaustive, sampled.exhaustive) == (True, False)
    assert sampled.p == pytest.approx(exact.p, abs=0.05 if paired else 0.02)


def test_sampled_p_is_never_0():
    found = stats.permutation_test([np.arange(20.0)], [np.arange(20.0) + 100], permutations=999)
    assert found.p == 1 / 1000


def test_sampling_in_parts_gives_all_permutations(monkeypatch):
    parts = list(stats._random_arrangements([np.zeros(2**20)], [np.zeros(2**20)], True, 5))
    assert [x.shape for x, _ in parts] == [(2, 2**20), (2, 2**20), (1, 2**20)]


@pytest.mark.parametrize(("n", "smallest"), [(2, 1 / 3), (3, 0.1), (4, 4 / 70), (5, 4 / 252)])
def test_few_seeds_cannot_decide(n, smallest):
    # Of 4 and 5 seeds one is trimmed at each end, so that swapping two that are trimmed changes nothing.
    found = stats.permutation_test([np.arange(n)], [100 + np.arange(n)])
    assert found.p == found.smallest == pytest.approx(smallest)


def test_least_seeds_are_the_fewest_that_can_decide():
    def apart(n):
        return [np.arange(n)], [100 + np.arange(n)]

    assert stats.least_seeds() == 5
    assert stats.permutation_test(*apart(4)).smallest > 0.05 > stats.permutation_test(*apart(5)).smallest


def test_least_pairs_are_always_enough():
    def trimmed_together(n):
        """Pairs, some of which have both scores trimmed, at the top or the bottom: swapping them changes nothing."""
        both = [(sign * (1000 + i), sign * (2000 + i)) for sign in (1, -1) for i in range(n // 4)]
        pairs = np.array([*both, *((10 + i, 0.1 * i) for i in range(n - len(both)))])
        return [pairs[:, 0]], [pairs[:, 1]]

    least = stats.least_seeds(paired=True)
    assert least == 10
    assert stats.permutation_test(*trimmed_together(least - 1), paired=True).smallest > 0.05
    assert stats.permutation_test(*trimmed_together(least), paired=True).smallest < 0.05


def test_ties_at_a_ceiling_decide_nothing():
    found = stats.permutation_test([[500.0] * 8], [[500.0] * 7 + [492.0]])
    assert (found.difference, found.p, found.smallest) == (0, 1, 1)


def test_ties_survive_rounding():
    # Tenths are no binary fractions: their sums depend on the order, and what ties in whole numbers must tie in tenths.
    for seed in range(5):
        a, b = np.random.default_rng(seed).integers(0, 10, (2, 1, 6))
        assert stats.permutation_test(a / 10, b / 10).p == stats.permutation_test(a, b).p


@pytest.mark.slow
def test_equal_distributions_are_found_different_in_one_case_of_twenty():
    rng = np.random.default_rng(2)
    rejected = [stats.permutation_test(*rng.exponential(size=(2, 1, 6))).p < 0.05 for _ in range(400)]
    assert 0.02 < np.mean(rejected) < 0.08


@pytest.mark.slow
def test_unequal_spreads_deceive_the_test_but_not_the_interval():
    rng, rejected, outside = np.random.default_rng(2), [], []
    for _ in range(150):
        narrow, wide = rng.normal(0, 1, (1, 24)), rng.normal(0, 5, (1, 12))
        rejected.append(stats.permutation_test(narrow, wide, permutations=500).p < 0.05)
        difference = stats.iqm_difference(narrow, wide)
        outside.append(not difference.low <= 0 <= difference.high)
    assert np.mean(rejected) > 0.3
    assert np.mean(outside) < 0.12


@pytest.mark.slow
@pytest.mark.parametrize("shift", [0.6, 1.0])
def test_seeds_needed_show_the_difference_in_four_of_five_cases(shift):
    population = scipy.stats.norm.ppf((np.arange(2000) + 0.5) / 2000)
    needed = stats.seeds_needed([population + shift], [population])
    rng = np.random.default_rng(1)
    shown = [
        stats.permutation_test([rng.normal(shift, 1, needed)], [rng.normal(0, 1, needed)], permutations=400).p < 0.05
        for _ in range(250)
    ]
    assert 0.7 < np.mean(shown) < 0.9
    assert stats.seeds_needed([population], [population + shift / 2]) == pytest.approx(4 * needed, rel=0.1)


def test_seeds_needed_of_no_difference_or_of_one_seed_are_unknown():
    assert stats.seeds_needed([[1, 2, 3]], [[1, 2, 3]]) is None
    assert stats.seeds_needed([[1]], [[2]]) is None
    assert stats.seeds_needed([[500.0] * 8], [[400.0] * 8]) == stats.least_seeds()


def test_holm_steps_down():
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm([0.7, 0.6]) == [1, 1]
    assert stats.holm([0.2]) == [0.2]


def test_failed_seeds_count_as_the_worst_of_all_methods():
    a, b = stats.failed_as_worst([[1, np.nan, 3], [np.inf, 0.5]])
    assert a.tolist() == [1, 0.5, 3]
    assert b.tolist() == [0.5, 0.5]
    with pytest.raises(UsageError, match="no seed of any method has a score"):
        stats.failed_as_worst([[np.nan], [np.nan]])


def test_what_does_not_fit_is_refused():
    with pytest.raises(UsageError, match="not finite"):
        stats.permutation_test([[1, np.nan]], [[1, 2]])
    with pytest.raises(UsageError, match="1 and 2 environments"):
        stats.iqm_difference([[1, 2]], [[1, 2], [1, 2]])
    with pytest.raises(UsageError, match="same seeds"):
        stats.permutation_test([[1, 2]], [[1, 2, 3]], paired=True)
    with pytest.raises(UsageError, match="none of them empty"):
        stats.stratified_iqm_interval([[]])


@pytest.mark.parametrize(
    "statistic", [stats.iqm_difference, stats.probability_of_improvement, stats.permutation_test, stats.seeds_needed]
)
def test_the_same_scores_always_give_the_same(statistic):
    assert statistic(TASKS, OTHER) == statistic(TASKS, OTHER)
