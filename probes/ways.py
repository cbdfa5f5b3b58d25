"""What an agent says of a table's states: of one with a memory, at the end of a way that leads to each."""

import functools
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probes.environments import Tables, Tabular, Targets, tables
from rlref.contract import remembers


class Ways(NamedTuple):
    """For each state `i`, a way there from an episode's start: of `H` steps, the last `length[i]` of each row."""

    states: np.ndarray
    """`[n, H]` int32"""
    actions: np.ndarray
    """`[n, H]` int32, what is done in these; the last, in state i itself, counts for nothing"""
    length: np.ndarray
    """`[n]` int32, at least 1; of a state that none leads to, 1"""


def ways(params: Tables | Targets, longest: int = 1) -> Ways:
    """The shortest way to each state, found breadth first; of several, the one with the lowest actions.

    Rows are filled up at their front, to at least `longest` steps. Episodes of `Targets` have one step.
    """
    if isinstance(params, Targets):
        alone = np.arange(len(params.obs), dtype=np.int32)[:, None]
        return Ways(np.tile(alone, longest), np.zeros((len(alone), longest), np.int32), np.ones(len(alone), np.int32))
    n, num_actions = params.reward.shape
    before: dict[int, tuple[int, int]] = {}
    ends = params.terminated | params.truncated
    found = [i for i in range(n) if params.start[i] > 0 or (ends & (params.after == i)).any()]
    known = {*found}
    for at in found:  # grows
        for action in range(num_actions):
            to = int(params.next[at, action])
            if to not in known and not ends[at, action]:
                before[to] = at, action
                known.add(to)
                found.append(to)
    for at in found.copy():  # what only an ending step leads to, as a final observation
        for action in range(num_actions):
            if (to := int(params.next[at, action])) not in known:
                before[to] = at, action
                known.add(to)
    rows = []
    for i in range(n):
        row = [(i, 0)]
        while row[0][0] in before:
            row.insert(0, before[row[0][0]])
        rows.append(row)
    longest = max(longest, *map(len, rows))
    filled = np.array([[(0, 0)] * (longest - len(row)) + row for row in rows], np.int32)
    return Ways(filled[..., 0], filled[..., 1], np.array([len(row) for row in rows], np.int32))


def answered(agent: Any, state: Any, env: Any, params: Any, led: Ways | None) -> tuple[Any, Any]:
    """Values `[n, ...]`, None of an agent without, and policies `[n, ...]` of a table's states.

    Of an agent with a memory they are those at the end of a way to each state.
    """
    obs = jnp.asarray(params.obs)
    if led is None:
        value = None if agent.value is None else jax.vmap(partial(agent.value, state))(obs)
        return value, jax.vmap(partial(agent.policy, state))(obs)
    space, choices = env.action_space(params), getattr(params, "choices", ())

    def at_end(states: Any, actions: Any, length: Any) -> tuple[Any, Any]:
        def step(memory: Any, x: Any) -> tuple[Any, Any]:
            index, last, action, is_first = x
            reward = jnp.asarray(params.reward)[last, action] if isinstance(params, Tables) else jnp.float32(0)
            action = jnp.stack(jnp.unravel_index(action, choices)) if choices else action
            action = jnp.broadcast_to(jnp.asarray(action, space.dtype), space.shape)
            seen = memory, obs[index], action, reward, is_first
            policy, memory = agent.policy(state, *seen)
            return memory, (agent.value(state, *seen)[0] if agent.value else None, policy)

        begins = jnp.arange(len(states)) == len(states) - length
        rows = states, jnp.roll(states, 1), jnp.roll(actions, 1), begins
        return jax.tree.map(lambda x: x[-1], jax.lax.scan(step, agent.memory0, rows)[1])

    values_and_policies: tuple[Any, Any] = jax.vmap(at_end)(*led)
    return values_and_policies


def of_three_actions(module: ModuleType) -> Any:
    """The agent, at its own settings, for one state that shows one number, and three actions."""
    params = tables(obs=[[0.0]], reward=[[0.0, 0.0, 0.0]], next=[0], terminated=True)
    return module.make(module.Config(), Tabular(params), params)


@functools.cache
def has_memory(module: ModuleType) -> bool:
    """Whether an agent has one."""
    return remembers(of_three_actions(module))
