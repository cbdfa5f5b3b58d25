"""Deep Q-Network (Mnih et al. 2015) with double Q-learning (van Hasselt et al. 2016), alone in this file.

    rlref train dqn      8 seeds of CartPole-v1 and a run folder; `python -m rlref.dqn` is the same
    python dqn.py        this file copied elsewhere, without rlref: 4 seeds, prints the last update
    jax.jit(jax.vmap(dqn.train, in_axes=(None, 0)))(dqn.Config(), keys)        many seeds, from Python

Expected: `rlref train dqn` ends on CartPole-v1 at an IQM of at least 490 over 32 seeds, as rlref's README shows.
Read `update`, `until_sync`, `one_cycle`, `collect`, `sample`, `targets`, `loss`: that is DQN, 151 lines; the loop is in
`train`. To edit a copy: a network in `Network`, an optimiser in `make_optimizer`, a metric in `diagnose`, a setting in
`Config`. Every function is for ONE seed; batching over seeds is the caller's `vmap`. Agent files repeat code.

Time is laid out so that no branch depends on data. One update is `C` cycles; a cycle is `T` steps in each of `N`
environments, then one gradient step. Warm-up, epsilon, syncs of the target network, and the place in the replay buffer
follow from the index of the update, which is the same for all seeds.
Letters: `C` cycles of an update, `T` steps of a cycle, `N` environments, `B` samples of a minibatch, `A` actions,
`F` features, `n` steps of a return. A row of the replay buffer is one step of all `N` environments.
"""

# Original: dqn 7dbffde3287f; by this line `rlref probe` tells what a copy has changed
from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import chex
import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.scipy.special import entr

RING = 100  # finished episodes that return_* and length_* look back on
FORBIDDEN = -1e9  # stands for Q of an action that a mask forbids; finite, as 0 times infinity is no number
Metrics = dict[str, Array]


# ---- Settings and types ----------------------------------------------------------------------------------------------
def static(default: Any, interval: str = "[1, inf)") -> Any:
    """A setting that shapes the program; whole numbers must be within `interval`."""
    return flax.struct.field(pytree_node=False, default=default, metadata={"interval": interval})


def leaf(default: Any, interval: str = "(-inf, inf)", search: tuple[Any, ...] = ()) -> Any:
    """A float within `interval`: traced, so it can be vmapped. `search`: lowest, highest, scale for `rlref sweep`."""
    return flax.struct.field(default=default, metadata={"interval": interval, "search": search})


@flax.struct.dataclass
class Config:
    """Settings of DQN. The defaults are CleanRL's for CartPole-v1, with ten environments side by side and double Q."""

    env_id: str = static("CartPole-v1")  # a gymnax id; in rlref's commands also package.module:make_env
    total_timesteps: int = static(500_000, "[1, 2147483648)")  # environment steps of one seed
    num_envs: int = static(10)  # environments stepped side by side in one seed
    train_frequency: int = static(10)  # environment steps between gradient steps; a multiple of num_envs
    cycles_per_update: int = static(100)  # gradient steps of one update, which is what diagnostics are reported over
    learning_starts: int = static(10_000)  # environment steps before the first gradient step
    buffer_size: int = static(10_000, "[1, 2147483648)")  # transitions that are kept; a multiple of train_frequency
    # how observations are stored: as they come, as bytes (whole numbers to 255), or as bits (0 and 1)
    buffer_dtype: Literal["same", "uint8", "bool"] = static("same")
    batch_size: int = static(128)  # transitions of one gradient step
    learning_rate: float = leaf(2.5e-4, "[0, inf)", (1e-5, 1e-2, "log"))  # Adam's step size, at the start
    anneal_lr: bool = static(False)  # lower the learning rate linearly to 0 over the training
    adam_eps: float = leaf(1e-8, "(0, inf)")  # Adam's epsilon
    max_grad_norm: float | None = leaf(None, "(0, inf]", (0.1, 10.0, "log"))  # clip the gradient's norm; None: do not
    gamma: float = leaf(0.99, "[0, 1]", (0.9, 0.999, "complement"))  # discount per step
    n_step: int = static(1)  # rewards summed before the bootstrap; above 1 without correction for exploring actions
    # value of the next state: the target network's at the online network's best action, its maximum, or its mean under
    # the epsilon-greedy policy
    target: Literal["double", "max", "expected_sarsa"] = static("double")
    target_network_frequency: int = static(500)  # environment steps between syncs of the target network
    tau: float = leaf(1.0, "(0, 1]", (0.05, 1.0, "log"))  # share of the online network in a sync: 1 copies it
    loss: Literal["squared", "huber"] = static("squared")  # half the squared error, or Huber's, linear beyond 1
    start_e: float = leaf(1.0, "[0, 1]")  # probability of a random action at the start
    end_e: float = leaf(0.05, "[0, 1]", (0.005, 0.2, "log"))  # probability of a random action at the end
    exploration_fraction: float = leaf(0.5, "[0, 1]", (0.05, 0.9, "linear"))  # share of the steps over which it falls
    # separate heads for the state's value and the actions' advantages (Wang et al. 2016, arXiv:1511.06581)
    dueling: bool = static(False)
    hidden_sizes: tuple[int, ...] = static((120, 84))  # units of each hidden layer
    activation: Literal["tanh", "relu"] = static("relu")  # activation of the hidden layers
    conv_layers: tuple[tuple[int, int, int], ...] = static(((16, 3, 1),))  # of images: features, kernel size, stride


@flax.struct.dataclass
class State:
    """Everything needed to go on training one seed."""

    params: Any
    target_params: Any
    opt_state: optax.OptState  # over the parameters as one vector
    key: Array
    env_state: Any
    obs: Array  # [N, ...] raw, in the environment's dtype
    buffer: Array  # [R * N, K] replay memory: `R` rows of `N` environments, the oldest overwritten, as `pack` has them
    episode: Episode
    ring_return: Array  # [RING] of the last finished episodes
    ring_length: Array  # [RING]
    num_episodes: Array  # int32, finished so far


