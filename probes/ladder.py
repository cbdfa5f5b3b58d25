"""The ladder: every probe, in order of dependence, with its truth, what it isolates, and the wrong answers to it.

Jones 2021, "Debugging RL, Without the Agonizing Pain": environments so small that the right answer is known exactly,
each adding one mechanism to the last, so that the first that fails says where the bug is.

A probe is a function of a random generator, which draws what differs between seeds (signs, best arms), to a `Case`: an
environment's parameters, the truth, and wrong answers by cause. Its docstring derives the truth.

Kinds of agents: `A` actor and critic (V and a policy), `Q` action values, `C` a policy alone.
Letters: `n` states, `A` actions, `D` action dimensions. Discounts are chosen so that wrong answers lie far apart.
"""

import dataclasses
import math
import zlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from probes import solve
from probes.environments import Tables, Targets, tables
from probes.oracles.base import LIKENESS, TRUTH
from rlref.contract import ALL, CEM, DQN, GRADIENT, PPO


@dataclasses.dataclass(frozen=True)
class Answer:
    """What an agent ends at; None where a probe says nothing about it."""

    value: np.ndarray | None = None
    """`[n]` V of each state"""
    policy: np.ndarray | None = None
    """`[n, A]` probabilities; for a Box `[n, D]` the mean, clipped to the Box"""
    q: np.ndarray | None = None
    """`[n, A]` action values, where they do not follow from `value`"""


@dataclasses.dataclass(frozen=True)
class Case:
    """A probe as one seed meets it."""

    params: Any
    """`Tables` or `Targets`"""
    truth: Answer
    wrong: Mapping[str, Answer] = dataclasses.field(default_factory=dict)
    """cause -> the answer that it leads to"""


@dataclasses.dataclass(frozen=True)
class Probe:
    """One rung."""

    name: str
    make: Callable[[np.random.Generator], Case]
    kinds: tuple[str, ...]
    isolates: str
    """the component that is at fault if this rung is the first to fail"""
    gamma: float
    tolerance: float
    """largest error of a value"""
    policy_tolerance: float
    """largest error of a probability, or of a mean"""
    fingerprints: bool
    """whether the wrong learners of probes/solve.py belong to this probe's wrong answers"""
    settings: Mapping[str, Mapping[str, Any]]
    """kind of agent -> its settings that differ from those of probes/check.py, `updates` among them"""
    holds: str = TRUTH
    """TRUTH or LIKENESS, as of oracles"""

    def case(self, seed: int, kind: str = "ppo") -> Case:
        """What seed `seed` of an agent of that kind meets: the same whatever other seeds there are."""
        case = self.make(np.random.default_rng([zlib.crc32(self.name.encode()), seed]))
        return mirrored(case) if kind == "cem" else case

    def values(self, kind: str, case: Case, answer: Answer) -> np.ndarray | None:
        """What an agent's `value` gives where it ends at `answer`: V `[n]`, or Q `[n, A]`; None where that is open."""
        if kind == "cem":
            return None
        if kind == "ppo":
            return answer.value
        if answer.q is not None or answer.value is None:
            return answer.q
        if answer is case.truth:
            return solve.action_values(case.params, answer.value, self.gamma)
        # A wrong V does not say how a wrong Q came about, but where there is nothing to choose.
        return answer.value[:, None] if case.params.reward.shape[1] == 1 else None

    def wrong(self, case: Case) -> dict[str, Answer]:
        """Cause -> the wrong answer that it leads to."""
        found = dict(case.wrong)
        if self.fingerprints:
            policy = np.full(case.params.reward.shape, 1 / case.params.reward.shape[1])
            for cause, learner in solve.WRONG.items():
                value = solve.state_values(case.params, policy, self.gamma, learner)
                if value is not None and case.truth.value is not None and not np.allclose(value, case.truth.value):
                    found[cause] = Answer(value)
        return found


LADDER: dict[str, Probe] = {}
# Probes that look at a policy's or a value's exact size average over larger batches.
LARGE_BATCH: dict[str, Any] = {"num_steps": 31, "norm_adv": False, "learning_rate": 4e-4}
# Both at once, so that they train in one program; a constant observation does not see its normalisation.
NORMALIZED: dict[str, Any] = {"normalize_observations": True, "scale_rewards": True}
HALF = np.full((1, 2), 0.5)


def probe(
    kinds: tuple[str, ...],
    isolates: str,
    *,
    gamma: float = 0.9,
    tolerance: float = 0.1,
    policy_tolerance: float = 0.1,
    fingerprints: bool = False,
    settings: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    holds: str = TRUTH,
) -> Callable[[Callable[[np.random.Generator], Case]], Callable[[np.random.Generator], Case]]:
    """Add the decorated function to the ladder."""

    def add(make: Callable[[np.random.Generator], Case]) -> Callable[[np.random.Generator], Case]:
        name = make.__name__
        exactness = (tolerance, policy_tolerance, fingerprints)
        LADDER[name] = Probe(name, make, kinds, isolates, gamma, *exactness, settings, holds)
        return make

    return add


