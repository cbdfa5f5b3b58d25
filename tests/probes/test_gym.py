"""The probes as gymnasium environments."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import probes
from probes import check, environments
from probes.ladder import LADDER
from probes.registration import gym_id
from rlref.errors import UsageError


@pytest.mark.parametrize("name", [name for name in LADDER if name != "truncation_pair"])
def test_gymnasium_accepts_the_environment(name):
    env = gymnasium.make(gym_id(name))
    check_env(env.unwrapped, skip_render_check=True)
    assert env.unwrapped.gamma == LADDER[name].gamma


def test_gymnasium_minds_one_thing_about_truncation_pair_which_is_its_purpose():
    with pytest.raises(AssertionError, match="Environment truncates after 1 step"):
        check_env(gymnasium.make("rlref/TruncationPair-v0").unwrapped, skip_render_check=True)


@pytest.mark.parametrize("name", ["discount", "truncation_loop", "delayed_credit", "reset_temptation", "will_to_live"])
def test_steps_are_those_of_the_tables(name):
    env = gymnasium.make(gym_id(name), variant=3).unwrapped
    params = LADDER[name].case(3).params
    rng = np.random.default_rng(0)
    _, info = env.reset(seed=0)
    for _ in range(200):
        at, action = info["state"], int(rng.integers(params.reward.shape[1]))
        obs, reward, terminated, truncated, info = env.step(action)
        cell = at, action
        assert abs(reward - params.reward[cell]) == pytest.approx(params.noise, abs=1e-6)
        assert (terminated, truncated) == (params.terminated[cell], params.truncated[cell])
        np.testing.assert_array_equal(obs, params.obs[params.next[cell]])
        if terminated or truncated:
            _, info = env.reset()
            if params.after[cell] >= 0:
                assert info["state"] == params.after[cell]


def test_a_time_limit_hands_out_the_final_observation():
    env = gymnasium.make("rlref/TruncationPair-v0")
    for seed in range(8):
        obs, _ = env.reset(seed=seed)
        final, _, terminated, truncated, _ = env.step(0)
        assert (terminated, truncated) == (obs[0] == 1, obs[0] == -1)
        assert final[0] == -obs[0]


def test_values_are_compared_with_the_truth():
    assert probes.check_values("discount", lambda obs: 0.5 if obs[0] == 0 else 1.0).ok
    wrong = probes.check_values("discount", lambda obs: 1.0)
    assert not wrong.ok
    assert wrong.cause == "gamma is missing"
    assert str(wrong) == "wrong: expected [0.5, 1.0], measured [1.0, 1.0]: that is what comes out if gamma is missing"


def test_action_values_are_compared_with_the_truth():
    case = LADDER["context_bandit"].case(4)
    q = {obs.tobytes(): row for obs, row in zip(case.params.obs, case.params.reward, strict=True)}
    assert probes.check_values("context_bandit", lambda obs: q[obs.tobytes()], variant=4).ok
    assert not probes.check_values("context_bandit", lambda obs: -q[obs.tobytes()], variant=4).ok


def test_a_wrong_action_value_is_named():
    """Of the probe whose rewards change sign, the values of the old sign are wrong and those of the new one right."""
    before = LADDER["phase_flip"].case(4).params.reward[0]
    assert probes.check_values("phase_flip", lambda obs: -before, variant=4).ok
    found = probes.check_values("phase_flip", lambda obs: before, variant=4)
    assert not found.ok
    assert found.cause == "old transitions stay in the buffer"


def test_policies_are_compared_with_the_truth():
    case = LADDER["context_bandit"].case(4)
    best = {obs.tobytes(): row.argmax() for obs, row in zip(case.params.obs, case.truth.policy, strict=True)}
    assert probes.check_policy("context_bandit", lambda obs: best[obs.tobytes()], variant=4).ok
    assert probes.check_policy("context_bandit", lambda obs: np.eye(2)[best[obs.tobytes()]], variant=4).ok
    wrong = probes.check_policy("context_bandit", lambda obs: [0.5, 0.5], variant=4)
    assert wrong.cause == "the policy does not learn, or ignores the observation"


def test_means_are_compared_after_clipping():
    case = LADDER["boundary"].case(0)
    slope = {obs.tobytes(): row for obs, row in zip(case.params.obs, case.params.slope, strict=True)}
    assert probes.check_policy("boundary", lambda obs: 5 * np.sign(slope[obs.tobytes()])).ok


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: probes.check_values("discont", lambda obs: 0.0), "Did you mean 'discount'"),
        (lambda: probes.check_values("soft_bandit_1", lambda obs: 0.0), "says nothing about values"),
        (lambda: probes.check_policy("discount", lambda obs: 0), "says nothing about the policy"),
        (lambda: probes.check_values("discount", lambda obs: [1.0, 2.0]), "V is a number, Q has 1"),
        (lambda: probes.check_policy("bandit", lambda obs: [1.0, 0.0, 0.0]), r"it must be \(2,\)"),
    ],
)
def test_bad_calls_are_one_line(call, message):
    with pytest.raises(UsageError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


def test_the_continuous_probe_pays_most_at_its_target():
    env = gymnasium.make("rlref/ContinuousTarget-v0").unwrapped
    _, info = env.reset(seed=0)
    params = env.case.params
    assert isinstance(params, environments.Targets)
    assert env.step(params.optimum[info["state"]])[1] == pytest.approx(1)
    assert check.LADDER is LADDER
