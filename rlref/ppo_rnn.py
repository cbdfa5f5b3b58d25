"""Proximal Policy Optimisation (arXiv:1707.06347) with a recurrent network, GRU or LSTM, alone in this file.

    rlref train ppo_rnn    8 seeds of CartPole-v1 without its velocities; `python -m rlref.ppo_rnn` is the same
    python ppo_rnn.py      this file copied elsewhere, without rlref: MemoryChain-bsuite, prints the last update
    jax.jit(jax.vmap(ppo_rnn.train, in_axes=(None, 0)))(config, keys)        many seeds; an env_id of gymnax, or `env`

Read `update`, `collect`, `gae`, `learn`, `loss`: that is PPO; `remember` and `unroll` are the memory, and `sequences`
what it changes in learning. To edit a copy: a cell in `Network`, an optimiser in `make_optimizer`, a metric in
`diagnose`, a setting in `Config`. Every function is for ONE seed; batching over seeds is the caller's `vmap`. Letters:
`T` steps of a rollout, `N` environments, `L` steps of a sequence, `S` sequences of a rollout, `B` of a minibatch, `M`
minibatches of an epoch, `A` actions, `D` action dimensions, `F` features, `K` numbers of the memory: `memory_size`, and
of an LSTM twice as many. "37 details": Huang et al. 2022, "The 37 Implementation Details of PPO".
"""

# Original: ppo_rnn d650dbbb354d; by this line `rlref probe` tells what a copy has changed
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

RING = 100  # finished episodes that return_* and length_* look back on
FORBIDDEN = -1e9  # log probability of an action that a mask forbids; finite, as 0 times infinity is no number
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
    """Settings of PPO with a memory."""

    env_id: str = static("PositionOnlyCartPole-v1")  # rlref's own, and others, in its commands; else gymnax's alone
    total_timesteps: int = static(500_000)  # environment steps of one seed
    num_envs: int = static(8)  # environments stepped side by side in one seed
    num_steps: int = static(128)  # steps of each environment in one rollout
    sequence_length: int | None = static(32)  # steps that gradients go back at most; divides num_steps; more, None: all
    num_minibatches: int = static(4)  # minibatches per epoch; must divide the number of sequences
    update_epochs: int = static(4)  # passes over each rollout
    learning_rate: float = leaf(1e-3, "[0, inf)", (1e-5, 1e-2, "log"))  # Adam's step size, at the start
    anneal_lr: bool = static(True)  # lower the learning rate linearly to 0 over the training
    adam_eps: float = leaf(1e-5, "(0, inf)")  # Adam's epsilon
    max_grad_norm: float = leaf(0.5, "(0, inf]", (0.1, 10.0, "log"))  # clip the gradient's global norm; inf: do not
    gamma: float = leaf(0.99, "[0, 1]", (0.9, 0.999, "complement"))  # discount per step
    gae_lambda: float = leaf(0.95, "[0, 1]", (0.8, 1.0, "linear"))  # lambda of generalised advantage estimation
    clip_coef: float = leaf(0.2, "[0, inf)", (0.05, 0.5, "log"))  # clip the probability ratio to 1 +- this
    norm_adv: bool = static(True)  # normalise the advantages of each minibatch
    clip_vloss: bool = static(False)  # clip the value's change to +- clip_coef as well
    ent_coef: float = leaf(0.01, "[0, inf)", (1e-4, 0.1, "log"))  # weight of the entropy bonus
    vf_coef: float = leaf(0.5, "[0, inf)", (0.1, 2.0, "log"))  # weight of the value loss
    target_kl: float | None = leaf(None, "[0, inf)")  # nats; the first epoch with a KL above is the last; None: off
    normalize_observations: bool = static(True)  # by the mean and std of all seen so far; then clip to +-10
    scale_rewards: bool = static(True)  # divide by the std of their discounted sum so far, never shift; clip to +-10
    hidden_sizes: tuple[int, ...] = static((32,))  # units of each hidden layer before the memory
    cell: Literal["gru", "lstm"] = static("gru")  # the memory's kind
    memory_size: int = static(32)  # its units
    last_inputs: bool = static(True)  # the network also sees the last action and reward, as they were: not normalised
    activation: Literal["tanh", "relu", "swish"] = static("tanh")  # activation of the hidden layers
    conv_layers: tuple[tuple[int, int, int], ...] = static(((16, 3, 1),))  # of images: features, kernel size, stride
    init_log_std: float = leaf(0.0)  # log standard deviation of every action dimension at the start; for Box actions


class Seen(NamedTuple):
    """What a step shows to the network, beside its memory: fields `[...]` or `[..., F]`."""

    obs: Array  # raw, in the environment's dtype
    last_action: Array  # as the environment took it
    last_reward: Array
    reset: Array  # an episode's first step: neither memory nor last action and reward are of this episode


@flax.struct.dataclass
class State:
    """Everything needed to go on training one seed."""

    params: Any
    opt_state: optax.OptState  # over the parameters as one vector
    key: Array
    env_state: Any
    seen: Seen  # [N, ...] what the next action follows from, beside the memory
    memory: Array  # [N, K] after the last step
    episode_return: Array  # [N] of the episodes under way, undiscounted and unscaled
    episode_length: Array  # [N] int32
    ring_return: Array  # [RING] of the last finished episodes
    ring_length: Array  # [RING]
    num_episodes: Array  # int32, finished so far
    obs_moments: Moments | None  # None unless normalize_observations
    discounted_return: Array | None  # [N] discounted sum of the episode's rewards; None unless scale_rewards
    return_moments: Moments | None  # of discounted_return


