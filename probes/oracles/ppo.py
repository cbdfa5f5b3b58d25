"""Oracles over the functions of PPO's file."""

import collections
import dataclasses
import functools
import inspect
import math
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from probes.environments import Tabular, Targets, tables
from probes.oracles.base import (
    CYCLE,
    DEFINITION,
    IDS,
    LIKENESS,
    CannotAskError,
    Lopsided,
    Plate,
    close,
    compiled,
    configure,
    emitted,
    first_state,
    follows_ids,
    oracle,
    part,
    rows_apart,
    settings_in,
    so_far,
    task_of,
    used,
)
from rlref.contract import CEM, PPO


@oracle(PPO, "advantages", DEFINITION, gae="reward value next_value terminated truncated gamma gae_lambda")
def advantages(module: ModuleType) -> None:
    """Generalised advantages equal their sum written out, in float64, over random endings."""
    rng = np.random.default_rng(0)
    for gamma, gae_lambda in ((0.0, 0.5), (0.5, 0.0), (0.5, 0.5), (0.9, 1.0), (1.0, 0.95)):
        reward, value, next_value = rng.normal(size=(3, 13, 5))
        terminated, truncated = rng.random((2, 13, 5)) < 0.2
        wanted = np.zeros((13, 5))
        for t in range(13):
            for env in range(5):
                weight = 1.0
                for k in range(t, 13):
                    bootstrap = 0.0 if terminated[k, env] else gamma * next_value[k, env]
                    wanted[t, env] += weight * (reward[k, env] + bootstrap - value[k, env])
                    if terminated[k, env] or truncated[k, env]:
                        break
                    weight *= gamma * gae_lambda
        floats = (jnp.asarray(x, jnp.float32) for x in (reward, value, next_value))
        got = module.gae(*floats, jnp.asarray(terminated), jnp.asarray(truncated), gamma, gae_lambda)
        close(f"gae's advantage (gamma {gamma}, lambda {gae_lambda})", got, wanted)


@oracle(PPO, "the categorical policy", DEFINITION, Categorical="log_probs")
def categorical(module: ModuleType) -> None:
    """log_prob, entropy and KL of a Categorical equal sums over its probabilities."""
    rng = np.random.default_rng(0)
    p, q = (x / x.sum(-1, keepdims=True) for x in rng.random((2, 5, 3)))
    action = rng.integers(3, size=5)
    policy, other = (module.Categorical(jnp.log(jnp.asarray(x, jnp.float32))) for x in (p, q))
    close("Categorical.log_prob", policy.log_prob(jnp.asarray(action)), np.log(p[np.arange(5), action]))
    close("Categorical.entropy", policy.entropy(), -(p * np.log(p)).sum(-1))
    close("Categorical.kl", policy.kl(other), (p * np.log(p / q)).sum(-1))
    if hasattr(module.Categorical, "noise") and hasattr(module.Categorical, "sample"):
        drawn = np.asarray(policy.sample(module.Categorical.noise(jax.random.key(0), (20_000, 5, 3))))
        close("how often Categorical.sample gives each action", (drawn[..., None] == np.arange(3)).mean(0), p, 0.02)


@oracle(PPO, "the policy over several choices", DEFINITION, Categoricals="log_probs sizes")
def several_choices(module: ModuleType) -> None:
    """log_prob, entropy and KL of two independent choices are those of their joint probabilities."""
    rng = np.random.default_rng(0)
    each = [[x / x.sum(-1, keepdims=True) for x in (rng.random((5, 2)), rng.random((5, 3)))] for _ in range(2)]
    log_probs = [jnp.log(jnp.asarray(np.concatenate(x, axis=1), jnp.float32)) for x in each]
    policy, other = (module.Categoricals(x, (2, 3)) for x in log_probs)
    p, q = (a[:, :, None] * b[:, None] for a, b in each)
    action = np.stack([rng.integers(2, size=5), rng.integers(3, size=5)], axis=1)
    close("Categoricals.log_prob", policy.log_prob(jnp.asarray(action)), np.log(p[np.arange(5), *action.T]))
    close("Categoricals.entropy", policy.entropy(), -(p * np.log(p)).sum((1, 2)))
    close("Categoricals.kl", policy.kl(other), (p * np.log(p / q)).sum((1, 2)))
    if hasattr(module.Categoricals, "noise") and hasattr(module.Categoricals, "sample"):
        drawn = np.asarray(policy.sample(module.Categoricals.noise(jax.random.key(0), (20_000, 5, 5))))
        for i, x in enumerate(each[0]):
            shares = (drawn[..., i, None] == np.arange(x.shape[1])).mean(0)
            close(f"how often Categoricals.sample gives each option of choice {i}", shares, x, 0.02)


