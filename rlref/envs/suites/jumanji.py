"""Jumanji's puzzles and games (Bonnet et al. 2023, arXiv:2306.09884)."""

from typing import Any

import jax
import jumanji
import numpy as np
from jumanji import specs

from rlref.envs.suites.base import OUT_OF_REACH, Flat, State, Step, SuiteEnv, box, discrete
from rlref.errors import UsageError


def names() -> list[str]:
    return sorted(jumanji.registered_environments())


class JumanjiEnv(SuiteEnv):
    """A game for one player; of observations in parts all are shown, in one row, action masks among them.

    What its actions combine (MultiDiscrete) is one Discrete action here.
    Time limits are counted here: most of its environments call them terminations.
    """

    def __init__(self, name: str) -> None:
        self.env = jumanji.make(name)
        self.limit = getattr(self.env, "time_limit", None)
        if self.limit is not None:
            self.env.time_limit = OUT_OF_REACH
        spec = self.env.action_spec
        if isinstance(spec, specs.DiscreteArray):
            self.choices: tuple[int, ...] = (int(spec.num_values),)
            self.single = True
        elif isinstance(spec, specs.MultiDiscreteArray):
            self.choices = tuple(int(x) for x in np.ravel(spec.num_values))
            self.single = False
        else:
            raise UsageError(f"jumanji:{name} takes actions that are {type(spec).__name__}: not supported")
        self.actions = discrete(int(np.prod(self.choices)))
        _, timestep = jax.eval_shape(self.env.reset, jax.random.key(0))
        if timestep.reward.shape:
            raise UsageError(f"jumanji:{name} is for several agents, with a reward each: not supported")
        self.flat = Flat(timestep.observation)
        self.observations = box(-np.inf, np.inf, (self.flat.size,))

    def first(self, key: jax.Array) -> tuple[Any, Any]:
        state, timestep = self.env.reset(key)
        return self.flat(timestep.observation), state

    def next(self, key: jax.Array, inner: Any, action: jax.Array) -> Step:
        chosen = action if self.single else jax.numpy.stack(jax.numpy.unravel_index(action, self.choices))
        state, timestep = self.env.step(inner, chosen)
        terminated = timestep.last() & (timestep.discount == 0)
        return Step(self.flat(timestep.observation), state, timestep.reward, terminated, timestep.last() & ~terminated)

    def render(self, state: State) -> np.ndarray:
        viewer = self.env._viewer
        viewer._display = viewer._display_rgb_array
        return viewer.render(state.inner)


make = JumanjiEnv