@flax.struct.dataclass
class Buffer:
    """Steps as the replay memory keeps them: every field is `[S, ...]`."""

    obs: Array  # as `encode` stores it
    action: Array  # int32
    reward: Array
    terminated: Array  # ends the value
    truncated: Array  # does not; yet no return is summed across it
    next_obs: Array  # what the step led to, before any reset; as `encode` stores it


@flax.struct.dataclass
class Episode:
    """Sums over the episodes under way, each `[N]`."""

    total: Array  # undiscounted return so far
    length: Array  # int32
    q_sum: Array  # Q of the actions taken
    return_sum: Array  # the discounted returns from all its steps on, as far as rewards have come in
    weight: Array  # of the next reward in return_sum: 1 + gamma + gamma^2 + ..., a term per step


class Batch(NamedTuple):
    """A minibatch of n-step transitions: every field is `[B, ...]`."""

    obs: Array
    action: Array
    reward: Array  # discounted sum of up to n rewards
    discount: Array  # of the value of next_obs: gamma^n, or a lower power at an ending; 0 where it terminated
    next_obs: Array


class Cycle(NamedTuple):
    """The plan of a cycle, made before it begins; stacked to `[C, ...]`, then grouped by syncs of the target."""

    row: Array  # where its first step is written in the replay buffer
    learning: Array  # bool, whether the warm-up is over
    epsilon: Array  # [T]
    draws: tuple[Array, ...]  # [T, N]: uniform, a random action, the environment's key
    slots: Array  # [B, n] of the replay buffer, to learn from


class Steps(NamedTuple):
    """What is kept of an update's steps: every field is `[T, N]` of a cycle, stacked to `[C * T, N]`."""

    action: Array
    reward: Array
    ended: Array
    total: Array  # undiscounted return of the episode, this step included
    length: Array
    excess: Array  # sum over the episode of Q minus the return that followed
    unstorable: Array  # bool, whether the replay buffer changes an observation
    allowed: Array | None  # how many actions were; None: all, always


class Task(NamedTuple):
    """What training never changes: an argument of every function that needs it, so that each can be called alone."""

    config: Config
    env: Any
    env_params: Any
    obs_space: Any
    num_actions: int
    network: nn.Module


class Agent(NamedTuple):
    """What `make` returns, and all that rlref's runner and probes use of this file: functions bound to their `Task`."""

    init: Callable[[Array], State]  # key -> state of one seed
    update: Callable[[State, Array], tuple[State, Metrics]]  # step: int32, never batched -> float32 scalars
    policy: Callable[[State, Array], Array]  # ONE raw observation -> one-hot [A] of the greedy action
    value: Callable[[State, Array], Array] | None  # ONE raw observation -> Q [A]
    num_updates: int  # floor(total_timesteps / steps_per_update)
    steps_per_update: int  # environment steps of one update of one seed


# ---- Training --------------------------------------------------------------------------------------------------------
def train(config: Config, key: Array, env: Any = None, env_params: Any = None) -> tuple[State, Metrics]:
    """Train one seed; vmap over `key` for many. Returns its state, and diagnostics `[num_updates]`."""
    agent = make(config, env, env_params)
    # The training loop, compiled: for step in range(num_updates): state, diagnostics = update(state, step)
    return jax.lax.scan(agent.update, agent.init(key), jnp.arange(agent.num_updates))


def make(config: Config, env: Any = None, env_params: Any = None) -> Agent:
    """The agent for `env`, of gymnax >= 1.0, or for `config.env_id`. Raises ValueError for what cannot train."""
    if env is None:
        import gymnax

        env, _ = gymnax.make(config.env_id)
    env_params = env.default_params if env_params is None else env_params
    obs_space, action_space = env.observation_space(env_params), env.action_space(env_params)
    check(config, obs_space, action_space)
    num_actions = action_space.n
    network = Network(num_actions, config.dueling, config.hidden_sizes, config.activation, config.conv_layers)
    task = Task(config, env, env_params, obs_space, num_actions, network)
    steps_per_update = config.cycles_per_update * config.train_frequency
    num_updates = config.total_timesteps // steps_per_update

    def value(state: State, obs: Array) -> Array:
        return forward(task, state.params, obs[None])[0]

    def policy(state: State, obs: Array) -> Array:
        return epsilon_greedy(value(state, obs), 0.0)

    return Agent(partial(init, task), partial(update, task, num_updates), policy, value, num_updates, steps_per_update)


def make_optimizer(config: Config, learning_rate: Any) -> optax.GradientTransformation:
    """The optimiser of one update, at its learning rate, which follows from `step` and not from a count per seed."""
    clip = optax.identity() if config.max_grad_norm is None else optax.clip_by_global_norm(config.max_grad_norm)
    return optax.chain(clip, optax.adam(learning_rate, eps=config.adam_eps))


def init(task: Task, key: Array) -> State:
    """Fresh parameters, environments and an empty replay buffer of one seed."""
    config, num_envs, size = task.config, task.config.num_envs, task.config.buffer_size
    key, key_env, key_net = jax.random.split(key, 3)
    obs, env_state = jax.vmap(task.env.reset, in_axes=(0, None))(jax.random.split(key_env, num_envs), task.env_params)
    params = {"params": task.network.init(key_net, features(obs, task.obs_space))["params"]}  # without what `sow` adds
    stored, zeros = encode(obs, config.buffer_dtype), jnp.zeros(num_envs)
    row = pack(Buffer(stored, zeros, zeros, zeros, zeros, stored))
    return State(
        params=params,
        target_params=jax.tree.map(jnp.copy, params),  # a buffer of its own: the runner donates states
        opt_state=make_optimizer(config, config.learning_rate).init(ravel_pytree(params)[0]),
        key=key,
        env_state=env_state,
        obs=obs,
        buffer=jnp.zeros((size, row.shape[1]), row.dtype),
        episode=new_episodes(num_envs),
        ring_return=jnp.zeros(RING),
        ring_length=jnp.zeros(RING),
        num_episodes=jnp.int32(0),
    )


