"""Oracles over the contract: they run for every agent of their kind, on a few updates of it."""

import dataclasses
import functools
import math
import re
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probes.environments import Tables, Tabular, tables
from probes.oracles.base import (
    COIN,
    COUNT,
    CYCLE,
    DEFINITION,
    LIKENESS,
    NOISE,
    SECOND,
    SEEDS,
    CannotAskError,
    Unknown,
    close,
    emitted,
    need,
    oracle,
    part,
    same,
    settings_in,
    vectors,
)
from rlref.contract import ALL, CEM, DQN, GRADIENT, PPO
from rlref.errors import line_of
from rlref.runs import compiling

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
    quickly = partial(jax.jit, compiler_options=compiling.options(compiling.ONCE))  # little is computed with them
    return quickly(jax.vmap(init, (None, None, 0))), quickly(over_seeds)


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
            "normalize_observations": False,
            "scale_rewards": False,
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
            agent = module.make(self.config, Tabular(params), params)
        except ValueError as error:
            raise CannotAskError(f"its make refuses the trial's settings: {error}") from error
        self.num_updates, steps = agent.num_updates, agent.steps_per_update
        own = "num_generations" not in fields and steps != 77 * cycles
        self.why = f"one update of it takes {steps} steps, whatever is set" if own else ""
        init, self.program = programs(module)
        self.params = params
        self.state = init(self.config, params, jax.vmap(jax.random.key)(jnp.arange(SEEDS)))

    def update(self, state: Any, step: int) -> tuple[Any, dict[str, np.ndarray], list[np.ndarray]]:
        """The new state, metrics `[S]`, and [value, policy before, value, policy after] `[S, n, ...]`.

        Of an agent without values, the policies alone. Raises CannotAskError after the last of its updates.
        """
        if step >= self.num_updates:
            raise CannotAskError(f"its training is of {self.num_updates} update{'s' * (self.num_updates > 1)}")
        state, metrics, answers = self.program(self.config, self.params, state, np.int32(step))
        return state, Unknown(self.why) if self.why else jax.device_get(metrics), jax.device_get(answers)

    def run(self, updates: int) -> dict[str, np.ndarray]:
        """Metrics `[updates, S]`."""
        metrics = []
        for step in range(updates):
            self.state, found, _ = self.update(self.state, step)
            metrics.append(found)
        return metrics[0] and {name: np.stack([m[name] for m in metrics]) for name in metrics[0]}


@oracle(ALL, "random keys: one is used twice, or comes from a constant")
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


# Nothing pays anything.
IDLE = tables(obs=np.zeros((4, 4)), reward=np.zeros((4, 2)), next=[0] * 4, terminated=True)


@oracle(ALL, "the environment's parameters: those given to `make` are not used")
def given_parameters(module: ModuleType) -> None:
    """Where nothing pays anything, no episode returns 6 or 7, nor a step 3 or more, as by the environment's default.

    Less than that may have another cause, which others find.
    """
    for name, x in emitted(Trial(module, IDLE).run(1), "return_max", "reward_max").items():
        if (x[-1] > 2.5).any():
            raise AssertionError(f"{name} where all rewards are 0 is {x[-1].max():.3g}")


@oracle(GRADIENT, "random keys: used twice over environments, steps, updates or seeds")
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


@oracle(PPO, "the sampling of actions: a draw shared by environments, steps or seeds, or not the policy's odds")
def fresh_samples(module: ModuleType) -> None:
    """Actions that pay +1 and -1 vary about the policy's mean as independent draws do, p (1 - p)."""
    trial, excess = Trial(module, COIN, learning_rate=0.0), []
    for step in range(4):
        trial.state, metrics, (_, policy, *_) = trial.update(trial.state, step)
        reward = emitted(metrics, "reward_mean")["reward_mean"]
        mean = 2.0 * policy[:, 0, 0] - 1
        excess.append((reward - mean) / np.sqrt((1 - mean**2) / 77))
    off = np.stack(excess)
    ratio = float(np.mean(off**2))
    if not 0.65 < ratio < 1.35:  # 256 means, as in fresh_randomness
        raise AssertionError(f"mean actions vary {ratio:.1f} x as much as independent draws from the policy")
    for what, pairs in (("updates", off[1:] * off[:-1]), ("seeds", off[:, 1:] * off[:, :-1])):
        if not abs(pairs.mean()) < 0.35:  # 5 standard deviations of 192 products
            raise AssertionError(f"actions are drawn alike in all {what}")


