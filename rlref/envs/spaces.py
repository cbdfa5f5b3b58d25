"""Spaces that gymnax lacks: several choices at a time, and observations that say which actions are allowed.

Agents' files know them by an attribute, `nvec` and `action_mask`, and so take anyone else's that has it.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnax.environments import spaces


class MultiDiscrete(spaces.Space):
    """Actions `[D]` int32 of D choices at a time, the i-th of 0 to `nvec[i] - 1`, as gymnasium's."""

    def __init__(self, nvec: Sequence[int]) -> None:
        """Raises ValueError unless there is a choice, and each has an option at least."""
        self.nvec = tuple(int(n) for n in nvec)
        if min(self.nvec, default=0) < 1:
            raise ValueError(f"nvec is {list(self.nvec)}; it must be at least one number, each of them 1 or more")
        self.shape, self.dtype = (len(self.nvec),), jnp.int32

    def __repr__(self) -> str:
        return f"MultiDiscrete({list(self.nvec)})"

    def sample(self, key: jax.Array) -> jax.Array:
        return jax.random.randint(key, self.shape, 0, jnp.array(self.nvec), self.dtype)

    def contains(self, x: jax.Array) -> jax.Array:
        return jnp.all((x >= 0) & (x < jnp.array(self.nvec)))


class Masked(spaces.Box):
    """An observation and, behind it, which of A actions are allowed there: one row of numbers.

    For actions of several choices the masks of all stand one after the other.
    """

    def __init__(self, inner: Any, num_actions: int) -> None:
        """`inner`: the space of what networks are to see, a Box or Discrete."""
        low, high = (0, inner.n - 1) if hasattr(inner, "n") else (inner.low, inner.high)
        bounds = (
            np.append(np.broadcast_to(x, inner.shape).ravel(), np.full(num_actions, allowed)).astype(inner.dtype)
            for x, allowed in ((low, 0), (high, 1))
        )
        self.inner, self.action_mask = inner, int(num_actions)
        super().__init__(*bounds, shape=(int(np.prod(inner.shape)) + self.action_mask,), dtype=inner.dtype)

    def __repr__(self) -> str:
        return f"Masked({self.inner}, {self.action_mask})"

    def row(self, obs: Any, action_mask: Any) -> jax.Array:
        """The observation `[...]` and the mask `[A]`, bool, as one row."""
        return jnp.concatenate([jnp.ravel(x).astype(self.dtype) for x in (obs, action_mask)])
