"""Proximal Policy Optimisation (Schulman et al. 2017, arXiv:1707.06347), alone in this file.

    rlref train ppo                     8 seeds of CartPole-v1 with a run folder, or `python -m rlref.ppo`
    python ppo.py                       the same file copied elsewhere, without rlref: 4 seeds
    jax.jit(jax.vmap(ppo.train, in_axes=(None, 0)))(ppo.Config(), keys)     many seeds from Python

Expected: CartPole-v1 with these defaults ends at a mean return of 500 on every seed; README.md has the table.

Every function is written for ONE seed; batching over seeds is the caller's `vmap`. The file imports nothing from
rlref, so that it can be copied; what dqn.py and cem.py repeat of it is the price of that, and is meant.

Letters: `T` steps of a rollout, `N` environments, `B` samples of a minibatch, `M` minibatches per epoch, `A` actions,
`D` action dimensions, `F` features of an observation. "37 details" is Huang et al. 2022, "The 37 Implementation
Details of Proximal Policy Optimization".
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import chex
import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from gymnax.environments import spaces

RING = 100  # finished episodes that return_* and length_* look back on


def static(default: Any) -> Any:
    """A setting that shapes the program; float settings are leaves instead, and can be traced and vmapped."""
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
    """skip the rest of an update once the approximate KL of an epoch exceeds this, in nats"""
    normalize_observations: bool = static(False)
    """normalise observations by the mean and std of all seen so far, then clip to +-10"""
    scale_rewards: bool = static(False)
    """divide rewards by the std of their discounted sum so far (never shift them), then clip to +-10"""
    hidden_sizes: tuple[int, ...] = static((64, 64))
    """units of each hidden layer"""
    activation: Literal["tanh", "relu"] = static("tanh")
    """activation of the hidden layers"""
    conv_layers: tuple[tuple[int, int, int], ...] = static(((16, 3, 1),))
    """features, kernel size and stride of each convolution; only for image observations (height x width x channels)"""
    init_log_std: float = 0.0
    """log standard deviation of every action dimension at the start; only for Box actions"""


class Agent(NamedTuple):
    """What `make` returns; the runner, the probes and the scripts use nothing else."""

    init: Callable[[jax.Array], "State"]
    """key -> state of one seed"""
    update: Callable[["State", jax.Array], tuple["State", dict[str, jax.Array]]]
    """state, step (int32 index of this update, never batched over seeds) -> state, diagnostics (float32 scalars)"""
    policy: Callable[["State", jax.Array], Any]
    """state, ONE raw observation -> probabilities `[A]`, or for Box mean `[D]` and std `[D]`, not clipped"""
    value: Callable[["State", jax.Array], jax.Array] | None
    """state, ONE raw observation -> V in the units of the environment's reward"""
    num_updates: int
    """floor(total_timesteps / steps_per_update)"""
    steps_per_update: int
    """environment steps of one update of one seed"""