@oracle(GRADIENT, "the recording of episodes, or the averaging of metrics", DEFINITION)
def episode_metrics(module: ModuleType) -> None:
    """Episodes return 6 in three steps or 7 in two: return and length add up to 9."""
    last = {name: x[-1] for name, x in Trial(module, COUNT).run(3).items()}
    known = {"return_min": 6, "return_max": 7, "length_min": 2, "length_max": 3, "env_steps": 231}
    for name, x in emitted(last, *known).items():
        close(name, x, np.full(SEEDS, known[name]))
    if {"return_mean", "length_mean"} <= last.keys():
        close("return_mean + length_mean", last["return_mean"] + last["length_mean"], np.full(SEEDS, 9))


KNOWN: dict[str, Any] = {"gamma": 0.9, "gae_lambda": 0.7}


@oracle(PPO, "the recording of a rollout's values, rewards and episodes", DEFINITION)
def known_rollout(module: ModuleType) -> None:
    """Where each step is known beforehand, what is reported of it is too; where nothing is learned, nothing moves."""
    need(module, "num_envs", "num_steps")
    compare_rollouts(module, "value", "reward", "return", "length", "episodes")
    _, got = without_learning(module)
    for name in ("approx_kl", "kl", "clip_fraction", "update_ratio"):
        if name in got:
            close(f"{name} at a learning rate of 0", got[name], np.zeros(SEEDS), 1e-3)


@oracle(PPO, "what an update makes of a rollout: next values, advantages and targets, or their metrics", LIKENESS)
def known_targets(module: ModuleType) -> None:
    """Where each step is known beforehand, advantages and targets follow from the values before the update."""
    need(module, *KNOWN, "num_envs", "num_steps")
    compare_rollouts(module, "advantage", "target", "value_bias", "explained_variance")
    # Where nothing is learned every ratio is 1, and each minibatch weighs the same.
    trial, got = without_learning(module)
    fields, zeros = settings_in(module), np.zeros(SEEDS)
    wanted = {"policy_loss": zeros}
    if {"advantage_mean", "advantage_std"} <= got.keys():
        wanted["value_loss"] = 0.5 * (got["advantage_mean"] ** 2 + got["advantage_std"] ** 2)
    if {"vf_coef", "ent_coef"} <= fields and {"value_loss", "entropy"} <= got.keys():
        wanted["loss"] = trial.config.vf_coef * got["value_loss"] - trial.config.ent_coef * got["entropy"]
    if {"update_epochs", "num_minibatches"} <= fields:
        wanted["gradient_steps"] = zeros + trial.config.update_epochs * trial.config.num_minibatches
    for name, x in got.items():
        if name in wanted:
            close(f"{name} at a learning rate of 0", x, wanted[name], 1e-3)


def without_learning(module: ModuleType) -> tuple[Trial, dict[str, np.ndarray]]:
    """A trial on CYCLE at a learning rate of 0, and the metrics of its first update."""
    need(module, "learning_rate")
    trial = Trial(module, CYCLE, learning_rate=0.0, **KNOWN)
    return trial, trial.update(trial.state, 0)[1]


def of(wanted: dict[str, Any], asked: tuple[str, ...]) -> list[str]:
    """The metrics of `wanted` that are `asked` by their name, or by that of what they sum up."""
    return [name for name in wanted if name in asked or re.sub("_(mean|std|min|max)$", "", name) in asked]


def compare_rollouts(module: ModuleType, *asked: str) -> None:
    """Raise AssertionError unless three updates on CYCLE report, of the metrics that are `asked`, what follows."""
    gamma, gae_lambda = KNOWN.values()
    trial = Trial(module, CYCLE, learning_rate=3e-2, **KNOWN)
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
        for name, x in emitted(got, *of(wanted, asked)).items():
            close(f"{name} in update {step}", x, wanted[name], 1e-3)


