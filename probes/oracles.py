"""Level 0: checks that need no training, or one update of it.

Those over the contract run for every agent of their kind. Those over a function of the agent's file run where there is
one of that name with those parameters, and are reported as not checked where it has not; probes/README.md lists them.
"""

import collections
import dataclasses
import functools
import inspect
import itertools
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
from gymnax.environments import spaces
from jax.flatten_util import ravel_pytree

from probes.environments import Tables, Tabular, Target, Targets, tables
from rlref.agents import line_of

SEEDS = 64


@dataclasses.dataclass(frozen=True)
class Oracle:
    """One check. It raises AssertionError, in one line, if the agent is wrong, and CannotAskError."""

    name: str
    check: Callable[[ModuleType], None]
    kinds: str
    isolates: str
    needs: dict[str, tuple[str, ...]]
    """functions and classes of the agent's file that it calls -> the names of their parameters or fields"""


class CannotAskError(Exception):
    """The agent has not what an oracle asks about."""


ORACLES: dict[str, Oracle] = {}


def oracle(
    kinds: str, isolates: str, **needs: str
) -> Callable[[Callable[[ModuleType], None]], Callable[[ModuleType], None]]:
    """Add the decorated function to the oracles."""

    def add(check: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
        required = {name: tuple(parameters.split()) for name, parameters in needs.items()}
        ORACLES[check.__name__] = Oracle(check.__name__, check, kinds, isolates, required)
        return check

    return add


def missing(wanted: Oracle, module: ModuleType) -> str:
    """Why an oracle cannot be asked about an agent's file; '' if it can."""
    for name, parameters in wanted.needs.items():
        found = getattr(module, name, None)
        if found is None:
            return f"it has no {name}"
        if not callable(found) or tuple(inspect.signature(found).parameters) != parameters:
            return f"its {name} does not take ({', '.join(parameters)})"
    return ""


def settings_in(module: ModuleType) -> set[str]:
    """Names of the settings that the agent's Config has."""
    return {f.name for f in dataclasses.fields(module.Config)}


def need(module: ModuleType, *settings: str) -> None:
    """Raise CannotAskError unless the agent's Config has these settings."""
    if lacking := [name for name in settings if name not in settings_in(module)]:
        raise CannotAskError(f"its Config lacks {', '.join(lacking)}")


def configure(module: ModuleType, **settings: Any) -> Any:
    """A Config with these settings. Raises CannotAskError if it lacks one."""
    need(module, *settings)
    return module.Config(**settings)


def takes(module: ModuleType, **settings: Any) -> bool:
    """Whether the agent's `make` accepts these settings, as far as its Config has them."""
    fields = settings_in(module)
    params = tables(obs=[[0.0, 0.0]], reward=[[0.0, 0.0]], next=[0])
    try:
        module.make(module.Config(**{k: v for k, v in settings.items() if k in fields}), Tabular(params), params)
    except ValueError:
        return False
    return True


def close(what: str, got: Any, wanted: Any, tolerance: float = 1e-4) -> None:
    """Raise AssertionError, in one line, unless `got` is `wanted`."""
    got, wanted = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
    if got.shape != wanted.shape:
        raise AssertionError(f"{what} has the shape {got.shape}, not {wanted.shape}")
    wrong = ~(np.abs(got - wanted) <= tolerance * np.maximum(1, np.abs(wanted))) & ~(np.isnan(got) & np.isnan(wanted))
    if wrong.any():
        at = tuple(np.argwhere(wrong)[0])
        where = f" at {[int(i) for i in at]}" if at else ""
        raise AssertionError(f"{what} is {got[at]:.5g}{where}, and should be {wanted[at]:.5g}")


def rows_apart(forward: Callable[[jax.Array], Any], obs: jax.Array) -> None:
    """Raise AssertionError unless what a network says of an observation is the same whatever others are beside it."""
    together, alone = forward(obs), [forward(obs[i : i + 1]) for i in range(len(obs))]
    for x, *each in zip(*map(jax.tree.leaves, (together, *alone)), strict=True):
        close("what the network says of observations, each of which it is shown alone", x, np.concatenate(each), 1e-3)


# Functions of the agent's file.


@oracle("A", "advantages", gae="reward value next_value terminated truncated gamma gae_lambda")
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


@oracle("A", "the categorical policy", Categorical="log_probs")
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


@oracle("A", "the Gaussian policy", DiagonalGaussian="mean log_std")
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


@oracle("A", "the shuffling into minibatches", minibatch_indices="key epochs batch_size num_minibatches")
def each_sample_once(module: ModuleType) -> None:
    """Every epoch has each sample exactly once, in an order of its own."""
    indices = np.asarray(module.minibatch_indices(jax.random.key(0), 3, 77, 7))
    close("the shape of minibatch_indices", indices.shape, (3, 7, 11))
    for epoch in indices.reshape(3, 77):
        close("a sample's count in an epoch", np.bincount(epoch, minlength=77), np.ones(77))
    if (indices[0] == indices[1]).all():
        raise AssertionError("two epochs have the same order")


@oracle("A", "the running mean and variance", Moments="mean variance count")
def running_moments(module: ModuleType) -> None:
    """Of three batches of different sizes, merged one after the other, they are those of all data at once."""
    data = np.random.default_rng(0).normal(size=(60, 3)) * [1.0, 5.0, 0.1] + [0.0, 3.0, -20.0]
    parts = [module.Moments.of(jnp.asarray(x, jnp.float32)) for x in np.split(data, [7, 18])]
    merged = functools.reduce(lambda a, b: a.merge(b), parts)
    for name, wanted in (("mean", data.mean(0)), ("variance", data.var(0)), ("count", 60.0)):
        close(f"the {name} of 7, 11 and 42 samples", getattr(merged, name), wanted, 1e-3)


@oracle("A", "the normalisation of observations", normalize="x moments", Moments="mean variance count")
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
    "A",
    "the scaling of rewards",
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


@oracle("AQ", "explained variance", explained_variance="target value")
def explained_variance(module: ModuleType) -> None:
    """1 - Var[target - value] / Var[target]; NaN for constant targets."""
    target, value = jnp.array([0.0, 2.0, 4.0]), jnp.array([1.0, 2.0, 3.0])
    close("explained_variance", module.explained_variance(target, value), 0.75)
    if not np.isnan(module.explained_variance(jnp.ones(3), value)):
        raise AssertionError("explained_variance of constant targets is a number; it is undefined, NaN")


@oracle("AQC", "what the network is shown: one-hot, images from 0 to 1, anything else flat", features="obs space")
def shown_features(module: ModuleType) -> None:
    """Discrete observations are one-hot, bytes of images become 0 to 1, and other numbers stay as they are."""
    one_hot = module.features(jnp.array([2, 0]), spaces.Discrete(3))
    close("features of the Discrete observations 2 and 0 of 3", one_hot, [[0, 0, 1], [1, 0, 0]])
    flat = module.features(jnp.arange(12).reshape(2, 3, 2), spaces.Box(0, 255, (3, 2), jnp.int32))
    close("features of whole numbers of shape (3, 2)", flat, np.arange(12).reshape(2, 6))
    image = jnp.zeros((2, 5, 3, 1), jnp.uint8).at[1, 4, 2, 0].set(255)
    shown = module.features(image, spaces.Box(0, 255, (5, 3, 1), jnp.uint8))
    close("the sum of features of an image with one pixel of 255", np.asarray(shown).sum(), 1.0)


@oracle(
    "AQ", "the network on images: convolutions and their strides", make_task="config env env_params", init="task key"
)
def convolved_images(module: ModuleType) -> None:
    """Values of images are those of the layers written out: windows of each size, as far apart as the stride says."""
    rng = np.random.default_rng(0)
    obs = rng.integers(256, size=(1, 10, 7, 2)).astype(np.uint8)
    params = tables(obs=obs, reward=[[0.0, 0.0]], next=[0])
    windows = ((4, 3, 2), (5, 2, 1))
    config = configure(module, conv_layers=windows, hidden_sizes=(6,), activation="relu")
    state = module.init(module.make_task(config, Tabular(params), params), jax.random.key(0))
    layers = {name: {k: np.asarray(x) for k, x in layer.items()} for name, layer in state.params["params"].items()}
    head = "value_head" if "value_head" in layers else "head"
    convolutions = sorted(name for name in layers if "conv" in name)
    hidden = [name for name in layers if name not in convolutions and not name.endswith("head")]
    if len(convolutions) != 2 or len(hidden) != 1 or head not in layers:
        raise CannotAskError(f"its layers are {', '.join(layers)}")
    x = obs[0] / 255
    for name, (features, size, stride) in zip(convolutions, windows, strict=True):
        height, width = ((n - size) // stride + 1 for n in x.shape[:2])
        kernel, out = layers[name]["kernel"].reshape(size, size, -1, features), np.zeros((height, width, features))
        for row, column in itertools.product(range(height), range(width)):
            window = x[row * stride : row * stride + size, column * stride : column * stride + size]
            out[row, column] = np.einsum("hwc,hwcf->f", window, kernel)
        x = np.maximum(out + layers[name]["bias"], 0)
    close("how many numbers of an image reach the hidden layer", len(layers[hidden[0]]["kernel"]), x.size)
    x = np.maximum(x.reshape(-1) @ layers[hidden[0]]["kernel"] + layers[hidden[0]]["bias"], 0)
    wanted = x @ layers[head]["kernel"] + layers[head]["bias"]
    value = np.asarray(module.make(config, Tabular(params), params).value(state, jnp.asarray(obs[0])))
    close("the value of an image", value, wanted.reshape(value.shape))


@oracle("AQ", "dormant units", dormant_fraction="hidden tau")
def dormant_units(module: ModuleType) -> None:
    """Units whose mean |activation| is at most tau of their layer's, counted over all layers alike."""
    first = jnp.array([[10.0, -10.0, 0.0, 0.1], [-10.0, 10.0, 0.0, 0.1]])  # the last two
    second = jnp.array([[0.0, 3.0], [0.1, -3.0]])  # the first
    close("dormant_fraction", module.dormant_fraction([first, second], 0.05), 3 / 6)


@oracle("A", "the gradient's noise scale", gradient_noise_scale="adam batch_size")
def noise_scale(module: ModuleType) -> None:
    """tr(Sigma) / |G|^2 in samples: the variance of minibatches' gradients, times their size, to the squared mean."""
    rng, adam = np.random.default_rng(0), optax.scale_by_adam()
    state = adam.init(jnp.zeros(500))
    for _ in range(3):  # gradients that are always the same have no noise
        _, state = adam.update(jnp.full(500, 2.0), state)
    close("gradient_noise_scale of equal gradients", module.gradient_noise_scale(state, 11), 0.0, 1e-3)
    step = jax.jit(lambda g, s: adam.update(g, s)[1])
    for _ in range(300):
        state = step(jnp.asarray(1 + 0.5 * rng.normal(size=500), jnp.float32), state)
    # The first moment is itself a mean over some (1 + .9) / (1 - .9) = 19 gradients: their noise adds to its square.
    mean, square = np.asarray(state.mu), np.asarray(state.nu) / (1 - 0.999 ** int(state.count))
    wanted = 11 * (square.sum() - (mean**2).sum()) / (mean**2).sum()
    close("gradient_noise_scale of noisy gradients", module.gradient_noise_scale(state, 11), wanted, 0.01)


@oracle("AQ", "mean, standard deviation, minimum and maximum of a metric", summary="name x where")
def summaries(module: ModuleType) -> None:
    """Of all numbers, and of those that are selected; NaN where none is."""
    x = jnp.array([[3.0, -1.0], [7.0, 100.0]])
    for where, chosen in ((None, [3.0, -1.0, 7.0, 100.0]), (x < 50, [3.0, -1.0, 7.0]), (x > 1e3, [])):
        got = module.summary("x", x, where)
        for how in ("mean", "std", "min", "max"):
            if chosen:
                close(f"summary's {how} of {chosen}", got[f"x_{how}"], getattr(np.array(chosen), how)())
            elif not np.isnan(got[f"x_{how}"]):
                raise AssertionError(f"summary's {how} of nothing is {got[f'x_{how}']}; it is undefined, NaN")


@oracle(
    "A",
    "the network: what it says of one observation depends on the others in the batch, or its policy is none",
    make_task="config env env_params",
    init="task key",
    forward="task params obs_moments obs options",
)
def observations_apart(module: ModuleType) -> None:
    """Policy and value of an observation are the same alone and in a batch; probabilities add up to 1."""
    params = tables(obs=[[0.3, -0.5]], reward=[[0.0] * 5], next=[0])
    task = module.make_task(configure(module, hidden_sizes=(16,)), Tabular(params), params)
    weights = module.init(task, jax.random.key(0)).params
    weights = jax.tree.map(lambda x: x + 0.3, weights)  # where the policy is not nearly uniform
    obs = jnp.array([[0.3, -0.4], [1.0, 2.0], [-1.0, 0.5]])
    rows_apart(partial(module.forward, task, weights, None), obs)
    policy, _ = module.forward(task, weights, None, obs)
    total = sum(np.exp(np.asarray(policy.log_prob(jnp.full(3, action)))) for action in range(5))
    close("the sum of the probabilities of all actions", total, np.ones(3))


@oracle(
    "A",
    "the clipped surrogate, or the value's loss",
    make_task="config env env_params",
    init="task key",
    forward="task params obs_moments obs options",
    loss="params task obs_moments batch",
    Batch="obs action policy log_prob value advantage target",
)
def surrogate(module: ModuleType) -> None:
    """PPO's loss is the pessimistic bound, and its gradient is zero exactly where that is clipped."""
    params = tables(obs=[[0.3, -0.5, 1.0]], reward=[[0.0, 0.0]], next=[0], terminated=True)
    config = configure(module, norm_adv=False, clip_vloss=True, vf_coef=0.5, ent_coef=0.1, clip_coef=0.2)
    task = module.make_task(config, Tabular(params), params)
    # Without the value and the entropy, whose gradients never vanish.
    policy_alone = module.make_task(config.replace(vf_coef=0.0, ent_coef=0.0), Tabular(params), params)
    weights = module.init(task, jax.random.key(0)).params
    obs, action = jnp.array([[0.2, -0.4, 0.9]]), jnp.zeros(1, jnp.int32)
    policy, value = module.forward(task, weights, None, obs)

    def batch(ratio: Any, advantage: Any, moved: Any, target: Any) -> Any:
        # One sample with this ratio, whose value has moved by `moved` since it was collected; `target` is from there.
        log_prob, old = policy.log_prob(action) - jnp.log(ratio), value - moved
        return module.Batch(obs, action, policy, log_prob, old, jnp.full(1, advantage), old + target)

    total = jax.jit(lambda *x: module.loss(weights, task, None, batch(*x))[0])
    entropy = float(policy.entropy()[0])
    for ratio, advantage in itertools.product((0.5, 0.9, 1.1, 1.5), (2.0, -2.0)):
        for moved, target in ((0.0, 1.0), (0.5, 0.1), (0.5, 1.0), (-0.5, 1.0)):
            bound = min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage)
            squared_error = max((moved - target) ** 2, (min(max(moved, -0.2), 0.2) - target) ** 2)
            what = f"the loss at ratio {ratio}, advantage {advantage}, value moved by {moved}, target {target}"
            wanted = -bound + 0.5 * 0.5 * squared_error - 0.1 * entropy
            close(what, total(ratio, advantage, moved, target), wanted, 1e-3)

    def policy_loss(weights: Any, ratio: Any, advantage: Any) -> Any:
        return module.loss(weights, policy_alone, None, batch(ratio, advantage, 0.0, 0.0))[0]

    gradient = jax.jit(lambda ratio, advantage: jax.grad(policy_loss)(weights, ratio, advantage))
    for ratio, advantage, clipped in ((1.5, 2.0, True), (0.5, -2.0, True), (1.5, -2.0, False), (0.5, 2.0, False)):
        zero = all(np.abs(x).max() < 1e-6 for x in jax.tree.leaves(gradient(ratio, advantage)))
        if zero != clipped:
            found = "vanishes" if zero else "does not vanish"
            raise AssertionError(f"the policy's gradient at ratio {ratio} and advantage {advantage} {found}")


@oracle(
    "A",
    "the gradient steps: optimiser, clip of the gradient's norm, normalised advantages, or their metrics",
    make_task="config env env_params",
    init="task key",
    forward="task params obs_moments obs options",
    loss="params task obs_moments batch",
    learn="task state batch indices learning_rate",
    Batch="obs action policy log_prob value advantage target",
)
def gradient_steps(module: ModuleType) -> None:
    """Two epochs of two minibatches end where Adam, written out, ends; past target_kl the second epoch is skipped."""
    rng = np.random.default_rng(0)
    params = tables(obs=[[0.3, -0.5, 1.0]], reward=[[0.0] * 5], next=[0], terminated=True)
    config = configure(module, norm_adv=True, clip_vloss=False, max_grad_norm=0.7, adam_eps=0.1, hidden_sizes=(16,),
                       clip_coef=0.2, ent_coef=0.1, vf_coef=0.5, target_kl=None)  # fmt: skip
    task, skipping = (module.make_task(x, Tabular(params), params) for x in (config, config.replace(target_kl=1e-9)))
    state = module.init(task, jax.random.key(0))
    flat, unravel = ravel_pytree(state.params)
    flat += 0.5 * jnp.asarray(rng.normal(size=len(flat)), jnp.float32)  # to where the policy is not nearly uniform
    state = dataclasses.replace(state, params=unravel(flat))
    obs = jnp.asarray(rng.normal(size=(22, 3)), jnp.float32)
    policy, value = module.forward(task, state.params, None, obs)
    action = jnp.asarray(rng.integers(5, size=22))
    floats = (jnp.asarray(x, jnp.float32) for x in rng.normal(size=(3, 22)) * [[0.3], [2.0], [3.0]] + [[0], [5], [0]])
    noise, advantage, target = floats
    batch = module.Batch(obs, action, policy, policy.log_prob(action) + noise, value, advantage, target)
    indices, rate = np.stack([rng.permutation(22).reshape(2, 11) for _ in range(2)]), 0.03

    @jax.jit
    def at(flat: jax.Array, part: Any) -> Any:
        def objective(flat: jax.Array) -> Any:
            policy, value = module.forward(task, unravel(flat), None, part.obs)
            ratio = jnp.exp(policy.log_prob(part.action) - part.log_prob)
            bound = jnp.minimum(ratio * part.advantage, jnp.clip(ratio, 0.8, 1.2) * part.advantage)
            return (-bound + 0.25 * (value - part.target) ** 2 - 0.1 * policy.entropy()).mean()

        policy, value = module.forward(task, unravel(flat), None, part.obs)
        return jax.grad(objective)(flat), policy.log_prob(part.action) - part.log_prob, value

    position, start = np.asarray(flat, np.float64), np.linalg.norm(flat)
    mean, square = np.zeros_like(position), np.zeros_like(position)
    batch = jax.device_get(batch)
    ends: list[Any] = []
    said: dict[str, list[float]] = collections.defaultdict(list)
    for step, index in enumerate(indices.reshape(4, 11), 1):
        part = jax.tree.map(lambda x, index=index: x[index], batch)
        normalised = (part.advantage - part.advantage.mean()) / part.advantage.std()
        part = part._replace(advantage=normalised)
        gradient, log_ratio, value = jax.device_get(at(jnp.asarray(position, jnp.float32), part))
        ratio, norm = np.exp(log_ratio), float(np.linalg.norm(gradient))
        gradient = gradient * min(1.0, 0.7 / norm)
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        change = -rate * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 0.1)
        position += change
        ends.append(unravel(jnp.asarray(position, jnp.float32)))
        for name, x in {
            "grad_norm": norm,
            "update_ratio": np.linalg.norm(change) / start,
            "approx_kl": (ratio - 1 - log_ratio).mean(),
            "clip_fraction": (np.abs(ratio - 1) > 0.2).mean(),
            "ratio_error": np.abs(ratio - 1).max(),
            "value_loss": 0.5 * np.square(value - part.target).mean(),
            "policy_loss": -np.minimum(ratio * normalised, np.clip(ratio, 0.8, 1.2) * normalised).mean(),
        }.items():
            said[name].append(x)
    new, aux = jax.jit(partial(module.learn, task))(state, batch, indices, jnp.float32(rate))
    skipped, _ = jax.jit(partial(module.learn, skipping))(state, batch, indices, rate)
    for what, got, wanted in (
        ("after four gradient steps", new, ends[3]),
        ("after one epoch beyond target_kl", skipped, ends[1]),
    ):
        for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(got.params), jax.tree.leaves(wanted), strict=True):
            close(f"the parameter {jax.tree_util.keystr(path)} {what}", x, y, 1e-3)
    # The optimiser too is as after the first epoch.
    one, _ = jax.jit(partial(module.learn, task))(state, batch, indices[:1], jnp.float32(rate))
    for x, y in zip(jax.tree.leaves(skipped.opt_state), jax.tree.leaves(one.opt_state), strict=True):
        close("the optimiser's state after one epoch beyond target_kl", x, y)
    for name in said.keys() & aux.keys():
        close(f"{name} of the gradient steps", np.asarray(aux[name]).reshape(-1), said[name], 1e-3)


