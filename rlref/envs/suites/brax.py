"""brax's continuous control (Freeman et al. 2021, arXiv:2106.13281)."""

import functools
from collections.abc import Sequence
from typing import Any

import brax.envs
import jax
import numpy as np
from brax.io import html

from rlref.envs.suites.base import State, Step, SuiteEnv, box, unbounded
from rlref.envs.suites.drawing import MuJoCoPictures


def names() -> list[str]:
    return [name for name in brax.envs._envs if name != "fast"]  # that one is of brax's own tests


class BraxEnv(SuiteEnv):
    """A robot without brax's wrappers: these lose the final observation, and return to one start for ever."""

    limit = 1000  # as brax's own training has it

    def __init__(self, name: str) -> None:
        self.env = brax.envs.get_environment(name)
        self.observations = unbounded((self.env.observation_size,))
        self.actions = box(-1, 1, (self.env.action_size,))
        self.metrics = tuple(sorted(jax.eval_shape(self.env.reset, jax.random.key(0)).metrics))

    def first(self, key: jax.Array) -> tuple[Any, Any]:
        state = self.env.reset(key)
        return state.obs, state

    def next(self, key: jax.Array, inner: Any, action: jax.Array) -> Step:
        state = self.env.step(inner, action)
        return Step(state.obs, state, state.reward, state.done > 0, info=state.metrics)

    def html(self, states: Sequence[State]) -> str:
        """A page that shows an episode from all sides; it takes three.js from the web."""
        return html.render(self.env.sys, [state.inner.pipeline_state for state in states])

    def render(self, state: State) -> np.ndarray:
        return self.drawn(state.inner.pipeline_state.q, state.inner.pipeline_state.qd)

    @functools.cached_property
    def drawn(self) -> MuJoCoPictures:
        return MuJoCoPictures(self.env.sys.mj_model)


make = BraxEnv
