"""pgx's games for one player (Koyamada et al. 2023, arXiv:2303.17503): its MinAtar, and 2048."""

from typing import Any

import jax
import numpy as np
import pgx

from rlref.envs.spaces import Masked
from rlref.envs.suites.base import State, Step, SuiteEnv, box, discrete
from rlref.envs.suites.drawing import planes


def names() -> list[str]:
    """Those for one player."""
    return [name for name in pgx.available_envs() if name == "2048" or name.startswith("minatar-")]


def why_not(name: str) -> str:
    return "it is a game for several players" if name in pgx.available_envs() else ""


class PgxEnv(SuiteEnv):
    """A game without a time limit. A move that 2048's mask forbids costs 1 and ends the game, as pgx has it."""

    limit = None

    def __init__(self, name: str) -> None:
        self.env = pgx.make(name)
        self.observations = box(0, 1, self.env.observation_shape, bool)
        self.actions = discrete(self.env.num_actions)
        if not name.startswith("minatar-"):  # there all are allowed always
            self.observations = Masked(self.observations, self.env.num_actions)

    def first(self, key: jax.Array) -> tuple[Any, Any]:
        state = self.env.init(key)
        return self.seen(state), state

    def next(self, key: jax.Array, inner: Any, action: jax.Array) -> Step:
        state = self.env.step(inner, action, key)
        return Step(self.seen(state), state, state.rewards[0], state.terminated, state.truncated)

    def seen(self, state: Any) -> Any:
        if not isinstance(self.observations, Masked):
            return state.observation
        return {"observation": state.observation, "action_mask": state.legal_action_mask}

    def render(self, state: State) -> np.ndarray:
        return planes(state.inner.observation)


make = PgxEnv