def new_episodes(num_envs: int) -> Episode:
    """Sums before the first step, each an array of its own: the runner donates states."""
    zeros = partial(jnp.zeros, num_envs)
    return Episode(zeros(), zeros(jnp.int32), zeros(), zeros(), jnp.ones(num_envs))


# ---- The algorithm ---------------------------------------------------------------------------------------------------
def update(task: Task, num_updates: int, state: State, step: Array) -> tuple[State, Metrics]:
    """`C` cycles, the target network synced where its time has come."""
    config = task.config
    cycles, num_envs, num_actions = config.cycles_per_update, config.num_envs, task.num_actions
    shape = (cycles, config.train_frequency // num_envs, num_envs)  # [C, T, N]
    capacity = config.buffer_size // num_envs  # rows

    # When everything happens follows from `step`. A counter in the state would be one per seed, and no longer static.
    cycle = step * cycles + jnp.arange(cycles)
    done = (cycle + 1) * config.train_frequency  # environment steps at the end of each cycle
    learning = done >= config.learning_starts
    epsilon = epsilon_at(config, (cycle[:, None] * shape[1] + jnp.arange(shape[1])) * num_envs)  # [C, T]
    learning_rate = config.learning_rate * ((1 - step / num_updates) if config.anneal_lr else jnp.float32(1))
    # All randomness at once: on a CPU, drawing it step by step costs more than the network does.
    key, key_explore, key_action, key_env, key_replay = jax.random.split(state.key, 5)
    if hasattr(task.obs_space, "action_mask"):
        random_action = jax.random.bits(key_action, shape)  # drawn from when it is known which are allowed
    else:
        random_action = jax.random.randint(key_action, shape, 0, num_actions)
    draws = jax.random.uniform(key_explore, shape), random_action, jax.random.split(key_env, shape)
    bits = jax.random.bits(key_replay, (cycles + 1, config.batch_size))
    rows = (cycle + 1) * shape[1]
    index, age = replay_indices(bits[:-1], rows[:, None], capacity, num_envs, config.n_step)
    # Cycles up to a sync, then the sync. Where syncs are further apart than an update, most updates end without one.
    period = config.target_network_frequency // config.train_frequency
    inner = min(period, cycles)
    plan = Cycle(cycle * shape[1] % capacity, learning, epsilon, draws, index)
    plan = jax.tree.map(lambda x: x.reshape(-1, inner, *x.shape[1:]), plan)
    sync = ((cycle + 1) % period == 0) & learning
    sync = sync.reshape(-1, inner)[:, -1]
    before = state  # its networks are what the update began with
    # One vector instead of a dozen arrays: an optimiser step is a few kernels, not a hundred. One that looks at single
    # layers (LAMB, Muon, masks) takes `unravel(gradient)`, `unravel(params)`, in `init` `params`; ravel its change.
    params, unravel = ravel_pytree(state.params)
    cycles_until_sync = partial(until_sync, task, make_optimizer(config, learning_rate), unravel)
    (state, params), (steps, learned, moved) = scan(cycles_until_sync, (state, params), (sync, plan))
    state = replace(state, params=unravel(params), key=key)
    steps = jax.tree.map(lambda x: x.reshape(-1, num_envs), steps)
    learned = jax.tree.map(lambda x: x.reshape(cycles, *x.shape[2:]), learned)
    state = record_episodes(state, steps.ended, steps.total, steps.length)
    index, _ = replay_indices(bits[-1], rows[-1], capacity, num_envs, config.n_step)
    batch = sample(task, state.buffer, index, state.obs)
    ends = epsilon_at(config, step * cycles * config.train_frequency), epsilon_at(config, done[-1])
    diagnostics = diagnose(task, before, state, batch, ends, steps, learned, learning)
    diagnostics |= {name: x.mean(where=sync) for name, x in moved.items()}
    allowed = num_actions if steps.allowed is None else steps.allowed
    entropy = policy_entropy(epsilon.reshape(-1, 1), allowed)
    diagnostics |= {
        "env_steps": done[-1],
        "learning_rate": learning_rate,
        "epsilon": epsilon.mean(),
        "entropy": entropy.mean(),
        "relative_entropy": entropy.mean() / jnp.log(allowed).mean(),  # one action: 0 / 0
        "buffer_fill": jnp.minimum(rows[-1], capacity) / capacity,
        "sample_age": age.mean(where=learning[:, None]),
    }
    return state, {name: jnp.asarray(x, jnp.float32) for name, x in diagnostics.items()}


def until_sync(task: Task, optimizer: Any, unravel: Any, carry: tuple[State, Array], x: tuple[Array, Cycle]) -> Any:
    """Cycles, then a sync of the target network if one is due."""
    config, (sync, cycles) = task.config, x
    (state, params), (steps, learned) = scan(partial(one_cycle, task, optimizer, unravel), carry, cycles)
    old, new = ravel_pytree(state.target_params)[0], params
    mixed = jnp.where(config.tau == 1, new, config.tau * new + (1 - config.tau) * old)  # a copy to the last bit
    synced = jnp.where(sync, mixed, old)
    moved = {"target_distance": optax.tree.norm(new - old), "target_step": optax.tree.norm(synced - old)}
    return (replace(state, target_params=unravel(synced)), params), (steps, learned, moved)


def one_cycle(task: Task, optimizer: Any, unravel: Any, carry: tuple[State, Array], cycle: Cycle) -> Any:
    """`T` steps in each environment, then one gradient step. The newest parameters are `params`, not `state.params`."""
    state, params = carry
    state, steps, block = collect(task, state, unravel(params), cycle.epsilon, cycle.draws)
    state = replace(state, buffer=write(state.buffer, pack(block), cycle.row, task.config.num_envs))
    batch = sample(task, state.buffer, cycle.slots, state.obs)
    target = targets(task, state.target_params, unravel(params), batch, cycle.epsilon[-1])
    gradient_of = jax.value_and_grad(lambda p: loss(unravel(p), task, batch, target), has_aux=True)
    (error, q), gradient = gradient_of(params)
    change, opt_state = optimizer.update(gradient, state.opt_state, params)
    learned = {"q": q, "target": target, "loss": error}
    learned |= {k: jnp.sqrt(optax.tree.vdot(x, x)) for k, x in (("grad_norm", gradient), ("step_norm", change))}
    # Not `cond`: fused with the optimiser's step this costs nothing, and only the warm-up computes in vain.
    new = optax.apply_updates(params, change), opt_state
    params, opt_state = jax.tree.map(partial(jnp.where, cycle.learning), new, (params, state.opt_state))
    return (replace(state, opt_state=opt_state), params), (steps, learned)


def scan(step: Callable[..., Any], carry: Any, xs: Any) -> Any:
    """`jax.lax.scan`, what it keeps written as one array, to the last bit: a GPU starts a kernel for each, each turn.

    But for random keys, and what is narrower than 32 bits and no mask of one or two axes, such as images of bytes.
    """
    unravel: Any = None

    def as_words(x: Array) -> Array | None:
        if x.dtype == bool and x.ndim <= 2:
            return x
        return x.view(jnp.uint32) if x.dtype.itemsize == 4 else None

    def packed(carry: Any, x: Any) -> Any:
        nonlocal unravel
        carry, kept = step(carry, x)
        kept = jax.tree.map(jnp.asarray, kept)
        words = jax.tree.map(as_words, kept)
        row, unravel = ravel_pytree(words)
        return carry, (row, jax.tree.map(lambda x, y: x if y is None else jnp.empty(0, x.dtype), kept, words))

    carry, (rows, others) = jax.lax.scan(packed, carry, xs)
    return carry, jax.tree.map(lambda x, y: x if y is None else y.view(x.dtype), others, jax.vmap(unravel)(rows))


def collect(task: Task, state: State, params: Any, epsilon: Array, draws: Any) -> tuple[State, Steps, Buffer]:
    """`T` epsilon-greedy steps in each of `N` environments; `epsilon` is `[T]`, `draws` `[T, N]`."""
    config = task.config
    env_step = jax.vmap(task.env.step, in_axes=(0, 0, 0, None))

    def step(carry: tuple[Any, ...], x: tuple[Array, ...]) -> tuple[tuple[Any, ...], tuple[Steps, Buffer]]:
        env_state, obs, episode = carry
        epsilon, uniform, random_action, key_env = x
        q = forward(task, params, obs)
        mask = without_mask(obs, task.obs_space)[2]
        random_action = random_action if mask is None else random_allowed(mask, random_action)
        action = jnp.where(uniform < epsilon, random_action, q.argmax(axis=-1).astype(jnp.int32))
        next_obs, env_state, reward, terminated, truncated, info = env_step(key_env, env_state, action, task.env_params)
        reward, ended = reward.astype(jnp.float32), terminated | truncated
        q_taken = taken(q, action)
        # From a time limit on, the last action's own value stands for the return that would have followed.
        got = jnp.where(truncated & ~terminated, q_taken, reward)
        episode = Episode(
            total=episode.total + reward,
            length=episode.length + 1,
            q_sum=episode.q_sum + q_taken,
            return_sum=episode.return_sum + episode.weight * got,
            weight=1 + config.gamma * episode.weight,
        )
        excess = episode.q_sum - episode.return_sum
        final_obs, dtype = info["final_observation"], config.buffer_dtype  # what the step led to, before any reset
        unstorable = ~(storable(obs, dtype) & storable(final_obs, dtype))
        allowed = None if mask is None else mask.sum(axis=-1)
        steps = Steps(action, reward, ended, episode.total, episode.length, excess, unstorable, allowed)
        block = Buffer(encode(obs, dtype), action, reward, terminated, truncated, encode(final_obs, dtype))
        episode = jax.tree.map(lambda new, x: jnp.where(ended, new, x), new_episodes(config.num_envs), episode)
        return (env_state, next_obs, episode), (steps, block)

    carry = state.env_state, state.obs, state.episode
    carry, (steps, block) = jax.lax.scan(step, carry, (epsilon, *draws))
    block = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), block)  # [T, N, ...] -> [T * N, ...]
    return replace(state, env_state=carry[0], obs=carry[1], episode=carry[2]), steps, block


