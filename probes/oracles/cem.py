"""Oracles over the functions of CEM's file."""

import dataclasses
import functools
import inspect
import math
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from gymnax.environments import spaces

from probes.environments import Tabular, Targets, tables
from probes.oracles.base import (
    COUNT,
    DEFINITION,
    LIKENESS,
    SECOND,
    SHAPES,
    CannotAskError,
    Lopsided,
    close,
    compiled,
    configure,
    emitted,
    first_state,
    oracle,
    part,
    task_of,
)
from rlref.contract import CEM


@oracle(
    CEM,
    "the selection of elites, or the refit to them",
    DEFINITION,
    elites="score num_elites",
    refit="candidates elite",
)
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


@oracle(CEM, "the schedule of the extra variance", LIKENESS, extra_variance_at="config generation")
def extra_variance_schedule(module: ModuleType) -> None:
    """It falls linearly from extra_variance to 0 over its share of the generations, and stays there."""
    config = configure(module, num_generations=100, extra_variance=5.0, extra_variance_fraction=0.5)
    for generation, wanted in ((0, 5.0), (10, 4.0), (25, 2.5), (49, 0.1), (50, 0.0), (99, 0.0)):
        close(f"the extra variance after generation {generation} of 100",
              module.extra_variance_at(config, jnp.int32(generation)), wanted)  # fmt: skip


@oracle(CEM, "explained variance", DEFINITION, explained_variance="returns")
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
    CEM,
    "entropy, KL, or the floor of the search distribution",
    DEFINITION,
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


@oracle(CEM, "the random numbers that candidates meet", LIKENESS, rollout="task candidates keys")
def common_numbers(module: ModuleType) -> None:
    """All candidates meet the same starts."""
    keys = jax.random.split(jax.random.key(0), 13)
    task = task_of(module, configure(module, hidden_sizes=()), Tabular(COUNT), COUNT)
    total, *_ = module.rollout(task, jnp.zeros((5, 10)), keys)
    close("the return on the same key", total, np.tile(total[:1], (5, 1)))


@oracle(CEM, "the fitness: where an episode's rewards end", rollout="task candidates keys")
def first_episodes(module: ModuleType) -> None:
    """Return and length of one episode each, undiscounted, to the first ending."""
    candidates = jnp.asarray(np.random.default_rng(0).normal(size=(5, 10)), jnp.float32)
    keys = jax.random.split(jax.random.key(0), 13)
    for how, terminated, truncated in (
        ("terminate", [0, 0, 1, 0], [0] * 4),
        ("meet a time limit", [0] * 4, [0, 0, 1, 0]),
    ):
        params = dataclasses.replace(
            COUNT, terminated=np.array([terminated, terminated], bool).T, truncated=np.array([truncated] * 2, bool).T
        )
        task = task_of(module, configure(module, hidden_sizes=()), Tabular(params), params)
        total, length, ended, *_ = module.rollout(task, candidates, keys)
        what = f"of episodes that {how}"
        close(f"the return and the length, added up, {what}", total + length, np.full((5, 13), 9.0))
        close(f"whether they ended, {what}", ended, np.ones((5, 13)))
    if len(set(np.asarray(total[0]).tolist())) < 2:
        raise AssertionError("13 rollouts all begin in the same of two states: their keys are not their own")
    task = task_of(module, configure(module, hidden_sizes=(), max_episode_steps=2), Tabular(COUNT), COUNT)
    total, length, ended, *_ = module.rollout(task, candidates, keys)
    close("the length of an episode cut after 2 steps", length, np.full((5, 13), 2))
    close("whether episodes cut after 2 steps ended", ended, total == 7)


@oracle(
    CEM,
    "the normalisation of observations: its running mean and variance",
    DEFINITION,
    rollout="task candidates keys obs_moments",
    Moments="mean variance count",
)
def rollouts_moments(module: ModuleType) -> None:
    """Moments are of what was acted on in all episodes, up to the first ending; what follows does not count."""
    config = configure(module, hidden_sizes=(), normalize_observations=True)
    task, keys = task_of(module, config, Tabular(COUNT), COUNT), jax.random.split(jax.random.key(0), 13)
    before = module.Moments(jnp.zeros(4), jnp.ones(4), jnp.float32(0))
    _, length, _, found = module.rollout(task, jnp.zeros((5, 10)), keys, before)
    long, short = ((np.asarray(length) == n).sum() for n in (3, 2))  # by states 0, 1 and 2, or by 3 and 2
    share = np.array([long, long, long + short, short]) / (3 * long + 2 * short)
    wanted = {"mean": share, "variance": share * (1 - share), "count": 3 * long + 2 * short}
    for name, x in wanted.items():
        close(f"the {name} of observations acted on", getattr(found, name), x, 1e-3)


