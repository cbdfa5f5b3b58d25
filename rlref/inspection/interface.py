"""Whether an environment follows gymnax's interface, and which part it violates."""

import functools
import re
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlref.envs.episodes import UNBOUNDED, bounds_of, random_action, random_in_box
from rlref.envs.gymnax_envs import describe, imported_gymnax
from rlref.envs.ids import make_env
from rlref.envs.interface import check_complete, choices_fault, mask_fault
from rlref.envs.suites import SUITES
from rlref.errors import UsageError, first_line, in_a_line, is_users
from rlref.health.findings import Finding
from rlref.inspection.catalogue import UnusableError, found
from rlref.inspection.random_policy import WrappedEnv
from rlref.inspection.result import Inspection


def make_or_check(env_id: str, env: Any, env_params: Any) -> tuple[Any, Any]:
    try:
        if env is None:
            env, default = make_env(env_id)
        else:
            env = check_complete(env, env_id)
            default = env.default_params
        return env, default if env_params is None else env_params
    except UsageError as error:
        source, colon, _ = env_id.partition(":")
        own = bool(colon) and source not in SUITES
        if env is None and not own and env_id not in imported_gymnax().registered_envs:
            raise
        # Only errors that the environment's own code raised have a __cause__.
        raise UnusableError("cannot_be_made" if error.__cause__ else "incomplete", first_line(error)) from error
    except Exception as error:  # here and below, the environment's own code can raise anything
        raise UnusableError("raises", f"default_params raises {said_by(error)}") from error


def said_by(error: BaseException) -> str:
    """An exception in one line, with the innermost line of the environment's own code in its traceback."""
    own = [f for f in traceback.extract_tb(error.__traceback__) if is_users(f.filename)]
    where = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    return f"{in_a_line(error)}{where}"