def write(buffer: Array, block: Array, row: Any, num_envs: int) -> Array:
    """Overwrite the rows from `row` on with those of `block`, which never run over the end."""
    return jax.lax.dynamic_update_slice_in_dim(buffer, block, row * num_envs, axis=0)


def replay_indices(bits: Array, rows: Array, capacity: int, num_envs: int, n_step: int) -> Any:
    """Which slots to learn from: `[..., n]` consecutive steps of one environment, and the age `[...]` of the first.

    Random uint32 `bits` `[...]` draw them uniformly, with replacement, from all stored steps but those of the newest
    n - 1 rows. Of the `rows` written so far, `[...]` or broadcast to it, the last `capacity` are stored.
    """
    stored = jnp.minimum(rows, capacity)
    starts = jnp.maximum(stored - (n_step - 1), 1) * num_envs  # the newest n - 1 rows have no whole return yet
    start = (bits % starts.astype(jnp.uint32)).astype(jnp.int32)
    row = rows - stored + start // num_envs  # counted from the first that was ever written
    slots = [(row + k) % capacity * num_envs + start % num_envs for k in range(n_step)]
    return jnp.stack(slots, axis=-1), (rows - 1 - row) * num_envs


def sample(task: Task, buffer: Array, index: Array, like: Array) -> Batch:
    """The n-step transitions at slots `[B, n]` (Sutton & Barto 2018, section 7.1), observations like `like`.

    Where people go wrong: the sum of rewards stops at either ending, because the next slot belongs to another episode;
    yet only `terminated` cuts the bootstrap, and it is from what the last step summed led to, never from a reset.
    """
    config, slots = task.config, index.T
    stored = encode(like, config.buffer_dtype)
    steps = [unpack(buffer[slot], stored) for slot in slots]
    reward, counted, discount = jnp.zeros(len(index)), jnp.ones(len(index), bool), jnp.ones(len(index))
    last = slots[0]
    for slot, step in zip(slots, steps, strict=True):
        reward += jnp.where(counted, discount * step.reward, 0.0)
        discount = jnp.where(counted, discount * config.gamma, discount)
        last = jnp.where(counted, slot, last)
        counted &= ~(step.terminated | step.truncated)
    end = unpack(buffer[last], stored)
    discount = jnp.where(end.terminated, 0.0, discount)
    decoded = partial(decode, buffer_dtype=config.buffer_dtype, like=like)
    return Batch(decoded(steps[0].obs), steps[0].action, reward, discount, decoded(end.next_obs))