@oracle(
    "A",
    "metrics: the mean over gradient steps",
    make_task="config env env_params",
    init="task key",
    forward="task params obs_moments obs options",
    diagnose="task state batch part aux",
    Batch="obs action policy log_prob value advantage target",
)
def means_of_steps(module: ModuleType) -> None:
    """Steps that target_kl left out do not count; the first ratio is that of the first minibatch."""
    params = tables(obs=[[0.3, -0.5, 1.0]], reward=[[0.0] * 5], next=[0], terminated=True)
    task = module.make_task(configure(module, hidden_sizes=(16,)), Tabular(params), params)
    state, obs, zeros = module.init(task, jax.random.key(0)), jnp.ones((6, 3)), jnp.zeros(6)
    policy, _ = module.forward(task, state.params, None, obs)
    batch = module.Batch(obs, jnp.zeros(6, jnp.int32), policy, zeros, zeros, zeros, zeros)
    aux = {
        "loss": jnp.array([[1.0, 3.0], [7.0, 9.0]]),
        "ratio_error": jnp.array([[0.25, 1.0], [2.0, 3.0]]),
        "applied": jnp.array([[1.0, 1.0], [0.0, 0.0]]),
    }
    got = emitted(module.diagnose(task, state, batch, batch, aux), "loss", "gradient_steps", "first_ratio_error", "kl")
    for name, wanted in (("loss", 2.0), ("gradient_steps", 2.0), ("first_ratio_error", 0.25), ("kl", 0.0)):
        if name in got:
            close(f"{name} of two gradient steps, with two left out", got[name], wanted)


# Episodes of two steps that terminate, then of two that are cut, and so on: whatever is done, it is known what comes.
CYCLE = tables(
    obs=np.eye(4) - 0.2,
    reward=[[1.0, 1.0], [-2.0, -2.0], [0.5, 0.5], [3.0, 3.0]],
    next=[1, 2, 3, 0],
    terminated=[0, 1, 0, 0],
    truncated=[0, 0, 0, 1],
    after=[-1, 2, -1, 0],
)

# Rewards by action alone: +1 or -1, the same in both tables but for the action.
COIN = tables(obs=np.zeros((4, 4)), reward=[[1.0, -1.0]] * 4, next=[0] * 4, terminated=True)
SECOND = tables(obs=np.zeros((4, 4)), reward=[[-1.0, 1.0]] * 4, next=[0] * 4, terminated=True)

# States that are told apart by what they show, as are rewards by state and action; both endings occur.
IDS = tables(
    obs=np.arange(1.0, 7.0)[:, None],
    reward=[[10.0 * i + a for a in range(2)] for i in range(1, 7)],
    next=[[1, 2], [2, 3], [3, 4], [4, 5], [5, 0], [0, 1]],
    terminated=[0, 0, 1, 0, 0, 0],
    truncated=[0, 0, 0, 0, 1, 0],
    start=np.full(6, 1 / 6),
)


@oracle(
    "A",
    "what a rollout keeps: observations, log-probabilities, endings, final observations, or episodes under way",
    make_task="config env env_params",
    init="task key",
    forward="task params obs_moments obs options",
    collect="task state key",
)
def transitions(module: ModuleType) -> None:
    """What is kept of two rollouts in a row is what the environment did, with the probabilities it was done with."""
    task = module.make_task(configure(module, num_envs=7, num_steps=11, hidden_sizes=(16,)), Tabular(IDS), IDS)
    state, collect = module.init(task, jax.random.key(0)), jax.jit(partial(module.collect, task))
    first, rollout = collect(state, jax.random.key(1))
    last, more = collect(first, jax.random.key(2))
    kept = jax.device_get(jax.tree.map(lambda *x: jnp.concatenate(x), rollout, more))
    close("the shape of a rollout's rewards", rollout.reward.shape, (11, 7))
    at, action, ended = kept.obs[..., 0].astype(int) - 1, kept.action, kept.terminated | kept.truncated
    close("the first observations", kept.obs[0], state.obs)
    if len(np.unique(kept.obs[0])) == 1:
        raise AssertionError("all environments begin in the same of six states")
    leads_to = IDS.obs[IDS.next[at, action]]
    for name, wanted in (
        ("reward", IDS.reward[at, action]),
        ("terminated", IDS.terminated[at, action]),
        ("truncated", IDS.truncated[at, action]),
        ("final_obs", leads_to),
    ):
        close(f"{name} beside the observation and the action kept with it", getattr(kept, name), wanted)
    follows = np.concatenate([kept.obs[1:], last.obs[None]])
    close("the observation after a step that ends nothing", follows[~ended], leads_to[~ended])
    policy, _ = module.forward(task, state.params, None, jnp.asarray(kept.obs.reshape(-1, 1)))
    log_prob = policy.log_prob(jnp.asarray(action.reshape(-1)))
    close("the log-probability kept with an action", kept.log_prob.reshape(-1), log_prob, 1e-4)
    for name, each in (("episode_return", kept.reward), ("episode_length", np.ones_like(kept.reward))):
        if not hasattr(kept, name):
            continue
        total, wanted = np.zeros(7), []
        for x, end in zip(each, ended, strict=True):
            wanted.append(total + x)
            total = np.where(end, 0.0, wanted[-1])
        close(f"{name} so far", getattr(kept, name), wanted)


class Lopsided(Target):
    """With bounds that differ between dimensions, and whose middle is not 0."""

    low, high = np.array([-1.0, 0.0, 2.0, -5.0, -0.5], np.float32), np.array([1.0, 3.0, 2.5, -4.0, 8.0], np.float32)

    def action_space(self, params: Targets | None = None) -> spaces.Box:
        return spaces.Box(self.low, self.high, (5,), jnp.float32)


# One state for each of five observations; which action is taken makes no difference to what comes next.
BOXED = Targets(
    np.array([[1.0], [-1.0], [0.5]], np.float32),
    np.array([[1.0, 2.0, 2.2, -4.5, 3.0], [0.0, 0.0, 2.4, -4.0, 1.0], [-1.0, 3.0, 2.0, -5.0, 8.0]], np.float32),
    np.zeros((3, 5), np.float32),
    np.float32(0.1),
    np.float32(1),
)


@oracle("A", "the clipping of actions to a Box", make_task="config env env_params", env_action="task action")
def clipped_actions(module: ModuleType) -> None:
    """Each dimension is cut at its own bounds, and left as it is within them; whole actions are not touched."""
    task = module.make_task(configure(module, hidden_sizes=(16,)), Lopsided(BOXED), BOXED)
    action = 6 * np.random.default_rng(0).normal(size=(30, 5))
    close("env_action", module.env_action(task, jnp.asarray(action)), action.clip(Lopsided.low, Lopsided.high))
    task = module.make_task(configure(module, hidden_sizes=(16,)), Tabular(IDS), IDS)
    close("env_action of whole actions", module.env_action(task, jnp.array([1, 0, 1])), [1, 0, 1])


