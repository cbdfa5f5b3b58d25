"""Craftax (Matthews et al. 2024, arXiv:2402.16801)."""

import functools
from typing import Any

import jax
import numpy as np
from craftax.craftax_env import make_craftax_env_from_name

from rlref.envs.suites.base import OUT_OF_REACH, State, Step, SuiteEnv, box, discrete


def names() -> list[str]:
    return [f"Craftax-{kind}-v1" for kind in ("Symbolic", "Pixels", "Classic-Symbolic", "Classic-Pixels")]


class CraftaxEnv(SuiteEnv):
    """A world under Craftax's own limit, counted here: there it is part of `done`."""

    def __init__(self, name: str) -> None:
        self.env = make_craftax_env_from_name(name, auto_reset=False)
        own = self.env.default_params
        self.limit, self.own = own.max_timesteps, own.replace(max_timesteps=OUT_OF_REACH)
        space = self.env.observation_space(self.own)
        self.observations = box(space.low, space.high, space.shape, space.dtype)
        self.actions = discrete(self.env.action_space(self.own).n)

    def first(self, key: jax.Array) -> tuple[Any, Any]:
        return self.env.reset_env(key, self.own)

    def next(self, key: jax.Array, inner: Any, action: jax.Array) -> Step:
        obs, state, reward, done, _ = self.env.step_env(key, inner, action, self.own)
        return Step(obs, state, reward, done)

    def render(self, state: State) -> np.ndarray:
        return np.asarray(self.pixels.get_obs(state.inner) * 255, np.uint8)

    @functools.cached_property
    def pixels(self) -> Any:
        """The same world, which shows itself in pixels."""
        return make_craftax_env_from_name(self.id.partition(":")[2].replace("Symbolic", "Pixels"), auto_reset=False)


make = CraftaxEnv
