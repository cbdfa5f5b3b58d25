"""Oracles over the contract for CEM: what a generation does, read from what it reports and from the mean's policy.

They know no name of the file but those of the contract. On a Box and with a linear policy the mean can be read, for the
policy is the mean's: at an observation of zeros its actions are the biases. The variance is read from what the next
generation reports of it. Where the reward is one dimension of the action, one parameter decides all scores.

They are asked in the order in which one thing rests on another: returns, policy, candidates, score, elites, refit.
"""

import functools
import math
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import digamma

from probes.environments import Tabular, Targets, TargetState, tables
from probes.oracles.base import (
    COUNT,
    DEFINITION,
    LIKENESS,
    SECOND,
    SEEDS,
    CannotAskError,
    Lopsided,
    close,
    compiled,
    emitted,
    need,
    oracle,
    settings_in,
)
from probes.oracles.cem import Whole
from probes.oracles.contract import UPDATES, Trial
from rlref.contract import CEM

POPULATION, ROLLOUTS = 67, 5  # of a Trial
SMALL = 1e-4  # a variance with which actions are linear in the parameters, to 4 digits
FIRST = np.eye(5)[0]  # a reward that is the first dimension of the action, between -1 and 1


def rewarded(slope: Any, shown: Any = (0.0, 0.0, 0.0)) -> Targets:
    """One step that shows three numbers and pays `slope` times the action of five dimensions."""
    zeros = np.zeros((1, 5), np.float32)
    return Targets(np.array([shown], np.float32), zeros, np.array([slope], np.float32), np.float32(0), np.float32(0))


BOX, WHOLE = Lopsided(rewarded(FIRST)), Whole(rewarded(FIRST))
UNITS = np.eye(4, 3, -1)  # what shows each of a linear policy's 20 parameters: nothing, then each input alone


@functools.cache
def programs(module: ModuleType, env: Any) -> Any:
    """(config, parameters, keys) -> states, and (config, parameters, states, step, observations) -> see `Search`."""

    def init(config: Any, params: Any, key: jax.Array) -> Any:
        return module.make(config, env, params).init(key)

    def update(config: Any, params: Any, state: Any, step: jax.Array, obs: jax.Array) -> Any:
        agent = module.make(config, env, params)
        new, metrics = agent.update(state, step)
        return new, metrics, [jax.vmap(partial(agent.policy, s))(obs) for s in (state, new)]

    over_seeds = jax.vmap(update, (None, None, 0, None, None))
    return compiled(jax.vmap(init, (None, None, 0))), compiled(over_seeds)


class Generation(NamedTuple):
    """What a generation ends with, `S` seeds side by side."""

    state: Any
    metrics: dict[str, np.ndarray]
    before: Any
    """the policy at each observation: a Box's actions and their deviations, each `[S, B, A]`"""
    policy: Any


class Search:
    """A generation of an agent on a small task, `S` seeds side by side; a setting its Config lacks stays unset.

    Raises CannotAskError if its `make` refuses the settings, or its Config lacks one without which nothing is known.
    """

    def __init__(
        self, module: ModuleType, params: Any = None, env: Any = BOX, shown: np.ndarray = UNITS, **settings: Any
    ):
        need(module, "population_size", "elite_fraction", "init_variance", "hidden_sizes")
        self.params, self.shown = rewarded(FIRST) if params is None else params, np.float32(shown)
        wanted = {
            "num_generations": UPDATES,
            "population_size": POPULATION,
            "elite_fraction": 0.1,  # 7 of 67
            "num_rollouts": 2,
            "num_eval_rollouts": 2,
            "max_episode_steps": None,
            "init_variance": SMALL,
            "extra_variance": 0.0,
            "extra_variance_fraction": 0.5,
            "smoothing": 0.0,
            "hidden_sizes": (),
            **settings,
        }
        fields = settings_in(module)
        self.config = module.Config(**{k: v for k, v in wanted.items() if k in fields})
        try:
            module.make(self.config, env, self.params)
        except ValueError as error:
            raise CannotAskError(f"its make refuses the settings: {error}") from error
        init, self.program = programs(module, env)
        self.state = init(self.config, self.params, jax.vmap(jax.random.key)(jnp.arange(SEEDS)))

    def generation(self, step: int = 0, after: Any = None) -> Generation:
        """A generation from the state `after` another, or else from the first."""
        state = self.state if after is None else after
        new, *found = self.program(self.config, self.params, state, np.int32(step), self.shown)
        metrics, (before, policy) = jax.device_get(found)
        return Generation(new, metrics, before, policy)

    def metrics(self, *names: str) -> list[np.ndarray]:
        """Metrics of the first generation. Raises CannotAskError unless the agent emits them all."""
        return list(of_all(self.generation().metrics, *names))

    def stds_after(self, step: int = 0, after: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """The smallest and the mean deviation that a generation ends with."""
        new = self.generation(step, after)
        smallest, mean = of_all(self.generation(after=new.state).metrics, "std_min", "std_mean")
        return np.asarray(smallest, np.float64), np.asarray(mean, np.float64)


def of_all(metrics: dict[str, np.ndarray], *names: str) -> list[np.ndarray]:
    """These metrics. Raises CannotAskError unless the agent emits them all."""
    found = emitted(metrics, *names)
    if lacking := [name for name in names if name not in found]:
        raise CannotAskError(f"it emits no {' or '.join(lacking)}")
    return [found[name] for name in names]


def outputs(policy: Any) -> np.ndarray:
    """How far actions on BOX are from the middle of their bounds, in halves of their range: the outputs, if small."""
    middle, half = (BOX.high + BOX.low) / 2, (BOX.high - BOX.low) / 2
    return (np.float64(policy[0]) - middle) / half


class Row(Lopsided):
    """Shows one row after the other, pays the slope times the action, and terminates at the last."""

    def reset_env(self, key: jax.Array, params: Targets) -> tuple[jax.Array, TargetState]:
        return jnp.asarray(params.obs)[0], TargetState(jnp.int32(0))

    def step_env(
        self, key: jax.Array, state: TargetState, action: Any, params: Targets
    ) -> tuple[jax.Array, TargetState, jax.Array, jax.Array, dict[Any, Any]]:
        last, reward = len(params.obs) - 1, jnp.sum(jnp.asarray(params.slope)[state.index] * action)
        index = jnp.minimum(state.index + 1, last)
        return jnp.asarray(params.obs)[index], TargetState(index), reward, state.index == last, {}


def in_a_row(obs: np.ndarray, slope: Any) -> Targets:
    """Episodes that show these rows, and pay `slope` times the action at each."""
    zeros = np.zeros((len(obs), 5), np.float32)
    return Targets(np.float32(obs), zeros, np.float32(slope) + zeros, np.float32(0), np.float32(0), len(obs))


# Rows of mean 0 and deviation 1, which are as before once they are normalised.
NORMAL = Row(in_a_row(np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]), FIRST))


