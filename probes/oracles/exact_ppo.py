"""Oracles over PPO's contract that predict a whole update: where each parameter must end, and what it must report.

On tables whose rewards tell which actions were taken, everything that an update does follows from `policy` and `value`
before it. Parameters need no names: they are the numbers of the state that the loss depends on.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnax.environments import spaces

from probes.environments import Tables, Tabular, Target, Targets, tables
from probes.oracles.base import (
    DEFINITION,
    LIKENESS,
    SEEDS,
    CannotAskError,
    close,
    compiled,
    emitted,
    need,
    oracle,
    settings_in,
)
from probes.oracles.contract import KNOWN, Trial, apart, shown_nothing_else, traced, without_learning
from probes.ways import answered, has_memory
from rlref.contract import PPO
from rlref.errors import in_a_line

# Seven steps of one environment. States 7 and 8 are seen as what an ending step led to, and nowhere else. A reward's
# digit, to the base of three, is the action: the sum of a rollout's rewards tells all of them.
DIGITS = 3.0 ** np.arange(7)
LINE = tables(
    obs=np.random.default_rng(0).normal(size=(9, 4)),
    reward=np.concatenate([DIGITS[:, None] * np.arange(3) / 256, np.zeros((2, 3))]),
    next=[1, 2, 7, 4, 8, 6, 0, 7, 8],
    terminated=[0, 0, 1, 0, 0, 0, 0, 0, 0],
    truncated=[0, 0, 0, 0, 1, 0, 0, 0, 0],
    after=[-1, -1, 3, -1, 5, -1, -1, -1, -1],
)
ON_LINE = Tabular(LINE)


# Two environments, each on its way round four states of its own; which it is on, is drawn.
FOURS = 4.0 ** np.arange(8)
ROUNDS = tables(
    obs=np.random.default_rng(1).normal(size=(8, 4)),
    reward=FOURS[:, None] * np.arange(1, 4) / 2**16,
    next=[1, 2, 3, 0, 5, 6, 7, 4],
    start=[0.5, 0, 0, 0, 0.5, 0, 0, 0],
)
ON_ROUNDS = Tabular(ROUNDS)
APART = {ON_LINE: Tabular(apart(LINE)), ON_ROUNDS: Tabular(apart(ROUNDS))}  # for agents with a memory


# As LINE, with an episode's end in its last step: what follows is the same for ever.
ROUND_LINE = dataclasses.replace(
    LINE, truncated=LINE.truncated | (np.arange(9) == 6)[:, None], after=np.where(np.arange(9) == 6, 0, LINE.after.T).T
)


class Samples(NamedTuple):
    """What an update learned from, for each seed; `[S, B]`."""

    state: np.ndarray
    action: np.ndarray
    advantage: np.ndarray
    target: np.ndarray
    value: np.ndarray
    log_prob: np.ndarray


EXACT: dict[str, Any] = {
    "num_minibatches": 1,
    "update_epochs": 3,
    "anneal_lr": False,
    "target_kl": None,
    "norm_adv": True,
    "clip_vloss": True,
    **KNOWN,
    "clip_coef": 0.1,
    "ent_coef": 0.0,
    "vf_coef": 0.0,
    "adam_eps": 1e-3,
    "max_grad_norm": 1e9,
}


def exact_trial(module: ModuleType, params: Tables, env: Any, **settings: Any) -> Trial:
    """A trial whose updates are one minibatch each. Raises CannotAskError where that cannot be set."""
    need(module, *EXACT, "num_envs", "num_steps", "learning_rate")
    shape = {"num_envs": 2, "num_steps": 4} if env is ON_ROUNDS else {"num_envs": 1, "num_steps": 7}
    if has_memory(module):
        params, env = apart(params), APART[env]
        if "last_inputs" not in settings:
            shown_nothing_else(module)
    trial = Trial(module, params, env=env, **(EXACT | shape | {"learning_rate": 0.02} | settings))
    if trial.why:
        raise CannotAskError(trial.why)
    return trial


def advantages(params: Any, state: np.ndarray, action: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Generalised advantages `[S, T]` of steps in states `[S, T]`, by the values `[S, n]` of all states."""
    leads_to, reward = params.next[state, action], params.reward[state, action].astype(np.float64)
    terminated, truncated = params.terminated[state, action], params.truncated[state, action]
    seeds = np.arange(SEEDS)[:, None]
    return traced(reward, value[seeds, state], value[seeds, leads_to], terminated, terminated | truncated)


def samples_of(
    params: Any, state: np.ndarray, action: np.ndarray, advantage: np.ndarray, answers: list[np.ndarray]
) -> Samples:
    """Samples, with values and probabilities by the answers before the update."""
    value, policy = (np.asarray(x, np.float64) for x in answers[:2])
    seeds = np.arange(SEEDS)[:, None]
    of_state = value[seeds, state]
    return Samples(state, action, advantage, advantage + of_state, of_state, np.log(policy[seeds, state, action]))