def mirrored(case: Case) -> Case:
    """A case of two actions and, with equal odds, the same with its actions swapped.

    The sign of the first number shown says which. For agents that answer with an action alone: of two, a policy that
    has learned nothing takes the right one half of the time; in both at once, if it always takes the same, never.
    Observations `[n, F]` become `[2 n, 1 + F]`.
    """
    params = case.params
    if not isinstance(params, Tables) or params.obs.ndim != 2 or params.reward.shape[1] != 2:
        return case
    n = len(params.obs)

    def both(x: Any, shift: int = 0) -> Any:
        swapped = x[:, ::-1]
        return np.concatenate([x, np.where(swapped < 0, swapped, swapped + shift) if shift else swapped])

    def answer(x: Answer) -> Answer:
        policy = None if x.policy is None else np.concatenate([x.policy, x.policy[:, ::-1]])
        return Answer(None if x.value is None else np.tile(x.value, 2), policy)

    shown = np.concatenate([np.ones((n, 1), np.float32), params.obs], axis=1)
    params = dataclasses.replace(
        params,
        obs=np.concatenate([shown, -shown]),
        start=np.tile(params.start / 2, 2),
        reward=both(params.reward),
        next=both(params.next, n),
        terminated=both(params.terminated),
        truncated=both(params.truncated),
        after=both(params.after, n),
    )
    return Case(params, answer(case.truth), {cause: answer(x) for cause, x in case.wrong.items()})


def best(actions: Any, num_actions: int = 2) -> np.ndarray:
    """`[n, A]`: all probability on the given action of each state."""
    return np.eye(num_actions)[np.asarray(actions)]


def a_bandit(rewards: np.ndarray, obs: Any, scale: float = 1.0) -> Case:
    """One step: state s, drawn evenly, pays `scale * rewards[s, a]`; in each state the best is 1 and the worst -1."""
    n, num_actions = rewards.shape
    good, bad = best(rewards.argmax(1), num_actions), best(rewards.argmin(1), num_actions)
    params = tables(
        obs=obs, reward=scale * rewards, next=(np.arange(n) + 1) % n, terminated=True, start=np.full(n, 1 / n)
    )
    return Case(
        params,
        Answer(np.full(n, scale), good),
        {
            "the policy does not learn, or ignores the observation": Answer(
                np.zeros(n), np.full(rewards.shape, 1 / num_actions), np.zeros(rewards.shape)
            ),
            "it learns the worst action: a sign is wrong": Answer(np.full(n, -scale), bad, -scale * rewards),
        },
    )


def two_contexts(rng: np.random.Generator) -> np.ndarray:
    """Rewards `[2, 2]`: +1 for the action that matches the context, -1 for the other; which matches is drawn."""
    match = rng.integers(2)
    return np.where(np.eye(2)[[match, 1 - match]] > 0, 1.0, -1.0)


@probe(GRADIENT, "the value's loss, or the optimiser", gamma=0.3, tolerance=0.07)
def constant(rng: np.random.Generator) -> Case:
    """One state, one step, one action, reward c = +1 or -.7. V = c."""
    c = rng.choice([1.0, -0.7])
    params = tables(obs=[[0.0]], reward=[c], next=[0], terminated=True)
    wrong = {
        "the value does not learn": Answer(np.zeros(1)),
        "the value's sign is wrong": Answer(np.array([-c])),
        "the reward is discounted too": Answer(np.array([0.3 * c])),
        "the value learns the advantage, not the target": Answer(np.array([c / 2])),  # V = c - V
        "termination is ignored: it bootstraps from the final observation": Answer(np.array([c / 0.7])),
    }
    return Case(params, Answer(np.array([c])), wrong)


@probe(GRADIENT, "the path from the observation to its value: backpropagation, batching, broadcasting", gamma=0.5)
def obs_value(rng: np.random.Generator) -> Case:
    """Observations +1 and -1 pay 1 and -.4, which way is drawn. V(s) = r(s).

    The rewards are unequal, so that a value that leaks over the batch ends at their mean, .3, and not at 0.
    """
    r = rng.permutation([1.0, -0.4])
    params = tables(obs=[[1.0], [-1.0]], reward=r, next=[1, 0], terminated=True, start=[0.5, 0.5])
    wrong = {
        "the values of a batch are averaged: a shape broadcasts, or the observation is ignored": Answer(
            np.full(2, 0.3)
        ),
        "values belong to other observations of the batch": Answer(r[::-1]),
        "the value does not learn": Answer(np.zeros(2)),
    }
    return Case(params, Answer(r), wrong)


@probe(GRADIENT, "discounting, and bootstrapping from the next state", gamma=0.5, tolerance=0.06, fingerprints=True)
def discount(rng: np.random.Generator) -> Case:
    """0 -> 1 -> end, rewards 0 and 1; the final observation is 1's. V(1) = 1, V(0) = gamma V(1) = .5."""
    params = tables(obs=[[0.0], [1.0]], reward=[0, 1], next=[1, 1], terminated=[False, True])
    return Case(params, Answer(np.array([0.5, 1.0])))


