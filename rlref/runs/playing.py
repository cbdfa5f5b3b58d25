"""What a trained policy does: choosing actions, playing whole episodes."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from rlref.envs import episodes

EPISODE_LIMIT = 10_000  # steps of an episode, where the environment names no limit of its own


def choose(policy: Any, space: Any, key: jax.Array | None) -> jax.Array:
    """An action from what the contract's `policy` gives: the likeliest without a key, a draw with one."""
    if isinstance(policy, tuple):
        mean, std = policy
        action = mean if key is None else mean + std * jax.random.normal(key, mean.shape)
        return jnp.clip(action.reshape(space.shape), space.low, space.high).astype(space.dtype)
    return episodes.chosen(policy, space, key)


def modes(agent: Any, state: Any, obs: jax.Array) -> tuple[str, ...]:
    """How an agent can act: a policy that follows from action values is greedy itself, there is nothing to sample."""
    of_action_values = agent.value is not None and agent.value(state, obs).ndim
    return ("greedy",) if of_action_values else ("greedy", "sampled")


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
        def act(key: jax.Array, obs: Any) -> jax.Array:
            return choose(agent.policy(state, obs), space, None if greedy else key)

        episode = episodes.play(env, env_params, act, key, limit)
        return episode.total, episode.steps.astype(jnp.float32)

    obs, _ = env.reset(key, env_params)
    keys = jax.random.split(key, num_episodes)  # the same for each way: they meet the same starts
    ways = modes(agent, state, obs)
    return {how: jax.vmap(functools.partial(one, greedy=how == "greedy"))(keys) for how in ways}


def evaluate(
    agent: Any, state: Any, key: jax.Array, env: Any, env_params: Any, num_episodes: int
) -> dict[str, jax.Array]:
    """The metrics of an evaluation: mean return and length of `num_episodes` whole episodes, greedy and sampled."""
    result: dict[str, jax.Array] = {}
    for how, (total, length) in play(agent, state, key, env, env_params, num_episodes).items():
        result |= {f"eval_return_{how}": total.mean(), f"eval_length_{how}": length.mean()}
    return result