class Restless(Row):
    """Begins at the first row or at the fifth, and shows very large numbers once it has ended: nobody should look."""

    def reset_env(self, key: jax.Array, params: Targets) -> tuple[jax.Array, TargetState]:
        index = 4 * jax.random.bernoulli(key).astype(jnp.int32)
        return jnp.asarray(params.obs)[index], TargetState(index)

    def step(
        self, key: jax.Array, state: TargetState, action: Any, params: Targets | None = None
    ) -> tuple[jax.Array, TargetState, jax.Array, jax.Array, jax.Array, dict[Any, Any]]:
        params = self.default if params is None else params
        over, last = state.index < 0, len(params.obs) - 1
        ends = over | (state.index == last)
        index = jnp.where(ends, -1, state.index + 1)
        obs = jnp.where(ends, 1e6, jnp.asarray(params.obs)[index])
        return obs, TargetState(index), jnp.float32(0), ends, jnp.bool(False), {"final_observation": obs}


# Returns: what is done makes no difference to them.


# One step; the others are there for the shape.
ONE_STEP = tables(obs=np.eye(4), reward=[[3.0, 3.0]] * 4, next=[0] * 4, terminated=True)
# Each step pays 1, and nothing ends but by the limit of 10 steps.
ENDLESS = tables(obs=np.eye(4), reward=[[1.0, 1.0]] * 4, next=[0] * 4)
# COUNT, whose episodes meet a time limit of their own instead.
CUT = tables(obs=COUNT.obs, reward=COUNT.reward, next=COUNT.next, truncated=COUNT.terminated, start=COUNT.start)


@oracle(CEM, "the fitness: which rewards of an episode are in its return, and that they count in full")
def known_fitness(module: ModuleType) -> None:
    """Return and length of one episode each, undiscounted, to the first ending, however it ends."""
    for how, params, sums in (
        ("of one step that pays 3", ONE_STEP, 4.0),
        ("that terminate", COUNT, 9.0),
        ("that meet a time limit", CUT, 9.0),
        ("that go on for 10 steps, the most there are", ENDLESS, 20.0),
    ):
        metrics = Trial(module, params).run(1)
        returns, length = (emitted(metrics, name)[name][0] for name in ("return_mean", "length_mean"))
        close(f"return_mean + length_mean of episodes {how}", returns + length, np.full(SEEDS, sums), 1e-3)


# Episodes of four steps, +1 or -1 at each whatever is done.
WALK = tables(
    obs=np.zeros((4, 4)), reward=np.zeros((4, 2)), next=[1, 2, 3, 3], terminated=[0, 0, 0, 1], noise=1.0
)  # fmt: skip


@oracle(CEM, "random keys of the environment: used twice over rollouts, steps, generations, seeds or the evaluation")
def fresh_rollouts(module: ModuleType) -> None:
    """Returns of four rewards of +1 and -1, drawn anew: the variance of a mean over 5 rollouts is 4 / 5."""
    need(module, "num_rollouts")
    trial = Trial(module, WALK)
    metrics = emitted(trial.run(min(UPDATES, trial.num_updates)), "return_mean", "mean_policy_return")
    score = emitted(metrics, "return_mean")["return_mean"]
    for name, x in metrics.items():
        for apart in range(1, len(x)):
            if (x[apart:] == x[:-apart]).mean() > 0.5:
                raise AssertionError(f"{name} comes again {apart} generations later: the key is not advanced")
        if (x[:, 1:] == x[:, :-1]).mean() > 0.5:
            raise AssertionError(f"seeds repeat the same rewards, in {name}: the key is not theirs")
    ratio = ROLLOUTS / 4 * float(np.mean(score**2))  # of 1280 means; candidates that share their keys have the same
    if not ratio < 1.35:
        raise AssertionError(f"mean returns vary {ratio:.1f} x as much as independent draws: keys are shared, or stuck")
    if "mean_policy_return" in metrics:
        from_fresh_keys("mean_policy_return", score, metrics["mean_policy_return"])