def targets(task: Task, target_params: Any, params: Any, batch: Batch, epsilon: Any) -> Array:
    """What Q `[B]` is fitted to: the n-step return and the discounted value of where it led."""
    target_q = forward(task, target_params, batch.next_obs)
    online_q = forward(task, params, batch.next_obs) if task.config.target == "double" else target_q
    return batch.reward + batch.discount * next_values(task.config.target, target_q, online_q, epsilon)


def next_values(kind: str, target_q: Array, online_q: Array, epsilon: Any) -> Array:
    """Values `[B]` of next states, from Q `[B, A]` of the target network and of the online one.

    `double`: van Hasselt et al. 2016 (arXiv:1509.06461), eq. 4. `max`: Mnih et al. 2015. `expected_sarsa`: Sutton &
    Barto 2018, eq. 6.9, with the epsilon-greedy policy of the target network's values.
    """
    chex.assert_equal_shape((target_q, online_q))
    if kind == "max":
        return target_q.max(axis=-1)
    if kind == "expected_sarsa":
        return jnp.sum(epsilon_greedy(target_q, epsilon) * target_q, axis=-1)
    return taken(target_q, online_q.argmax(axis=-1))


def taken(q: Array, action: Array) -> Array:
    """Values `[B]` of the given actions."""
    # A mask, not a gather: the gradient of a gather is a scatter, which is slow on every backend.
    return jnp.sum(jnp.where(jax.nn.one_hot(action, q.shape[-1], dtype=bool), q, 0.0), axis=-1)


def loss(params: Any, task: Task, batch: Batch, target: Array) -> tuple[Array, Array]:
    """Mean error of Q, to be minimised, over one minibatch; and Q `[B]` of the actions taken."""
    # `target` comes as data: no gradient can flow through it.
    q = taken(forward(task, params, batch.obs), batch.action)
    chex.assert_equal_shape((q, target))  # [B, 1] - [B] would broadcast to [B, B]
    error = optax.huber_loss(q, target) if task.config.loss == "huber" else optax.l2_loss(q, target)
    return error.mean(), q


def epsilon_at(config: Config, env_steps: Any) -> Array:
    """Probability of a random action after so many environment steps of a seed."""
    progress = jnp.clip(env_steps / jnp.maximum(config.exploration_fraction * config.total_timesteps, 1.0), 0.0, 1.0)
    return config.start_e + progress * (config.end_e - config.start_e)


def epsilon_greedy(q: Array, epsilon: Any) -> Array:
    """Probabilities `[..., A]` of the actions with values `q`; 0 of those that are forbidden."""
    allowed = q > FORBIDDEN / 2
    share = epsilon * allowed / jnp.maximum(allowed.sum(axis=-1, keepdims=True), 1)
    return share + (1 - epsilon) * jax.nn.one_hot(q.argmax(axis=-1), q.shape[-1])


def random_allowed(mask: Array, bits: Array) -> Array:
    """One of the actions that a mask `[N, A]` allows, uniformly by random uint32 `bits` `[N]`."""
    number = jnp.cumsum(mask, axis=-1)  # 1 at the first that is allowed
    drawn = bits % jnp.maximum(number[:, -1], 1).astype(jnp.uint32) + 1
    return jnp.argmax(mask & (number == drawn[:, None]), axis=-1).astype(jnp.int32)


# ---- Network ---------------------------------------------------------------------------------------------------------
class Network(nn.Module):
    """Action values `[B, A]` of features `[B, F]`, or of images `[B, H, W, C]` through convolutions."""

    num_actions: int
    dueling: bool
    hidden_sizes: tuple[int, ...]
    activation: str
    conv_layers: tuple[tuple[int, int, int], ...]

    @nn.compact
    def __call__(self, x: Array) -> Array:
        activation = getattr(nn, self.activation)
        for i, (size, kernel, stride) in enumerate(self.conv_layers if x.ndim == 4 else ()):
            x = activation(nn.Dense(size, name=f"conv_{i}")(patches(x, kernel, stride)))
            self.sow("intermediates", "hidden", x)  # for `dormant_fraction` alone: not needed, and free elsewhere
        x = x.reshape(x.shape[0], -1)
        for i, size in enumerate(self.hidden_sizes):
            x = activation(nn.Dense(size, name=f"hidden_{i}")(x))
            self.sow("intermediates", "hidden", x)
        outputs = nn.Dense(self.num_actions, name="head")(x)
        if self.dueling:
            # Only the advantages' differences count: without the mean, a constant could move between the two heads.
            outputs += nn.Dense(1, name="value_head")(x) - outputs.mean(axis=-1, keepdims=True)
        return outputs


