"""Noisy cross-entropy method (Szita & Lorincz 2006, "Learning Tetris Using the Noisy Cross-Entropy Method").

    rlref train cem      8 seeds of CartPole-v1 and a run folder; `python -m rlref.cem` is the same
    python cem.py        this file copied elsewhere, without rlref: 4 seeds, prints the last generation
    jax.jit(jax.vmap(cem.train, in_axes=(None, 0)))(cem.Config(), keys)        many seeds, from Python

Expected: `rlref train cem` ends on CartPole-v1 at an IQM of at least 499 over 32 seeds, as rlref's README shows.

A search over the parameters of a deterministic policy, without gradients or values: draw candidates from a Gaussian,
let each act for a few episodes, refit the Gaussian to the best. One of the baselines to run on a new problem (Schulman
2016, Nuts and Bolts): if it learns nothing, look at the environment first, then at `init_variance`.
Read `update`, `rollout`, `elites`, `refit`: that is CEM, 93 lines; the loop is in `train`. To edit a copy: a policy in
`act` and `make`, a metric in `diagnose`, a setting in `Config`. Every function is for ONE seed; batching over seeds is
the caller's `vmap`. Agent files repeat code so that each can be copied alone.
Letters: `P` candidates of the population, `K` rollouts of each, `D` parameters of the policy, `k` elites, `A` actions,
`F` features, `B` observations.
"""

# Original: cem 3434e6920c46; by this line `rlref probe` tells what a copy has changed
from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import flax
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.scipy.special import digamma

MIN_VARIANCE = 1e-12  # of a parameter: where candidates have become alike; at 0 no KL is defined
BLOCK = 500  # steps at most that a GPU goes on before it is asked whether all episodes have ended
ELITES_TRIED = 4  # elites that are played once more, on fresh keys, to measure the selection bias
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
    """Settings of CEM."""

    env_id: str = static("CartPole-v1")  # a gymnax id; in rlref's commands also package.module:make_env
    num_generations: int = static(15)  # generations of one seed
    population_size: int = static(64, "[2, inf)")  # candidates drawn in a generation
    elite_fraction: float = leaf(0.125, "(0, 1]", (0.03, 0.5, "log"))  # of candidates, refitted to; at least 2 of them
    num_rollouts: int = static(4)  # episodes of each candidate in a generation; all meet the same random numbers
    num_eval_rollouts: int = static(16)  # episodes of the new mean, and of some elites, on fresh keys; not in env_steps
    # steps after which an episode is cut; None: where the environment's max_steps_in_episode cuts it, as in
    # evaluations by rlref's runner in any case
    max_episode_steps: int | None = static(None)
    init_variance: float = leaf(1.0, f"[{MIN_VARIANCE:g}, inf)", (0.01, 100.0, "log"))  # of every parameter; mean 0
    # added to every parameter's variance after the first generation, and linearly less from then on
    extra_variance: float = leaf(0.25, "[0, inf)", (0.001, 10.0, "log"))
    extra_variance_fraction: float = leaf(0.5, "(0, 1]", (0.1, 1.0, "linear"))  # share of generations until it is 0
    # share of the old mean and variance (extra variance included) that is kept: 1 - alpha of de Boer et al. 2005
    smoothing: float = leaf(0.0, "[0, 1)", (0.0, 0.9, "linear"))
    hidden_sizes: tuple[int, ...] = static(())  # units of each hidden layer; none: a linear policy
    activation: Literal["tanh", "relu"] = static("tanh")  # activation of the hidden layers
    # by the mean and std of all that candidates of earlier generations have seen; then clip to +-10
    normalize_observations: bool = static(False)


@flax.struct.dataclass
class State:
    """Everything needed to go on training one seed: the Gaussian that the next candidates are drawn from."""

    mean: Array  # [D]
    variance: Array  # [D], the extra variance included
    key: Array
    env_steps: Array  # int32, of all candidates so far
    obs_moments: Moments | None  # by which `mean` was fitted; None unless normalize_observations
    seen: Moments | None  # of all candidates so far: what the next generation's observations are normalised by