@oracle(
    "A",
    "what a rollout keeps of actions in a Box, which are clipped for the environment alone; or their evaluation",
    make_task="config env env_params",
    init="task key",
    forward="task params obs_moments obs options",
    collect="task state key",
)
def boxed_transitions(module: ModuleType) -> None:
    """Actions are kept as they were drawn, with their log-probability then; the rewards are those of clipped ones."""
    config = configure(module, num_envs=7, num_steps=11, num_minibatches=7, hidden_sizes=(16,), init_log_std=0.5)
    task = module.make_task(config, Lopsided(BOXED), BOXED)
    state = module.init(task, jax.random.key(0))
    _, kept = jax.jit(partial(module.collect, task))(state, jax.random.key(1))
    obs = kept.obs.reshape(77, 1)
    policy, _ = module.forward(task, state.params, None, obs)
    if not (hasattr(policy, "mean") and hasattr(policy, "log_std")):
        raise CannotAskError("its policy has no mean and log_std")
    action = kept.action.reshape(77, 5)
    close("the log-probability kept with an action", kept.log_prob.reshape(77), policy.log_prob(action), 1e-3)
    action, mean, std = np.asarray(action), np.asarray(policy.mean), np.exp(np.asarray(policy.log_std))
    ratio = float((((action - mean) / std) ** 2).mean())
    if not 0.7 < ratio < 1.3:  # 385 squares of standard normal draws: within .3 of 1 but once in 30,000
        raise AssertionError(f"the actions kept vary {ratio:.2f} x as much as their policy: they are not as drawn")
    optimum = BOXED.optimum[np.argmax(np.asarray(obs) == BOXED.obs[:, 0], axis=1)]
    distance = ((action.clip(Lopsided.low, Lopsided.high) - optimum) ** 2).sum(1)
    close("the reward kept with an action", kept.reward.reshape(77), 1 - np.float32(0.1) * distance, 1e-3)
    agent = module.make(config, Lopsided(BOXED), BOXED)
    for name, got, wanted in zip(("mean", "standard deviation"), agent.policy(state, obs[0]), (mean, std), strict=True):
        close(f"the {name} of the policy as it is evaluated", got, wanted[0])


@oracle(
    "A",
    "the batch that is learned from: next values, advantages, targets, or the order of its fields",
    make_task="config env env_params",
    init="task key",
    forward="task params obs_moments obs options",
    collect="task state key",
    learn="task state batch indices learning_rate",
    update="task num_updates state step",
)
def learned_batch(module: ModuleType) -> None:
    """What `update` hands to `learn` is what `collect` gave it, sample by sample, with advantages as written out."""
    gamma, gae_lambda = 0.9, 0.7
    settings = {"num_envs": 7, "num_steps": 11, "num_minibatches": 7, "hidden_sizes": (16,), "anneal_lr": True}
    config = configure(module, gamma=gamma, gae_lambda=gae_lambda, learning_rate=0.04, **settings)
    scaled = {"normalize_observations", "scale_rewards"} <= settings_in(module)
    if scaled:
        config = config.replace(normalize_observations=True, scale_rewards=True)
    task = module.make_task(config, Tabular(IDS), IDS)
    state = module.init(task, jax.random.key(0))
    obs_moments = state.obs_moments if scaled else None
    given, collected = [], []

    def learn(*arguments: Any, **named: Any) -> Any:
        if named:
            raise CannotAskError("its update calls learn with keywords")
        given.append(arguments[2:])
        return originals[0](*arguments)

    def collect(*arguments: Any, **named: Any) -> Any:
        collected.append(originals[1](*arguments, **named))
        return collected[-1]

    @jax.jit
    def watched(state: Any) -> Any:  # without what follows: only what is handed over is computed
        module.update(task, 20, state, jnp.int32(5))
        return *given[0], collected[0][1]

    originals = module.learn, module.collect
    with mock.patch.multiple(module, learn=learn, collect=collect):
        batch, indices, rate, rollout = jax.device_get(watched(state))
    close("the learning rate of the 6th of 20 updates", rate, 0.03)
    for epoch in indices.reshape(len(indices), -1):
        close("how often an epoch has each sample", np.bincount(epoch, minlength=77), np.ones(77))

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
            close(f"{name} beside its observation in the batch", got[orders[0]], x.reshape(-1)[orders[1]])


