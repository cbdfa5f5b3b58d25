"""The leaves of an agent's state by name, and those of them that acting reads."""

import functools
from typing import Any

import jax
from jax.extend import core as jax_core

from rlref.envs import episodes
from rlref.runs import playing


def named_leaves(tree: Any) -> dict[str, Any]:
    """The leaves of a state by name, such as 'params/params/actor_0/kernel'."""
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in paths}


def policy_leaves(agent: Any, env: Any, env_params: Any) -> list[str]:
    """The names of the state's leaves that `policy` and `value` read: what acting takes, and no more."""
    state = jax.eval_shape(agent.init, jax.random.key(0))
    begun = functools.partial(episodes.begin, env, env_params, memory=playing.memory_of(agent))
    whats = ("policy", "value") if agent.value else ("policy",)
    traced = jax.make_jaxpr(lambda state, episode: [playing.asked(agent, what, state, episode) for what in whats])(
        state, jax.eval_shape(begun, jax.random.key(0))
    )
    used = {var for eqn in traced.jaxpr.eqns for var in eqn.invars if not isinstance(var, jax_core.Literal)}
    used |= {var for var in traced.jaxpr.outvars if not isinstance(var, jax_core.Literal)}
    return [name for name, var in zip(named_leaves(state), traced.jaxpr.invars, strict=False) if var in used]


def with_leaves(state: Any, leaves: dict[str, Any]) -> Any:
    """`state` with the leaves that `leaves` names."""
    old, tree = jax.tree.flatten(state)
    return jax.tree.unflatten(tree, (leaves.get(name, x) for name, x in zip(named_leaves(state), old, strict=True)))