class Rollout(NamedTuple):
    """`T` steps of `N` environments: every field is `[T, N, ...]`."""

    seen: Seen
    memory: Array  # after the step has been seen
    action: Array  # as sampled: a Box action is clipped for the environment alone
    policy: Categorical | DiagonalGaussian  # the distribution that the action was drawn from
    log_prob: Any  # added after the last step, for all at once
    reward: Array
    terminated: Array
    truncated: Array
    final: Seen  # what the step led to, before any reset
    episode_return: Array  # of the episode so far, this step included
    episode_length: Array


class Batch(NamedTuple):
    """What learning reads of a rollout, cut into sequences: fields `[L, S, ...]`, or `[L, B, ...]` in a minibatch."""

    memory: Array  # [2, S, K] before the first step of each sequence, and after its last
    seen: Seen
    action: Array
    policy: Categorical | DiagonalGaussian
    log_prob: Array
    value: Array
    advantage: Array
    target: Array


class Task(NamedTuple):
    """What training never changes: an argument of every function that needs it, so that each can be called alone."""

    config: Config
    env: Any
    env_params: Any
    obs_space: Any
    action_space: Any
    num_outputs: int  # of the policy: A for a Discrete action space, D for a Box, all choices' for MultiDiscrete
    network: Any


class Agent(NamedTuple):
    """What `make` returns, and all that rlref's runner and probes use of this file: functions bound to their `Task`."""

    init: Callable[[Array], State]  # key -> state of one seed
    update: Callable[[State, Array], tuple[State, Metrics]]  # step: int32, never batched -> float32 scalars
    policy: Callable[..., Any]  # state, memory, ONE step's `*Seen` -> probabilities [A]; Box: mean [D], std [D]; memory
    value: Callable[..., Any]  # state, memory, ONE step's `*Seen` -> V, in the environment's units; memory
    num_updates: int  # floor(total_timesteps / steps_per_update)
    steps_per_update: int  # environment steps of one update of one seed
    memory0: Array  # [K] before an episode's first step


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
    discrete = bool(choices(action_space))
    num_outputs = sum(choices(action_space)) if discrete else math.prod(action_space.shape)
    network = Network(num_outputs, discrete, config)
    task = Task(config, env, env_params, obs_space, action_space, num_outputs, network)
    steps_per_update = config.num_envs * config.num_steps
    num_updates = config.total_timesteps // steps_per_update

    def alone(state: State, memory: Array, *seen: Any) -> Any:
        seen = Seen(*(jnp.asarray(x)[None] for x in seen))
        return jax.tree.map(lambda x: x[0], forward(task, state.params, state.obs_moments, memory[None], seen))

    def policy(*args: Any) -> Any:
        policy, _, memory = alone(*args)
        discrete = isinstance(policy, Categorical)
        return jnp.exp(policy.log_probs) if discrete else (policy.mean, jnp.exp(policy.log_std)), memory

    def value(state: State, *args: Any) -> tuple[Array, Array]:
        _, value, memory = alone(state, *args)
        return value if state.return_moments is None else value * reward_scale(state.return_moments), memory

    functions = partial(init, task), partial(update, task, num_updates), policy, value
    return Agent(*functions, num_updates, steps_per_update, empty(config))


def make_optimizer(config: Config, learning_rate: Any) -> optax.GradientTransformation:
    """The optimiser of one update, at its learning rate, which follows from `step` and not from a count per seed."""
    return optax.chain(optax.clip_by_global_norm(config.max_grad_norm), optax.adam(learning_rate, eps=config.adam_eps))


def init(task: Task, key: Array) -> State:
    """Fresh parameters and environments of one seed."""
    config, num_envs = task.config, task.config.num_envs
    key, key_env, key_net = jax.random.split(key, 3)
    obs, env_state = jax.vmap(task.env.reset, in_axes=(0, None))(jax.random.split(key_env, num_envs), task.env_params)
    space = task.action_space
    last_action = jnp.zeros((num_envs, *space.shape), space.dtype)
    seen = Seen(obs, last_action, jnp.zeros(num_envs), jnp.ones(num_envs, bool))
    memory = jnp.tile(empty(config), (num_envs, 1))
    x = features(obs, task.obs_space)
    params = {"params": task.network.init(key_net, x, extras(task, seen), memory)["params"]}  # without what `sow` adds
    opt_state = make_optimizer(config, config.learning_rate).init(ravel_pytree(params)[0])
    episodes = jnp.zeros(num_envs), jnp.zeros(num_envs, jnp.int32), jnp.zeros(RING), jnp.zeros(RING), jnp.int32(0)
    obs_moments = Moments.of(x) if config.normalize_observations else None
    scaling = (jnp.zeros(num_envs), Moments(*jnp.zeros(3))) if config.scale_rewards else (None, None)
    return State(params, opt_state, key, env_state, seen, memory, *episodes, obs_moments, *scaling)


