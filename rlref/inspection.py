"""What to look at in an environment before any training: `rlref inspect ENV`.

First whether it keeps gymnax's interface, and which part it breaks; then what a random policy meets there: the scale of
observations and rewards, returns and lengths of its episodes, the range of value targets, how far it comes (Schulman
2016, Nuts and Bolts). Importing this takes as long as importing jax.

Letters: `T` steps, `N` environments side by side, `D` numbers in an observation, flattened.
"""

import dataclasses
import math
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.signal import lfilter

from rlref import envs
from rlref.errors import UsageError
from rlref.findings import SEVERITIES, Finding, ranges
from rlref.random_policy import Array, Collector, Rollout, Subject

EPISODES_PER_ENV = 4
MAX_STEPS = 2**18  # of all environments together
MAX_NUMBERS = 2**30  # in all observations
MAX_DIMENSIONS = 12  # of an observation, looked at one by one
REPEATS = (1, 2, 4, 8)

_GYMNAX = "gymnax 1.0"
_SCHULMAN = "Schulman 2016, Nuts and Bolts"
_JONES = "Jones 2021, Debugging RL"


class Check(NamedTuple):
    """What a finding's name stands for."""

    severity: str
    meaning: str
    tries: str
    source: str = _GYMNAX


CHECKS = {
    "cannot_be_made": Check("ERROR", "Nothing can be said about an environment that is not there.", ""),
    "incomplete": Check("ERROR", "Agents call all of these.", "subclass gymnax.environments.environment.Environment"),
    "raises": Check("ERROR", "The environment's own code fails, with or without jit.", "mend it"),
    "space_kind": Check(
        "ERROR", "The agents here know Discrete and Box spaces alone.", "flatten what it is to one Box or Discrete"
    ),
    "space_wrong": Check("ERROR", "Networks are built by the spaces, and actions drawn from them.", "mend the space"),
    "not_jittable": Check(
        "ERROR",
        "It runs step by step, but training is one compiled program, in which no value is known yet.",
        "jnp.where or lax.cond for `if`, jnp for np, no .item(), bool(), int() or float() of what depends on the state",
    ),
    "impure": Check(
        "ERROR",
        "With the same key, state and action it does something else the second time; compiled, the first is frozen.",
        "keep all that changes in the state, and draw with the key, not with np.random",
    ),
    "not_vmappable": Check("ERROR", "Agents step many environments side by side.", "give callbacks a vmap_method"),
    "old_interface": Check(
        "ERROR",
        "One `done` cannot tell the end of the task from a time limit, whose value still has to be bootstrapped.",
        "return observation, state, reward, terminated, truncated, info with info['final_observation']",
    ),
    "step_values": Check(
        "ERROR", "step returns observation, state, reward, terminated, truncated and info.", "return these six"
    ),
    "no_final_observation": Check(
        "ERROR",
        "At a time limit the value is bootstrapped from the episode's last observation, which the reset hides.",
        "put what the step led to, before any reset, into info['final_observation'] at every step",
    ),
    "final_observation_type": Check(
        "ERROR", "The same network reads both.", "give final_observation the observation's shape and dtype"
    ),
    "final_observation_wrong": Check(
        "ERROR",
        "final_observation does not show what the step led to, so that time limits bootstrap from another episode.",
        "take it before the reset",
    ),
    "ending_type": Check("ERROR", "Agents mask with them.", "return jnp bools of shape ()"),
    "reward_type": Check("ERROR", "One step pays one number.", "return a float32 of shape ()"),
    "reward_integer": Check("INFO", "Agents cast it to float32.", ""),
    "observation_type": Check(
        "ERROR", "The network is built for what observation_space says.", "make the two say the same"
    ),
    "observation_dtype": Check(
        "WARN", "Agents go by the observation itself; the declared dtype is wrong.", "make the two say the same"
    ),
    "reset_and_step_differ": Check(
        "ERROR",
        "lax.scan carries observation and state from step to step, in which shapes and dtypes cannot change.",
        "cast in step, or build it so in reset",
    ),
    "no_auto_reset": Check(
        "ERROR",
        "After an end the next step must be a new episode's first: agents do not call reset again.",
        "reset inside step, as gymnax's Environment.step does around step_env",
    ),
    "nonfinite": Check("ERROR", "One NaN makes all parameters NaN.", "find the division, root or logarithm behind it"),
    "out_of_bounds": Check(
        "WARN",
        "The bounds in observation_space are wrong: who scales or one-hot encodes by them goes wrong too.",
        "correct the bounds, or the observation",
    ),
    "constant_observation": Check(
        "INFO",
        "A random policy sees the same there at every step: nothing can be learnt from it.",
        "see whether it should change",
        _SCHULMAN,
    ),
    "observation_scale": Check(
        "WARN",
        "Networks start from inputs of mean 0 and standard deviation 1; much larger ones saturate them, much smaller "
        "ones are not seen.",
        "--normalize-observations of PPO, or scale in the environment",
        _SCHULMAN,
    ),
    "reset_ignores_key": Check("INFO", "Every episode begins alike.", "", ""),
    "always_both": Check(
        "WARN",
        "An end that is terminated is not bootstrapped: if these are time limits, their values are wrong.",
        "set terminated only where the task itself is over",
    ),
    "never_ends": Check(
        "WARN", "No episode ends: returns and lengths stay undefined.", "a time limit, which sets truncated", "rlref"
    ),
    "cut": Check("INFO", "The cap on steps was reached first.", "fewer --episodes", "rlref"),
    "unbounded_actions": Check("INFO", "The random policy drew these from N(0, 1).", "", "rlref"),
    "no_signal": Check(
        "WARN",
        "All random episodes return the same: there is nothing to learn from until exploration finds something else.",
        "shape the reward, start nearer to the goal, repeat actions, or explore more",
        _SCHULMAN,
    ),
    "rare_signal": Check(
        "INFO",
        "Few random episodes return anything but the usual, and only they teach anything at first.",
        "large batches and many environments; see action_repeat.png",
        _SCHULMAN,
    ),
    "reward_outliers": Check(
        "WARN",
        "A few rewards outweigh all others in the loss.",
        "see whether they are meant; clip them if not",
        _SCHULMAN,
    ),
    "value_targets": Check(
        "INFO",
        "Value targets should lie within [-10, 10], better [-3, 3]; returns of a better policy may lie further out.",
        "multiply the reward (--scale-rewards of PPO does); never shift it, which changes the will to live",
        _JONES,
    ),
    "resets_in_step": Check(
        "INFO",
        "All episodes have one length, so that the environments of a rollout are all in the same part of it.",
        "rollouts of whole episodes, or many environments and more than one epoch of them",
        "rlref",
    ),
    "short_horizon": Check(
        "INFO",
        "What pays off later than 1 / (1 - gamma) steps hardly counts.",
        "a larger --gamma, or repeated actions",
        _SCHULMAN,
    ),
    "long_horizon": Check(
        "INFO",
        "Discounting hardly matters within an episode; a smaller gamma would lower the variance.",
        "a smaller --gamma",
        _SCHULMAN,
    ),
    "undiscounted": Check(
        "WARN",
        "With gamma 1 and no terminal state values are bootstrapped for ever, and have no bound.",
        "a --gamma below 1",
        "rlref",
    ),
}
"""All checks: severity unless a finding says otherwise, meaning, what to try, who says so."""


