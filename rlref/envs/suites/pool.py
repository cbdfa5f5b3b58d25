"""Start states drawn once, of which a reset takes one: for environments whose resets cost more than many steps.

As Craftax's own wrapper for many environments at a time shares resets among them (Matthews et al. 2024,
arXiv:2402.16801), this trades starts for speed; here each environment keeps its own, so that seeds stay independent.
"""

from typing import Any

import jax
import jax.numpy as jnp

from rlref.envs.ids import name_of
from rlref.envs.partial import Around
from rlref.envs.suites.base import State, SuiteEnv, select
from rlref.errors import UsageError, in_a_line

STARTS = 256  # of a seed, over all of its environments
POOL_BYTES = 2**26  # that they may take


class Pooled(Around):
    """`inner` with `count` start states of its own: each `reset` draws them all; what ends begins at one of them again.

    Its state is the inner one, and the pool: observations and states `[count, ...]`. Where a suite keeps a random key
    in its state, each episode has another: what begins alike does not go on alike.
    """

    pooled = True

    def __init__(self, inner: Any, count: int) -> None:
        """Raises UsageError where `inner` is no environment of another suite within jax."""
        refuse(inner)
        if not isinstance(count, int) or count < 1:
            raise UsageError(f"a pool has a whole number of start states, from 1, not {count!r}")
        super().__init__(inner)
        self.count = count
        self.id = self.name = f"pool:{count}:{inner.id}"

    def reset(self, key: jax.Array, params: Any = None) -> tuple[jax.Array, tuple[State, Any]]:
        params = self.inner.default_params if params is None else params
        # One after the other: making one can take much more memory than it does itself.
        pool = jax.lax.map(lambda key: self.inner.begun(key, params), jax.random.split(key, self.count))
        obs, state = self.inner.entered(*jax.tree.map(lambda x: x[0], pool))
        return obs, (state, pool)

    def step(self, key: jax.Array, state: tuple[State, Any], action: Any, params: Any = None) -> Any:
        inner, pool = state

        def taken(ended: jax.Array, key: jax.Array, params: Any, old: Any) -> Any:
            index = jax.random.randint(key, (), 0, self.count)
            start = jax.tree.map(lambda x: x[index], pool)
            return select(ended, with_keys(start, jax.random.fold_in(key, 1)), old)

        obs, inner, *others = self.inner.step_with(taken, key, inner, action, params)
        return obs, (inner, pool), *others

    def step_env(self, key: jax.Array, state: tuple[State, Any], action: Any, params: Any) -> Any:
        obs, inner, *others = self.inner.step_env(key, state[0], action, params)
        return obs, (inner, state[1]), *others

    def within(self, state: tuple[State, Any]) -> State:
        return state[0]

    def without_pool(self) -> Any:
        return self.inner


def with_keys(tree: Any, key: jax.Array) -> Any:
    """A start with its random keys changed by `key`: typed ones, and pairs of uint32 called a key or rng."""
    bits = jax.random.bits(key)

    def changed(path: Any, x: jax.Array) -> jax.Array:
        name = jax.tree_util.keystr(path[-1:], simple=True).lower()
        raw = x.dtype == jnp.uint32 and x.shape == (2,) and ("key" in name or "rng" in name)
        return jax.random.fold_in(x, bits) if raw or jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x

    return jax.tree.map_with_path(changed, tree)


def refuse(env: Any) -> None:
    """Raise UsageError for what has no starts to keep; gymnasium's live on the host, each made again from its seed."""
    name = getattr(env, "id", name_of(env))
    if isinstance(env, Pooled):
        raise UsageError(f"{name} starts from a pool already")
    if not isinstance(env, SuiteEnv) or hasattr(env, "host"):
        raise UsageError(f"{name} has no pool of start states: that is for suites within jax, such as craftax")


def size(env: Any, num_envs: int) -> int:
    """How many starts each of a seed's environments keeps: `STARTS` of them together, as memory allows; at least 2.

    Raises UsageError as `Pooled` does, and where no episode can begin.
    """
    refuse(env)
    try:
        start = jax.eval_shape(env.begun, jax.random.key(0), env.default_params)
    except Exception as error:  # of a user's environment
        raise UsageError(f"{env.id} cannot begin an episode: {in_a_line(error)}") from error
    each = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(start))
    return max(2, min(STARTS, POOL_BYTES // each) // max(1, num_envs))