# ---- The algorithm ---------------------------------------------------------------------------------------------------
def update(task: Task, num_updates: int, state: State, step: Array) -> tuple[State, Metrics]:
    """One rollout and the learning from it."""
    config = task.config
    key, key_collect, key_shuffle = jax.random.split(state.key, 3)
    start = state.memory
    state, rollout = collect(task, replace(state, key=key), key_collect)
    reward, ended = rollout.reward, rollout.terminated | rollout.truncated
    if state.return_moments is not None:
        total, totals = discounted_returns(state.discounted_return, reward, ended, config.gamma)
        moments = state.return_moments.merge(Moments.of(totals.reshape(-1)))
        state = replace(state, discounted_return=total, return_moments=moments)
        reward = jnp.clip(reward / reward_scale(moments), -10.0, 10.0)
    # Values of all steps at once: large matrix products are faster than a small one at every step of the rollout.
    # Next values are of what a step led to, as the memory before any reset sees it, and not of the next row: after an
    # ending, that is another episode's first step.
    memory, seen, final = flat((rollout.memory, rollout.seen, rollout.final))
    value = decide(task, state.params, memory, seen.obs)[1].reshape(reward.shape)
    next_value = forward(task, state.params, state.obs_moments, memory, final)[1].reshape(reward.shape)
    advantage = gae(reward, value, next_value, rollout.terminated, rollout.truncated, config.gamma, config.gae_lambda)
    before = sequences(config, jnp.concatenate([start[None], rollout.memory[:-1]]))[0]
    ends = jnp.stack([before, sequences(config, rollout.memory)[-1]])
    steps = rollout.seen, rollout.action, rollout.policy, rollout.log_prob, value, advantage, advantage + value
    batch = Batch(ends, *jax.tree.map(partial(sequences, config), steps))
    indices = minibatch_indices(key_shuffle, config.update_epochs, ends.shape[1], config.num_minibatches)
    learning_rate = config.learning_rate * ((1 - step / num_updates) if config.anneal_lr else jnp.float32(1))
    state, aux = learn(task, state, batch, indices, learning_rate)
    state = record_episodes(state, ended, rollout.episode_return, rollout.episode_length)
    diagnostics = diagnose(task, state, batch, jax.tree.map(lambda x: x[:, indices[0, 0]], batch), aux)
    diagnostics |= summary("reward", reward)
    diagnostics |= {"env_steps": (step + 1.0) * reward.size, "episodes": ended.sum(), "learning_rate": learning_rate}
    if state.obs_moments is not None:
        # Only now: one update uses one set of statistics throughout, so that its first ratio is 1.
        news = flat(jnp.concatenate([rollout.seen.obs[1:], state.seen.obs[None]]))  # the first was counted when new
        state = replace(state, obs_moments=state.obs_moments.merge(Moments.of(features(news, task.obs_space))))
    return state, {name: jnp.asarray(x, jnp.float32) for name, x in diagnostics.items()}


def collect(task: Task, state: State, key: Array) -> tuple[State, Rollout]:
    """Run the policy for `T` steps in each of `N` environments."""
    # All randomness at once: on a CPU, drawing it step by step costs more than the policy does.
    key_act, key_env = jax.random.split(key)
    shape = task.config.num_steps, task.config.num_envs
    distribution = Categorical if choices(task.action_space) else DiagonalGaussian
    noise = distribution.noise(key_act, (*shape, task.num_outputs))
    env_step = jax.vmap(task.env.step, in_axes=(0, 0, 0, None))

    def step(state: State, x: tuple[Array, Array]) -> tuple[State, Rollout]:
        noise, keys_env = x
        policy, _, memory = forward(task, state.params, state.obs_moments, state.memory, state.seen)
        policy = jax.lax.optimization_barrier(policy)  # else XLA computes it twice, to sample and to keep
        action = policy.sample(noise)
        sent = env_action(task, action)
        obs, env_state, reward, terminated, truncated, info = env_step(keys_env, state.env_state, sent, task.env_params)
        reward, ended = reward.astype(jnp.float32), terminated | truncated
        seen = Seen(obs, sent, reward, ended)  # `ended` is the next step's reset
        final = Seen(info["final_observation"], sent, reward, jnp.zeros_like(ended))
        total, length = state.episode_return + reward, state.episode_length + 1
        kept = Rollout(state.seen, memory, action, policy, None, reward, terminated, truncated, final, total, length)
        total, length = jnp.where(ended, 0.0, total), jnp.where(ended, 0, length)
        state = replace(state, env_state=env_state, seen=seen, memory=memory)
        return replace(state, episode_return=total, episode_length=length), kept

    state, rollout = jax.lax.scan(step, state, (noise, jax.random.split(key_env, shape)))
    return state, rollout._replace(log_prob=rollout.policy.log_prob(rollout.action))