@probe(GRADIENT, "the bootstrap or the trace over a reset", gamma=0.5, tolerance=0.12, fingerprints=True)
def reset_leak(rng: np.random.Generator) -> Case:
    """0 -> 1 -> end, rewards -2 and 2; the final observation is 1's. V(1) = 2, V(0) = -2 + gamma V(1) = -1."""
    params = tables(obs=[[-1.0], [1.0]], reward=[-2, 2], next=[1, 1], terminated=[False, True])
    return Case(params, Answer(np.array([-1.0, 2.0])))


@probe(GRADIENT, "truncation against termination", gamma=0.6, tolerance=0.055, fingerprints=True)
def truncation_pair(rng: np.random.Generator) -> Case:
    """One step, reward 1. A terminates with B as final observation, B is truncated with A as final observation.

    V(A) = 1, since termination ends the value; V(B) = 1 + gamma V(A) = 1.6, since a time limit does not.
    """
    params = tables(obs=[[1.0], [-1.0]], reward=1, next=[1, 0], terminated=[1, 0], truncated=[0, 1], start=[0.5, 0.5])
    return Case(params, Answer(np.array([1.0, 1.6])))


@probe(
    GRADIENT, "truncation against termination, over long episodes", gamma=0.9, tolerance=0.24, fingerprints=True,
    settings={"ppo": {"gae_lambda": 0.0}},
)  # fmt: skip
def truncation_loop(rng: np.random.Generator) -> Case:
    """s0 pays -5 and leads to s1, which pays 1 and leads to itself; truncated after 5 steps, final observation s1's.

    V(s1) = 1 + gamma V(s1) = 1 / (1 - .9) = 10, V(s0) = -5 + gamma V(s1) = 4. Without a trace (lambda 0) the
    wrong answers do not depend on where a rollout is cut.
    """
    obs = [[-1.0], *[[1.0]] * 5]
    truncated = [False, False, False, False, True, False]
    params = tables(obs=obs, reward=[-5, 1, 1, 1, 1, 1], next=[1, 2, 3, 4, 5, 5], truncated=truncated)
    return Case(params, Answer(np.array([4.0, *[10.0] * 5])))


@probe(ALL, "the policy's gradient, or the choice of actions", tolerance=0.2)
def bandit(rng: np.random.Generator) -> Case:
    """One state, two arms that pay +1 and -1; the best is drawn. The policy takes it, V -> 1."""
    return a_bandit(two_contexts(rng)[:1], [[0.0]])


@probe(ALL, "a policy that depends on the observation", tolerance=0.2)
def context_bandit(rng: np.random.Generator) -> Case:
    """Observations +1 and -1; an action pays +1 if it matches and -1 if not. Both are matched, V = 1."""
    return a_bandit(two_contexts(rng), [[1.0], [-1.0]])


@probe(CEM, "the score: the mean over rollouts", settings={"cem": {"num_rollouts": 101}})
def noisy_bandit(rng: np.random.Generator) -> Case:
    """One arm pays 1 in two of five episodes and -.4 in the others, the other arm 0. Which episode it is, is hidden.

    The first is better, .16 on average; a median, or a single rollout more often than not, says the opposite.
    """
    pays = np.arange(2) == rng.integers(2)
    params = tables(
        obs=[[0.0]] * 2, reward=[np.where(pays, 1.0, 0.0), np.where(pays, -0.4, 0.0)], next=[0, 1], terminated=True,
        start=[0.4, 0.6],
    )  # fmt: skip
    wrong = {
        "the score is not the mean over rollouts: one of them, or their median": Answer(
            policy=best([pays.argmin()] * 2)
        )
    }
    return Case(params, Answer(policy=best([pays.argmax()] * 2)), wrong)


@probe(
    ALL,
    "the gather of the action taken, the axes, or minibatches; CEM: the elites",
    tolerance=0.09,
    settings={"ppo": {"learning_rate": 3e-3, "updates": 200}, "cem": {"population_size": 257}},
)
def table(rng: np.random.Generator) -> Case:
    """Three states, one-hot, drawn with .5, .3, .2; five actions; one step; 15 different rewards, columns drawn.

    The policy takes each row's best: V = 1, .5, -.1.
    """
    rewards = np.array([
        [1.0, -0.9, -0.2, -0.05, -0.5],
        [-0.8, 0.5, -1.1, -0.3, -0.6],
        [-1.3, -0.75, -1.0, -1.2, -0.1],
    ])[:, rng.permutation(5)]  # fmt: skip
    share = np.array([0.5, 0.3, 0.2])
    params = tables(obs=np.eye(3), reward=rewards, next=[1, 2, 0], terminated=True, start=share)
    value, pooled = rewards.max(1), share @ rewards
    wrong = {
        "the policy does not learn": Answer(rewards.mean(1), np.full((3, 5), 0.2), np.zeros((3, 5))),
        "it learns the worst action: a sign is wrong": Answer(rewards.min(1), best(rewards.argmin(1), 5), -rewards),
        "all states are treated as one": Answer(
            np.full(3, pooled.max()), best([pooled.argmax()] * 3, 5), np.tile(pooled, (3, 1))
        ),
    }
    return Case(params, Answer(value, best(rewards.argmax(1), 5)), wrong)


