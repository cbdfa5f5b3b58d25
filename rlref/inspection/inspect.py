"""What to look at in an environment before any training: `rlref inspect ENV`.

First whether it follows gymnax's interface, and which part it violates; then statistics of a random policy: the scale
of observations and rewards, returns and lengths of its episodes, the range of value targets, and how far it explores
(Schulman 2016, Nuts and Bolts). Importing this takes as long as importing jax.

Letters: `T` steps, `N` parallel environments, `D` numbers in a flattened observation.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from scipy.signal import lfilter

from rlref.envs.params import with_params
from rlref.errors import UsageError
from rlref.health.findings import SEVERITIES
from rlref.inspection.catalogue import UnusableError, found
from rlref.inspection.interface import check_interface, make_or_check, said_by
from rlref.inspection.measurements import (
    EPISODES_PER_ENV,
    about_endings,
    about_observations,
    about_rewards,
    statistics_of,
)
from rlref.inspection.random_policy import Collector, WrappedEnv
from rlref.inspection.result import Inspection, Samples

MAX_STEPS = 2**18  # of all environments together
MAX_NUMBERS = 2**30  # in all observations
REPEATS = (1, 2, 4, 8)


def inspect(
    env_id: str,
    *,
    env: Any = None,
    env_params: Any = None,
    episodes: int = 100,
    gamma: float = 0.99,
    seed: int = 0,
    env_params_assignments: Sequence[str] = (),
) -> Inspection:
    """Inspect an environment before training on it.

    `env_id` is as for `rlref.envs.make_env`, or any name if `env` is given. A fault of the environment is reported as a
    finding, never raised; raises UsageError for an unknown id, a value out of range, or an invalid assignment.
    """
    if episodes < 1:
        raise UsageError(f"--episodes is {episodes}; it must be at least 1")
    if not 0 <= gamma <= 1:
        raise UsageError(f"--gamma is {gamma}; it must be in [0, 1]")
    if not 0 <= seed < 2**32:
        raise UsageError(f"--seed is {seed}; it must be in [0, 2**32)")
    result = Inspection(env_id)
    try:
        env, params = make_or_check(env_id, env, env_params)
        params = with_params(params, env_params_assignments)
        _random_policy(env, check_interface(env, params, result), result, episodes, gamma, seed)
    except UnusableError as broken:
        result.findings += broken.findings
    except SystemExit as error:
        result.findings.append(found("raises", f"the environment ends the program: {said_by(error)}"))
    result.findings.sort(key=lambda f: SEVERITIES.index(f.severity))
    return result


def _random_policy(env: Any, subject: WrappedEnv, result: Inspection, episodes: int, gamma: float, seed: int) -> None:
    """Let a random policy play. Appends to the findings; fills in statistics and samples."""
    say, key = result.findings.append, jax.random.key(seed)
    try:
        num_envs = int(np.clip(math.ceil(episodes / EPISODES_PER_ENV), 8, 256))
        per_env = math.ceil(episodes / num_envs)
        collector = Collector(subject, num_envs)
        max_steps = min(MAX_STEPS, MAX_NUMBERS // collector.size)
        rollout = collector.collect(key, 1, per_env, max_steps)
        whole = rollout.episodes(per_env)[:episodes]
        longest = max((b - a for _, a, b in whole), default=1024)
        budget = min(max_steps, num_envs * max(256, min(2 * longest, 4096)))
        explored = {n: collector.collect(jax.random.fold_in(key, n), n, 1, budget) for n in REPEATS}
    except Exception as error:
        raise UnusableError("raises", f"running many environments: {said_by(error)}") from error
    if failure := getattr(env, "failure", None):
        raise UnusableError("raises", failure)
    returns, lengths = rollout.returns_and_lengths(whole)
    # Truncation counts as termination here, as there is no value to bootstrap from.
    targets = [
        lfilter([1], [1, -gamma], rollout.steps["reward"][a:b, n][::-1].astype(float))[::-1] for n, a, b in whole
    ]
    target = np.concatenate(targets) if targets else np.zeros(0)
    result.samples = Samples(subject.obs_space, rollout, returns, lengths, target, explored)
    result.statistics |= statistics_of(result.samples, whole, gamma)
    if collector.alike:
        say(found("reset_ignores_key", f"{collector.num_starts} resets with different keys are all the same"))
    endings = about_endings(rollout, varied=collector.varied, has_step_env=subject.step_without_reset is not None)
    result.findings += endings
    if any(f.check == "no_auto_reset" for f in endings):
        return  # without a reset, the later steps belong to no valid episode
    result.findings += about_observations(rollout, subject.obs_space)
    result.findings += about_rewards(result.samples, result.statistics, gamma)
    if not rollout.ended.any():
        say(found("never_ends", f"no episode ended within {len(rollout.ended):,} steps"))
    elif len(whole) < episodes:
        few = rollout.ended.any(axis=0).all()
        meaning = "" if few else "; only those of the fastest to end, so that lengths and returns are biased"
        say(found("cut", f"{len(whole)} of {episodes} episodes ended within {rollout.ended.size:,} steps{meaning}"))
