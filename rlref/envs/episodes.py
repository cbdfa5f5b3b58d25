"""One loop over the steps of an episode, for evaluation, drawings, maps and random policies alike."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Act = Callable[[jax.Array, "Episode"], tuple[Any, Any]]
"""key, the episode before a step -> action, what the policy remembers; () of one that remembers nothing"""

UNBOUNDED = 1e9
"""a bound of a Box that is as large as this stands for none"""


def chosen(odds: jax.Array, action_space: Any, key: jax.Array | None) -> jax.Array:
    """An action by odds `[A]`, those of several choices one after the other: the likeliest, or, with a key, a draw."""
    nvec = tuple(getattr(action_space, "nvec", ()))
    each = jnp.split(odds, np.cumsum(nvec)[:-1])
    if key is None:
        actions = [jnp.argmax(x) for x in each]
    else:
        keys = jax.random.split(key, len(each)) if nvec else [key]
        actions = [jax.random.categorical(key, jnp.log(x)) for key, x in zip(keys, each, strict=True)]
    return jnp.stack(actions) if nvec else actions[0]


def random_action(action_space: Any, obs_space: Any, key: jax.Array, obs: Any) -> Any:
    """One of the actions that a raw observation's mask allows, if it has one, and else of all."""
    size = getattr(obs_space, "action_mask", 0)
    if size:
        return chosen(jnp.where(obs[-size:] > 0, 1.0, 1e-30), action_space, key)  # where nothing is allowed, all alike
    return random_in_box(action_space, key) if hasattr(action_space, "low") else action_space.sample(key)


def bounds_of(space: Any) -> tuple[np.ndarray, np.ndarray]:
    """The lower and upper bounds of a Box, in its shape."""
    low, high = (np.broadcast_to(np.asarray(x, np.float64), space.shape) for x in (space.low, space.high))
    return low, high


def random_in_box(space: Any, key: jax.Array) -> jax.Array:
    """Uniform between the bounds of a Box; where there are none, a normal draw, within the one that there may be."""
    low, high = (x.astype(np.float32) for x in bounds_of(space))
    bounded = (low > -UNBOUNDED) & (high < UNBOUNDED)
    x = jax.random.uniform(key, space.shape, minval=np.where(bounded, low, 0), maxval=np.where(bounded, high, 1))
    if not bounded.all():
        x = jnp.where(bounded, x, jnp.clip(jax.random.normal(key, space.shape), low, high))
    return x.astype(space.dtype)


def random_act(env: Any, env_params: Any) -> Act:
    """Allowed actions, all as likely."""
    spaces = env.action_space(env_params), env.observation_space(env_params)
    return lambda key, episode: (random_action(*spaces, key, episode.obs), ())


class Episode(NamedTuple):
    """An episode after some of its steps."""

    key: jax.Array
    """of the whole episode: step t uses `fold_in(key, t)`"""
    steps: jax.Array
    """int32: how many are done"""
    over: jax.Array
    """bool: whether the last one ended it, either way"""
    total: jax.Array
    """float32: undiscounted return so far"""
    obs: Any
    state: Any
    memory: Any
    """of the policy, before it sees `obs`"""
    action: Any
    """the last one, as the environment took it; 0 before the first"""
    reward: jax.Array
    """float32: the last one; 0 before the first"""


def without_pool(env: Any) -> Any:
    """The environment that single episodes are played in: a pool would draw all of its starts for each, to take one."""
    return env.without_pool() if hasattr(env, "without_pool") else env


def begin(env: Any, env_params: Any, key: jax.Array, memory: Any = ()) -> Episode:
    """The start of an episode; its state, and those after a `step`, are of `without_pool(env)`."""
    env = without_pool(env)
    key, key_reset = jax.random.split(key)
    obs, state = env.reset(key_reset, env_params)
    action = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(env.action_space(env_params).sample, key)
    )
    return Episode(key, jnp.int32(0), jnp.bool(False), jnp.float32(0), obs, state, memory, action, jnp.float32(0))


def step(env: Any, env_params: Any, act: Act, episode: Episode) -> tuple[Episode, Any]:
    """One step, and its `info`. After the step that ends it, `obs` and `state` are those of the environment's reset."""
    env = without_pool(env)
    key_act, key_env = jax.random.split(jax.random.fold_in(episode.key, episode.steps))
    action, memory = act(key_act, episode)
    action = jnp.asarray(action, episode.action.dtype)
    obs, state, reward, terminated, truncated, info = env.step(key_env, episode.state, action, env_params)
    over, total, reward = terminated | truncated, episode.total + reward, jnp.float32(reward)
    return Episode(episode.key, episode.steps + 1, over, total, obs, state, memory, action, reward), info


def play(env: Any, env_params: Any, act: Act, key: jax.Array, limit: Any, memory: Any = ()) -> Episode:
    """A whole episode, or the first `limit` steps of it."""
    return jax.lax.while_loop(
        lambda episode: ~episode.over & (episode.steps < limit),
        lambda episode: step(env, env_params, act, episode)[0],
        begin(env, env_params, key, memory),
    )