@oracle(CEM, "a layer of the policy", DEFINITION, dense="x kernel bias")
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
    CEM,
    "the policy: its hidden layers, or how its outputs become actions",
    LIKENESS,
    act="task params obs",
)
def policy_outputs(module: ModuleType) -> None:
    """The layers written out; a Box's actions are tanh stretched to its bounds, whole numbers with equal shares."""
    rng = np.random.default_rng(0)
    obs, zeros = rng.normal(size=(7, 3)).astype(np.float32), np.zeros((7, 5))
    params = Targets(obs, zeros, zeros, np.float32(0), np.float32(0))
    arms = tables(obs=obs, reward=np.zeros((7, 5)), next=[0] * 7)
    for env, env_params in ((Tabular(arms), arms), (Lopsided(params), params), (Whole(params), params)):
        for activation in ("tanh", "relu"):
            config, bend = configure(module, hidden_sizes=(4, 6), activation=activation), SHAPES[activation]
            task = task_of(module, config, env, env_params)
            if not hasattr(task, "unflatten"):
                raise CannotAskError("its task has no unflatten")
            agent, state = module.make(config, env, env_params), first_state(module, task)
            close("the number of parameters of hidden layers of 4 and 6, for 3 and 5", state.mean.size, 81)
            candidate = jnp.asarray(rng.normal(size=81), jnp.float32)
            *hidden, (kernel, bias) = [[np.asarray(x) for x in layer] for layer in task.unflatten(candidate)]
            outputs = functools.reduce(lambda x, layer: bend(x @ layer[0] + layer[1]), hidden, obs) @ kernel + bias
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
            policy = agent.policy(dataclasses.replace(state, mean=candidate), jnp.asarray(obs[0]))
            if env_params is arms:
                close("the policy as it is evaluated", policy, np.eye(5)[wanted[0]])
            else:
                close("the policy as it is evaluated, its action and no deviation", policy, [wanted[0], np.zeros(5)])


@oracle(
    CEM,
    "the policy: its bounds, or its bias",
    act="task params obs",
)
def actions(module: ModuleType) -> None:
    """Actions of a Box end at its bounds, on both sides; without anything to see they follow from the parameters."""
    obs, zeros = np.array([[1.0, -2.0, 0.5]]), np.zeros((1, 5))
    params = Targets(obs.astype(np.float32), zeros, zeros, np.float32(0), np.float32(0))
    task = task_of(module, configure(module, hidden_sizes=()), Lopsided(params), params)
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

    def kl_terms(self, mean: np.ndarray, variance: np.ndarray) -> tuple[float, float]:
        """KL of a Gaussian to that before, in nats: what the means cause, and what the variances cause."""
        ratio = variance / self.variance
        return ((mean - self.mean) ** 2 / self.variance).sum() / 2, (ratio - 1 - np.log(ratio)).sum() / 2

    def refit(self) -> tuple[np.ndarray, np.ndarray]:
        return self.candidates[self.elite].mean(axis=0), self.candidates[self.elite].var(axis=0)

    def smoothed(self) -> tuple[np.ndarray, np.ndarray]:
        """The new mean and variance: smoothing .25, and .3 of extra variance."""
        mean, variance = self.refit()
        return 0.25 * self.mean + 0.75 * mean, 0.25 * self.variance + 0.75 * variance + 0.3


