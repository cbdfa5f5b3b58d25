"""Jumanji's puzzles and games (Bonnet et al. 2023, arXiv:2306.09884)."""

import math
from typing import Any

import jax
import jumanji
import numpy as np
from jumanji import specs

from rlref.envs.spaces import Masked, MultiDiscrete
from rlref.envs.suites.base import OUT_OF_REACH, Flat, State, Step, SuiteEnv, discrete, unbounded
from rlref.errors import UsageError

FEW = 1_000  # combinations of choices that are one Discrete action


def names() -> list[str]:
    return sorted(jumanji.registered_environments())


class JumanjiEnv(SuiteEnv):
    """A game for one player; of observations in parts all are shown, in one row, but for the mask of allowed actions.

    What its actions combine is one Discrete action here, of all combinations, where the mask is of these, or there is
    none and they are few; else MultiDiscrete. Time limits are counted here: most of its environments call them
    terminations.
    """

    def __init__(self, name: str) -> None:
        self.env = jumanji.make(name)
        self.limit = getattr(self.env, "time_limit", None)
        if self.limit is not None:
            self.env.time_limit = OUT_OF_REACH
        spec = self.env.action_spec
        if not isinstance(spec, specs.DiscreteArray | specs.MultiDiscreteArray):
            raise UsageError(f"jumanji:{name} takes actions that are {type(spec).__name__}: not supported")
        _, timestep = jax.eval_shape(self.env.reset, jax.random.key(0))
        if timestep.reward.shape:
            raise UsageError(f"jumanji:{name} is for several agents, with a reward each: not supported")
        self.choices = tuple(int(x) for x in np.ravel(spec.num_values))
        self.single = isinstance(spec, specs.DiscreteArray)
        mask = getattr(timestep.observation, "action_mask", None)
        combined = math.prod(self.choices) <= FEW if mask is None else mask.shape == self.choices
        self.actions = discrete(math.prod(self.choices)) if combined else MultiDiscrete(self.choices)
        self.flat = Flat(timestep.observation)
        self.observations = unbounded((self.flat.size,))
        if mask is not None:
            self.observations = Masked(self.observations, math.prod(mask.shape))

    def seen(self, obs: Any) -> Any:
        if not isinstance(self.observations, Masked):
            return self.flat(obs)
        return {"observation": self.flat(obs), "action_mask": obs.action_mask}

    def first(self, key: jax.Array) -> tuple[Any, Any]:
        state, timestep = self.env.reset(key)
        return self.seen(timestep.observation), state

    def next(self, key: jax.Array, inner: Any, action: jax.Array) -> Step:
        if not self.single and not isinstance(self.actions, MultiDiscrete):
            action = jax.numpy.stack(jax.numpy.unravel_index(action, self.choices))
        state, timestep = self.env.step(inner, action)
        terminated = timestep.last() & (timestep.discount == 0)
        return Step(self.seen(timestep.observation), state, timestep.reward, terminated, timestep.last() & ~terminated)

    def render(self, state: State) -> np.ndarray:
        viewer = self.env._viewer
        viewer._display = viewer._display_rgb_array
        return viewer.render(state.inner)


make = JumanjiEnv
