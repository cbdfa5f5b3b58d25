"""Level 0: checks that need no training, or one update of it.

Those over the contract run for every agent of their kind. Those over a function of the agent's file run where there is
one of that name with those parameters, and are reported as not checked where it has not; probes/README.md lists them.
"""

import dataclasses
import functools
import inspect
import itertools
import math
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from probes.environments import Tables, Tabular, tables

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


def close(what: str, got: Any, wanted: Any, tolerance: float = 1e-4) -> None:
    """Raise AssertionError, in one line, unless `got` is `wanted`."""
    got, wanted = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
    if got.shape != wanted.shape:
        raise AssertionError(f"{what} has the shape {got.shape}, not {wanted.shape}")
    wrong = ~(np.abs(got - wanted) <= tolerance * np.maximum(1, np.abs(wanted)))
    if wrong.any():
        at = tuple(np.argwhere(wrong)[0])
        where = f" at {[int(i) for i in at]}" if at else ""
        raise AssertionError(f"{what} is {got[at]:.5g}{where}, and should be {wanted[at]:.5g}")


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


@oracle("A", "the shuffling into minibatches", minibatch_indices="key epochs batch_size num_minibatches")
def each_sample_once(module: ModuleType) -> None:
    """Every epoch has each sample exactly once, in an order of its own."""
    indices = np.asarray(module.minibatch_indices(jax.random.key(0), 3, 77, 7))
    close("the shape of minibatch_indices", indices.shape, (3, 7, 11))
    for epoch in indices.reshape(3, 77):
        close("a sample's count in an epoch", np.bincount(epoch, minlength=77), np.ones(77))
    if (indices[0] == indices[1]).all():
        raise AssertionError("two epochs have the same order")


@oracle("A", "explained variance", explained_variance="target value")
def explained_variance(module: ModuleType) -> None:
    """1 - Var[target - value] / Var[target]; NaN for constant targets."""
    target, value = jnp.array([0.0, 2.0, 4.0]), jnp.array([1.0, 2.0, 3.0])
    close("explained_variance", module.explained_variance(target, value), 0.75)
    if not np.isnan(module.explained_variance(jnp.ones(3), value)):
        raise AssertionError("explained_variance of constant targets is a number; it is undefined, NaN")


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
    config = module.Config(norm_adv=False, clip_vloss=True, vf_coef=0.5, ent_coef=0.1, clip_coef=0.2)
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
        obs = jnp.asarray(params.obs)
        answers = [(jax.vmap(partial(f, s))(obs)) for s in (state, new) for f in (agent.value, agent.policy)]
        return new, metrics, answers

    over_seeds = jax.vmap(update, (None, None, 0, None))
    return jax.jit(jax.vmap(init, (None, None, 0))), jax.jit(over_seeds)


class Trial:
    """A few updates of an agent on a small task, `S` seeds side by side; a setting its Config lacks stays unset."""

    def __init__(self, module: ModuleType, params: Tables, learning_rate: float = 1e-2):
        fields = {f.name for f in dataclasses.fields(module.Config)}
        wanted = {
            "num_envs": 7,
            "num_steps": 11,
            "num_minibatches": 7,
            "hidden_sizes": (16, 16),
            "learning_rate": learning_rate,
            "anneal_lr": True,
            "total_timesteps": 77 * UPDATES,
        }
        self.config = module.Config(**{k: v for k, v in wanted.items() if k in fields})
        init, self.program = programs(module)
        self.params = params
        self.state = init(self.config, params, jax.vmap(jax.random.key)(jnp.arange(SEEDS)))

    def update(self, state: Any, step: int) -> tuple[Any, dict[str, np.ndarray], list[np.ndarray]]:
        """The new state, metrics `[S]`, and [value, policy before, value, policy after] `[S, n, ...]`."""
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


@oracle("A", "random keys: used twice over environments, steps, updates or seeds")
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


@oracle("A", "the recording of episodes, or the averaging of metrics")
def episode_metrics(module: ModuleType) -> None:
    """Episodes return 6 in three steps or 7 in two: return and length add up to 9."""
    last = {name: x[-1] for name, x in Trial(module, COUNT).run(3).items()}
    known = {"return_min": 6, "return_max": 7, "length_min": 2, "length_max": 3, "env_steps": 231}
    for name, x in emitted(last, *known).items():
        close(name, x, np.full(SEEDS, known[name]))
    if {"return_mean", "length_mean"} <= last.keys():
        close("return_mean + length_mean", last["return_mean"] + last["length_mean"], np.full(SEEDS, 9))


@oracle("A", "a metric, or the rewards that are learned from")
def known_metrics(module: ModuleType) -> None:
    """On one observation whose reward is +1 or -1, each metric follows from V and the policy before and after."""
    trial = Trial(module, NOISE)
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


@oracle("A", "the learning rate's schedule")
def schedule(module: ModuleType) -> None:
    """With anneal_lr the first, the middle and the last of 20 updates move the value by 1 : .5 : .05."""
    if "anneal_lr" not in {f.name for f in dataclasses.fields(module.Config)}:
        raise CannotAskError("its Config lacks anneal_lr")
    trial = Trial(module, COUNT, learning_rate=1e-4)
    moved = []
    for step in (0, UPDATES // 2, UPDATES - 1):
        _, _, (before, _, after, _) = trial.update(trial.state, step)
        moved.append(np.abs(after - before).mean())
    if not moved[0] > 0:
        raise AssertionError("the first update does not move the value")
    close("how far the middle update moves the value, to the first", moved[1] / moved[0], 0.5, 0.05)
    close("how far the last update moves the value, to the first", moved[2] / moved[0], 1 / UPDATES, 0.02)


@oracle("A", "batching over seeds")
def seeds_apart(module: ModuleType) -> None:
    """What a seed learns does not depend on the seeds beside it, and no two learn the same."""
    trial = Trial(module, COUNT)
    _, _, (_, _, values, _) = trial.update(trial.state, 0)
    _, _, (_, _, alike, _) = trial.update(jax.tree.map(lambda x: x[jnp.full(SEEDS, 3)], trial.state), 0)
    close("the value of a seed among copies of itself", alike[3], values[3], 1e-5)
    distinct = len({x.tobytes() for x in values})
    if distinct < SEEDS:
        raise AssertionError(f"{SEEDS} seeds give {distinct} different values")


@oracle("A", "the gradient's path to a parameter")
def every_parameter_moves(module: ModuleType) -> None:
    """One update changes every array of parameters."""
    trial = Trial(module, COUNT)
    new, _, _ = trial.update(trial.state, 0)
    before, after = (jax.tree_util.tree_leaves_with_path(getattr(s, "params", None)) for s in (trial.state, new))
    if not before:
        raise CannotAskError("its state has no params")
    for (path, old), (_, x) in zip(before, after, strict=True):
        if (np.asarray(old) == np.asarray(x)).all():
            raise AssertionError(f"the parameter {jax.tree_util.keystr(path)} does not move")
