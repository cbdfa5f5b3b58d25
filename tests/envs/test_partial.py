"""Observations in parts, and several at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_envs

from rlref.envs import make_env
from rlref.envs.partial import Parts, Stacked
from rlref.errors import UsageError

CLOCK = toy_envs.Clock()
ENDINGS = {"terminated": {"terminate_at": 3}, "truncated": {"max_steps_in_episode": 3}}


def times(env, params, steps):
    """What is shown, and the final observations, of an episode after the other."""
    step = jax.jit(env.step)
    obs, state = env.reset(jax.random.key(0), params)
    shown, final, ended = [obs], [], []
    for _ in range(steps):
        obs, state, _, terminated, truncated, info = step(jax.random.key(1), state, jnp.int32(0), params)
        shown.append(obs)
        final.append(info["final_observation"])
        ended.append(bool(terminated | truncated))
    return np.array(shown), np.array(final), np.array(ended)


@pytest.mark.parametrize("ending", ENDINGS)
def test_parts_are_those_numbers_of_all_that_is_shown(ending):
    params = CLOCK.default_params.replace(**ENDINGS[ending])
    whole, part = times(CLOCK, params, 7), times(Parts(CLOCK, (1,)), params, 7)
    for x, y in zip(whole[:2], part[:2], strict=True):
        np.testing.assert_array_equal(x[:, 1:], y)
    assert Parts(CLOCK, (1,)).observation_space(params).shape == (1,)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_stack_begins_anew_with_each_episode(ending):
    params = CLOCK.default_params.replace(**ENDINGS[ending])
    shown, final, ended = times(Stacked(CLOCK, 3), params, 7)
    time = np.round(shown.reshape(-1, 3, 2)[..., 0] * 10).astype(int)
    # Clock counts 0 to 2, and what ends an episode would have shown 3.
    np.testing.assert_array_equal(time[:5], [[0, 0, 0], [0, 0, 1], [0, 1, 2], [0, 0, 0], [0, 0, 1]])
    np.testing.assert_array_equal(np.round(final.reshape(-1, 3, 2)[2, :, 0] * 10), [1, 2, 3])
    np.testing.assert_array_equal(ended[:6], [False, False, True, False, False, True])


def test_ids():
    env, params = make_env("PositionOnlyCartPole-v1")
    obs, state = env.reset(jax.random.key(0), params)
    np.testing.assert_array_equal(obs, [state.x, state.theta])
    env, params = make_env("stacked:4:PositionOnlyCartPole-v1")
    assert env.observation_space(params).shape == (8,)
    for wrong in ("stacked:CartPole-v1", "stacked:0:CartPole-v1", "stacked:4"):
        with pytest.raises(UsageError, match="says not how many, or of what: its last observations"):
            make_env(wrong)


def test_what_has_no_numbers_in_a_row_is_not_stacked():
    env = Stacked(toy_envs.Pair(), 2)
    with pytest.raises(UsageError, match=r"observations .* cannot be stacked"):
        env.observation_space(env.default_params)