class Task(NamedTuple):
    """What training never changes: an argument of every function that needs it, so that each can be called alone."""

    config: Config
    env: Any
    env_params: Any
    obs_space: Any
    action_space: Any
    max_steps: int  # of an episode
    num_inputs: int
    num_params: int
    unflatten: Callable[[Array], list[tuple[Array, Array]]]  # [D] -> kernel [n, m] and bias [m] per layer


class Agent(NamedTuple):
    """What `make` returns, and all that rlref's runner and probes use of this file: functions bound to their `Task`."""

    init: Callable[[Array], State]  # key -> state of one seed
    update: Callable[[State, Array], tuple[State, Metrics]]  # step: int32, never batched -> float32 scalars
    # Of the Gaussian's mean: ONE raw observation -> one-hot [A] of its action; Box: mean [D], its action; std [D], 0
    policy: Callable[[State, Array], Any]
    value: Callable[[State, Array], Array] | None  # None: there are no values
    num_updates: int  # generations
    steps_per_update: int  # environment steps of one generation's candidates, at most: episodes may end early


# ---- Training --------------------------------------------------------------------------------------------------------
def train(config: Config, key: Array, env: Any = None, env_params: Any = None) -> tuple[State, Metrics]:
    """Train one seed; vmap over `key` for many. Returns its state, and diagnostics `[num_generations]`."""
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
    limit: Any = config.max_episode_steps
    limit = getattr(env_params, "max_steps_in_episode", None) if limit is None else limit
    check(config, obs_space, action_space, limit)
    seen = getattr(obs_space, "inner", obs_space)  # without an action mask
    num_inputs = seen.n if is_discrete(seen) else math.prod(seen.shape)
    num_outputs = action_space.n if is_discrete(action_space) else math.prod(action_space.shape)
    sizes = (num_inputs, *config.hidden_sizes, num_outputs)
    layers = [(jnp.zeros((n, m)), jnp.zeros(m)) for n, m in itertools.pairwise(sizes)]
    flat, unflatten = ravel_pytree(layers)
    task = Task(config, env, env_params, obs_space, action_space, int(limit), num_inputs, len(flat), unflatten)
    steps_per_update = config.population_size * config.num_rollouts * task.max_steps

    def policy(state: State, obs: Array) -> Any:
        action = act(task, state.mean, obs[None], state.obs_moments)[0]
        if is_discrete(action_space):
            return jax.nn.one_hot(action, action_space.n)
        action = action.astype(jnp.float32).reshape(-1)
        return action, jnp.zeros_like(action)

    return Agent(partial(init, task), partial(update, task), policy, None, config.num_generations, steps_per_update)


def init(task: Task, key: Array) -> State:
    """The first Gaussian of one seed."""
    variance = jnp.full(task.num_params, task.config.init_variance, jnp.float32)
    nothing = Moments.of_nothing(task.num_inputs) if task.config.normalize_observations else None
    return State(jnp.zeros(task.num_params), variance, key, jnp.int32(0), nothing, jax.tree.map(jnp.copy, nothing))