@oracle(PPO, "the Gaussian policy", DEFINITION, DiagonalGaussian="mean log_std")
def gaussian(module: ModuleType) -> None:
    """log_prob, entropy and KL of a DiagonalGaussian are sums over its independent dimensions."""
    rng = np.random.default_rng(0)
    mean, other_mean, action = rng.normal(size=(3, 5, 2))
    log_std, other_log_std = 0.5 * rng.normal(size=(2, 5, 2))
    policy, other = (
        module.DiagonalGaussian(jnp.asarray(m, jnp.float32), jnp.asarray(s, jnp.float32))
        for m, s in ((mean, log_std), (other_mean, other_log_std))
    )
    std, other_std = np.exp(log_std), np.exp(other_log_std)
    density = np.exp(-0.5 * ((action - mean) / std) ** 2) / (std * math.sqrt(2 * math.pi))
    close("DiagonalGaussian.log_prob", policy.log_prob(jnp.asarray(action, jnp.float32)), np.log(density.prod(-1)))
    close("DiagonalGaussian.entropy", policy.entropy(), np.log(std * math.sqrt(2 * math.pi * math.e)).sum(-1))
    kl = np.log(other_std / std) + (std**2 + (mean - other_mean) ** 2) / (2 * other_std**2) - 0.5
    close("DiagonalGaussian.kl", policy.kl(other), kl.sum(-1))
    if hasattr(module.DiagonalGaussian, "noise") and hasattr(module.DiagonalGaussian, "sample"):
        drawn = np.asarray(policy.sample(module.DiagonalGaussian.noise(jax.random.key(0), (20_000, 5, 2))))
        close("the mean of DiagonalGaussian.sample", drawn.mean(0), mean, 0.08)
        close("the standard deviation of DiagonalGaussian.sample", drawn.std(0), std, 0.05)


@oracle(PPO, "the shuffling into minibatches", LIKENESS, minibatch_indices="key epochs batch_size num_minibatches")
def each_sample_once(module: ModuleType) -> None:
    """Every epoch has each sample exactly once, in an order of its own."""
    indices = np.asarray(module.minibatch_indices(jax.random.key(0), 3, 77, 7))
    close("the shape of minibatch_indices", indices.shape, (3, 7, 11))
    for epoch in indices.reshape(3, 77):
        close("a sample's count in an epoch", np.bincount(epoch, minlength=77), np.ones(77))
    if (indices[0] == indices[1]).all():
        raise AssertionError("two epochs have the same order")


@oracle(PPO, "the running mean and variance", DEFINITION, Moments="mean variance count")
def running_moments(module: ModuleType) -> None:
    """Of three batches of different sizes, merged one after the other, they are those of all data at once."""
    data = np.random.default_rng(0).normal(size=(60, 3)) * [1.0, 5.0, 0.1] + [0.0, 3.0, -20.0]
    parts = [module.Moments.of(jnp.asarray(x, jnp.float32)) for x in np.split(data, [7, 18])]
    merged = functools.reduce(lambda a, b: a.merge(b), parts)
    for name, wanted in (("mean", data.mean(0)), ("variance", data.var(0)), ("count", 60.0)):
        close(f"the {name} of 7, 11 and 42 samples", getattr(merged, name), wanted, 1e-3)


@oracle(
    PPO + CEM, "the normalisation of observations", DEFINITION, normalize="x moments", Moments="mean variance count"
)
def normalised(module: ModuleType) -> None:
    """The mean is taken off, and what is left divided by the standard deviation, then clipped to some bound."""
    x = jnp.array([[1.0, -4.0], [7.0, 8.0]])
    moments = module.Moments(jnp.array([4.0, 0.0]), jnp.array([9.0, 4.0]), jnp.float32(10))
    close("normalize of observations", module.normalize(x, moments), [[-1.0, -2.0], [1.0, 4.0]], 1e-3)
    low, high = np.asarray(module.normalize(1e6 * jnp.array([[-1.0], [1.0]]),
                                            module.Moments(jnp.zeros(1), jnp.ones(1), jnp.float32(10))))  # fmt: skip
    if not (-1e3 < low[0] < -1 and low[0] == -high[0]):
        raise AssertionError(f"normalize gives {low[0]:.3g} and {high[0]:.3g} a million standard deviations off")


@oracle(
    PPO,
    "the scaling of rewards",
    DEFINITION,
    discounted_returns="start reward ended gamma",
    reward_scale="moments",
    Moments="mean variance count",
)
def reward_scaling(module: ModuleType) -> None:
    """The discounted sum of an episode's rewards so far, begun anew after an ending; its standard deviation divides."""
    rng = np.random.default_rng(0)
    reward, ended, start = rng.normal(size=(13, 5)), rng.random((13, 5)) < 0.2, rng.normal(size=5)
    totals, total = np.zeros((13, 5)), start.copy()
    for t in range(13):
        totals[t] = total = 0.8 * total + reward[t]
        total = np.where(ended[t], 0.0, total)
    floats = (jnp.asarray(x, jnp.float32) for x in (start, reward))
    carried, got = module.discounted_returns(*floats, jnp.asarray(ended), 0.8)
    close("discounted_returns", got, totals)
    close("what discounted_returns carries on", carried, total)
    close("reward_scale at variance 9", module.reward_scale(module.Moments(*jnp.array([5.0, 9.0, 100.0]))), 3.0)
    close("reward_scale where nothing varies", module.reward_scale(module.Moments(*jnp.array([5.0, 0.0, 100.0]))), 1.0)


