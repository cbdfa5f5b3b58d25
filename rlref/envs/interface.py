"""Whether an environment has the interface that agents need, gymnax's from 1.0 on."""

from typing import Any

import numpy as np

from rlref.envs import suites
from rlref.errors import UsageError, in_a_line


def check_complete(env: Any, name: str) -> Any:
    """`env`, adapted if it is gymnasium's. Raises UsageError unless it has what a gymnax environment has.

    `name` is where it comes from.
    """
    if isinstance(env, str):
        raise UsageError(f"{name} is the name {env!r}; give it as the setting env_id")
    env = suites.adapted(env, name)
    interface = ("reset", "step", "default_params", "action_space", "observation_space")
    if missing := [attribute for attribute in interface if not hasattr(env, attribute)]:
        what = type(env).__name__
        raise UsageError(f"{name} gives {what}, which is no gymnax environment: it lacks {', '.join(missing)}")
    return env


def check_host(env: Any) -> None:
    """Raise UsageError if the code of an environment that lives on the host has failed."""
    if failure := getattr(env, "failure", None):
        raise UsageError(failure)


def check_interface(env: Any, params: Any, env_id: str) -> None:
    """Raise UsageError unless `env` speaks gymnax >= 1.0, found out without running it."""
    import jax

    if wrong := choices_fault(env.action_space(params)):
        raise UsageError(f"{env_id}: {wrong}")

    def one_step(key: Any) -> Any:
        _, state = env.reset(key, params)
        return env.step(key, state, env.action_space(params).sample(key), params)

    try:
        result = jax.eval_shape(one_step, jax.random.key(0))
    except Exception as error:  # the environment's own code: anything can come
        raise UsageError(
            f"{env_id} cannot be compiled: {in_a_line(error)}; `rlref inspect {env_id}` says where, and what to do"
        ) from error
    if len(result) == 5:
        raise UsageError(
            f"{env_id} is written for gymnax 0.0.x, with one `done` for endings and time limits. To change: step_env "
            "returns whether the task ended, without the time limit; is_truncated(state, params) says whether that is "
            "reached (of itself, by state.time and params.max_steps_in_episode); a `step` of its own goes, as that of "
            "the base class does the rest"
        )
    if len(result) != 6:
        raise UsageError(
            f"{env_id}: step returns {len(result)} values; gymnax >= 1.0 returns 6 "
            "(observation, state, reward, terminated, truncated, info)"
        )
    obs, _, reward, terminated, truncated, info = result
    if "final_observation" not in info:
        raise UsageError(f"{env_id}: step's info lacks 'final_observation', which bootstrapping at time limits needs")
    for name, x in (("terminated", terminated), ("truncated", truncated), ("reward", reward)):
        if x.shape != () or (name != "reward" and x.dtype != bool):
            wanted = "a scalar" if name == "reward" else "a scalar bool"
            raise UsageError(f"{env_id}: {name} must be {wanted}, not {x.dtype.name} of shape {x.shape}")
    space = env.observation_space(params)
    for name, x in (("observation", obs), ("final observation", info["final_observation"])):
        if hasattr(space, "shape") and getattr(x, "shape", None) != tuple(space.shape):
            shape = getattr(x, "shape", type(x).__name__)
            raise UsageError(f"{env_id}: the {name} is {shape}, but observation_space says {tuple(space.shape)}")
    if obs.dtype != info["final_observation"].dtype:
        dtypes = f"{obs.dtype.name} and {info['final_observation'].dtype.name}"
        raise UsageError(f"{env_id}: the observation and the final observation must have one dtype, not {dtypes}")
    if wrong := mask_fault(space, env.action_space(params)):
        raise UsageError(f"{env_id}: {wrong}")


def choices_fault(action_space: Any) -> str:
    """What is wrong with how many options an action's choices have, in words; nothing if they are not several."""
    nvec = np.asarray(getattr(action_space, "nvec", [1]))
    if nvec.ndim == 1 and nvec.size and nvec.dtype.kind in "iu" and nvec.min() >= 1:
        return ""
    return f"the action space's nvec is {nvec.tolist()}; it must be one row of whole numbers, each of them 1 or more"


def mask_fault(obs_space: Any, action_space: Any) -> str:
    """What is wrong with an observation space's action mask, in words; nothing if it has none, or one that fits."""
    options = sum(getattr(action_space, "nvec", ())) or getattr(action_space, "n", 0)
    mask = getattr(obs_space, "action_mask", 0)
    if mask in (0, options):
        return ""
    return f"the action_mask has {mask} numbers, for the {options} options of {action_space}"
