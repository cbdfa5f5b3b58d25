import numpy as np
import pytest

from rlref.envs.ids import make_env
from rlref.errors import UsageError
from rlref.reports import reference
from rlref.runs.run import Run
from rlref.search import baselines, variants


@pytest.fixture
def planted(monkeypatch):
    """In place of training and of random play: each agent's scores lie about a number."""

    def plant(**means):
        def runs_of(module, config, given, *, num_seeds, seed, **_):
            ((name, changes),) = given.items()
            assert changes == {}
            scores = means[name] + np.random.default_rng(len(name)).normal(size=num_seeds)
            metrics = {"env_steps": np.full((num_seeds, 1), 5e4), "return_mean": scores[:, None]}
            return {name: Run(name, {"env_id": config.env_id}, list(range(num_seeds)), metrics, {"status": "finished"})}

        monkeypatch.setattr(variants, "train", runs_of)
        monkeypatch.setattr(
            reference, "random_returns", lambda _, __, n, seeds: means["random"] + np.tile(np.array(seeds)[:, None], n)
        )

    return plant


def test_all_in_one_table(planted):
    planted(random=20, cem=100, dqn=300, ppo=23.5)
    found = baselines.baselines("CartPole-v1", total_timesteps=200_000)
    title, rows = baselines.table(found)
    assert [row["policy"] for row in rows] == ["random", "cem", "dqn", "ppo"]
    assert [row["than random"] for row in rows] == ["", "better", "better", "not shown"]
    assert [row["steps"] for row in rows] == ["0", "50,000", "50,000", "50,000"]
    assert "CartPole-v1, 8 seeds" in title
    assert found.verdict.startswith("dqn reaches most: IQM 299.6")
    assert found.verdict.endswith("better than a random policy: dqn, cem")


def test_one_seed_has_no_interval(planted):
    planted(random=20, cem=100, dqn=300, ppo=23.5)
    found = baselines.baselines("CartPole-v1", total_timesteps=200_000, num_seeds=1)
    assert baselines.table(found).rows[1]["IQM [95 % interval]"].endswith(" [undefined]")
    assert "nan" not in str(baselines.table(found))


def test_nothing_better_than_random(planted):
    planted(random=20, cem=20, dqn=20, ppo=10)
    found = baselines.baselines("CartPole-v1", total_timesteps=200_000)
    assert "rlref inspect CartPole-v1" in found.verdict


def test_an_agent_that_does_not_fit_is_named(planted):
    planted(random=-1200, cem=-200, ppo=-900)
    found = baselines.baselines("Pendulum-v1", total_timesteps=50_000_000)
    assert list(found.runs) == ["random", "cem", "ppo"]
    assert "Discrete" in found.unfit["dqn"]


def test_no_budget_is_refused(planted):
    with pytest.raises(UsageError, match="total_timesteps is 0"):
        baselines.baselines("CartPole-v1", total_timesteps=0)


def test_what_comes_after_the_budget_does_not_count():
    steps = np.array([[100.0, 200, 300], [100, 250, 400], [500, 600, 700]])
    run = Run("cem", {}, [0, 1, 2], {"env_steps": steps, "mean_policy_return": steps / 10}, {}, num_updates=3)
    cut = baselines.cut_to_budget(run, 300)
    assert cut.scores.tolist() == [30, 25, 50]
    assert np.isnan(cut.metrics["env_steps"]).tolist() == [[False] * 3, [False, False, True], [False, True, True]]
    assert run.scores.tolist() == [40 - 10, 40, 70]


def test_random_policy_is_played():
    env, params = make_env("CartPole-v1")
    run = baselines.random_run("CartPole-v1", env, params, range(3, 6), 1000)
    assert run.seeds == [3, 4, 5]
    assert run.scores.shape == (3,)
    # A random policy balances the pole for 22 steps, give or take 12: a mean of 100 is within 5 of that.
    np.testing.assert_allclose(run.scores, 22, atol=5)
    assert len(set(run.scores.tolist())) == 3
    np.testing.assert_array_equal(
        run.scores, baselines.random_run("CartPole-v1", env, params, range(3, 6), 1000).scores
    )
