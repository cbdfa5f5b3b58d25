"""Rungs for agents with a memory: states that show the same, and that what was shown before tells apart.

Each is a Markov decision process as tables, as those of ladder.py, whose states cannot be told apart by what they show.
An agent is asked along a way that leads to a state (`ways`), from the memory before an episode's first step. Where
agents get memory wrong: public issues of Mava, JaxMARL and PureJaxRL tell of resets one step off, of memory that
outlives an episode, of sequences whose rows are shuffled, of final observations valued with the memory after a reset.
"""

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from probes.environments import Targets, tables
from probes.ladder import Answer, Case, Probe, best
from rlref.contract import PPO

MEMORY: dict[str, Probe] = {}
# Advantages as they are: of minibatches of one environment their spread is mostly chance.
PATIENT = {"updates": 200, "num_steps": 31, "norm_adv": False, "learning_rate": 3e-3, "ent_coef": 0.02}
UNFIT = ("large_rewards",)  # a memory's units are bounded: the way to V = 100 is long
FORGETS = "it acts and values as without a memory"


def is_markov(probe: Probe) -> bool:
    """Whether a probe of ladder.py has the same answer for agents with a memory.

    Not where states show the same, which what came before tells apart; and not where an episode is cut: what it would
    have led to is then met as a final observation alone, after a way on which no value has been learned.
    """
    if probe.name in UNFIT:
        return False
    params = probe.case(0).params
    if isinstance(params, Targets):
        return True
    shown = np.unique(params.obs.reshape(len(params.obs), -1), axis=0)
    return len(shown) == len(params.obs) and not params.truncated.any()


def for_memory(probe: Probe) -> Probe:
    """A probe of ladder.py as agents with a memory are trained on it, unless it has its own settings."""
    normalised = isinstance(probe.case(0).params, Targets)  # near their optimum all advantages are small
    own = {"norm_adv": normalised, **probe.settings.get("ppo", {})}
    return dataclasses.replace(probe, settings={**probe.settings, "ppo": own})