# ---- The algorithm ---------------------------------------------------------------------------------------------------
def update(task: Task, state: State, step: Array) -> tuple[State, Metrics]:
    """One generation."""
    config = task.config
    key, key_noise, key_rollout, key_elite, key_eval = jax.random.split(state.key, 5)
    noise = jax.random.normal(key_noise, (config.population_size, task.num_params))
    candidates = state.mean + jnp.sqrt(state.variance) * noise
    keys_rollout = jax.random.split(key_rollout, config.num_rollouts)
    returns, lengths, ended, seen = rollout(task, candidates, keys_rollout, state.seen)

    score = returns.mean(axis=1)
    num_elites = jnp.maximum(jnp.round(config.elite_fraction * config.population_size), 2)  # traced: not checked
    elite = elites(score, num_elites)
    fitted = refit(candidates, elite)
    extra_variance = extra_variance_at(config, step)
    mean, variance = (
        config.smoothing * old + (1 - config.smoothing) * new
        for old, new in zip((state.mean, state.variance), fitted, strict=True)
    )
    seen = None if state.seen is None else state.seen.merge(seen)
    new = State(mean, variance + extra_variance, key, state.env_steps + lengths.sum(), state.seen, seen)

    # On fresh keys: the mean, which is the policy; and elites, whose scores were chosen for being high.
    some = jax.random.choice(key_elite, config.population_size, (ELITES_TRIED,), p=elite / elite.sum())
    tried = jnp.concatenate([mean[None], candidates[some]])
    keys_eval = jax.random.split(key_eval, config.num_eval_rollouts)
    of_mean, *of_elites = rollout(task, tried, keys_eval, new.obs_moments)[0].mean(axis=1)

    diagnostics = diagnose(state, new, fitted, returns, lengths, elite) | {
        "env_steps": new.env_steps,
        "episodes": ended.sum(),
        "extra_variance": extra_variance,
        "mean_policy_return": of_mean,
        "selection_bias": (score[some] - jnp.stack(of_elites)).mean(),
    }
    return new, {name: jnp.asarray(x, jnp.float32) for name, x in diagnostics.items()}