def check_interface(env: Any, params: Any, result: Inspection) -> WrappedEnv:
    """Check an environment, and wrap it. Appends to the findings; raises UnusableError if it cannot be run."""
    say = result.findings.append
    spaces = {}
    for name in ("observation_space", "action_space"):
        try:
            spaces[name] = space = getattr(env, name)(params)
            result.statistics[name] = describe(space)
            bounds = bounds_of(space) if hasattr(space, "low") else None
        except Exception as error:
            raise UnusableError("raises", f"{name} raises {said_by(error)}") from error
        if bounds is not None and not (bounds[0] <= bounds[1]).all():  # also catches NaN
            raise UnusableError("space_wrong", f"{name} has bounds of which the lower is not below the upper")
        if bounds is not None and not bounds[0].size:
            raise UnusableError("space_wrong", f"{name} has the shape {tuple(space.shape)}, with nothing in it")
        if hasattr(space, "n") and (int(space.n) != space.n or space.n < 1):
            raise UnusableError("space_wrong", f"{name} is Discrete({space.n}): no whole number of at least 1")
        if not any(hasattr(space, kind) for kind in ("n", "low", "nvec")):
            say(found("space_kind", f"{name} is a {type(space).__name__}"))
    actions = spaces["action_space"]
    if wrong := choices_fault(actions) or mask_fault(spaces["observation_space"], actions):
        raise UnusableError("space_wrong", wrong)
    sample = _sampler(actions, spaces["observation_space"], say)

    def reset(key: jax.Array) -> Any:
        out = env.reset(key, params)
        if not isinstance(out, tuple) or len(out) != 2:
            raise TypeError(f"it gives {type(out).__name__}, not (observation, state)")
        return out

    def stepped(key: jax.Array) -> Any:
        obs, state = reset(key)
        return env.step(key, state, sample(key, obs), params)

    def step_without_reset(key: jax.Array, state: Any, action: Any) -> Any:
        # Splits the key as gymnax's own step does. If an environment's step splits it otherwise, they are not compared.
        return env.step_env(jax.random.split(key)[0], state, action, params)

    key = jax.random.key(0)
    obs, state = _shapes(env, "reset", reset, result)
    try:
        alone, state_alone, *_ = jax.eval_shape(
            lambda key: step_without_reset(key, reset(key)[1], sample(key, reset(key)[0])), key
        )
    except Exception:  # not every environment has step_env
        alone = None
    try:
        out = _shapes(env, "step", stepped, result)
    except UnusableError:
        if alone is not None:  # gymnax's step fails if the types from reset and step_env differ
            _same_types(obs, state, alone, state_alone)
        raise
    number = len(out) if isinstance(out, tuple) else 1
    if old := number == 5 and isinstance(out[4], Mapping):
        say(found("old_interface", "step returns (observation, state, reward, done, info), as in gymnax 0.0.x"))
    elif number != 6:
        raise UnusableError("step_values", f"step returns {number} value{'s' * (number > 1)}")
    next_obs, next_state, reward, *ends, info = out
    for name, x in zip(("done",) if old else ("terminated", "truncated"), ends, strict=True):
        if not hasattr(x, "dtype"):
            raise UnusableError("ending_type", f"{name} is a {type(x).__name__}, not bool[]")
        if x.shape != () or x.dtype != bool:
            say(found("ending_type", f"{name} is {_type(x)}, not bool[]"))
    if not hasattr(reward, "dtype"):
        raise UnusableError("reward_type", f"the reward is a {type(reward).__name__}, not float32[]")
    if reward.shape != ():
        say(found("reward_type", f"the reward is {_type(reward)}, not float32[]"))
    elif not jnp.issubdtype(reward.dtype, jnp.floating):
        say(found("reward_integer", f"the reward is {_type(reward)}"))
    _check_observation(obs, spaces["observation_space"], say)
    has_final = isinstance(info, Mapping) and "final_observation" in info
    if not old and not has_final:
        say(found("no_final_observation", "step's info lacks 'final_observation'"))
    elif not old and (wrong := _mismatch(next_obs, info["final_observation"])):
        say(found("final_observation_type", f"final_observation is not as the observation: {wrong}"))
        has_final = False
    _same_types(obs, state, next_obs, next_state)
    if any(x.size != 1 for x in (reward, *ends)) or any(f.check == "not_jittable" for f in result.findings):
        raise UnusableError
    try:
        jax.eval_shape(jax.vmap(stepped), jax.random.split(key, 2))
    except Exception as error:
        raise UnusableError("not_vmappable", f"under vmap: {said_by(error)}") from error

    def step(key: jax.Array, state: Any, action: Any) -> Any:
        obs, state, reward, terminated, *truncated, info = env.step(key, state, action, params)
        ends = (jnp.asarray(x, bool).reshape(()) for x in (terminated, truncated[0] if truncated else False))
        final = info["final_observation"] if has_final else None
        return obs, state, jnp.asarray(reward, jnp.float32).reshape(()), *ends, final

    has_step_env = alone is not None and not _mismatch(next_obs, alone)
    return WrappedEnv(
        spaces["observation_space"],
        reset,
        sample,
        step,
        (lambda *a: step_without_reset(*a)[0]) if has_step_env else None,
    )


def _sampler(space: Any, obs_space: Any, say: Callable[[Finding], None]) -> Callable[[jax.Array, Any], Any]:
    if hasattr(obs_space, "action_mask"):
        return functools.partial(random_action, space, obs_space)
    if hasattr(space, "n"):
        return lambda key, _: jax.random.randint(key, (), 0, space.n).astype(space.dtype)
    if not hasattr(space, "low"):
        if not hasattr(space, "sample"):
            raise UnusableError
        return lambda key, _: space.sample(key)
    low, high = bounds_of(space)
    if (unbounded := (low <= -UNBOUNDED) | (high >= UNBOUNDED)).any():
        say(found("unbounded_actions", f"{unbounded.sum()} of {unbounded.size} action dimensions have no bounds"))
    return lambda key, _: random_in_box(space, key)