@oracle(PPO, "the gradient's noise scale", DEFINITION, gradient_noise_scale="opt_state batch_size")
def noise_scale(module: ModuleType) -> None:
    """tr(Sigma) / |G|^2 in samples: the variance of minibatches' gradients, times their size, to the squared mean."""
    rng, adam = np.random.default_rng(0), optax.scale_by_adam()
    state = adam.init(jnp.zeros(500))
    for _ in range(3):  # gradients that are always the same have no noise
        _, state = adam.update(jnp.full(500, 2.0), state)
    close("gradient_noise_scale of equal gradients", module.gradient_noise_scale(state, 11), 0.0, 1e-3)
    step = compiled(lambda g, s: adam.update(g, s)[1])
    for _ in range(300):
        state = step(jnp.asarray(1 + 0.5 * rng.normal(size=500), jnp.float32), state)
    # The first moment is itself a mean over some (1 + .9) / (1 - .9) = 19 gradients: their noise adds to its square.
    mean, square = np.asarray(state.mu), np.asarray(state.nu) / (1 - 0.999 ** int(state.count))
    wanted = 11 * (square.sum() - (mean**2).sum()) / (mean**2).sum()
    close("gradient_noise_scale of noisy gradients", module.gradient_noise_scale(state, 11), wanted, 0.01)


@oracle(
    PPO,
    "the network: what it says of one observation depends on the others in the batch, or its policy is none",
    init="task key",
    forward="task params obs_moments obs options",
)
def observations_apart(module: ModuleType) -> None:
    """Policy and value of an observation are the same alone and in a batch; probabilities add up to 1."""
    params = tables(obs=[[0.3, -0.5]], reward=[[0.0] * 5], next=[0])
    task = task_of(module, configure(module, hidden_sizes=(16,)), Tabular(params), params)
    weights = first_state(module, task).params
    weights = jax.tree.map(lambda x: x + 0.3, weights)  # where the policy is not nearly uniform
    obs = jnp.array([[0.3, -0.4], [1.0, 2.0], [-1.0, 0.5]])
    rows_apart(partial(module.forward, task, weights, None), obs)
    policy, _ = module.forward(task, weights, None, obs)
    total = sum(np.exp(np.asarray(policy.log_prob(jnp.full(3, action)))) for action in range(5))
    close("the sum of the probabilities of all actions", total, np.ones(3))


LOSS = {
    "init": "task key",
    "forward": "task params obs_moments obs options",
    "loss": "params task obs_moments batch",
    "Batch": "obs action policy log_prob value advantage target",
}
# Every mixture of ratio, advantage, and how far the value has moved since it was collected and its target is off.
SAMPLES = np.array(
    [
        (ratio, advantage, *moved)
        for ratio in (0.5, 0.9, 1.1, 1.5)
        for advantage in (2.0, -3.0)
        for moved in ((0.0, 1.0), (0.5, 0.1), (0.5, 1.0), (-0.5, 1.0))
    ]
)


class Loss(NamedTuple):
    """PPO's loss on four observations."""

    total: Callable[..., Any]
    """vf_coef, ent_coef, samples `[4, 4]` (columns as in SAMPLES) -> the loss"""
    gradient: Callable[..., Any]
    """the same -> the gradient"""
    entropy: float
    """of the policy, on average"""
    entropy_gradient: Any


@functools.cache
def loss_of(module: ModuleType) -> Loss:
    """The loss without normalised advantages, clip .2 of ratio and value, away from the first parameters."""
    rng = np.random.default_rng(0)
    params = tables(obs=[[0.3, -0.5, 1.0]], reward=[[0.0, 0.0]], next=[0], terminated=True)
    config = configure(module, norm_adv=False, clip_vloss=True, vf_coef=0.5, ent_coef=0.1, clip_coef=0.2)
    task = task_of(module, config, Tabular(params), params)
    flat, unravel = ravel_pytree(first_state(module, task).params)
    weights = unravel(flat + 0.2 * jnp.asarray(rng.normal(size=len(flat)), jnp.float32))
    obs, action = jnp.asarray(rng.normal(size=(4, 3)), jnp.float32), jnp.array([0, 1, 1, 0])
    policy, value = module.forward(task, weights, None, obs)

    def total(weights: Any, vf_coef: Any, ent_coef: Any, samples: jax.Array) -> Any:
        ratio, advantage, moved, target = samples.T
        own = task_of(module, config.replace(vf_coef=vf_coef, ent_coef=ent_coef), Tabular(params), params)
        old = value - moved
        log_prob = policy.log_prob(action) - jnp.log(ratio)
        batch = module.Batch(obs, action, policy, log_prob, old, advantage, old + target)
        return module.loss(weights, own, None, batch)[0]

    def entropy(weights: Any) -> Any:
        return module.forward(task, weights, None, obs)[0].entropy().mean()

    value_and_gradient = compiled(jax.value_and_grad(total))
    mean, slope = compiled(jax.value_and_grad(entropy))(weights)
    return Loss(
        lambda *x: value_and_gradient(weights, *x)[0], lambda *x: value_and_gradient(weights, *x)[1], float(mean), slope
    )


def mixed_samples() -> np.ndarray:
    """`[8, 4, 4]`: eight batches of four of SAMPLES, in random order."""
    return np.random.default_rng(0).permutation(SAMPLES).reshape(8, 4, 4).astype(np.float32)


