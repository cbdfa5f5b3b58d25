"""MuJoCo Playground (Zakka et al. 2025, arXiv:2502.08844): the DeepMind Control Suite, and robots, on MJX."""

import functools
import subprocess
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from mujoco_playground import registry

from rlref.envs.suites.base import State, Step, SuiteEnv, box, unbounded
from rlref.envs.suites.drawing import MuJoCoPictures


def names() -> list[str]:
    return list(registry.ALL_ENVS)


class PlaygroundEnv(SuiteEnv):
    """A robot; of observations in parts, the agent's is "state".

    The suite ends an episode where the simulation has become NaN: its reward is 0 then, and its observation.
    """

    def __init__(self, name: str) -> None:
        config = registry.get_default_config(name)
        try:
            self.env = registry.load(name, config, {"impl": "jax"})
        except subprocess.CalledProcessError as error:
            raise OSError("robots' models, MuJoCo Menagerie, are downloaded by git once, and that failed") from error
        self.limit = config.episode_length // config.get("action_repeat", 1)
        state = jax.eval_shape(self.env.reset, jax.random.key(0))
        self.observations = unbounded(own_part(state.obs).shape)
        self.actions = box(-1, 1, (self.env.action_size,))
        self.metrics = tuple(sorted(state.metrics))

    def first(self, key: jax.Array) -> tuple[Any, Any]:
        state = self.env.reset(key)
        return own_part(state.obs), state

    def next(self, key: jax.Array, inner: Any, action: jax.Array) -> Step:
        state = self.env.step(inner, action)
        obs, reward, info = jax.tree.map(jnp.nan_to_num, (own_part(state.obs), state.reward, state.metrics))
        return Step(obs, state, reward, state.done > 0, info=info)

    def render(self, state: State) -> np.ndarray:
        return self.drawn(state.inner.data.qpos, state.inner.data.qvel)

    @functools.cached_property
    def drawn(self) -> MuJoCoPictures:
        return MuJoCoPictures(self.env.mj_model)


def own_part(obs: Any) -> Any:
    """What the agent is shown."""
    return obs["state"] if isinstance(obs, dict) else obs


make = PlaygroundEnv
