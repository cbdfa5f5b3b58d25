"""What a trained policy does: choosing actions, playing whole episodes."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from rlref.contract import remembers
from rlref.envs import episodes

EPISODE_LIMIT = 10_000  # steps of an episode, where the environment names no limit of its own


def choose(policy: Any, space: Any, key: jax.Array | None) -> jax.Array:
    """An action from what the contract's `policy` gives: the likeliest without a key, a draw with one."""
    if isinstance(policy, tuple):
        mean, std = policy
        action = mean if key is None else mean + std * jax.random.normal(key, mean.shape)
        return jnp.clip(action.reshape(space.shape), space.low, space.high).astype(space.dtype)
    return episodes.chosen(policy, space, key)


def memory_of(agent: Any) -> Any:
    """What an agent remembers before an episode's first step; () of one that remembers nothing."""
    return agent.memory0 if remembers(agent) else ()


def asked(agent: Any, what: str, state: Any, episode: episodes.Episode) -> tuple[Any, Any]:
    """What an agent's `policy` or `value` gives before a step of an episode, and what it remembers then."""
    function = getattr(agent, what)
    if not remembers(agent):
        return function(state, episode.obs), ()
    return function(state, episode.memory, episode.obs, episode.action, episode.reward, episode.steps == 0)


def acting(agent: Any, state: Any, space: Any, greedy: bool = True) -> episodes.Act:
    """An agent's actions as the loop over an episode takes them: the likeliest, or drawn."""

    def act(key: jax.Array, episode: episodes.Episode) -> tuple[jax.Array, Any]:
        policy, memory = asked(agent, "policy", state, episode)
        return choose(policy, space, None if greedy else key), memory

    return act


def modes(agent: Any, state: Any, episode: episodes.Episode) -> tuple[str, ...]:
    """How an agent can act: a policy that follows from action values is greedy itself, there is nothing to sample."""
    if agent.value is None:
        return "greedy", "sampled"
    value, _ = jax.eval_shape(functools.partial(asked, agent, "value"), state, episode)
    return ("greedy",) if value.ndim else ("greedy", "sampled")


def episode_limit(env_params: Any) -> Any:
    """Steps after which an episode that has not ended is left."""
    limit = getattr(env_params, "max_steps_in_episode", None)
    return EPISODE_LIMIT if limit is None else limit


def play(
    agent: Any, state: Any, key: jax.Array, env: Any, env_params: Any, num_episodes: int
) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Returns and lengths `[num_episodes]` of whole episodes, for each way to act that `modes` names."""
    limit = episode_limit(env_params)
    space = env.action_space(env_params)

    def one(key: jax.Array, greedy: bool) -> tuple[jax.Array, jax.Array]:
        act = acting(agent, state, space, greedy)
        episode = episodes.play(env, env_params, act, key, limit, memory_of(agent))
        return episode.total, episode.steps.astype(jnp.float32)

    keys = jax.random.split(key, num_episodes)  # the same for each way: they meet the same starts
    ways = modes(agent, state, jax.eval_shape(lambda: episodes.begin(env, env_params, key, memory_of(agent))))
    return {how: jax.vmap(functools.partial(one, greedy=how == "greedy"))(keys) for how in ways}


def evaluate(
    agent: Any, state: Any, key: jax.Array, env: Any, env_params: Any, num_episodes: int
) -> dict[str, jax.Array]:
    """The metrics of an evaluation: mean return and length of `num_episodes` whole episodes, greedy and sampled."""
    result: dict[str, jax.Array] = {}
    for how, (total, length) in play(agent, state, key, env, env_params, num_episodes).items():
        result |= {f"eval_return_{how}": total.mean(), f"eval_length_{how}": length.mean()}
    return result