def remembering(
    isolates: str,
    *,
    gamma: float = 0.9,
    tolerance: float = 0.15,
    policy_tolerance: float = 0.15,
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> Callable[[Callable[[np.random.Generator], Case]], Callable[[np.random.Generator], Case]]:
    """Add the decorated function to the rungs of agents that have a policy, V and a memory."""

    def add(make: Callable[[np.random.Generator], Case]) -> Callable[[np.random.Generator], Case]:
        name, own = make.__name__, {"ppo": {**PATIENT, **settings}}
        MEMORY[name] = Probe(name, make, PPO, isolates, gamma, tolerance, policy_tolerance, False, own)
        return make

    return add


def recall(rng: np.random.Generator, steps: int, gamma: float = 0.9) -> Case:
    """A cue of +1 or -1, `steps` steps that show nothing, and a choice: the cue's action pays 1, the other -1.

    V is 1 at the choice, and gamma^k of it k steps before; without a memory all cues are worth 0, and so is the choice.
    """
    match = rng.permutation(2)
    n = steps + 2  # of one cue
    obs = np.zeros((2 * n, 3))
    obs[[0, n], 0] = 1, -1
    obs[[n - 1, 2 * n - 1], 1] = 1
    reward, terminated = np.zeros((2 * n, 2)), np.zeros((2 * n, 2), bool)
    policy = np.full((2 * n, 2), np.nan)
    for cue in (0, 1):
        last = cue * n + n - 1
        reward[last], terminated[last] = np.where(np.arange(2) == match[cue], 1, -1), True
        policy[last] = best(match[cue])
    params = tables(
        obs=obs, reward=reward, next=np.minimum(np.arange(2 * n) + 1, [n - 1] * n + [2 * n - 1] * n),
        terminated=terminated, start=np.isin(np.arange(2 * n), (0, n)) / 2,
    )  # fmt: skip
    value = np.tile(gamma ** np.arange(n - 1.0, -1, -1), 2)
    half = np.where(np.isfinite(policy), 0.5, np.nan)
    worst = {"it learns the worst action: a sign is wrong": Answer(-value, 1 - policy)}
    return Case(params, Answer(value, policy), {FORGETS: Answer(np.zeros(2 * n), half)} | worst)


@remembering("memory: from one step to the next")
def recall_1(rng: np.random.Generator) -> Case:
    """A cue, a step that shows nothing, a choice: the cue's action pays 1, the other -1. V = .81, .9, 1."""
    return recall(rng, 1)


@remembering("memory: over several steps, and gradients through them")
def recall_4(rng: np.random.Generator) -> Case:
    """recall_1 with four steps between. V = .59 ... 1."""
    return recall(rng, 4)


@remembering(
    "memory: gradients back through the whole of a sequence",
    gamma=0.98,
    settings={"num_steps": 37, "updates": 300},
)
def recall_16(rng: np.random.Generator) -> Case:
    """recall_1 with sixteen steps between, in rollouts of 37: gradients must go back 17 steps. V = .709 ... 1."""
    return recall(rng, 16, 0.98)


@remembering(
    "memory: sequences cut out of a rollout, and the memory that each begins with",
    settings={"num_steps": 32, "sequence_length": 4},
)
def recall_cut(rng: np.random.Generator) -> Case:
    """recall_1, learned in sequences of 4 steps of 32, most of which begin within an episode. V = .81, .9, 1."""
    return recall(rng, 1)


@remembering("memory: what the agent has done itself, and what it does with it")
def t_maze(rng: np.random.Generator) -> Case:
    """A cue at the start of a corridor of three places; going on leads to a fork, where the cue's turn pays 1.

    The other turn ends it with 0, and so does turning before the fork. V = .729 ... 1; without a memory .5 at the fork.
    """
    match, on = rng.permutation(2), rng.integers(2)
    obs = np.zeros((8, 3))
    obs[[0, 4], 0], obs[[3, 7], 1] = (1, -1), 1
    reward, terminated = np.zeros((8, 2)), np.ones((8, 2), bool)
    following, policy = np.tile(np.arange(8)[:, None], 2), np.zeros((8, 2))
    for at in (0, 1, 2, 4, 5, 6):
        terminated[at, on], following[at, on], policy[at] = False, at + 1, np.eye(2)[on]
    for cue in (0, 1):
        reward[4 * cue + 3, match[cue]], policy[4 * cue + 3] = 1, np.eye(2)[match[cue]]
    start = np.isin(np.arange(8), (0, 4)) / 2
    params = tables(obs=obs, reward=reward, next=following, terminated=terminated, start=start)
    value = np.tile(0.9 ** np.arange(3.0, -1, -1), 2)
    half = policy.copy()
    half[[3, 7]] = 0.5
    return Case(params, Answer(value, policy), {FORGETS: Answer(value / 2, half)})


@remembering("memory: what is to be kept, and what is not")
def distractor(rng: np.random.Generator) -> Case:
    """Two cues, each +1 or -1 by itself, then a choice: the first one's action pays 1, the other -1.

    Who keeps the last cue is right half of the time: V = 0 at the choice, as without a memory, with a policy that is
    sure of itself. Right: V = .81, .9, 1.
    """
    match = rng.permutation(2)
    # Starts 0 to 3, one for each pair of cues; 4 to 7 show the second, 8 to 11 the choice.
    cues = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]])
    obs = np.zeros((12, 3))
    obs[:4, 0], obs[4:8, 0], obs[8:, 1] = cues[:, 0], cues[:, 1], 1
    obs[4:8, 2] = 1  # the second cue is known for one
    action, other = (match[(cues[:, i] < 0).astype(int)] for i in (0, 1))
    reward, policy, half = np.zeros((12, 2)), np.full((12, 2), np.nan), np.full((12, 2), np.nan)
    reward[8:], policy[8:] = 2 * np.eye(2)[action] - 1, np.eye(2)[action]
    half[8:] = 0.5
    last = np.full((12, 2), np.nan)
    last[8:] = np.eye(2)[other]
    params = tables(
        obs=obs, reward=reward, next=np.minimum(np.arange(12) + 4, 8 + np.arange(12) % 4),
        terminated=np.arange(12) >= 8, start=(np.arange(12) < 4) / 4,
    )  # fmt: skip
    value = np.repeat([0.81, 0.9, 1.0], 4)
    wrong = {FORGETS: Answer(np.zeros(12), half), "it keeps the last cue, not the first": Answer(np.zeros(12), last)}
    return Case(params, Answer(value, policy), wrong)


@remembering(
    "memory: the value of a final observation, with the memory before any reset",
    tolerance=0.25,
    settings={"num_minibatches": 1, "update_epochs": 8, "learning_rate": 5e-3, "updates": 100},
)
def remembered_limit(rng: np.random.Generator) -> Case:
    """A cue c of +1, 0 or -1, steps that pay c and show nothing; half of the episodes are cut after three, the others
    go on to a fifth, which pays 10 c and is the last: V = 10 c everywhere.

    A limit does not end the value, which beyond it depends on the cue; what it is, episodes that go on teach. With the
    memory after the reset, or none, the final observation is worth 0 on average: V = 6.36 c at the cue. Taken for a
    termination, the same. Who still remembers after a limit takes an episode without a cue for the one before.
    """
    n = 9  # states of one cue: three of an episode that is cut, what it leads to, five of one that goes on
    at, cue = np.tile(np.arange(n), 3), np.repeat(rng.choice([1.0, -1.0]) * np.array([1, 0, -1]), n)
    first, last = (at == 0) | (at == 4), at == n - 1
    params = tables(
        obs=np.where(first, cue, 0)[:, None] * [1, 0], reward=np.where(last, 10 * cue, cue),
        next=np.arange(3 * n) + ((at != 3) & ~last), truncated=at == 2, terminated=last, start=first / 6,
    )  # fmt: skip
    value = np.where(at == 3, np.nan, 10 * cue)  # met as a final observation alone
    reset = np.tile([6.355, 5.95, 5.5, np.nan, 6.355, 5.95, 5.5, 10, 10], 3) * cue
    wrong = {"a final observation is valued with the memory after the reset, or a limit ends the value": Answer(reset)}
    return Case(params, Answer(value), wrong | {FORGETS: Answer(np.zeros(3 * n))})