def numbers(x: np.ndarray) -> str:
    return ", ".join(f"{y:g}" for y in x)


# Each is asked where those before it cannot disturb.
@oracle(PPO, "the entropy bonus", LIKENESS, **LOSS)
def entropy_bonus(module: ModuleType) -> None:
    """The policy's mean entropy times ent_coef is taken off the loss, and off its gradient."""
    found = loss_of(module)
    still = np.tile(np.array([1, 0, 0, 0], np.float32), (4, 1))  # without advantages
    close("what the entropy bonus adds to the loss", found.total(0.0, 2.0, still), -2 * found.entropy, 1e-3)
    pairs = zip(jax.tree.leaves(found.gradient(0.0, 2.0, still)), jax.tree.leaves(found.entropy_gradient), strict=True)
    for got, slope in pairs:
        close("what the entropy bonus adds to the gradient", got, -2 * slope, 1e-3)


@oracle(PPO, "the value's loss", LIKENESS, **LOSS)
def value_loss(module: ModuleType) -> None:
    """Half the mean squared error, or that of the clipped value where it is larger, times vf_coef."""
    found = loss_of(module)
    for samples in mixed_samples():
        _, _, moved, target = samples.T
        error = np.maximum((moved - target) ** 2, (np.clip(moved, -0.2, 0.2) - target) ** 2)
        what = f"the value's loss, values moved by {numbers(moved)} to targets at {numbers(target)},"
        close(what, found.total(0.6, 0.0, samples) - found.total(0.0, 0.0, samples), 0.6 * 0.5 * error.mean(), 1e-3)


@oracle(PPO, "the policy's loss: ratio, clip, sign or mean", LIKENESS, **LOSS)
def policy_loss(module: ModuleType) -> None:
    """The mean of the pessimistic bound, whose gradient is zero exactly where it is clipped."""
    found = loss_of(module)
    for samples in mixed_samples():
        ratio, advantage, _, _ = samples.T
        bound = np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)
        what = f"the policy's loss at ratios {numbers(ratio)} and advantages {numbers(advantage)}"
        close(what, found.total(0.0, 0.0, samples), -bound.mean(), 1e-3)
    for ratio, advantage, clipped in ((1.5, 2.0, True), (0.5, -2.0, True), (1.5, -2.0, False), (0.5, 2.0, False)):
        samples = np.tile(np.array([ratio, advantage, 0, 0], np.float32), (4, 1))
        zero = all(np.abs(x).max() < 1e-6 for x in jax.tree.leaves(found.gradient(0.0, 0.0, samples)))
        if zero != clipped:
            how = "vanishes" if zero else "does not vanish"
            raise AssertionError(f"the policy's gradient at ratio {ratio} and advantage {advantage} {how}")


LEARN = {
    "init": "task key",
    "forward": "task params obs_moments obs options",
    "loss": "params task obs_moments batch",
    "learn": "task state batch indices learning_rate",
    "Batch": "obs action policy log_prob value advantage target",
}


class Learning(NamedTuple):
    """Four gradient steps on 22 samples, two epochs of two minibatches, from `state` at the learning rate `rate`."""

    task: Any
    skipping: Any
    """the same with a target_kl that the first epoch goes beyond"""
    state: Any
    batch: Any
    indices: np.ndarray
    rate: jax.Array
    flat: jax.Array
    """the parameters as a vector, which `unravel` makes a tree of"""
    unravel: Callable[[jax.Array], Any]

    def learn(self, task: Any, module: ModuleType, epochs: int) -> tuple[Any, dict[str, Any]]:
        """The new state, and what is said of the steps."""
        state, aux = compiled(partial(module.learn, task))(self.state, self.batch, self.indices[:epochs], self.rate)
        return state, {name: np.asarray(x).reshape(-1) for name, x in aux.items()}


@functools.cache
def learning(module: ModuleType) -> Learning:
    """Samples whose log-probabilities have moved, so that there is something to clip."""
    rng = np.random.default_rng(0)
    params = tables(obs=[[0.3, -0.5, 1.0]], reward=[[0.0] * 5], next=[0], terminated=True)
    config = configure(module, norm_adv=True, clip_vloss=False, max_grad_norm=0.7, adam_eps=0.1, hidden_sizes=(16,),
                       clip_coef=0.2, ent_coef=0.1, vf_coef=0.5, target_kl=None)  # fmt: skip
    task, skipping = (task_of(module, x, Tabular(params), params) for x in (config, config.replace(target_kl=1e-9)))
    state = first_state(module, task)
    flat, unravel = ravel_pytree(state.params)
    flat += 0.5 * jnp.asarray(rng.normal(size=len(flat)), jnp.float32)  # to where the policy is not nearly uniform
    state = dataclasses.replace(state, params=unravel(flat))
    obs = jnp.asarray(rng.normal(size=(22, 3)), jnp.float32)
    policy, value = module.forward(task, state.params, None, obs)
    action = jnp.asarray(rng.integers(5, size=22))
    floats = (jnp.asarray(x, jnp.float32) for x in rng.normal(size=(3, 22)) * [[0.3], [2.0], [3.0]] + [[0], [5], [0]])
    noise, advantage, target = floats
    batch = module.Batch(obs, action, policy, policy.log_prob(action) + noise, value, advantage, target)
    indices = np.stack([rng.permutation(22).reshape(2, 11) for _ in range(2)])
    return Learning(task, skipping, state, jax.device_get(batch), indices, jnp.float32(0.03), flat, unravel)


