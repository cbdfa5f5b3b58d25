"""Oracles over the contract for agents of action values, asked in the order in which one's fault would show in others.

Parameters are known by what they do: they are the numbers of a state that its values depend on, whatever they are
called. At a learning rate of 0 both networks are alike after a sync, so that nothing shows but what is learned from.
"""

import functools
import math
from dataclasses import replace
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
    SEEDS,
    CannotAskError,
    close,
    compiled,
    emitted,
    need,
    oracle,
    part,
    same,
    settings_in,
    vectors,
)
from probes.oracles.contract import UPDATES, Trial
from rlref.contract import DQN

# Settings that shape a program, of which few are used: each other choice is compiled anew.
MAXIMUM: dict[str, Any] = {"target": "max", "max_grad_norm": 1e9}
# Three updates fill the buffer, and the first is the warm-up.
MEMORY: dict[str, Any] = {"n_step": 2, "buffer_size": 231, "learning_starts": 154}
# Where each action is the best, sums of two rewards are whole too where they are cut or weighted by who acts: Watkins's
# Q(lambda), Retrace, tree backup.
GREEDY: dict[str, Any] = {**MEMORY, "epsilon": 0.0}
TWO_CYCLES: dict[str, Any] = {"cycles": 2, "tau": 0.5, "target_network_frequency": 77}
IMAGES: dict[str, Any] = {
    "buffer_dtype": "uint8",
    "conv_layers": ((4, 3, 2),),
    "dueling": True,
    "target": "expected_sarsa",
}

# One step from state 0, cut by the time limit; what it leads to shows something else. Or it terminates there.
ONWARD = tables(obs=np.eye(4) - 0.5, reward=[[100.0, 100.0]] * 4, next=[1] * 4, truncated=True)
CUT = replace(ONWARD, reward=np.ones((4, 2), np.float32))
ENDED = replace(CUT, terminated=CUT.truncated, truncated=CUT.terminated)

# One state for ever.
FOREVER = tables(obs=np.ones((4, 4)), reward=[[1.0, 1.0]] * 4, next=[0] * 4)
SEESAW = replace(FOREVER, reward=np.array([[-1.0, -1.2]] * 4, np.float32))  # what was best becomes the worst

# One step from two states, which pays 1 in one and -1 in the other, to two that are seen at the end alone.
PAIRS = tables(
    obs=np.eye(4) - 0.2,
    reward=[[1.0] * 2, [-1.0] * 2, [0.0] * 2, [0.0] * 2],
    next=[2, 3, 2, 3],
    terminated=True,
    start=[0.5, 0.5, 0, 0],
)

# One step on one observation, whose two actions pay 10 and -10.
TWO = replace(COIN, obs=np.ones((4, 4), np.float32), reward=10 * COIN.reward)

# Steps between images of whole numbers, as bytes would hold them; no window sees their last row and column.
PICTURES = replace(PAIRS, obs=np.random.default_rng(0).integers(256, size=(4, 8, 8, 1)).astype(np.float32))

# A round of three states without an end. Any other order of two rewards is worth more or less than all right ones.
ROUND = tables(obs=np.eye(4), reward=[[10.0] * 2, [0.0] * 2, [-10.0] * 2, [0.0] * 2], next=[1, 2, 0, 0])


@functools.cache
def value_programs(module: ModuleType) -> tuple[Any, Any]:
    """(config, tables, states) -> Q `[S, n, A]`; and with weights `[S, n, A]` the gradient of their sum, by leaves."""

    def values(config: Any, params: Any, state: Any) -> Any:
        agent = module.make(config, Tabular(params), params)
        return jax.vmap(partial(agent.value, state))(jnp.asarray(params.obs))

    def gradient(config: Any, params: Any, state: Any, weights: Any) -> Any:
        leaves, tree = jax.tree.flatten(state)
        numbers = {i: x for i, x in enumerate(leaves) if is_number(x)}

        def total(numbers: dict[int, Any]) -> Any:
            changed = jax.tree.unflatten(tree, [numbers.get(i, x) for i, x in enumerate(leaves)])
            return jnp.sum(weights * values(config, params, changed))

        return jax.grad(total)(numbers)

    return compiled(jax.vmap(values, (None, None, 0))), compiled(jax.vmap(gradient, (None, None, 0, 0)))


def is_number(x: Any) -> bool:
    """Whether a leaf of a state is an array of floating-point numbers."""
    return bool(jnp.issubdtype(x.dtype, jnp.floating))


def values_of(module: ModuleType, trial: Trial, state: Any, params: Tables | None = None) -> np.ndarray:
    """Q `[S, n, A]` of the trial's observations, or of those in other tables."""
    shown = trial.params if params is None else params
    return np.asarray(value_programs(module)[0](trial.config, shown, state), np.float64)


def gradients(module: ModuleType, trial: Trial, state: Any, weights: np.ndarray) -> dict[int, np.ndarray]:
    """Of the sum of weights `[S, n, A]` times Q, by the leaves of `state` that Q depends on, `[S, ...]` each.

    Raises CannotAskError if there are none, or if Q cannot be differentiated.
    """
    try:
        found = value_programs(module)[1](trial.config, trial.params, state, np.float32(weights))
    except (NotImplementedError, TypeError, ValueError) as error:
        raise CannotAskError("its value cannot be differentiated by the numbers in its state") from error
    moving = {i: np.asarray(x, np.float64) for i, x in found.items() if np.any(x)}
    if not moving:
        raise CannotAskError("its values depend on no floating-point numbers in its state")
    return moving


def mixed(old: Any, new: Any, share: float) -> Any:
    """A state whose floating-point numbers are `share` of `new` and the rest of `old`."""
    return jax.tree.map(lambda x, y: (1 - share) * x + share * y if is_number(x) else y, old, new)