@probe(
    ALL,
    "the mask of allowed actions",
    settings={"ppo": {"learning_rate": 3e-3, "updates": 200}, "cem": {"population_size": 257}},
)
def allowed(rng: np.random.Generator) -> Case:
    """Four states, one-hot; of four actions, paying 2, 1, 0 and -1, the first is forbidden. Each takes the second.

    What is forbidden would pay as said, so that an agent that takes it, or has a gradient from it, is richer: V = 2.
    """
    pays = np.stack([rng.permutation([2.0, 1.0, 0.0, -1.0]) for _ in range(4)])
    may = pays < 2
    params = tables(
        obs=np.concatenate([np.eye(4), may], axis=1), reward=pays, next=[1, 2, 3, 0], terminated=True,
        start=np.full(4, 0.25), action_mask=4,
    )  # fmt: skip
    wrong = {
        "the mask is ignored: forbidden actions are taken": Answer(np.full(4, 2.0), best(pays.argmax(1), 4), pays),
        "the policy does not learn, or ignores the observation": Answer(np.zeros(4), may / 3, np.zeros((4, 4))),
        "it learns the worst action: a sign is wrong": Answer(np.full(4, -1.0), best(pays.argmin(1), 4), -pays),
    }
    right = best((pays * may - 9.0 * ~may).argmax(1), 4)
    return Case(params, Answer(np.ones(4), right, np.where(may, pays, np.nan)), wrong)


@probe(PPO, "several choices at a time", settings={"ppo": {"learning_rate": 3e-3, "updates": 200}})
def two_choices(rng: np.random.Generator) -> Case:
    """Three states, one-hot; each of two choices, of 2 and 3 options, pays 1/2 if it is the right one. V = 1."""
    first, second = rng.permutation([0, 1, 1]), rng.permutation(3)
    pays = (best(first)[:, :, None] + best(second, 3)[:, None]).reshape(3, 6) / 2
    params = tables(
        obs=np.eye(3), reward=pays, next=[1, 2, 0], terminated=True, start=np.full(3, 1 / 3), choices=(2, 3)
    )
    right, third = np.concatenate([best(first), best(second, 3)], axis=1), np.full((3, 3), 1 / 3)
    wrong = {
        "the policy does not learn, or ignores the observation": Answer(
            np.full(3, 5 / 12), np.concatenate([np.full((3, 2), 0.5), third], axis=1)
        ),
        "only the first choice is learned": Answer(np.full(3, 2 / 3), np.concatenate([best(first), third], axis=1)),
        "the first choice's reward is lost": Answer(
            np.full(3, 3 / 4), np.concatenate([np.full((3, 2), 0.5), best(second, 3)], axis=1)
        ),
    }
    return Case(params, Answer(np.ones(3), right), wrong)


@probe(GRADIENT, "the hidden layers", tolerance=0.2, settings={"dqn": {"learning_rate": 4e-2}})
def exclusive_or(rng: np.random.Generator) -> Case:
    """Two signs are shown; equal ones pay 1 and unequal ones -1, or the other way round. V(s) = r(s).

    The best that a value linear in the two can do is their mean, 0 everywhere (Minsky & Papert 1969).
    """
    obs = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    r = rng.choice([1.0, -1.0]) * obs.prod(axis=1)
    params = tables(obs=obs, reward=r, next=[1, 2, 3, 0], terminated=True, start=np.full(4, 0.25))
    wrong = {"the value is linear: its hidden layers are without activation, or it does not learn": Answer(np.zeros(4))}
    return Case(params, Answer(r), wrong)


@probe(
    GRADIENT,
    "time and environment axes, or the order of a batch's fields",
    gamma=0.5,
    tolerance=0.06,
    settings={"dqn": {"learning_rate": 4e-2}},
)
def env_axis(rng: np.random.Generator) -> Case:
    """One of three ids, drawn at the reset, and one of three times are shown; the reward depends on both.

    V(id, 2) = r(id, 2), V(id, t) = r(id, t) + gamma V(id, t + 1).
    """
    r = np.array([[1.0, 0.2, 0.6], [-0.5, 0.8, 0.1], [0.4, -0.3, 1.2]])[rng.permutation(3)]
    value = r.copy()
    for t in (1, 0):
        value[:, t] += 0.5 * value[:, t + 1]
    index = np.arange(9).reshape(3, 3)
    params = tables(
        obs=[[i - 1.0, t - 1.0] for i in range(3) for t in range(3)],
        reward=r.ravel(),
        next=np.concatenate([index[:, 1:], index[:, 2:]], axis=1).ravel(),
        terminated=np.tile([False, False, True], 3),
        start=np.tile([1 / 3, 0, 0], 3),
    )
    wrong = {
        "environments are mixed: every id has the mean over ids": Answer(np.tile(value.mean(0), 3)),
        "times are mixed: every time has the mean over times": Answer(np.repeat(value.mean(1), 3)),
        "the value does not learn": Answer(np.zeros(9)),
    }
    return Case(params, Answer(value.ravel()), wrong)


