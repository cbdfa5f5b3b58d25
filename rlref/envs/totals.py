"""Scalars of a step's `info`, summed over episodes within the environment's state, for the metrics `info/NAME`.

An agent need know nothing of it: the runner finds these sums in the agent's state, which holds the environments'.
"""

from collections.abc import Mapping
from typing import Any

import flax
import jax
import jax.numpy as jnp


@flax.struct.dataclass
class Totals:
    """Of one environment; batched as its state is."""

    running: dict[str, jax.Array]
    """sums over the episode under way"""
    ended: dict[str, jax.Array]
    """sums over the episodes that ended since they were `cleared`"""
    episodes: jax.Array
    """how many these are"""
    last: dict[str, jax.Array]
    """the mean over episodes when they were last cleared with some; NaN before"""

    @classmethod
    def of(cls, names: tuple[str, ...]) -> "Totals":
        zeros = dict.fromkeys(names, jnp.float32(0))
        return cls(zeros, zeros, jnp.float32(0), dict.fromkeys(names, jnp.float32(jnp.nan)))

    def after(self, info: Mapping[str, Any], ended: jax.Array) -> "Totals":
        """After a step with these scalars, which may have ended the episode."""
        running = {name: x + info[name] for name, x in self.running.items()}
        return self.replace(  # type: ignore[attr-defined]
            running={name: jnp.where(ended, 0, x) for name, x in running.items()},
            ended={name: x + jnp.where(ended, running[name], 0) for name, x in self.ended.items()},
            episodes=self.episodes + ended,
        )


def cleared(tree: Any) -> Any:
    """A tree whose Totals begin anew."""

    def one(x: Any) -> Any:
        if not isinstance(x, Totals):
            return x
        zeros = jax.tree.map(jnp.zeros_like, x.ended)
        last = {name: jnp.broadcast_to(mean, x.last[name].shape) for name, mean in means(x).items()}
        return x.replace(ended=zeros, episodes=jnp.zeros_like(x.episodes), last=last)  # type: ignore[attr-defined]

    return jax.tree.map(one, tree, is_leaf=lambda x: isinstance(x, Totals))


def means(totals: Totals) -> dict[str, jax.Array]:
    """The mean over the episodes that ended; what it was before, if none did."""
    episodes = totals.episodes.sum()
    return {
        name: jnp.where(episodes > 0, x.sum() / jnp.maximum(episodes, 1), totals.last[name].reshape(-1)[0])
        for name, x in totals.ended.items()
    }


def info_metrics(tree: Any) -> dict[str, jax.Array]:
    """`info/NAME` of all Totals in a tree."""
    found = [x for x in jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, Totals)) if isinstance(x, Totals)]
    return {f"info/{name}": mean for totals in found for name, mean in means(totals).items()}