def at_rest(
    module: ModuleType, params: Tables, updates: int = 3, **settings: Any
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Metrics `[S]` of the last of some updates at a learning rate of 0, and Q `[S, n, A]`, also the target network's.

    The second update ends in a sync.
    """
    need(module, "learning_rate")
    trial = Trial(module, params, learning_rate=0.0, **settings)
    for step in range(updates):
        got, q = rest(trial, step)
    return got, q


def rest(trial: Trial, step: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """One update at a learning rate of 0: its metrics `[S]`, and Q `[S, n, A]`. CannotAskError if Q moves."""
    trial.state, got, (q, _, new_q, _) = trial.update(trial.state, step)
    if (q != new_q).any():
        raise CannotAskError("its values move at a learning rate of 0")
    return got, np.asarray(q, np.float64)


def blank(module: ModuleType, trial: Trial) -> None:
    """Set what Q depends on to 0, so that it says the same everywhere. CannotAskError if it does not."""
    shape = values_of(module, trial, trial.state).shape
    moving = gradients(module, trial, trial.state, np.ones(shape))
    leaves, tree = jax.tree.flatten(trial.state)
    trial.state = jax.tree.unflatten(tree, [0 * x if i in moving else x for i, x in enumerate(leaves)])
    if np.ptp(values_of(module, trial, trial.state)) > 1e-6:
        raise CannotAskError("its values are not the same everywhere where their parameters are 0")


def near(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether all seeds agree."""
    return bool(np.abs(x - y).max() < 1e-3)


def extremes(got: dict[str, np.ndarray], name: str, wanted: np.ndarray, when: str) -> None:
    """Raise AssertionError unless the smallest and the largest of `wanted` `[S, k]` are reported.

    31 of the 77 steps are learned from: now and then one of four kinds is missing.
    """
    for how in ("min", "max"):
        if f"{name}_{how}" in got:
            right = getattr(wanted, how)(1)
            off = np.abs(got[f"{name}_{how}"] - right) > 1e-3
            if off.mean() > 0.2:
                raise AssertionError(
                    f"{name}_{how} {when} is {got[f'{name}_{how}'][off][0]:.5g}, and should be {right[off][0]:.5g}"
                )


# Actions: what is done, and what would be.


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
        share = np.float64(metrics.get("epsilon", 0.5))  # its mean, where environments have their own
        excess.append(metrics["reward_mean"] - (1 - share) * np.where(q[:, 0].argmax(-1) == 0, 1.0, -1.0))
    if not abs(np.mean(excess)) < 0.03:  # 256 means of 77: within .03 of 0 but once in a million
        raise AssertionError(
            f"at epsilon {share.mean():.2g} actions pay {np.mean(excess):.2f} more than so many random ones and the "
            "others greedy: the two draws are not independent, or `epsilon` is not the share of random ones"
        )


@oracle(DQN, "the policy that is evaluated: the best action alone")
def evaluated_greedily(module: ModuleType) -> None:
    """`policy` is one-hot, of the action whose `value` is largest."""
    trial = Trial(module, COUNT)
    _, _, (_, _, q, policy) = trial.update(trial.state, 0)
    close("the policy, where one action has the largest value", policy, np.eye(2)[q.argmax(-1)])


@oracle(DQN, "a metric's largest value", DEFINITION)
def negative_maxima(module: ModuleType) -> None:
    """Where each step pays -1 and ends, the largest reward and return are -1."""
    found = Trial(module, replace(COIN, reward=-np.abs(COIN.reward))).run(1)
    for name, x in emitted(found, "reward_max", "return_max").items():
        close(f"{name} of rewards of -1", x[-1], np.full(SEEDS, -1.0))


@oracle(DQN, "the schedule of exploration, or the metric `epsilon`", LIKENESS)
def known_epsilon(module: ModuleType) -> None:
    """Of the 11 steps in 7 environments each has its own, on a line until half of the training is over."""
    need(module, "start_e", "end_e", "train_frequency", "exploration_fraction")
    falls = emitted(Trial(module, NOISE, epsilon=1.0, end_e=0.2).run(12), "epsilon")["epsilon"]
    steps = 77 * np.arange(12)[:, None] + 7 * np.arange(11)
    line = np.clip(1 - 0.8 * steps / (77 * UPDATES / 2), 0.2, 1).mean(1)
    close("epsilon over 12 of 20 updates", falls[:, 0], line, 1e-3)


# What the replay buffer keeps, and what targets are made of it. At a learning rate of 0.


@oracle(DQN, "the rewards that are learned from")
def learned_rewards(module: ModuleType) -> None:
    """Without a discount, targets of steps that terminate are as far apart as their rewards, and alike in all seeds.

    Of a network that answers the same everywhere, as a method may add something that depends on its answers: the gap
    between actions (Bellemare et al. 2016, arXiv:1512.04860), or the policy's entropy.
    """
    need(module, "gamma", "learning_rate")
    trial = Trial(module, PAIRS, learning_rate=0.0, gamma=0.0)
    blank(module, trial)
    for step in range(3):  # the second ends in a sync, of which the third learns
        got, _ = rest(trial, step)
    low, high = (emitted(got, name)[name].astype(np.float64) for name in ("target_min", "target_max"))
    if (off := np.abs(high - low - 2) > 1e-3).mean() > 0.2:  # now and then one of the rewards is not learned from
        raise AssertionError(
            f"targets of rewards of +1 and -1, in their units, are {low[off][0]:.5g} to {high[off][0]:.5g}"
        )
    middle = (low + high)[~off] / 2
    if (np.abs(middle - np.median(middle)) > 1e-3).mean() > 0.2:
        raise AssertionError(
            f"targets of rewards of +1 and -1 are about {middle.min():.3g} in one seed and {middle.max():.3g} in "
            "another: what is added to rewards depends on others"
        )


@oracle(DQN, "what is kept of a step, or taken from what is kept: its observation, and the reward beside it")
def stored_steps(module: ModuleType) -> None:
    """Values learned are of the states that steps begin in, and each target is of the same step as its value."""
    need(module, "gamma")
    got, q = at_rest(module, PAIRS, gamma=0.0)
    errors = np.array([1.0, -1.0])[:, None] - q[:, :2]  # of either action, of which not both may be learned from
    bounds = {
        "value_min": (q[:, :2].min((1, 2)), q[:, :2].max((1, 2))),
        "value_max": (q[:, :2].min((1, 2)), q[:, :2].max((1, 2))),
        "td_error_min": (errors.min((1, 2)), errors.max(2).min(1)),
        "td_error_max": (errors.min(2).max(1), errors.max((1, 2))),
    }
    for name, x in emitted(got, *bounds).items():
        least, most = bounds[name]
        outside = ~((x > least - 1e-3) & (x < most + 1e-3))
        if outside.any():
            raise AssertionError(
                f"{name} is {x[outside][0]:.4g}, and should be from {least[outside][0]:.4g} to "
                f"{most[outside][0]:.4g}: observations or rewards are of other steps"
            )


@oracle(DQN, "what the replay buffer keeps of an ending: which it was, and what it led to")
def stored_endings(module: ModuleType) -> None:
    """What a step led to is bootstrapped from, never what the next episode begins with; and not if it terminated."""
    (cut, q), (ended, _), (going, _) = (bootstrap(module, params) for params in (CUT, ENDED, FOREVER))
    last, first = q[:, 1].max(-1), q[:, 0].max(-1)
    if near(cut, 0 * cut) and near(ended, last) and not near(going, 0 * going):
        raise AssertionError("steps that terminate are bootstrapped from and cut ones are not: they are kept swapped")
    if not near(cut, last) and near(cut, first):
        raise AssertionError("after a time limit the target is of what the next episode begins with")


@oracle(DQN, "the next value: of its actions the best")
def best_next_value(module: ModuleType) -> None:
    """What follows a step is worth the largest value there, where both networks are alike."""
    cut, q = bootstrap(module, CUT)
    low, high = q[:, 1].min(-1), q[:, 1].max(-1)
    if ((cut > low - 1e-3) & (cut < high + 1e-3)).all():  # else it is of something else, which other checks ask for
        close("the value that follows a step", cut, high, 1e-3)


def bootstrap(module: ModuleType, params: Tables) -> tuple[np.ndarray, np.ndarray]:
    """What targets `[S]` add to rewards of 1, without a discount; and Q."""
    need(module, "gamma", "start_e", "end_e")
    got, q = at_rest(module, params, gamma=1.0, epsilon=0.0)
    return emitted(got, "target_mean")["target_mean"].astype(np.float64) - 1, q


@oracle(DQN, "the targets: discount, and endings")
def known_returns(module: ModuleType) -> None:
    """A target is the reward and, unless the step terminated, gamma times something: half as much at half of gamma.

    Of what, is the method's: the largest Q, or the mean over networks of the largest of each.
    """
    need(module, "gamma", "start_e", "end_e")
    for what, params in (("that ends nothing", FOREVER), ("that terminates", ENDED), ("that is cut", CUT)):
        (got, q), (at_half, _) = (at_rest(module, params, gamma=gamma, epsilon=0.0) for gamma in (0.9, 0.45))
        whole, half = (emitted(x, "target_mean")["target_mean"] - 1 for x in (got, at_half))
        if np.abs(q).max() < 1e-3:
            raise CannotAskError("its first values are all 0, so that targets are rewards alone")
        if params is ENDED:
            close(f"the target of a step {what} and pays 1", whole + 1, np.ones(SEEDS), 1e-3)
            continue
        if np.abs(whole).max() < 1e-3:
            raise AssertionError(f"the target of a step {what} is its reward: nothing is added of what it led to")
        close(f"what the target of a step {what} has beside its reward at half of gamma", half, whole / 2, 1e-3)


def need_greedy(module: ModuleType) -> None:
    """Raise CannotAskError unless the action taken at epsilon 0 is the best by `value`, where nothing is learned.

    An agent with several heads may act by one of them.
    """
    need(module, "start_e", "end_e", "learning_rate")
    if not acts_by_value(module):
        raise CannotAskError("at epsilon 0 it takes other actions than the best by its value")


@functools.cache
def acts_by_value(module: ModuleType) -> bool:
    """Whether what a greedy rollout is paid is what the best actions by `value` pay."""
    trial = Trial(module, replace(FOREVER, reward=COIN.reward), learning_rate=0.0, epsilon=0.0)
    _, got, (q, *_) = trial.update(trial.state, 0)
    paid = emitted(got, "reward_mean")["reward_mean"]
    return bool(np.abs(paid - COIN.reward[0][q[:, 0].argmax(-1)]).max() <= 1e-3)


# Steps in mid-update, and what is reported of all.


@oracle(DQN, "which parameters act: the newest")
def newest_parameters(module: ModuleType) -> None:
    """After a gradient step in mid-update its result acts; the first of two steps ends where a lone one does."""
    found = mid_update(module)
    wanted = {"reward_mean": found.reward, "value_mean": found.value}
    for name, x in emitted(found.metrics, *wanted).items():
        close(f"{name} with a gradient step in mid-update", x, wanted[name], 1e-3)


def need_single_steps(metrics: dict[str, np.ndarray]) -> None:
    """Raise CannotAskError if an update took more than one gradient step where rlref's takes one."""
    if np.any(metrics.get("gradient_steps", 1) > 1):
        raise CannotAskError("it takes more than one gradient step where rlref's takes one")


class MidUpdate(NamedTuple):
    """What an update of two cycles on SEESAW reports, and what it should, each `[S]`; and what its targets need."""

    metrics: dict[str, np.ndarray]
    reward: np.ndarray
    value: np.ndarray
    lone: Trial
    stepped: Any
    """the state after a lone gradient step"""
    actions: tuple[np.ndarray, np.ndarray]
    """best before that step, and after it"""


@functools.cache
def mid_update(module: ModuleType) -> MidUpdate:
    """All transitions between two gradient steps are alike, so that the first of two in one update ends where a lone
    one does. The target network then moves half of the way to it.
    """
    need(module, "start_e", "end_e", "train_frequency", "cycles_per_update")
    need_greedy(module)
    lone = Trial(module, SEESAW, 0.1, epsilon=0.0)
    need_one_step(lone)
    trial = Trial(module, SEESAW, 0.1, epsilon=0.0, **TWO_CYCLES)
    stepped, got, (q, _, moved, _) = lone.update(lone.state, 0)
    need_single_steps(got)
    q, moved, seeds = q[:, 0], moved[:, 0], np.arange(SEEDS)
    first, second = q.argmax(-1), moved.argmax(-1)
    _, got, _ = trial.update(trial.state, 0)
    rewards = np.asarray(SEESAW.reward)[0]
    value = (q[seeds, first] + moved[seeds, second]) / 2
    return MidUpdate(got, (rewards[first] + rewards[second]) / 2, value, lone, stepped, (first, second))


@oracle(DQN, "how many gradient steps an update takes", LIKENESS)
def counted_steps(module: ModuleType) -> None:
    """One after each train_frequency steps, and none before learning_starts."""
    need_memory(module)
    for settings, updates, wanted in (({}, 1, 1), (TWO_CYCLES, 1, 2), (MEMORY, 1, 0)):
        got = Trial(module, FOREVER, **settings).run(updates)
        for name, x in emitted(got, "gradient_steps").items():
            close(f"{name} in an update", x, np.full((1, SEEDS), float(wanted)))


@oracle(DQN, "the recording of steps: rewards, episodes, the return after each action", DEFINITION)
def known_steps(module: ModuleType) -> None:
    """Where each step is known beforehand, what is reported of rewards, episodes and what followed is too."""
    need(module, "gamma", "start_e", "end_e", "train_frequency")
    need_greedy(module)
    gamma, trial = 0.9, Trial(module, CYCLE, 1e-3, epsilon=0.0, gamma=0.9)
    reward, truncated = CYCLE.reward[:, 0].astype(np.float64), CYCLE.truncated[:, 0]
    ended = CYCLE.terminated[:, 0] | truncated
    returns, episode = [], []
    for step in range(3):
        old = trial.state
        trial.state, got, (q, *_) = trial.update(old, step)
        need_single_steps(got)
        best = q.astype(np.float64).max(-1)
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
        wanted = {"overestimation": excess / count, "episodes": np.full(SEEDS, 7 * int(ended[at].sum()))}
        if hasattr(old, "params"):
            before, after = (vectors(s.params) for s in (old, trial.state))
            wanted["update_ratio"] = np.linalg.norm(after - before, axis=1) / np.linalg.norm(before, axis=1)
        last = np.repeat(returns, 7)[-100:]
        for name, x in (("reward", reward[at]), ("return", last), ("length", np.full(1, 2.0))):
            wanted |= {f"{name}_{how}": np.full(SEEDS, getattr(x, how)()) for how in ("mean", "std", "min", "max")}
        for name, x in emitted(got, *wanted).items():
            close(f"{name} in update {step}", x, wanted[name], 1e-3)


# What the replay buffer keeps of more updates than one, and sums of several rewards.


def need_memory(module: ModuleType) -> None:
    need(module, "gamma", *MEMORY, "train_frequency", "num_envs", "target_network_frequency")


@oracle(
    DQN,
    "the replay buffer: slots that are not written yet, or steps whose return is not whole",
    instead_of="sampled_returns replay_odds",
)
def whole_returns(module: ModuleType) -> None:
    """Where every step pays 10, all sums of two rewards are alike, also as long as the buffer is not full."""
    need_memory(module)
    params = replace(FOREVER, reward=10 * FOREVER.reward)
    trial = Trial(module, params, learning_rate=0.0, gamma=1.0, **GREEDY)
    for step in range(5):
        got, _ = rest(trial, step)
        least, most = (emitted(got, name)[name] for name in ("target_min", "target_max"))
        if (most - least > 5).any():  # there is one state, whose value is the same for all of them
            at = int((most - least).argmax())
            raise AssertionError(f"in update {step} targets are {least[at]:.4g} to {most[at]:.4g}, and should be alike")


@oracle(DQN, "the replay buffer: which steps are overwritten")
def oldest_overwritten(module: ModuleType) -> None:
    """Steps of more than buffer_size ago are not learned from: what paid 10 has long paid -10."""
    need_memory(module)
    params = replace(TWO, reward=np.full((4, 2), 10, np.float32), flip_at=np.int32(33))
    got, _ = at_rest(module, params, updates=6, **MEMORY)
    for name, x in emitted(got, "target_max", "target_min").items():
        if (x > 5).any():
            raise AssertionError(f"{name} is {x.max():.4g}, of steps of more than buffer_size ago: they are still kept")


@oracle(DQN, "returns of n steps", DEFINITION, instead_of="sampled_returns")
def known_n_step_returns(module: ModuleType) -> None:
    """Sums of two rewards end with the episode, and what follows the last of them is discounted once for each."""
    need_memory(module)
    # The third update: all that it learns from is in the order in which it came.
    got, q = at_rest(module, CYCLE, gamma=0.9, **GREEDY)
    reward, best, leads_to = CYCLE.reward[:, 0].astype(np.float64), q.max(-1), CYCLE.next[:, 0]
    one = reward + 0.9 * ~CYCLE.terminated[:, 0] * best[:, leads_to]
    goes_on = ~(CYCLE.terminated | CYCLE.truncated)[:, 0]
    emitted(got, "target_min", "target_max")
    extremes(got, "target", np.where(goes_on, reward + 0.9 * one[:, leads_to], one), "of 2-step returns")


@oracle(DQN, "the replay buffer: its order, where it is full and begins anew", DEFINITION)
def replay_order(module: ModuleType) -> None:
    """Sums of two rewards in a row are of steps that followed each other, also after the buffer has gone round."""
    need_memory(module)
    trial = Trial(module, ROUND, learning_rate=0.0, gamma=0.9, **GREEDY)
    blank(module, trial)
    reward = ROUND.reward[:3, 0]
    target = reward + 0.9 * np.roll(reward, -1)
    for step in range(8):
        got, _ = rest(trial, step)
        if step < 2:  # nothing is learned, or the target network is not synced yet
            continue
        metrics = emitted(got, "target_min", "target_max")
        for name, sign in (("target_min", -1), ("target_max", 1)):
            bound = getattr(target, name[-3:])()
            off = sign * (metrics.get(name, bound) - bound)
            if off.max() > 0.5:  # another order is off by 9
                raise AssertionError(
                    f"{name} of 2-step returns in update {step} is {metrics[name][off.argmax()]:.5g}, and steps that "
                    f"follow each other give {bound:.5g}: the buffer's order is lost where it begins anew"
                )


@oracle(DQN, "the warm-up")
def warm_up(module: ModuleType) -> None:
    """Before learning_starts no value moves, and after it they do."""
    need_memory(module)
    trial = Trial(module, COIN, **MEMORY)
    need_one_step(trial)
    for step in range(3):
        trial.state, got, (before, _, after, _) = trial.update(trial.state, step)
        if step == 1:  # when it ends just learning_starts steps are done: either is right
            continue
        learns = step > 1
        if (before != after).any() != learns:
            said = "moves no value, though the warm-up is over" if learns else "moves values, in the warm-up"
            raise AssertionError(f"update {step} {said}")
        if "gradient_steps" in got:
            wanted = np.full(SEEDS, learns)
            close(f"whether there are gradient_steps in update {step}", got["gradient_steps"] > 0, wanted)


# Which random draws the replay buffer's are.


@oracle(DQN, "random keys of the replay buffer: shared by the gradient steps of an update")
def fresh_replay_draws(module: ModuleType) -> None:
    """The mean age of what two gradient steps learn from varies no more than that of two draws of 31 steps."""
    need(module, "cycles_per_update", "batch_size", "buffer_size", "train_frequency", "num_envs")
    trial = Trial(module, FOREVER, learning_rate=0.0, **TWO_CYCLES)
    age = emitted(trial.run(9), "sample_age")["sample_age"][1:]
    # 11 ages 7 apart, as likely as each other. Of 512 means: within .32 of 1 but once in a million; 2 if drawn alike.
    ratio = float(age.var()) / (49 * (11**2 - 1) / 12 / 62)
    if ratio > 1.4:
        raise AssertionError(f"mean ages vary {ratio:.1f} x as much as if each gradient step drew its own minibatch")


@oracle(DQN, "random keys: the minibatch of the diagnostics is one learned from", DEFINITION)
def fresh_diagnostics(module: ModuleType) -> None:
    """What is drawn at an update's end for its diagnostics is not the minibatch of its gradient step."""
    need(module, "gamma", "start_e", "end_e")
    got, _ = at_rest(module, PAIRS, gamma=0.0, epsilon=1.0)
    found = emitted(got, "value_bias", "td_error_mean")
    if len(found) < 2:
        raise CannotAskError("it emits no value_bias beside td_error_mean")
    same_draw = np.abs(found["value_bias"] - found["td_error_mean"]) < 1e-5
    if same_draw.mean() > 0.5:  # of two draws of four kinds few agree
        raise AssertionError("value_bias and td_error_mean are of the same minibatch where nothing is learned")


# The gradient step.


@oracle(DQN, "the gradient: of the online network at the states visited, and of nothing else")
def semi_gradient(module: ModuleType) -> None:
    """The first step moves every parameter to where it raises Q(s, a), whose target is far above."""
    need_greedy(module)  # else it is not known which action is taken
    trial, new, q = first_step(module)
    moved = changes(trial.state, new)
    for i, g in gradients(module, trial, trial.state, best_of_first(q)).items():
        counts = np.abs(g) > 1e-3 * np.abs(g).max()
        if (np.sign(moved[i]) != np.sign(g))[counts].mean() > 0.02:
            where = jax.tree_util.keystr(jax.tree_util.tree_leaves_with_path(trial.state)[i][0])
            raise AssertionError(f"{where} does not move along the gradient of Q(s, a): another gradient is in it")


@oracle(
    DQN,
    "the optimiser: its step, its moments from step to step, the clip of the gradient's norm",
    LIKENESS,
    instead_of="optimiser",
)
def adam_steps(module: ModuleType) -> None:
    """Two updates are Adam's first two steps on the clipped gradient, whose length does not tell of the loss."""
    need(module, "adam_eps", "learning_rate", "gamma", "start_e", "end_e", "train_frequency")
    rate, eps, clip = 1e-2, 1e-3, 0.1 if "max_grad_norm" in settings_in(module) else math.inf
    trial = Trial(module, replace(ENDED, reward=1000 * CUT.reward), rate, epsilon=0.0, gamma=0.0, adam_eps=eps,
                  **MAXIMUM | {"max_grad_norm": clip})  # fmt: skip
    need_one_step(trial)
    history: list[dict[int, np.ndarray]] = []
    for step in range(2):
        old, (trial.state, _, (q, *_)) = trial.state, trial.update(trial.state, step)
        gradient = gradients(module, trial, old, best_of_first(q) * (q - 1000))
        norm = np.sqrt(sum((g**2).reshape(SEEDS, -1).sum(1) for g in gradient.values()))
        history.append({i: g * over(np.minimum(1, clip / norm), g) for i, g in gradient.items()})
        furthest = furthest_off(old, trial.state, history, rate * annealed(module, step), eps)
        if not furthest < 0.02:
            raise AssertionError(
                f"in step {step + 1} a parameter is {furthest:.2g} learning rates away from where Adam's leads"
            )


@oracle(DQN, "the optimiser in the warm-up: it stands still", LIKENESS)
def first_after_warm_up(module: ModuleType) -> None:
    """The first step that counts is Adam's first, one learning rate long, whatever was seen in the warm-up."""
    need_memory(module)
    need(module, "adam_eps", "learning_rate", "start_e", "end_e")
    # In the warm-up each step pays 10, then -10: gradients that differ.
    params = replace(TWO, reward=np.full((4, 2), 10, np.float32), flip_at=np.int32(11))
    trial = Trial(module, params, epsilon=0.0, gamma=0.0, adam_eps=1e-8, **MEMORY)
    need_one_step(trial)
    before, _, _ = trial.update(trial.state, 0)
    after, _, (q, *_) = trial.update(before, 1)
    gradient = gradients(module, trial, before, best_of_first(q))
    moved, rate = changes(before, after), 1e-2 * annealed(module, 1)
    counted = {i: np.abs(g) > 1e-3 * np.abs(g).max() for i, g in gradient.items()}  # far above Adam's epsilon
    longest = max(float(np.abs(np.abs(moved[i][counts]) / rate - 1).max()) for i, counts in counted.items())
    if not longest < 0.02:
        raise AssertionError(
            f"the first step after the warm-up is {longest:.2g} learning rates longer or shorter than Adam's first"
        )


@oracle(
    DQN, "the loss: of which action's value, and how errors are summed up", LIKENESS, instead_of="td_loss optimiser"
)
def two_kinds(module: ModuleType) -> None:
    """Where one action pays 10 and the other -10, the step is on the mean of their squared errors or half of these."""
    need(module, "adam_eps", "learning_rate", "gamma", "batch_size", "start_e", "end_e")
    rate, eps = 1e-2, 30.0
    trial = Trial(module, TWO, rate, epsilon=1.0, gamma=0.0, adam_eps=eps, **MAXIMUM)
    new, got, (q, *_) = trial.update(trial.state, 0)
    share = (10 + emitted(got, "target_mean")["target_mean"].astype(np.float64)) / 20  # of the action that pays 10
    if np.abs(31 * share - np.rint(31 * share)).max() > 1e-2:
        raise CannotAskError("its targets are not the rewards")
    weights = np.zeros(q.shape)
    weights[:, 0] = np.stack([share * (q[:, 0, 0] - 10), (1 - share) * (q[:, 0, 1] + 10)], axis=1)
    gradient = gradients(module, trial, trial.state, weights)
    furthest = min(
        furthest_off(trial.state, new, [{i: scale * g for i, g in gradient.items()}], rate, eps) for scale in (1, 2)
    )
    if not furthest < 0.02:
        raise AssertionError(
            f"a parameter is {furthest:.2g} learning rates away from where the mean of squared errors leads"
        )


@oracle(DQN, "the size of the gradient step: the loss, or the optimiser", LIKENESS, instead_of="td_loss optimiser")
def first_step_size(module: ModuleType) -> None:
    """The first step is Adam's, on the squared error or half of it.

    All transitions are alike, so the gradient of half the squared error is (Q - target) times that of Q(s, a).
    """
    need(module, "adam_eps", "gamma", "start_e", "end_e")
    trial, new, q = first_step(module)
    error = q[:, :1] - (100 + 0.9 * q[:, 1:2].max(-1, keepdims=True))
    gradient = gradients(module, trial, trial.state, best_of_first(q) * error)
    furthest = min(
        furthest_off(trial.state, new, [{i: scale * g for i, g in gradient.items()}], 1e-2, 30.0) for scale in (1, 2)
    )
    if not furthest < 0.02:
        raise AssertionError(
            f"a parameter is {furthest:.2g} learning rates away from where Adam's first step on the squared error leads"
        )


def first_step(module: ModuleType) -> tuple[Trial, Any, np.ndarray]:
    """A trial of greedy steps that pay 100 and are cut, its state after one update, and Q `[S, n, A]` before it."""
    trial = Trial(module, ONWARD, 1e-2, epsilon=0.0, gamma=0.9, adam_eps=30.0, **MAXIMUM)
    new, _, (q, *_) = trial.update(trial.state, 0)
    return trial, new, np.asarray(q, np.float64)


def need_one_step(trial: Trial) -> None:
    """Raise CannotAskError unless each update ends in its one gradient step."""
    if trial.why:
        raise CannotAskError(trial.why)


def annealed(module: ModuleType, step: int) -> float:
    """What share of the learning rate is left in an update."""
    return 1 - step / UPDATES if "anneal_lr" in settings_in(module) else 1.0


def best_of_first(q: np.ndarray) -> np.ndarray:
    """1 at the best action of the first state, and 0 elsewhere, like Q `[S, n, A]`."""
    weights = np.zeros(q.shape)
    weights[np.arange(SEEDS), 0, q[:, 0].argmax(-1)] = 1
    return weights


def changes(old: Any, new: Any) -> dict[int, np.ndarray]:
    """How the numbers of a state have moved, by leaf."""
    pairs = enumerate(zip(jax.tree.leaves(old), jax.tree.leaves(new), strict=True))
    return {i: np.asarray(y, np.float64) - np.asarray(x, np.float64) for i, (x, y) in pairs if is_number(x)}


def over(x: np.ndarray, like: np.ndarray) -> np.ndarray:
    """A number for each seed, `[S]`, in as many dimensions as `like` `[S, ...]`."""
    return x.reshape(-1, *[1] * (like.ndim - 1))


def furthest_off(old: Any, new: Any, history: list[dict[int, np.ndarray]], rate: float, eps: float) -> float:
    """How far a parameter ends from where Adam's last step on these gradients leads, in learning rates."""
    moved, furthest = changes(old, new), 0.0
    for i in history[-1]:
        first, second = np.zeros_like(moved[i]), np.zeros_like(moved[i])
        for gradient in history:
            g = gradient.get(i, np.zeros_like(first))
            first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
        steps = len(history)
        step = -first / (1 - 0.9**steps) / (np.sqrt(second / (1 - 0.999**steps)) + eps)
        furthest = max(furthest, float(np.abs(moved[i] / rate - step).max()))
    return furthest


# The network.


@oracle(DQN, "the network: the activation of its hidden layers")
def bent_layers(module: ModuleType) -> None:
    """With hidden layers Q is no linear function of what is observed."""
    need(module, "hidden_sizes")
    x, y = np.eye(4)[:2]
    trial = Trial(module, replace(FOREVER, obs=np.stack([0 * x, x, y, x + y]).astype(np.float32)))
    q = values_of(module, trial, trial.state)
    if np.abs(q[:, 0] + q[:, 3] - q[:, 1] - q[:, 2]).max() < 1e-3 * np.abs(q).max():
        raise AssertionError("Q of a sum of observations is the sum of theirs: the hidden layers have no activation")


def image_trial(module: ModuleType, params: Tables = PICTURES) -> Trial:
    """A trial that learns nothing, of random actions on images, with all settings that concern the network."""
    return Trial(module, params, learning_rate=0.0, epsilon=1.0, gamma=0.0, **IMAGES)


@oracle(DQN, "the network on images: its convolutions' windows", instead_of="convolved_images")
def covered_pixels(module: ModuleType) -> None:
    """Of an image Q depends on every pixel that a window covers."""
    need(module, "conv_layers")
    trial = image_trial(module)

    def slope(state: Any, obs: Any) -> Any:
        agent = module.make(trial.config, Tabular(PICTURES), PICTURES)
        return jax.grad(lambda x: agent.value(state, x).sum())(obs)

    slopes = compiled(jax.vmap(slope, (0, None)))(trial.state, jnp.asarray(PICTURES.obs[0]))
    seen = (np.asarray(slopes) != 0).any(axis=(0, 3))[:7, :7]  # three windows of 3, 2 apart
    if not seen.any():  # as of a head that begins at 0
        raise CannotAskError("its first values are the same whatever the image")
    if not seen.all():
        at = [int(i) for i in np.argwhere(~seen)[0]]
        raise AssertionError(f"Q does not depend on the pixel at {at}, which windows of 3 that are 2 apart cover")


@oracle(
    DQN,
    "the network on images: bytes are shown to it as 0 to 1",
    DEFINITION,
    instead_of="convolved_images shown_features",
)
def scaled_bytes(module: ModuleType) -> None:
    """Q of an image of bytes, 0 and 255, is that of one of the numbers 0 and 1."""
    need(module, "conv_layers")
    trial = image_trial(module)
    marks = PICTURES.obs > 127
    ones = values_of(module, trial, trial.state, replace(PICTURES, obs=marks.astype(np.float32)))
    of_bytes = values_of(module, trial, trial.state, replace(PICTURES, obs=255 * marks.astype(np.uint8)))
    close("Q of an image of bytes, 0 and 255, to that of 0 and 1,", of_bytes, ones, 1e-3)


@oracle(DQN, "the replay buffer: observations that are kept as bytes", instead_of="storage stored_transitions")
def stored_images(module: ModuleType) -> None:
    """Values learned are of the images that were kept, whole numbers from 0 to 255."""
    need(module, "buffer_dtype", "start_e", "end_e")
    # One image, so that none can be taken for another.
    trial = image_trial(module, replace(PICTURES, obs=np.broadcast_to(PICTURES.obs[:1], PICTURES.obs.shape)))
    _, got, (q, *_) = trial.update(trial.state, 0)
    emitted(got, "value_min", "value_max")
    extremes(got, "value", np.asarray(q, np.float64)[:, 0], "of an image kept as bytes")


@oracle(DQN, "the network: its dueling heads", DEFINITION, instead_of="dueling_heads")
def known_duel(module: ModuleType) -> None:
    """Only differences of advantages count, and Q of one observation does not depend on those beside it."""
    need(module, "dueling", "start_e", "end_e")
    trial = image_trial(module)
    _, got, (q, *_) = trial.update(trial.state, 0)
    extremes(got, "value", np.asarray(q, np.float64)[:, :2].reshape(SEEDS, -1), "with dueling heads")
    first = np.arange(4)[:, None] == 0
    one = gradients(module, trial, trial.state, np.broadcast_to(first & (np.arange(2) == 0), q.shape))
    both = gradients(module, trial, trial.state, np.broadcast_to(first, q.shape))
    # What moves all advantages alike moves no Q: those heads' parameters have no part in the sum over actions.
    of_advantages = False
    for i, g in one.items():
        least = 1e-5 * np.abs(g).max()
        of_advantages |= bool(((np.abs(both.get(i, 0 * g)) < least).all(0) & (np.abs(g) > least).any(0)).any())
    if not of_advantages:
        raise AssertionError("with dueling heads the mean over actions depends on the advantages: it is not taken off")


# The target network, and the values of next states.


@oracle(
    DQN,
    "the value of the next state under the policy that explores",
    DEFINITION,
    instead_of="bootstrapped_targets next_state_values",
)
def expected_next_value(module: ModuleType) -> None:
    """With target = expected_sarsa at epsilon .5 it is .75 of the largest value and .25 of the other."""
    need(module, "target", "gamma", "start_e", "end_e")
    got, q = at_rest(module, replace(CUT, obs=PICTURES.obs), gamma=1.0, epsilon=0.5, **IMAGES)
    wanted = 1 + 0.75 * q[:, 1].max(-1) + 0.25 * q[:, 1].min(-1)
    close("target_mean of expected SARSA", emitted(got, "target_mean")["target_mean"], wanted, 1e-3)


@oracle(DQN, "the target network: when it is synced, and to what", LIKENESS)
def known_target_network(module: ModuleType) -> None:
    """With target = max, what follows a step is its value: that of the last sync, or where tau has led by then."""
    need(module, "target", "target_network_frequency", "gamma", "start_e", "end_e", "train_frequency")
    for tau in (1.0, 0.25) if "tau" in settings_in(module) else (1.0,):
        follow_target_network(module, ("target",), tau, **MAXIMUM)


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


@oracle(DQN, "the targets: which network chooses the next action, and which values it", LIKENESS)
def known_q_targets(module: ModuleType) -> None:
    """In double Q-learning the online network chooses and the target network values; so follow target and error."""
    need(module, "gamma", "start_e", "end_e", "train_frequency")
    follow_target_network(module, ("target", "value", "td_error"), 1.0)


def follow_target_network(module: ModuleType, asked: tuple[str, ...], tau: float, **settings: Any) -> None:
    """Raise AssertionError unless four updates on CYCLE report, of the metrics that are `asked`, what follows.

    Greedy throughout, one gradient step at the end of each update, on a buffer of just this update's 77 steps. After
    every second one the target network is what the online one is then, or moves by tau towards it.
    """
    trial = Trial(module, CYCLE, 1e-2, epsilon=0.0, gamma=0.9, tau=tau, **settings)
    leads_to, reward, goes_on = CYCLE.next[:, 0], CYCLE.reward[:, 0].astype(np.float64), ~CYCLE.terminated[:, 0]
    synced = trial.state  # whose values are the target network's
    for step in range(4):
        trial.state, got, (q, *_) = trial.update(trial.state, step)
        target_q = values_of(module, trial, synced)
        choosing = target_q if settings.get("target") == "max" else q
        next_value = np.take_along_axis(target_q, choosing.argmax(-1)[..., None], -1)[..., 0]
        target, value = reward + 0.9 * goes_on * next_value[:, leads_to], q.astype(np.float64).max(-1)
        emitted(got, *(f"{name}_min" for name in asked), *(f"{name}_max" for name in asked))
        for name, x in (("target", target), ("value", value), ("td_error", target - value)):
            if name in asked:
                extremes(got, name, x, f"in update {step}{'' if tau == 1 else f' with tau {tau}'}")
        if step % 2:
            synced = mixed(synced, trial.state, tau)


@oracle(DQN, "which parameters choose the next action (the newest), or value it (the target network's)", LIKENESS)
def newest_targets(module: ModuleType) -> None:
    """In double Q-learning the newest choose, and a sync in mid-update counts."""
    need(module, "target", "target_network_frequency", "tau", "n_step", "gamma")
    found = mid_update(module)
    lone, (first, second), seeds = found.lone, found.actions, np.arange(SEEDS)
    q, synced = (values_of(module, lone, s)[:, 0] for s in (lone.state, mixed(lone.state, found.stepped, 0.5)))
    wanted = found.reward + lone.config.gamma * (q[seeds, first] + synced[seeds, second]) / 2
    got = emitted(found.metrics, "target_mean")["target_mean"]
    close("target_mean with a gradient step in mid-update", got, wanted, 1e-3)


# Metrics.


@oracle(DQN, "a metric", DEFINITION)
def known_q_metrics(module: ModuleType) -> None:
    """On one observation whose reward is +1 or -1, each metric follows from Q before and after, and epsilon."""
    need(module, "start_e", "end_e", "train_frequency")
    for epsilon in (0.5, 0.0):
        trial = Trial(module, NOISE, epsilon=epsilon)
        trial.run(3)  # to where the target network is not the online one
        _, got, (q, _, new_q, _) = trial.update(trial.state, 3)
        need_single_steps(got)
        q, new_q = q[:, 0].astype(np.float64), new_q[:, 0].astype(np.float64)
        low, floor = epsilon / 2, max(epsilon, 0.01) / 2
        entropy = -sum(p * math.log(p) for p in (1 - low, low) if p)
        churn = (q.argmax(-1) != new_q.argmax(-1)).astype(float)
        wanted = {
            "churn": churn,
            "buffer_fill": np.ones(SEEDS),
            "episodes": np.full(SEEDS, 77),
            "reward_min": np.full(SEEDS, -1),
            "reward_max": np.full(SEEDS, 1),
            "nonfinite": np.zeros(SEEDS),
        }
        # Where environments explore each by its own epsilon, that is a mean, and nothing follows from it.
        if np.allclose(got.get("epsilon", epsilon), epsilon):
            wanted |= {"entropy": np.full(SEEDS, entropy), "relative_entropy": np.full(SEEDS, entropy / math.log(2))}
            wanted["kl"] = churn * (1 - 2 * floor) * math.log((1 - floor) / floor)
        if {"td_error_mean", "target_mean", "value_mean"} <= got.keys():
            wanted["td_error_mean"] = np.float64(got["target_mean"]) - got["value_mean"]
        if epsilon == 0:
            wanted |= {"action_entropy": np.zeros(SEEDS), "explained_variance": np.zeros(SEEDS)}
            wanted |= {"value_mean": q.max(-1), "overestimation": q.max(-1) - got.get("reward_mean", np.nan)}
        for name, x in emitted(got, *wanted).items():
            close(f"{name} at epsilon {epsilon}", x, wanted[name], 1e-3)
