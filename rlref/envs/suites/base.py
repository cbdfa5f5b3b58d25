"""What all suites share: gymnax's interface, a clock, a time limit, endings that are right, resets, spaces.

A suite is a file beside this one with a class that has `first` and `next`; README.md shows one of 15 lines. This class
keeps the clock, truncates at the limit, resets what has ended, and hands on what the last step led to: a time limit is
no termination (Pardo et al. 2018, arXiv:1712.00378).
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax
import jax
import jax.numpy as jnp
import numpy as np
from gymnax.environments import environment, spaces

from rlref.envs.spaces import Masked
from rlref.envs.totals import Totals

OUT_OF_REACH = 2**31 - 1  # for a suite's own limit, where the clock here keeps it
RESET_AT_ONCE = 128  # one in so many environments is reset in one go; more that have ended wait for the next go


class Step(NamedTuple):
    """What a suite's `next` gives: where one step of one environment leads, before any reset."""

    obs: Any
    inner: Any
    """the suite's own state"""
    reward: Any
    terminated: Any
    """whether the task ended there, so that no reward can follow"""
    truncated: Any = False
    """whether the suite cut the episode by itself; `limit` need not be in it"""
    info: Mapping[str, Any] = {}
    """scalars by name, those in `metrics`"""


@flax.struct.dataclass
class Params:
    """Parameters of an adapted environment."""

    max_steps_in_episode: int | None
    """steps after which an episode is truncated; None: it is not"""


@flax.struct.dataclass
class State:
    """An adapted environment's state."""

    time: jax.Array
    """int32: steps of the episode so far"""
    truncated: jax.Array
    """bool: whether the suite cut the episode at this step"""
    inner: Any
    """the suite's own state"""
    totals: Totals | None
    """of the scalars in `metrics`, if there are any; these go on over resets"""


class SuiteEnv(environment.Environment[State, Params]):
    """One environment of another suite, with gymnax 1.0's interface.

    A suite sets `id`, `limit` (None where episodes are not cut), `observations` and `actions` (spaces), and defines
    `first` and `next`; `metrics` names the scalars of a step's info that training reports, and `render(state)`, where
    there is one, gives a picture `[height, width, 3]` uint8.
    """

    id: str
    limit: int | None
    observations: Any
    actions: Any
    metrics: tuple[str, ...] = ()

    def first(self, key: jax.Array) -> tuple[Any, Any]:
        """A new episode: its first observation, and the suite's own state."""
        raise NotImplementedError

    def next(self, key: jax.Array, inner: Any, action: jax.Array) -> Step:
        """One step of the suite's own state, without a reset."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        return self.id

    @property
    def default_params(self) -> Params:
        return Params(self.limit)

    def observation_space(self, params: Params | None = None) -> Any:
        return self.observations

    def action_space(self, params: Params | None = None) -> Any:
        return self.actions

    def reset_env(self, key: jax.Array, params: Params) -> tuple[jax.Array, State]:
        return self.entered(*self.begun(key, params))

    def begun(self, key: jax.Array, params: Params) -> tuple[jax.Array, tuple[Any, Any, Any]]:
        """A new episode's first observation, and its state but for `totals`, in their order."""
        obs, inner = self.first(key)
        return self.shown(obs), (jnp.int32(0), jnp.bool(False), inner)

    def entered(self, obs: jax.Array, begun: tuple[Any, Any, Any]) -> tuple[jax.Array, State]:
        """What `reset` gives, from what `begun` does."""
        return obs, State(*begun, Totals.of(self.metrics) if self.metrics else None)

    def step_env(self, key: jax.Array, state: State, action: Any, params: Params) -> Any:
        after = self.next(key, state.inner, action)
        truncated = jnp.asarray(after.truncated, bool).reshape(())
        inner = like(after.inner, state.inner)
        reward = jnp.asarray(after.reward, jnp.float32).reshape(())
        terminated = jnp.asarray(after.terminated, bool).reshape(())
        info = {name: jnp.asarray(after.info[name], jnp.float32).reshape(()) for name in self.metrics}
        return self.shown(after.obs), State(state.time + 1, truncated, inner, state.totals), reward, terminated, info

    def is_truncated(self, state: State, params: Params) -> jax.Array:
        limit = params.max_steps_in_episode
        return state.truncated if limit is None else state.truncated | (state.time >= limit)

    def step(self, key: jax.Array, state: State, action: Any, params: Params | None = None) -> Any:
        """As gymnax's, but only what has ended is reset: a reset can cost more than many steps."""
        return self.step_with(self._renewed, key, state, action, params)

    def step_with(
        self, renewed: Callable[..., Any], key: jax.Array, state: State, action: Any, params: Params | None
    ) -> Any:
        """`renewed(ended, key, params, old)` is what `begun` gives where the episode has ended, else `old`."""
        params = self.default_params if params is None else params
        key_step, key_reset = jax.random.split(key)
        obs, state, reward, terminated, info = self.step_env(key_step, state, action, params)
        truncated = self.is_truncated(state, params)
        ended = terminated | truncated
        totals = state.totals and state.totals.after(info, ended)
        info = info | {"final_observation": obs}
        gone_on = obs, (state.time, state.truncated, state.inner)
        obs, (time, cut, inner) = renewed(ended, key_reset, params, gone_on)
        return obs, State(time, cut, inner, totals), reward, terminated, truncated, info

    @functools.cached_property
    def _renewed(self) -> Callable[..., Any]:
        return where_ended(self.begun)

    def shown(self, obs: Any) -> jax.Array:
        """An observation in the shape and dtype of `observations`."""
        if isinstance(self.observations, Masked):
            return self.observations.row(obs["observation"], obs["action_mask"])
        return jnp.asarray(obs, self.observations.dtype).reshape(self.observations.shape)