def found(check: str, title: str, severity: str = "", **measured: Any) -> Finding:
    """The finding of a check."""
    c = CHECKS[check]
    return Finding(check, severity or c.severity, title, c.meaning, c.tries, c.source, **measured)


class UnusableError(Exception):
    """Ends an inspection, with its last finding if that has not been said: what came after could only repeat it."""

    def __init__(self, check: str = "", title: str = "") -> None:
        super().__init__(title)
        self.findings = [found(check, title)] if check else []


@dataclasses.dataclass
class Samples:
    """What the pictures show."""

    space: Any
    """of observations"""
    rollout: Rollout
    returns: Array
    lengths: Array
    targets: Array
    """the discounted return from each step of each episode on"""
    explored: dict[int, Rollout]
    """by how often each action is repeated"""


@dataclasses.dataclass
class Inspection:
    """What was found about an environment."""

    env_id: str
    statistics: dict[str, Any] = dataclasses.field(default_factory=dict)
    """plain numbers, lists and dictionaries; those of a random policy are missing if it could not run"""
    findings: list[Finding] = dataclasses.field(default_factory=list)
    samples: Samples | None = None
    """None if a random policy could not run"""


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
    """What there is to know about an environment before training on it.

    `env_id` is as for `rlref.envs.make_env`, or any name if `env` is given. A fault of the environment's is a finding,
    never an exception; raises UsageError for an unknown id, a value out of range, or a wrong assignment.
    """
    if episodes < 1:
        raise UsageError(f"--episodes is {episodes}; it must be at least 1")
    if not 0 <= gamma <= 1:
        raise UsageError(f"--gamma is {gamma}; it must be in [0, 1]")
    if not 0 <= seed < 2**32:
        raise UsageError(f"--seed is {seed}; it must be in [0, 2**32)")
    result = Inspection(env_id)
    try:
        env, params = _made(env_id, env, env_params)
        params = envs.with_params(params, env_params_assignments)
        _random_policy(_checked(env, params, result), result, episodes, gamma, seed)
    except UnusableError as broken:
        result.findings += broken.findings
    except SystemExit as error:
        result.findings.append(found("raises", f"the environment ends the program: {_said(error)}"))
    result.findings.sort(key=lambda f: SEVERITIES.index(f.severity))
    return result