def patches(x: Array, kernel: int, stride: int) -> Array:
    """What a convolution sees, `[B, H', W', kernel * kernel * C]`, for a matrix product: faster, vmapped over seeds."""
    height, width = ((n - kernel) // stride + 1 for n in x.shape[1:3])
    if min(height, width) < 1:
        raise ValueError(f"conv_layers leave nothing of images: {kernel} x {kernel} does not fit into {x.shape[1:3]}")
    rows = [x[:, r : r + stride * height : stride] for r in range(kernel)]
    return jnp.concatenate([row[:, :, c : c + stride * width : stride] for row in rows for c in range(kernel)], -1)


def is_discrete(space: Any) -> bool:
    return hasattr(space, "n")  # not isinstance: importing gymnax for its classes takes seconds


def without_mask(obs: Array, space: Any) -> tuple[Array, Any, Array | None]:
    """Raw observations `[B, ...]` as networks see them, their space, and which actions are allowed: bool `[B, A]`.

    Where not all actions are, the observation space has `action_mask`: so many last numbers of each row say which.
    """
    if not (size := getattr(space, "action_mask", 0)):
        return obs, space, None
    mask = obs[:, -size:] > 0  # of a row that allows nothing, as some last states', all are allowed
    return obs[:, :-size].reshape(-1, *space.inner.shape), space.inner, mask | ~mask.any(axis=-1, keepdims=True)


def features(obs: Array, space: Any) -> Array:
    """Raw observations `[B, ...]` as float32: one-hot `[B, n]`, image `[B, H, W, C]`, anything else flat `[B, F]`."""
    obs, space, _ = without_mask(obs, space)
    if is_discrete(space):
        return jax.nn.one_hot(obs, space.n)
    if len(space.shape) == 3:
        return obs.astype(jnp.float32) / (255 if obs.dtype == jnp.uint8 else 1)
    return obs.reshape(obs.shape[0], -1).astype(jnp.float32)


def forward(task: Task, params: Any, obs: Array, **options: Any) -> Any:
    """Q `[B, A]` of raw observations `[B, ...]`, FORBIDDEN of actions that a mask forbids; `options` are flax's."""
    made: Any = task.network.apply(params, features(obs, task.obs_space), **options)
    mask = without_mask(obs, task.obs_space)[2]
    if mask is None:
        return made
    q, *others = made if options else (made,)
    q = jnp.where(mask, q, FORBIDDEN)
    return (q, *others) if options else q


# ---- Storage ---------------------------------------------------------------------------------------------------------
def pack(x: Buffer) -> Array:
    """Steps as rows of 32-bit words `[S, K]`, to the last bit.

    One array: a GPU starts a kernel for each that is written or read, and a TPU copies arrays of bytes to do either.
    """
    numbers = jnp.stack([x.action, x.reward, x.terminated, x.truncated], axis=1, dtype=jnp.float32)
    both = jnp.concatenate([obs.reshape(len(obs), -1) for obs in (x.obs, x.next_obs)], axis=1)
    both = jnp.pad(both, ((0, 0), (0, -both.shape[1] % (4 // both.dtype.itemsize))))
    return jnp.concatenate([numbers.view(jnp.uint32), both.view(jnp.uint32)], axis=1)


def unpack(rows: Array, like: Array) -> Buffer:
    """The steps that `pack` made rows `[S, K]` of, with flat observations, stored ones being like `like` `[N, ...]`."""
    action, reward, terminated, truncated = rows[:, :4].view(jnp.float32).T
    size, both = math.prod(like.shape[1:]), rows[:, 4:].view(like.dtype)
    obs, next_obs = both[:, :size], both[:, size : 2 * size]
    return Buffer(obs, action.astype(jnp.int32), reward, terminated > 0, truncated > 0, next_obs)


def encode(obs: Array, buffer_dtype: str) -> Array:
    """Observations `[B, ...]` as the replay buffer holds them; bits are packed eight to a byte."""
    if buffer_dtype == "bool":
        return jnp.packbits(obs.reshape(obs.shape[0], -1) != 0, axis=-1)
    return obs.astype(jnp.uint8) if buffer_dtype == "uint8" else obs


def decode(stored: Array, buffer_dtype: str, like: Array) -> Array:
    """What `encode` was given, in the shape and dtype of the observations `like` `[N, ...]`."""
    if buffer_dtype == "bool":
        stored = jnp.unpackbits(stored, axis=-1, count=math.prod(like.shape[1:]))
    return stored.reshape(-1, *like.shape[1:]).astype(like.dtype)


def storable(obs: Array, buffer_dtype: str) -> Array:
    """Whether `encode` keeps observations `[B, ...]`, bool `[B]`; by their numbers, for XLA drops encode and decode."""
    x = obs.reshape(obs.shape[0], -1).astype(jnp.float32)  # a number of 8 bits cannot be compared with 255
    kept = {"uint8": (x >= 0) & (x <= 255) & (x == jnp.floor(x)), "bool": (x == 0) | (x == 1)}
    return kept.get(buffer_dtype, jnp.ones_like(x, bool)).all(axis=1)


# ---- Diagnostics: rlref/metrics.py defines each name -----------------------------------------------------------------
def diagnose(
    task: Task, before: State, state: State, batch: Batch, epsilon: Any, steps: Steps, learned: Metrics, learning: Array
) -> dict[str, Any]:
    """What happened in this update, in scalars; some on `batch`, drawn at its end.

    `before` and `epsilon[0]` are from its start, `state` and `epsilon[1]` from its end; `steps` are `[C * T, N]`,
    `learned` `[C, ...]`, counted where `learning` `[C]`.
    """
    old_q = forward(task, before.params, batch.obs)
    new_q, hidden = forward(task, state.params, batch.obs, mutable=["intermediates"])
    old_value = taken(old_q, batch.action)
    old_target = targets(task, before.target_params, before.params, batch, epsilon[0])
    # At epsilon 0 the KL of two greedy policies is infinite.
    old, new = (epsilon_greedy(q, jnp.maximum(e, 0.01)) for q, e in zip((old_q, new_q), epsilon, strict=True))
    old, new = (jnp.where(old_q > FORBIDDEN / 2, p, 1.0) for p in (old, new))  # not log(0 / 0)
    on_batch = {
        "kl": jnp.sum(old * jnp.log(old / new), axis=-1).mean(),
        "churn": (old_q.argmax(axis=-1) != new_q.argmax(axis=-1)).mean(dtype=jnp.float32),
        "explained_variance": explained_variance(old_target, old_value),
        "value_bias": (old_target - old_value).mean(),
        "dormant_fraction": dormant_fraction(hidden),
    }
    finished = jnp.arange(RING) < state.num_episodes
    gradient_steps = learning.sum()
    # One bad number anywhere shows in these sums; the warm-up's gradient steps, which are thrown away, do not count.
    sums = jax.tree.map(lambda x: x.sum(where=learning.reshape(-1, *[1] * (x.ndim - 1))), learned)
    return {
        **summary("return", state.ring_return, finished),
        **summary("length", state.ring_length, finished),
        **summary("reward", steps.reward),
        **summary("value", learned["q"], learning[:, None]),
        **summary("target", learned["target"], learning[:, None]),
        **summary("td_error", learned["target"] - learned["q"], learning[:, None]),
        # In the warm-up the networks do not change, and the buffer may be empty of whole returns.
        **{name: jnp.where(gradient_steps > 0, x, jnp.nan) for name, x in on_batch.items()},
        "return_count": finished.sum(),
        "episodes": steps.ended.sum(),
        "overestimation": steps.excess.sum(where=steps.ended) / steps.length.sum(where=steps.ended),
        "action_entropy": entr(jax.nn.one_hot(steps.action, task.num_actions).mean(axis=(0, 1))).sum(),
        "unstorable_fraction": steps.unstorable.mean(dtype=jnp.float32),
        "gradient_steps": gradient_steps,
        "td_loss": learned["loss"].mean(where=learning),
        "grad_norm": learned["grad_norm"].mean(where=learning),
        "update_ratio": learned["step_norm"].mean(where=learning) / optax.tree.norm(before.params),
        "nonfinite": ~jnp.isfinite(jnp.stack([steps.reward.sum(), *sums.values()])).all(),
    }


def policy_entropy(epsilon: Array, num_actions: Any) -> Array:
    """Entropy in nats of an epsilon-greedy policy over so many actions."""
    other = epsilon / num_actions
    return entr(1 - epsilon + other) + (num_actions - 1) * entr(other)


def summary(name: str, x: Array, where: Array | None = None) -> dict[str, Array]:
    """Mean, standard deviation, minimum and maximum of `x`; NaN where `where` selects nothing."""
    where = jnp.ones(x.shape, bool) if where is None else jnp.broadcast_to(where, x.shape)
    count = where.sum()
    mean = x.sum(where=where) / count
    return {
        f"{name}_mean": mean,
        f"{name}_std": jnp.sqrt(((x - mean) ** 2).sum(where=where) / count),
        f"{name}_min": jnp.where(count > 0, x.min(where=where, initial=jnp.inf), jnp.nan),
        f"{name}_max": jnp.where(count > 0, x.max(where=where, initial=-jnp.inf), jnp.nan),
    }


def explained_variance(target: Array, value: Array) -> Array:
    """`1 - Var[target - value] / Var[target]`; NaN where the targets do not vary by more than float32 rounding."""
    variance = target.var()
    return jnp.where(variance > (1e-6 * jnp.abs(target).max()) ** 2, 1 - (target - value).var() / variance, jnp.nan)


def dormant_fraction(hidden: Any, tau: float = 0.025) -> Array:
    """Share of hidden units whose mean |activation| is at most `tau` of their layer's (Sokar et al. 2023, eq. 1)."""
    scores = [jnp.abs(h).reshape(-1, h.shape[-1]).mean(axis=0) for h in jax.tree.leaves(hidden)]
    dormant = [score <= tau * score.mean() for score in scores] or [jnp.full(1, jnp.nan)]  # a network that sows nothing
    return jnp.concatenate(dormant).mean(dtype=jnp.float32)


def record_episodes(state: State, ended: Array, episode_return: Array, episode_length: Array) -> State:
    """Write the episodes that ended in a rollout, arrays `[T, N]`, to the ring of the last `RING`."""
    ended = ended.reshape(-1)
    rank = jnp.cumsum(ended)  # 1 for the first that ended
    slot = jnp.where(ended & (rank > rank[-1] - RING), (state.num_episodes + rank - 1) % RING, RING)  # RING: dropped
    return replace(
        state,
        ring_return=state.ring_return.at[slot].set(episode_return.reshape(-1), mode="drop"),
        ring_length=state.ring_length.at[slot].set(episode_length.reshape(-1).astype(jnp.float32), mode="drop"),
        num_episodes=state.num_episodes + rank[-1],
    )


# ---- Checks and loading ----------------------------------------------------------------------------------------------
def check(config: Config, obs_space: Any, action_space: Any) -> None:
    """Raise ValueError, in one line, for settings or spaces that cannot train."""
    check_settings(config)

    def require(ok: Any, name: str, rule: str) -> None:
        if not ok:
            raise ValueError(f"{name} is {getattr(config, name)!r}; it must be {rule}")

    def multiple(name: str, of: str, unit: int, least: int = 1) -> None:
        low = max(getattr(config, name), least) // unit * unit
        nearest = " or ".join(str(x) for x in (low, low + unit) if x >= least)
        require(getattr(config, name) % unit == 0, name, f"a multiple of {of} = {unit}, such as {nearest}")

    frequency, cycles = config.train_frequency, config.cycles_per_update
    multiple("train_frequency", "num_envs", config.num_envs)
    multiple("buffer_size", "train_frequency", frequency, max(config.batch_size, config.learning_starts))
    rule = f"at least batch_size = {config.batch_size} and learning_starts = {config.learning_starts}"
    require(config.buffer_size >= max(config.batch_size, config.learning_starts), "buffer_size", rule)
    first, size = config.n_step * config.num_envs, cycles * frequency
    require(config.learning_starts >= first, "learning_starts", f"at least n_step x num_envs = {first}, a whole return")
    one_update = f"one update's cycles_per_update {cycles} x train_frequency {frequency} = {size}"
    require(config.total_timesteps >= size, "total_timesteps", f"at least {one_update}")
    steps = config.total_timesteps // size * size
    rule = f"at most the {steps} steps of the whole updates in total_timesteps, or nothing is learned"
    require(config.learning_starts <= steps, "learning_starts", rule)
    # Syncs come after a gradient step, at the same places in every update, or at the end of some.
    period = config.target_network_frequency
    grid = [frequency * k for k in range(1, cycles + 1) if cycles % k == 0]
    grid += [size * k for k in (period // size, period // size + 1) if k > 1]
    works = [x for x in grid if steps // x * x >= config.learning_starts]
    nearest = sorted(sorted(works, key=lambda x: abs(x - period))[:3])
    when = f"between learning_starts = {config.learning_starts} and the end at {steps}"
    rule = f"a divisor or a multiple of {one_update}, and of train_frequency, with a sync {when}, such as {nearest}"
    require(period in works, "target_network_frequency", rule)
    if not is_discrete(action_space):
        raise ValueError(f"{config.env_id} has the action space {action_space}; DQN takes Discrete, PPO others too")
    if not is_discrete(obs_space) and not hasattr(obs_space, "low"):
        raise ValueError(f"{config.env_id} has the observation space {obs_space}; DQN takes Discrete or Box")
    if (size := getattr(obs_space, "action_mask", 0)) not in (0, action_space.n):
        raise ValueError(f"the action_mask has {size} numbers; it must have one for each action of {action_space}")


def check_settings(config: Any) -> None:
    """Raise ValueError, in one line, for a setting of another type than its own, or outside its interval."""

    def allowed(x: Any, hint: Any) -> Any:
        kinds = get_args(hint)
        if get_origin(hint) is Literal:
            return type(x) in map(type, kinds) and x in kinds
        if type(None) in kinds:
            return x is None or any(allowed(x, kind) for kind in kinds if kind is not type(None))
        if get_origin(hint) is tuple:
            kinds = kinds[:1] * len(x) if isinstance(x, tuple) and ... in kinds else kinds
            return isinstance(x, tuple) and len(x) == len(kinds) and all(map(allowed, x, kinds))
        if hint not in (int, float):
            return hint not in (bool, str) or isinstance(x, hint)
        whole = isinstance(x, int | np.integer) and not isinstance(x, bool)
        if not (whole if hint is int else np.asarray(x).dtype.kind in "iuf"):
            return False
        y = np.asarray(x, np.float64 if hint is int else np.float32)  # an array: a number for each vmapped training
        at_ends = (y == low) & (interval[0] == "[") | (y == high) & (interval[-1] == "]")
        return np.all((low < y) & (y < high) | at_ends)

    hints = get_type_hints(type(config))
    for field in fields(config):
        x, interval = getattr(config, field.name), field.metadata.get("interval", "[-inf, inf]")
        low, high = map(np.float32, interval[1:-1].split(","))
        if not isinstance(x, jax.core.Tracer) and not allowed(x, hints[field.name]):  # what is traced cannot be seen
            within = f" in {interval}" if "int" in str(field.type) or "float" in str(field.type) else ""
            raise ValueError(f"{field.name} is {x!r}; it must be {field.type}{within}")


def load(path: Any, env: Any = None, env_params: Any = None) -> tuple[Agent, State]:
    """What `rlref export` wrote: the agent, and a state for its `policy` and `value` (not for training on)."""

    def tuples(x: Any) -> Any:
        return tuple(map(tuples, x)) if isinstance(x, list) else x

    with np.load(path) as file:
        settings, leaves = json.loads(str(file["config"])), {name: file[name] for name in file if "state/" in name}
    agent = make(Config(**{name: tuples(x) for name, x in settings.items()}), env, env_params)
    paths, tree = jax.tree.flatten_with_path(agent.init(jax.random.key(0)))
    fresh = {"state/" + jax.tree_util.keystr(where, simple=True, separator="/"): x for where, x in paths}
    if wrong := [name for name, x in leaves.items() if name not in fresh or x.shape != fresh[name].shape]:
        raise ValueError(f"{path} is of another agent or environment: {wrong[0]} does not fit this one's")
    return agent, jax.tree.unflatten(tree, (fresh | leaves).values())


if __name__ == "__main__":
    import sys
    from importlib.util import find_spec

    if find_spec("rlref"):
        from rlref.cli import main

        sys.exit(main(["train", __file__, *sys.argv[1:]]))
    _, diagnostics = jax.jit(jax.vmap(train, in_axes=(None, 0)))(Config(), jax.vmap(jax.random.key)(jnp.arange(4)))
    for name, x in diagnostics.items():
        print(f"{name:22}", *(f"{y:12.5g}" for y in x[:, -1]))