def actions_on_line(reward_mean: np.ndarray) -> np.ndarray:
    """The actions `[S, 7]` that a rollout on LINE took, by its mean reward `[S]`."""
    total = np.rint(np.float64(reward_mean) * 7 * 256).astype(int)
    return np.clip(total[:, None] // DIGITS.astype(int) % 3, 0, 2)


def on_line(params: Any, metrics: dict[str, np.ndarray], answers: list[np.ndarray]) -> Samples:
    """What an update on LINE, as these tables have it, learned from."""
    action = actions_on_line(emitted(metrics, "reward_mean")["reward_mean"])
    state = np.tile(np.arange(7), (SEEDS, 1))
    value = np.asarray(answers[0], np.float64)
    return samples_of(params, state, action, advantages(params, state, action, value), answers)


def floats_of(state: Any) -> tuple[list[Any], Any]:
    """The numbers of a state that a gradient can be taken by, and a function that puts such numbers in their place."""
    leaves, tree = jax.tree.flatten(state)
    moves = [jnp.issubdtype(x.dtype, jnp.floating) for x in leaves]

    def put(floats: list[Any]) -> Any:
        new = iter(floats)
        return jax.tree.unflatten(tree, [next(new) if m else x for x, m in zip(leaves, moves, strict=True)])

    return [x for x, m in zip(leaves, moves, strict=True) if m], put


@functools.cache
def gradients(module: ModuleType, env: Any) -> Any:
    """(config, tables, ways, states, floats, samples) -> gradients of the loss, of values and of policies."""

    def of_seed(config: Any, params: Any, led: Any, state: Any, floats: list[Any], batch: Samples) -> Any:
        agent, (_, put) = module.make(config, env, params), floats_of(state)

        def values(floats: list[Any]) -> Any:
            return answered(agent, put(floats), env, params, led)[0][batch.state]

        def log_policies(floats: list[Any]) -> Any:
            return jnp.log(answered(agent, put(floats), env, params, led)[1])[batch.state]

        def loss(floats: list[Any]) -> Any:
            value, log_policy = values(floats), log_policies(floats)
            ratio = jnp.exp(log_policy[jnp.arange(batch.action.size), batch.action] - batch.log_prob)
            bounded = jnp.clip(ratio, 1 - config.clip_coef, 1 + config.clip_coef)
            advantage = (batch.advantage - batch.advantage.mean()) / (batch.advantage.std() + 1e-8)
            policy_loss = -jnp.minimum(ratio * advantage, bounded * advantage).mean()
            near = batch.value + jnp.clip(value - batch.value, -config.clip_coef, config.clip_coef)
            value_loss = 0.5 * jnp.maximum((value - batch.target) ** 2, (near - batch.target) ** 2).mean()
            entropy = -(jnp.exp(log_policy) * log_policy).sum(-1).mean()
            return policy_loss + config.vf_coef * value_loss - config.ent_coef * entropy

        def weighted_sum(f: Any) -> Any:  # so that nothing cancels
            return lambda floats: (f(floats).ravel() * jnp.arange(1.0, 1 + f(floats).size)).sum()

        return tuple(jax.grad(f)(floats) for f in (loss, weighted_sum(values), weighted_sum(log_policies)))

    return compiled(jax.vmap(of_seed, (None, None, None, 0, 0, 0)))


def differentiated(module: ModuleType, trial: Trial, floats: list[Any], batch: Samples) -> Any:
    """The `gradients` at a trial's state with these floats. Raises CannotAskError where there are none."""
    batch = Samples(*(x.astype(np.int32 if x.dtype.kind == "i" else np.float32) for x in batch))
    try:
        found = gradients(module, trial.env)(trial.config, trial.params, trial.led, trial.state, floats, batch)
    except (NotImplementedError, TypeError, ValueError) as error:  # such as of a call out of jax
        raise CannotAskError(f"its value and policy have no gradient: {in_a_line(error)}") from error
    if not any(np.asarray(x).any() for x in jax.tree.leaves(found)):
        raise CannotAskError("neither its value nor its policy depends on the numbers of its state")
    return found


def rows(leaves: list[Any]) -> np.ndarray:
    """Arrays `[S, ...]` side by side, `[S, P]`."""
    return np.concatenate([np.asarray(x, np.float64).reshape(SEEDS, -1) for x in leaves], axis=1)


ROUNDING, FAULT = 0.005, 0.1
"""of a learning rate: what is right ends within 1e-4 of it, another optimiser or loss may be off by .01, a fault is off
by .5 or more"""


def ends(module: ModuleType, trial: Trial, samples: Samples, new: Any) -> np.ndarray:
    """How far the numbers of the new state are from where Adam leads, in learning rates, `[S, P]`.

    0 for those that the loss does not depend on.
    """
    config = trial.config
    floats, _ = floats_of(trial.state)
    at = rows(floats)
    mean, square, moves = np.zeros_like(at), np.zeros_like(at), np.zeros(at.shape, bool)
    splits = np.cumsum([x[0].size for x in floats])[:-1]
    for k in range(1, config.update_epochs + 1):
        parts = zip(np.split(at, splits, axis=1), floats, strict=True)
        here = [x.reshape(y.shape).astype(np.float32) for x, y in parts]
        # No number: of a variance in the state that is still 0, under a root. It is no parameter.
        gradient = np.nan_to_num(rows(differentiated(module, trial, here, samples)[0]))
        moves |= gradient != 0
        norm = np.linalg.norm(gradient, axis=1, keepdims=True)
        gradient *= np.minimum(1, config.max_grad_norm / np.maximum(norm, 1e-30))
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        at = at - config.learning_rate * (mean / (1 - 0.9**k)) / (np.sqrt(square / (1 - 0.999**k)) + config.adam_eps)
    return np.abs(rows(floats_of(new)[0]) - at) / config.learning_rate * moves


def update_on_line(module: ModuleType, middle: bool = False, **settings: Any) -> np.ndarray:
    """How far from where it should lead the first update on LINE ends; as of the middle of a training if so asked."""
    trial = exact_trial(module, LINE, ON_LINE, **settings)
    new, metrics, answers = trial.update(trial.state, trial.num_updates // 2 if middle else 0)
    return ends(module, trial, on_line(trial.params, metrics, answers), new)


def as_predicted(off: np.ndarray, tolerance: float = ROUNDING) -> None:
    """Raise AssertionError unless nothing is left of the prediction but rounding."""
    if not off.max() < tolerance:
        raise AssertionError(
            f"after three gradient steps a parameter is {off.max():.2g} learning rates away from where they should lead"
        )


@oracle(
    PPO,
    "the gradient steps: which samples they take, and with what beside them",
    LIKENESS,
    instead_of="gradient_steps each_sample_once",
)
def whole_batches(module: ModuleType) -> None:
    """Where one minibatch is the whole rollout, and its rewards are certain, what the value learns is too."""
    trial = exact_trial(module, CERTAIN, ON_LINE, vf_coef=0.6)
    start_alike(trial)
    of_value, of_policy = acting(module, trial)
    if (of_value & of_policy).any():
        raise CannotAskError("its policy, which learns from chance, shares parameters with its value")
    new, _, _ = trial.update(trial.state, 0)
    learned = rows(floats_of(new)[0])[:, of_value]
    off = np.abs(learned - learned[:1]).max() / trial.config.learning_rate
    if not off < ROUNDING:
        raise AssertionError(
            f"seeds that learn the values of the same rollout end {off:.2g} learning rates apart: a minibatch of all "
            "samples lacks some, or mixes them up"
        )


# As LINE, with rewards that do not depend on what is done.
PAYS = np.array([1, -2, 3, 0.5, -1, 2, 1, 0, 0], np.float32)
CERTAIN = dataclasses.replace(LINE, reward=np.tile(PAYS[:, None], 3))


def start_alike(trial: Trial) -> None:
    """Let all seeds of a trial begin with the numbers of the first; their random keys stay their own."""
    trial.state = jax.tree.map(
        lambda x: x[np.zeros(SEEDS, int)] if jnp.issubdtype(x.dtype, jnp.floating) else x, trial.state
    )


def acting(module: ModuleType, trial: Trial) -> tuple[np.ndarray, np.ndarray]:
    """Which numbers of the state `[P]` the value depends on, and which the policy."""
    floats, _ = floats_of(trial.state)
    states = np.tile(np.arange(trial.config.num_steps * trial.config.num_envs), (SEEDS, 1))
    zeros = np.zeros(states.shape, np.float32)
    batch = Samples(states, np.zeros_like(states), zeros, zeros, zeros, zeros)
    of_value, of_policy = ((rows(x) != 0).any(0) for x in differentiated(module, trial, floats, batch)[1:])
    return of_value, of_policy


@oracle(
    PPO,
    "the policy's loss: ratio, clip, sign, mean or normalised advantages; or the optimiser",
    LIKENESS,
    instead_of="policy_loss gradient_steps",
)
def exact_policy(module: ModuleType) -> None:
    """Three gradient steps on the policy's loss alone lead where Adam, written out, does."""
    as_predicted(update_on_line(module))


@oracle(
    PPO, "the value's loss, its clip or its weight; or the optimiser", LIKENESS, instead_of="value_loss gradient_steps"
)
def exact_value(module: ModuleType) -> None:
    """Three gradient steps on the value's loss do, too."""
    trial = exact_trial(module, LINE, ON_LINE)
    of_value, of_policy = acting(module, trial)
    if (of_value & of_policy).any():  # then what the policy's loss does is in it
        predicted_by(module, exact_policy)
    as_predicted(update_on_line(module, vf_coef=0.6)[:, of_value])


@oracle(PPO, "the entropy bonus", LIKENESS, instead_of="entropy_bonus gradient_steps")
def exact_entropy(module: ModuleType) -> None:
    """In the middle of a training, those on the policy's loss less the entropy bonus do, too."""
    predicted_by(module, exact_policy)
    as_predicted(update_on_line(module, middle=True, ent_coef=2.0))


@oracle(PPO, "the gradient steps: the clip of the gradient's norm", DEFINITION, instead_of="gradient_steps")
def exact_clip(module: ModuleType) -> None:
    """With a norm of the gradient far above what is allowed they do, too."""
    predicted_by(module, exact_policy, exact_value)
    as_predicted(update_on_line(module, vf_coef=0.6, max_grad_norm=0.05), FAULT)


def predicted_by(module: ModuleType, *others: Callable[[ModuleType], None]) -> None:
    """Raise CannotAskError where one of these oracles fails: what comes on top of its loss cannot be predicted."""
    for other in others:
        try:
            other(module)
        except AssertionError as error:
            raise CannotAskError(f"{other.__name__} fails: its loss or its optimiser is another") from error


@oracle(
    PPO,
    "the batch that is learned from: time and environments are mixed up",
    instead_of="learned_batch learned_targets",
)
def exact_batch(module: ModuleType) -> None:
    """What is learned of two environments in different states leads where it does by each one's own steps."""
    predicted_by(module, exact_policy, exact_value)
    trial = exact_trial(module, ROUNDS, ON_ROUNDS, vf_coef=0.6)
    new, metrics, answers = trial.update(trial.state, 0)
    total = np.rint(np.float64(emitted(metrics, "reward_mean")["reward_mean"]) * 8 * 2**16).astype(int)
    digits = total[:, None] // FOURS.astype(int) % 4
    differ = (digits > 0).all(1)  # of two environments in the same four states some digits are 0
    if differ.sum() < 8:
        raise CannotAskError("its environments hardly ever begin in different states")
    action, state = np.clip(digits - 1, 0, 2), np.tile(np.arange(8), (SEEDS, 1))
    value = np.asarray(answers[0], np.float64)
    halves = [advantages(trial.params, state[:, i], action[:, i], value) for i in (slice(4), slice(4, 8))]
    samples = samples_of(trial.params, state, action, np.concatenate(halves, axis=1), answers)
    as_predicted(ends(module, trial, samples, new)[differ], FAULT)


@oracle(
    PPO,
    "the shuffling into minibatches: all epochs go through them in the same order",
    instead_of="each_sample_once learned_targets",
)
def fresh_orders(module: ModuleType) -> None:
    """Two samples can be learned from twice in four orders, and lead to four ends."""
    need(module, "num_minibatches", "update_epochs")
    begun = exact_trial(module, LINE, ON_LINE)
    pairs = {"num_steps": 2, "num_minibatches": 2, "update_epochs": 2, "sequence_length": 1}
    # A value that the first epoch moves further than value clipping allows learns nothing in the second, in any order.
    trial = exact_trial(module, CERTAIN, ON_LINE, state=begun.state, vf_coef=0.6, clip_vloss=False, **pairs)
    start_alike(trial)
    new, _, _ = trial.update(trial.state, 0)
    learned = rows(floats_of(new)[0])[:, acting(module, begun)[0]] / trial.config.learning_rate
    found: list[np.ndarray] = []
    for x in learned:
        if all(np.abs(x - y).max() > ROUNDING for y in found):
            found.append(x)
    if len(found) < 3:  # in the same order again, it is two; of the four some may be too near to each other to count
        raise AssertionError(f"{SEEDS} seeds that shuffle two samples twice end in {len(found)} ways, not 4")


@oracle(PPO, "the sampling of actions: not by the policy's probabilities")
def sampled_odds(module: ModuleType) -> None:
    """The likeliest and the least likely of three actions are taken as often as the policy says."""
    # Far from uniform, and from certain.
    trial = exact_trial(module, ROUND_LINE, ON_LINE, learning_rate=0.05, ent_coef=0.2)
    over, variance = np.zeros(2), np.zeros(2)
    for step in range(40):
        new, metrics, answers = trial.update(trial.state, step)
        samples = on_line(trial.params, metrics, answers)
        policy = np.asarray(answers[1], np.float64)[:, :7]
        for i, which in enumerate((policy.argmax(-1), policy.argmin(-1))):
            p = np.take_along_axis(policy, which[..., None], -1)[..., 0]
            over[i] += ((samples.action == which) - p).sum()
            variance[i] += (p * (1 - p)).sum()
        trial.state = new
    for word, z in zip(("likeliest", "least likely"), over / np.sqrt(variance), strict=True):
        if not abs(z) < 5:
            raise AssertionError(
                f"the {word} of three actions is taken {abs(z):.0f} standard deviations "
                f"{'more' if z > 0 else 'less'} often than the policy says"
            )


# What an update reports.


# One state, a step long, whose actions pay more and less than the values at the start.
ONE = tables(obs=np.array([[0.5, -0.3, 0.8, 0.1]] * 4), reward=[[3.0, -3.0]] * 4, next=[0] * 4, terminated=True)


class Alone(NamedTuple):
    """Updates on one step of one environment, so that no order and no choice of samples matters."""

    action: np.ndarray
    """[S] that was taken"""
    twice: tuple[Any, dict[str, np.ndarray], list[np.ndarray]]
    """new state, metrics and answers after two gradient steps"""
    stopped: tuple[Any, dict[str, np.ndarray], list[np.ndarray]]
    """after the two of three that target_kl allows"""
    thrice: tuple[Any, dict[str, np.ndarray], list[np.ndarray]]
    """after three"""


@functools.cache
def alone(module: ModuleType) -> Alone:
    """Updates of two and of three epochs from the same states."""
    need(module, "num_envs", "num_steps", "num_minibatches", "update_epochs", "norm_adv", "target_kl", "clip_coef")
    one: dict[str, Any] = {"num_envs": 1, "num_steps": 1, "num_minibatches": 1, "norm_adv": False, "clip_coef": 0.1}
    try:
        two = Trial(module, ONE, 0.05, update_epochs=2, target_kl=1e9, **one)
        three, short = (
            Trial(module, ONE, 0.05, state=two.state, update_epochs=3, target_kl=x, **one) for x in (1e9, 1e-6)
        )
        twice, stopped, thrice = (trial.update(trial.state, 0) for trial in (two, short, three))
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise CannotAskError(f"it does not run on a rollout of one step: {in_a_line(error)}") from error
    action = (emitted(twice[1], "reward_mean")["reward_mean"] < 0).astype(int)
    return Alone(action, twice, stopped, thrice)


@oracle(PPO, "target_kl: when it stops the epochs, and what goes on after that", DEFINITION, instead_of="early_stop")
def stopped_epochs(module: ModuleType) -> None:
    """Past target_kl three epochs are as two, to the last number of the state; below it they are not."""
    found = alone(module)
    if not max(np.abs(found.thrice[2][i] - found.twice[2][i]).max() for i in (2, 3)) > 1e-4:  # values, or the policy
        raise AssertionError("far below target_kl the third epoch is left out")
    for x, y in zip(*(floats_of(state)[0] for state, *_ in (found.stopped, found.twice)), strict=True):
        close("a number of the state after an epoch that target_kl left out", x, y, 1e-5)


@oracle(PPO, "metrics: the mean over gradient steps", DEFINITION, instead_of="early_stop means_of_steps")
def metrics_of_steps(module: ModuleType) -> None:
    """Past target_kl three epochs report what two do."""
    found = alone(module)
    names = ("gradient_steps", "approx_kl", "clip_fraction", "policy_loss", "value_loss", "loss", "grad_norm")
    for name, x in emitted(found.stopped[1], *names).items():
        close(f"{name} beside an epoch that target_kl left out", x, found.twice[1].get(name, x), 1e-4)


@oracle(PPO, "a metric of the ratio", DEFINITION, instead_of="early_stop")
def metrics_of_ratios(module: ModuleType) -> None:
    """What the third of three gradient steps adds to the mean of approx_kl is that of the policy after two."""
    ratio, added = third_step(module, "approx_kl")
    close("approx_kl of the third gradient step", added, ratio - 1 - np.log(ratio), 1e-3)


@oracle(PPO, "the metric clip_fraction, or what is clipped", LIKENESS, instead_of="early_stop")
def fraction_clipped(module: ModuleType) -> None:
    """What it adds to the mean of clip_fraction is of the ratio to the policy that acted."""
    ratio, added = third_step(module, "clip_fraction")
    near = np.abs(np.abs(ratio - 1) - 0.1) < 1e-4  # on which side of the bound rounding decides
    wanted = (np.abs(ratio - 1) > 0.1).astype(float)
    close("clip_fraction of the third gradient step", added[~near], wanted[~near], 1e-3)


def third_step(module: ModuleType, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Of three gradient steps the third's ratios `[S]`, by the policy after two, and what it adds to a metric `[S]`."""
    found, seeds = alone(module), np.arange(SEEDS)
    before, after = (found.twice[2][i][seeds, 0, found.action].astype(np.float64) for i in (1, 3))
    mean = emitted(found.thrice[1], name)[name]
    return after / before, 3 * np.float64(mean) - 2 * found.twice[1][name]


# Actions in a Box.


class Fenced(Target):
    """Five dimensions with bounds of their own on both sides of 0; 100 less for each that is outside of them."""

    low, high = np.array([-1.0, -2.0, -0.5, -3.0, -1.0], np.float32), np.array([2.0, 0.7, 1.0, 1.5, 3.0], np.float32)

    def action_space(self, params: Targets | None = None) -> spaces.Box:
        return spaces.Box(self.low, self.high, (5,), jnp.float32)

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Targets) -> Any:
        obs, state, reward, terminated, info = super().step_env(key, state, action, params)
        outside = (action < self.low - 1e-4) | (action > self.high + 1e-4)
        return obs, state, reward - 100.0 * outside.sum(), terminated, info


def slopes(slope: float, peak: float) -> Targets:
    """What pays so much for each dimension of an action, and so much for any."""
    zeros = np.zeros((1, 5), np.float32)
    return Targets(
        np.array([[0.3, -0.2, 0.5]], np.float32), zeros, zeros + np.float32(slope), np.float32(0), np.float32(peak)
    )


FENCED = Fenced(slopes(1.0, 0.0))


class Boxed(NamedTuple):
    """An update on FENCED: its metrics, and the policy's means and deviations before and after."""

    metrics: dict[str, np.ndarray]
    mean: np.ndarray
    """[S, D]"""
    std: np.ndarray
    new_std: np.ndarray


@functools.cache
def boxed(module: ModuleType, init_log_std: float, slope: float, peak: float) -> Boxed:
    """One update of two gradient steps on the whole rollout. Raises CannotAskError for agents that take no Box."""
    need(module, "init_log_std", "num_envs", "num_steps", "num_minibatches", "update_epochs", "norm_adv", "ent_coef")
    settings: dict[str, Any] = {"num_minibatches": 1, "update_epochs": 2, "norm_adv": False, "ent_coef": 0.0}
    trial = Trial(module, slopes(slope, peak), 1e-3, env=FENCED, init_log_std=init_log_std, **settings)
    _, metrics, (_, (mean, std), _, (_, new_std)) = trial.update(trial.state, 0)
    return Boxed(metrics, mean[:, 0], std[:, 0], new_std[:, 0])


NARROW, WIDE = -3.0, 1.5
"""log standard deviations with which bounds are never met, and with which they are most of the time"""


def drawn_deviation(found: Boxed) -> float:
    """The standard deviation of each dimension of an action about its mean, where the reward is their sum."""
    metrics = [np.float64(emitted(found.metrics, name)[name]) for name in ("reward_mean", "reward_std")]
    about_mean = (metrics[0] - found.mean.sum(-1)) ** 2 + metrics[1] ** 2
    return float(np.sqrt(about_mean.mean() / 5))


@oracle(
    PPO,
    "the Gaussian policy: its standard deviation at the start, or the draws from it",
    LIKENESS,
    instead_of="gaussian boxed_transitions",
)
def drawn_spread(module: ModuleType) -> None:
    """At the start actions spread by exp(init_log_std)."""
    ratio = drawn_deviation(boxed(module, NARROW, 1.0, 0.0)) / math.exp(NARROW)
    if not 0.95 < ratio < 1.05:  # 5 standard deviations of that of 4,928 draws
        raise AssertionError(f"actions spread {ratio:.2f} x as much as exp(init_log_std) says")


@oracle(PPO, "`policy` of the Agent: the standard deviation that it reports", instead_of="gaussian boxed_transitions")
def reported_spread(module: ModuleType) -> None:
    """Actions spread by the standard deviation that `policy` reports."""
    found = boxed(module, NARROW, 1.0, 0.0)
    ratio = drawn_deviation(found) / np.sqrt((found.std.astype(np.float64) ** 2).mean())
    if not 0.95 < ratio < 1.05:
        raise AssertionError(f"actions spread {ratio:.2f} x as much as `policy` reports")


@oracle(PPO, "the Gaussian policy: its entropy", DEFINITION, instead_of="gaussian")
def gaussian_entropy(module: ModuleType) -> None:
    """It is the sum of those of all dimensions."""
    found = boxed(module, NARROW, 1.0, 0.0)
    wanted = (np.log(found.std.astype(np.float64)) + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)
    close("entropy of a policy in five dimensions", emitted(found.metrics, "entropy")["entropy"], wanted, 1e-3)


@oracle(PPO, "the Gaussian policy: its log-probability", instead_of="gaussian boxed_transitions")
def joint_log_prob(module: ModuleType) -> None:
    """The estimate of the KL by ratios is about that in closed form, for a ratio is that of joint probabilities."""
    metrics = boxed(module, NARROW, 1.0, 0.0).metrics
    estimate, exact = (float(emitted(metrics, name)[name].mean()) for name in ("approx_kl", "kl"))
    if not exact > 1e-7:
        raise CannotAskError("its policy does not move")
    # The estimate is of the first step, 0, and the second; kl is of both, so that it is about 8 times as large.
    ratio = estimate / exact
    if not 1 / 40 < ratio < 1:
        raise AssertionError(
            f"approx_kl is {ratio:.2g} of kl after two gradient steps in five dimensions, and should be about an eighth"
        )


@oracle(PPO, "the clipping of actions to a Box", instead_of="clipped_actions boxed_transitions")
def fenced_actions(module: ModuleType) -> None:
    """What the environment is given lies within each dimension's bounds, and reaches them."""
    found = emitted(boxed(module, WIDE, 1.0, 0.0).metrics, "reward_min", "reward_max")
    wanted = {"reward_min": Fenced.low.sum(), "reward_max": Fenced.high.sum()}
    for name, x in found.items():  # some of 4,928 draws are above all upper bounds, or below all lower ones
        furthest = x.min() if name == "reward_min" else x.max()
        close(f"{name} of actions in a Box, most of which have to be cut", furthest, wanted[name], 1e-3)


@oracle(
    PPO,
    "what is learned of actions in a Box: clipped ones, which are not what was drawn",
    instead_of="clipped_actions boxed_transitions",
)
def drawn_actions(module: ModuleType) -> None:
    """Where all actions pay the same, deviations grow as often as they fall, also where most actions are clipped."""
    found = boxed(module, WIDE, 0.0, 10.0)
    share = float((found.new_std < found.std).mean())
    if not 0.3 < share < 0.74:  # .52, of 320 within .14 at five standard deviations; of clipped actions all fall
        raise AssertionError(f"where all actions pay the same, {share:.0%} of the policy's deviations fall")


# What is shown, and running statistics.


# One of 25 pixels is lit, or none.
LIT = np.eye(26)[:, :25].reshape(26, 5, 5, 1)
OF_BYTES = tables(obs=(255 * LIT).astype(np.uint8), reward=[[0.0, 0.0]] * 26, next=[0] * 26)
OF_NUMBERS = tables(obs=LIT, reward=[[0.0, 0.0]] * 26, next=[0] * 26)


@functools.cache
def values_of_images(module: ModuleType) -> tuple[np.ndarray, np.ndarray]:
    """Values `[S, 26]` of images of bytes, and of the same in numbers from 0 to 1."""
    need(module, "conv_layers")
    numbers = Trial(module, OF_NUMBERS, env=Tabular(OF_NUMBERS), conv_layers=((4, 3, 1),))
    of_bytes = Trial(module, OF_BYTES, env=Tabular(OF_BYTES), state=numbers.state, conv_layers=((4, 3, 1),))
    return values_at(of_bytes), values_at(numbers)


@oracle(PPO, "what the network is shown of images", DEFINITION, instead_of="convolved_images shown_features")
def images_of_bytes(module: ModuleType) -> None:
    """Bytes of 0 and 255 are as numbers of 0 and 1."""
    got, wanted = values_of_images(module)
    close("the value of an image of bytes, beside that of the same in numbers", got, wanted, 1e-3)


@oracle(PPO, "the network on images: its windows leave something out", instead_of="convolved_images shown_features")
def every_pixel(module: ModuleType) -> None:
    """The value depends on each pixel that is in a window."""
    _, value = values_of_images(module)
    shown = (np.abs(value[:, :25] - value[:, 25:]) > 1e-6).any(0).reshape(5, 5)
    if not shown.any():  # as of a head that begins at 0
        raise CannotAskError("its first values are the same whatever the image")
    if not shown.all():
        row, column = np.argwhere(~shown)[0]
        raise AssertionError(f"the pixel in row {row} and column {column} changes no value")


def values_at(trial: Trial) -> np.ndarray:
    """Values `[S, n]` of the observations of a trial's table, at its state."""
    return np.asarray(values_of(trial)(trial.state, trial.params.obs))


def values_of(trial: Trial) -> Any:
    """States `[S]` of a trial, and observations `[n, ...]` in place of its table's -> their values `[S, n]`."""

    def of_seed(state: Any, obs: Any) -> Any:
        return answered(trial.agent, state, trial.env, dataclasses.replace(trial.params, obs=obs), trial.led)[0]

    return compiled(jax.vmap(of_seed, (0, None)))


# States that are passed once, but for the last: what is seen later differs from what is seen first.
DRIFT = tables(
    obs=np.random.default_rng(2).normal(size=(4, 4)) * [1.0, 3.0, 0.5, 2.0] + [0.0, 5.0, 1.0, -3.0],
    reward=[[1.0, 1.0], [-2.0, -2.0], [0.5, 0.5], [3.0, 3.0]],
    next=[1, 2, 3, 3],
    terminated=[0, 1, 0, 0],
    after=[-1, 2, -1, -1],
)
PASSED = np.minimum(np.arange(34), 3)  # the states that each environment is in


class Normalised(NamedTuple):
    """After an update on DRIFT, one of three, without learning, with running statistics of all that was seen."""

    metrics: dict[str, np.ndarray]
    value: np.ndarray
    """[S, n] of the four states, as the agent says"""
    plain: np.ndarray
    """[S, n] as an agent without statistics says of observations normalised here"""
    scale: float
    """what rewards should be divided by"""


@functools.cache
def normalised_updates(module: ModuleType) -> list[Normalised]:
    need(module, "normalize_observations", "scale_rewards", "gamma", "learning_rate", "num_envs", "num_steps")
    trial = Trial(module, DRIFT, 0.0, gamma=0.9, normalize_observations=True, scale_rewards=True)
    plain = Trial(module, DRIFT, 0.0, gamma=0.9)
    _, _, (before, _, after, _) = plain.update(plain.state, 0)
    if not np.allclose(before, after, rtol=1e-4, atol=1e-6):
        raise CannotAskError("its values move at a learning rate of 0")
    total, totals, found = 0.0, [], []
    for state in PASSED[:33]:
        total = 0.9 * total + float(DRIFT.reward[state, 0])
        totals.append(total)
        total = 0.0 if DRIFT.terminated[state, 0] else total
    says = values_of(plain)
    for step in range(3):
        trial.state, metrics, answers = trial.update(trial.state, step)
        seen = DRIFT.obs[PASSED[: 11 * (step + 1) + 1]].astype(np.float64)
        obs = np.clip((DRIFT.obs - seen.mean(0)) / np.sqrt(seen.var(0) + 1e-8), -10, 10)
        value = np.asarray(says(plain.state, obs.astype(np.float32)))
        found.append(Normalised(metrics, answers[2], value, float(np.std(totals[: 11 * (step + 1)]))))
    return found


@oracle(
    PPO,
    "the normalisation of observations: its running mean and variance",
    DEFINITION,
    instead_of="normalised_batch statistics_seen",
)
def seen_observations(module: ModuleType) -> None:
    """Values are those of observations less the mean of all seen so far, divided by their standard deviation."""
    for step, found in enumerate(normalised_updates(module)):
        value, plain = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (found.value, found.plain))
        close(f"the values of four states, to their norm, after update {step}", value, plain, 5e-3)


@oracle(PPO, "the scaling of rewards", DEFINITION, instead_of="scaled_batch statistics_seen")
def scaled_rewards(module: ModuleType) -> None:
    """They are divided by the standard deviation of their discounted sums so far, and are not shifted."""
    for step, found in enumerate(normalised_updates(module)):
        reward = np.clip(DRIFT.reward[PASSED[11 * step : 11 * step + 11], 0] / found.scale, -10, 10)
        wanted = {f"reward_{how}": getattr(reward, how)() for how in ("mean", "std", "min", "max")}
        for name, x in emitted(found.metrics, *wanted).items():
            close(f"{name} of scaled rewards in update {step}", x, np.full(SEEDS, wanted[name]), 1e-3)


@oracle(PPO, "`value` of the Agent: its units where rewards are scaled", instead_of="scaled_batch statistics_seen")
def value_units(module: ModuleType) -> None:
    """It is in the environment's units: where rewards are divided by a number, it is multiplied by that."""
    for step, found in enumerate(normalised_updates(module)):
        ratio = np.linalg.norm(found.value, axis=1) / np.linalg.norm(found.plain, axis=1)
        close(f"what values are multiplied by after update {step}", ratio, np.full(SEEDS, found.scale), 1e-2)


@oracle(PPO, "the losses that are reported, or how many gradient steps are", LIKENESS)
def known_losses(module: ModuleType) -> None:
    """Where nothing is learned every ratio is 1 and each minibatch weighs the same."""
    need(module, "gamma", "gae_lambda", "num_envs", "num_steps")
    trial, got = without_learning(module)
    fields, zeros = settings_in(module), np.zeros(SEEDS)
    wanted = {"policy_loss": zeros}
    if {"advantage_mean", "advantage_std"} <= got.keys():
        wanted["value_loss"] = 0.5 * (got["advantage_mean"] ** 2 + got["advantage_std"] ** 2)
    if {"vf_coef", "ent_coef"} <= fields and {"value_loss", "entropy"} <= got.keys():
        wanted["loss"] = trial.config.vf_coef * got["value_loss"] - trial.config.ent_coef * got["entropy"]
    if {"update_epochs", "num_minibatches"} <= fields:
        wanted["gradient_steps"] = zeros + trial.config.update_epochs * trial.config.num_minibatches
    for name, x in emitted(got, *wanted).items():
        close(f"{name} at a learning rate of 0", x, wanted[name], 1e-3)