def from_fresh_keys(name: str, score: np.ndarray, x: np.ndarray, most: float = 0.3) -> None:
    """Raise AssertionError if what was played on WALK once more goes with the scores, `[updates, S]` both."""
    if not abs(np.corrcoef(score.ravel(), x.ravel())[0, 1]) < most:  # .3: 5 sd of 256 pairs, or more
        raise AssertionError(f"the {name} goes with the candidates' scores: it is not from fresh keys")


@oracle(CEM, "the metrics of returns, steps and episodes", DEFINITION)
def counted_candidates(module: ModuleType) -> None:
    """return_* are of 67 candidates, each +1 or -1; env_steps are as many as episodes of one step, and never wrap."""
    need(module, "population_size", "num_rollouts")
    found = Trial(module, SECOND, init_variance=4.0).run(2)
    all_of_them = np.ones((2, SEEDS))
    for name, x in emitted(found, "return_count").items():
        close(f"{name} in 2 generations", x, POPULATION * all_of_them)
    if {"return_mean", "return_std"} <= found.keys():
        close("the mean square of returns that are +1 or -1, by return_mean and return_std",
              found["return_mean"] ** 2 + found["return_std"] ** 2, all_of_them, 1e-3)  # fmt: skip
    if {"env_steps", "episodes"} <= found.keys():
        close("env_steps of episodes of one step, to their number", found["env_steps"] / found["episodes"].cumsum(0),
              all_of_them)  # fmt: skip
    # To the end, by when environment steps are more than 16 bits hold.
    trial = Trial(module, ENDLESS)
    for name, x in emitted(trial.run(min(UPDATES, trial.num_updates)), "env_steps").items():
        close(f"{name} where each generation takes as many", x / x[0], np.cumsum(np.ones_like(x), axis=0))


@oracle(CEM, "how many steps and episodes a generation takes", LIKENESS)
def counted_episodes(module: ModuleType) -> None:
    """env_steps and episodes count what 335 rollouts did: evaluation is not counted, and there is nothing else."""
    need(module, "population_size", "num_rollouts")
    for params, share in ((COUNT, 1), (ENDLESS, 0)):
        counted = Trial(module, params).run(2)
        wanted = {"episodes": POPULATION * ROLLOUTS * share * np.ones((2, SEEDS))}
        if "length_mean" in counted:
            wanted["env_steps"] = POPULATION * ROLLOUTS * counted["length_mean"].cumsum(axis=0)
        for name, x in emitted(counted, *wanted).items():
            close(f"{name} in 2 generations", x, wanted[name], 1e-3)


@oracle(CEM, "the random numbers that candidates meet", LIKENESS)
def common_starts(module: ModuleType) -> None:
    """All candidates meet the same starts: where that decides what they return, they return the same."""
    counted = Trial(module, COUNT).run(2)
    for name, x in emitted(counted, "return_std", "length_std").items():
        close(f"{name} of episodes with the same starts", x, np.zeros((2, SEEDS)))


# The policy.


@oracle(CEM, "the policy: the bounds of a Box, or the bias", instead_of="actions")
def bounded_actions(module: ModuleType) -> None:
    """Actions of very large parameters end at the bounds, on both sides; without anything to see they differ."""
    for i, (low, high) in enumerate(zip(BOX.low, BOX.high, strict=True)):
        least, most = Search(module, rewarded(np.eye(5)[i]), init_variance=1e6).metrics("return_min", "return_max")
        close(f"the smallest action of dimension {i}, from {low} to {high}", least.min(), low, 1e-3)
        close(f"the largest action of dimension {i}, from {low} to {high}", most.max(), high, 1e-3)
    (seeing,) = Search(module, rewarded(FIRST, (1.0, 1.0, 1.0))).metrics("return_std")
    (blind,) = Search(module).metrics("return_std")
    if seeing.max() > 0 and not blind.max() > 0:
        raise AssertionError("where observations are 0, all candidates act alike: the policy has no bias")


@oracle(CEM, "the policy: whole numbers as actions", instead_of="actions")
def whole_actions(module: ModuleType) -> None:
    """Of two whole numbers, policies about 0 take each as often as the other."""
    (action,) = Search(module, rewarded(np.eye(5)[3]), WHOLE, init_variance=1.0).metrics("return_mean")
    # Means of 67 in 64 seeds: their mean is off by .04 but once in a million; if seeds have but one draw each, by .3.
    if not abs(action.mean() + 4.5) < 0.3:
        raise AssertionError(f"actions of -5 and -4 are {action.mean():.3g} on average; each is one half, so -4.5")


# Two hidden layers, the second of one unit, and pairs of observations x, -x below one of zeros.
NARROW, AROUND = (4, 1), np.random.default_rng(0).normal(size=(4, 3)) * 1.5
PAIRS = np.concatenate([np.zeros((1, 3)), AROUND, -AROUND])


