"""Start states drawn once, of which a reset takes one: for environments whose resets cost more than many steps.

As Craftax's own wrapper for many environments at a time shares resets among them (Matthews et al. 2024,
arXiv:2402.16801), this trades starts for speed; here each environment keeps its own, so that seeds stay independent.
"""

from collections.abc import Callable
from typing import Any

import jax

from rlref.envs.partial import Around
from rlref.envs.suites.base import State, SuiteEnv, select
from rlref.errors import UsageError

STARTS = 256  # of a seed, over all of its environments
POOL_BYTES = 2**26  # that they may take


class Pooled(Around):
    """`inner` with `count` start states of its own: each `reset` draws them all; what ends begins at one of them again.

    Its state is the inner one, and the pool: observations and states `[count, ...]`.
    """

    def __init__(self, inner: Any, count: int) -> None:
        """Raises UsageError where `inner` is no environment of another suite within jax."""
        refuse(inner)
        super().__init__(inner)
        self.count = count
        self.id = self.name = f"pool:{count}:{inner.id}"

    def reset(self, key: jax.Array, params: Any = None) -> tuple[jax.Array, tuple[State, Any]]:
        params = self.inner.default_params if params is None else params
        pool = jax.vmap(self.inner.begun, (0, None))(jax.random.split(key, self.count), params)
        obs, state = self.inner.entered(*jax.tree.map(lambda x: x[0], pool))
        return obs, (state, pool)

    def step(self, key: jax.Array, state: tuple[State, Any], action: Any, params: Any = None) -> Any:
        inner, pool = state

        def taken(ended: jax.Array, key: jax.Array, params: Any, old: Any) -> Any:
            index = jax.random.randint(key, (), 0, self.count)
            return select(ended, jax.tree.map(lambda x: x[index], pool), old)

        obs, inner, *others = self.inner.step_with(taken, key, inner, action, params)
        return obs, (inner, pool), *others

    def step_env(self, key: jax.Array, state: tuple[State, Any], action: Any, params: Any) -> Any:
        obs, inner, *others = self.inner.step_env(key, state[0], action, params)
        return obs, (inner, state[1]), *others

    @property
    def render(self) -> Callable[[Any], Any]:
        """Only where `inner` can draw."""
        draw = self.inner.render
        return lambda state: draw(state[0])

    @property
    def html(self) -> Callable[[Any], str]:
        """As `render`."""
        write = self.inner.html
        return lambda states: write([state[0] for state in states])


def refuse(env: Any) -> None:
    """Raise UsageError for what has no starts to keep; gymnasium's live on the host, each made again from its seed."""
    if not isinstance(env, SuiteEnv) or hasattr(env, "host"):
        raise UsageError(f"{env.name} has no pool of start states: that is for suites within jax, such as craftax")


def size(env: Any, num_envs: int) -> int:
    """How many starts each of a seed's environments keeps: `STARTS` of them together, as memory allows; at least 2.

    Raises UsageError as `Pooled` does.
    """
    refuse(env)
    start = jax.eval_shape(env.begun, jax.random.key(0), env.default_params)
    each = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(start))
    return max(2, min(STARTS, POOL_BYTES // each) // num_envs)