def _shapes(env: Any, what: str, function: Callable[[jax.Array], Any], result: Inspection) -> Any:
    """Shapes and dtypes of what `function` returns for a key; the values, if it cannot be traced."""
    key, failure = jax.random.key(0), None
    try:
        out = jax.eval_shape(function, key)
    except Exception as error:
        failure = error
    for name, x in _attributes(env).items():
        if _is_traced(x):
            raise UnusableError("impure", f"{what} stores traced values in self.{name}")
    if failure is None:
        try:
            again = _program(function, key) == _program(function, key)
        except Exception:  # it has been traced before, without an error
            again = False
        if not again:
            raise UnusableError("impure", f"{what} does something else the second time")
        return out
    try:
        with jax.disable_jit():
            out = function(key)
    except Exception as error:
        if not isinstance(failure, jax.errors.JAXTypeError | jax.errors.JAXIndexError):
            raise UnusableError("raises", f"{what} raises {said_by(error)}") from error
        raise UnusableError("not_jittable", f"{what} cannot be traced: {said_by(failure)}") from error
    if not any(f.check == "not_jittable" for f in result.findings):
        result.findings.append(found("not_jittable", f"{what} cannot be traced: {said_by(failure)}"))
    return jax.tree.map(lambda x: x if isinstance(x, str) else jnp.asarray(x), out)


def _attributes(env: Any) -> dict[str, Any]:
    """Its own, and those of what it is around."""
    return (_attributes(env.inner) if hasattr(env, "without_pool") else {}) | getattr(env, "__dict__", {})


def _is_traced(x: Any) -> bool:
    try:
        return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(x))
    except ValueError:  # a dictionary whose keys jax cannot sort
        return False


def _program(function: Callable[..., Any], key: jax.Array) -> Any:
    """The traced program and the values of its constants."""
    jax.clear_caches()  # what is traced already would not run again; without jit, loops would be written out
    traced = jax.make_jaxpr(function)(key)
    constants = [np.asarray(x).tobytes() for x in traced.consts if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)]
    return re.sub("0x[0-9a-f]+", "", str(traced)), constants  # without the addresses of functions


def _type(x: Any) -> str:
    return f"{x.dtype.name}{list(x.shape)}"


def _mismatch(a: Any, b: Any) -> str:
    """The first difference between two pytrees in structure, shapes or dtypes; '' if there is none."""
    trees: list[Any] = [jax.tree.structure(a), jax.tree.structure(b)]
    if trees[0] != trees[1]:
        return f"{trees[0]} and {trees[1]}"
    for (path, x), y in zip(jax.tree.leaves_with_path(a), jax.tree.leaves(b), strict=True):
        if (x.shape, x.dtype) != (y.shape, y.dtype):
            return f"{jax.tree_util.keystr(path)} {_type(x)} and {_type(y)}".strip()
    return ""


def _same_types(obs: Any, state: Any, next_obs: Any, next_state: Any) -> None:
    for what, a, b in (("observation", obs, next_obs), ("state", state, next_state)):
        if wrong := _mismatch(a, b):
            raise UnusableError("reset_and_step_differ", f"the {what} of reset and of step: {wrong}")


def _check_observation(obs: Any, space: Any, say: Callable[[Finding], None]) -> None:
    if not hasattr(space, "n") and not hasattr(space, "low"):
        return
    shape = () if hasattr(space, "n") else tuple(space.shape)
    declared = jax.dtypes.canonicalize_dtype(space.dtype)
    if not hasattr(obs, "shape"):
        say(found("observation_type", f"the observation is a {type(obs).__name__}, observation_space one array"))
    elif obs.shape != shape or (hasattr(space, "n") and not jnp.issubdtype(obs.dtype, jnp.integer)):
        say(found("observation_type", f"the observation is {_type(obs)}, observation_space {declared}{list(shape)}"))
    elif obs.dtype != declared:
        say(found("observation_dtype", f"the observation is {obs.dtype}, observation_space {declared}"))