@oracle(CEM, "the policy: its hidden layers", DEFINITION, instead_of="dense_layers")
def hidden_layers(module: ModuleType) -> None:
    """They are as many and as wide as hidden_sizes says, and what they compute is no linear function."""
    # With half of the old mean, 0, the new one is half of the refit's.
    search = Search(module, shown=PAIRS, hidden_sizes=NARROW, init_variance=1.0, smoothing=0.5)
    x = outputs(search.generation().policy)  # [S, 9, 5]
    if not np.ptp(x, axis=1).max() > 1e-3:
        raise CannotAskError("the mean's policy does the same whatever it is shown")
    # What follows from one unit alone rises or falls with it: the order of observations is the same for all outputs.
    order = np.argsort(np.argsort(x, axis=1), axis=1) - 4.0
    alike = np.abs((order[..., :1] * order).sum(1) / 60).mean()
    if not alike > 0.95:
        raise AssertionError("with a last hidden layer of one unit, outputs do not rise or fall together: it is not so")
    x = np.arctanh(np.clip(x, -0.999, 0.999))  # before the actions' own bend, if that is tanh
    bend = np.abs(x[:, 1:5] + x[:, 5:] - 2 * x[:, :1]).max((1, 2)) / np.ptp(x, axis=1).max(1)
    if not np.median(bend) > 1e-3:  # about .1, and 1e-5 if it is linear
        raise AssertionError("the policy is linear in what it is shown, in spite of its hidden layers")


# An image of one pixel, black and then white. Each step pays +1 or -1 by the action.
BLACK_WHITE = tables(
    obs=np.array([0, 255], np.uint8).reshape(2, 1, 1, 1), reward=[[1.0, -1.0]] * 2, next=[1, 0], terminated=[0, 1]
)
PIXEL = Tabular(BLACK_WHITE)


@oracle(CEM, "what the policy is shown of images: bytes from 0 to 1", DEFINITION, instead_of="shown_features")
def byte_images(module: ModuleType) -> None:
    """A white pixel weighs as much as the bias: of candidates 3 in 4 act on it as on a black one."""
    search = Search(module, BLACK_WHITE, PIXEL, BLACK_WHITE.obs, init_variance=1.0)
    mean, std = search.metrics("return_mean", "return_std")
    # 4 or 0, for actions that are alike or not; if bytes are shown as they are, the bias hardly counts, and half are.
    alike = float((mean**2 + std**2).mean()) / 4
    if not alike > 0.625:
        raise AssertionError(f"{alike:.3g} of policies act alike on black and white; of bytes from 0 to 1 it is .75")


# What is evaluated.


@oracle(CEM, "the evaluation: whose policy is shown")
def policy_of_the_mean(module: ModuleType) -> None:
    """The policy is that of the mean: candidates of the first generation lie about it."""
    found = Search(module).generation()
    mean, std = of_all(found.metrics, "return_mean", "return_std")
    spread = math.sqrt((std**2).mean() + mean.var())
    off = float((mean - found.before[0][:, 0, 0]).mean()) / max(spread, 1e-12)
    if not abs(off) < 0.5:  # 64 seeds: within .08; and if all candidates of a seed are alike, within .5 all the same
        raise AssertionError(f"the first candidates lie {off:.2g} deviations from the policy; they should lie about it")


@oracle(CEM, "the evaluation: of the new mean, without noise", DEFINITION)
def evaluated_mean(module: ModuleType) -> None:
    """mean_policy_return is what the new policy's action pays; a Box's actions have no deviation."""
    slope = np.arange(1.0, 6.0)
    search, state = Search(module, rewarded(slope), init_variance=1.0), None
    for step in range(2):
        found = search.generation(step, state)
        state, (action, deviation) = found.state, found.policy
        close("the deviation of actions, which have none", deviation, np.zeros_like(deviation))
        (score,) = of_all(found.metrics, "mean_policy_return")
        close(f"mean_policy_return in generation {step}, by the new policy's action", score, action[:, 0] @ slope, 1e-3)


# Candidates.


@oracle(CEM, "the candidates: their spread, or a draw that they or their parameters share")
def spread_of_candidates(module: ModuleType) -> None:
    """Four times the variance is twice the deviation of candidates; each parameter has draws of its own."""
    (narrow,) = Search(module).metrics("return_std")
    if not narrow.min() > 0:
        raise AssertionError("all candidates of a generation are alike: they share their draws")
    (wide,) = Search(module, init_variance=4 * SMALL).metrics("return_std")
    close("the spread of candidates at four times init_variance, to what it was", (wide / narrow).mean(), 2.0, 0.01)
    half = (BOX.high - BOX.low) / 2
    (together,) = Search(module, rewarded(1 / half)).metrics("return_std")
    # Variances of 67 candidates in 64 seeds, 1 to within .1.
    ratio = float((together**2).mean() / (5 * (narrow**2).mean()))
    if not 0.8 < ratio < 1.25:
        raise AssertionError(f"the sum of five parameters varies {ratio:.2g} x as much as five that are independent")


@oracle(CEM, "the policy: how outputs become actions of a Box", LIKENESS, instead_of="actions")
def squashed_actions(module: ModuleType) -> None:
    """The tanh of a standard normal output has the deviation .628; cut at the bounds it would have .718."""
    (std,) = Search(module, init_variance=1.0).metrics("return_std")
    close("the deviation of actions from -1 to 1 of standard normal outputs", std.mean(), 0.628, 0.03)


# Elites.


# The second action pays 1 and takes a step more.
RISE = tables(
    obs=np.zeros((4, 4)), reward=[[0.0, 1.0]] + [[0.0, 0.0]] * 3, next=[1] * 4, terminated=[[1, 0]] + [[1, 1]] * 3
)