def _made(env_id: str, env: Any, env_params: Any) -> tuple[Any, Any]:
    try:
        if env is None:
            env, default = envs.make_env(env_id)
        else:
            default = envs.checked(env, env_id).default_params
        return env, default if env_params is None else env_params
    except UsageError as error:
        if env is None and ":" not in env_id and env_id not in envs.imported_gymnax().registered_envs:
            raise
        # Only what the environment's own code raised has a cause.
        raise UnusableError(
            "cannot_be_made" if error.__cause__ else "incomplete", str(error).splitlines()[0]
        ) from error
    except Exception as error:  # the environment's own code, here and below: anything can come
        raise UnusableError("raises", f"default_params raises {_said(error)}") from error


def _said(error: BaseException) -> str:
    """An exception in one line, with the last line of the environment's own code that it passed through."""
    try:
        first = (str(error).strip().splitlines() or [""])[0]
    except Exception:  # its text is the environment's own code too
        first = ""
    others = ("site-packages", "/lib/python", "<", str(Path(__file__).parent))
    own = [f for f in traceback.extract_tb(error.__traceback__) if not any(x in f.filename for x in others)]
    where = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {first}{where}"


def _checked(env: Any, params: Any, result: Inspection) -> Subject:
    """The environment behind one interface. Appends to the findings; raises UnusableError if nothing can be run."""
    say = result.findings.append
    spaces = {}
    for name in ("observation_space", "action_space"):
        try:
            spaces[name] = space = getattr(env, name)(params)
            result.statistics[name] = envs.describe(space)
            bounds = _bounds(space) if hasattr(space, "low") else None
        except Exception as error:
            raise UnusableError("raises", f"{name} raises {_said(error)}") from error
        if bounds is not None and not (bounds[0] <= bounds[1]).all():  # NaN is neither
            raise UnusableError("space_wrong", f"{name} has bounds of which the lower is not below the upper")
        if bounds is not None and not bounds[0].size:
            raise UnusableError("space_wrong", f"{name} has the shape {tuple(space.shape)}, with nothing in it")
        if hasattr(space, "n") and (int(space.n) != space.n or space.n < 1):
            raise UnusableError("space_wrong", f"{name} is Discrete({space.n}): no whole number of at least 1")
        if not hasattr(space, "n") and not hasattr(space, "low"):
            say(found("space_kind", f"{name} is a {type(space).__name__}"))
    sample = _sampler(spaces["action_space"], say)

    def reset(key: jax.Array) -> Any:
        out = env.reset(key, params)
        if not isinstance(out, tuple) or len(out) != 2:
            raise TypeError(f"it gives {type(out).__name__}, not (observation, state)")
        return out

    def stepped(key: jax.Array) -> Any:
        return env.step(key, reset(key)[1], sample(key), params)

    def unreset(key: jax.Array, state: Any, action: Any) -> Any:
        # The key that gymnax's own step gives it. A step that splits otherwise is seen not to agree, and not judged.
        return env.step_env(jax.random.split(key)[0], state, action, params)

    key = jax.random.key(0)
    obs, state = _shapes(env, "reset", reset, result)
    try:
        alone, state_alone, *_ = jax.eval_shape(lambda key: unreset(key, reset(key)[1], sample(key)), key)
    except Exception:  # not every environment has one
        alone = None
    try:
        out = _shapes(env, "step", stepped, result)
    except UnusableError:
        if alone is not None:  # gymnax's step fails where it selects between what reset and step_env give
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
        raise UnusableError("not_vmappable", f"under vmap: {_said(error)}") from error

    def step(key: jax.Array, state: Any, action: Any) -> Any:
        obs, state, reward, terminated, *truncated, info = env.step(key, state, action, params)
        ends = (jnp.asarray(x, bool).reshape(()) for x in (terminated, truncated[0] if truncated else False))
        final = info["final_observation"] if has_final else None
        return obs, state, jnp.asarray(reward, jnp.float32).reshape(()), *ends, final

    tells = alone is not None and not _mismatch(next_obs, alone)
    return Subject(spaces["observation_space"], reset, sample, step, (lambda *a: unreset(*a)[0]) if tells else None)