@oracle(PPO, "target_kl, or what is said of ratios", DEFINITION, **LEARN)
def early_stop(module: ModuleType) -> None:
    """Past target_kl two epochs are one, to the optimiser's state; what the first step says of ratios is as defined."""
    found = learning(module)
    whole, aux = found.learn(found.task, module, 1)
    skipped, _ = found.learn(found.skipping, module, 2)
    for x, y in zip(jax.tree.leaves(skipped.params), jax.tree.leaves(whole.params), strict=True):
        close("a parameter after one epoch beyond target_kl", x, y)
    for x, y in zip(jax.tree.leaves(skipped.opt_state), jax.tree.leaves(whole.opt_state), strict=True):
        close("the optimiser's state after one epoch beyond target_kl", x, y)
    part = jax.tree.map(lambda x: x[found.indices[0, 0]], found.batch)
    policy, _ = module.forward(found.task, found.state.params, None, part.obs)
    log_ratio = np.asarray(policy.log_prob(part.action), np.float64) - part.log_prob
    ratio = np.exp(log_ratio)
    for name, wanted in {
        "approx_kl": (ratio - 1 - log_ratio).mean(),
        "clip_fraction": (np.abs(ratio - 1) > 0.2).mean(),
        "ratio_error": np.abs(ratio - 1).max(),
    }.items():
        if name in aux:
            close(f"{name} of the first gradient step", aux[name][0], wanted, 1e-3)


@oracle(
    PPO, "the gradient steps: optimiser, clip of the gradient's norm, normalised advantages, or their metrics",
    LIKENESS, **LEARN,
)  # fmt: skip
def gradient_steps(module: ModuleType) -> None:
    """Two epochs of two minibatches end where Adam, written out, ends."""
    found = learning(module)
    task, batch, unravel, rate = found.task, found.batch, found.unravel, float(found.rate)

    @compiled
    def at(flat: jax.Array, part: Any) -> Any:
        def objective(flat: jax.Array) -> Any:
            policy, value = module.forward(task, unravel(flat), None, part.obs)
            ratio = jnp.exp(policy.log_prob(part.action) - part.log_prob)
            bound = jnp.minimum(ratio * part.advantage, jnp.clip(ratio, 0.8, 1.2) * part.advantage)
            return (-bound + 0.25 * (value - part.target) ** 2 - 0.1 * policy.entropy()).mean()

        policy, value = module.forward(task, unravel(flat), None, part.obs)
        return jax.grad(objective)(flat), policy.log_prob(part.action) - part.log_prob, value

    position, start = np.asarray(found.flat, np.float64), np.linalg.norm(found.flat)
    mean, square = np.zeros_like(position), np.zeros_like(position)
    said: dict[str, list[float]] = collections.defaultdict(list)
    for step, index in enumerate(found.indices.reshape(4, 11), 1):
        part = jax.tree.map(lambda x, index=index: x[index], batch)
        normalised = (part.advantage - part.advantage.mean()) / part.advantage.std()
        part = part._replace(advantage=normalised)
        gradient, log_ratio, value = jax.device_get(at(jnp.asarray(position, jnp.float32), part))
        ratio, norm = np.exp(log_ratio), float(np.linalg.norm(gradient))
        gradient = gradient * min(1.0, 0.7 / norm)
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        change = -rate * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 0.1)
        position += change
        for name, x in {
            "grad_norm": norm,
            "update_ratio": np.linalg.norm(change) / start,
            "approx_kl": (ratio - 1 - log_ratio).mean(),
            "clip_fraction": (np.abs(ratio - 1) > 0.2).mean(),
            "value_loss": 0.5 * np.square(value - part.target).mean(),
            "policy_loss": -np.minimum(ratio * normalised, np.clip(ratio, 0.8, 1.2) * normalised).mean(),
        }.items():
            said[name].append(x)
    new, aux = found.learn(task, module, 2)
    end = unravel(jnp.asarray(position, jnp.float32))
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(new.params), jax.tree.leaves(end), strict=True):
        close(f"the parameter {jax.tree_util.keystr(path)} after four gradient steps", x, y, 1e-3)
    for name in said.keys() & aux.keys():
        close(f"{name} of the gradient steps", aux[name], said[name], 1e-3)


