"""Environments that show less at a time than their state, or more: what a memory is for, and what stands in for one."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnax.environments import spaces

from rlref.envs.episodes import without_pool
from rlref.envs.gymnax_envs import imported_gymnax
from rlref.envs.ids import name_of
from rlref.errors import UsageError


class Around:
    """An environment around another: what a subclass does not say is as it is in `inner`."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # not set yet, while this is copied
            raise AttributeError(name)
        return getattr(self.inner, name)

    def within(self, state: Any) -> Any:
        """The inner environment's state."""
        return state

    @property
    def render(self) -> Callable[[Any], Any]:
        """Only where `inner` can draw."""
        draw = self.inner.render
        return lambda state: draw(self.within(state))

    @property
    def html(self) -> Callable[[Any], str]:
        """As `render`."""
        write = self.inner.html
        return lambda states: write([self.within(state) for state in states])

    def without_pool(self) -> Any:
        """As `episodes.without_pool` has it."""
        other = copy.copy(self)
        other.inner = without_pool(self.inner)
        return other


class Parts(Around):
    """Some numbers of each observation, and no others: the rest has to be inferred from what was seen before."""

    def __init__(self, inner: Any, parts: Sequence[int]) -> None:
        """`parts`: which numbers of observations `[D]`."""
        super().__init__(inner)
        self.parts = np.array(parts)

    def observation_space(self, params: Any) -> spaces.Box:
        space = self.inner.observation_space(params)
        low, high = (jnp.broadcast_to(x, space.shape)[self.parts] for x in (space.low, space.high))
        return spaces.Box(low, high, self.parts.shape, space.dtype)

    def reset(self, key: jax.Array, params: Any = None) -> tuple[jax.Array, Any]:
        obs, state = self.inner.reset(key, params)
        return obs[self.parts], state

    def step(self, key: jax.Array, state: Any, action: Any, params: Any = None) -> Any:
        obs, state, *others, info = self.inner.step(key, state, action, params)
        info = info | {"final_observation": info["final_observation"][self.parts]}
        return obs[self.parts], state, *others, info

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        obs, *others = self.inner.step_env(key, state, action, params)
        return obs[self.parts], *others


class Stacked(Around):
    """The last observations of an episode in one row `[k * D]`, the oldest first; before its first, copies of that."""

    def __init__(self, inner: Any, count: int) -> None:
        super().__init__(inner)
        self.count = count
        self.id = f"stacked:{count}:{getattr(inner, 'id', name_of(inner))}"

    def within(self, state: Any) -> Any:
        return state[0]

    def observation_space(self, params: Any) -> spaces.Box:
        space = self.inner.observation_space(params)
        if getattr(space, "action_mask", 0) or not hasattr(space, "low"):
            raise UsageError(f"{self.id}: observations {space} cannot be stacked; those of a Box without a mask can")
        low, high = (jnp.tile(jnp.broadcast_to(x, space.shape).ravel(), self.count) for x in (space.low, space.high))
        return spaces.Box(low, high, low.shape, space.dtype)

    def reset(self, key: jax.Array, params: Any = None) -> tuple[jax.Array, Any]:
        obs, state = self.inner.reset(key, params)
        rows = jnp.tile(obs.ravel(), (self.count, 1))
        return rows.ravel(), (state, rows)

    def step(self, key: jax.Array, state: Any, action: Any, params: Any = None) -> Any:
        inner, rows = state
        obs, inner, reward, terminated, truncated, info = self.inner.step(key, inner, action, params)
        final = jnp.concatenate([rows[1:], info["final_observation"].ravel()[None]])
        # After an ending, `obs` is the first of another episode: nothing of the one before is left.
        rows = jnp.where(terminated | truncated, jnp.tile(obs.ravel(), (self.count, 1)), final)
        info = info | {"final_observation": final.ravel()}
        return rows.ravel(), (inner, rows), reward, terminated, truncated, info


def position_only_cartpole() -> tuple[Parts, Any]:
    """CartPole-v1 without its velocities, as in POPGym (Morad et al. 2023, arXiv:2303.01859), and its parameters."""
    env, params = imported_gymnax().make("CartPole-v1")
    return Parts(env, (0, 2)), params
