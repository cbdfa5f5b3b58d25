import numpy as np
import pytest

from rlref import stats


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