def _bounds(space: Any) -> tuple[Array, Array]:
    """Of a Box, in its shape."""
    low, high = (np.broadcast_to(np.asarray(x, np.float64), space.shape) for x in (space.low, space.high))
    return low, high


def _sampler(space: Any, say: Callable[[Finding], None]) -> Callable[[jax.Array], Any]:
    if hasattr(space, "n"):
        return lambda key: jax.random.randint(key, (), 0, space.n).astype(space.dtype)
    if not hasattr(space, "low"):
        if not hasattr(space, "sample"):
            raise UnusableError
        return space.sample
    low, high = (x.astype(np.float32) for x in _bounds(space))
    bounded = (low > -1e9) & (high < 1e9)
    if not bounded.all():
        say(found("unbounded_actions", f"{(~bounded).sum()} of {bounded.size} action dimensions have no bounds"))

    def sample(key: jax.Array) -> jax.Array:
        x = jax.random.uniform(key, space.shape, minval=np.where(bounded, low, 0), maxval=np.where(bounded, high, 1))
        if not bounded.all():
            x = jnp.where(bounded, x, jnp.clip(jax.random.normal(key, space.shape), low, high))
        return x.astype(space.dtype)

    return sample


def _shapes(env: Any, what: str, function: Callable[[jax.Array], Any], result: Inspection) -> Any:
    """Shapes and dtypes of what `function` gives for a key; values, if it cannot be traced."""
    key, failure = jax.random.key(0), None
    try:
        out = jax.eval_shape(function, key)
    except Exception as error:
        failure = error
    for name, x in getattr(env, "__dict__", {}).items():
        if _is_traced(x):
            raise UnusableError("impure", f"{what} stores traced values in self.{name}")
    if failure is None:
        if _program(function, key) != _program(function, key):
            raise UnusableError("impure", f"{what} does something else the second time")
        return out
    try:
        with jax.disable_jit():
            out = function(key)
    except Exception as error:
        if not isinstance(failure, jax.errors.JAXTypeError | jax.errors.JAXIndexError):
            raise UnusableError("raises", f"{what} raises {_said(error)}") from error
        raise UnusableError("not_jittable", f"{what} cannot be traced: {_said(failure)}") from error
    if not any(f.check == "not_jittable" for f in result.findings):
        result.findings.append(found("not_jittable", f"{what} cannot be traced: {_said(failure)}"))
    return jax.tree.map(lambda x: x if isinstance(x, str) else jnp.asarray(x), out)


def _is_traced(x: Any) -> bool:
    try:
        return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(x))
    except ValueError:  # a dictionary whose keys jax cannot sort
        return False


