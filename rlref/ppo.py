"""Proximal Policy Optimisation (Schulman et al. 2017, arXiv:1707.06347), alone in this file.

    rlref train ppo      8 seeds of CartPole-v1 and a run folder; `python -m rlref.ppo` is the same
    python ppo.py        this file copied elsewhere, without rlref: 4 seeds, prints the last update
    jax.jit(jax.vmap(ppo.train, in_axes=(None, 0)))(ppo.Config(), keys)        many seeds, from Python

Expected: `rlref train ppo` ends on CartPole-v1 at a mean return of at least 499, IQM over 32 seeds; rlref's README has
the table. It sets two options otherwise than the defaults below: rlref/tuned.py.

Every function is written for ONE seed; batching over seeds is the caller's `vmap`. No agent file imports another, so
that each can be copied; what they repeat is the price of that.

Letters: `T` steps of a rollout, `N` environments, `B` samples of a minibatch, `M` minibatches of an epoch, `A` actions,
`D` action dimensions, `F` features. "37 details": Huang et al. 2022, "The 37 Implementation Details of PPO".
"""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

import chex
import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jax.flatten_util import ravel_pytree

RING = 100  # finished episodes that return_* and length_* look back on


def static(default: Any) -> Any:
    """A setting that shapes the program. Float settings are leaves instead: they can be traced, and vmapped."""
    return flax.struct.field(pytree_node=False, default=default)


@flax.struct.dataclass
class Config:
    """Settings of PPO. The defaults are CleanRL's for CartPole-v1."""

    env_id: str = static("CartPole-v1")
    """environment: a gymnax id, or package.module:make_env"""
    total_timesteps: int = static(500_000)
    """environment steps of one seed"""
    num_envs: int = static(4)
    """environments stepped side by side in one seed"""
    num_steps: int = static(128)
    """steps of each environment in one rollout"""
    num_minibatches: int = static(4)
    """minibatches per epoch; must divide num_envs x num_steps"""
    update_epochs: int = static(4)
    """passes over each rollout"""
    learning_rate: float = 2.5e-4
    """Adam's step size, at the start"""
    anneal_lr: bool = static(True)
    """lower the learning rate linearly to 0 over the training"""
    adam_eps: float = 1e-5
    """Adam's epsilon"""
    max_grad_norm: float = 0.5
    """clip the global norm of the gradient to this; inf turns it off"""
    gamma: float = 0.99
    """discount per step"""
    gae_lambda: float = 0.95
    """lambda of generalised advantage estimation"""
    clip_coef: float = 0.2
    """clip the probability ratio to 1 +- this"""
    norm_adv: bool = static(True)
    """normalise the advantages of each minibatch"""
    clip_vloss: bool = static(True)
    """clip the value's change to +- clip_coef as well"""
    ent_coef: float = 0.01
    """weight of the entropy bonus"""
    vf_coef: float = 0.5
    """weight of the value loss"""
    target_kl: float | None = None
    """skip an update's remaining epochs once the approximate KL of one exceeds this, in nats; None turns it off"""
    normalize_observations: bool = static(False)
    """normalise observations by the mean and std of all seen so far, then clip to +-10"""
    scale_rewards: bool = static(False)
    """divide rewards by the std of their discounted sum so far, never shifting them, then clip to +-10"""
    hidden_sizes: tuple[int, ...] = static((64, 64))
    """units of each hidden layer"""
    activation: Literal["tanh", "relu"] = static("tanh")
    """activation of the hidden layers"""
    conv_layers: tuple[tuple[int, int, int], ...] = static(((16, 3, 1),))
    """features, kernel size and stride of each convolution; for image observations (height x width x channels)"""
    init_log_std: float = 0.0
    """log standard deviation of every action dimension at the start; for Box actions"""


class Agent(NamedTuple):
    """What `make` returns: all that the runner, the probes and the scripts use."""

    init: Callable[[jax.Array], "State"]  # key -> state of one seed
    # state, step (int32 index of this update, never batched over seeds) -> state, diagnostics (float32 scalars)
    update: Callable[["State", jax.Array], tuple["State", dict[str, jax.Array]]]
    policy: Callable[["State", jax.Array], Any]  # ONE raw observation -> probabilities [A]; Box: mean [D], std [D]
    value: Callable[["State", jax.Array], jax.Array] | None  # ONE raw observation -> V, in the environment's reward
    num_updates: int  # floor(total_timesteps / steps_per_update)
    steps_per_update: int  # environment steps of one update of one seed