def temptation(rng: np.random.Generator, obs: Any) -> Case:
    tempting = rng.integers(2)
    reward = np.full((2, 2), 0.1)
    reward[:, tempting] = 0.0
    reward[1] += 1.0  # the episode after the tempting action
    params = tables(obs=obs, reward=reward, next=[0, 1], terminated=True, after=[np.arange(2) == tempting] * 2)
    wrong = {
        "the trace runs on over the reset: the next episode's reward counts": Answer(policy=best([tempting] * 2)),
        "the policy does not learn": Answer(policy=np.full((2, 2), 0.5)),
    }
    return Case(params, Answer(policy=best([1 - tempting] * 2)), wrong)


@probe(PPO + CEM, "the trace, or the fitness, is not cut at the end of an episode")
def reset_temptation(rng: np.random.Generator) -> Case:
    """One step. One action pays .1; the other 0, but the NEXT episode then pays 1 more. The observation is constant.

    An episode's return does not contain the next one's reward, so the action that pays .1 is right. The two swap at
    random. The value cannot tell: it sees the mean of both kinds of episodes.
    """
    return temptation(rng, [[0.0], [0.0]])


@probe(DQN, "the bootstrap over a reset, where it tempts")
def reset_temptation_visible(rng: np.random.Generator) -> Case:
    """As reset_temptation, but the episode that pays 1 more can be seen: Q = r(s, a); termination ends the value."""
    case = temptation(rng, [[-1.0], [1.0]])
    return dataclasses.replace(case, truth=Answer(np.array([0.1, 1.1]), case.truth.policy))


@probe(PPO + CEM, "credit over several steps: lambda, or the order in time", tolerance=0.1)
def delayed_credit(rng: np.random.Generator) -> Case:
    """Four steps, of which only the time is shown; the first action alone decides whether the last step pays +1 or -1.

    The first action is right; then V = gamma^3, gamma^2, gamma, 1 = .729, .81, .9, 1. The state after it is hidden: a
    learner without a long trace hears of the choice only through a value that cannot know it.
    """
    right = rng.integers(2)
    time = np.eye(4)
    # 0: the choice; 1, 2, 3: after the right one; 4, 5, 6: after the wrong one.
    first = np.where(np.arange(2) == right, 1, 4)
    params = tables(
        obs=time[[0, 1, 2, 3, 1, 2, 3]],
        reward=[0, 0, 0, 1, 0, 0, -1],
        next=[first, *[[i, i] for i in (2, 3, 3, 5, 6, 6)]],
        terminated=[0, 0, 0, 1, 0, 0, 1],
    )
    # After the choice no action matters.
    policy = np.full((7, 2), np.nan)
    value = np.array([0.729, 0.81, 0.9, 1.0, 0.81, 0.9, 1.0])
    undecided, opposite = policy.copy(), policy.copy()
    policy[0], undecided[0], opposite[0] = best(right), [0.5, 0.5], best(1 - right)
    wrong = {
        "credit does not reach back three steps": Answer(np.zeros(7), undecided),
        "it learns the worst action: a sign is wrong": Answer(-value, opposite),
    }
    return Case(params, Answer(value, policy), wrong)


@probe(
    GRADIENT,
    "noise in the rewards",
    tolerance=0.06,
    settings={"ppo": LARGE_BATCH, "dqn": {"learning_rate": 5e-4, "end_e": 1.0}},
)
def noisy_reward(rng: np.random.Generator) -> Case:
    """One state, one step, reward 1 or -.5 with equal odds. V = .25; the explained variance is 0 in truth."""
    params = tables(obs=[[0.0]], reward=[0.25], next=[0], terminated=True, noise=0.75)
    return Case(params, Answer(np.array([0.25])), {"the value does not learn": Answer(np.zeros(1))})


@probe(CEM, "the fitness: all rewards up to the episode's end, undiscounted", gamma=1.0)
def patience(rng: np.random.Generator) -> Case:
    """One action ends the episode and pays 1; the other pays 1.02 four steps later. Undiscounted, that is more.

    Discounted by .99 or less it is less, and a fitness that stops early has not seen it.
    """
    waits = rng.integers(2)
    first = np.arange(2) == waits
    params = tables(
        obs=np.eye(5)[:, :1],
        reward=[np.where(first, 0.0, 1.0), *[[0.0] * 2] * 3, [1.02] * 2],
        next=[[1, 1], [2, 2], [3, 3], [4, 4], [4, 4]],
        terminated=[~first, *[[False] * 2] * 3, [True] * 2],
    )
    # After the choice no action matters.
    policy = np.full((5, 2), np.nan)
    impatient = policy.copy()
    policy[0], impatient[0] = best(waits), best(1 - waits)
    wrong = {"the fitness is discounted, or stops before the episode does": Answer(policy=impatient)}
    return Case(params, Answer(policy=policy), wrong)


@probe(ALL, "the size of rewards: small ones", tolerance=0.002)
def small_rewards(rng: np.random.Generator) -> Case:
    """context_bandit with rewards of .01. The policy is the same, V = .01."""
    return a_bandit(two_contexts(rng), [[1.0], [-1.0]], scale=0.01)


