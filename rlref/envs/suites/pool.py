"""Start states drawn once, of which a reset takes one: for environments whose resets cost more than many steps.

As Craftax's own wrapper for many environments at a time shares resets among them (Matthews et al. 2024,
arXiv:2402.16801), this trades starts for speed; here each environment keeps its own, so that seeds stay independent.
"""

from typing import Any

import jax
import jax.numpy as jnp

from rlref.envs.suites.base import State, SuiteEnv, like
from rlref.errors import UsageError

STARTS = 256  # of a seed, over all of its environments
POOL_BYTES = 2**26  # that they may take


class Pooled:
    """`inner` with `count` start states of its own: each `reset` draws them all; what ends begins at one of them again.

    Its state is the inner one, and the pool: observations and states `[count, ...]`.
    """

    def __init__(self, inner: SuiteEnv, count: int) -> None:
        """Raises UsageError where `inner` is no environment of another suite within jax."""
        if not is_poolable(inner):
            raise UsageError(
                f"{inner.name} has no pool of start states: that is for suites within jax, such as craftax"
            )
        self.inner, self.count = inner, count
        self.id = f"pool:{count}:{inner.id}"

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # not set yet, while this is copied
            raise AttributeError(name)
        return getattr(self.inner, name)

    @property
    def name(self) -> str:
        return self.id

    def reset(self, key: jax.Array, params: Any = None) -> tuple[jax.Array, tuple[State, Any]]:
        params = self.inner.default_params if params is None else params
        keys = jax.random.split(key, self.count)
        obs, state = self.inner.reset_env(keys[0], params)
        pool = jax.vmap(self.inner.begun, (0, None))(keys, params)
        return obs, (state, pool)

    def step(self, key: jax.Array, state: tuple[State, Any], action: Any, params: Any = None) -> Any:
        inner, pool = state

        def taken(ended: jax.Array, key: jax.Array, params: Any, old: Any) -> Any:
            index = jax.random.randint(key, (), 0, self.count)
            start = like(jax.tree.map(lambda x: x[index], pool), old)
            return jax.tree.map(lambda x, y: jnp.where(ended, x, y), start, old)

        obs, inner, *others = self.inner.step_with(taken, key, inner, action, params)
        return obs, (inner, pool), *others

    def step_env(self, key: jax.Array, state: tuple[State, Any], action: Any, params: Any) -> Any:
        obs, inner, *others = self.inner.step_env(key, state[0], action, params)
        return obs, (inner, state[1]), *others

    def render(self, state: tuple[State, Any]) -> Any:
        return self.inner.render(state[0])


def is_poolable(env: Any) -> bool:
    """Whether a pool can give its starts; gymnasium's live on the host, where a state is made again from its seed."""
    return isinstance(env, SuiteEnv) and not hasattr(env, "host")


def size(env: SuiteEnv, num_envs: int) -> int:
    """How many starts each of a seed's environments keeps: `STARTS` of them together, as memory allows; at least 2."""
    start = jax.eval_shape(env.begun, jax.random.key(0), env.default_params)
    each = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(start))
    return max(2, min(STARTS, POOL_BYTES // each) // num_envs)