def _program(function: Callable[..., Any], key: jax.Array) -> Any:
    """What tracing records, the values of constants included; without jit, whose cache would not run the code again."""
    try:
        with jax.disable_jit():
            traced = jax.make_jaxpr(lambda key: function(key))(key)  # a new function, which no cache knows
    except Exception:  # a loop that cannot do without jit: not to be judged
        return None
    constants = [np.asarray(x).tobytes() for x in traced.consts if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)]
    return re.sub("0x[0-9a-f]+", "", str(traced)), constants  # without the addresses of functions


def _type(x: Any) -> str:
    return f"{x.dtype.name}{list(x.shape)}"


def _mismatch(a: Any, b: Any) -> str:
    """Where two trees' shapes and dtypes differ first; '' if nowhere."""
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


def _random_policy(subject: Subject, result: Inspection, episodes: int, gamma: float, seed: int) -> None:
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
        raise UnusableError("raises", f"running many environments: {_said(error)}") from error
    returns, lengths = rollout.returns_and_lengths(whole)
    # An end by a time limit counts as an end here: what would follow is not known.
    targets = [
        lfilter([1], [1, -gamma], rollout.steps["reward"][a:b, n][::-1].astype(float))[::-1] for n, a, b in whole
    ]
    target = np.concatenate(targets) if targets else np.zeros(0)
    result.samples = Samples(subject.obs_space, rollout, returns, lengths, target, explored)
    result.statistics |= _statistics(result.samples, whole, gamma)
    if collector.alike:
        say(found("reset_ignores_key", f"{collector.num_starts} resets with different keys are all the same"))
    endings = _endings(rollout, varied=collector.varied, tells=subject.unreset is not None)
    result.findings += endings
    if any(f.check == "no_auto_reset" for f in endings):
        return  # what it met after that is none of the environment's episodes
    result.findings += _of_observations(rollout, subject.obs_space)
    result.findings += _of_rewards(result.samples, result.statistics, gamma)
    if not rollout.ended.any():
        say(found("never_ends", f"no episode ended within {len(rollout.ended):,} steps"))
    elif len(whole) < episodes:
        few = rollout.ended.any(axis=0).all()
        meaning = "" if few else "; only those of the fastest to end, so that lengths and returns are biased"
        say(found("cut", f"{len(whole)} of {episodes} episodes ended within {rollout.ended.size:,} steps{meaning}"))


def _summary(x: Array) -> dict[str, float]:
    if not len(x):
        return {}
    return {"mean": float(x.mean()), "std": float(x.std()), "min": float(x.min()), "max": float(x.max())}


def is_image(shape: tuple[int, ...]) -> bool:
    """Whether an observation is too large to be looked at number by number, and has rows and columns."""
    return len(shape) in (2, 3) and math.prod(shape) > MAX_DIMENSIONS


def _statistics(samples: Samples, whole: Sequence[tuple[int, int, int]], gamma: float) -> dict[str, Any]:
    r = samples.rollout
    out: dict[str, Any] = {}
    reward, ended = r.steps["reward"], r.ended
    out["steps"], out["environments"], out["episodes"] = reward.size, reward.shape[1], len(whole)
    std = float(np.sqrt((r.std**2).mean() + r.mean.var()))
    out["observation"] = {
        "mean": float(r.mean.mean()),
        "std": std,
        "min": float(r.low.min()),
        "max": float(r.high.max()),
    }
    out["observation"] |= {"dimensions": len(r.mean), "constant": int((r.low == r.high).sum()), "distinct": r.distinct}
    if 1 < len(r.mean) <= 64:
        per = {"mean": r.mean, "std": r.std, "min": r.low, "max": r.high}
        out["observation"]["per_dimension"] = {name: x.tolist() for name, x in per.items()}
    finite = reward[np.isfinite(reward)].astype(np.float64)
    values, counts = np.unique(finite, return_counts=True)
    out["reward"] = _summary(finite) | {"nonzero": float((reward != 0).mean()), "distinct": len(values)}
    out["return"], out["length"] = _summary(samples.returns), _summary(samples.lengths)
    if ended.any():
        for name in ("terminated", "truncated"):
            out[name] = float(r.steps[name][ended].mean())
    if whole and len(values):
        usual = values[counts.argmax()]
        out["episodes_with_unusual_reward"] = float(np.mean([(reward[a:b, n] != usual).any() for n, a, b in whole]))
        furthest = float(np.abs(samples.targets).max())
        out["value_target"] = _summary(samples.targets)
        out["value_target"]["reward_multiplier"] = 3 / furthest if furthest else None
    out["gamma"], out["horizon"] = gamma, 1 / (1 - gamma) if gamma < 1 else math.inf
    out["action_repeat"] = {}
    for n, x in samples.explored.items():
        returns, lengths = x.returns_and_lengths(x.episodes(1))
        out["action_repeat"][str(n)] = {
            "return": _summary(returns),
            "length": _summary(lengths),
            "distinct": x.distinct,
        }
    return out