@flax.struct.dataclass
class Categorical:
    """Policy over a Discrete space; `log_probs` `[..., A]` are normalised."""

    log_probs: jax.Array

    @staticmethod
    def noise(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return jax.random.gumbel(key, shape)

    def sample(self, noise: jax.Array) -> jax.Array:
        """The Gumbel-max trick: with Gumbel noise the argmax is a draw from the distribution."""
        return jnp.argmax(self.log_probs + noise, axis=-1)

    def log_prob(self, action: jax.Array) -> jax.Array:
        # A mask instead of a gather: its gradient is no scatter, which is slow on every backend.
        taken = jax.nn.one_hot(action, self.log_probs.shape[-1], dtype=bool)
        return jnp.sum(jnp.where(taken, self.log_probs, 0.0), axis=-1)

    def entropy(self) -> jax.Array:
        return -jnp.sum(jnp.exp(self.log_probs) * self.log_probs, axis=-1)

    def kl(self, other: "Categorical") -> jax.Array:
        """KL(self, other), nats."""
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
        # Summed over action dimensions: they are independent, so the joint log-density is a sum, not a mean.
        z = (action - self.mean) * jnp.exp(-self.log_std)
        return jnp.sum(-0.5 * z**2 - self.log_std - 0.5 * math.log(2 * math.pi), axis=-1)

    def entropy(self) -> jax.Array:
        return jnp.sum(self.log_std + 0.5 * math.log(2 * math.pi * math.e), axis=-1)

    def kl(self, other: "DiagonalGaussian") -> jax.Array:
        """KL(self, other), nats."""
        variance_ratio = jnp.exp(2 * (self.log_std - other.log_std))
        z = (self.mean - other.mean) * jnp.exp(-other.log_std)
        return 0.5 * jnp.sum(variance_ratio + z**2 - 1 - jnp.log(variance_ratio), axis=-1)


def orthogonal(scale: float) -> Callable[..., jax.Array]:
    """Orthogonal initialisation (Saxe et al. 2013; 37 details, core 2) that can be vmapped over seeds.

    Its QR decomposition, batched, deadlocks on CPUs with few cores; `sequential_vmap` loops over the batch instead.
    """
    initializer = nn.initializers.orthogonal(scale)

    def init(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
        return jax.custom_batching.sequential_vmap(lambda k: initializer(k, shape, dtype))(key)

    return init


class Network(nn.Module):
    """Actor and critic. Features `[B, F]`: two separate MLPs. Images `[B, H, W, C]`: one shared torso, two heads."""

    num_outputs: int
    """`A` for a Discrete action space, `D` for a Box"""
    discrete: bool
    hidden_sizes: tuple[int, ...]
    activation: str
    conv_layers: tuple[tuple[int, int, int], ...]

    @nn.compact
    def __call__(self, x: jax.Array, init_log_std: jax.Array) -> tuple[Categorical | DiagonalGaussian, jax.Array]:
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
        activation = {"tanh": nn.tanh, "relu": nn.relu}[self.activation]
        layers: list[nn.Module] = []
        if x.ndim == 4:
            layers += [
                nn.Conv(features, (size, size), stride, "VALID", kernel_init=orthogonal(math.sqrt(2)), name=f"{name}_conv_{i}")
                for i, (features, size, stride) in enumerate(self.conv_layers)
            ]
        layers += [
            nn.Dense(size, kernel_init=orthogonal(math.sqrt(2)), name=f"{name}_{i}") for i, size in enumerate(self.hidden_sizes)
        ]
        for layer in layers:
            if isinstance(layer, nn.Dense):
                x = x.reshape(x.shape[0], -1)
            x = activation(layer(x))
            self.sow("intermediates", "hidden", x)  # read by dormant_fraction alone; costs nothing elsewhere
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
        """Parallel variance (Chan, Golub & LeVeque 1979): exact, without the sum of squares that cancels."""
        count = self.count + other.count
        delta = other.mean - self.mean
        squares = self.variance * self.count + other.variance * other.count + delta**2 * self.count * other.count / count
        return Moments(self.mean + delta * other.count / count, squares / count, count)


@flax.struct.dataclass
class State:
    """Everything needed to go on training one seed."""

    params: Any
    opt_state: optax.OptState
    key: jax.Array
    env_state: Any
    obs: jax.Array
    """`[N, ...]` raw, in the environment's dtype"""
    episode_return: jax.Array
    """`[N]` undiscounted, unscaled, of the episodes under way"""
    episode_length: jax.Array
    """`[N]` int32"""
    ring_return: jax.Array
    """`[RING]` of the last finished episodes"""
    ring_length: jax.Array
    """`[RING]`"""
    num_episodes: jax.Array
    """int32, finished so far"""
    obs_moments: Moments | None
    """None unless normalize_observations"""
    discounted_return: jax.Array | None
    """`[N]` discounted sum of rewards up to now; None unless scale_rewards"""
    return_moments: Moments | None
    """of discounted_return; None unless scale_rewards"""


@flax.struct.dataclass
class Transition:
    """One step of every environment; `collect` stacks them to `[T, N, ...]`."""

    obs: jax.Array
    action: jax.Array
    """as sampled: a Box action is clipped for the environment alone"""
    policy: Categorical | DiagonalGaussian
    log_prob: jax.Array
    value: jax.Array
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    final_obs: jax.Array
    """what the step led to, before any reset"""
    episode_return: jax.Array
    """of the episode so far, this step included"""
    episode_length: jax.Array


@flax.struct.dataclass
class Batch:
    """What learning reads of a rollout, `[B, ...]`."""

    obs: jax.Array
    action: jax.Array
    policy: Categorical | DiagonalGaussian
    log_prob: jax.Array
    value: jax.Array
    advantage: jax.Array
    target: jax.Array


class Task(NamedTuple):
    """What all functions below need and training never changes."""

    config: Config
    env: Any
    env_params: Any
    obs_space: spaces.Discrete | spaces.Box
    action_space: spaces.Discrete | spaces.Box
    network: Network
    optimizer: optax.GradientTransformation


def features(obs: jax.Array, space: spaces.Discrete | spaces.Box) -> jax.Array:
    """Raw observations `[B, ...]` to float32: one-hot `[B, n]`, image `[B, H, W, C]`, anything else flat `[B, F]`."""
    if isinstance(space, spaces.Discrete):
        return jax.nn.one_hot(obs, space.n)
    if len(space.shape) == 3:
        return obs.astype(jnp.float32) / (255.0 if obs.dtype == jnp.uint8 else 1.0)
    return obs.reshape(obs.shape[0], -1).astype(jnp.float32)


def forward(
    task: Task, params: Any, obs_moments: Moments | None, obs: jax.Array
) -> tuple[Categorical | DiagonalGaussian, jax.Array]:
    """Policy and value at raw observations `[B, ...]`."""
    x = normalize(features(obs, task.obs_space), obs_moments)
    return task.network.apply(params, x, task.config.init_log_std)


def normalize(x: jax.Array, moments: Moments | None) -> jax.Array:
    """Observation normalisation and clipping (37 details, continuous 5 and 6)."""
    if moments is None:
        return x
    return jnp.clip((x - moments.mean) / jnp.sqrt(moments.variance + 1e-8), -10.0, 10.0)


def reward_scale(moments: Moments | None) -> jax.Array:
    """What rewards are divided by (37 details, continuous 7): 1 while the discounted return has not varied."""
    if moments is None:
        return jnp.float32(1.0)
    varied = moments.variance > 1e-6 * moments.mean**2
    return jnp.where(varied, jnp.sqrt(jnp.where(varied, moments.variance, 1.0)), 1.0)


def discounted_returns(start: jax.Array, reward: jax.Array, ended: jax.Array, gamma: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Forward discounted sums `R_t = gamma R_{t-1} + r_t`, from 0 after an episode's end; `[N]` to carry on, `[T, N]`."""

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
    gamma: jax.Array | float,
    gae_lambda: jax.Array | float,
) -> jax.Array:
    """Generalised advantage estimation (Schulman et al. 2015, arXiv:1506.02438, eq. 16), all arrays `[T, ...]`.

        delta_t = r_t + gamma (1 - terminated_t) V(s'_t) - V(s_t)
        A_t     = delta_t + gamma lambda (1 - terminated_t) (1 - truncated_t) A_{t+1}

    `next_value` is the value of the FINAL observation of each step, never of the one after a reset. A time limit does
    not end the value, so `truncated` keeps the bootstrap (Pardo et al. 2018, arXiv:1712.00378); but the step after it
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
    # One sort of random high bits with the sample's index as low bits: `jax.random.permutation` sorts pairs, slowly.
    low = jnp.uint32((1 << (batch_size - 1).bit_length()) - 1)
    order = jnp.sort((jax.random.bits(key, (epochs, batch_size)) & ~low) | jnp.arange(batch_size, dtype=jnp.uint32)) & low
    order = order.astype(jnp.int32)
    return order.reshape(epochs, num_minibatches, batch_size // num_minibatches)


def loss(params: Any, task: Task, obs_moments: Moments | None, batch: Batch) -> tuple[jax.Array, dict[str, jax.Array]]:
    """PPO's objective to minimise over one minibatch (Schulman et al. 2017, eq. 9), and what to know about it."""
    config = task.config
    policy, value = forward(task, params, obs_moments, batch.obs)
    log_ratio = policy.log_prob(batch.action) - batch.log_prob
    ratio = jnp.exp(log_ratio)

    advantage = batch.advantage
    if config.norm_adv:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    clipped_ratio = jnp.clip(ratio, 1 - config.clip_coef, 1 + config.clip_coef)
    # min: the pessimistic bound. The gradient vanishes only where the ratio has moved too far in the rewarded direction.
    policy_loss = -jnp.minimum(ratio * advantage, clipped_ratio * advantage).mean()

    squared_error = (value - batch.target) ** 2
    if config.clip_vloss:
        clipped_value = batch.value + jnp.clip(value - batch.value, -config.clip_coef, config.clip_coef)
        squared_error = jnp.maximum(squared_error, (clipped_value - batch.target) ** 2)
    value_loss = 0.5 * squared_error.mean()

    total = policy_loss + config.vf_coef * value_loss - config.ent_coef * policy.entropy().mean()
    return total, {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        # k3 of Schulman's "Approximating KL Divergence" (2020): unbiased, never negative, low variance.
        "approx_kl": (ratio - 1 - log_ratio).mean(),
        "clip_fraction": (jnp.abs(ratio - 1) > config.clip_coef).astype(jnp.float32).mean(),
        "ratio_error": jnp.abs(ratio - 1).max(),
    }


def collect(task: Task, state: State, key: jax.Array) -> tuple[State, Transition]:
    """Run the policy for `T` steps in each of `N` environments; observation statistics stay as they are."""
    config, env = task.config, task.env

    def step(carry: tuple[Any, ...], x: tuple[jax.Array, jax.Array]) -> tuple[tuple[Any, ...], Transition]:
        env_state, obs, episode_return, episode_length = carry
        noise, keys_env = x
        policy, value = forward(task, state.params, state.obs_moments, obs)
        action = policy.sample(noise)
        next_obs, env_state, reward, terminated, truncated, info = jax.vmap(env.step, in_axes=(0, 0, 0, None))(
            keys_env, env_state, env_action(task, action), task.env_params
        )
        reward = reward.astype(jnp.float32)
        episode_return, episode_length = episode_return + reward, episode_length + 1
        transition = Transition(
            obs=obs,
            action=action,
            policy=policy,
            log_prob=policy.log_prob(action),
            value=value,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            final_obs=info["final_observation"],
            episode_return=episode_return,
            episode_length=episode_length,
        )
        ended = terminated | truncated
        carry = env_state, next_obs, jnp.where(ended, 0.0, episode_return), jnp.where(ended, 0, episode_length)
        return carry, transition

    start = state.env_state, state.obs, state.episode_return, state.episode_length
    # All randomness at once: on a CPU, random bits for one step at a time cost more than the policy does.
    key_act, key_env = jax.random.split(key)
    shape = (config.num_steps, config.num_envs)
    distribution = Categorical if task.network.discrete else DiagonalGaussian
    noise = distribution.noise(key_act, (*shape, task.network.num_outputs))
    (env_state, obs, episode_return, episode_length), rollout = jax.lax.scan(step, start, (noise, jax.random.split(key_env, shape)))
    return state.replace(env_state=env_state, obs=obs, episode_return=episode_return, episode_length=episode_length), rollout


def env_action(task: Task, action: jax.Array) -> jax.Array:
    """Actions `[N]` or `[N, D]` as the environment takes them; clipping happens here and nowhere else."""
    space = task.action_space
    if isinstance(space, spaces.Discrete):
        return action
    return jnp.clip(action.reshape(action.shape[0], *space.shape), space.low, space.high).astype(space.dtype)


def learn(task: Task, state: State, batch: Batch, indices: jax.Array, learning_rate: jax.Array) -> tuple[State, dict[str, jax.Array]]:
    """Epochs of minibatch gradient steps over one rollout; diagnostics `[epochs, M]`."""
    config = task.config
    params_norm = optax.tree.norm(state.params)

    def minibatch_step(carry: tuple[Any, Any, jax.Array], index: jax.Array) -> tuple[tuple[Any, Any, jax.Array], dict[str, jax.Array]]:
        params, opt_state, going = carry
        minibatch = jax.tree.map(lambda x: x[index], batch)
        (total, aux), gradient = jax.value_and_grad(loss, has_aux=True)(params, task, state.obs_moments, minibatch)
        updates, new_opt_state = task.optimizer.update(gradient, opt_state, params)
        updates = jax.tree.map(lambda u: -learning_rate * u, updates)
        new_params = optax.apply_updates(params, updates)
        aux |= {
            "loss": total,
            "grad_norm": optax.tree.norm(gradient),
            "update_ratio": optax.tree.norm(updates) / params_norm,
            "applied": going.astype(jnp.float32),
        }
        if config.target_kl is not None:
            # Not `cond`: under vmap that would become this `where` anyway.
            new_params, new_opt_state = jax.tree.map(partial(jnp.where, going), (new_params, new_opt_state), (params, opt_state))
        return (new_params, new_opt_state, going), aux

    def epoch(carry: tuple[Any, Any, jax.Array], indices: jax.Array) -> tuple[tuple[Any, Any, jax.Array], dict[str, jax.Array]]:
        (params, opt_state, going), aux = jax.lax.scan(minibatch_step, carry, indices)
        if config.target_kl is not None:
            going &= aux["approx_kl"].mean() <= config.target_kl
        return (params, opt_state, going), aux

    (params, opt_state, _), aux = jax.lax.scan(epoch, (state.params, state.opt_state, jnp.bool(True)), indices)
    return state.replace(params=params, opt_state=opt_state), aux


def update_state(task: Task, num_updates: int, state: State, step: jax.Array) -> tuple[State, dict[str, jax.Array]]:
    """One rollout and the learning from it."""
    config = task.config
    key, key_collect, key_shuffle = jax.random.split(state.key, 3)
    state, rollout = collect(task, state.replace(key=key), key_collect)
    ended = rollout.terminated | rollout.truncated

    reward = rollout.reward
    if config.scale_rewards:
        carry, returns = discounted_returns(state.discounted_return, reward, ended, config.gamma)
        state = state.replace(
            discounted_return=carry, return_moments=state.return_moments.merge(Moments.of(returns.reshape(-1)))
        )
        reward = jnp.clip(reward / reward_scale(state.return_moments), -10.0, 10.0)

    flat = partial(jax.tree.map, lambda x: x.reshape(-1, *x.shape[2:]))  # [T, N, ...] -> [T * N, ...]
    next_value = forward(task, state.params, state.obs_moments, flat(rollout.final_obs))[1].reshape(reward.shape)
    advantage = gae(reward, rollout.value, next_value, rollout.terminated, rollout.truncated, config.gamma, config.gae_lambda)
    batch = flat(
        Batch(
            rollout.obs, rollout.action, rollout.policy, rollout.log_prob, rollout.value, advantage, advantage + rollout.value
        )
    )

    batch_size = config.num_envs * config.num_steps
    indices = minibatch_indices(key_shuffle, config.update_epochs, batch_size, config.num_minibatches)
    learning_rate = config.learning_rate * ((1.0 - step / num_updates) if config.anneal_lr else jnp.float32(1.0))
    state, aux = learn(task, state, batch, indices, learning_rate)
    state = record_episodes(state, ended, rollout.episode_return, rollout.episode_length)

    diagnostics = diagnose(task, state, batch, jax.tree.map(lambda x: x[indices[0, 0]], batch), aux)
    diagnostics |= summary("reward", reward) | {
        "env_steps": (step + 1.0) * batch_size,
        "learning_rate": learning_rate,
        "episodes": ended.sum(),
    }
    if config.normalize_observations:
        # After learning: one update sees one set of statistics, so the first ratio is exactly 1.
        seen = flat(jnp.concatenate([rollout.obs[1:], state.obs[None]]))  # the first was counted when it was new
        state = state.replace(obs_moments=state.obs_moments.merge(Moments.of(features(seen, task.obs_space))))
    return state, {name: jnp.asarray(x, jnp.float32) for name, x in diagnostics.items()}


def record_episodes(state: State, ended: jax.Array, episode_return: jax.Array, episode_length: jax.Array) -> State:
    """Write the episodes that ended in a rollout, all arrays `[T, N]`, to the ring of the last `RING`."""
    ended = ended.reshape(-1)
    rank = jnp.cumsum(ended)  # 1 for the first that ended
    kept = ended & (rank > rank[-1] - RING)
    slot = jnp.where(kept, (state.num_episodes + rank - 1) % RING, RING)  # RING is out of range, and dropped
    return state.replace(
        ring_return=state.ring_return.at[slot].set(episode_return.reshape(-1), mode="drop"),
        ring_length=state.ring_length.at[slot].set(episode_length.reshape(-1).astype(jnp.float32), mode="drop"),
        num_episodes=state.num_episodes + rank[-1],
    )


def summary(name: str, x: jax.Array, where: jax.Array | None = None) -> dict[str, jax.Array]:
    """Mean, std, min and max of `x`; NaN where nothing is selected."""
    count = x.size if where is None else where.sum()
    mean = x.sum(where=where) / count
    return {
        f"{name}_mean": mean,
        f"{name}_std": jnp.sqrt(((x - mean) ** 2).sum(where=where) / count),
        f"{name}_min": jnp.where(count > 0, x.min(where=where, initial=jnp.inf), jnp.nan),
        f"{name}_max": jnp.where(count > 0, x.max(where=where, initial=-jnp.inf), jnp.nan),
    }


def explained_variance(target: jax.Array, value: jax.Array) -> jax.Array:
    """`1 - Var[target - value] / Var[target]`; NaN where the targets do not vary."""
    variance = target.var()
    return jnp.where(variance > 0, 1 - (target - value).var() / variance, jnp.nan)


def dormant_fraction(hidden: Any, tau: float = 0.025) -> jax.Array:
    """Share of hidden units whose mean |activation| is at most `tau` of their layer's (Sokar et al. 2023, eq. 1)."""
    scores = [jnp.abs(h).reshape(-1, h.shape[-1]).mean(axis=0) for h in jax.tree.leaves(hidden)]
    dormant = jnp.concatenate([score <= tau * score.mean() for score in scores])
    return dormant.mean(dtype=jnp.float32)


def gradient_noise_scale(adam: Any, batch_size: int) -> jax.Array:
    """McCandlish et al. 2018 (arXiv:1812.06162), tr(Sigma) / |G|^2 in samples, read off Adam's bias-corrected moments."""
    adam = optax.tree.cast(adam, jnp.float32)
    mean = jax.tree.map(lambda m: m / (1 - 0.9**adam.count), adam.mu)
    square = jax.tree.map(lambda v: v / (1 - 0.999**adam.count), adam.nu)
    signal = optax.tree.sum(jax.tree.map(lambda m: (m**2).sum(), mean))
    return batch_size * (optax.tree.sum(square) - signal) / signal


def diagnose(task: Task, state: State, batch: Batch, part: Batch, aux: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """What happened in this update; `part` is a random minibatch of `batch`. metrics.py of rlref defines each name."""
    config = task.config
    x = normalize(features(part.obs, task.obs_space), state.obs_moments)
    (policy, _), intermediates = task.network.apply(state.params, x, config.init_log_std, mutable=["intermediates"])
    entropy = batch.policy.entropy().mean()
    if isinstance(batch.policy, Categorical):
        relative_entropy = entropy / jnp.log(batch.policy.log_probs.shape[-1])  # NaN for one action: 0 / 0
    else:
        relative_entropy = (batch.policy.log_std - config.init_log_std).mean()

    applied = aux["applied"]
    losses = {name: (x * applied).sum() / applied.sum() for name, x in aux.items() if name not in ("applied", "ratio_error")}
    finite = jax.tree.map(lambda x: jnp.isfinite(x).all(), (state.params, losses))
    finished = jnp.arange(RING) < state.num_episodes
    return (
        losses
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
            "first_ratio_error": aux["ratio_error"][0, 0],
            "gradient_steps": applied.sum(),
            "gradient_noise_scale": gradient_noise_scale(state.opt_state[1], part.value.size),
            "dormant_fraction": dormant_fraction(intermediates),
            "nonfinite": ~jnp.stack(jax.tree.leaves(finite)).all(),
        }
    )


def init_state(task: Task, key: jax.Array) -> State:
    """Fresh parameters and environments of one seed."""
    config = task.config
    key, key_env, key_net = jax.random.split(key, 3)
    obs, env_state = jax.vmap(task.env.reset, in_axes=(0, None))(jax.random.split(key_env, config.num_envs), task.env_params)
    x = features(obs, task.obs_space)
    params = task.network.init(key_net, x, config.init_log_std)
    params = {"params": params["params"]}  # without the activations that `sow` adds
    zeros = jnp.zeros(config.num_envs)
    return State(
        params=params,
        opt_state=task.optimizer.init(params),
        key=key,
        env_state=env_state,
        obs=obs,
        episode_return=zeros,
        episode_length=jnp.zeros(config.num_envs, jnp.int32),
        ring_return=jnp.zeros(RING),
        ring_length=jnp.zeros(RING),
        num_episodes=jnp.int32(0),
        obs_moments=Moments.of(x) if config.normalize_observations else None,
        discounted_return=zeros if config.scale_rewards else None,
        return_moments=Moments(jnp.float32(0), jnp.float32(0), jnp.float32(0)) if config.scale_rewards else None,
    )


def check(config: Config) -> None:
    """Raise ValueError, in one line, for settings that cannot train. Traced floats cannot be looked at, and are not."""
    for name in ("total_timesteps", "num_envs", "num_steps", "num_minibatches", "update_epochs"):
        if not isinstance(getattr(config, name), int) or getattr(config, name) < 1:
            raise ValueError(f"{name} is {getattr(config, name)!r}; it must be a whole number of at least 1")
    batch_size = config.num_envs * config.num_steps
    if batch_size % config.num_minibatches:
        works = [m for m in range(1, batch_size + 1) if batch_size % m == 0]
        nearest = sorted(sorted(works, key=lambda m: abs(m - config.num_minibatches))[:3])
        raise ValueError(
            f"num_minibatches is {config.num_minibatches}, which does not divide the batch of {batch_size} (num_envs "
            f"{config.num_envs} x num_steps {config.num_steps}); {', '.join(map(str, nearest))} would"
        )
    if config.total_timesteps < batch_size:
        raise ValueError(
            f"total_timesteps is {config.total_timesteps}, less than one update's {batch_size} "
            f"(num_envs {config.num_envs} x num_steps {config.num_steps})"
        )
    if config.activation not in ("tanh", "relu"):
        raise ValueError(f"activation is {config.activation!r}; it must be 'tanh' or 'relu'")
    if not config.hidden_sizes or min(config.hidden_sizes) < 1:
        raise ValueError(f"hidden_sizes is {config.hidden_sizes}; it needs at least one layer of at least 1 unit")
    limits = {
        "learning_rate": (0, math.inf),
        "adam_eps": (0, math.inf),
        "max_grad_norm": (0, math.inf),
        "gamma": (0, 1),
        "gae_lambda": (0, 1),
        "clip_coef": (0, math.inf),
        "ent_coef": (0, math.inf),
        "vf_coef": (0, math.inf),
        "target_kl": (0, math.inf),
        "init_log_std": (-math.inf, math.inf),
    }
    for name, (low, high) in limits.items():
        value = getattr(config, name)
        if value is None or isinstance(value, jax.core.Tracer):
            continue
        x = np.asarray(value, np.float64)
        if not np.all((x >= low) & (x <= high) & (np.isfinite(x) | (name == "max_grad_norm"))):
            raise ValueError(f"{name} is {value}; it must be a finite number" + (f" from {low} to {high}" if high < math.inf else f" of at least {low}" if low == 0 else ""))


def make(config: Config, env: Any = None, env_params: Any = None) -> Agent:
    """Build the agent for an environment of gymnax >= 1.0; without `env`, the one that `config.env_id` names.

    Raises ValueError, in one line, for settings or spaces that cannot train.
    """
    check(config)
    if env is None:
        import gymnax

        env, default_params = gymnax.make(config.env_id)
    else:
        default_params = env.default_params
    env_params = default_params if env_params is None else env_params
    obs_space, action_space = env.observation_space(env_params), env.action_space(env_params)
    for what, space in (("observation", obs_space), ("action", action_space)):
        if not isinstance(space, spaces.Discrete | spaces.Box):
            raise ValueError(f"the {what} space of {config.env_id} is {space}; PPO takes Discrete or Box")
    if len(obs_space.shape) == 3:
        size = min(obs_space.shape[:2])
        for _, kernel, stride in config.conv_layers:
            size = (size - kernel) // stride + 1
        if size < 1:
            raise ValueError(f"conv_layers {config.conv_layers} leave nothing of an image of {obs_space.shape}")
    discrete = isinstance(action_space, spaces.Discrete)
    network = Network(
        num_outputs=action_space.n if discrete else math.prod(action_space.shape),
        discrete=discrete,
        hidden_sizes=config.hidden_sizes,
        activation=config.activation,
        conv_layers=config.conv_layers,
    )
    # The learning rate is applied in `learn`, from the step: a counter in the optimiser's state would be batched.
    optimizer = optax.chain(optax.clip_by_global_norm(config.max_grad_norm), optax.scale_by_adam(eps=config.adam_eps))
    task = Task(config, env, env_params, obs_space, action_space, network, optimizer)
    steps_per_update = config.num_envs * config.num_steps
    num_updates = config.total_timesteps // steps_per_update

    def policy(state: State, obs: jax.Array) -> Any:
        distribution = forward(task, state.params, state.obs_moments, obs[None])[0]
        if isinstance(distribution, Categorical):
            return jnp.exp(distribution.log_probs[0])
        return distribution.mean[0], jnp.exp(distribution.log_std[0])

    def value(state: State, obs: jax.Array) -> jax.Array:
        return forward(task, state.params, state.obs_moments, obs[None])[1][0] * reward_scale(state.return_moments)

    return Agent(partial(init_state, task), partial(update_state, task, num_updates), policy, value, num_updates, steps_per_update)


def train(config: Config, key: jax.Array, env: Any = None, env_params: Any = None) -> tuple[State, dict[str, jax.Array]]:
    """Train one seed; vmap over `key` for many. Returns its state and diagnostics `[num_updates]`."""
    agent = make(config, env, env_params)
    return jax.lax.scan(agent.update, agent.init(key), jnp.arange(agent.num_updates))