@flax.struct.dataclass
class Categorical:
    """Policy over a Discrete space; `log_probs` `[..., A]` are normalised."""

    log_probs: jax.Array

    @staticmethod
    def noise(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return jax.random.gumbel(key, shape)

    def sample(self, noise: jax.Array) -> jax.Array:
        return jnp.argmax(self.log_probs + noise, axis=-1)  # the Gumbel-max trick: a draw from the distribution

    def log_prob(self, action: jax.Array) -> jax.Array:
        # A mask, not a gather: the gradient of a gather is a scatter, which is slow on every backend.
        taken = jax.nn.one_hot(action, self.log_probs.shape[-1], dtype=bool)
        return jnp.sum(jnp.where(taken, self.log_probs, 0.0), axis=-1)

    def entropy(self) -> jax.Array:
        return -jnp.sum(jnp.exp(self.log_probs) * self.log_probs, axis=-1)

    def kl(self, other: "Categorical") -> jax.Array:
        """KL(self, other) in nats."""
        return jnp.sum(jnp.exp(self.log_probs) * (self.log_probs - other.log_probs), axis=-1)


@flax.struct.dataclass
class DiagonalGaussian:
    """Policy over a Box space; `mean` and `log_std` are `[..., D]`, in the environment's units."""

    mean: jax.Array
    log_std: jax.Array

    @staticmethod
    def noise(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return jax.random.normal(key, shape)

    def sample(self, noise: jax.Array) -> jax.Array:
        return self.mean + jnp.exp(self.log_std) * noise

    def log_prob(self, action: jax.Array) -> jax.Array:
        # A sum over action dimensions, not a mean: they are independent, so the joint density is their product.
        z = (action - self.mean) * jnp.exp(-self.log_std)
        return jnp.sum(-0.5 * z**2 - self.log_std - 0.5 * math.log(2 * math.pi), axis=-1)

    def entropy(self) -> jax.Array:
        return jnp.sum(self.log_std + 0.5 * math.log(2 * math.pi * math.e), axis=-1)

    def kl(self, other: "DiagonalGaussian") -> jax.Array:
        """KL(self, other) in nats."""
        log_ratio = self.log_std - other.log_std
        z = (self.mean - other.mean) * jnp.exp(-other.log_std)
        return 0.5 * jnp.sum(jnp.exp(2 * log_ratio) - 1 - 2 * log_ratio + z**2, axis=-1)


Policy = Categorical | DiagonalGaussian


def orthogonal(scale: float) -> Callable[..., jax.Array]:
    """Orthogonal initialisation (37 details, core 2) that can be vmapped over seeds.

    Its QR decomposition, batched, deadlocks on CPUs with few cores: `sequential_vmap` loops over the batch instead.
    """

    def init(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
        one = partial(nn.initializers.orthogonal(scale), shape=shape, dtype=dtype)
        return jax.custom_batching.sequential_vmap(lambda k: one(k))(key)

    return init


class Network(nn.Module):
    """Actor and critic. Features `[B, F]`: two separate MLPs. Images `[B, H, W, C]`: one shared torso, two heads."""

    num_outputs: int  # A for a Discrete action space, D for a Box
    discrete: bool
    hidden_sizes: tuple[int, ...]
    activation: str
    conv_layers: tuple[tuple[int, int, int], ...]

    @nn.compact
    def __call__(self, x: jax.Array, init_log_std: jax.Array) -> tuple[Policy, jax.Array]:
        if x.ndim == 4:
            actor = critic = self.torso(x, "torso")
        else:
            actor, critic = self.torso(x, "actor"), self.torso(x, "critic")
        # A small last layer makes the first policy nearly uniform (37 details, core 2).
        outputs = nn.Dense(self.num_outputs, kernel_init=orthogonal(0.01), name="policy_head")(actor)
        value = nn.Dense(1, kernel_init=orthogonal(1.0), name="value_head")(critic)[..., 0]
        if self.discrete:
            return Categorical(jax.nn.log_softmax(outputs)), value
        log_std = self.param("log_std", lambda _: jnp.full((self.num_outputs,), init_log_std, jnp.float32))
        return DiagonalGaussian(outputs, jnp.broadcast_to(log_std, outputs.shape)), value

    def torso(self, x: jax.Array, name: str) -> jax.Array:
        activation, init = getattr(nn, self.activation), orthogonal(math.sqrt(2))
        for i, (size, kernel, stride) in enumerate(self.conv_layers if x.ndim == 4 else ()):
            # A convolution as patches and a matrix product: vmapped over seeds, XLA's convolutions are slower.
            height, width = ((n - kernel) // stride + 1 for n in x.shape[1:3])
            rows = [x[:, r : r + stride * height : stride] for r in range(kernel)]
            patches = [row[:, :, c : c + stride * width : stride] for row in rows for c in range(kernel)]
            x = activation(nn.Dense(size, kernel_init=init, name=f"{name}_conv_{i}")(jnp.concatenate(patches, -1)))
            self.sow("intermediates", "hidden", x)  # read by dormant_fraction alone, and free elsewhere
        x = x.reshape(x.shape[0], -1)
        for i, size in enumerate(self.hidden_sizes):
            x = activation(nn.Dense(size, kernel_init=init, name=f"{name}_{i}")(x))
            self.sow("intermediates", "hidden", x)
        return x


@flax.struct.dataclass
class Moments:
    """Mean and variance of all data seen so far."""

    mean: jax.Array
    variance: jax.Array
    count: jax.Array

    @classmethod
    def of(cls, batch: jax.Array) -> "Moments":
        return cls(batch.mean(axis=0), batch.var(axis=0), jnp.float32(batch.shape[0]))

    def merge(self, other: "Moments") -> "Moments":
        """Chan, Golub & LeVeque 1979: exact, and without the difference of large sums of squares."""
        count = self.count + other.count
        delta, share = other.mean - self.mean, other.count / count
        variance = self.variance * (1 - share) + other.variance * share + delta**2 * share * (1 - share)
        return Moments(self.mean + delta * share, variance, count)


@flax.struct.dataclass
class State:
    """Everything needed to go on training one seed."""

    params: Any
    opt_state: optax.OptState  # over the parameters as one vector
    key: jax.Array
    env_state: Any
    obs: jax.Array  # [N, ...] raw, in the environment's dtype
    episode_return: jax.Array  # [N] of the episodes under way, undiscounted and unscaled
    episode_length: jax.Array  # [N] int32
    ring_return: jax.Array  # [RING] of the last finished episodes
    ring_length: jax.Array  # [RING]
    num_episodes: jax.Array  # int32, finished so far
    obs_moments: Moments | None  # None unless normalize_observations
    discounted_return: jax.Array | None  # [N] discounted sum of the episode's rewards; None unless scale_rewards
    return_moments: Moments | None  # of discounted_return


class Rollout(NamedTuple):
    """`T` steps of `N` environments: every field is `[T, N, ...]`."""

    obs: jax.Array
    action: jax.Array  # as sampled: a Box action is clipped for the environment alone
    policy: Policy
    log_prob: jax.Array
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    final_obs: jax.Array  # what the step led to, before any reset
    episode_return: jax.Array  # of the episode so far, this step included
    episode_length: jax.Array


class Batch(NamedTuple):
    """What learning reads of a rollout: every field is `[T * N, ...]`, or `[B, ...]` in a minibatch."""

    obs: jax.Array
    action: jax.Array
    policy: Policy
    log_prob: jax.Array
    value: jax.Array
    advantage: jax.Array
    target: jax.Array


class Task(NamedTuple):
    """What the functions below need and training never changes."""

    config: Config
    env: Any
    env_params: Any
    obs_space: Any
    action_space: Any
    network: Network
    optimizer: optax.GradientTransformation


def is_discrete(space: Any) -> bool:
    return hasattr(space, "n")  # not isinstance: importing gymnax for its classes takes seconds


def features(obs: jax.Array, space: Any) -> jax.Array:
    """Raw observations `[B, ...]` as float32: one-hot `[B, n]`, image `[B, H, W, C]`, anything else flat `[B, F]`."""
    if is_discrete(space):
        return jax.nn.one_hot(obs, space.n)
    if len(space.shape) == 3:
        return obs.astype(jnp.float32) / (255 if obs.dtype == jnp.uint8 else 1)
    return obs.reshape(obs.shape[0], -1).astype(jnp.float32)


def normalize(x: jax.Array, moments: Moments | None) -> jax.Array:
    """Observation normalisation and clipping (37 details, continuous 6 and 7)."""
    if moments is None:
        return x
    return jnp.clip((x - moments.mean) / jnp.sqrt(moments.variance + 1e-8), -10.0, 10.0)


def forward(task: Task, params: Any, obs_moments: Moments | None, obs: jax.Array, **options: Any) -> Any:
    """Policy and value at raw observations `[B, ...]`; `options` are flax's."""
    x = normalize(features(obs, task.obs_space), obs_moments)
    return task.network.apply(params, x, task.config.init_log_std, **options)


def reward_scale(moments: Moments | None) -> jax.Array:
    """What rewards are divided by (37 details, continuous 8); 1 as long as the discounted return has not varied."""
    if moments is None:
        return jnp.float32(1)
    return jnp.where(moments.variance > 1e-6 * moments.mean**2, jnp.sqrt(moments.variance), 1.0)


def discounted_returns(start: Any, reward: jax.Array, ended: jax.Array, gamma: Any) -> tuple[jax.Array, jax.Array]:
    """Sums `R_t = gamma R_{t-1} + r_t` that begin anew after an episode's end: to carry on `[N]`, and all `[T, N]`."""

    def step(carry: jax.Array, x: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        total = gamma * carry + x[0]
        return jnp.where(x[1], 0.0, total), total

    return jax.lax.scan(step, start, (reward, ended))


def gae(
    reward: jax.Array,
    value: jax.Array,
    next_value: jax.Array,
    terminated: jax.Array,
    truncated: jax.Array,
    gamma: Any,
    gae_lambda: Any,
) -> jax.Array:
    """Generalised advantage estimation (Schulman et al. 2015, arXiv:1506.02438, eq. 16); arrays are `[T]` or `[T, N]`.

        delta_t = r_t + gamma (1 - terminated_t) V(s'_t) - V(s_t)
        A_t     = delta_t + gamma lambda (1 - terminated_t) (1 - truncated_t) A_{t+1}

    Where people go wrong: `next_value` is of the step's FINAL observation, never of the one after a reset. A time limit
    does not end the value, so `truncated` keeps the bootstrap (Pardo et al. 2018, arXiv:1712.00378); yet the next step
    belongs to another episode, so either ending cuts the trace.
    """
    chex.assert_equal_shape((reward, value, next_value, terminated, truncated))
    delta = reward + gamma * jnp.where(terminated, 0.0, next_value) - value
    trace = gamma * gae_lambda * jnp.where(terminated | truncated, 0.0, 1.0)

    def step(advantage: jax.Array, x: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        advantage = x[0] + x[1] * advantage
        return advantage, advantage

    return jax.lax.scan(step, jnp.zeros_like(delta[0]), (delta, trace), reverse=True)[1]


def minibatch_indices(key: jax.Array, epochs: int, batch_size: int, num_minibatches: int) -> jax.Array:
    """`[epochs, M, B]`: in each epoch every sample once, in an order of its own (37 details, core 6)."""
    # One sort of random high bits over the index as low bits; `jax.random.permutation` sorts pairs, slowly on a CPU.
    low = jnp.uint32((1 << int(batch_size - 1).bit_length()) - 1)
    order = jnp.sort(jax.random.bits(key, (epochs, batch_size)) & ~low | jnp.arange(batch_size, dtype=jnp.uint32)) & low
    return order.astype(jnp.int32).reshape(epochs, num_minibatches, batch_size // num_minibatches)


def loss(params: Any, task: Task, obs_moments: Moments | None, batch: Batch) -> tuple[jax.Array, dict[str, jax.Array]]:
    """PPO's objective, to be minimised, over one minibatch (Schulman et al. 2017, eq. 9); and what to know about it."""
    config = task.config
    policy, value = forward(task, params, obs_moments, batch.obs)
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


def env_action(task: Task, action: jax.Array) -> jax.Array:
    """Actions `[N]` or `[N, D]` as the environment takes them; clipping to a Box happens here and nowhere else."""
    space = task.action_space
    if is_discrete(space):
        return action
    return jnp.clip(action.reshape(action.shape[0], *space.shape), space.low, space.high).astype(space.dtype)


def collect(task: Task, state: State, key: jax.Array) -> tuple[State, Rollout]:
    """Run the policy for `T` steps in each of `N` environments."""
    config = task.config
    # All randomness at once: on a CPU, drawing it step by step costs more than the policy does.
    key_act, key_env = jax.random.split(key)
    shape = (config.num_steps, config.num_envs)
    distribution = Categorical if task.network.discrete else DiagonalGaussian
    noise = distribution.noise(key_act, (*shape, task.network.num_outputs))
    env_step = jax.vmap(task.env.step, in_axes=(0, 0, 0, None))

    def step(carry: tuple[Any, ...], x: tuple[jax.Array, jax.Array]) -> tuple[tuple[Any, ...], Rollout]:
        env_state, obs, episode_return, episode_length = carry
        noise, keys_env = x
        policy, _ = forward(task, state.params, state.obs_moments, obs)
        action = policy.sample(noise)
        next_obs, env_state, reward, terminated, truncated, info = env_step(
            keys_env, env_state, env_action(task, action), task.env_params
        )
        reward, final_obs, ended = reward.astype(jnp.float32), info["final_observation"], terminated | truncated
        total, length = episode_return + reward, episode_length + 1
        carry = env_state, next_obs, jnp.where(ended, 0.0, total), jnp.where(ended, 0, length)
        log_prob = policy.log_prob(action)
        return carry, Rollout(obs, action, policy, log_prob, reward, terminated, truncated, final_obs, total, length)

    carry = state.env_state, state.obs, state.episode_return, state.episode_length
    carry, rollout = jax.lax.scan(step, carry, (noise, jax.random.split(key_env, shape)))
    return replace(state, env_state=carry[0], obs=carry[1], episode_return=carry[2], episode_length=carry[3]), rollout


def learn(
    task: Task, state: State, batch: Batch, indices: jax.Array, learning_rate: jax.Array
) -> tuple[State, dict[str, jax.Array]]:
    """Epochs of minibatch gradient steps over one rollout, and diagnostics `[epochs, M]`."""
    # One vector instead of a dozen arrays: an optimiser step is then a few kernels instead of a hundred.
    flat_params, unravel = ravel_pytree(state.params)
    params_norm = jnp.sqrt(jnp.vdot(flat_params, flat_params))
    target_kl = task.config.target_kl

    def minibatch_step(carry: tuple[Any, ...], index: jax.Array) -> tuple[tuple[Any, ...], dict[str, jax.Array]]:
        params, opt_state, going = carry
        minibatch = jax.tree.map(lambda x: x[index], batch)
        gradient_of = jax.grad(lambda p: loss(unravel(p), task, state.obs_moments, minibatch), has_aux=True)
        gradient, aux = gradient_of(params)
        update, new_opt_state = task.optimizer.update(gradient, opt_state)
        update = -learning_rate * update
        aux["grad_norm"] = optax.tree.norm(gradient)
        aux["update_ratio"] = jnp.sqrt(jnp.vdot(update, update)) / params_norm
        aux["applied"] = going.astype(jnp.float32)
        new = params + update, new_opt_state
        if target_kl is not None:  # not `cond`, which vmap turns into this `where` anyway
            new = jax.tree.map(partial(jnp.where, going), new, (params, opt_state))
        return (*new, going), aux

    def epoch(carry: tuple[Any, ...], indices: jax.Array) -> tuple[tuple[Any, ...], dict[str, jax.Array]]:
        (params, opt_state, going), aux = jax.lax.scan(minibatch_step, carry, indices)
        if target_kl is not None:
            going &= aux["approx_kl"].mean() <= target_kl
        return (params, opt_state, going), aux

    (params, opt_state, _), aux = jax.lax.scan(epoch, (flat_params, state.opt_state, jnp.bool(True)), indices)
    return replace(state, params=unravel(params), opt_state=opt_state), aux


def update(task: Task, num_updates: int, state: State, step: jax.Array) -> tuple[State, dict[str, jax.Array]]:
    """One rollout and the learning from it."""
    config = task.config
    key, key_collect, key_shuffle = jax.random.split(state.key, 3)
    state, rollout = collect(task, replace(state, key=key), key_collect)
    reward, ended = rollout.reward, rollout.terminated | rollout.truncated
    if state.return_moments is not None:
        total, totals = discounted_returns(state.discounted_return, reward, ended, config.gamma)
        moments = state.return_moments.merge(Moments.of(totals.reshape(-1)))
        state = replace(state, discounted_return=total, return_moments=moments)
        reward = jnp.clip(reward / reward_scale(moments), -10.0, 10.0)

    # Values of all steps at once: large matrix products are faster than a small one at every step of the rollout.
    flat = partial(jax.tree.map, lambda x: x.reshape(-1, *x.shape[2:]))  # [T, N, ...] -> [T * N, ...]
    value, next_value = (
        forward(task, state.params, state.obs_moments, flat(obs))[1].reshape(reward.shape)
        for obs in (rollout.obs, rollout.final_obs)
    )
    advantage = gae(reward, value, next_value, rollout.terminated, rollout.truncated, config.gamma, config.gae_lambda)
    target = advantage + value
    batch = flat(Batch(rollout.obs, rollout.action, rollout.policy, rollout.log_prob, value, advantage, target))

    batch_size = config.num_envs * config.num_steps
    indices = minibatch_indices(key_shuffle, config.update_epochs, batch_size, config.num_minibatches)
    # From the step, not from a counter in the optimiser: that would be one per seed.
    learning_rate = config.learning_rate * ((1 - step / num_updates) if config.anneal_lr else jnp.float32(1))
    state, aux = learn(task, state, batch, indices, learning_rate)
    state = record_episodes(state, ended, rollout.episode_return, rollout.episode_length)
    diagnostics = diagnose(task, state, batch, jax.tree.map(lambda x: x[indices[0, 0]], batch), aux)
    diagnostics |= summary("reward", reward)
    diagnostics |= {"env_steps": (step + 1.0) * batch_size, "episodes": ended.sum(), "learning_rate": learning_rate}
    if state.obs_moments is not None:
        # Only now: one update uses one set of statistics throughout, so that its first ratio is exactly 1.
        seen = flat(jnp.concatenate([rollout.obs[1:], state.obs[None]]))  # the first was counted when it was new
        state = replace(state, obs_moments=state.obs_moments.merge(Moments.of(features(seen, task.obs_space))))
    return state, {name: jnp.asarray(x, jnp.float32) for name, x in diagnostics.items()}


def record_episodes(state: State, ended: jax.Array, episode_return: jax.Array, episode_length: jax.Array) -> State:
    """Write the episodes that ended in a rollout, arrays `[T, N]`, to the ring of the last `RING`."""
    ended = ended.reshape(-1)
    rank = jnp.cumsum(ended)  # 1 for the first that ended
    kept = ended & (rank > rank[-1] - RING)
    slot = jnp.where(kept, (state.num_episodes + rank - 1) % RING, RING)  # RING itself is out of range: dropped
    return replace(
        state,
        ring_return=state.ring_return.at[slot].set(episode_return.reshape(-1), mode="drop"),
        ring_length=state.ring_length.at[slot].set(episode_length.reshape(-1).astype(jnp.float32), mode="drop"),
        num_episodes=state.num_episodes + rank[-1],
    )


def summary(name: str, x: jax.Array, where: jax.Array | None = None) -> dict[str, jax.Array]:
    """Mean, standard deviation, minimum and maximum of `x`; NaN where `where` selects nothing."""
    count = x.size if where is None else where.sum()
    mean = x.sum(where=where) / count
    return {
        f"{name}_mean": mean,
        f"{name}_std": jnp.sqrt(((x - mean) ** 2).sum(where=where) / count),
        f"{name}_min": jnp.where(count > 0, x.min(where=where, initial=jnp.inf), jnp.nan),
        f"{name}_max": jnp.where(count > 0, x.max(where=where, initial=-jnp.inf), jnp.nan),
    }


def explained_variance(target: jax.Array, value: jax.Array) -> jax.Array:
    """`1 - Var[target - value] / Var[target]`; NaN where the targets do not vary by more than float32 rounding."""
    variance = target.var()
    varies = variance > (1e-6 * jnp.abs(target).max()) ** 2
    return jnp.where(varies, 1 - (target - value).var() / variance, jnp.nan)


def dormant_fraction(hidden: Any, tau: float = 0.025) -> jax.Array:
    """Share of hidden units whose mean |activation| is at most `tau` of their layer's (Sokar et al. 2023, eq. 1)."""
    scores = [jnp.abs(h).reshape(-1, h.shape[-1]).mean(axis=0) for h in jax.tree.leaves(hidden)]
    return jnp.concatenate([score <= tau * score.mean() for score in scores]).mean(dtype=jnp.float32)


def gradient_noise_scale(adam: optax.ScaleByAdamState, batch_size: int) -> jax.Array:
    """tr(Sigma) / |G|^2 in samples (McCandlish et al. 2018, arXiv:1812.06162), from Adam's bias-corrected moments."""
    mean, square = adam.mu / (1 - 0.9**adam.count), adam.nu / (1 - 0.999**adam.count)
    return batch_size * (square.sum() - jnp.vdot(mean, mean)) / jnp.vdot(mean, mean)


def diagnose(task: Task, state: State, batch: Batch, part: Batch, aux: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """What happened in this update; `part` is a random minibatch of `batch`. rlref/metrics.py defines each name."""
    (policy, _), hidden = forward(task, state.params, state.obs_moments, part.obs, mutable=["intermediates"])
    entropy = batch.policy.entropy().mean()
    if isinstance(batch.policy, Categorical):
        relative_entropy = entropy / jnp.log(batch.policy.log_probs.shape[-1])  # one action: 0 / 0, undefined
    else:
        relative_entropy = (batch.policy.log_std - task.config.init_log_std).mean()
    applied, first_ratio_error = aux.pop("applied"), aux.pop("ratio_error")[0, 0]
    means = {name: x.mean(where=applied > 0) for name, x in aux.items()}
    finished = jnp.arange(RING) < state.num_episodes
    return (
        means
        | summary("return", state.ring_return, finished)
        | summary("length", state.ring_length, finished)
        | summary("advantage", batch.advantage)
        | summary("target", batch.target)
        | summary("value", batch.value)
        | {
            "return_count": finished.sum(),
            "entropy": entropy,
            "relative_entropy": relative_entropy,
            "kl": part.policy.kl(policy).mean(),
            "explained_variance": explained_variance(batch.target, batch.value),
            "value_bias": (batch.target - batch.value).mean(),
            "first_ratio_error": first_ratio_error,
            "gradient_steps": applied.sum(),
            "gradient_noise_scale": gradient_noise_scale(state.opt_state[1], part.value.size),
            "dormant_fraction": dormant_fraction(hidden),
            # Every step's losses, gradient and change of parameters are in `means`: one bad number anywhere shows.
            # The reward's moments are not: one infinite reward would turn its scaling off, and go unseen.
            "nonfinite": ~jnp.isfinite(jnp.stack([*means.values(), *jax.tree.leaves(state.return_moments)])).all(),
        }
    )


def init(task: Task, key: jax.Array) -> State:
    """Fresh parameters and environments of one seed."""
    config, num_envs = task.config, task.config.num_envs
    key, key_env, key_net = jax.random.split(key, 3)
    obs, env_state = jax.vmap(task.env.reset, in_axes=(0, None))(jax.random.split(key_env, num_envs), task.env_params)
    x = features(obs, task.obs_space)
    params = {"params": task.network.init(key_net, x, config.init_log_std)["params"]}  # without what `sow` adds
    return State(
        params=params,
        opt_state=task.optimizer.init(ravel_pytree(params)[0]),
        key=key,
        env_state=env_state,
        obs=obs,
        episode_return=jnp.zeros(num_envs),
        episode_length=jnp.zeros(num_envs, jnp.int32),
        ring_return=jnp.zeros(RING),
        ring_length=jnp.zeros(RING),
        num_episodes=jnp.int32(0),
        obs_moments=Moments.of(x) if config.normalize_observations else None,
        discounted_return=jnp.zeros(num_envs) if config.scale_rewards else None,
        return_moments=Moments(*jnp.zeros(3)) if config.scale_rewards else None,
    )


def check(config: Config) -> None:
    """Raise ValueError, in one line, for settings that cannot train. Traced floats cannot be looked at, and are not."""

    def require(ok: Any, name: str, rule: str) -> None:
        if not ok:
            raise ValueError(f"{name} is {getattr(config, name)!r}; it must be {rule}")

    def whole(x: Any) -> bool:
        return isinstance(x, int | np.integer) and not isinstance(x, bool) and bool(x >= 1)

    for name in ("total_timesteps", "num_envs", "num_steps", "num_minibatches", "update_epochs"):
        require(whole(getattr(config, name)), name, "a whole number of at least 1")
    size = config.num_envs * config.num_steps
    divisors = [m for m in range(1, size + 1) if size % m == 0]
    nearest = sorted(sorted(divisors, key=lambda m: abs(m - config.num_minibatches))[:3])
    batch = f"num_envs {config.num_envs} x num_steps {config.num_steps}"
    require(config.num_minibatches in divisors, "num_minibatches", f"a divisor of {batch} = {size}, such as {nearest}")
    require(config.total_timesteps >= size, "total_timesteps", f"at least one update's {batch} = {size}")
    for name in ("anneal_lr", "norm_adv", "clip_vloss", "normalize_observations", "scale_rewards"):
        require(isinstance(getattr(config, name), bool), name, "True or False")
    require(config.activation in ("tanh", "relu"), "activation", "'tanh' or 'relu'")
    sizes, layers = config.hidden_sizes, config.conv_layers
    good = isinstance(sizes, tuple) and len(sizes) > 0 and all(map(whole, sizes))
    require(good, "hidden_sizes", "a tuple of one or more whole numbers of at least 1")
    good = isinstance(layers, tuple) and all(
        isinstance(x, tuple) and len(x) == 3 and all(map(whole, x)) for x in layers
    )
    require(good, "conv_layers", "a tuple of (features, kernel size, stride), whole numbers of at least 1")
    finite = float(np.finfo(np.float32).max)
    at_least_0 = ("learning_rate", "clip_coef", "ent_coef", "vf_coef", "target_kl")
    bounds = dict.fromkeys(at_least_0, (0.0, finite, "a finite number of at least 0"))
    bounds |= dict.fromkeys(("gamma", "gae_lambda"), (0.0, 1.0, "a number from 0 to 1"))
    above_0 = float(np.finfo(np.float32).tiny)  # at 0 either of these can give 0 / 0
    bounds["max_grad_norm"] = (above_0, math.inf, "a number above 0, or inf")
    bounds["adam_eps"] = (above_0, finite, "a finite number above 0")
    bounds["init_log_std"] = (-finite, finite, "a finite number")
    for name, (low, high, rule) in bounds.items():
        value = getattr(config, name)
        if isinstance(value, jax.core.Tracer) or (name == "target_kl" and value is None):
            continue
        x = np.asarray(value)
        require(x.dtype.kind in "fiu" and ((x >= low) & (x <= high)).all(), name, rule)


def make_task(config: Config, env: Any, env_params: Any) -> Task:
    """The network and the optimiser for an environment's spaces."""
    obs_space, action_space = env.observation_space(env_params), env.action_space(env_params)
    network = Network(
        num_outputs=action_space.n if is_discrete(action_space) else math.prod(action_space.shape),
        discrete=is_discrete(action_space),
        hidden_sizes=config.hidden_sizes,
        activation=config.activation,
        conv_layers=config.conv_layers,
    )
    optimizer = optax.chain(optax.clip_by_global_norm(config.max_grad_norm), optax.scale_by_adam(eps=config.adam_eps))
    return Task(config, env, env_params, obs_space, action_space, network, optimizer)


def make(config: Config, env: Any = None, env_params: Any = None) -> Agent:
    """Build the agent for an environment of gymnax >= 1.0; without `env`, for the gymnax id in `config.env_id`.

    Raises ValueError, in one line, for settings or spaces that cannot train.
    """
    check(config)
    if env is None:
        import gymnax

        env, _ = gymnax.make(config.env_id)
    env_params = env.default_params if env_params is None else env_params
    obs_space, action_space = env.observation_space(env_params), env.action_space(env_params)
    for what, space in (("observation", obs_space), ("action", action_space)):
        if not is_discrete(space) and not hasattr(space, "low"):
            raise ValueError(f"{config.env_id} has the {what} space {space}; PPO takes Discrete or Box")
    if len(obs_space.shape) == 3:
        size = min(obs_space.shape[:2])
        for _, kernel, stride in config.conv_layers:
            size = (size - kernel) // stride + 1
        if size < 1:
            raise ValueError(f"conv_layers {config.conv_layers} leave nothing of images of shape {obs_space.shape}")
    task = make_task(config, env, env_params)
    steps_per_update = config.num_envs * config.num_steps
    num_updates = config.total_timesteps // steps_per_update

    def policy(state: State, obs: jax.Array) -> Any:
        distribution, _ = forward(task, state.params, state.obs_moments, obs[None])
        if isinstance(distribution, Categorical):
            return jnp.exp(distribution.log_probs[0])
        return distribution.mean[0], jnp.exp(distribution.log_std[0])

    def value(state: State, obs: jax.Array) -> jax.Array:
        _, value = forward(task, state.params, state.obs_moments, obs[None])
        return value[0] * reward_scale(state.return_moments)

    return Agent(partial(init, task), partial(update, task, num_updates), policy, value, num_updates, steps_per_update)


def train(config: Config, key: jax.Array, env: Any = None, env_params: Any = None) -> tuple[State, dict[str, Any]]:
    """Train one seed; vmap over `key` for many. Returns its state, and diagnostics `[num_updates]`."""
    agent = make(config, env, env_params)
    return jax.lax.scan(agent.update, agent.init(key), jnp.arange(agent.num_updates))


def load(path: Any, env: Any = None, env_params: Any = None) -> tuple[Agent, State]:
    """What `rlref export` wrote: the agent, and a state for its `policy` and `value` (not for training on)."""
    with np.load(path) as file:
        settings, leaves = json.loads(str(file["config"])), {name: file[name] for name in file if "state/" in name}

    def tuples(x: Any) -> Any:
        return tuple(map(tuples, x)) if isinstance(x, list) else x

    agent = make(Config(**{name: tuples(x) for name, x in settings.items()}), env, env_params)
    paths, tree = jax.tree.flatten_with_path(agent.init(jax.random.key(0)))
    fresh = {"state/" + jax.tree_util.keystr(where, simple=True, separator="/"): x for where, x in paths}
    if wrong := [name for name, x in leaves.items() if name not in fresh or x.shape != fresh[name].shape]:
        raise ValueError(f"{path} is of another agent or environment: {wrong[0]} does not fit this one's")
    return agent, jax.tree.unflatten(tree, (fresh | leaves).values())


if __name__ == "__main__":
    import importlib.util
    import sys

    if importlib.util.find_spec("rlref"):
        from rlref.cli import main

        sys.exit(main(["train", __file__, *sys.argv[1:]]))
    keys = jax.vmap(jax.random.key)(jnp.arange(4))
    _, diagnostics = jax.jit(jax.vmap(train, in_axes=(None, 0)))(Config(), keys)
    for name, x in diagnostics.items():
        print(f"{name:22}", *(f"{y:12.5g}" for y in x[:, -1]))
