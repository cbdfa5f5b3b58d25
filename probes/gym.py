"""The probes for agents written elsewhere: as gymnasium environments, and with their truths to compare with.

    env = gymnasium.make("rlref/Discount-v0")          # train your agent on it, with env.unwrapped.gamma
    print(probes.check_values("discount", lambda obs: my_critic(obs)))

gymnax's own wrapper for gymnasium hands out the observation after the reset at an ending, from which no time limit can
be bootstrapped; this one ends an episode as gymnasium defines it. NumPy alone runs it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from probes import check
from probes.environments import Tables
from probes.ladder import LADDER, Answer, Case, Probe
from rlref.errors import UsageError, nearest


class ProbeEnv(gymnasium.Env[np.ndarray, Any]):
    """A probe as an agent of a kind meets it. `variant` draws its signs and best arms, as a seed's id does there.

    `gamma` is its discount; `settings` are those that the probe is about, by the names of rlref's agents.
    """

    metadata = {"render_modes": []}  # noqa: RUF012  (gymnasium declares it so)

    def __init__(self, name: str, variant: int = 0, render_mode: None = None, kind: str = "ppo"):
        self.probe, self.case = find(name, variant, kind)
        self.gamma = self.probe.gamma
        self.settings = dict(self.probe.settings.get(kind, {}))
        self.render_mode = render_mode
        params = self.case.params
        low, high = (0, 255) if params.obs.dtype == np.uint8 else (params.obs.min() - 1, params.obs.max() + 1)
        self.observation_space = gymnasium.spaces.Box(low, high, params.obs.shape[1:], params.obs.dtype.type)
        if isinstance(params, Tables) and params.choices:
            self.action_space = gymnasium.spaces.MultiDiscrete([*params.choices])
        elif isinstance(params, Tables):
            self.action_space = gymnasium.spaces.Discrete(params.reward.shape[1])
        else:
            self.action_space = gymnasium.spaces.Box(-1.0, 1.0, params.optimum.shape[1:], np.float32)
        self.index = 0
        self.steps = 0  # counted over resets
        self.after = -1  # the state that the last episode's end prescribes for the next start

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        if seed is not None:
            self.steps, self.after = 0, -1
        params = self.case.params
        n = len(params.obs)
        odds = params.start if isinstance(params, Tables) else np.full(n, 1 / n)
        drawn = int(self.np_random.choice(n, p=odds / odds.sum(dtype=np.float64)))
        self.index = drawn if self.after < 0 else self.after
        self.after = -1
        return params.obs[self.index].copy(), {"state": self.index}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        params = self.case.params
        if not isinstance(params, Tables):
            action, at = np.asarray(action, np.float64), self.index
            distance = ((action - params.optimum[at]) ** 2).sum()
            reward = params.peak - params.curvature * distance + (params.slope[at] * action).sum()
            return params.obs[at].copy(), float(reward), True, False, {"state": at}
        at = np.ravel_multi_index(tuple(action), params.choices) if params.choices else int(action)
        cell = self.index, at
        reward = params.reward[cell] + params.noise * self.np_random.choice([-1.0, 1.0])
        if self.steps >= params.flip_at:
            reward = -reward
        self.steps += 1
        self.index, self.after = int(params.next[cell]), int(params.after[cell])
        ending = bool(params.terminated[cell]), bool(params.truncated[cell])
        return params.obs[self.index].copy(), float(reward), *ending, {"state": self.index}


class Comparison(NamedTuple):
    """What an agent says of a probe, beside the truth."""

    ok: bool
    expected: np.ndarray
    measured: np.ndarray
    tolerance: float
    cause: str
    """the known bug whose wrong answer is nearest; '' if none is near, or nothing is wrong"""

    def __str__(self) -> str:
        if self.ok:
            return f"right: {self.measured.tolist()} is within {self.tolerance} of {self.expected.tolist()}"
        named = f": that is what comes out if {self.cause}" if self.cause else ""
        return f"wrong: expected {self.expected.tolist()}, measured {self.measured.tolist()}{named}"


def find(name: str, variant: int, kind: str = "ppo") -> tuple[Probe, Case]:
    """A probe and one of its variants, as an agent of a kind meets it. Raises UsageError if there is none."""
    if name not in LADDER:
        raise UsageError(f"there is no probe {name!r}.{nearest(name, LADDER)} There are: {', '.join(LADDER)}")
    return LADDER[name], LADDER[name].case(variant, kind)


def check_values(name: str, value_fn: Callable[[np.ndarray], Any], variant: int = 0) -> Comparison:
    """Compare an agent's values with a probe's truth.

    Args:
      name: the probe, such as "discount".
      value_fn: one observation -> V, a number, or Q, an array `[A]`, for the probe's gamma.
      variant: that of the environment it was trained on.

    Raises UsageError if there is no such probe, if it says nothing about values, or if `value_fn` gives another shape.
    """
    probe, case = find(name, variant)
    if case.truth.value is None:
        raise UsageError(f"the probe {name!r} says nothing about values; use check_policy")
    measured = np.asarray([np.asarray(value_fn(obs), np.float64) for obs in case.params.obs])
    n = len(case.params.obs)
    kind = "ppo" if measured.shape == (n,) else "dqn"
    expected = probe.values(kind, case, case.truth)
    assert expected is not None  # as the truth has V
    if measured.shape != expected.shape:
        raise UsageError(f"value_fn gives shape {measured.shape[1:]}; V is a number, Q has {expected.shape[1]} of them")
    truth = Answer(case.truth.value, q=None if kind == "ppo" else expected)
    return compare(probe, case, kind, Answer(value=measured), truth, expected)


def check_policy(name: str, policy_fn: Callable[[np.ndarray], Any], variant: int = 0) -> Comparison:
    """Compare an agent's policy with a probe's truth.

    Args:
      name: the probe, such as "context_bandit".
      policy_fn: one observation -> probabilities `[A]`, or the index of the action; for a Box the mean action `[D]`.
      variant: that of the environment it was trained on.

    Raises UsageError if there is no such probe, it says nothing about the policy, or `policy_fn` gives a wrong shape.
    """
    probe, case = find(name, variant)
    if case.truth.policy is None:
        raise UsageError(f"the probe {name!r} says nothing about the policy; use check_values")
    measured = np.asarray([np.asarray(policy_fn(obs), np.float64) for obs in case.params.obs])
    expected = case.truth.policy
    if measured.shape == (len(expected),) and isinstance(case.params, Tables):
        measured = np.eye(expected.shape[1])[measured.astype(int)]
    if measured.shape != expected.shape:
        raise UsageError(f"policy_fn gives shape {measured.shape[1:]}; it must be {expected.shape[1:]}")
    if not isinstance(case.params, Tables):
        measured = measured.clip(-1, 1)
    return compare(probe, case, "ppo", Answer(policy=measured), Answer(policy=expected), expected)


def compare(probe: Probe, case: Case, kind: str, answer: Answer, truth: Answer, expected: np.ndarray) -> Comparison:
    """Judge the one quantity of `answer` that `truth` has."""
    of_value = truth.value is not None
    ok = check.error(probe, kind, case, answer, truth) <= 1
    near = {}
    for cause, wrong in probe.wrong(case).items():
        to = Answer(wrong.value, q=wrong.q) if of_value else Answer(policy=wrong.policy)
        near[cause] = check.error(probe, kind, case, answer, to)
    cause = min(near, key=lambda c: near[c], default="")
    named = "" if ok or near.get(cause, 3.0) > 2 else cause
    measured = answer.value if of_value else answer.policy
    assert measured is not None
    return Comparison(ok, expected, measured, probe.tolerance if of_value else probe.policy_tolerance, named)