def mixed(module: ModuleType) -> np.ndarray:
    """Seeds, `[S]`, in which at least a fifth of the first candidates take each action where they are shown nothing.

    Raises CannotAskError if there are none.
    """
    need(module, "population_size", "elite_fraction", "init_variance", "hidden_sizes")
    found = Trial(module, RISE, init_variance=4.0).run(1)
    second = emitted(found, "return_mean")["return_mean"][0]
    if not (which := (second > 0.2) & (second < 0.8)).any():
        raise CannotAskError("its first candidates all act alike")
    return which


@oracle(CEM, "the elites: whether they are the best candidates")
def best_candidates(module: ModuleType) -> None:
    """Half of the candidates return 1, the others 0, and the best tenth are of the first."""
    which, found = mixed(module), Trial(module, RISE, init_variance=4.0).run(1)
    for name, x in emitted(found, "elite_mean", "elite_threshold").items():
        close(
            f"{name} where half of the candidates return 1, the most there is", x[0, which], np.ones(which.sum()), 1e-3
        )


# The second action pays 7. The first pays 10 or goes on to the limit at a cost of 1 a step, by where it starts: more at
# best, at its median or its first rollout one time in two, in the episodes that ended, and for longer.
GAMBLE = tables(
    obs=np.zeros((4, 4)),
    reward=[[10.0, 7.0], [0.0, 0.0], [0.0, 0.0], [-1.0, 7.0]],
    next=[0, 0, 0, 3],
    terminated=[[1, 1], [1, 1], [1, 1], [0, 1]],
    start=[0.5, 0, 0, 0.5],
)


@oracle(CEM, "the score: the mean return over rollouts")
def mean_score(module: ModuleType) -> None:
    """Half of the candidates return 7 each time, so that the best tenth return 7 or more on average."""
    need(module, "num_rollouts")
    which, found = mixed(module), Trial(module, GAMBLE, init_variance=4.0).run(1)
    lowest = emitted(found, "elite_mean")["elite_mean"][0, which].min()
    if not lowest > 7 - 1e-3:
        raise AssertionError(
            f"elites return {lowest:.3g} on average where half of the candidates return 7 in each rollout: their score "
            "is not the mean return"
        )


# The second action pays what is no number.
UNDEFINED = tables(obs=np.zeros((4, 4)), reward=[[0.0, np.nan]] * 4, next=[0] * 4, terminated=True)


@oracle(CEM, "the elites: scores that are no numbers", DEFINITION)
def nan_is_worst(module: ModuleType) -> None:
    """Candidates whose return is NaN are no elites while there are others."""
    which, found = mixed(module), Trial(module, UNDEFINED, init_variance=4.0).run(1)
    for name, x in emitted(found, "elite_mean", "elite_threshold").items():
        close(f"{name} where half of the candidates return NaN and half 0", x[0, which], np.zeros(which.sum()))


# The new Gaussian.


@oracle(CEM, "the smoothing of the mean", DEFINITION)
def smoothed_mean(module: ModuleType) -> None:
    """A smoothing of .75 moves the first mean a quarter as far as none, from the same candidates."""
    _, whole, smoothed, still = smoothed_steps(module)[0]
    if (share := float(np.linalg.norm(still)) / max(float(np.linalg.norm(whole)), 1e-30)) > 0.5:
        raise AssertionError(f"a smoothing of .9999 moves the policy {share:.2g} x as far from what it was as none")
    step = max(float(np.abs(whole).max()), float(np.abs(smoothed).max()))
    close("the mean's step with a smoothing of .75, to the largest", smoothed / step, whole / 4 / step, 0.01)


@oracle(CEM, "the smoothing of the mean: from where, or what else the policy depends on", LIKENESS)
def smoothed_away(module: ModuleType) -> None:
    """So it does later; and a smoothing of nearly 1 leaves the policy as it was.

    Later, right policies may depend on more than the mean: on moments of observations, or on an earlier mean.
    """
    for which, whole, smoothed, still in smoothed_steps(module):
        step = max(float(np.abs(x).max()) for x in (whole, smoothed, still))
        for share, x, wanted in ((0.9999, still, 0 * still), (0.75, smoothed, whole / 4)):
            close(f"the mean's step with a smoothing of {share} in the {which} generation, to the largest", x / step,
                  wanted / step, 0.01)  # fmt: skip