@oracle(
    PPO,
    "metrics: the mean over gradient steps",
    DEFINITION,
    init="task key",
    forward="task params obs_moments obs options",
    diagnose="task state batch part aux",
    Batch="obs action policy log_prob value advantage target",
)
def means_of_steps(module: ModuleType) -> None:
    """Steps that target_kl left out do not count; the first ratio is that of the first minibatch."""
    params = tables(obs=[[0.3, -0.5, 1.0]], reward=[[0.0] * 5], next=[0], terminated=True)
    task = task_of(module, configure(module, hidden_sizes=(16,)), Tabular(params), params)
    state, obs, zeros = first_state(module, task), jnp.ones((6, 3)), jnp.zeros(6)
    policy, _ = module.forward(task, state.params, None, obs)
    batch = module.Batch(obs, jnp.zeros(6, jnp.int32), policy, zeros, zeros, zeros, zeros)
    aux = {
        "loss": jnp.array([[1.0, 3.0], [7.0, 9.0]]),
        "ratio_error": jnp.array([[0.25, 1.0], [2.0, 3.0]]),
        "applied": jnp.array([[1.0, 1.0], [0.0, 0.0]]),
    }
    metrics = compiled(partial(module.diagnose, task))(state, batch, batch, aux)
    got = emitted(metrics, "loss", "gradient_steps", "first_ratio_error", "kl")
    for name, wanted in (("loss", 2.0), ("gradient_steps", 2.0), ("first_ratio_error", 0.25), ("kl", 0.0)):
        if name in got:
            close(f"{name} of two gradient steps, with two left out", got[name], wanted)


@oracle(
    PPO,
    "what a rollout keeps: observations, log-probabilities, endings, final observations, or episodes under way",
    init="task key",
    forward="task params obs_moments obs options",
    collect="task state key",
)
def transitions(module: ModuleType) -> None:
    """What is kept of two rollouts in a row is what the environment did, with the probabilities it was done with."""
    config = configure(module, num_envs=7, num_steps=11, num_minibatches=7, hidden_sizes=(16,))
    task = task_of(module, config, Tabular(IDS), IDS)
    state, collect = first_state(module, task), compiled(partial(module.collect, task))
    first, rollout = collect(state, jax.random.key(1))
    last, more = collect(first, jax.random.key(2))
    kept = jax.device_get(jax.tree.map(lambda *x: jnp.concatenate(x), rollout, more))
    close("the shape of a rollout's rewards", rollout.reward.shape, (11, 7))
    follows_ids(kept, "final_obs", state.obs, last.obs)
    policy, _ = module.forward(task, state.params, None, jnp.asarray(kept.obs.reshape(-1, 1)))
    log_prob = policy.log_prob(jnp.asarray(kept.action.reshape(-1)))
    close("the log-probability kept with an action", kept.log_prob.reshape(-1), log_prob, 1e-4)
    for name, each in (("episode_return", kept.reward), ("episode_length", np.ones_like(kept.reward))):
        if hasattr(kept, name):
            close(f"{name} so far", getattr(kept, name), so_far(each, kept.terminated | kept.truncated))


# One step, with three observations and five dimensions of actions.
BOXED = Targets(
    np.array([[1.0], [-1.0], [0.5]], np.float32),
    np.array([[1.0, 2.0, 2.2, -4.5, 3.0], [0.0, 0.0, 2.4, -4.0, 1.0], [-1.0, 3.0, 2.0, -5.0, 8.0]], np.float32),
    np.zeros((3, 5), np.float32),
    np.float32(0.1),
    np.float32(1),
)


@oracle(PPO, "the clipping of actions to a Box", env_action="task action")
def clipped_actions(module: ModuleType) -> None:
    """Each dimension stays within its own bounds, and grows with its own output; whole actions are not touched."""
    config = configure(module, hidden_sizes=(16,))
    action = 6 * np.random.default_rng(0).normal(size=(30, 4))
    low, high = Plate.low.reshape(4), Plate.high.reshape(4)
    sent = np.asarray(module.env_action(task_of(module, config, Plate(BOXED), BOXED), jnp.asarray(action)))
    close("the shape of env_action's actions in a Box of 2 x 2", sent.shape, (30, 2, 2))
    sent = sent.reshape(30, 4)
    close("env_action, to what the Box allows", sent, sent.clip(low, high))
    for i in range(4):
        if np.diff(sent[action[:, i].argsort(), i]).min() < 0 or np.ptp(sent[:, i]) < 0.1 * (high - low)[i]:
            raise AssertionError(f"the action in dimension {i} of a Box of 2 x 2 does not grow with its own output")
    task = task_of(module, config, Tabular(IDS), IDS)
    close("env_action of whole actions", module.env_action(task, jnp.array([1, 0, 1])), [1, 0, 1])


@oracle(PPO, "how actions are brought into a Box", LIKENESS, env_action="task action")
def cut_actions(module: ModuleType) -> None:
    """Each dimension is cut at its own bounds, and left as it is within them."""
    if not cuts(module):
        raise AssertionError("env_action does not leave actions as they are within the Box, or cut them at its bounds")


def cuts(module: ModuleType) -> bool:
    """Whether actions are the policy's, cut at the bounds of the Box."""
    task = task_of(module, configure(module, hidden_sizes=(16,)), Lopsided(BOXED), BOXED)
    action = 6 * np.random.default_rng(0).normal(size=(30, 5))
    return np.allclose(
        module.env_action(task, jnp.asarray(action)), action.clip(Lopsided.low, Lopsided.high), atol=1e-4
    )


