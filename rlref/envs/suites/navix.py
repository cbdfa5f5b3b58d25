"""navix: MiniGrid in JAX (Pignatelli et al. 2024, arXiv:2407.19396)."""

from typing import Any

import jax
import jax.numpy as jnp
import navix
import numpy as np
from navix import observations

from rlref.envs.suites.base import OUT_OF_REACH, State, Step, SuiteEnv, box, discrete

TERMINATION = 2  # navix's step_type where the task ended; 1 is its time limit


def names() -> list[str]:
    return list(navix.registry())


class NavixEnv(SuiteEnv):
    """A grid world under navix's own limit, counted here: its own `step` resets one step late."""

    def __init__(self, name: str) -> None:
        self.limit = navix.make(name).max_steps
        self.env = navix.make(name, max_steps=OUT_OF_REACH)
        # Bytes that are symbols, up to 10 where its own space says 8: agents would divide bytes, as of images, by 255.
        self.observations = box(0, 255, self.env.observation_space.shape)
        self.actions = discrete(len(self.env.action_set))

    def first(self, key: jax.Array) -> tuple[Any, Any]:
        timestep = self.env.reset(key)
        return timestep.observation.astype(jnp.float32), timestep

    def next(self, key: jax.Array, inner: Any, action: jax.Array) -> Step:
        timestep = self.env._step(inner, action)
        obs = timestep.observation.astype(jnp.float32)
        return Step(obs, timestep, timestep.reward, timestep.step_type == TERMINATION)

    def render(self, state: State) -> np.ndarray:
        return np.asarray(observations.rgb(state.inner.state))


make = NavixEnv
