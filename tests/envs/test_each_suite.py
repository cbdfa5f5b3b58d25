"""Each suite's own environment, driven beside the adapted one over resets. Each takes its package."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import SUITES_INSTALLED

from rlref.envs import make_env
from rlref.envs.suites import SUITES, base


def needed(module):
    """A suite's module; where it is not installed, and need not be, the test is skipped."""
    if module.partition(".")[0] in SUITES_INSTALLED:
        return importlib.import_module(module)
    return pytest.importorskip(module)


def brax(name, limit):
    envs = needed("brax.envs")
    env = envs.create(name, episode_length=limit, auto_reset=False)

    def step(key, state, action):
        state = env.step(state, action)
        truncated = state.info["truncation"] > 0
        return state, state.obs, state.reward, (state.done > 0) & ~truncated, truncated

    return lambda key: (lambda state: (state, state.obs))(env.reset(key)), step


def playground(name, limit):
    registry = needed("mujoco_playground").registry
    env = registry.load(name, config_overrides={"impl": "jax"})

    def step(key, state, action):
        state = env.step(state, action)
        return state, state.obs, state.reward, state.done > 0, None

    return lambda key: (lambda state: (state, state.obs))(env.reset(key)), step


def craftax(name, limit):
    module = needed("craftax.craftax_env")
    env = module.make_craftax_env_from_name(name, auto_reset=False)
    params = env.default_params.replace(max_timesteps=limit)

    def reset(key):
        obs, state = env.reset_env(key, params)
        return state, obs

    def step(key, state, action):
        obs, state, reward, done, _ = env.step_env(key, state, action, params)
        at_limit = state.timestep >= limit
        return state, obs, reward, done & ~at_limit, None

    return reset, step


def navix(name, limit):
    env = needed("navix").make(name, max_steps=limit)

    def step(key, state, action):
        state = env._step(state, action)
        return state, state.observation, state.reward, state.step_type == 2, state.step_type == 1

    return lambda key: (lambda state: (state, state.observation))(env.reset(key)), step


def xminigrid(name, limit):
    env, params = needed("xminigrid").make(name)
    assert params.max_steps == limit

    def step(key, state, action):
        state = env.step(params, state, action)
        return state, state.observation, state.reward, state.discount == 0, state.last() & (state.discount != 0)

    return lambda key: (lambda state: (state, state.observation))(env.reset(params, key)), step


def jumanji(name, limit):
    env = needed("jumanji").make(name)
    assert env.time_limit == limit

    def reset(key):
        state, timestep = env.reset(key)
        return state, seen(timestep.observation)

    def seen(obs):
        return {name: x for name, x in obs._asdict().items() if name != "action_mask"}, obs.action_mask

    def step(key, state, action):
        if np.size(env.action_spec.num_values) > 1 and np.ndim(action) == 0:  # of all combinations
            action = jnp.stack(jnp.unravel_index(action, tuple(np.ravel(env.action_spec.num_values))))
        state, timestep = env.step(state, action)
        at_limit = state.step_count >= limit  # which Jumanji calls a termination
        ends = timestep.last() & ~at_limit, timestep.last() & at_limit
        return state, seen(timestep.observation), timestep.reward, *ends

    return reset, step


def pgx(name, limit):
    env = needed("pgx").make(name)

    def seen(state):
        return state.observation if name.startswith("minatar-") else (state.observation, state.legal_action_mask)

    def step(key, state, action):
        state = env.step(state, action, key)
        return state, seen(state), state.rewards[0], state.terminated, None

    return lambda key: (lambda state: (state, seen(state)))(env.init(key)), step


CASES = [  # suite, name, limit, steps, whether random actions terminate an episode, whether they meet the limit
    (brax, "inverted_pendulum", 4, 40, True, True),
    (playground, "CartpoleBalance", 10, 25, False, True),
    (craftax, "Craftax-Classic-Symbolic-v1", 150, 400, True, True),
    (navix, "Navix-Empty-5x5-v0", 30, 400, True, True),
    (xminigrid, "MiniGrid-Empty-5x5", 100, 400, True, True),
    (jumanji, "Maze-v0", 100, 250, False, True),
    (jumanji, "Snake-v1", 4000, 150, True, False),
    (jumanji, "Tetris-v0", 400, 100, True, False),
    (jumanji, "Cleaner-v0", 100, 30, True, False),
    (pgx, "minatar-breakout", 8, 150, True, True),
    (pgx, "2048", 8, 60, True, True),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0].__name__}:{case[1]}")
def test_a_suite_beside_itself_over_resets(case):
    suite, name, limit, steps, terminates, truncates = case
    raw_reset, raw_step = suite(name, limit)
    env, _ = make_env(f"{suite.__name__}:{name}")
    params = base.Params(limit)
    reset, step, raw_reset, raw_step = map(jax.jit, (env.reset, env.step, raw_reset, raw_step))

    def same(shown, raw):
        raw, mask = raw if isinstance(raw, tuple) else (raw, ())
        raw = env.flat(raw) if hasattr(env, "flat") else raw
        raw = np.append(raw, mask).reshape(shown.shape) if np.size(mask) else raw
        np.testing.assert_array_equal(shown, np.asarray(raw, shown.dtype))

    raw, raw_obs = raw_reset(jax.random.key(1))
    obs, state = reset(jax.random.key(1), params)
    same(obs, raw_obs)
    ends, starts, time = {"terminated": 0, "truncated": 0}, set(), 0
    for key in jax.random.split(jax.random.key(2), steps):
        key_act, key = jax.random.split(key)
        action = env.action_space(params).sample(key_act)
        obs, state, reward, terminated, truncated, info = step(key, state, action, params)
        key_step, key_reset = jax.random.split(key)
        raw, raw_obs, raw_reward, raw_terminated, raw_truncated = raw_step(key_step, raw, action)
        time += 1
        same(info["final_observation"], raw_obs)
        np.testing.assert_array_equal(reward, np.float32(raw_reward))
        assert bool(terminated) == bool(raw_terminated)
        assert bool(truncated) == (time == limit)
        if raw_truncated is not None and not terminated:
            assert bool(truncated) == bool(raw_truncated)
        if terminated or truncated:
            ends["terminated"] += bool(terminated)
            ends["truncated"] += bool(truncated)
            raw, raw_obs = raw_reset(key_reset)
            starts.add(np.asarray(obs).tobytes())
            time = 0
        same(obs, raw_obs)
    assert (ends["terminated"] > 0, ends["truncated"] > 0) == (terminates, truncates)
    if name not in ("Navix-Empty-5x5-v0", "MiniGrid-Empty-5x5", "Craftax-Classic-Symbolic-v1"):  # all begin alike
        assert len(starts) > 1


def test_every_suite_is_tried():
    assert {case[0].__name__ for case in CASES} == SUITES.keys() - {"gymnasium"}


@pytest.mark.parametrize("suite", SUITES)
def test_names_are_listed_once(suite):
    needed(SUITES[suite].package)
    names = importlib.import_module(f"rlref.envs.suites.{suite}").names()
    assert len(names) == len(set(names)) > 3