@oracle(
    PPO,
    "what a rollout keeps of actions in a Box, which are clipped for the environment alone; or their evaluation",
    init="task key",
    forward="task params obs_moments obs options",
    collect="task state key",
)
def boxed_transitions(module: ModuleType) -> None:
    """Actions are kept as they were drawn, with their log-probability then; the rewards are those of clipped ones."""
    config = configure(module, num_envs=7, num_steps=11, num_minibatches=7, hidden_sizes=(16,), init_log_std=0.5)
    task = task_of(module, config, Lopsided(BOXED), BOXED)
    state = first_state(module, task)
    _, kept = compiled(partial(module.collect, task))(state, jax.random.key(1))
    obs = kept.obs.reshape(77, 1)
    policy, _ = module.forward(task, state.params, None, obs)
    if not (hasattr(policy, "mean") and hasattr(policy, "log_std")):
        raise CannotAskError("its policy has no mean and log_std")
    action = kept.action.reshape(77, 5)
    close("the log-probability kept with an action", kept.log_prob.reshape(77), policy.log_prob(action), 1e-3)
    action, mean, std = np.asarray(action), np.asarray(policy.mean), np.exp(np.asarray(policy.log_std))
    close("the standard deviation that actions begin with", std, np.full_like(std, math.exp(0.5)), 0.1)
    ratio = float((((action - mean) / std) ** 2).mean())
    if not 0.7 < ratio < 1.3:  # 385 squares of standard normal draws: within .3 of 1 but once in 30,000
        raise AssertionError(f"the actions kept vary {ratio:.2f} x as much as their policy: they are not as drawn")
    if "env_action" not in used(module) or not cuts(module):
        raise CannotAskError("its actions are not the policy's, cut at the bounds of the Box")
    optimum = BOXED.optimum[np.argmax(np.asarray(obs) == BOXED.obs[:, 0], axis=1)]
    distance = ((action.clip(Lopsided.low, Lopsided.high) - optimum) ** 2).sum(1)
    close("the reward kept with an action", kept.reward.reshape(77), 1 - np.float32(0.1) * distance, 1e-3)
    agent = module.make(config, Lopsided(BOXED), BOXED)
    for name, got, wanted in zip(("mean", "standard deviation"), agent.policy(state, obs[0]), (mean, std), strict=True):
        close(f"the {name} of the policy as it is evaluated", got, wanted[0])


BATCH = {
    "init": "task key",
    "forward": "task params obs_moments obs options",
    "collect": "task state key",
    "learn": "task state batch indices learning_rate",
    "update": "task num_updates state step",
}


@oracle(PPO, "the batch that is learned from: what stands beside an observation, or its value", **BATCH)
def learned_batch(module: ModuleType) -> None:
    """What `update` hands to `learn` is what `collect` gave it, sample by sample, with the values of that time."""
    compare_batches(module, False, "action", "log_prob", "value")


@oracle(PPO, "the batch that is learned from: next values, advantages, targets, minibatches, learning rate",
        LIKENESS, **BATCH)  # fmt: skip
def learned_targets(module: ModuleType) -> None:
    """Advantages and targets as written out, each sample once in an epoch, and the rate of the 6th of 20 updates."""
    compare_batches(module, False, "indices", "advantage", "target", "rate")


@oracle(PPO, "the normalisation of observations, in the batch that is learned from", **BATCH)
def normalised_batch(module: ModuleType) -> None:
    """As learned_batch, values being those of normalised observations."""
    compare_batches(module, True, "action", "log_prob", "value")


@oracle(PPO, "the scaling of rewards, in the batch that is learned from", DEFINITION, **BATCH)
def scaled_batch(module: ModuleType) -> None:
    """As learned_targets, rewards divided by the deviation of their discounted sums."""
    try:
        compare_batches(module, False, "advantage", "target")
    except AssertionError as reason:
        raise CannotAskError("its advantages, of rewards as they are, are its own") from reason
    compare_batches(module, True, "advantage", "target")


def compare_batches(module: ModuleType, scaled: bool, *asked: str) -> None:
    """Raise AssertionError unless `learn` is given what follows from what `collect` returned, in what is `asked`."""
    for name, compare in batches(module, scaled).items():
        if name in asked:
            compare()