def _endings(rollout: Rollout, *, varied: bool, tells: bool) -> list[Finding]:
    """Whether what comes after an end is a reset, and what came before is shown. `varied`: whether resets differ."""
    ended = rollout.ended
    out: list[Finding] = []
    num_ends = int(ended.sum())
    if not num_ends:
        return out
    after = np.cumsum(ended, axis=0) - ended > 0
    firsts = np.where(ended.any(axis=0), ended.argmax(axis=0) + 1, len(ended))
    for_ever = after.sum() >= 8 and ended[after].all() and firsts.mean() > 1
    tells = tells and bool((~ended).any()) and bool(rollout.steps["own_next"][~ended].all())
    same, own = (bool(rollout.steps[name][ended].all()) for name in ("same", "own_next"))
    stays = own if tells else same
    if for_ever or (stays and (rollout.steps["stray"][ended].mean() > 0.5 or (tells and varied))):
        how = "every step after the first end ends too" if for_ever else "the episode after an end goes on from there"
        return [found("no_auto_reset", how)]
    if rollout.nonfinite:
        pass  # NaN is like nothing else
    elif tells and rollout.steps["own_final"][ended].mean() < 0.5:
        out.append(found("final_observation_wrong", "at an end it is not what step_env gives"))
    elif same and varied and num_ends >= 8:
        out.append(found("final_observation_wrong", "at every end it is the next episode's first observation"))
    _, lengths = rollout.returns_and_lengths(rollout.episodes(EPISODES_PER_ENV))
    both = rollout.steps["terminated"] & rollout.steps["truncated"]
    if both[ended].all():
        # Where all lengths are alike, the task itself may end at its time limit.
        severity = "INFO" if len(set(lengths)) == 1 else ""
        out.append(found("always_both", "every end is both terminated and truncated", severity))
    if ended.shape[1] > 1 and num_ends < ended.size and (ended.any(axis=1) == ended.all(axis=1)).all():
        out.append(found("resets_in_step", f"every episode has {firsts[0]} steps"))
    return out


def _of_observations(r: Rollout, space: Any) -> list[Finding]:
    out = []
    if r.nonfinite:
        out.append(found("nonfinite", f"{r.nonfinite:,} numbers of observations are NaN or infinite"))
    shape = tuple(getattr(space, "shape", r.mean.shape))
    if (hasattr(space, "n") or hasattr(space, "low")) and math.prod(shape) == len(r.mean):
        bounds = (np.zeros(1), np.array([space.n - 1.0])) if hasattr(space, "n") else _bounds(space)
        low, high = (x.ravel() for x in bounds)
        excess = np.maximum(low - r.low - 1e-5 * (1 + abs(low)), r.high - high - 1e-5 * (1 + abs(high)))
        if (excess > 0).any():
            i = int(excess.argmax())
            title = (
                f"{_dimensions(excess > 0)} out of observation_space: {i} is within [{r.low[i]:.4g}, {r.high[i]:.4g}]"
            )
            out.append(found("out_of_bounds", f"{title}, declared [{low[i]:.4g}, {high[i]:.4g}]"))
    constant = r.low == r.high
    if is_image(shape) and len(shape) == 3 and not constant.all():
        channels = constant.reshape(-1, shape[-1]).all(axis=0)
        if channels.any():
            out.append(found("constant_observation", f"channels {ranges(np.flatnonzero(channels))} never change"))
    elif constant.any() and (constant.all() or not is_image(shape)):
        severity = "WARN" if constant.all() and not r.ended.all() else ""
        out.append(found("constant_observation", f"{_dimensions(constant)} never change", severity))
    finite = np.isfinite(r.low) & np.isfinite(r.high)
    pixels = is_image(shape) and np.dtype(space.dtype) == np.uint8  # agents divide by 255
    if not hasattr(space, "n") and not pixels:
        furthest = np.where(finite, np.maximum(abs(r.low), abs(r.high)), 1)
        small = (furthest < 0.1) & ~constant
        for which, size, limit, worst in (
            (furthest > 10, "large", 10, furthest.argmax()),
            (small, "tiny", 0.1, np.where(small, furthest, 1).argmin()),
        ):
            if which.any():
                measured = {"value": float(furthest[worst]), "threshold": limit, "what": f"max |observation {worst}|"}
                out.append(found("observation_scale", f"{_dimensions(which)} {size}", "", **measured))
    return out