@functools.cache
def smoothed_steps(module: ModuleType) -> list[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
    """In the first and in the second generation, how far outputs are with a smoothing of 0 and of .75 from those with
    one of nearly 1, which are as before if nothing but the mean is in the policy; and how far these are from before.
    """
    need(module, "smoothing")
    # All are elites, so that the mean stays near 0, where actions are linear; and some variance is left in any case.
    settings: dict[str, Any] = {"elite_fraction": 1.0, "extra_variance": SMALL}
    later, steps = Search(module, **settings).generation().state, []
    for which, after in (("first", None), ("second", later)):
        found = [Search(module, smoothing=x, **settings).generation(after=after) for x in (0.0, 0.75, 0.9999)]
        whole, smoothed, still = (outputs(x.policy) for x in found)
        steps.append((which, whole - still, smoothed - still, still - outputs(found[0].before)))
    return steps


@oracle(CEM, "the refit: its mean")
def refitted_mean(module: ModuleType) -> None:
    """Where one parameter is the score, its mean moves up, by a tenth of a deviation on average, and not past the best.

    A right method may weigh all candidates by their ranks, and not the elites alone.
    """
    found = Search(module).generation()
    best, score, std = of_all(found.metrics, "return_max", "return_mean", "return_std")
    mean = found.policy[0][:, 0, 0]
    if (wrong := mean > best + 1e-5).any():
        raise AssertionError(
            f"the new mean is {mean[wrong][0]:.3g} in a parameter of which the best has {best[wrong][0]:.3g}"
        )
    if not (moved := float(((mean - score) / std).mean())) > 0.1:  # that of all candidates moves by 0, within .02
        raise AssertionError(f"the mean moves by {moved:.2g} deviations of the parameter that is the score")


@oracle(CEM, "the candidates: whether they are drawn about the mean")
def about_the_mean(module: ModuleType) -> None:
    """Candidates of the second generation lie about the mean that the first ended with."""
    search = Search(module)
    first = search.generation()
    second = search.generation(1, first.state)
    (score, std), (at_first,) = of_all(second.metrics, "return_mean", "return_std"), of_all(first.metrics, "return_std")
    off = float((score - first.policy[0][:, 0, 0]).mean())
    # Five standard errors, and a fiftieth of the first deviation: candidates that are kept lie to one side.
    if not abs(off) < 5 * math.sqrt((std**2).mean() / score.size / POPULATION) + at_first.mean() / 50:
        raise AssertionError(f"candidates of the second generation lie {off:.2g} off the mean")


@oracle(CEM, "what is carried from generation to generation: the mean, to the last digits")
def carried_mean(module: ModuleType) -> None:
    """When deviations have become a thousandth, candidates still lie about the mean, and the new one among them."""
    need(module, "extra_variance")
    up, down = Search(module), Search(module, rewarded(-FIRST))
    state, sign, first = None, 1.0, 0.0
    for step in range(10):  # to and fro, so that the mean stays near 0
        found = (up if step % 2 == 0 else down).generation(step, state)
        score, std, best = of_all(found.metrics, "return_mean", "return_std", "return_max")
        before, mean = (sign * policy[0][:, 0, 0] for policy in (found.before, found.policy))
        state, sign = found.state, -sign
        if not std.min() > 0:
            raise CannotAskError("without extra variance its candidates become alike")
        first = first or float(std.mean())
        if not std.mean() < 2 * first:
            raise CannotAskError("its deviations grow")
        off = float(((score - before) / std).mean())
        # Means of 67 in 64 seeds, .015; candidates that are kept and the bend of the actions add to it.
        if not abs(off) < 0.2:
            raise AssertionError(f"in generation {step} candidates lie {off:.2g} deviations off the mean")
        outside = np.maximum(score - mean, mean - best) / std
        if not outside.max() < 0.5:  # that of the 67 scores is .12 deviations off, that of all candidates 0
            raise AssertionError(
                f"the new mean of generation {step} is {outside.max():.2g} deviations below its candidates' or above "
                "the best"
            )


HALF: dict[str, Any] = {
    "elite_fraction": 34 / POPULATION,
    "init_variance": 1.0,
}  # so that no deviation becomes very small


@oracle(CEM, "the extra variance: that it is added", DEFINITION)
def added_variance(module: ModuleType) -> None:
    """After the first generation every variance is higher by extra_variance; later ones add less, but never below 0."""
    need(module, "extra_variance", "extra_variance_fraction")
    without, _ = Search(module, extra_variance=0.0, **HALF).stds_after()
    if not without.min() > 0:
        raise AssertionError("without extra variance none is left after a generation")
    search = Search(module, extra_variance=1.0, **HALF)
    added = [search.stds_after(step)[0] ** 2 - without**2 for step in (0, UPDATES // 4, UPDATES - 1)]
    close("what an extra variance of 1 adds to the smallest variance", added[0], np.ones(SEEDS), 1e-2)
    if not (added[0] - 0.01 > added[1]).all() or not (added[1] - 0.01 > added[2]).all():
        raise AssertionError(
            f"an extra variance of 1 adds {added[0][0]:.3g} at first, {added[1][0]:.3g} after a quarter of the "
            f"generations and {added[2][0]:.3g} at the end: it does not fall"
        )
    if not added[2].min() > -1e-2:
        raise AssertionError(f"the extra variance falls below 0: it adds {added[2].min():.3g} at the end")


@oracle(CEM, "the schedule of the extra variance", LIKENESS)
def extra_variance_line(module: ModuleType) -> None:
    """It falls linearly to 0 over its half of the generations, and stays there."""
    need(module, "extra_variance", "extra_variance_fraction")
    without, _ = Search(module, extra_variance=0.0, **HALF).stds_after()
    search, last = Search(module, extra_variance=1.0, **HALF), UPDATES // 2
    for step in (0, 5, 9, 10, 15, 19):
        added = search.stds_after(step)[0] ** 2 - without**2
        close(f"the extra variance after generation {step} of {UPDATES}", added,
              np.full(SEEDS, max(1 - step / last, 0.0)), 1e-2)  # fmt: skip


def one_deviation(metrics: dict[str, np.ndarray]) -> np.ndarray:
    """That of every parameter, before anything is learned of them. Raises CannotAskError if they differ."""
    smallest, mean = of_all(metrics, "std_min", "std_mean")
    if not np.allclose(smallest, mean, rtol=2e-3):
        raise CannotAskError("its parameters do not begin with one variance")
    return np.asarray(mean, np.float64)


@oracle(CEM, "the smoothing of the variance", DEFINITION)
def smoothed_variance(module: ModuleType) -> None:
    """A smoothing of .75 keeps .75 of the old variance and takes .25 of the refit's; extra variance comes on top."""
    need(module, "smoothing", "extra_variance")
    # As they begin; and where nothing but extra variance has been added yet, or nearly so.
    wider = Search(module, **HALF | {"smoothing": 0.999, "extra_variance": 3.0}).generation().state
    for after, what in ((None, "first"), (wider, "second")):
        old = one_deviation(Search(module, **HALF).generation(after=after).metrics)
        fitted, _ = Search(module, **HALF).stds_after(after=after)
        for extra in (0.0, 1.0):
            smoothed, _ = Search(module, smoothing=0.75, extra_variance=extra, **HALF).stds_after(after=after)
            close(f"the smallest variance with a smoothing of .75 and an extra variance of {extra:g} in the {what} "
                  "generation", smoothed**2, 0.75 * old**2 + 0.25 * fitted**2 + extra, 1e-2)  # fmt: skip


FEW: dict[str, Any] = {"elite_fraction": 0.055, "init_variance": 1e-2}  # 3.7 of 67 candidates are 4


@oracle(CEM, "the elites: how many there are", LIKENESS)
def number_of_elites(module: ModuleType) -> None:
    """3.7 elites are 4, where scores are equal too: then the mean's steps vary by a fourth of the variance."""
    need(module, "smoothing")
    found = Search(module, rewarded(np.zeros(5)), **FEW).generation()
    x = outputs(found.policy)  # [S, 4, 5]
    moved = np.concatenate([x[:, :1], x[:, 1:] - x[:, :1]], axis=1)
    # 1280 draws: the mean of their squares is off by .14 once in 2000; of 3 elites it would be 1.33, of 5 .8.
    ratio = 4 * float((moved**2).mean()) / FEW["init_variance"]
    if not 0.85 < ratio < 1.16:
        raise AssertionError(f"the mean's steps vary {ratio:.2f} x as much as the mean of 4 candidates")


@functools.cache
def refits(elites: int, chosen: bool) -> tuple[float, float]:
    """What the smallest and the mean deviation of 20 parameters become, from 1, simulated; of elites chosen by one."""
    draws = np.random.default_rng(0).normal(size=(2000, POPULATION, 20))
    if chosen:
        draws = np.take_along_axis(draws, np.argsort(-draws[..., 0], axis=1)[..., None], axis=1)
    stds = draws[:, :elites].std(axis=1)
    return stds.min(1).mean(), stds.mean()


@oracle(CEM, "the refit: its variance", LIKENESS)
def refitted_variance(module: ModuleType) -> None:
    """It is the elites' own in each parameter, about their mean, the sum of squares over their number."""
    for what, elites, slope, settings in (
        ("4 elites of equal scores", 4, 0 * FIRST, FEW),
        ("34 elites by one parameter", 34, FIRST, HALF),
    ):
        search = Search(module, rewarded(slope), **settings)
        (first,) = search.metrics("std_mean")
        stds, wanted = search.stds_after(), refits(elites, elites == 34)
        # Means over 64 seeds, within .02 of what is expected (5 standard errors of what varies most).
        for how, std, expected in zip(("smallest", "mean"), stds, wanted, strict=True):
            close(f"the {how} deviation after a refit to {what}, to the first", (std / first).mean(), expected, 0.025)


# Metrics.


@oracle(CEM, "the metrics of the Gaussian: entropy and KL", DEFINITION)
def gaussian_metrics(module: ModuleType) -> None:
    """They follow from the deviation that is reported, and from how far the mean has moved."""
    need(module, "smoothing", "extra_variance")
    search = Search(module, NORMAL.default, NORMAL)
    found = search.generation()
    std, (entropy, each) = one_deviation(found.metrics), of_all(found.metrics, "entropy", "relative_entropy")
    close("relative_entropy", each, np.log(std) + 0.5 * math.log(2 * math.pi * math.e), 1e-3)
    size = entropy / each
    of_mean, of_variance, kl = of_all(found.metrics, "kl_mean_term", "kl_variance_term", "kl")
    close("kl, by its two terms", kl, of_mean + of_variance, 1e-3)
    x = outputs(found.policy)
    moved = np.concatenate([x[:, :1], x[:, 1:] - x[:, :1]], axis=1)
    if np.allclose(size, moved[0].size, rtol=1e-3):  # else some parameters are not seen
        close("kl_mean_term, by the mean's step", of_mean, (moved**2).sum((1, 2)) / (2 * std**2), 0.01)
    # All variances are nearly those before, and as much again.
    search = Search(module, NORMAL.default, NORMAL, smoothing=0.999, extra_variance=SMALL)
    wider = search.generation()
    (new,) = of_all(search.generation(after=wider.state).metrics, "std_mean")
    ratio = (new / std) ** 2
    close("kl_variance_term where all variances become twice what they were", wider.metrics["kl_variance_term"] / size,
          (ratio - 1 - np.log(ratio)) / 2, 0.01)  # fmt: skip


@oracle(CEM, "the metric kl_floor", LIKENESS)
def floor_of_kl(module: ModuleType) -> None:
    """It is that of as many elites, of equal weight, as are refitted to."""
    metrics = Search(module).generation().metrics
    entropy, each, floor = of_all(metrics, "entropy", "relative_entropy", "kl_floor")
    close("kl_floor of 7 elites", floor, -entropy / each / 2 * (float(digamma(3.0)) + math.log(2 / 7)), 1e-3)


# What is paid is the sum of what the action and what the start is worth.
BONUS = tables(
    obs=np.zeros((4, 4)),
    reward=[[0.0, 1.0]] * 3 + [[10.0, 11.0]],
    next=[0] * 4,
    terminated=True,
    start=[0.5, 0, 0, 0.5],
)


@oracle(CEM, "the metric explained_variance", DEFINITION)
def explained_by_candidates(module: ModuleType) -> None:
    """What a start is worth to all candidates alike is no noise: they explain all of the variance."""
    need(module, "num_rollouts")
    same = emitted(Trial(module, COUNT).run(1), "return_std")["return_std"]
    if same.max() > 1e-3:
        raise CannotAskError("its candidates do not meet the same starts")
    share = emitted(Trial(module, BONUS, init_variance=4.0).run(1), "explained_variance")["explained_variance"]
    close("explained_variance where starts and actions are worth the same to all", share, np.ones((1, SEEDS)), 1e-3)


@oracle(CEM, "the metric selection_bias: elites once more, on fresh keys", DEFINITION)
def fresh_elites(module: ModuleType) -> None:
    """What elites return once more, their score less selection_bias, has nothing of the rewards of their choice."""
    metrics = Trial(module, WALK).run(4)
    score, bias = (emitted(metrics, name)[name] for name in ("return_mean", "selection_bias"))
    # Where candidates share their keys, scores are all return_mean; if promising ones are tried again, and chosen by
    # the mean of it all, what is left of the first return is correlated by 1 / sqrt(2) at most; the same keys give 1.
    from_fresh_keys("return of the elites once more", score, score - bias, most=0.8)


# Rows that episodes show, of other sizes in the first generation than in later ones.
ROWS = [
    np.random.default_rng(seed).normal(size=(7, 3)) * [1.0, 30.0, 0.01] * scale + [0.0, 50.0, -3.0]
    for seed, scale in ((3, 1.0), (4, 2.0), (4, 2.0))
]


@oracle(CEM, "the normalisation of observations: by what", DEFINITION)
def observations_normalised(module: ModuleType) -> None:
    """The policy acts on observations less the mean of those seen so far, divided by their deviation, then clipped."""
    need(module, "normalize_observations")
    env = Row(in_a_row(ROWS[0], 0.0))  # returns are all the same, so that the same candidates are always elites

    def after_all(shown: np.ndarray, normalize: bool) -> np.ndarray:
        search, state = Search(module, env.default, env, shown, normalize_observations=normalize), None
        for step, obs in enumerate(ROWS):
            search.params = in_a_row(obs, 0.0)
            found = search.generation(step, state)
            state = found.state
        return outputs(found.policy)

    shown = np.concatenate([ROWS[0], 1e3 * ROWS[0][:1]])  # the last is far from all that was seen
    got, errors = after_all(shown, True), []
    for rows in (ROWS[:2], ROWS):  # of generations before the last, or of the last as well
        seen = np.concatenate(rows)
        wanted = after_all((shown - seen.mean(0)) / seen.std(0), False)[:, :7]
        errors.append(float(np.abs(got[:, :7] - wanted).max() / np.abs(wanted).max()))
    if not min(errors) < 5e-3:
        raise AssertionError(f"actions are {min(errors):.2g} x the largest off those at observations so normalised")
    if not np.abs(got[:, 7]).max() < 100 * np.abs(got[:, :7]).max():
        raise AssertionError(
            "an observation a thousand times as large as others moves actions more than a hundred-fold"
        )


@oracle(CEM, "the normalisation of observations: of what is evaluated, or of what candidates see")
def played_normalised(module: ModuleType) -> None:
    """mean_policy_return is what the policy's actions pay on the way, where observations are normalised."""
    need(module, "normalize_observations")
    env = Row(in_a_row(ROWS[0], FIRST))
    search, state = Search(module, env.default, env, ROWS[0], normalize_observations=True, init_variance=1.0), None
    for step in range(3):
        found = search.generation(step, state)
        state, (played,) = found.state, of_all(found.metrics, "mean_policy_return")
        paid = found.policy[0][..., 0].sum(axis=-1)
        close(f"mean_policy_return after generation {step}", played, paid, 1e-3)


@oracle(CEM, "the normalisation of observations: of which steps", DEFINITION, instead_of="rollouts_moments")
def nothing_after_the_end(module: ModuleType) -> None:
    """What an environment shows after an episode's end is not among what was seen."""
    need(module, "normalize_observations", "num_rollouts")
    env = Restless(in_a_row(ROWS[0], 0.0))
    spread = []
    for normalize, shown in ((True, ROWS[0]), (False, (ROWS[0] - ROWS[0].mean(0)) / ROWS[0].std(0))):
        search = Search(module, env.default, env, shown, normalize_observations=normalize, num_rollouts=16)
        first = search.generation()
        policy = outputs(search.generation(1, first.state).policy)
        spread.append(float(policy.std(axis=1).mean()))
    if not spread[0] > 0.2 * spread[1]:
        raise AssertionError(f"actions at seven observations vary {spread[0] / spread[1]:.2g} x as much as they should")
