import numpy as np
import pytest

from rlref.search import importance

RNG = np.random.default_rng(0)
K = 2000
PLACES = {
    "line": RNG.random(K),
    "parabola": RNG.random(K),
    "choice": RNG.integers(0, 3, K),
    "nothing": RNG.random(K),
}
# Variances: of 2 z, z uniform in [-1, 1], 4/3; of 2 P2(z), 4/5; of 0, 1.5, 3 each as often, 3/2; of the seeds' luck, 1.
MEANS = 2 * (2 * PLACES["line"] - 1) + 3 * (2 * PLACES["parabola"] - 1) ** 2 + 1.5 * PLACES["choice"]
SCORES = MEANS[:, None] + RNG.normal(0, 2, (K, 4))
TOTAL = 4 / 3 + 4 / 5 + 3 / 2 + 1
TRUE = {"line": 4 / 3 / TOTAL, "parabola": 4 / 5 / TOTAL, "choice": 3 / 2 / TOTAL, "nothing": 0.0}


@pytest.fixture(scope="module")
def found():
    return importance.regression(SCORES, PLACES)


@pytest.mark.parametrize("name", TRUE)
def test_share_is_the_variance_that_was_planted(found, name):
    one = found.importances[name]
    assert one.share == pytest.approx(TRUE[name], abs=0.03)
    assert one.low <= TRUE[name] <= one.high
    assert (one.p < 1e-6) == (name != "nothing")


def test_rest_is_the_seeds_luck(found):
    assert found.luck == pytest.approx(1 / TOTAL, abs=0.03)
    assert found.explained + found.luck == pytest.approx(1, abs=0.05)


def test_curve_is_what_was_planted(found):
    z = 2 * importance.PLACES - 1
    np.testing.assert_allclose(found.curves["line"], 2 * z + 1 + 1.5, atol=0.3)
    np.testing.assert_allclose(found.curves["parabola"], 3 * z**2 + 1.5, atol=0.3)
    assert "choice" not in found.curves


def test_a_setting_that_does_nothing_is_shown_in_one_of_twenty():
    rng, shown = np.random.default_rng(1), 0
    for _ in range(100):
        one = importance.regression(rng.normal(size=(40, 2)), {"x": rng.random(40)})
        shown += one.importances["x"].p < 0.05
    assert 1 <= shown <= 12  # 5 % of 100: outside in .1 % of such tests


def test_interval_covers_in_most_samples():
    rng, covered, widths = np.random.default_rng(2), 0, []
    for _ in range(40):
        x = rng.random(150)
        y = (2 * x - 1) * np.sqrt(3) + rng.normal(size=150)  # half of the variance
        one = importance.regression(y[:, None], {"x": x, "other": rng.random(150)}).importances["x"]
        covered += one.low <= 0.5 <= one.high
        widths.append(one.high - one.low)
    assert covered >= 33
    # No wider than it takes: a share of R^2 = 0.5 of 150 has a standard deviation of some 2 sqrt(.5) .5 / sqrt(150).
    assert 0.15 < np.mean(widths) < 0.35


def test_too_few_settings_say_nothing():
    x = np.random.default_rng(0).random(12)
    assert importance.regression(x[:, None], {"x": x}) is None
    assert importance.regression(np.ones((100, 2)), {"x": np.random.default_rng(0).random(100)}) is None


def test_one_seed_tells_nothing_of_luck():
    assert np.isnan(importance.seed_variance_share(np.arange(5.0)[:, None]))


def test_ped_anova_finds_what_the_best_share():
    shares = importance.ped_anova(MEANS[:300], {name: x[:300] for name, x in PLACES.items()}, 0.1)
    assert sum(shares.values()) == pytest.approx(1)
    assert min(shares, key=shares.get) == "nothing"


def test_ped_anova_says_nothing_where_all_score_alike():
    assert importance.ped_anova(np.full(300, -200.0), {name: x[:300] for name, x in PLACES.items()}, 0.1) is None