@oracle(
    "A",
    "which observations and rewards the running statistics have seen, or what is evaluated with them",
    make_task="config env env_params",
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
    task, agent = module.make_task(config, Tabular(CYCLE), CYCLE), module.make(config, Tabular(CYCLE), CYCLE)
    earlier = (
        module.Moments(jnp.arange(4.0), jnp.arange(1.0, 5.0), jnp.float32(before)),
        module.Moments(*jnp.array([2.0, 9.0, before])),
    )
    state, start = module.init(task, jax.random.key(0)), np.arange(7.0)
    for name in ("obs_moments", "return_moments", "discounted_return"):
        part(state, name)
    state = dataclasses.replace(
        state, obs_moments=earlier[0], return_moments=earlier[1], discounted_return=jnp.asarray(start, jnp.float32)
    )

    @jax.jit
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


@oracle("C", "the selection of elites, or the refit to them", elites="score num_elites", refit="candidates elite")
def selection(module: ModuleType) -> None:
    """Elites score highest, NaN last; the refit is their mean and variance, on linear fitness shifted as is known."""
    score = jnp.array([3.0, -1.0, jnp.nan, 7.0, 0.0, 5.0])
    close("elites of (3, -1, NaN, 7, 0, 5), 3 of them", module.elites(score, 3), [1, 0, 0, 1, 0, 1])
    close("how many of 10 equal scores are elites, of 4", module.elites(jnp.full(10, 2.0), 4).sum(), 4)
    candidates = np.random.default_rng(0).normal(size=(6, 2))
    chosen = np.array([True, False, True, True, False, False])
    mean, variance = module.refit(jnp.asarray(candidates, jnp.float32), jnp.asarray(chosen))
    close("the mean of the refit", mean, candidates[chosen].mean(axis=0))
    close("the variance of the refit", variance, candidates[chosen].var(axis=0))
    # A normal distribution above its quantile: the shift of its mean, and its standard deviation.
    draws = jax.random.normal(jax.random.key(0), (20_000, 3))
    for fraction, shift, std in ((0.1, 1.755, 0.411), (0.2, 1.400, 0.468), (0.5, 0.798, 0.603)):
        elite = module.elites(draws @ jnp.array([0.0, 3.0, 0.0]), round(20_000 * fraction))
        mean, variance = module.refit(draws, elite)
        what = f"on fitness linear in one parameter, elite fraction {fraction}:"
        close(f"{what} mean", mean, [0.0, shift, 0.0], 0.08)
        close(f"{what} std", np.sqrt(variance), [1.0, std, 1.0], 0.05)


@oracle("C", "the schedule of the extra variance", extra_variance_at="config generation")
def extra_variance_schedule(module: ModuleType) -> None:
    """It falls linearly from extra_variance to 0 over its share of the generations, and stays there."""
    config = configure(module, num_generations=100, extra_variance=5.0, extra_variance_fraction=0.5)
    for generation, wanted in ((0, 5.0), (10, 4.0), (25, 2.5), (49, 0.1), (50, 0.0), (99, 0.0)):
        close(f"the extra variance after generation {generation} of 100",
              module.extra_variance_at(config, jnp.int32(generation)), wanted)  # fmt: skip


@oracle("C", "explained variance", explained_variance="returns")
def analysis_of_variance(module: ModuleType) -> None:
    """Candidates of sd 3, keys of sd 5, residuals of sd 1, two rollouts: 1 - .5 / (9 + .5) = 18 / 19. NaN for one."""
    rng = np.random.default_rng(0)
    candidate, key, residual = rng.normal(size=(20_000, 1)), rng.normal(size=(1, 2)), rng.normal(size=(20_000, 2))
    returns = jnp.asarray(3 * candidate + 5 * key + residual, jnp.float32)
    close("explained_variance of planted effects", module.explained_variance(returns), 18 / 19, 0.003)
    close("explained_variance of noise alone", module.explained_variance(jnp.asarray(residual, jnp.float32)), 0.0, 0.05)
    few = rng.normal(size=(5, 3))
    residual = few - few.mean(1, keepdims=True) - few.mean(0) + few.mean()
    share = 1 - (residual**2).sum() / (4 * 2) / 3 / few.mean(1).var(ddof=1)
    close("explained_variance of 5 candidates and 3 rollouts", module.explained_variance(jnp.asarray(few)), share)
    for what, undefined in (("one rollout each", returns[:, :1]), ("equal returns", jnp.ones((5, 2)))):
        if not np.isnan(module.explained_variance(undefined)):
            raise AssertionError(f"explained_variance of {what} is a number; it is undefined, NaN")


@oracle(
    "C",
    "entropy, KL, or the floor of the search distribution",
    gaussian_entropy="variance",
    gaussian_kl="mean variance old_mean old_variance",
    kl_floor="num_elites num_params",
)
def divergences(module: ModuleType) -> None:
    """Closed forms, the means' term and the variances'; the floor is the mean KL of refits to random draws."""
    rng = np.random.default_rng(0)
    (mean, old_mean), (variance, old_variance) = rng.normal(size=(2, 3)), rng.random((2, 3)) + 0.5
    close("gaussian_entropy", module.gaussian_entropy(jnp.asarray(variance)),
          0.5 * np.log(2 * math.pi * math.e * variance).sum())  # fmt: skip
    of_mean, of_variance = module.gaussian_kl(*map(jnp.asarray, (mean, variance, old_mean, old_variance)))
    close("gaussian_kl's term of the means", of_mean, ((mean - old_mean) ** 2 / (2 * old_variance)).sum())
    ratio = variance / old_variance
    close("gaussian_kl's term of the variances", of_variance, ((ratio - 1 - np.log(ratio)) / 2).sum())
    for k, size in ((8, 10), (3, 2)):
        draws = rng.normal(size=(100_000, k))
        mean, variance = draws.mean(axis=1), draws.var(axis=1)
        simulated = size * np.mean(mean**2 + variance - 1 - np.log(variance)) / 2
        close(f"kl_floor of {k} elites and {size} parameters", module.kl_floor(k, size), simulated, 0.02)


@oracle(
    "C",
    "the fitness: where an episode's rewards end, or which random numbers candidates meet",
    make_task="config env env_params",
    rollout="task candidates keys",
)
def first_episodes(module: ModuleType) -> None:
    """Return and length of one episode each, undiscounted, to the first ending; all candidates meet the same starts."""
    candidates = jnp.asarray(np.random.default_rng(0).normal(size=(5, 10)), jnp.float32)
    keys = jax.random.split(jax.random.key(0), 13)
    for how, terminated, truncated in (
        ("terminate", [0, 0, 1, 0], [0] * 4),
        ("meet a time limit", [0] * 4, [0, 0, 1, 0]),
    ):
        params = dataclasses.replace(
            COUNT, terminated=np.array([terminated, terminated], bool).T, truncated=np.array([truncated] * 2, bool).T
        )
        task = module.make_task(configure(module, hidden_sizes=()), Tabular(params), params)
        total, length, ended = module.rollout(task, candidates, keys)
        what = f"of episodes that {how}"
        close(f"the return and the length, added up, {what}", total + length, np.full((5, 13), 9.0))
        close(f"whether they ended, {what}", ended, np.ones((5, 13)))
        close(f"the return on the same key {what}", total, np.tile(total[:1], (5, 1)))
    if len(set(np.asarray(total[0]).tolist())) < 2:
        raise AssertionError("13 rollouts all begin in the same of two states: their keys are not their own")
    task = module.make_task(configure(module, hidden_sizes=(), max_episode_steps=2), Tabular(COUNT), COUNT)
    total, length, ended = module.rollout(task, candidates, keys)
    close("the length of an episode cut after 2 steps", length, np.full((5, 13), 2))
    close("whether episodes cut after 2 steps ended", ended, total == 7)


@oracle("C", "a layer of the policy", dense="x kernel bias")
def dense_layers(module: ModuleType) -> None:
    """`x @ kernel + bias`, for few inputs and for many."""
    rng = np.random.default_rng(0)
    for inputs in (3, 100):
        x, kernel, bias = rng.normal(size=(5, inputs)), rng.normal(size=(inputs, 4)), rng.normal(size=4)
        got = module.dense(*(jnp.asarray(y, jnp.float32) for y in (x, kernel, bias)))
        close(f"dense of {inputs} inputs", got, x @ kernel + bias)


class Whole(Lopsided):
    """With whole numbers as actions."""

    low, high = np.array([-3, 0, 2, -5, -1]), np.array([1, 3, 3, -4, 9])

    def action_space(self, params: Targets | None = None) -> spaces.Box:
        return spaces.Box(self.low, self.high, (5,), jnp.int32)


@oracle(
    "C",
    "the policy: its hidden layers, or how its outputs become actions",
    make_task="config env env_params",
    act="task params obs",
)
def policy_outputs(module: ModuleType) -> None:
    """The layers written out; a Box's actions are tanh stretched to its bounds, whole numbers with equal shares."""
    rng = np.random.default_rng(0)
    obs, zeros = rng.normal(size=(7, 3)).astype(np.float32), np.zeros((7, 5))
    params = Targets(obs, zeros, zeros, np.float32(0), np.float32(0))
    arms = tables(obs=obs, reward=np.zeros((7, 5)), next=[0] * 7)
    for env, env_params in ((Tabular(arms), arms), (Lopsided(params), params), (Whole(params), params)):
        for activation, squash in (("tanh", np.tanh), ("relu", lambda x: np.maximum(x, 0))):
            config = configure(module, hidden_sizes=(4, 6), activation=activation)
            task = module.make_task(config, env, env_params)
            if not hasattr(task, "unflatten"):
                raise CannotAskError("its task has no unflatten")
            candidate = jnp.asarray(rng.normal(size=4 * 4 + 5 * 6 + 7 * 5), jnp.float32)
            *hidden, (kernel, bias) = [[np.asarray(x) for x in layer] for layer in task.unflatten(candidate)]
            outputs = functools.reduce(lambda x, layer: squash(x @ layer[0] + layer[1]), hidden, obs) @ kernel + bias
            if env_params is arms:
                wanted = outputs.argmax(-1)
            elif isinstance(env, Whole):
                wanted = np.floor(env.low + (env.high - env.low + 1) * (np.tanh(outputs) + 1) / 2).clip(
                    env.low, env.high
                )
            else:
                assert isinstance(env, Lopsided)
                wanted = env.low + (env.high - env.low) * (np.tanh(outputs) + 1) / 2
            got = module.act(task, candidate, jnp.asarray(obs))
            close(f"the action in {env.action_space(None)} of a policy with hidden layers of {activation}", got, wanted)


@oracle(
    "C",
    "the policy: its bounds, or its bias",
    make_task="config env env_params",
    act="task params obs",
)
def actions(module: ModuleType) -> None:
    """Actions of a Box end at its bounds, on both sides; without anything to see they follow from the parameters."""
    obs, zeros = np.array([[1.0, -2.0, 0.5]]), np.zeros((1, 5))
    params = Targets(obs.astype(np.float32), zeros, zeros, np.float32(0), np.float32(0))
    task = module.make_task(configure(module, hidden_sizes=()), Lopsided(params), params)
    drawn = jnp.asarray(np.random.default_rng(0).normal(size=(64, 4 * 5)), jnp.float32)
    far = np.asarray(jax.vmap(lambda p: module.act(task, 1e3 * p, jnp.asarray(obs, jnp.float32)))(drawn))
    for name, found, bound in (
        ("smallest", far.min((0, 1)), Lopsided.low),
        ("largest", far.max((0, 1)), Lopsided.high),
    ):
        close(f"the {name} action of policies with very large parameters", found, bound, 1e-3)
    blind = np.asarray(jax.vmap(lambda p: module.act(task, p, jnp.zeros((1, 3))))(drawn))
    if blind.std(axis=0).min() < 0.1:
        raise AssertionError("where observations are 0, policies of all parameters act alike: they have no bias")


class Generation(NamedTuple):
    """One generation of CEM on returns that are known for every candidate."""

    mean: np.ndarray
    """`[D]`, as `variance`: of the Gaussian before"""
    variance: np.ndarray
    new: Any
    """the state after it"""
    metrics: dict[str, np.ndarray]
    candidates: np.ndarray
    """`[41, D]`"""
    returns: np.ndarray
    """`[41, 3]`; only the first episode of each ended within its time"""
    tried: np.ndarray
    """candidates that were played once more"""
    again: np.ndarray
    """their returns"""
    elite: np.ndarray
    """the 8 with the highest mean return"""

    @property
    def score(self) -> np.ndarray:
        return self.returns.mean(axis=1)

    def refit(self) -> tuple[np.ndarray, np.ndarray]:
        return self.candidates[self.elite].mean(axis=0), self.candidates[self.elite].var(axis=0)

    def smoothed(self) -> tuple[np.ndarray, np.ndarray]:
        """The new mean and variance: smoothing .25, and .3 of extra variance."""
        mean, variance = self.refit()
        return 0.25 * self.mean + 0.75 * mean, 0.25 * self.variance + 0.75 * variance + 0.3


GENERATION = {
    "make_task": "config env env_params",
    "init": "task key",
    "rollout": "task candidates keys",
    "update": "task state step",
}


@functools.cache
def generation(module: ModuleType) -> Generation:
    """Generation 4 of 20, with a `rollout` that knows what each candidate is worth."""
    names = ("population_size", "elite_fraction", "num_rollouts", "num_eval_rollouts", "smoothing", "num_generations")
    sizes = dict(zip(names, (41, 0.2, 3, 5, 0.25, 20), strict=True))
    config = configure(module, **sizes, extra_variance=0.5, extra_variance_fraction=0.5, hidden_sizes=())
    task = module.make_task(config, Tabular(SECOND), SECOND)
    rng = np.random.default_rng(0)
    mean, variance, weight = rng.normal(size=10), rng.random(10) + 0.5, jnp.asarray(rng.normal(size=10), jnp.float32)
    state = module.init(task, jax.random.key(0))
    for name, x in (("mean", mean), ("variance", variance), ("env_steps", 1000)):
        state = dataclasses.replace(state, **{name: jnp.asarray(x, part(state, name).dtype)})
    played: list[Any] = []

    def rollout(task: Any, candidates: jax.Array, keys: jax.Array) -> Any:
        worth, number = (candidates @ weight)[:, None], jnp.arange(1, 1 + len(keys))
        returns = worth + jnp.sin(50 * worth * number)
        played.append((candidates, returns))
        return returns, jnp.broadcast_to(number, returns.shape), jnp.broadcast_to(number == 1, returns.shape)

    @jax.jit
    def watched(state: Any) -> Any:
        return *module.update(task, state, jnp.int32(4)), played

    with mock.patch.object(module, "rollout", rollout):
        new, metrics, calls = jax.device_get(watched(state))
    if [len(call[0]) for call in calls][:1] != [41] or len(calls) != 2:
        raise CannotAskError("its generation plays candidates in another way")
    (candidates, returns), (tried, again) = [[np.asarray(x, np.float64) for x in call] for call in calls]
    elite = np.argsort(-returns.mean(axis=1))[:8]
    return Generation(mean, variance, new, metrics, candidates, returns, tried, again, elite)


@oracle("C", "the candidates: their mean, their spread, or their number of rollouts", **GENERATION)
def drawn_candidates(module: ModuleType) -> None:
    """Each candidate is drawn from the Gaussian before, and plays as many episodes as is set."""
    found = generation(module)
    close("the shape of the returns, candidates by rollouts", found.returns.shape, (41, 3))
    normal = (found.candidates - found.mean) / np.sqrt(found.variance)
    if not 0.7 < (normal**2).mean() < 1.3:  # 410 squares of standard normal draws: within .3 but once in 50,000
        raise AssertionError(f"candidates vary {(normal**2).mean():.2f} x as much as the Gaussian they are drawn from")


@oracle("C", "the score, the elites, the smoothing, or the extra variance", **GENERATION)
def next_gaussian(module: ModuleType) -> None:
    """The candidates with the highest mean return make the new Gaussian, cut episodes counted like others."""
    found = generation(module)
    mean, variance = found.smoothed()
    close("the new mean", found.new.mean, mean, 1e-3)
    close("the new variance", found.new.variance, variance, 1e-3)


@oracle("C", "the evaluation: of the new mean, and of elites on fresh keys", **GENERATION)
def evaluated_gaussian(module: ModuleType) -> None:
    """Played once more are the new mean, which `mean_policy_return` is of, and elites, for the selection bias."""
    found = generation(module)
    close("what is evaluated first: the new mean", found.tried[0], found.new.mean)
    close("the number of episodes of an evaluation", found.again.shape[1], 5)
    some = np.argmin(np.abs(found.tried[1:, None] - found.candidates).sum(-1), axis=1)
    if not set(some) <= set(found.elite):
        raise AssertionError("what is tried once more for the selection bias are not elites")
    wanted = {
        "mean_policy_return": found.again[0].mean(),
        "selection_bias": (found.score[some] - found.again[1:].mean(axis=1)).mean(),
    }
    for name, x in emitted(found.metrics, *wanted).items():
        close(name, x, wanted[name], 1e-3)


@oracle("C", "a metric of a generation", **GENERATION)
def generation_metrics(module: ModuleType) -> None:
    """Scores, lengths, step counts, entropy and KL, written out."""
    found = generation(module)
    score, got = found.score, found.metrics

    def terms(mean: np.ndarray, variance: np.ndarray) -> tuple[float, float]:
        ratio = variance / found.variance
        return ((mean - found.mean) ** 2 / found.variance).sum() / 2, (ratio - 1 - np.log(ratio)).sum() / 2

    of_mean, of_variance = terms(*found.smoothed())
    entropy = np.log(2 * math.pi * math.e * found.variance).sum() / 2
    wanted = {
        "env_steps": 1000 + 41 * (1 + 2 + 3),
        "episodes": 41,
        "extra_variance": 0.3,
        "return_count": 41,
        "elite_mean": score[found.elite].mean(),
        "elite_threshold": score[found.elite].min(),
        "length_mean": 2.0,
        "length_std": 0.0,
        "kl": of_mean + of_variance,
        "kl_mean_term": of_mean,
        "kl_variance_term": of_variance,
        "kl_refit": sum(terms(*found.refit())),
        "std_min": np.sqrt(found.variance).min(),
        "std_mean": np.sqrt(found.variance).mean(),
        "entropy": entropy,
        "relative_entropy": entropy / 10,
    }
    wanted |= {f"return_{how}": getattr(score, how)() for how in ("mean", "std", "min", "max")}
    if {"kl_refit", "kl_floor"} <= got.keys():
        wanted["kl_excess"] = got["kl_refit"] - got["kl_floor"]
    for name, x in emitted(got, *wanted).items():
        close(name, x, wanted[name], 1e-3)


BUFFER = "obs action reward terminated truncated next_obs"


@oracle("Q", "the value of the next state", next_values="kind target_q online_q epsilon")
def next_state_values(module: ModuleType) -> None:
    """Double Q, the maximum and expected SARSA on two fixed tables."""
    target_q, online_q = jnp.array([[1.0, 3.0, -1.0], [2.0, 0.0, 0.5]]), jnp.array([[5.0, 4.0, 0.0], [1.0, 2.0, 3.0]])
    for kind, wanted in (("double", [1.0, 0.5]), ("max", [3.0, 2.0]), ("expected_sarsa", [2.4, 1.65])):
        # .7 of the best and .3 of the mean: .7 x 3 + .3 x 1 and .7 x 2 + .3 x .8333.
        if takes(module, target=kind):
            close(f"next_values of {kind!r}", module.next_values(kind, target_q, online_q, 0.3), wanted)


@oracle("Q", "the schedule of exploration, or its policy", epsilon_at="config env_steps", epsilon_greedy="q epsilon")
def exploration(module: ModuleType) -> None:
    """Epsilon falls from start_e to end_e over its share of the training; its policy gives every action epsilon / A."""
    config = configure(module, total_timesteps=100_000, start_e=0.9, end_e=0.1, exploration_fraction=0.5)
    for steps, wanted in ((0, 0.9), (12_500, 0.7), (25_000, 0.5), (50_000, 0.1), (90_000, 0.1)):
        close(f"epsilon after {steps} of 100000 steps", module.epsilon_at(config, jnp.float32(steps)), wanted)
    policy = module.epsilon_greedy(jnp.array([[0.0, 2.0, 1.0], [3.0, 2.0, 1.0]]), 0.3)
    close("epsilon_greedy at epsilon .3", policy, [[0.1, 0.8, 0.1], [0.8, 0.1, 0.1]])


@oracle("Q", "which transitions are sampled", replay_indices="bits rows capacity num_envs n_step")
def replay_slots(module: ModuleType) -> None:
    """Slots are of written steps, n consecutive ones of one environment, all equally often, round the end too."""
    bits, capacity, num_envs = jnp.arange(20_000, dtype=jnp.uint32) * jnp.uint32(2_654_435_761), 13, 3
    for rows, n in itertools.product((4, 13, 18, 40), (1, 3)):
        slots, _ = (np.asarray(x) for x in module.replay_indices(bits, jnp.int32(rows), capacity, num_envs, n))
        case = f"with {rows} rows written of {capacity}, and {n}-step returns"
        close(f"the shape of the slots {case}", slots.shape, (len(bits), n))
        written = range(max(0, rows - capacity), rows)
        whole = {tuple((row + k) % capacity * num_envs + env for k in range(n))
                 for row in written[: len(written) - n + 1] for env in range(num_envs)}  # fmt: skip
        found = collections.Counter(map(tuple, slots.tolist()))
        if wrong := set(found) - whole:
            raise AssertionError(f"{case}, the slots {next(iter(wrong))} are sampled: unwritten, or no such sequence")
        if not 0.7 < min(found[x] for x in whole) * len(whole) / len(bits) <= 1:
            raise AssertionError(f"{case}, some are sampled less often than others, or never")


def asked_by_update(module: ModuleType, name: str) -> list[Any]:
    """The arguments, but for settings, that update 3 of 20 gives a function: 5 cycles of 2 steps in 7 environments.

    Raises CannotAskError if it gives them by name.
    """
    settings = {"num_envs": 7, "train_frequency": 14, "cycles_per_update": 5, "hidden_sizes": (16,), "batch_size": 31,
                "buffer_size": 280, "learning_starts": 70, "target_network_frequency": 70, "n_step": 1,
                "total_timesteps": 1400}  # fmt: skip
    task = module.make_task(configure(module, **settings), Tabular(IDS), IDS)
    original, asked = getattr(module, name), []

    def spy(*arguments: Any, **named: Any) -> Any:
        if named:
            raise CannotAskError(f"its update calls {name} with keywords")
        asked.append([x for x in arguments if not isinstance(x, module.Config)])
        return original(*arguments)

    @jax.jit
    def watched(state: Any) -> Any:  # without what follows: only what is asked for is computed
        module.update(task, 20, state, jnp.int32(3))
        return asked

    with mock.patch.object(module, name, spy):
        found: list[Any] = jax.device_get(watched(module.init(task, jax.random.key(0))))
    if not found:
        raise CannotAskError(f"its update does not call {name}")
    return found


WATCHED = {"make_task": "config env env_params", "init": "task key", "update": "task num_updates state step"}


@oracle("Q", "which transitions are sampled", replay_indices="bits rows capacity num_envs n_step", **WATCHED)
def replay_draws(module: ModuleType) -> None:
    """Each gradient step draws anew, from the rows written by its own end."""
    asked = asked_by_update(module, "replay_indices")
    bits, rows, *rest = asked[0]
    if bits.shape != (5, 31) or rest != [40, 7, 1]:
        raise CannotAskError("it draws in another way")
    close("rows written by the end of each cycle", np.broadcast_to(rows, (5, 1))[:, 0], 30 + 2 * np.arange(1, 6))
    if len(np.unique(bits)) < bits.size - 1:
        raise AssertionError("gradient steps of one update draw the same random numbers")


@oracle("Q", "the schedule of exploration", epsilon_at="config env_steps", **WATCHED)
def exploring_steps(module: ModuleType) -> None:
    """Epsilon is that of the environment steps done before each step of all environments."""
    (steps,) = asked_by_update(module, "epsilon_at")[0]
    close("the steps that epsilon follows", np.reshape(steps, -1), 210 + 7 * np.arange(10))


@oracle(
    "Q",
    "the return, the discount, or the next observation of a sampled transition",
    make_task="config env env_params",
    Buffer=BUFFER,
    sample="task buffer index like",
)
def sampled_returns(module: ModuleType) -> None:
    """Rewards are summed up to n, never over an ending; only termination ends the value; the last step's next_obs."""
    rng = np.random.default_rng(0)
    size, gamma = 24, 0.8
    reward, obs, next_obs = rng.normal(size=size), rng.normal(size=(size, 2)), rng.normal(size=(size, 2))
    action, (terminated, truncated) = rng.integers(2, size=size), rng.random((2, size)) < 0.3
    params = tables(obs=[[0.0, 0.0]], reward=[[0.0, 0.0]], next=[0])
    floats = (jnp.asarray(x, jnp.float32) for x in (obs, reward, next_obs))
    stored_obs, stored_reward, stored_next = floats
    ends = jnp.asarray(terminated), jnp.asarray(truncated)
    buffer = module.Buffer(stored_obs, jnp.asarray(action, jnp.int32), stored_reward, *ends, stored_next)
    for n in (1, 3):
        task = module.make_task(configure(module, gamma=gamma, n_step=n, buffer_dtype="same"), Tabular(params), params)
        index = np.arange(size - n)[:, None] + np.arange(n)
        got = module.sample(task, buffer, jnp.asarray(index), jnp.zeros((1, 2)))
        total, discount, last = np.zeros(len(index)), np.zeros(len(index)), index[:, 0].copy()
        for i, slots in enumerate(index):
            for k, slot in enumerate(slots):
                total[i] += gamma**k * reward[slot]
                discount[i], last[i] = 0.0 if terminated[slot] else gamma ** (k + 1), slot
                if terminated[slot] or truncated[slot]:
                    break
        close(f"the {n}-step reward", got.reward, total)
        close(f"the discount of the next value after {n} steps", got.discount, discount)
        close(f"the next observation after {n} steps", got.next_obs, next_obs[last])
        close("the observation", got.obs, obs[index[:, 0]])
        close("the action", got.action, action[index[:, 0]])


@oracle("Q", "how observations are stored", encode="obs buffer_dtype", decode="stored buffer_dtype like")
def storage(module: ModuleType) -> None:
    """Numbers stored as they come, whole ones to 255 as bytes, and 0 and 1 as bits come back as they were."""
    rng = np.random.default_rng(0)
    shape = (5, 3, 7)  # 21 bits do not fill their bytes
    images = {
        "same": rng.normal(size=shape),
        "uint8": rng.integers(256, size=shape),
        "bool": rng.integers(2, size=shape),
    }
    for buffer_dtype, image in images.items():
        if not takes(module, buffer_dtype=buffer_dtype):
            continue
        obs = jnp.asarray(image, jnp.float32)
        restored = module.decode(module.encode(obs, buffer_dtype), buffer_dtype, obs)
        close(f"an observation stored as {buffer_dtype!r}", restored, obs)
        if restored.dtype != obs.dtype:
            raise AssertionError(f"an observation stored as {buffer_dtype!r} comes back as {restored.dtype}")


@oracle(
    "Q",
    "the target: the reward, and the discounted value of the next state",
    make_task="config env env_params",
    init="task key",
    forward="task params obs options",
    targets="task target_params params batch epsilon",
    Batch="obs action reward discount next_obs",
)
def bootstrapped_targets(module: ModuleType) -> None:
    """Reward and discount times the target network's value of the next observation, where the online one is best."""
    rng = np.random.default_rng(0)
    params = tables(obs=[[0.0, 0.0]], reward=[[0.0, 0.0, 0.0]], next=[0])
    task = module.make_task(configure(module, target="double", hidden_sizes=(16,)), Tabular(params), params)
    online, target = (module.init(task, jax.random.key(seed)).params for seed in range(2))
    obs, next_obs = jnp.asarray(rng.normal(size=(2, 40, 2)), jnp.float32)
    reward, discount = jnp.asarray(rng.normal(size=(2, 40)), jnp.float32)
    batch = module.Batch(obs, jnp.asarray(rng.integers(3, size=40)), reward, discount, next_obs)
    best = np.asarray(module.forward(task, online, next_obs)).argmax(-1)
    value = np.asarray(module.forward(task, target, next_obs))[np.arange(40), best]
    got = module.targets(task, target, online, batch, 0.0)
    close("the target", got, np.asarray(reward) + np.asarray(discount) * value, 1e-3)


@oracle(
    "Q",
    "the loss, or the gather of the action taken",
    make_task="config env env_params",
    init="task key",
    forward="task params obs options",
    loss="params task batch target",
    Batch="obs action reward discount next_obs",
)
def td_loss(module: ModuleType) -> None:
    """The mean squared error of the taken action's Q, or half of it, or its Huber form."""
    rng = np.random.default_rng(0)
    params = tables(obs=[[0.0, 0.0]], reward=[[0.0, 0.0, 0.0]], next=[0])
    obs, action = jnp.asarray(rng.normal(size=(5, 2)), jnp.float32), jnp.array([2, 0, 1, 1, 0])
    zeros = jnp.zeros(5)
    for kind in (kind for kind in ("squared", "huber") if takes(module, loss=kind)):
        task = module.make_task(configure(module, loss=kind, hidden_sizes=(16, 16)), Tabular(params), params)
        weights = module.init(task, jax.random.key(0)).params
        q = np.asarray(module.forward(task, weights, obs))[np.arange(5), action]
        error = np.array([0.1, -0.5, 3.0, -2.0, 0.0])
        wanted = 0.5 * error**2 if kind == "squared" else np.array([0.005, 0.125, 2.5, 1.5, 0.0])
        batch = module.Batch(obs, action, zeros, zeros, obs)
        got = float(module.loss(weights, task, batch, jnp.asarray(q + error))[0])
        whole = 2 * wanted.mean()  # Adam does not see the difference
        close(f"the {kind} loss", got, whole if abs(got - whole) < 1e-4 else wanted.mean())


@oracle(
    "Q",
    "the dueling heads",
    make_task="config env env_params",
    init="task key",
    forward="task params obs options",
)
def dueling_heads(module: ModuleType) -> None:
    """What is added to all advantages changes no Q; what is added to the state's value is added to every Q."""
    params = tables(obs=[[0.3, -0.4]], reward=[[0.0, 0.0, 0.0]], next=[0])
    need(module, "dueling")
    if not takes(module, dueling=True):
        raise CannotAskError("its make refuses dueling")
    task = module.make_task(configure(module, dueling=True, hidden_sizes=(16,)), Tabular(params), params)
    weights, obs = module.init(task, jax.random.key(0)).params, jnp.array([[0.3, -0.4], [1.0, 2.0]])
    before = np.asarray(module.forward(task, weights, obs))
    if "value_head" not in weights["params"] or "head" not in weights["params"]:
        raise CannotAskError("its parameters have no head and value_head")
    for head, moves in (("head", 0.0), ("value_head", 2.0)):
        layer = weights["params"][head]
        changed = {"params": {**weights["params"], head: {**layer, "bias": layer["bias"] + 2.0}}}
        rows_apart(partial(module.forward, task, changed), obs)
        close(f"how far Q moves if 2 is added to the bias of {head}",
              np.asarray(module.forward(task, changed, obs)) - before, np.full((2, 3), moves))  # fmt: skip


@oracle(
    "Q",
    "which parameters are evaluated, or how greedily",
    make_task="config env env_params",
    init="task key",
    forward="task params obs options",
)
def evaluated(module: ModuleType) -> None:
    """The value is the online network's, and the policy is one-hot of its largest."""
    params = tables(obs=[[0.3, -0.4]], reward=[[0.0, 0.0, 0.0]], next=[0])
    config = configure(module, hidden_sizes=(16,))
    task, agent = module.make_task(config, Tabular(params), params), module.make(config, Tabular(params), params)
    state, other = (module.init(task, jax.random.key(seed)) for seed in range(2))
    part(state, "target_params")
    state = dataclasses.replace(state, target_params=other.params)
    obs = jnp.array([0.3, -0.4])
    q = np.asarray(module.forward(task, state.params, obs[None]))[0]
    rows_apart(partial(module.forward, task, state.params), jnp.array([[0.3, -0.4], [1.0, 2.0], [-1.0, 0.5]]))
    close("the value as it is evaluated", agent.value(state, obs), q)
    close("the policy as it is evaluated", agent.policy(state, obs), np.eye(3)[q.argmax()])


@oracle(
    "Q",
    "what is kept of a step, the action that is taken, or the episodes under way",
    make_task="config env env_params",
    init="task key",
    forward="task params obs options",
    collect="task state params epsilon draws",
)
def collected_steps(module: ModuleType) -> None:
    """Two cycles in a row: random actions where chance says so and else the best; what is kept is what happened."""
    settings = {"num_envs": 7, "train_frequency": 77, "cycles_per_update": 1, "hidden_sizes": (16,), "gamma": 0.9,
                "buffer_dtype": "same", "learning_starts": 77, "buffer_size": 154, "batch_size": 31,
                "target_network_frequency": 77, "total_timesteps": 770}  # fmt: skip
    task = module.make_task(configure(module, **settings), Tabular(IDS), IDS)
    first, collect = module.init(task, jax.random.key(0)), jax.jit(partial(module.collect, task))
    # Parameters of their own: not those of the state, nor of its target network.
    acting = module.init(task, jax.random.key(7)).params
    state, epsilon, cycles = first, jnp.linspace(0.0, 1.0, 11), []
    for key in jax.random.split(jax.random.key(1), 2):
        keys = jax.random.split(key, 3)
        chance = jax.random.uniform(keys[0], (11, 7)), jax.random.randint(keys[1], (11, 7), 0, 2)
        state, steps, block = collect(state, acting, epsilon, (*chance, jax.random.split(keys[2], (11, 7))))
        cycles.append((jax.tree.map(lambda x: x.reshape(11, 7, *x.shape[1:]), block), steps, chance))
    kept, seen, (uniform, random) = jax.device_get(jax.tree.map(lambda *x: jnp.concatenate(x), *cycles))
    at, action, ended = kept.obs[..., 0].astype(int) - 1, kept.action, kept.terminated | kept.truncated
    close("the first observations", kept.obs[0], first.obs)
    if len(np.unique(kept.obs[0])) == 1:
        raise AssertionError("all environments begin in the same of six states")
    leads_to = IDS.obs[IDS.next[at, action]]
    for name, wanted in (
        ("reward", IDS.reward[at, action]),
        ("terminated", IDS.terminated[at, action]),
        ("truncated", IDS.truncated[at, action]),
        ("next_obs", leads_to),
    ):
        close(f"{name} beside the observation and the action kept with it", getattr(kept, name), wanted)
    follows = np.concatenate([kept.obs[1:], np.asarray(state.obs)[None]])
    close("the observation after a step that ends nothing", follows[~ended], leads_to[~ended])
    q = np.asarray(module.forward(task, acting, jnp.asarray(kept.obs.reshape(-1, 1)))).reshape(22, 7, 2)
    greedy = np.where(uniform < np.tile(epsilon, 2)[:, None], random, q.argmax(-1))
    close("the action, random where the draw is below epsilon and the best elsewhere", action, greedy)
    for name, each in (("action", action), ("reward", kept.reward), ("ended", ended)):
        if hasattr(seen, name):
            close(f"{name} of the steps, beside what is stored", getattr(seen, name), each)
    for name, each in (("total", kept.reward), ("length", np.ones_like(kept.reward))):
        if hasattr(seen, name):
            total, wanted_total = np.zeros(7), []
            for x, end in zip(each, ended, strict=True):
                wanted_total.append(total + x)
                total = np.where(end, 0.0, wanted_total[-1])
            close(f"{name} of the episode so far", getattr(seen, name), wanted_total)


@oracle("Q", "the optimiser, or its clip of the gradient's norm", make_task="config env env_params")
def optimiser(module: ModuleType) -> None:
    """Two steps of Adam, written out, without a clip and with one."""
    params = tables(obs=[[0.0, 0.0]], reward=[[0.0, 0.0]], next=[0])
    need(module, "max_grad_norm", "adam_eps")
    gradient = np.array([3.0, -4.0, 0.5])
    for bound in (None, 0.7):
        task = module.make_task(configure(module, max_grad_norm=bound, adam_eps=0.1), Tabular(params), params)
        if not hasattr(task, "optimizer"):
            raise CannotAskError("its task has no optimizer")
        state, mean, square = task.optimizer.init(jnp.zeros(3)), np.zeros(3), np.zeros(3)
        for step, g in ((1, gradient), (2, 0.1 * gradient)):
            got, state = task.optimizer.update(jnp.asarray(g, jnp.float32), state)
            g = g * min(1.0, (math.inf if bound is None else bound) / float(np.linalg.norm(g)))
            mean, square = 0.9 * mean + 0.1 * g, 0.999 * square + 0.001 * g**2
            wanted = (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 0.1)
            close(f"step {step} of the optimiser, with max_grad_norm {bound}", np.abs(got), np.abs(wanted), 1e-3)


@oracle("Q", "the replay buffer, or the warm-up", Buffer=BUFFER)
def stored_transitions(module: ModuleType) -> None:
    """What the buffer holds after its first round is what the environment did, endings and final observations too."""
    settings = {"num_envs": 7, "train_frequency": 14, "cycles_per_update": 2, "target_network_frequency": 28,
                "total_timesteps": 112, "buffer_size": 42, "batch_size": 31, "learning_starts": 42, "n_step": 1,
              "buffer_dtype": "same", "hidden_sizes": (16,)}  # fmt: skip
    agent = module.make(configure(module, **settings), Tabular(IDS), IDS)
    state, update = jax.jit(agent.init)(jax.random.key(0)), jax.jit(agent.update)
    seen = []
    for step in range(4):  # 4 rows at a time: the buffer's 6 are overwritten twice
        before, (state, _) = state, update(state, jnp.int32(step))
        if step == 0 and hasattr(state, "params") and not same(before.params, state.params):
            raise AssertionError("it learns before learning_starts")
        if step == 0 and hasattr(state, "opt_state") and not same(before.opt_state, state.opt_state):
            raise AssertionError("its optimiser's state moves before learning_starts")
        stored = jax.device_get(part(state, "buffer"))
        if len(stored.reward) != 42:
            raise CannotAskError(f"its buffer has {len(stored.reward)} slots for a buffer_size of 42")
        seen.append(stored.reward.copy())
        written = stored.obs[:, 0] > 0
        if int(written.sum()) != min(28 * (step + 1), 42):
            raise AssertionError(f"{int(written.sum())} slots are filled after {28 * (step + 1)} steps, of 42")
        row, action = stored.obs[written, 0].astype(int) - 1, stored.action[written]
        for name, wanted in (
            ("reward", IDS.reward[row, action]),
            ("terminated", IDS.terminated[row, action]),
            ("truncated", IDS.truncated[row, action]),
            ("next_obs", IDS.obs[IDS.next[row, action]]),
        ):
            close(
                f"{name} beside the observation and the action stored with it", getattr(stored, name)[written], wanted
            )
    if (seen[-1] == seen[-2]).all():
        raise AssertionError("the buffer does not change any more once it is full")


# The contract. All trials of an agent share one compiled program: its settings and the tables are arguments.

# One step; reward +1 or -1 whatever is done. The other states are there for the shape.
NOISE = tables(obs=np.zeros((4, 4)), reward=np.zeros((4, 2)), next=[0] * 4, terminated=True, noise=1.0)
# Episodes of three steps that return 6, or of two that return 7, by where they start.
COUNT = tables(
    obs=np.eye(4),
    reward=[[1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [4.0, 4.0]],
    next=[1, 2, 2, 2],
    terminated=[0, 0, 1, 0],
    start=[0.5, 0, 0, 0.5],
)
UPDATES = 20


@functools.cache
def programs(module: ModuleType) -> Any:
    """(config, tables, keys) -> states, and (config, tables, states, step) -> states, metrics, values, policies."""
    env = Tabular(COUNT)

    def init(config: Any, params: Any, key: jax.Array) -> Any:
        return module.make(config, env, params).init(key)

    def update(config: Any, params: Any, state: Any, step: jax.Array) -> Any:
        agent = module.make(config, env, params)
        new, metrics = agent.update(state, step)
        obs, functions = jnp.asarray(params.obs), [f for f in (agent.value, agent.policy) if f is not None]
        return new, metrics, [(jax.vmap(partial(f, s))(obs)) for s in (state, new) for f in functions]

    over_seeds = jax.vmap(update, (None, None, 0, None))
    return jax.jit(jax.vmap(init, (None, None, 0))), jax.jit(over_seeds)


class Trial:
    """A few updates of an agent on a small task, `S` seeds side by side; a setting its Config lacks stays unset.

    Raises CannotAskError if its `make` refuses the settings.
    """

    def __init__(
        self,
        module: ModuleType,
        params: Tables,
        learning_rate: float = 1e-2,
        epsilon: float = 0.5,
        end_e: float | None = None,
        tau: float = 1.0,
        cycles: int = 1,
        **settings: Any,
    ):
        fields = settings_in(module)
        wanted = {
            "num_envs": 7,
            "num_steps": 11,
            "num_minibatches": 7,
            "hidden_sizes": (16, 16),
            "learning_rate": learning_rate,
            "anneal_lr": True,
            "total_timesteps": 77 * UPDATES * cycles,
            # A gradient step every 77 steps, on a buffer that holds just these; a sync at every second one.
            "train_frequency": 77,
            "cycles_per_update": cycles,
            "learning_starts": 77,
            "buffer_size": 77,
            "batch_size": 31,
            "target_network_frequency": 154,
            "tau": tau,
            "buffer_dtype": "same",
            "n_step": 1,
            "target": "double",
            "loss": "squared",
            "start_e": epsilon,
            "end_e": epsilon if end_e is None else end_e,
            "exploration_fraction": 0.5,
            # A tenth of the candidates is 7.
            "num_generations": UPDATES,
            "population_size": 67,
            "elite_fraction": 0.1,
            "num_rollouts": 5,
            "num_eval_rollouts": 11,
            "max_episode_steps": None,
            "init_variance": 1.0,
            "extra_variance": 0.0,
            "extra_variance_fraction": 0.5,
            "smoothing": 0.0,
            **settings,
        }
        if "num_generations" in fields:  # a linear policy, whose parameters' meaning is known
            wanted["hidden_sizes"] = ()
        self.config = module.Config(**{k: v for k, v in wanted.items() if k in fields})
        try:
            module.make(self.config, Tabular(params), params)
        except ValueError as error:
            raise CannotAskError(f"its make refuses the trial's settings: {error}") from error
        init, self.program = programs(module)
        self.params = params
        self.state = init(self.config, params, jax.vmap(jax.random.key)(jnp.arange(SEEDS)))

    def update(self, state: Any, step: int) -> tuple[Any, dict[str, np.ndarray], list[np.ndarray]]:
        """The new state, metrics `[S]`, and [value, policy before, value, policy after] `[S, n, ...]`.

        Of an agent without values, the policies alone.
        """
        state, metrics, answers = self.program(self.config, self.params, state, np.int32(step))
        return state, jax.device_get(metrics), jax.device_get(answers)

    def run(self, updates: int) -> dict[str, np.ndarray]:
        """Metrics `[updates, S]`."""
        metrics = []
        for step in range(updates):
            self.state, found, _ = self.update(self.state, step)
            metrics.append(found)
        return {name: np.stack([m[name] for m in metrics]) for name in metrics[0]}


def emitted(metrics: dict[str, np.ndarray], *names: str) -> dict[str, np.ndarray]:
    """Those of the metrics that the agent emits. Raises CannotAskError if it emits none."""
    found = {name: metrics[name] for name in names if name in metrics}
    if not found:
        raise CannotAskError(f"it emits no {' or '.join(names[:3])}")
    return found


@oracle("AQC", "random keys: one is used twice, or comes from a constant")
def keys_used_once(module: ModuleType) -> None:
    """JAX's checker of key reuse, on the program of two updates in a row; and every key comes from the one given."""
    trial = Trial(module, COUNT)
    agent = module.make(trial.config, Tabular(COUNT), COUNT)

    def two_updates(key: jax.Array) -> Any:
        return agent.update(agent.update(agent.init(key), jnp.int32(0))[0], jnp.int32(1))

    try:
        with jax.debug_key_reuse(True):
            program = jax.jit(two_updates).trace(jax.random.key(0))
    except jax.errors.KeyReuseError as error:
        where = line_of(error, module.__file__)
        raise AssertionError(
            f"{'' if where is None else f'line {where}: '}a random key is used a second time"
        ) from error
    if "random_seed" in str(program.jaxpr):
        raise AssertionError("a random key is made from a number within init or update: it is the same every time")


@oracle("AQC", "the environment's parameters: those given to `make` are not used")
def given_parameters(module: ModuleType) -> None:
    """Where one-step episodes that pay at most 1 are asked for, none return 6 or 7, as by the environment's default."""
    found = emitted(Trial(module, COIN).run(1), "return_max", "reward_max")
    for name, x in found.items():
        close(f"{name} of rewards of +1 and -1", x[-1], np.ones(SEEDS))


@oracle("AQ", "random keys: used twice over environments, steps, updates or seeds")
def fresh_randomness(module: ModuleType) -> None:
    """Rewards of +1 and -1 are drawn anew each time: the variance of their mean over 77 is 1 / 77."""
    reward = emitted(Trial(module, NOISE).run(4), "reward_mean")["reward_mean"]
    if np.abs(reward).max() < 1e-6:
        raise CannotAskError("its mean reward is always 0")
    if (reward[1:] == reward[:-1]).mean() > 0.5:
        raise AssertionError("updates repeat the same rewards: the key is not advanced")
    if (reward[:, 1:] == reward[:, :-1]).mean() > 0.5:
        raise AssertionError("seeds repeat the same rewards: the key is not theirs")
    ratio = 77 * float(np.mean(reward**2))  # 256 means: within .35 of 1 but once in 10,000
    if not 0.65 < ratio < 1.35:
        raise AssertionError(f"mean rewards vary {ratio:.1f} x as much as independent draws: keys are shared, or stuck")


@oracle("AQ", "the recording of episodes, or the averaging of metrics")
def episode_metrics(module: ModuleType) -> None:
    """Episodes return 6 in three steps or 7 in two: return and length add up to 9."""
    last = {name: x[-1] for name, x in Trial(module, COUNT).run(3).items()}
    known = {"return_min": 6, "return_max": 7, "length_min": 2, "length_max": 3, "env_steps": 231}
    for name, x in emitted(last, *known).items():
        close(name, x, np.full(SEEDS, known[name]))
    if {"return_mean", "length_mean"} <= last.keys():
        close("return_mean + length_mean", last["return_mean"] + last["length_mean"], np.full(SEEDS, 9))


@oracle("A", "what an update makes of a rollout: next values, advantages and targets, or their metrics")
def known_targets(module: ModuleType) -> None:
    """Where each step is known beforehand, advantages and targets follow from the values before the update."""
    gamma, gae_lambda = 0.9, 0.7
    need(module, "gamma", "gae_lambda", "num_envs", "num_steps")
    trial = Trial(module, CYCLE, gamma=gamma, gae_lambda=gae_lambda, learning_rate=3e-2)
    next_state, reward = CYCLE.next[:, 0], CYCLE.reward[:, 0].astype(np.float64)
    terminated, ended = CYCLE.terminated[:, 0], (CYCLE.terminated | CYCLE.truncated)[:, 0]
    returns, lengths = [], []
    for step in range(3):
        trial.state, got, (value, *_) = trial.update(trial.state, step)
        at = (11 * step + np.arange(11)) % 4
        v = value.astype(np.float64)[:, at]  # [S, 11]
        delta = reward[at] + gamma * ~terminated[at] * value[:, next_state[at]] - v
        advantage = delta.copy()
        for t in range(9, -1, -1):
            advantage[:, t] += gamma * gae_lambda * (not ended[at[t]]) * advantage[:, t + 1]
        target = advantage + v
        finished = int(ended[at].sum())
        returns += [{1: -1.0, 3: 3.5}[int(s)] for s in at if ended[s]] * 7
        lengths += [2] * 7 * finished
        wanted = {"episodes": np.full(SEEDS, 7 * finished), "value_bias": advantage.mean(1)}
        wanted["explained_variance"] = 1 - advantage.var(1) / target.var(1)
        last = np.array(returns[-100:])
        for name, x in (
            ("value", v),
            ("advantage", advantage),
            ("target", target),
            ("reward", np.tile(reward[at], (SEEDS, 1))),
            ("return", np.tile(last, (SEEDS, 1))),
            ("length", np.full((SEEDS, 1), 2.0)),
        ):
            wanted |= {f"{name}_{how}": getattr(x, how)(1) for how in ("mean", "std", "min", "max")}
        for name, x in emitted(got, *wanted).items():
            close(f"{name} in update {step}", x, wanted[name], 1e-3)
    # Where nothing is learned every ratio is 1, and each minibatch weighs the same.
    fields = settings_in(module)
    trial = Trial(module, CYCLE, learning_rate=0.0, gamma=gamma, gae_lambda=gae_lambda)
    _, got, _ = trial.update(trial.state, 0)
    zeros = np.zeros(SEEDS)
    wanted = dict.fromkeys(("approx_kl", "kl", "clip_fraction", "policy_loss", "update_ratio"), zeros)
    if {"advantage_mean", "advantage_std"} <= got.keys():
        wanted["value_loss"] = 0.5 * (got["advantage_mean"] ** 2 + got["advantage_std"] ** 2)
    if {"vf_coef", "ent_coef"} <= fields and {"value_loss", "entropy"} <= got.keys():
        wanted["loss"] = trial.config.vf_coef * got["value_loss"] - trial.config.ent_coef * got["entropy"]
    if {"update_epochs", "num_minibatches"} <= fields:
        wanted["gradient_steps"] = zeros + trial.config.update_epochs * trial.config.num_minibatches
    for name, x in got.items():
        if name in wanted:
            close(f"{name} at a learning rate of 0", x, wanted[name], 1e-3)


@oracle("A", "a metric, or the rewards that are learned from")
def known_metrics(module: ModuleType) -> None:
    """On one observation whose reward is +1 or -1, each metric follows from V and the policy before and after."""
    trial = Trial(module, NOISE, learning_rate=3e-2)
    trial.run(2)  # away from the initial policy
    _, got, (value, before, _, after) = trial.update(trial.state, 2)
    v, before, after = value[:, 0], before[:, 0].astype(np.float64), after[:, 0].astype(np.float64)
    reward = got.get("reward_mean", np.full(SEEDS, np.nan))
    entropy = -(before * np.log(before)).sum(-1)
    wanted = {
        "entropy": entropy,
        "relative_entropy": entropy / math.log(2),
        "kl": (before * np.log(before / after)).sum(-1),
        "value_mean": v,
        "value_std": np.zeros(SEEDS),
        "target_mean": reward,
        "advantage_mean": reward - v,
        "value_bias": reward - v,
        "explained_variance": np.zeros(SEEDS),
        "reward_min": np.full(SEEDS, -1),
        "reward_max": np.full(SEEDS, 1),
        "episodes": np.full(SEEDS, 77),
        "nonfinite": np.zeros(SEEDS),
    }
    for name, x in emitted(got, *wanted).items():
        close(name, x, wanted[name], 1e-3)
    if "kl" in got:  # of two distributions that are near each other: which way round shows in its last digits
        large = wanted["kl"] > 1e-3
        close("kl, to what it should be", (got["kl"] / wanted["kl"])[large], np.ones(large.sum()), 0.03)


@oracle("A", "the stored log-probability")
def first_ratio(module: ModuleType) -> None:
    """Before its first gradient step the policy is the one that acted: every ratio is 1. After some it is not."""
    metrics = emitted(Trial(module, COUNT).run(3), "first_ratio_error", "kl", "approx_kl")
    error = metrics.get("first_ratio_error")
    if error is not None and not error.max() < 1e-4:
        raise AssertionError(
            f"the first ratio is off by {error.max():.2g}: not the probability the action was taken with"
        )
    moved = metrics.get("kl"), metrics.get("approx_kl")
    if moved[0] is not None and moved[1] is not None and moved[0].max() > 1e-5 and not moved[1].max() > 1e-7:
        raise AssertionError("the policy changes, but its ratio to the old one stays 1: the old one is computed anew")


@oracle("AQ", "the learning rate's schedule")
def schedule(module: ModuleType) -> None:
    """With anneal_lr the first, the middle and the last of 20 updates move the value by 1 : .5 : .05."""
    need(module, "anneal_lr", "total_timesteps", "learning_rate")
    trial = Trial(module, COUNT, learning_rate=1e-4)
    moved = []
    for step in (0, UPDATES // 2, UPDATES - 1):
        _, _, (before, _, after, _) = trial.update(trial.state, step)
        moved.append(np.abs(after - before).mean())
    if not moved[0] > 0:
        raise AssertionError("the first update does not move the value")
    close("how far the middle update moves the value, to the first", moved[1] / moved[0], 0.5, 0.05)
    close("how far the last update moves the value, to the first", moved[2] / moved[0], 1 / UPDATES, 0.02)


@oracle("AQ", "batching over seeds")
def seeds_apart(module: ModuleType) -> None:
    """What a seed learns does not depend on the seeds beside it, and no two learn the same."""
    trial = Trial(module, COUNT)
    _, _, (_, _, values, _) = trial.update(trial.state, 0)
    _, _, (_, _, alike, _) = trial.update(jax.tree.map(lambda x: x[jnp.full(SEEDS, 3)], trial.state), 0)
    close("the value of a seed among copies of itself", alike[3], values[3], 1e-5)
    distinct = len({x.tobytes() for x in values})
    if distinct < SEEDS:
        raise AssertionError(f"{SEEDS} seeds give {distinct} different values")


@oracle("AQ", "the gradient's path to a parameter")
def every_parameter_moves(module: ModuleType) -> None:
    """One update changes every array of parameters, and the optimiser's counters go on in the next."""
    trial = Trial(module, COUNT)
    new, _, _ = trial.update(trial.state, 0)
    next_state, _, _ = trial.update(new, 1)
    counters = [[x for x in jax.tree.leaves(getattr(s, "opt_state", ())) if np.asarray(x).dtype.kind == "i"]
                for s in (new, next_state)]  # fmt: skip
    if any((np.asarray(a) >= np.asarray(b)).any() for a, b in zip(*counters, strict=True)):
        raise AssertionError("the optimiser starts anew in every update")
    before, after = (jax.tree_util.tree_leaves_with_path(getattr(s, "params", None)) for s in (trial.state, new))
    if not before:
        raise CannotAskError("its state has no params")
    for (path, old), (_, x) in zip(before, after, strict=True):
        if (np.asarray(old) == np.asarray(x)).all():
            raise AssertionError(f"the parameter {jax.tree_util.keystr(path)} does not move")


# Contract-level checks of agents of a policy alone. They read `mean` and `variance` of the state.

# Episodes of four steps, +1 or -1 at each whatever is done.
WALK = tables(
    obs=np.zeros((4, 4)), reward=np.zeros((4, 2)), next=[1, 2, 3, 3], terminated=[0, 0, 0, 1], noise=1.0
)  # fmt: skip


@oracle("C", "random keys of the environment: used twice over rollouts, steps, generations, seeds or the evaluation")
def fresh_rollouts(module: ModuleType) -> None:
    """Returns of four rewards of +1 and -1, drawn anew: the variance of a mean over 5 rollouts is 4 / 5."""
    need(module, "num_rollouts")
    metrics = emitted(Trial(module, WALK).run(4), "return_mean", "mean_policy_return", "selection_bias")
    score = emitted(metrics, "return_mean")["return_mean"]
    for name in ("return_mean", "mean_policy_return"):
        x = metrics.get(name, score)
        if (x[1:] == x[:-1]).mean() > 0.5:
            raise AssertionError(f"generations repeat the same rewards, in {name}: the key is not advanced")
        if (x[:, 1:] == x[:, :-1]).mean() > 0.5:
            raise AssertionError(f"seeds repeat the same rewards, in {name}: the key is not theirs")
    ratio = 5 / 4 * float(np.mean(score**2))  # of 256 means; candidates that share their keys all have the same
    if not ratio < 1.35:
        raise AssertionError(f"mean returns vary {ratio:.1f} x as much as independent draws: keys are shared, or stuck")
    # Where candidates share their keys, scores are all return_mean: what was found on fresh keys has nothing of them.
    fresh = {name: metrics[name] for name in ("mean_policy_return",) if name in metrics}
    if "selection_bias" in metrics:
        fresh["return of the elites once more"] = score - metrics["selection_bias"]
    for name, x in fresh.items():
        if not abs(np.corrcoef(score.ravel(), x.ravel())[0, 1]) < 0.3:  # 5 sd of 256 pairs
            raise AssertionError(f"the {name} goes with the candidates' scores: it is not from fresh keys")


@oracle("C", "the candidates: their number, spread or key; the refit's mean, the smoothing, or the extra variance")
def search_distribution(module: ModuleType) -> None:
    """Where scores are equal, the mean's steps vary by variance / k, and the variance keeps 1 - 1 / k, k elites."""
    need(module, "population_size", "elite_fraction", "init_variance", "smoothing", "extra_variance")
    start = 4.0
    # Of 67 candidates all; 4, which 3.7 is rounded to.
    for k, smoothing, extra in ((67, 0.0, 0.0), (67, 0.75, 0.0), (67, 0.75, 2.0), (4, 0.0, 0.0), (4, 0.75, 0.0)):
        fraction = 1.0 if k == 67 else 0.055
        trial = Trial(module, COUNT, elite_fraction=fraction, init_variance=start, smoothing=smoothing,
                      extra_variance=extra)  # fmt: skip
        close("the variance at the start", part(trial.state, "variance"), np.full((SEEDS, 10), start))
        close("the mean at the start", part(trial.state, "mean"), np.zeros((SEEDS, 10)))
        steps, case = [], f"with {k} elites, smoothing {smoothing} and extra variance {extra}"
        for step in range(4):
            old, (trial.state, _, _) = trial.state, trial.update(trial.state, step)
            (mean, new_mean), (before, after) = (
                [np.asarray(part(s, name), np.float64) for s in (old, trial.state)] for name in ("mean", "variance")
            )
            wanted = (smoothing + (1 - smoothing) * (1 - 1 / k)) * before.mean() + extra * (1 - step / (UPDATES / 2))
            # A sample's variance varies by 2 / (k - 1) of its square; five standard deviations of the mean of all.
            spread = (1 - smoothing) * (1 - 1 / k) * np.sqrt(2 / (k - 1) * (before**2).sum()) / before.size
            close(f"the variance after generation {step} {case}", after.mean(), wanted, 5 * spread / max(1, wanted))
            steps.append((new_mean - mean) / np.sqrt(before / k) / (1 - smoothing))
        moved = np.stack(steps)  # [4, S, D] standard normal draws
        ratio = float(np.mean(moved**2))
        if not 0.85 < ratio < 1.15:
            raise AssertionError(f"{case} the mean's steps vary {ratio:.2f} x as much as the mean of {k} candidates")
        for what, pairs in (
            ("generations", moved[1:] * moved[:-1]),
            ("seeds", moved[:, 1:] * moved[:, :-1]),
            ("parameters", moved[..., 1:] * moved[..., :-1]),
        ):
            if not abs(pairs.mean()) < 0.15:
                raise AssertionError(f"{case} candidates are drawn alike in all {what}: a key or a draw is shared")


@oracle("C", "a metric, or the evaluation of the mean")
def known_c_metrics(module: ModuleType) -> None:
    """On one observation whose reward is +1 or -1 by the action, and on counted episodes, each metric follows."""
    trial = Trial(module, SECOND, init_variance=4.0)
    for step in range(2):  # at first the mean is 0, whose policy takes the first action
        old, (trial.state, got, answers) = trial.state, trial.update(trial.state, step)
        wanted = known_of_generation(old, trial.state, answers[-1][:, 0], got)
        for name, x in emitted(got, *wanted).items():
            close(f"{name} in generation {step}", x, wanted[name], 1e-3)
    counted = Trial(module, COUNT).run(2)
    if {"return_mean", "length_mean", "env_steps"} <= counted.keys():
        close("return_mean + length_mean", counted["return_mean"] + counted["length_mean"], np.full((2, SEEDS), 9.0))
        steps = 335 * counted["length_mean"].cumsum(axis=0)
        for name in ("return", "length"):  # candidates meet the same starts: their means are equal
            for how, wanted_ in (("std", 0.0), ("min", counted[f"{name}_mean"]), ("max", counted[f"{name}_mean"])):
                if f"{name}_{how}" in counted:
                    close(f"{name}_{how} of equal episodes", counted[f"{name}_{how}"], wanted_ + np.zeros((2, SEEDS)))
        close("env_steps, to 335 rollouts of their mean length", counted["env_steps"] / steps, np.ones((2, SEEDS)))


def known_of_generation(old: Any, new: Any, policy: np.ndarray, got: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What metrics `[S]` of a generation on `SECOND` follow from the states around it and the new `policy` `[S, A]`."""
    (mean, new_mean), (variance, new_variance) = (
        [np.asarray(part(s, name), np.float64) for s in (old, new)] for name in ("mean", "variance")
    )
    ratio, size = new_variance / variance, mean.shape[1]
    of_mean, of_variance = ((new_mean - mean) ** 2 / variance).sum(1) / 2, (ratio - 1 - np.log(ratio)).sum(1) / 2
    entropy = np.log(2 * math.pi * math.e * variance).sum(1) / 2
    ones = np.ones(SEEDS)
    wanted = {
        "entropy": entropy,
        "relative_entropy": entropy / size,
        "kl": of_mean + of_variance,
        "kl_mean_term": of_mean,
        "kl_variance_term": of_variance,
        "kl_refit": of_mean + of_variance,  # without smoothing or extra variance
        "std_min": np.sqrt(variance).min(1),
        "std_mean": np.sqrt(variance).mean(1),
        "mean_policy_return": np.where(policy.argmax(-1) == 1, 1.0, -1.0),
        "selection_bias": 0 * ones,
        "return_min": -ones,
        "return_max": ones,
        "return_count": 67 * ones,
        "elite_mean": ones,
        "elite_threshold": ones,
        "explained_variance": ones,
        "length_mean": ones,
        "length_std": 0 * ones,
        "episodes": 335 * ones,
        "nonfinite": 0 * ones,
    }
    if "return_mean" in got:  # of +1 and -1
        wanted["return_std"] = np.sqrt(1 - np.float64(got["return_mean"]) ** 2)
        if (np.abs(got["return_mean"]) == 1).any():
            del wanted["return_min"], wanted["explained_variance"]  # a seed whose candidates all do the same
    return wanted


@oracle("C", "batching over seeds")
def searches_apart(module: ModuleType) -> None:
    """What a seed finds does not depend on the seeds beside it, and no two find the same."""
    trial = Trial(module, COIN)
    new, _, _ = trial.update(trial.state, 0)
    alike, _, _ = trial.update(jax.tree.map(lambda x: x[jnp.full(SEEDS, 3)], trial.state), 0)
    found = np.asarray(part(new, "mean"))
    close("the mean of a seed among copies of itself", np.asarray(part(alike, "mean"))[3], found[3], 1e-5)
    distinct = len({x.tobytes() for x in found})
    if distinct < SEEDS:
        raise AssertionError(f"{SEEDS} seeds give {distinct} different means")


# Contract-level checks of agents of action values. They read `params`, `target_params` and `buffer` of the state.

# One step from state 0, cut by the time limit; what it leads to shows something else.
ONWARD = tables(obs=np.eye(4) - 0.5, reward=[[100.0, 100.0]] * 4, next=[1] * 4, truncated=True)

# One state for ever, whose two actions pay -1: what was best becomes the worst.
SEESAW = tables(obs=np.ones((4, 4)), reward=[[-1.0, -1.2]] * 4, next=[0] * 4)


def part(state: Any, name: str) -> Any:
    """A field of the state. Raises CannotAskError if it has none of that name."""
    if not hasattr(state, name):
        raise CannotAskError(f"its state has no {name}")
    return getattr(state, name)


def vectors(params: Any) -> np.ndarray:
    """Parameters of `S` seeds as `[S, P]`."""
    return np.concatenate([np.asarray(x, np.float64).reshape(SEEDS, -1) for x in jax.tree.leaves(params)], axis=1)


def same(a: Any, b: Any) -> bool:
    """Whether two trees are equal, bit for bit."""
    return all((np.asarray(x) == np.asarray(y)).all() for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True))


@oracle("Q", "the keys of exploration and of replay: used twice over environments, steps, updates or seeds")
def fresh_actions(module: ModuleType) -> None:
    """At epsilon 1 actions are fair coins, drawn anew each time: the variance of their mean over 77 is 1 / 77."""
    need(module, "start_e", "end_e")
    metrics = emitted(Trial(module, COIN, epsilon=1.0).run(4), "reward_mean", "sample_age")
    age = metrics.get("sample_age")
    if age is not None and max((age[1:] == age[:-1]).mean(), (age[:, 1:] == age[:, :-1]).mean()) > 0.5:
        raise AssertionError("updates or seeds learn from the same slots of the replay buffer: their key is not fresh")
    reward = emitted(metrics, "reward_mean")["reward_mean"]
    if (reward[1:] == reward[:-1]).mean() > 0.5:
        raise AssertionError("updates repeat the same actions: the key is not advanced")
    if (reward[:, 1:] == reward[:, :-1]).mean() > 0.5:
        raise AssertionError("seeds repeat the same actions: the key is not theirs")
    ratio = 77 * float(np.mean(reward**2))
    if not 0.65 < ratio < 1.35:
        raise AssertionError(
            f"mean actions vary {ratio:.1f} x as much as fair coins: keys are shared, or epsilon is not 1"
        )
    trial, excess = Trial(module, COIN, epsilon=0.5), []
    for step in range(4):
        trial.state, metrics, (q, *_) = trial.update(trial.state, step)
        excess.append(metrics["reward_mean"] - 0.5 * np.where(q[:, 0].argmax(-1) == 0, 1.0, -1.0))
    if not abs(np.mean(excess)) < 0.03:  # 256 means of 77: within .03 of 0 but once in a million
        raise AssertionError(
            f"at epsilon .5 actions pay {np.mean(excess):.2f} more than half greedy and half random ones: the two "
            "draws are not independent, or the parts are not halves"
        )


@oracle("Q", "the target network")
def target_network(module: ModuleType) -> None:
    """Synced at every second update: its old self after the first, the online one, or tau of it, after the second."""
    need(module, "target_network_frequency")
    trial = Trial(module, COUNT)
    first = part(trial.state, "target_params")
    if not same(first, part(trial.state, "params")):
        raise AssertionError("the target network does not begin as the online one")
    for step in range(4):
        old = part(trial.state, "target_params")
        trial.state, metrics, _ = trial.update(trial.state, step)
        new, online = part(trial.state, "target_params"), part(trial.state, "params")
        if step % 2 == 0 and not same(new, old):
            raise AssertionError("the target network moves where no sync is due")
        if step % 2 == 0 and same(new, online):
            raise AssertionError("the target network is the online one where no sync is due")
        if step % 2 == 1 and not same(new, online):
            never = "never moves" if same(new, first) else "is not the online one after a sync"
            raise AssertionError(f"the target network {never}")
        for name in {"target_distance", "target_step"} & metrics.keys():
            distance = np.linalg.norm(vectors(online) - vectors(old), axis=1)
            close(f"{name} in update {step}", metrics[name], distance if step % 2 else np.full(SEEDS, np.nan))
    if "tau" not in settings_in(module):
        return
    trial = Trial(module, COUNT, tau=0.25)
    for step in range(2):
        old, (trial.state, _, _) = part(trial.state, "target_params"), trial.update(trial.state, step)
    mixed = jax.tree.map(lambda x, y: 0.25 * x + 0.75 * y, trial.state.params, old)
    for (path, x), y in zip(
        jax.tree_util.tree_leaves_with_path(mixed), jax.tree.leaves(trial.state.target_params), strict=True
    ):
        close(f"the target's {jax.tree_util.keystr(path)} after a sync with tau .25", y, x)


@oracle("Q", "the gradient: of the online network at the states visited, and of nothing else")
def semi_gradient(module: ModuleType) -> None:
    """The first step moves every parameter to where it raises Q(s, a), whose target is far above: Adam's, by how much.

    All transitions are alike, so the gradient of half the squared error is (Q - target) times that of Q(s, a).
    """
    rate, gamma, eps = 1e-2, 0.9, 30.0
    trial = Trial(module, ONWARD, rate, epsilon=0.0, gamma=gamma, adam_eps=eps)
    new, _, (q, _, _, _) = trial.update(trial.state, 0)
    before, after = part(trial.state, "params"), part(new, "params")
    seeds, action = np.arange(SEEDS), q[:, 0].argmax(-1)

    def value(params: Any, state: Any, action: Any) -> Any:
        agent = module.make(trial.config, Tabular(ONWARD), ONWARD)
        return agent.value(dataclasses.replace(state, params=params), jnp.asarray(ONWARD.obs[0]))[action]

    gradient = jax.jit(jax.vmap(jax.grad(value)))(before, trial.state, action)
    error = 100 + gamma * q[:, 1].max(-1) - q[seeds, 0, action]
    off: dict[float, list[float]] = {1.0: [], 2.0: []}
    for (path, g), x, y in zip(
        jax.tree_util.tree_leaves_with_path(gradient), jax.tree.leaves(before), jax.tree.leaves(after), strict=True
    ):
        g, moved = np.asarray(g), np.asarray(y) - np.asarray(x)
        counts = np.abs(g) > 1e-3 * np.abs(g).max()
        if (np.sign(moved) != np.sign(g))[counts].mean() > 0.02:
            where = jax.tree_util.keystr(path)
            raise AssertionError(f"{where} does not move along the gradient of Q(s, a): another gradient is in it")
        g = g * error.reshape(-1, *[1] * (g.ndim - 1))
        for scale, worst in off.items():  # half the squared error, or all of it
            worst.append(float(np.abs(moved - rate * scale * g / (scale * np.abs(g) + eps)).max() / rate))
    furthest = min(max(worst) for worst in off.values())
    if {"adam_eps", "gamma"} <= settings_in(module) and not furthest < 0.02:
        raise AssertionError(
            f"a parameter is {furthest:.2g} learning rates away from where Adam's first step on the squared error leads"
        )


@oracle("Q", "what an update makes of its steps: targets, the gradient step, the return after each action; or metrics")
def known_q_targets(module: ModuleType) -> None:
    """Where each step is known beforehand, what was paid, what followed, and the smallest and largest target are too.

    Greedy throughout, one gradient step at the end of each update, on a buffer of just this update's 77 steps.
    """
    gamma = 0.9
    need(module, "gamma", "start_e", "end_e", "train_frequency")
    trial = Trial(module, CYCLE, 1e-3, epsilon=0.0, gamma=gamma)
    leads_to, reward = CYCLE.next[:, 0], CYCLE.reward[:, 0].astype(np.float64)
    terminated, truncated = CYCLE.terminated[:, 0], CYCLE.truncated[:, 0]
    ended = terminated | truncated
    agent = module.make(trial.config, Tabular(CYCLE), CYCLE)

    @jax.jit
    @jax.vmap
    def of_target(state: Any) -> Any:
        return jax.vmap(partial(agent.value, dataclasses.replace(state, params=state.target_params)))(CYCLE.obs)

    returns, episode = [], []
    for step in range(3):
        old = trial.state
        part(old, "target_params")
        trial.state, got, (q, *_) = trial.update(old, step)
        target_q, q = np.asarray(of_target(old), np.float64), q.astype(np.float64)
        greedy = np.take_along_axis(target_q, q.argmax(-1)[..., None], -1)[..., 0]  # [S, 4]
        best = q.max(-1)
        target = reward + gamma * ~terminated * greedy[:, leads_to]
        at = (11 * step + np.arange(11)) % 4
        excess, count = np.zeros(SEEDS), 0
        for s in at:
            episode.append((best[:, s], reward[s]))
            if ended[s]:
                # From a time limit on, the last action's own value stands for what would have followed.
                follows = best[:, s] if truncated[s] else reward[s]
                excess += best[:, s] - follows
                for value, paid in reversed(episode[:-1]):
                    follows = paid + gamma * follows
                    excess += value - follows
                count += len(episode)
                returns.append(sum(paid for _, paid in episode))
                episode = []
        before, after = (vectors(part(s, "params")) for s in (old, trial.state))
        norms = np.linalg.norm(after - before, axis=1), np.linalg.norm(before, axis=1)
        wanted = {"overestimation": excess / count, "episodes": np.full(SEEDS, 7 * int(ended[at].sum())),
                  "gradient_steps": np.ones(SEEDS), "update_ratio": norms[0] / norms[1]}  # fmt: skip
        last = np.repeat(returns, 7)[-100:]
        for name, x in (("reward", reward[at]), ("return", last), ("length", np.full(1, 2.0))):
            wanted |= {f"{name}_{how}": np.full(SEEDS, getattr(x, how)()) for how in ("mean", "std", "min", "max")}
        for name, x in emitted(got, *wanted).items():
            close(f"{name} in update {step}", x, wanted[name], 1e-3)
        # 31 of the 77 steps are learned from: now and then one of the four states is missing.
        for name, x in (("target", target), ("value", best), ("td_error", target - best)):
            for how in ("min", "max"):
                if f"{name}_{how}" in got:
                    off = np.abs(got[f"{name}_{how}"] - getattr(x, how)(1)) > 1e-3
                    if off.mean() > 0.2:
                        raise AssertionError(
                            f"{name}_{how} in update {step} is {got[f'{name}_{how}'][off][0]:.5g}, and should be "
                            f"{getattr(x, how)(1)[off][0]:.5g}"
                        )


@oracle("Q", "which parameters act and choose the next action (the newest), or value it (the target network's)")
def newest_parameters(module: ModuleType) -> None:
    """After a gradient step in mid-update its result acts, and chooses in double Q-learning; a sync there counts too.

    All transitions between two gradient steps are alike, so that the first of two in one update ends where a lone one
    does. The target network then moves half of the way to it.
    """
    need(
        module, "start_e", "end_e", "train_frequency", "cycles_per_update", "target", "target_network_frequency", "tau"
    )
    lone = Trial(module, SEESAW, 0.1, epsilon=0.0)
    trial = Trial(module, SEESAW, 0.1, epsilon=0.0, cycles=2, tau=0.5, target_network_frequency=77)
    stepped, _, (q, _, moved, _) = lone.update(lone.state, 0)
    q, moved, seeds = q[:, 0], moved[:, 0], np.arange(SEEDS)
    first, second = q.argmax(-1), moved.argmax(-1)
    _, got, _ = trial.update(trial.state, 0)
    reward = np.asarray(SEESAW.reward)[0]
    mean_reward = (reward[first] + reward[second]) / 2
    emitted(got, "reward_mean", "target_mean")
    if "reward_mean" in got:
        close("reward_mean with a gradient step in mid-update", got["reward_mean"], mean_reward)
    if "value_mean" in got:
        learned = (q[seeds, first] + moved[seeds, second]) / 2
        close("value_mean with a gradient step in mid-update", got["value_mean"], learned, 1e-3)
    if "target_mean" in got and "n_step" in settings_in(module):
        half = jax.tree.map(lambda x, y: (x + y) / 2, part(lone.state, "params"), part(stepped, "params"))
        agent = module.make(lone.config, Tabular(SEESAW), SEESAW)
        synced = jax.jit(jax.vmap(lambda s: agent.value(s, jnp.asarray(SEESAW.obs[0]))))(
            dataclasses.replace(stepped, params=half)
        )
        ahead = trial.config.gamma * (q[seeds, first] + np.asarray(synced)[seeds, second]) / 2
        close("target_mean with a gradient step in mid-update", got["target_mean"], mean_reward + ahead, 1e-3)


@oracle("Q", "a metric")
def known_q_metrics(module: ModuleType) -> None:
    """On one observation whose reward is +1 or -1, each metric follows from Q before and after, and epsilon."""
    need(module, "start_e", "end_e", "train_frequency")
    falls = Trial(module, NOISE, epsilon=1.0, end_e=0.2).run(12)
    if "epsilon" in falls and "exploration_fraction" in settings_in(module):
        # Each of the 11 steps in 7 environments has its own, until half of the training is over.
        steps = 77 * np.arange(12)[:, None] + 7 * np.arange(11)
        line = np.clip(1 - 0.8 * steps / (77 * UPDATES / 2), 0.2, 1).mean(1)
        close("epsilon over 12 of 20 updates", falls["epsilon"][:, 0], line, 1e-3)
    for epsilon in (0.5, 0.0):
        trial = Trial(module, NOISE, epsilon=epsilon)
        trial.run(3)  # to where the target network is not the online one
        _, got, (q, _, new_q, _) = trial.update(trial.state, 3)
        q, new_q = q[:, 0].astype(np.float64), new_q[:, 0].astype(np.float64)
        low, floor = epsilon / 2, max(epsilon, 0.01) / 2
        entropy = -sum(p * math.log(p) for p in (1 - low, low) if p)
        churn = (q.argmax(-1) != new_q.argmax(-1)).astype(float)
        wanted = {
            "epsilon": np.full(SEEDS, epsilon),
            "entropy": np.full(SEEDS, entropy),
            "relative_entropy": np.full(SEEDS, entropy / math.log(2)),
            "churn": churn,
            "kl": churn * (1 - 2 * floor) * math.log((1 - floor) / floor),
            "gradient_steps": np.ones(SEEDS),
            "buffer_fill": np.ones(SEEDS),
            "episodes": np.full(SEEDS, 77),
            "reward_min": np.full(SEEDS, -1),
            "reward_max": np.full(SEEDS, 1),
            "nonfinite": np.zeros(SEEDS),
        }
        if {"td_error_mean", "target_mean", "value_mean"} <= got.keys():
            wanted["td_error_mean"] = np.float64(got["target_mean"]) - got["value_mean"]
        if epsilon == 0:
            wanted |= {"action_entropy": np.zeros(SEEDS), "explained_variance": np.zeros(SEEDS)}
            wanted |= {"value_mean": q.max(-1), "overestimation": q.max(-1) - got.get("reward_mean", np.nan)}
        for name, x in emitted(got, *wanted).items():
            close(f"{name} at epsilon {epsilon}", x, wanted[name], 1e-3)


# What no training survives.
BROKEN = tables(obs=np.zeros((4, 4)), reward=np.full((4, 2), np.nan), next=[0] * 4, terminated=True)


@oracle("AQC", "the metric `nonfinite`")
def nonfinite_shows(module: ModuleType) -> None:
    """It is 1 where a reward is not a number, and 0 where all is well."""
    for params, wanted in ((COUNT, 0), (BROKEN, 1)):
        found = emitted(Trial(module, params).run(1), "nonfinite")["nonfinite"][-1]
        close(f"nonfinite where rewards are {'' if wanted else 'not '}NaN", found, np.full(SEEDS, wanted))