@functools.cache
def batches(module: ModuleType, scaled: bool) -> dict[str, Callable[[], None]]:
    """What `learn` is given by an update: its name -> a comparison with what it should be."""
    gamma, gae_lambda = 0.9, 0.7
    settings = {"num_envs": 7, "num_steps": 11, "num_minibatches": 7, "hidden_sizes": (16,), "anneal_lr": True}
    own = {"normalize_observations": scaled, "scale_rewards": scaled}
    settings |= own if scaled else {name: x for name, x in own.items() if name in settings_in(module)}
    config = configure(module, gamma=gamma, gae_lambda=gae_lambda, learning_rate=0.04, **settings)
    task = task_of(module, config, Tabular(IDS), IDS)
    state = first_state(module, task)
    obs_moments = state.obs_moments if scaled else None
    given: list[list[Any]] = []
    collected: list[Any] = []

    def learn(*arguments: Any, **named: Any) -> Any:
        taken = inspect.signature(originals[0]).bind(*arguments, **named).arguments  # a file's own may take more
        given.append([taken[name] for name in ("batch", "indices", "learning_rate")])
        return originals[0](*arguments, **named)

    def collect(*arguments: Any, **named: Any) -> Any:
        collected.append(originals[1](*arguments, **named))
        return collected[-1]

    @compiled
    def watched(state: Any) -> Any:  # without what follows: only what is handed over is computed
        module.update(task, 20, state, jnp.int32(5))
        if not (given and collected):
            raise CannotAskError("its update does not call collect and learn")
        return *given[0], collected[0][1]

    originals = module.learn, module.collect
    with mock.patch.multiple(module, learn=learn, collect=collect):
        batch, indices, rate, rollout = jax.device_get(watched(state))
    found: dict[str, Callable[[], None]]
    found = {"rate": partial(close, "the learning rate of the 6th of 20 updates", rate, 0.03)}
    times = [np.bincount(epoch, minlength=77) for epoch in indices.reshape(len(indices), -1)]
    found["indices"] = partial(close, "how often an epoch has each sample", times, np.ones((len(times), 77)))

    def value(obs: np.ndarray) -> np.ndarray:
        v = module.forward(task, state.params, obs_moments, jnp.asarray(obs.reshape(-1, 1)))[1]
        return np.asarray(v, np.float64).reshape(11, 7)

    v, next_v = value(rollout.obs), value(rollout.final_obs)
    ended = rollout.terminated | rollout.truncated
    reward, total, totals = np.asarray(rollout.reward, np.float64), np.zeros(7), []
    if scaled:  # by the standard deviation of the discounted sums of rewards up to each step
        for t in range(11):
            totals.append(gamma * total + reward[t])
            total = np.where(ended[t], 0.0, totals[-1])
        reward = np.clip(reward / np.std(totals), -10, 10)
    advantage = reward + gamma * ~rollout.terminated * next_v - v
    for t in range(9, -1, -1):
        advantage[t] += gamma * gae_lambda * ~ended[t] * advantage[t + 1]
    wanted = {"action": rollout.action, "log_prob": rollout.log_prob, "value": v, "advantage": advantage,
              "target": advantage + v}  # fmt: skip
    for name, x in wanted.items():
        if hasattr(batch, name):  # pairs of an observation and a number, in an order of their own
            got = getattr(batch, name)
            orders = np.lexsort((got, batch.obs[:, 0])), np.lexsort((x.reshape(-1), rollout.obs.reshape(-1)))
            what = f"{name} beside its observation in the batch"
            found[name] = partial(close, what, got[orders[0]], x.reshape(-1)[orders[1]])
    return found


@oracle(
    PPO,
    "which observations and rewards the running statistics have seen, or what is evaluated with them",
    DEFINITION,
    init="task key",
    forward="task params obs_moments obs options",
    update="task num_updates state step",
    Moments="mean variance count",
)
def statistics_seen(module: ModuleType) -> None:
    """On CYCLE, each observation and each discounted sum of rewards once, beside what was seen before the update."""
    gamma, before = 0.9, 100.0
    settings = {"num_envs": 7, "num_steps": 11, "num_minibatches": 7, "hidden_sizes": (16,), "gamma": gamma}
    config = configure(module, normalize_observations=True, scale_rewards=True, **settings)
    task, agent = task_of(module, config, Tabular(CYCLE), CYCLE), module.make(config, Tabular(CYCLE), CYCLE)
    earlier = (
        module.Moments(jnp.arange(4.0), jnp.arange(1.0, 5.0), jnp.float32(before)),
        module.Moments(*jnp.array([2.0, 9.0, before])),
    )
    state, start = first_state(module, task), np.arange(7.0)
    for name in ("obs_moments", "return_moments", "discounted_return"):
        part(state, name)
    state = dataclasses.replace(
        state, obs_moments=earlier[0], return_moments=earlier[1], discounted_return=jnp.asarray(start, jnp.float32)
    )

    @compiled
    def statistics(state: Any) -> Any:  # without the learning, which they do not depend on
        new = module.update(task, 20, state, jnp.int32(0))[0]
        return new.obs_moments, new.return_moments, new.discounted_return

    seen, scaled, carried = jax.device_get(statistics(state))
    at = np.arange(12) % 4  # the last is what the next update begins with
    total, totals = start, []
    for s in at[:11]:
        totals.append(gamma * total + CYCLE.reward[s, 0])
        total = np.where(CYCLE.terminated[s, 0] | CYCLE.truncated[s, 0], 0.0, totals[-1])
    close("the discounted sum of rewards that is carried on", carried, total)
    for what, found, old, data in (
        ("observations", seen, earlier[0], np.tile(CYCLE.obs[at[1:]], (7, 1))),
        ("discounted sums of rewards", scaled, earlier[1], np.ravel(totals)),
    ):
        share, delta = len(data) / (before + len(data)), data.mean(0) - np.asarray(old.mean)
        close(f"how many {what} have been seen", found.count, before + len(data))
        close(f"the mean of the {what} seen", found.mean, old.mean + share * delta)
        variance = (1 - share) * np.asarray(old.variance) + share * data.var(0) + share * (1 - share) * delta**2
        close(f"the variance of the {what} seen", found.variance, variance)
    obs = jnp.array([0.5, -1.0, 2.0, 0.0])
    policy, value = module.forward(task, state.params, state.obs_moments, obs[None])
    close("the policy as it is evaluated", agent.policy(state, obs), np.exp(policy.log_probs[0]))
    close("the value as it is evaluated, in the environment's rewards", agent.value(state, obs), 3 * value[0])