@oracle(PPO, "a metric, or the rewards that are learned from", DEFINITION)
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


@oracle(PPO, "the stored log-probability")
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


@oracle(GRADIENT, "the learning rate's schedule", LIKENESS)
def schedule(module: ModuleType) -> None:
    """With anneal_lr the first, the middle and the last of 20 updates move the value by 1 : .5 : .05."""
    need(module, "anneal_lr", "total_timesteps", "learning_rate")
    if "train_frequency" in settings_in(module):
        need(module, "start_e", "end_e")  # else updates may act differently, and move the value elsewhere
    trial = Trial(module, COUNT, learning_rate=1e-4)
    moved = []
    for step in (0, UPDATES // 2, UPDATES - 1):
        _, _, (before, _, after, _) = trial.update(trial.state, step)
        moved.append(np.abs(after - before).mean())
    if not moved[0] > 0:
        raise AssertionError("the first update does not move the value")
    close("how far the middle update moves the value, to the first", moved[1] / moved[0], 0.5, 0.05)
    close("how far the last update moves the value, to the first", moved[2] / moved[0], 1 / UPDATES, 0.02)


@oracle(GRADIENT, "batching over seeds")
def seeds_apart(module: ModuleType) -> None:
    """What a seed learns does not depend on the seeds beside it, and no two learn the same."""
    trial = Trial(module, COUNT)
    _, _, (_, _, values, policies) = trial.update(trial.state, 0)
    _, _, (_, _, alike, _) = trial.update(jax.tree.map(lambda x: x[jnp.full(SEEDS, 3)], trial.state), 0)
    close("the value of a seed among copies of itself", alike[3], values[3], 1e-5)
    # Where one update is the whole training, values may end at the truth, to the last bit.
    distinct = len({x.tobytes() + (y.tobytes() if trial.num_updates == 1 else b"")
                    for x, y in zip(values, policies, strict=True)})  # fmt: skip
    if distinct < SEEDS:
        raise AssertionError(f"{SEEDS} seeds give {distinct} different values")


@oracle(GRADIENT, "the gradient's path to a parameter")
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


@oracle(
    CEM, "the candidates: their number, spread or key; the refit's mean, the smoothing, or the extra variance", LIKENESS
)
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


@oracle(CEM, "a metric, or the evaluation of the mean", DEFINITION)
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


@oracle(CEM, "batching over seeds")
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


@oracle(
    DQN, "exploration: which actions it draws, how often; or keys used twice over environments, steps, updates, seeds"
)
def fresh_actions(module: ModuleType) -> None:
    """At epsilon 1 actions are fair coins, drawn anew each time: the variance of their mean over 77 is 1 / 77."""
    need(module, "start_e", "end_e")
    metrics = emitted(Trial(module, COIN, epsilon=1.0).run(4), "reward_mean", "sample_age")
    age = metrics.get("sample_age")
    if age is not None and max((age[1:] == age[:-1]).mean(), (age[:, 1:] == age[:, :-1]).mean()) > 0.5:
        raise AssertionError("updates or seeds learn from the same slots of the replay buffer: their key is not fresh")
    reward = emitted(metrics, "reward_mean")["reward_mean"]
    if (np.abs(reward) == 1).all():
        raise AssertionError("at epsilon 1 one of two actions is always taken, and the other never")
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


# A round of three states without an end. Any other order of two rewards is worth more or less than all right ones.
ROUND = tables(obs=np.eye(4), reward=[[10.0] * 2, [0.0] * 2, [-10.0] * 2, [0.0] * 2], next=[1, 2, 0, 0])


@oracle(DQN, "the replay buffer: its order, where it is full and begins anew", DEFINITION)
def replay_order(module: ModuleType) -> None:
    """Sums of two rewards in a row are of steps that followed each other, also after the buffer has gone round."""
    need(module, "gamma", "n_step", "buffer_size", "train_frequency", "learning_starts", "num_envs")
    # Three updates fill the buffer; the network stays as it began, so that each target is known.
    trial = Trial(module, ROUND, learning_rate=0.0, gamma=0.9, n_step=2, buffer_size=231)
    reward = ROUND.reward[:3, 0]
    for step in range(8):
        trial.state, got, (q, *_) = trial.update(trial.state, step)
        best = q.max(-1)[:, :3]
        target = reward + 0.9 * np.roll(reward, -1) + 0.81 * np.roll(best, -2, axis=1)
        metrics = emitted(got, "target_min", "target_max")
        for name, sign in (("target_min", -1), ("target_max", 1)):
            bound = getattr(target, name[-3:])(1)
            off = sign * (metrics.get(name, bound) - bound)
            if off.max() > 1e-2:
                at = off.argmax()
                raise AssertionError(
                    f"{name} of 2-step returns in update {step} is {metrics[name][at]:.5g}, and steps that follow each "
                    f"other give {bound[at]:.5g}: the buffer's order is lost where it begins anew"
                )


@oracle(DQN, "the target network")
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


@oracle(DQN, "the gradient: of the online network at the states visited, and of nothing else")
def semi_gradient(module: ModuleType) -> None:
    """The first step moves every parameter to where it raises Q(s, a), whose target is far above."""
    first_step(module)


@oracle(DQN, "the size of the gradient step: the loss, or the optimiser", LIKENESS)
def first_step_size(module: ModuleType) -> None:
    """The first step is Adam's, on the squared error or half of it.

    All transitions are alike, so the gradient of half the squared error is (Q - target) times that of Q(s, a).
    """
    need(module, "adam_eps", "gamma")
    furthest = first_step(module)
    if not furthest < 0.02:
        raise AssertionError(
            f"a parameter is {furthest:.2g} learning rates away from where Adam's first step on the squared error leads"
        )


def first_step(module: ModuleType) -> float:
    """How far a parameter ends from where Adam leads, in learning rates; AssertionError for a wrong direction."""
    need(module, "start_e", "end_e")  # else it is not known which action is taken
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
    return min(max(worst) for worst in off.values())


@oracle(DQN, "the recording of steps: rewards, episodes, the return after each action", DEFINITION)
def known_steps(module: ModuleType) -> None:
    """Where each step is known beforehand, what is reported of rewards, episodes and what followed is too."""
    compare_steps(module, "overestimation", "episodes", "gradient_steps", "update_ratio", "reward", "return", "length")


@oracle(DQN, "what an update makes of its steps: the targets, or their metrics", LIKENESS)
def known_q_targets(module: ModuleType) -> None:
    """Where each step is known beforehand, the smallest and largest target, value and error are too."""
    compare_steps(module, "target", "value", "td_error")


def compare_steps(module: ModuleType, *asked: str) -> None:
    """Raise AssertionError unless three updates on CYCLE report, of the metrics that are `asked`, what follows.

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
        for name, x in emitted(got, *of(wanted, asked)).items() if of(wanted, asked) else ():
            close(f"{name} in update {step}", x, wanted[name], 1e-3)
        # 31 of the 77 steps are learned from: now and then one of the four states is missing.
        for name, x in (("target", target), ("value", best), ("td_error", target - best)):
            for how in ("min", "max"):
                if name in asked and f"{name}_{how}" in got:
                    off = np.abs(got[f"{name}_{how}"] - getattr(x, how)(1)) > 1e-3
                    if off.mean() > 0.2:
                        raise AssertionError(
                            f"{name}_{how} in update {step} is {got[f'{name}_{how}'][off][0]:.5g}, and should be "
                            f"{getattr(x, how)(1)[off][0]:.5g}"
                        )


@oracle(DQN, "which parameters act: the newest")
def newest_parameters(module: ModuleType) -> None:
    """After a gradient step in mid-update its result acts; the first of two steps ends where a lone one does."""
    found = mid_update(module)
    emitted(found.metrics, "reward_mean", "value_mean")
    close_if_emitted(found.metrics, "reward_mean", found.reward)
    close_if_emitted(found.metrics, "value_mean", found.value)


@oracle(DQN, "which parameters choose the next action (the newest), or value it (the target network's)", LIKENESS)
def newest_targets(module: ModuleType) -> None:
    """In double Q-learning the newest choose, and a sync in mid-update counts."""
    need(module, "target", "target_network_frequency", "tau", "n_step")
    found = mid_update(module)
    emitted(found.metrics, "target_mean")
    close_if_emitted(found.metrics, "target_mean", found.target)


def close_if_emitted(metrics: dict[str, np.ndarray], name: str, wanted: np.ndarray) -> None:
    if name in metrics:
        close(f"{name} with a gradient step in mid-update", metrics[name], wanted, 1e-3)


class MidUpdate(NamedTuple):
    """What an update of two cycles on SEESAW reports, and what it should, each `[S]`."""

    metrics: dict[str, np.ndarray]
    reward: np.ndarray
    value: np.ndarray
    target: np.ndarray


@functools.cache
def mid_update(module: ModuleType) -> MidUpdate:
    """All transitions between two gradient steps are alike, so that the first of two in one update ends where a lone
    one does. The target network then moves half of the way to it.
    """
    need(module, "start_e", "end_e", "train_frequency", "cycles_per_update")
    lone = Trial(module, SEESAW, 0.1, epsilon=0.0)
    trial = Trial(module, SEESAW, 0.1, epsilon=0.0, cycles=2, tau=0.5, target_network_frequency=77)
    stepped, _, (q, _, moved, _) = lone.update(lone.state, 0)
    q, moved, seeds = q[:, 0], moved[:, 0], np.arange(SEEDS)
    first, second = q.argmax(-1), moved.argmax(-1)
    _, got, _ = trial.update(trial.state, 0)
    rewards = np.asarray(SEESAW.reward)[0]
    reward = (rewards[first] + rewards[second]) / 2
    value = (q[seeds, first] + moved[seeds, second]) / 2
    synced = q
    if hasattr(lone.state, "params"):
        half = jax.tree.map(lambda x, y: (x + y) / 2, lone.state.params, stepped.params)
        agent = module.make(lone.config, Tabular(SEESAW), SEESAW)
        of_half = jax.jit(jax.vmap(lambda s: agent.value(s, jnp.asarray(SEESAW.obs[0]))))
        synced = np.asarray(of_half(dataclasses.replace(stepped, params=half)))
    gamma = getattr(trial.config, "gamma", np.nan)
    return MidUpdate(got, reward, value, reward + gamma * (q[seeds, first] + synced[seeds, second]) / 2)


@oracle(DQN, "the schedule of exploration, or the metric `epsilon`", LIKENESS)
def known_epsilon(module: ModuleType) -> None:
    """Of the 11 steps in 7 environments each has its own, on a line until half of the training is over."""
    need(module, "start_e", "end_e", "train_frequency", "exploration_fraction")
    falls = emitted(Trial(module, NOISE, epsilon=1.0, end_e=0.2).run(12), "epsilon")["epsilon"]
    steps = 77 * np.arange(12)[:, None] + 7 * np.arange(11)
    line = np.clip(1 - 0.8 * steps / (77 * UPDATES / 2), 0.2, 1).mean(1)
    close("epsilon over 12 of 20 updates", falls[:, 0], line, 1e-3)


@oracle(DQN, "a metric", DEFINITION)
def known_q_metrics(module: ModuleType) -> None:
    """On one observation whose reward is +1 or -1, each metric follows from Q before and after, and epsilon."""
    need(module, "start_e", "end_e", "train_frequency")
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


@oracle(ALL, "the metric `nonfinite`", DEFINITION)
def nonfinite_shows(module: ModuleType) -> None:
    """It is 1 where a reward is not a number, and 0 where all is well."""
    for params, wanted in ((COUNT, 0), (BROKEN, 1)):
        found = emitted(Trial(module, params).run(1), "nonfinite")["nonfinite"][-1]
        close(f"nonfinite where rewards are {'' if wanted else 'not '}NaN", found, np.full(SEEDS, wanted))