def rollout(task: Task, candidates: Array, keys: Array, obs_moments: Moments | None = None) -> tuple[Any, ...]:
    """One episode of each candidate `[P, D]` on each key `[K]`.

    Returns, each `[P, K]`: undiscounted return and length up to the first ending, and whether there was one within
    `max_steps`; and the moments of what was acted on, None unless observations are normalised, by `obs_moments`.
    Candidates share the keys (common random numbers), so that the luck of a draw is the same for all.

    Where people go wrong: environments reset themselves, so a step after the ending pays the next episode's reward.
    """
    key_of = jax.vmap(jax.random.fold_in, in_axes=(0, None))
    # Over rollouts, then over candidates, which have the keys in common.
    env_step = jax.vmap(jax.vmap(task.env.step, in_axes=(0, 0, 0, None)), in_axes=(None, 0, 0, None))
    keys_reset = key_of(keys, task.max_steps)  # a number that no step has
    start = jax.vmap(task.env.reset, in_axes=(0, None))(keys_reset, task.env_params)
    obs, env_state = jax.vmap(lambda _: start)(candidates)

    def step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        t, obs, env_state, alive, total, length, seen = carry
        if seen is not None:
            x = jax.vmap(partial(features, space=task.obs_space))(obs)
            seen = seen.merge(Moments.of(x.reshape(-1, task.num_inputs), alive.reshape(-1)))
        action = jax.vmap(partial(act, task, obs_moments=obs_moments))(candidates, obs)
        obs, env_state, reward, terminated, truncated, _ = env_step(key_of(keys, t), env_state, action, task.env_params)
        # A mask beside the early exit: the loops go on until the last episode of all has ended, or longer.
        total += jnp.where(alive, reward.astype(jnp.float32), 0.0)
        return t + 1, obs, env_state, alive & ~(terminated | truncated), total, length + alive, seen

    shape = len(candidates), len(keys)
    seen = None if obs_moments is None else Moments.of_nothing(task.num_inputs)
    carry = jnp.int32(0), obs, env_state, jnp.ones(shape, bool), jnp.zeros(shape), jnp.zeros(shape, jnp.int32), seen

    def until_all_ended(steps: Callable[..., Any], carry: tuple[Any, ...]) -> tuple[Any, ...]:
        return jax.lax.while_loop(lambda carry: (carry[0] < task.max_steps) & carry[3].any(), steps, carry)

    def in_blocks(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        size = min(BLOCK, task.max_steps)

        def one(_: Any, carry: tuple[Any, ...]) -> tuple[Any, ...]:
            within, new = carry[0] < task.max_steps, step(carry)
            return new if task.max_steps % size == 0 else jax.tree.map(partial(jnp.where, within), new, carry)

        block = partial(jax.lax.fori_loop, 0, size, one, unroll=4)
        return block(carry) if size == task.max_steps else until_all_ended(block, carry)

    # A GPU has to be waited for to know whether all have ended: it is asked only so often, or not at all.
    every_step = partial(until_all_ended, step)
    carry = jax.lax.platform_dependent(carry, cuda=in_blocks, rocm=in_blocks, default=every_step)
    *_, alive, total, length, seen = carry
    return total, length, ~alive, seen


def elites(score: Array, num_elites: Any) -> Array:
    """Which of the candidates are among the best, by scores `[P]`: bool `[P]`. NaN is worse than any score."""
    order = jnp.argsort(-score)  # order[i] is the candidate in place i, not the place of candidate i
    return jnp.zeros(len(score), bool).at[order].set(jnp.arange(len(score)) < num_elites)


def refit(candidates: Array, elite: Array) -> tuple[Array, Array]:
    """The elites' mean and variance `[D]`, by maximum likelihood: the sum of squares over k, not k - 1."""
    mean = candidates.mean(axis=0, where=elite[:, None])
    variance = ((candidates - mean) ** 2).mean(axis=0, where=elite[:, None])
    return mean, jnp.maximum(variance, MIN_VARIANCE)


def extra_variance_at(config: Config, generation: Any) -> Array:
    """What is added to the variance after a generation (Szita & Lorincz 2006: max(5 - t / 10, 0), at first 100).

    Without it the Gaussian shrinks by the same share whether it has arrived or not, and stops on its way.
    """
    last = config.extra_variance_fraction * config.num_generations
    return config.extra_variance * jnp.maximum(1 - generation / last, 0.0)


# ---- Policy ----------------------------------------------------------------------------------------------------------
def act(task: Task, params: Array, obs: Array, obs_moments: Moments | None = None) -> Array:
    """Actions `[B, ...]` of one candidate `[D]` at raw observations `[B, ...]`: the largest output; Box: tanh."""
    x = features(obs, task.obs_space)
    x = x if obs_moments is None else normalize(x, obs_moments)
    *hidden, head = task.unflatten(params)
    activation = {"tanh": jnp.tanh, "relu": jax.nn.relu}[task.config.activation]
    for kernel, bias in hidden:
        x = activation(dense(x, kernel, bias))
    outputs, space = dense(x, *head), task.action_space
    if is_discrete(space):
        mask = without_mask(obs, task.obs_space)[2]
        outputs = outputs if mask is None else jnp.where(mask, outputs, -jnp.inf)
        return outputs.argmax(axis=-1).astype(jnp.int32)
    low, high = (jnp.broadcast_to(jnp.asarray(x, jnp.float32), space.shape) for x in (space.low, space.high))
    squashed = jnp.tanh(outputs).reshape(-1, *space.shape)
    if jnp.issubdtype(space.dtype, jnp.integer):  # every whole number has the same share
        actions = jnp.floor(low + (high - low + 1) / 2 * (squashed + 1))
    else:
        actions = (high + low) / 2 + (high - low) / 2 * squashed
    return jnp.clip(actions, low, high).astype(space.dtype)  # tanh is 1 from 9 on: a whole number would be high + 1


def dense(x: Array, kernel: Array, bias: Array) -> Array:
    """`[B, n] -> [B, m]`."""
    if len(kernel) > 32:
        return x @ kernel + bias
    # The same, but fused with what is around it: batched over candidates, products of tiny matrices cost a CPU more
    # than the environment's step does.
    return sum((x[:, i, None] * row for i, row in enumerate(kernel)), bias)


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
    """Raw observations `[B, ...]` as float32 `[B, F]`: one-hot if Discrete, else flat; byte images from 0 to 1."""
    obs, space, _ = without_mask(obs, space)
    if is_discrete(space):
        return jax.nn.one_hot(obs, space.n)
    scale = 255 if obs.dtype == jnp.uint8 and len(space.shape) == 3 else 1
    return obs.reshape(obs.shape[0], -1).astype(jnp.float32) / scale


@flax.struct.dataclass
class Moments:
    """Mean and variance of all data seen so far."""

    mean: Array
    variance: Array
    count: Array

    @classmethod
    def of_nothing(cls, size: int) -> Moments:  # normalising by these changes nothing
        return cls(jnp.zeros(size), jnp.ones(size), jnp.float32(0))

    @classmethod
    def of(cls, batch: Array, where: Array) -> Moments:  # of `[B, F]` and, in it, of the rows `where` says `[B]`
        count = where.sum(dtype=jnp.float32)
        mean = batch.sum(axis=0, where=where[:, None]) / jnp.maximum(count, 1)
        variance = ((batch - mean) ** 2).sum(axis=0, where=where[:, None]) / jnp.maximum(count, 1)
        return cls(mean, variance, count)

    def merge(self, other: Moments) -> Moments:
        """Chan, Golub & LeVeque 1979: exact, and without the difference of large sums of squares."""
        count = self.count + other.count
        delta, share = other.mean - self.mean, other.count / jnp.maximum(count, 1)
        variance = self.variance * (1 - share) + other.variance * share + delta**2 * share * (1 - share)
        return Moments(self.mean + delta * share, variance, count)


def normalize(x: Array, moments: Moments) -> Array:
    """Observation normalisation and clipping (37 details, continuous 6 and 7; V2 of Mania et al. 2018)."""
    return jnp.clip((x - moments.mean) / jnp.sqrt(moments.variance + 1e-8), -10.0, 10.0)


# ---- Diagnostics: rlref/metrics.py defines each name -----------------------------------------------------------------
def diagnose(
    old: State, new: State, fitted: tuple[Array, Array], returns: Array, lengths: Array, elite: Array
) -> dict[str, Any]:
    """What happened in this generation, in scalars.

    `old` drew the candidates, `fitted` is the mean and variance of the elites alone, and `new` is what came of it;
    `returns` and `lengths` are `[P, K]`, `elite` `[P]`.
    """
    score, num_params, std = returns.mean(axis=1), len(old.mean), jnp.sqrt(old.variance)
    entropy = gaussian_entropy(old.variance)
    of_mean, of_variance = gaussian_kl(new.mean, new.variance, old.mean, old.variance)
    refit_kl = jnp.add(*gaussian_kl(*fitted, old.mean, old.variance))
    floor = kl_floor(elite.sum(), num_params)
    return {
        **summary("return", score),
        **summary("length", lengths.mean(axis=1)),
        "return_count": len(score),
        "entropy": entropy,
        "relative_entropy": entropy / num_params,
        "kl": of_mean + of_variance,
        "kl_mean_term": of_mean,
        "kl_variance_term": of_variance,
        "kl_refit": refit_kl,
        "kl_floor": floor,
        "kl_excess": refit_kl - floor,
        "explained_variance": explained_variance(returns),
        "elite_threshold": score.min(where=elite, initial=jnp.inf),
        "elite_mean": score.mean(where=elite),
        "std_min": std.min(),
        "std_mean": std.mean(),
        "nonfinite": ~jnp.isfinite(jnp.stack([returns.sum(), new.mean.sum(), new.variance.sum()])).all(),
    }


def summary(name: str, x: Array) -> Metrics:
    """Mean, standard deviation, minimum and maximum of `x`."""
    return {f"{name}_mean": x.mean(), f"{name}_std": x.std(), f"{name}_min": x.min(), f"{name}_max": x.max()}


def gaussian_entropy(variance: Array) -> Array:
    """Differential entropy in nats of a Gaussian with independent dimensions `[D]`."""
    return 0.5 * jnp.log(2 * math.pi * math.e * variance).sum()


def gaussian_kl(mean: Array, variance: Array, old_mean: Array, old_variance: Array) -> tuple[Array, Array]:
    """KL(new, old) in nats of such Gaussians, in two terms: what the means cause, and what the variances cause."""
    ratio = variance / old_variance
    return 0.5 * ((mean - old_mean) ** 2 / old_variance).sum(), 0.5 * (ratio - 1 - jnp.log(ratio)).sum()


def kl_floor(num_elites: Any, num_params: int) -> Array:
    """Expected KL(refit, old) in nats if elites are chosen at random: what a generation changes by chance alone.

    The mean of k draws is off by 1/k variances, and k / variance times their variance is chi-squared with k - 1 degrees
    of freedom, whose logarithm has the mean digamma((k - 1) / 2) + log 2.
    """
    return -0.5 * num_params * (digamma((num_elites - 1) / 2) + jnp.log(2 / num_elites))


def explained_variance(returns: Array) -> Array:
    """Share of the variance of candidates' mean returns that is theirs, and not that of their `K` rollouts; `[P, K]`.

    Two-way analysis of variance, candidates x keys: what a key is worth to all candidates alike is no noise under
    common random numbers. NaN for K = 1, and where the means do not vary by more than float32 rounding.
    """
    size, rollouts = returns.shape
    if rollouts == 1:
        return jnp.float32(jnp.nan)
    of_candidate, of_key = returns.mean(axis=1, keepdims=True), returns.mean(axis=0, keepdims=True)
    residual = returns - of_candidate - of_key + returns.mean()
    mean_square = (residual**2).sum() / ((size - 1) * (rollouts - 1))
    variance = of_candidate.var(ddof=1)
    varies = variance > (1e-6 * jnp.abs(of_candidate).max()) ** 2
    return jnp.where(varies, 1 - mean_square / rollouts / variance, jnp.nan)


# ---- Checks and loading ----------------------------------------------------------------------------------------------
def check(config: Config, obs_space: Any, action_space: Any, limit: Any) -> None:
    """Raise ValueError, in one line, for settings, spaces or a length of episodes that cannot train."""
    check_settings(config)
    name, size = config.env_id, config.population_size
    fraction: Any = config.elite_fraction
    if not isinstance(fraction, jax.core.Tracer) and np.round(np.float32(fraction) * size).min() < 2:
        rule = f"enough for 2 elites of population_size {size}, such as {2 / size:.3g}: one alone has no variance"
        raise ValueError(f"elite_fraction is {fraction!r}; it must be {rule}")
    for what, space in (("observation", obs_space), ("action", action_space)):
        if not is_discrete(space) and not hasattr(space, "low"):
            raise ValueError(f"{name} has the {what} space {space}; CEM takes Discrete or Box")
    if (mask := getattr(obs_space, "action_mask", 0)) not in (0, getattr(action_space, "n", 0)):
        raise ValueError(f"the action_mask has {mask} numbers; it must have one for each action of {action_space}")
    if not is_discrete(action_space):
        low, high = (np.asarray(x, np.float64) for x in (action_space.low, action_space.high))
        if not (high - low < np.finfo(np.float32).max).all():  # nor where one is infinite
            raise ValueError(f"{name} has actions without usable bounds, {action_space}; CEM needs bounds to scale to")
    known = not (limit is None or isinstance(limit, jax.core.Tracer)) and np.ndim(limit) == 0
    if not known or not 1 <= np.asarray(limit) < np.inf:
        unknown = f"no episode end that is known beforehand, its max_steps_in_episode is {limit}"
        raise ValueError(f"{name} has {unknown}; give max_episode_steps")
    counts = f"{config.num_generations} x population_size {size} x num_rollouts {config.num_rollouts} x {limit} steps"
    if config.num_generations * size * config.num_rollouts * int(limit) >= 2**31:
        raise ValueError(f"num_generations {counts} of an episode must be below 2^31")


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