def flat(tree: Any) -> Any:
    """Arrays `[T, N, ...]` as `[T * N, ...]`."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), tree)


def sequences(config: Config, x: Array) -> Array:
    """An array `[T, N, ...]` cut into sequences `[L, S, ...]`, in each of which time goes on."""
    length = min(config.sequence_length or config.num_steps, config.num_steps)
    return x.reshape(-1, length, *x.shape[1:]).swapaxes(0, 1).reshape(length, -1, *x.shape[2:])


def env_action(task: Task, action: Array) -> Array:
    """Actions `[N]` or `[N, D]` as the environment takes them; clipping to a Box happens here and nowhere else."""
    space = task.action_space
    if choices(space):
        return action
    return jnp.clip(action.reshape(action.shape[0], *space.shape), space.low, space.high).astype(space.dtype)


def gae(reward: Array, value: Array, next_value: Array, terminated: Array, truncated: Array, gamma, gae_lambda):
    """Generalised advantage estimation (Schulman et al. 2015, arXiv:1506.02438, eq. 16); arrays are `[T]` or `[T, N]`.

        delta_t = r_t + gamma (1 - terminated_t) V(s'_t) - V(s_t)
        A_t     = delta_t + gamma lambda (1 - terminated_t) (1 - truncated_t) A_{t+1}

    `next_value` is of the step's FINAL observation, seen with the memory before any reset. A time limit does not end
    the value (Pardo et al. 2018, arXiv:1712.00378); yet either ending cuts the trace.
    """
    chex.assert_equal_shape((reward, value, next_value, terminated, truncated))
    delta = reward + gamma * jnp.where(terminated, 0.0, next_value) - value
    trace = gamma * gae_lambda * jnp.where(terminated | truncated, 0.0, 1.0)

    def step(advantage: Array, x: tuple[Array, Array]) -> tuple[Array, Array]:
        advantage = x[0] + x[1] * advantage
        return advantage, advantage

    return jax.lax.scan(step, jnp.zeros_like(delta[0]), (delta, trace), reverse=True, unroll=8)[1]


def minibatch_indices(key: Array, epochs: int, batch_size: int, num_minibatches: int) -> Array:
    """`[epochs, M, B]`: in each epoch every sequence once, in an order of its own (37 details, core 6)."""
    # One sort of random high bits over the index as low bits; `jax.random.permutation` sorts pairs, slowly on a CPU.
    low = jnp.uint32((1 << int(batch_size - 1).bit_length()) - 1)
    order = jnp.sort(jax.random.bits(key, (epochs, batch_size)) & ~low | jnp.arange(batch_size, dtype=jnp.uint32)) & low
    return order.astype(jnp.int32).reshape(epochs, num_minibatches, batch_size // num_minibatches)


def learn(task: Task, state: State, batch: Batch, indices: Array, learning_rate: Array) -> tuple[State, Metrics]:
    """Epochs of minibatch gradient steps over one rollout, and diagnostics `[epochs, M]`."""
    optimizer, target_kl = make_optimizer(task.config, learning_rate), task.config.target_kl
    # One vector instead of a dozen arrays: an optimiser step is a few kernels, not a hundred. One that looks at single
    # layers (LAMB, Muon, masks) takes `unravel(gradient)`, `unravel(params)`, in `init` `params`; ravel its change.
    params, unravel = ravel_pytree(state.params)
    params_norm = jnp.sqrt(optax.tree.vdot(params, params))

    def minibatch_step(carry: tuple[Any, ...], index: Array) -> tuple[tuple[Any, ...], Metrics]:
        params, opt_state, going = carry
        minibatch = jax.tree.map(lambda x: x[:, index], batch)
        gradient, aux = jax.grad(lambda p: loss(unravel(p), task, state.obs_moments, minibatch), has_aux=True)(params)
        change, new_opt_state = optimizer.update(gradient, opt_state, params)
        aux |= {"grad_norm": optax.tree.norm(gradient), "applied": going.astype(jnp.float32)}
        aux["update_ratio"] = jnp.sqrt(optax.tree.vdot(change, change)) / params_norm
        new = optax.apply_updates(params, change), new_opt_state
        if target_kl is not None:  # not `cond`, which vmap turns into this `where` anyway
            new = jax.tree.map(partial(jnp.where, going), new, (params, opt_state))
        return (*new, going), aux

    def epoch(carry: tuple[Any, ...], indices: Array) -> tuple[tuple[Any, ...], Metrics]:
        (params, opt_state, going), aux = jax.lax.scan(minibatch_step, carry, indices)
        if target_kl is not None:
            going &= aux["approx_kl"].mean() <= target_kl
        return (params, opt_state, going), aux

    (params, opt_state, _), aux = jax.lax.scan(epoch, (params, state.opt_state, jnp.bool(True)), indices)
    return replace(state, params=unravel(params), opt_state=opt_state), aux


def loss(params: Any, task: Task, obs_moments: Moments | None, batch: Batch) -> tuple[Array, Metrics]:
    """PPO's objective, to be minimised, over one minibatch (Schulman et al. 2017, eq. 9); and its diagnostics."""
    config = task.config
    new = encode(task, params, obs_moments, flat(batch.seen))
    memory = unroll(task, params, batch.memory[0], new, batch.seen.reset)
    batch = flat(batch._replace(memory=memory))  # from here on as without a memory
    policy, value = decide(task, params, batch.memory, batch.seen.obs)
    log_ratio = policy.log_prob(batch.action) - batch.log_prob
    ratio = jnp.exp(log_ratio)
    advantage = batch.advantage
    if config.norm_adv:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    clipped_ratio = jnp.clip(ratio, 1 - config.clip_coef, 1 + config.clip_coef)
    # min, the pessimistic bound: no gradient only where the ratio has moved too far in the direction that pays.
    policy_loss = -jnp.minimum(ratio * advantage, clipped_ratio * advantage).mean()
    squared_error = (value - batch.target) ** 2
    if config.clip_vloss:
        clipped_value = batch.value + jnp.clip(value - batch.value, -config.clip_coef, config.clip_coef)
        squared_error = jnp.maximum(squared_error, (clipped_value - batch.target) ** 2)
    value_loss = 0.5 * squared_error.mean()
    total = policy_loss + config.vf_coef * value_loss - config.ent_coef * policy.entropy().mean()
    return total, {
        "loss": total,
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "approx_kl": (ratio - 1 - log_ratio).mean(),  # k3 of Schulman 2020, "Approximating KL Divergence"
        "clip_fraction": (jnp.abs(ratio - 1) > config.clip_coef).mean(dtype=jnp.float32),
        "ratio_error": jnp.abs(ratio - 1).max(),
    }


# ---- Policies, network and normalisation -----------------------------------------------------------------------------
@flax.struct.dataclass
class Categorical:
    """Policy over a Discrete or MultiDiscrete space; `log_probs` `[..., A]`, of each choice at a time normalised.

    Sums over the actions of all choices are sums over choices: entropies and KLs of independent ones add up.
    """

    log_probs: Array
    sizes: tuple[int, ...] = static(())  # of several choices at a time, which stand one after the other
    noise = staticmethod(jax.random.gumbel)  # key, shape -> what `sample` takes

    def each(self, x: Array) -> list[Array]:
        return jnp.split(x, np.cumsum(self.sizes)[:-1], axis=-1) if self.sizes else [x]

    def sample(self, noise: Array) -> Array:
        # The Gumbel-max trick: a draw from the distribution.
        actions = [jnp.argmax(x, axis=-1) for x in self.each(self.log_probs + noise)]
        return jnp.stack(actions, axis=-1) if self.sizes else actions[0]

    def log_prob(self, action: Array) -> Array:
        # A mask, not a gather: the gradient of a gather is a scatter, which is slow on every backend.
        actions = jnp.unstack(action, axis=-1) if self.sizes else [action]
        each = zip(actions, self.each(self.log_probs), strict=True)
        taken = [jnp.where(jax.nn.one_hot(a, x.shape[-1], dtype=bool), x, 0.0).sum(axis=-1) for a, x in each]
        return sum(taken[1:], taken[0])

    def entropy(self) -> Array:
        return -jnp.sum(jnp.exp(self.log_probs) * self.log_probs, axis=-1)

    def kl(self, other: Categorical) -> Array:  # KL(self, other) in nats
        return jnp.sum(jnp.exp(self.log_probs) * (self.log_probs - other.log_probs), axis=-1)

    def highest_entropy(self) -> Array:  # of a policy that takes all allowed actions alike
        return jnp.stack([jnp.log((x > FORBIDDEN / 2).sum(axis=-1)) for x in self.each(self.log_probs)]).sum(axis=0)


@flax.struct.dataclass
class DiagonalGaussian:
    """Policy over a Box space; `mean` and `log_std` are `[..., D]`, in the environment's units."""

    mean: Array
    log_std: Array
    noise = staticmethod(jax.random.normal)

    def sample(self, noise: Array) -> Array:
        return self.mean + jnp.exp(self.log_std) * noise

    def log_prob(self, action: Array) -> Array:
        # A sum over action dimensions, not a mean: they are independent, so the joint density is their product.
        z = (action - self.mean) * jnp.exp(-self.log_std)
        return jnp.sum(-0.5 * z**2 - self.log_std - 0.5 * math.log(2 * math.pi), axis=-1)

    def entropy(self) -> Array:
        return jnp.sum(self.log_std + 0.5 * math.log(2 * math.pi * math.e), axis=-1)

    def kl(self, other: DiagonalGaussian) -> Array:  # KL(self, other) in nats
        log_ratio = self.log_std - other.log_std
        z = (self.mean - other.mean) * jnp.exp(-other.log_std)
        return 0.5 * jnp.sum(jnp.exp(2 * log_ratio) - 1 - 2 * log_ratio + z**2, axis=-1)


class Network(nn.Module):
    """`encode` what a step shows, `remember` it, `decide` by the memory: of ONE step each, of `B` environments."""

    num_outputs: int
    discrete: bool
    config: Config

    def setup(self) -> None:
        config, wide = self.config, orthogonal(math.sqrt(2))
        gates = (3 if config.cell == "gru" else 4) * config.memory_size
        self.conv = [nn.Dense(size, kernel_init=wide) for size, _, _ in config.conv_layers]
        self.hidden = [nn.Dense(size, kernel_init=wide) for size in config.hidden_sizes]
        self.inputs = nn.Dense(gates, kernel_init=orthogonal(1.0))
        self.recurrent = nn.Dense(gates, kernel_init=each_orthogonal)
        # A small last layer makes the first policy nearly uniform (37 details, core 2).
        self.policy_head = nn.Dense(self.num_outputs, kernel_init=orthogonal(0.01))
        self.value_head = nn.Dense(1, kernel_init=orthogonal(1.0))
        if not self.discrete:  # added to `init_log_std`, which may be traced
            self.log_std = self.param("log_std", nn.initializers.zeros, (self.num_outputs,))

    def encode(self, x: Array, extras: Array) -> Array:
        """Inputs of the memory's gates, from features `[B, F]` or images `[B, H, W, C]`, and `extras` `[B, ...]`."""
        activation = getattr(nn, self.config.activation)
        for layer, (_, kernel, stride) in zip(self.conv, self.config.conv_layers if x.ndim == 4 else (), strict=False):
            x = activation(layer(patches(x, kernel, stride)))
            self.sow("intermediates", "hidden", x)  # for `dormant_fraction` alone: not needed, and free elsewhere
        x = jnp.concatenate([x.reshape(x.shape[0], -1), extras], axis=-1)
        for layer in self.hidden:
            x = activation(layer(x))
            self.sow("intermediates", "hidden", x)
        return self.inputs(x)

    def remember(self, memory: Array, new: Array) -> Array:
        """The memory after inputs: GRU (Cho et al. 2014, as in cuDNN) or LSTM (Gers et al. 2000): h, and then c."""
        if self.config.cell == "gru":
            (xr, xz, xn), (hr, hz, hn) = jnp.split(new, 3, axis=-1), jnp.split(self.recurrent(memory), 3, axis=-1)
            keep = nn.sigmoid(xz + hz)
            return keep * memory + (1 - keep) * jnp.tanh(xn + nn.sigmoid(xr + hr) * hn)
        h, c = jnp.split(memory, 2, axis=-1)
        write, forget, output, news = jnp.split(new + self.recurrent(h), 4, axis=-1)
        c = nn.sigmoid(forget + 1) * c + nn.sigmoid(write) * jnp.tanh(news)
        return jnp.concatenate([nn.sigmoid(output) * jnp.tanh(c), c], axis=-1)

    def decide(self, memory: Array) -> tuple[Categorical | DiagonalGaussian, Array]:
        h = memory[:, : self.config.memory_size]
        outputs, value = self.policy_head(h), self.value_head(h)[..., 0]
        if self.discrete:
            return Categorical(jax.nn.log_softmax(outputs)), value
        log_std = self.config.init_log_std + self.log_std
        return DiagonalGaussian(outputs, jnp.broadcast_to(log_std, outputs.shape)), value

    def __call__(self, x: Array, extras: Array, memory: Array) -> Any:  # for `init` alone
        return self.decide(self.remember(memory, self.encode(x, extras)))


def orthogonal(scale: float) -> Callable[..., Array]:
    """Orthogonal initialisation (37 details, core 2); on a CPU a loop over seeds: batched QR deadlocks on few cores."""

    def initialize(key: Array, shape: Any, dtype: Any) -> Array:
        alone = partial(nn.initializers.orthogonal(scale), shape=shape, dtype=dtype)
        return jax.lax.platform_dependent(key, cpu=jax.custom_batching.sequential_vmap(alone), default=alone)

    return initialize


def each_orthogonal(key: Array, shape: Any, dtype: Any) -> Array:
    """A memory's weights `[units, gates * units]`: a matrix for each gate, which neither shrinks nor stretches it."""
    keys = jax.random.split(key, shape[1] // shape[0])
    return jnp.concatenate([orthogonal(1.0)(key, (shape[0], shape[0]), dtype) for key in keys], axis=1)


def patches(x: Array, kernel: int, stride: int) -> Array:
    """What a convolution sees, `[B, H', W', kernel * kernel * C]`, for a matrix product: faster, vmapped over seeds."""
    height, width = ((n - kernel) // stride + 1 for n in x.shape[1:3])
    if min(height, width) < 1:
        raise ValueError(f"conv_layers leave nothing of images: {kernel} x {kernel} does not fit into {x.shape[1:3]}")
    rows = [x[:, r : r + stride * height : stride] for r in range(kernel)]
    return jnp.concatenate([row[:, :, c : c + stride * width : stride] for row in rows for c in range(kernel)], -1)


def is_discrete(space: Any) -> bool:
    return hasattr(space, "n")  # not isinstance: importing gymnax for its classes takes seconds


def choices(space: Any) -> tuple[int, ...]:
    """How many options an action has: of each choice at a time, one if Discrete, several if MultiDiscrete; Box: ()."""
    return (space.n,) if is_discrete(space) else tuple(getattr(space, "nvec", ()))


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


def extras(task: Task, seen: Seen) -> Array:
    """What the network sees beside observations, `[B, ...]`: last action and reward, 0 in an episode's first step."""
    if not task.config.last_inputs:
        return jnp.zeros((seen.reset.shape[0], 0))
    sizes = choices(task.action_space)
    x = seen.last_action.reshape(seen.reset.shape[0], -1)
    x = jnp.concatenate([jax.nn.one_hot(x[:, i], n) for i, n in enumerate(sizes)], axis=-1) if sizes else x
    return jnp.where(seen.reset[:, None], 0.0, jnp.concatenate([x, seen.last_reward[:, None]], axis=-1))


def encode(task: Task, params: Any, obs_moments: Moments | None, seen: Seen, **options: Any) -> Any:
    """What the memory is given of steps `[B, ...]`; `options` are flax's."""
    x = features(seen.obs, task.obs_space)
    x = x if obs_moments is None else normalize(x, obs_moments)
    return task.network.apply(params, x, extras(task, seen), method="encode", **options)


def empty(config: Config) -> Array:
    """The memory before an episode's first step."""
    return jnp.zeros(config.memory_size * (1 if config.cell == "gru" else 2))


def remember(task: Task, params: Any, memory: Array, new: Array, reset: Array) -> Array:
    """The memory `[B, K]` after a step that showed `new`: where an episode begins, without the one before."""
    memory = jnp.where(reset[:, None], empty(task.config), memory)
    return task.network.apply(params, memory, new, method="remember")


def decide(task: Task, params: Any, memory: Array, obs: Array) -> tuple[Categorical | DiagonalGaussian, Array]:
    """Policy and value at memories `[B, K]`; `obs` says which actions are allowed."""
    policy, value = task.network.apply(params, memory, method="decide")
    return restrict(task, policy, obs), value


def forward(task: Task, params: Any, obs_moments: Moments | None, memory: Array, seen: Seen) -> Any:
    """Policy, value, and memory after one step `[B, ...]`, from the memory `[B, K]` before it."""
    memory = remember(task, params, memory, encode(task, params, obs_moments, seen), seen.reset)
    return *decide(task, params, memory, seen.obs), memory


def unroll(task: Task, params: Any, memory: Array, new: Array, reset: Array) -> Array:
    """Memories `[L, B, K]` after each step of sequences that show `new` `[L * B, ...]`; `memory` `[B, K]` is before."""

    def step(memory: Array, x: tuple[Array, Array]) -> tuple[Array, Array]:
        memory = remember(task, params, memory, *x)
        return memory, memory

    return jax.lax.scan(step, memory, (new.reshape(*reset.shape, -1), reset))[1]


def restrict(task: Task, policy: Categorical | DiagonalGaussian, obs: Array) -> Categorical | DiagonalGaussian:
    """A network's policy choice by choice, where there are several, and among allowed actions."""
    nvec, mask = tuple(getattr(task.action_space, "nvec", ())), without_mask(obs, task.obs_space)[2]
    if isinstance(policy, DiagonalGaussian) or (not nvec and mask is None):
        return policy
    x = policy.log_probs if mask is None else jnp.where(mask, policy.log_probs, FORBIDDEN)
    policy = Categorical(x, nvec)
    return replace(policy, log_probs=jnp.concatenate([jax.nn.log_softmax(y) for y in policy.each(x)], axis=-1))


@flax.struct.dataclass
class Moments:
    """Mean and variance of all data seen so far."""

    mean: Array
    variance: Array
    count: Array

    @classmethod
    def of(cls, batch: Array) -> Moments:
        return cls(batch.mean(axis=0), batch.var(axis=0), jnp.float32(batch.shape[0]))

    def merge(self, other: Moments) -> Moments:
        """Chan, Golub & LeVeque 1979: exact, and without the difference of large sums of squares."""
        count = self.count + other.count
        delta, share = other.mean - self.mean, other.count / count
        variance = self.variance * (1 - share) + other.variance * share + delta**2 * share * (1 - share)
        return Moments(self.mean + delta * share, variance, count)


def normalize(x: Array, moments: Moments) -> Array:
    """Observation normalisation and clipping (37 details, continuous 6 and 7)."""
    return jnp.clip((x - moments.mean) / jnp.sqrt(moments.variance + 1e-8), -10.0, 10.0)


def discounted_returns(start: Any, reward: Array, ended: Array, gamma: Any) -> tuple[Array, Array]:
    """Sums `R_t = gamma R_{t-1} + r_t` that begin anew after an episode's end: the last `[N]` and all `[T, N]`."""

    def step(carry: Array, x: tuple[Array, Array]) -> tuple[Array, Array]:
        total = gamma * carry + x[0]
        return jnp.where(x[1], 0.0, total), total

    return jax.lax.scan(step, start, (reward, ended), unroll=8)


def reward_scale(moments: Moments) -> Array:
    """What rewards are divided by (37 details, continuous 8); 1 as long as the discounted return has not varied."""
    return jnp.where(moments.variance > 1e-6 * moments.mean**2, jnp.sqrt(moments.variance), 1.0)


# ---- Diagnostics: rlref/metrics.py defines each name -----------------------------------------------------------------
def diagnose(task: Task, state: State, batch: Batch, part: Batch, aux: Metrics) -> dict[str, Any]:
    """What happened in this update, in scalars: add yours below. `part` is a random minibatch of `batch`."""
    new, hidden = encode(task, state.params, state.obs_moments, flat(part.seen), mutable=["intermediates"])
    memory = unroll(task, state.params, part.memory[0], new, part.seen.reset)
    policy, _ = decide(task, state.params, flat(memory), flat(part.seen.obs))
    entropy = batch.policy.entropy().mean()
    if isinstance(batch.policy, Categorical):
        relative_entropy = entropy / batch.policy.highest_entropy().mean()  # one action: 0 / 0, undefined
    else:
        relative_entropy = (batch.policy.log_std - task.config.init_log_std).mean()  # nats since the start
    applied, first_ratio_error = aux.pop("applied"), aux.pop("ratio_error")[0, 0]
    means = {name: x.mean(where=applied > 0) for name, x in aux.items()}
    finished = jnp.arange(RING) < state.num_episodes
    return {
        **means,
        **summary("return", state.ring_return, finished),
        **summary("length", state.ring_length, finished),
        **summary("advantage", batch.advantage),
        **summary("target", batch.target),
        **summary("value", batch.value),
        **memory_diagnostics(task, state.params, part, memory, new, policy),
        "return_count": finished.sum(),
        "entropy": entropy,
        "relative_entropy": relative_entropy,
        "kl": flat(part.policy).kl(policy).mean(),
        "explained_variance": explained_variance(batch.target, batch.value),
        "value_bias": (batch.target - batch.value).mean(),
        "first_ratio_error": first_ratio_error,
        "gradient_steps": applied.sum(),
        "gradient_noise_scale": gradient_noise_scale(state.opt_state, part.value.size),
        "dormant_fraction": dormant_fraction(hidden),
        # `means` are over all steps: one bad number shows. One infinite reward turns scaling off: hence its moments.
        "nonfinite": ~jnp.isfinite(jnp.stack([*means.values(), *jax.tree.leaves(state.return_moments)])).all(),
    }


def memory_diagnostics(task: Task, params: Any, part: Batch, memory: Array, new: Array, policy: Any) -> Metrics:
    """Of memories `[L, B, K]` after each step, which showed `new` `[L * B, ...]` and led to `policy`."""
    reset, size = part.seen.reset, task.config.memory_size
    nothing = remember(task, params, flat(memory), new, jnp.ones(reset.size, bool))
    without, _ = decide(task, params, nothing, flat(part.seen.obs))
    bounded = memory if task.config.cell == "gru" else jnp.tanh(memory[..., size:])

    def back(gradient: Array, x: tuple[Array, ...]) -> tuple[Array, Array]:  # a unit vector, sent back in time
        before, new, reset = x
        _, pull = jax.vjp(lambda memory: remember(task, params, memory, new, jnp.zeros_like(reset)), before)
        (gradient,) = pull(gradient)
        norm = jnp.maximum(jnp.linalg.norm(gradient, axis=-1), 1e-30)
        return jnp.where(reset[:, None], unit, gradient / norm[:, None]), jnp.log(norm)

    before = jnp.concatenate([part.memory[:1], memory[:-1]])
    unit = jnp.full_like(memory[0], memory.shape[-1] ** -0.5)
    growth = jax.lax.scan(back, unit, (before, new.reshape(*reset.shape, -1), reset), reverse=True)[1]
    return {
        "memory_norm": jnp.sqrt((memory[..., :size] ** 2).mean()),
        "memory_saturation": (jnp.abs(bounded) > 0.95).mean(dtype=jnp.float32),
        "memory_kl": policy.kl(without).mean(),
        "memory_staleness": jnp.linalg.norm(memory[-1] - part.memory[1]) / jnp.linalg.norm(memory[-1]),
        "memory_gradient": jnp.exp(growth.mean(where=~reset)),
    }


def summary(name: str, x: Array, where: Array | None = None) -> Metrics:
    """Mean, standard deviation, minimum and maximum of `x`; NaN where `where` selects nothing."""
    count = x.size if where is None else where.sum()
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


def gradient_noise_scale(opt_state: optax.OptState, batch_size: int) -> Array:
    """tr(Sigma) / |G|^2 in samples (arXiv:1812.06162), by Adam's moments with b1 .9 and b2 .999; NaN without them."""
    adam = [x for _, x in optax.tree.get_all_with_path(opt_state, "ScaleByAdamState")]
    if len(adam) != 1:
        return jnp.float32(jnp.nan)
    mean = ravel_pytree(adam[0].mu)[0] / (1 - 0.9 ** adam[0].count)
    square = ravel_pytree(adam[0].nu)[0] / (1 - 0.999 ** adam[0].count)
    return batch_size * (square.sum() - jnp.vdot(mean, mean)) / jnp.vdot(mean, mean)


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
    size, length = config.num_envs * config.num_steps, config.num_steps
    length = min(config.sequence_length or length, length)
    batch = f"num_envs {config.num_envs} x num_steps {config.num_steps} = {size}"
    for name, wanted, whole, what in (
        ("sequence_length", length, config.num_steps, f"num_steps {config.num_steps}"),
        ("num_minibatches", config.num_minibatches, size // length, f"the {size // length} sequences of a rollout"),
    ):
        near = sorted((m for m in range(1, whole + 1) if whole % m == 0), key=lambda m: abs(m - wanted))[:3]
        if whole % wanted:
            raise ValueError(f"{name} is {wanted}; it must be a divisor of {what}, such as {sorted(near)}")
    if config.total_timesteps < size:
        raise ValueError(f"total_timesteps is {config.total_timesteps}; it must be at least one update's {batch}")
    for what, space in (("observation", obs_space), ("action", action_space)):
        if not choices(space) and not hasattr(space, "low"):
            raise ValueError(f"{config.env_id} has the {what} space {space}; it takes Discrete, MultiDiscrete or Box")
    if (size := getattr(obs_space, "action_mask", 0)) not in (0, sum(choices(action_space))):
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
    config = Config(env_id="MemoryChain-bsuite")
    _, diagnostics = jax.jit(jax.vmap(train, in_axes=(None, 0)))(config, jax.vmap(jax.random.key)(jnp.arange(4)))
    for name, x in diagnostics.items():
        print(f"{name:22}", *(f"{y:12.5g}" for y in x[:, -1]))
