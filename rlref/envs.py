"""Environments: by gymnax id, by a user's own `package.module:make_env`, and a list of those that can be trained.

Importing gymnax takes seconds; so the functions here import it, not this file.
"""

import dataclasses
import importlib
import math
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

from rlref.errors import UsageError, nearest

NEEDS_DOWNLOAD = ("MNISTBandit-bsuite",)


def make_env(env_id: str) -> tuple[Any, Any]:
    """The environment that `env_id` names, and its parameters.

    `env_id` is a gymnax id, or `package.module:function` of a function that returns an environment of gymnax >= 1.0, or
    a pair of it and its parameters; the current folder is importable. Raises UsageError.
    """
    if ":" in env_id:
        return _own_env(env_id)
    gymnax = imported_gymnax()
    if env_id not in gymnax.registered_envs:
        raise UsageError(
            f"there is no environment {env_id!r}.{nearest(env_id, gymnax.registered_envs)} "
            "`rlref envs` lists them; your own is package.module:make_env"
        )
    try:
        return gymnax.make(env_id)
    except Exception as error:  # one of them downloads data when it is made
        raise UsageError(f"{env_id} cannot be made here: {type(error).__name__}: {error}") from error


class _Later(ModuleType):
    """A module that is imported when something of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:  # another thread asks while gymnax is being imported
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def imported_gymnax() -> ModuleType:
    """The package. What its files import for their pictures alone takes longest, and is imported when it is used."""
    for_pictures = [name for name in ("matplotlib.pyplot", "seaborn") if name not in sys.modules]
    sys.modules |= {name: _Later(name) for name in for_pictures}
    try:
        return importlib.import_module("gymnax")
    finally:
        for name in for_pictures:
            if isinstance(sys.modules.get(name), _Later):
                del sys.modules[name]


def resolved(env_id: str, env: Any = None, env_params: Any = None) -> tuple[Any, Any]:
    """`env`, or without one what `env_id` names; with `env_params`, or without them its defaults. Raises UsageError."""
    env, default = make_env(env_id) if env is None else (env, checked(env, "env").default_params)
    return env, default if env_params is None else env_params


def _own_env(env_id: str) -> tuple[Any, Any]:
    module_name, _, attribute = env_id.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        made = getattr(importlib.import_module(module_name), attribute)()
    except Exception as error:  # the user's own code: anything can come
        raise UsageError(f"{env_id} does not give an environment: {type(error).__name__}: {error}") from error
    env, params = made if isinstance(made, tuple) else (made, None)
    return checked(env, env_id), env.default_params if params is None else params


def checked(env: Any, name: str) -> Any:
    """`env` itself. Raises UsageError unless it has what a gymnax environment has; `name` is where it comes from."""
    interface = ("reset", "step", "default_params", "action_space", "observation_space")
    if missing := [attribute for attribute in interface if not hasattr(env, attribute)]:
        what = type(env).__name__
        raise UsageError(f"{name} gives {what}, which is no gymnax environment: it lacks {', '.join(missing)}")
    return env


def with_params(params: Any, assignments: Sequence[str]) -> Any:
    """`params` with each `name=value` of `assignments` set. Raises UsageError for a wrong name or value."""
    if not assignments:
        return params
    if not dataclasses.is_dataclass(params) or isinstance(params, type):
        raise UsageError(f"the environment's parameters are {type(params).__name__}, no dataclass: none can be set")
    fields = [field.name for field in dataclasses.fields(params)]
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise UsageError(f"--env-params takes name=value, not {assignment!r}")
        if name not in fields:
            near = nearest(name, fields)
            raise UsageError(f"the environment has no parameter {name!r}.{near} It has {', '.join(fields)}")
        kind = type(getattr(params, name))
        try:
            parse: Any = {bool: lambda x: {"true": True, "false": False}[x.lower()], int: int}.get(kind, float)
            value = parse(text)
        except (KeyError, ValueError):
            raise UsageError(f"the environment's {name} takes {kind.__name__}, not {text!r}") from None
        if not math.isfinite(value):
            raise UsageError(f"the environment's {name} must be finite, not {text}")
        params = dataclasses.replace(params, **{name: value})
    return params


def check_interface(env: Any, params: Any, env_id: str) -> None:
    """Raise UsageError unless `env` speaks gymnax >= 1.0, found out without running it."""
    import jax

    def one_step(key: Any) -> Any:
        _, state = env.reset(key, params)
        return env.step(key, state, env.action_space(params).sample(key), params)

    try:
        result = jax.eval_shape(one_step, jax.random.key(0))
    except Exception as error:  # the environment's own code: anything can come
        raise UsageError(f"{env_id} does not trace: {type(error).__name__}: {str(error).splitlines()[0]}") from error
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


class EnvRow(NamedTuple):
    """One line of `rlref envs`."""

    env_id: str
    observations: str
    actions: str
    time_limit: int | None
    note: str


def list_envs() -> list[EnvRow]:
    """Every gymnax environment with its spaces and time limit (None where it has none)."""
    gymnax = imported_gymnax()
    rows = []
    for env_id in gymnax.registered_envs:
        if env_id in NEEDS_DOWNLOAD:
            rows.append(EnvRow(env_id, "", "", None, "downloads data when made"))
            continue
        env, params = gymnax.make(env_id)
        limit = getattr(params, "max_steps_in_episode", None)
        spaces = (describe(env.observation_space(params)), describe(env.action_space(params)))
        rows.append(EnvRow(env_id, *spaces, limit, ""))
    return rows


def describe(space: Any) -> str:
    """A space in a few words, such as 'Discrete 3' or 'Box 10x10x4 float32'."""
    if hasattr(space, "n"):
        return f"Discrete {space.n}"
    if hasattr(space, "low"):
        import numpy as np

        return f"Box {'x'.join(map(str, space.shape)) or 'scalar'} {np.dtype(space.dtype).name}"
    return type(space).__name__