@probe(
    ALL,
    "the size of rewards: large ones",
    tolerance=20.0,
    settings={
        "ppo": {**LARGE_BATCH, "learning_rate": 1.5e-2, "max_grad_norm": np.inf},
        "dqn": {"learning_rate": 4e-2},
    },
    holds=LIKENESS,  # a temperature, or the bend of a loss, knows one scale of rewards
)
def large_rewards(rng: np.random.Generator) -> Case:
    """context_bandit with rewards of 100. The policy is the same, V = 100.

    Without the clip of the gradient's norm: where actor and critic share it, the value's starves the policy's.
    """
    return a_bandit(two_contexts(rng), [[1.0], [-1.0]], scale=100.0)


def soft_bandit(rng: np.random.Generator, coefficient: float) -> Case:
    rewards = rng.permutation([1.0, -1.0])[None]

    def softmax(temperature: float) -> np.ndarray:
        weight = np.exp(rewards / temperature)
        return weight / weight.sum()

    params = tables(obs=[[0.0]], reward=rewards, next=[0], terminated=True)
    wrong = {
        "the entropy bonus is missing, or its sign is wrong": Answer(policy=best(rewards.argmax(1))),
        "the entropy bonus is twice as strong": Answer(policy=softmax(2 * coefficient)),
        "the entropy bonus is half as strong": Answer(policy=softmax(coefficient / 2)),
        "the policy does not learn": Answer(policy=HALF),
    }
    return Case(params, Answer(policy=softmax(coefficient)), wrong)


@probe(
    PPO,
    "the sign and the size of the entropy bonus",
    policy_tolerance=0.025,
    settings={"ppo": {**LARGE_BATCH, "ent_coef": 1.0}},
    holds=LIKENESS,  # a bonus may fall during the training
)
def soft_bandit_1(rng: np.random.Generator) -> Case:
    """Two arms that pay +1 and -1, entropy coefficient c = 1, advantages not normalised.

    E[r] + c H is largest at pi = softmax(r / c): e / (e + 1/e) = .881 for the best arm.
    """
    return soft_bandit(rng, 1.0)


@probe(
    PPO,
    "the sign and the size of the entropy bonus",
    policy_tolerance=0.025,
    settings={"ppo": {**LARGE_BATCH, "ent_coef": 2.0}},
    holds=LIKENESS,  # a bonus may fall during the training
)
def soft_bandit_2(rng: np.random.Generator) -> Case:
    """soft_bandit_1 with c = 2: softmax(r / 2) is .731 for the best arm."""
    return soft_bandit(rng, 2.0)


@probe(ALL, "exploration", tolerance=0.15)
def password(rng: np.random.Generator) -> Case:
    """Three bits to be entered; the last right one pays 1, a wrong one ends the episode with .05. V = .81, .9, 1."""
    bits = rng.integers(2, size=3)
    entered = np.eye(2, dtype=bool)[bits]
    params = tables(
        obs=np.eye(3),
        reward=np.where(entered, np.array([[0.0], [0.0], [1.0]]), 0.05),
        next=np.where(entered, np.array([[1], [2], [2]]), np.arange(3)[:, None]),
        terminated=~entered | np.array([[False], [False], [True]]),
    )
    first_wrong = np.full((3, 2), np.nan)
    first_wrong[0] = best(1 - bits[0])
    wrong = {"it settles for the small reward": Answer(np.array([0.05, np.nan, np.nan]), first_wrong)}
    return Case(params, Answer(np.array([0.81, 0.9, 1.0]), best(bits)), wrong)


@probe(
    PPO + CEM,
    "the scaling of rewards: they may be divided, never shifted",
    tolerance=0.24,
    settings={"ppo": NORMALIZED},
)
def will_to_live(rng: np.random.Generator) -> Case:
    """One action ends the episode, the other goes on, up to a time limit of 5; a step pays r = 1 or -1, +- .1.

    Only the observation's constant is shown. At r = 1 going on is right, at r = -1 ending is. Of a reward whose mean
    is taken off only noise is left, and nothing to prefer. V, in the reward's own units: going on, V = 1 + gamma V =
    10, for the time limit does not end the value; ending at once, V = -1.
    """
    r, ends = rng.choice([1.0, -1.0]), rng.integers(2)
    terminated = np.arange(2) == ends
    params = tables(
        obs=[[0.0]] * 6,
        reward=r,
        next=[1, 2, 3, 4, 5, 5],
        terminated=np.tile(terminated, (6, 1)),
        truncated=np.where(terminated, False, (np.arange(6) == 4)[:, None]),
        # Else all returns would be the same in the end, their deviation 0, and V in units of it out of reach.
        noise=0.1,
    )
    right = best([ends if r < 0 else 1 - ends] * 6)
    wrong = {
        "rewards are shifted: nothing is left to prefer": Answer(policy=np.full((6, 2), 0.5)),
        "it learns the worst action: a sign is wrong": Answer(policy=1 - right),
    }
    return Case(params, Answer(np.full(6, 10.0 if r > 0 else -1.0), right), wrong)


