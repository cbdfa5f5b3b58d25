"""XLand-MiniGrid, and its port of MiniGrid (Nikulin et al. 2023, arXiv:2312.12044)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xminigrid

from rlref.envs.suites.base import State, Step, SuiteEnv, box, discrete


def names() -> list[str]:
    return list(xminigrid.registered_environments())


class XMiniGridEnv(SuiteEnv):
    """A grid world under its own limit, of which its rewards depend: 1 less the share of the limit that was used."""

    def __init__(self, name: str) -> None:
        self.env, self.own = xminigrid.make(name)
        self.limit = self.own.max_steps
        # Bytes that are symbols: agents would divide them, as of images, by 255.
        self.observations = box(0, 255, self.env.observation_shape(self.own))
        self.actions = discrete(self.env.num_actions(self.own))

    def first(self, key: jax.Array) -> tuple[Any, Any]:
        timestep = self.env.reset(self.own, key)
        return timestep.observation.astype(jnp.float32), timestep

    def next(self, key: jax.Array, inner: Any, action: jax.Array) -> Step:
        timestep = self.env.step(self.own, inner, action)
        terminated = timestep.discount == 0
        obs = timestep.observation.astype(jnp.float32)
        return Step(obs, timestep, timestep.reward, terminated, timestep.last() & ~terminated)

    def render(self, state: State) -> np.ndarray:
        return self.env.render(self.own, state.inner)


make = XMiniGridEnv