def where_ended(reset: Callable[[jax.Array, Any], Any]) -> Callable[..., Any]:
    """A function (ended, key, params, old) -> `reset(key, params)` if it has ended, else `old`.

    Under `vmap` those that have ended are picked out and reset a few at a time, those of all seeds together, where a
    plain `select` resets all of them at each step. The numbers are the same.
    """

    @jax.custom_batching.custom_vmap
    def one(ended: jax.Array, key: jax.Array, params: Any, old: Any) -> Any:
        return jax.lax.cond(ended, lambda: like(reset(key, params), old), lambda: old)

    @jax.custom_batching.custom_vmap
    def many(ended: jax.Array, key: jax.Array, params: Any, old: Any) -> Any:
        number = len(ended)
        at_once = -(-number // RESET_AT_ONCE)

        def some(carry: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
            ended, old = carry
            index = jnp.nonzero(ended, size=at_once, fill_value=number)[0]  # beyond the last: read there, not written
            keys, own = jax.tree.map(lambda x: x.at[index].get(mode="clip"), (key, params))
            fresh = jax.vmap(reset)(keys, own)
            fresh = like(fresh, old)
            old = jax.tree.map(lambda x, y: x.at[index].set(y, mode="drop"), old, fresh)
            return ended.at[index].set(False, mode="drop"), old

        def few() -> Any:
            return jax.lax.while_loop(lambda carry: carry[0].any(), some, (ended, old))[1]

        def all_at_once() -> Any:  # as where all meet their time limit in the same step
            return jax.vmap(select)(ended, jax.vmap(reset)(key, params), old)

        return jax.lax.cond(4 * ended.sum() > number, all_at_once, few)

    @one.def_vmap
    def many_of_one(size: int, batched: Any, *arguments: Any) -> Any:
        result = many(*_batched(size, batched, arguments))
        return result, jax.tree.map(lambda _: True, result)

    @many.def_vmap
    def more_of_many(size: int, batched: Any, *arguments: Any) -> Any:
        arguments = _batched(size, batched, arguments)
        number = arguments[0].shape[1]
        flat = jax.tree.map(lambda x: x.reshape(size * number, *x.shape[2:]), arguments)
        result = jax.tree.map(lambda x: x.reshape(size, number, *x.shape[1:]), many(*flat))
        return result, jax.tree.map(lambda _: True, result)

    return one


def select(ended: jax.Array, new: Any, old: Any) -> Any:
    """`new` of one environment if it has ended, in the dtypes of `old`; else `old`."""
    return jax.tree.map(lambda x, y: jnp.where(ended, x, y), like(new, old), old)


def _batched(size: int, batched: Any, arguments: Any) -> Any:
    """The arguments with a first axis of `size` where they lack it."""
    return jax.tree.map(
        lambda has, x: x if has else jnp.broadcast_to(x, (size, *jnp.shape(x))), tuple(batched), arguments
    )


def like(tree: Any, other: Any) -> Any:
    """A pytree whose leaves have the dtypes of another's: some suites' steps change them."""

    def cast(x: Any, y: Any) -> Any:
        x = jnp.asarray(x)
        return x if x.dtype == jnp.asarray(y).dtype else x.astype(jnp.asarray(y).dtype)

    return jax.tree.map(cast, tree, other)


class Flat:
    """Observations in parts as one row `[size]` of float32; `parts` has each part's name and shape, in their order.

    `action_mask` is no part of it.
    """

    def __init__(self, example: Any) -> None:
        self.parts = {name: x.shape for name, x in self.named(example).items() if name != "action_mask"}
        self.size = sum(math.prod(shape) for shape in self.parts.values())

    @staticmethod
    def named(obs: Any) -> dict[str, Any]:
        leaves = jax.tree_util.tree_leaves_with_path(obs)
        return {jax.tree_util.keystr(path, simple=True, separator="/"): x for path, x in leaves}

    def __call__(self, obs: Any) -> jax.Array:
        parts = self.named(obs)
        return jnp.concatenate([jnp.ravel(parts[name]).astype(jnp.float32) for name in self.parts])


def box(low: Any, high: Any, shape: tuple[int, ...], dtype: Any = jnp.float32) -> spaces.Box:
    """gymnax's Box; bounds may be arrays of its shape."""
    return spaces.Box(np.broadcast_to(low, shape), np.broadcast_to(high, shape), shape, dtype)


def unbounded(shape: tuple[int, ...]) -> spaces.Box:
    """A Box of any floats."""
    return box(-np.inf, np.inf, shape)


def discrete(n: int) -> spaces.Discrete:
    return spaces.Discrete(int(n))