@probe(
    PPO,
    "the normalisation of observations, in training or at evaluation",
    tolerance=0.2,
    settings={"ppo": {**NORMALIZED, "ent_coef": 0.05}},
)
def offset_obs(rng: np.random.Generator) -> Case:
    """context_bandit with observations 1000 + .01 and 1000 - .01, to be normalised. Both are matched, V = 1.

    The first statistics are of 7 observations, now and then all the same: without a bonus for entropy one seed in
    500 settles on an action before it can tell them apart.
    """
    return a_bandit(two_contexts(rng), [[1000.01], [999.99]])


@probe(PPO + CEM, "the Gaussian policy: log-probability, sum over dimensions, axes", policy_tolerance=0.09)
def continuous_target(rng: np.random.Generator) -> Case:
    """Observations +1 and -1, one step, two dimensions, r = 1 - |a - a*(s)|^2. The mean ends at a*(s).

    a*(s) = s (.6, -.2), with the sign and the order of dimensions drawn.
    """
    optimum = np.array([[1.0], [-1.0]]) * rng.permutation([0.6, -0.2]) * rng.choice([1.0, -1.0])
    optimum = optimum.astype(np.float32)
    params = Targets(
        np.array([[1.0], [-1.0]], np.float32), optimum, np.zeros_like(optimum), np.float32(1), np.float32(1)
    )
    wrong = {
        "the policy does not learn, or ignores the observation": Answer(policy=np.zeros((2, 2))),
        "the dimensions are swapped": Answer(policy=optimum[:, ::-1]),
        "contexts are swapped, or a sign is wrong": Answer(policy=-optimum),
    }
    return Case(params, Answer(policy=optimum), wrong)


@probe(
    CEM,
    "the extra variance, without which the search stops on its way",
    policy_tolerance=0.08,
    settings={"cem": {"extra_variance": 1.0}},
    holds=LIKENESS,  # where observations are normalised the optimum is near, and so much variance overshoots
)
def far_optimum(rng: np.random.Generator) -> Case:
    """continuous_target with observations of +.1 and -.1: the weights of the optimum lie 7 and 2 std from the start.

    Where .15 of the candidates are selected by one weight, their mean is 1.55 std higher and their std .44 of it:
    without extra variance the search goes 1.55 / (1 - .44) = 2.78 std in all, and the action to tanh(.278) = .27.
    """
    case = continuous_target(rng)
    params = dataclasses.replace(case.params, obs=np.float32(0.1) * case.params.obs)
    stopped = np.clip(case.params.optimum, -math.tanh(0.278), math.tanh(0.278))
    wrong = {"the search stops on its way: its variance shrinks too soon": Answer(policy=stopped)}
    return dataclasses.replace(case, params=params, wrong={**case.wrong, **wrong})


@probe(CEM, "the hidden layers", policy_tolerance=0.09, settings={"cem": {"hidden_sizes": (7,), "updates": 60}},
       holds=LIKENESS)  # where actions are cut at their bounds, some searches end on the plateau beyond  # fmt: skip
def curved_target(rng: np.random.Generator) -> Case:
    """Observations 1, 0 and -1, one step, r = 1 - (a - a*(s))^2, a* = z, -z, z with z = .5 or -.5. The mean ends at a*.

    The best that a policy without a curve can do is the mean of the three, z / 3 everywhere.
    """
    optimum = (rng.choice([0.5, -0.5]) * np.array([[1.0], [-1.0], [1.0]])).astype(np.float32)
    obs = np.array([[1.0], [0.0], [-1.0]], np.float32)
    params = Targets(obs, optimum, np.zeros((3, 1), np.float32), np.float32(1), np.float32(1))
    flat = np.full_like(optimum, optimum.mean())
    wrong = {"the policy is linear: its hidden layers are without activation": Answer(policy=flat)}
    return Case(params, Answer(policy=optimum), wrong)


@probe(PPO + CEM, "the clipping of actions to the Box", tolerance=0.15, policy_tolerance=0.2)
def boundary(rng: np.random.Generator) -> Case:
    """r = w(s) . a in the Box [-1, 1]^2, |w_1| + |w_2| = 1: the optimum is a corner, V -> 1.

    The environment takes actions as they come: sent without being clipped they would earn more than 1.
    """
    slope = np.array([[1.0], [-1.0]]) * rng.permutation([0.6, -0.4]) * rng.choice([1.0, -1.0])
    slope = slope.astype(np.float32)
    params = Targets(np.array([[1.0], [-1.0]], np.float32), np.zeros_like(slope), slope, np.float32(0), np.float32(0))
    wrong = {
        "actions reach the environment unclipped": Answer(np.full(2, 2.0), np.sign(slope)),
        "the policy does not learn": Answer(np.zeros(2), np.zeros((2, 2))),
        "a sign is wrong": Answer(np.full(2, -1.0), -np.sign(slope)),
    }
    return Case(params, Answer(np.ones(2), np.sign(slope)), wrong)