GENERATION = {
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
    task = task_of(module, config, Tabular(SECOND), SECOND)
    rng = np.random.default_rng(0)
    mean, variance, weight = (
        rng.normal(size=10),
        4 * rng.random(10) + 0.1,
        jnp.asarray(rng.normal(size=10), jnp.float32),
    )
    state = first_state(module, task)
    for name, x in (("mean", mean), ("variance", variance), ("env_steps", 1000)):
        state = dataclasses.replace(state, **{name: jnp.asarray(x, part(state, name).dtype)})
    original = module.rollout
    played: list[Any] = []

    def rollout(*arguments: Any, **named: Any) -> Any:
        taken = inspect.signature(original).bind(*arguments, **named).arguments  # a file's own may take more
        candidates, keys, moments = taken["candidates"], taken["keys"], [taken[x] for x in taken if x == "obs_moments"]
        worth, number = (candidates @ weight)[:, None], jnp.arange(1, 1 + len(keys))
        returns = worth + 3 * jnp.sin(50 * worth * number)
        played.append((candidates, returns))
        length, ended = jnp.broadcast_to(number, returns.shape), jnp.broadcast_to(number == 1, returns.shape)
        return returns, length, ended, *moments

    @compiled
    def watched(state: Any) -> Any:
        return *module.update(task, state, jnp.int32(4)), played

    with mock.patch.object(module, "rollout", rollout):
        new, metrics, calls = jax.device_get(watched(state))
    if [len(call[0]) for call in calls][:1] != [41] or len(calls) != 2:
        raise CannotAskError("its generation plays candidates in another way")
    (candidates, returns), (tried, again) = [[np.asarray(x, np.float64) for x in call] for call in calls]
    elite = np.argsort(-returns.mean(axis=1))[:8]
    return Generation(mean, variance, new, metrics, candidates, returns, tried, again, elite)


@oracle(CEM, "the candidates: their mean, their spread, or their number of rollouts", DEFINITION, **GENERATION)
def drawn_candidates(module: ModuleType) -> None:
    """Each candidate is drawn from the Gaussian before, and plays as many episodes as is set."""
    found = generation(module)
    close("the shape of the returns, candidates by rollouts", found.returns.shape, (41, 3))
    normal = (found.candidates - found.mean) / np.sqrt(found.variance)
    if not 0.7 < (normal**2).mean() < 1.3:  # 410 squares of standard normal draws: within .3 but once in 50,000
        raise AssertionError(f"candidates vary {(normal**2).mean():.2f} x as much as the Gaussian they are drawn from")
    for what, pairs in (("parameters", normal[:, 1:] * normal[:, :-1]), ("candidates", normal[1:] * normal[:-1])):
        if not abs(pairs.mean()) < 0.26:  # 5 standard deviations of the mean of 370 products
            raise AssertionError(f"the draws of different {what} go together")


@oracle(CEM, "the score, the elites, the smoothing, or the extra variance", LIKENESS, **GENERATION)
def next_gaussian(module: ModuleType) -> None:
    """The candidates with the highest mean return make the new Gaussian, cut episodes counted like others."""
    found = generation(module)
    mean, variance = found.smoothed()
    close("the new mean", found.new.mean, mean, 1e-3)
    close("the new variance", found.new.variance, variance, 1e-3)
    for name, wanted in (("extra_variance", 0.3), ("kl_refit", sum(found.kl_terms(*found.refit())))):
        if name in found.metrics:
            close(name, found.metrics[name], wanted, 1e-3)


@oracle(CEM, "the evaluation: of the new mean, and of elites on fresh keys", DEFINITION, **GENERATION)
def evaluated_gaussian(module: ModuleType) -> None:
    """Played once more are the new mean, which `mean_policy_return` is of, and elites, for the selection bias."""
    found = generation(module)
    close("what is evaluated first: the new mean", found.tried[0], found.new.mean)
    if found.again.shape[1] != 5:
        raise CannotAskError(f"it evaluates by {found.again.shape[1]} episodes where num_eval_rollouts is 5")
    some = np.argmin(np.abs(found.tried[1:, None] - found.candidates).sum(-1), axis=1)
    if not set(some) <= set(found.elite):
        raise AssertionError("what is tried once more for the selection bias are not elites")
    wanted = {"mean_policy_return": found.again[0].mean()}
    if some.size:
        wanted["selection_bias"] = (found.score[some] - found.again[1:].mean(axis=1)).mean()
    for name, x in emitted(found.metrics, *wanted).items():
        close(name, x, wanted[name], 1e-3)


@oracle(CEM, "how many steps and episodes a generation takes", LIKENESS, **GENERATION)
def generation_counts(module: ModuleType) -> None:
    """Those of the candidates: evaluation is not counted, takes num_eval_rollouts, and there is nothing else."""
    found = generation(module)
    close("the number of episodes of an evaluation", found.again.shape[1], 5)
    for name, x in emitted(found.metrics, "env_steps", "episodes").items():
        close(name, x, {"env_steps": 1000 + 41 * (1 + 2 + 3), "episodes": 41}[name], 1e-3)


@oracle(CEM, "a metric of a generation", DEFINITION, **GENERATION)
def generation_metrics(module: ModuleType) -> None:
    """Scores, lengths, entropy and KL, written out."""
    found = generation(module)
    score, got = found.score, found.metrics
    new_mean, new_variance = (np.asarray(part(found.new, name), np.float64) for name in ("mean", "variance"))
    of_mean, of_variance = found.kl_terms(new_mean, new_variance)
    entropy = np.log(2 * math.pi * math.e * found.variance).sum() / 2
    wanted = {
        "return_count": 41,
        "elite_mean": score[found.elite].mean(),
        "elite_threshold": score[found.elite].min(),
        "length_mean": 2.0,
        "length_std": 0.0,
        "kl": of_mean + of_variance,
        "kl_mean_term": of_mean,
        "kl_variance_term": of_variance,
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