def _dimensions(which: Array) -> str:
    few = f" ({ranges(np.flatnonzero(which))})" if len(which) > 1 and which.sum() <= MAX_DIMENSIONS else ""
    return f"{which.sum()} of {len(which)} observation dimensions{few}"


def _of_rewards(samples: Samples, statistics: Mapping[str, Any], gamma: float) -> list[Finding]:
    r, out = samples.rollout, []
    reward, ended, returns = r.steps["reward"], r.ended, samples.returns
    if bad := int((~np.isfinite(reward)).sum()):
        return [found("nonfinite", f"{bad:,} of {reward.size:,} rewards are NaN or infinite")]
    if len(returns) > 1:
        values, counts = np.unique(np.round(returns, 6), return_counts=True)
        others = 1 - counts.max() / len(returns)
        if others == 0:
            out.append(found("no_signal", f"all {len(returns)} episodes return {returns[0]:.4g}"))
        elif others < 0.1:
            usual = values[counts.argmax()]
            out.append(found("rare_signal", f"{others:.0%} of episodes return anything but {usual:.4g}"))
    sizes = np.abs(reward[reward != 0])
    if len(sizes) and sizes.max() > 100 * np.median(sizes):
        measured: dict[str, Any] = {
            "value": float(sizes.max()),
            "what": "max |reward|",
            "threshold": float(100 * np.median(sizes)),
        }
        out.append(found("reward_outliers", "the largest reward is far from the usual ones", **measured))
    if len(samples.targets) and (furthest := float(np.abs(samples.targets).max())):
        measured = {"value": furthest, "what": "max |value target|", "threshold": 10 if furthest > 10 else 0.1}
        multiplier = f"a reward multiplier of {3 / furthest:.2g}"
        if furthest > 10:
            out.append(
                found(
                    "value_targets",
                    f"large: {multiplier} brings them into [-3, 3]",
                    "WARN" if furthest > 100 else "",
                    **measured,
                )
            )
        elif furthest < 0.1:
            out.append(
                found("value_targets", f"tiny: {multiplier}, if a better policy gets no larger ones", **measured)
            )
    if gamma == 1 and not r.steps["terminated"].any():
        out.append(found("undiscounted", "gamma is 1, and no episode is terminated"))
    elif len(returns) and gamma < 1:
        horizon, length = 1 / (1 - gamma), float(samples.lengths.mean())
        measured = {"value": horizon, "what": "1 / (1 - gamma)"}
        if horizon * 5.001 < length:
            # Where rewards come more rarely than that, most steps hear of none.
            severity = "WARN" if statistics["reward"]["nonzero"] * horizon < 1 else ""
            title = f"discounting reaches {horizon:.4g} steps ahead, a mean episode has {length:.4g}"
            out.append(found("short_horizon", title, severity, threshold=length / 5, **measured))
        elif horizon > 50 * length and not ended.all():
            out.append(
                found("long_horizon", f"a mean episode has {length:.4g} steps", threshold=50 * length, **measured)
            )
    return out