@probe(
    ALL,
    "the path of images: layout, channels, scaling",
    tolerance=0.12,
    settings={"ppo": {"learning_rate": 3e-3, "ent_coef": 0.05, "updates": 200}},
)
def pixels(rng: np.random.Generator) -> Case:
    """Images of 13 x 3 x 5 with one lit pixel of six; two actions; one step.

    The matching action pays 1 or .5, by the place and the channel of the pixel, the other one -1 or -.5. V = 1 or .5.
    """
    places = [(1, 1, 0), (1, 1, 4), (11, 1, 0), (1, 2, 0), (11, 2, 3), (6, 0, 2)]
    obs = np.zeros((6, 13, 3, 5), np.uint8)
    for i, place in enumerate(places):
        obs[(i, *place)] = 255
    match, top = rng.permutation([0, 1, 1, 0, 1, 0]), rng.permutation([1.0, 0.5, 1.0, 0.5, 1.0, 0.5])
    reward = np.where(np.eye(2)[match] > 0, top[:, None], -top[:, None])
    params = tables(obs=obs, reward=reward, next=[1, 2, 3, 4, 5, 0], terminated=True, start=np.full(6, 1 / 6))
    wrong = {
        "images cannot be told apart": Answer(np.full(6, 0.0), np.full((6, 2), 0.5), np.zeros((6, 2))),
        "it learns the worst action: a sign is wrong": Answer(-top, best(1 - match), -reward),
    }
    return Case(params, Answer(top, best(match)), wrong)


@probe(DQN, "the target network: it never moves, or too late", gamma=0.9, tolerance=0.018)
def target_chain(rng: np.random.Generator) -> Case:
    """Five states in a row, +1 at the end: V = gamma^4 ... 1 = .6561, .729, .81, .9, 1.

    Each sync of the target carries the reward one state back.
    """
    params = tables(obs=np.eye(5), reward=[0, 0, 0, 0, 1], next=[1, 2, 3, 4, 4], terminated=[0, 0, 0, 0, 1])
    value = 0.9 ** np.arange(4, -1, -1.0)
    frozen = np.array([0.0, 0.0, 0.0, 0.0, 1.0])
    return Case(params, Answer(value), {"the target network stays as it began": Answer(frozen)})


@probe(DQN, "the target network: it never moves, or too late", gamma=0.9, tolerance=0.9)
def target_loop(rng: np.random.Generator) -> Case:
    """One state that pays 1 and leads to itself, for ever: V = 1 / (1 - gamma) = 10."""
    params = tables(obs=[[1.0]], reward=[1], next=[0])
    return Case(params, Answer(np.array([10.0])), {"the target network stays as it began": Answer(np.array([1.0]))})


@probe(DQN, "the maximum in the Bellman equation", gamma=0.5, tolerance=0.1)
def max_not_mean(rng: np.random.Generator) -> Case:
    """s0 leads to s1, whose arms pay +1 and -1. Q(s0) = gamma max = .5; the mean would give 0, the minimum -.5."""
    arms = rng.permutation([1.0, -1.0])
    params = tables(obs=[[-1.0], [1.0]], reward=[[0, 0], arms], next=[1, 1], terminated=[False, True])
    policy = np.full((2, 2), np.nan)
    policy[1] = best(arms.argmax())
    wrong = {
        "the mean over actions is taken for the maximum": Answer(q=np.array([[0.0, 0.0], arms])),
        "the minimum over actions is taken for the maximum": Answer(q=np.array([[-0.5, -0.5], arms])),
    }
    return Case(params, Answer(np.array([0.5, 1.0]), policy), wrong)


@probe(DQN, "the mask of allowed actions, in what values are fitted to", gamma=0.5)
def allowed_next(rng: np.random.Generator) -> Case:
    """s0 leads to s2, which looks like s1: arms that pay 1 and 3; but in s2 the second is forbidden.

    So Q(s0) = gamma 1 = .5, and a target that ignores the mask gives gamma 3 = 1.5. Networks do not see the mask.
    """
    arms = rng.permutation([1.0, 3.0])
    may = np.array([[1, 1], [1, 1], arms < 3])
    params = tables(
        obs=np.concatenate([[[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], may], axis=1), reward=[[0, 0], arms, arms],
        next=[2, 1, 2], terminated=[False, True, True], start=[0.5, 0.5, 0], action_mask=2,
    )  # fmt: skip
    policy = np.full((3, 2), np.nan)
    policy[1], policy[2] = best(arms.argmax()), best(arms.argmin())
    q = np.array([[0.5, 0.5], arms, np.where(arms < 3, arms, np.nan)])
    ignored = np.array([[1.5, 1.5], arms, arms])
    wrong = {"the mask is ignored: values are fitted to what forbidden actions are worth": Answer(q=ignored)}
    return Case(params, Answer(np.array([0.5, 3.0, 1.0]), policy, q), wrong)


@probe(DQN, "the replay buffer keeps what is old", tolerance=0.2)
def phase_flip(rng: np.random.Generator) -> Case:
    """bandit whose rewards change sign for good after 3,000 steps, counted over resets. Q is that of the new sign."""
    before = two_contexts(rng)[:1]
    params = tables(obs=[[0.0]], reward=before, next=[0], terminated=True, flip_at=3_000)
    wrong = {
        "old transitions stay in the buffer": Answer(policy=best(before.argmax(1)), q=before),
        "old and new transitions are mixed": Answer(policy=HALF, q=np.zeros((1, 2))),
    }
    return Case(params, Answer(np.array([1.0]), best(before.argmin(1)), -before), wrong)
