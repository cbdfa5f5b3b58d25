"""Gymnasium's environments (Towers et al. 2024, arXiv:2407.17032), stepped on the host."""

import contextlib
import copy
import functools
import importlib
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces, wrappers
from gymnasium.envs.registration import EnvSpec
from jax.experimental.buffer_callback import buffer_callback

from rlref.envs.episodes import random_action
from rlref.envs.interface import mask_fault
from rlref.envs.spaces import Masked, MultiDiscrete
from rlref.envs.suites import look_here
from rlref.envs.suites.base import State, SuiteEnv, box, discrete
from rlref.envs.suites.drawing import opengl
from rlref.envs.suites.host import Host, with_place
from rlref.envs.suites.words import Field, Words
from rlref.envs.totals import Totals
from rlref.errors import UsageError, in_a_line

STATELESS = (wrappers.PassiveEnvChecker, wrappers.OrderEnforcing)
TRIED = 20  # steps in which scalars are looked for in `info`


def names() -> list[str]:
    """Those that are registered."""
    return sorted(gymnasium.registry)


def registered(name: str) -> str:
    """The name that is left of gymnasium's own `module:name` once the module is imported. Raises UsageError."""
    module, _, name = name.partition(":")
    look_here()
    try:
        importlib.import_module(module)
    except Exception as error:  # the user's own code: anything can come
        raise UsageError(f"gymnasium:{module}:{name}: {module} cannot be imported: {in_a_line(error)}") from error
    return name


class Inner(NamedTuple):
    """What jax keeps of an environment that lives on the host."""

    token: jax.Array
    """`[2]` uint32: which one it is, see host.py"""
    seed: jax.Array
    """`[2]` uint32: the episode's"""
    obs: jax.Array
    """what the last step, or the reset, showed"""
    action: jax.Array
    """the last one"""
    saved: jax.Array
    """`[n]` uint32: what the simulator was before that action; [0] where that cannot be had"""


class Gymnasium:
    """One of gymnasium's environments, as host.py plays it."""

    def __init__(self, env: gymnasium.Env) -> None:
        self.env = env
        self.start = getattr(env.action_space, "start", None)  # of Discrete and MultiDiscrete
        self.seen, self.mask_size = apart(env)
        self.integers = np.issubdtype(self.seen.dtype, np.integer)
        space = env.observation_space
        self.beside_mask = [x for x in space.spaces if x != "action_mask"] if isinstance(space, spaces.Dict) else []
        plain = env.unwrapped
        self.mujoco = (plain.model, plain.data) if hasattr(plain, "model") and hasattr(plain, "data") else None
        # What a wrapper remembers, such as the steps until its limit, cannot be had.
        self.plain = not any(isinstance(x, gymnasium.Wrapper) and not isinstance(x, STATELESS) for x in layers(env))
        if self.mujoco:
            import mujoco

            mujoco.set_mju_user_warning(said_once)
            self.kind = mujoco.mjtState.mjSTATE_INTEGRATION
            self.buffer = np.zeros(mujoco.mj_stateSize(self.mujoco[0], self.kind))
            self.get_state, self.set_state = mujoco.mj_getState, mujoco.mj_setState

    def reset(self, seed: int) -> np.ndarray:
        return self.shown(self.env.reset(seed=seed)[0])

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, float]]:
        space = self.env.action_space
        given: Any = action if self.start is None else action + self.start
        if isinstance(space, spaces.Discrete):
            given = int(given)
        elif isinstance(space, spaces.Box):  # float32 of a bound may lie beyond it
            given = np.maximum(np.minimum(given.astype(space.dtype), space.high), space.low)  # sooner than np.clip
        stepped: Any = self.env.step(given)
        if len(stepped) != 5:  # gym's before 0.26, and gymnasium never
            what = "observation, reward, terminated, truncated, info"
            raise TypeError(f"step gives {len(stepped)} values; gymnasium's gives {what}")
        obs, reward, terminated, truncated, info = stepped
        if not isinstance(reward, float):
            try:
                reward = float(np.asarray(reward).reshape(()))
            except (TypeError, ValueError):
                raise TypeError(f"step gives the reward {reward!r}, which is no number") from None
        return self.shown(obs), reward, bool(terminated), bool(truncated), info

    def shown(self, obs: Any) -> np.ndarray:
        if not self.mask_size:
            return self.without_mask(obs)
        if missing := [name for name in ("action_mask", *self.beside_mask) if name not in obs]:
            raise ValueError(f"an observation lacks {', '.join(missing)}, which its space has")
        mask = np.ravel(obs["action_mask"])
        if mask.size != self.mask_size or mask.dtype.kind not in "biuf":
            raise ValueError(f"an observation's action_mask is {mask}, and its space says {self.mask_size} numbers")
        alone = len(self.beside_mask) == 1
        return np.append(self.without_mask(obs[self.beside_mask[0]] if alone else obs), mask)

    def without_mask(self, obs: Any) -> np.ndarray:
        if isinstance(self.seen, spaces.Box):
            obs = np.asarray(obs)
            if obs.shape != self.seen.shape:
                raise ValueError(f"an observation is {obs.shape}, and its space says {self.seen.shape}")
            if self.integers and obs.dtype != self.seen.dtype and not np.array_equal(obs.astype(self.seen.dtype), obs):
                raise ValueError(
                    f"an observation of {obs.dtype} has numbers that its space's {self.seen.dtype} has not"
                )
        elif isinstance(self.seen, spaces.Discrete):
            obs = obs - self.seen.start
        else:
            obs = spaces.flatten(self.seen, obs)
        return obs

    def picture(self) -> np.ndarray:
        with opengl() if self.mujoco else contextlib.nullcontext():
            return np.asarray(self.env.render())

    def save(self) -> np.ndarray | None:
        if self.mujoco is None or not self.plain:
            return None
        self.get_state(*self.mujoco, self.buffer, self.kind)
        return self.buffer.view(np.uint32)

    def restore(self, saved: np.ndarray) -> None:
        assert self.mujoco is not None
        self.set_state(*self.mujoco, np.ascontiguousarray(saved).view(np.float64), self.kind)


class GymnasiumEnv(SuiteEnv):
    """An environment on the host: its limit is counted here, and each call of it is one of a whole batch."""

    def __init__(self, name: str, how: EnvSpec | Callable[[], gymnasium.Env] | None = None) -> None:
        """`how` it is made, where that is not what is registered under the name."""
        if callable(how):
            self.id, self.limit, make = name, None, how
            first = make()
        else:
            spec = copy.deepcopy(gymnasium.spec(name) if how is None else how)
            self.id, self.limit = f"gymnasium:{name}", spec.max_episode_steps
            spec.order_enforce, spec.disable_env_checker = False, True
            # The limit is counted here, unless there are wrappers, which may depend on it.
            limit = None if spec.additional_wrappers else -1
            first, make = drawing(functools.partial(gymnasium.make, spec, max_episode_steps=limit))
        self.observations, self.actions = observations_of(first, self.id), actions_of(first, self.id)
        played = Gymnasium(first)
        self.action_field = Field(self.actions.shape, self.actions.dtype)
        begun = played.reset(0)
        saved = played.save()
        self.metrics = self.metrics_of(played, begun)
        first.close()
        pair, flag = Field((2,), np.uint32), Field((), bool)
        obs = Field(self.observations.shape, self.observations.dtype)
        kept = Field((0 if saved is None else saved.size,), np.uint32)
        asked = Words(token=pair, next_token=pair, seed=pair, next_seed=pair, time=Field((), np.int32), cut=flag,
                      action=self.action_field, last_action=self.action_field, obs=obs, saved=kept)  # fmt: skip
        given = Words(obs=obs, final_obs=obs, reward=Field((), np.float32), terminated=flag, truncated=flag,
                      metrics=Field((len(self.metrics),), np.float32), saved=kept)  # fmt: skip
        devices = jax.local_device_count()
        self.host = Host(self.id, lambda: Gymnasium(make()), asked, given, self.metrics, devices)

    def metrics_of(self, played: Gymnasium, obs: np.ndarray) -> tuple[str, ...]:
        """The scalars in the info of the first steps under random actions, always the same ones."""
        space, found = played.env.action_space, set()
        space.seed(0)
        draw = jax.jit(functools.partial(random_action, self.actions, self.observations))
        for seed in range(1, 1 + TRIED):
            # gymnasium's own draws are finite where a Box has no bounds, and know nothing of a MultiBinary's mask.
            action = space.sample() if isinstance(space, spaces.Box) else draw(jax.random.key(seed), obs)
            action = np.asarray(action)
            try:
                obs, _, terminated, truncated, info = played.step(action)
            except Exception as error:  # the environment's own code: anything can come
                raise UsageError(f"{self.id} fails in step {seed}: {with_place(error)}") from error
            found |= {name for name, x in info.items() if isinstance(x, float | np.floating)}
            obs = played.reset(seed) if terminated or truncated else obs
        return tuple(sorted(found))

    @property
    def failure(self) -> str | None:
        """What went wrong in the environment's own code, in a line; nothing that it gives counts from then on."""
        return self.host.failure

    @property
    def can_be_saved(self) -> bool:
        """Whether an episode can go on in another process, bit for bit."""
        return self.host.asked.fields["saved"].shape != (0,)

    def render(self, state: State) -> np.ndarray:
        return self.host.there(np.asarray(state.inner.token)).picture()

    def called(self, what: Callable[..., Any], **arrays: Any) -> dict[str, jax.Array]:
        """What the host gives for one environment's arrays; under `vmap` all go to it in one call."""
        empty = {name: jnp.zeros(field.shape, field.dtype) for name, field in self.host.asked.fields.items()}
        row = self.host.asked.pack(**empty | arrays)
        shape, how = jax.ShapeDtypeStruct((self.host.given.size,), np.uint32), "broadcast_all"

        def filled(_: Any, given: Any, asked: Any) -> None:
            np.asarray(given)[...] = what(np.asarray(asked))

        # On a CPU `pure_callback` copies what is asked on jax's own threads; where as many callbacks as there are
        # threads wait for that, as of two devices on two cores, none goes on (jax issue 24255). This copies nothing.
        given = jax.lax.platform_dependent(
            row,
            cpu=buffer_callback(filled, shape, vmap_method=how),
            default=lambda row: jax.pure_callback(what, shape, row, vmap_method=how),
        )
        return self.host.given.unpack(given)

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, State]:
        seed = jax.random.bits(key, (2,), jnp.uint32)
        obs = self.called(self.host.reset, next_seed=seed)["obs"]
        totals = Totals.of(self.metrics) if self.metrics else None
        return obs, State(jnp.int32(0), jnp.bool(False), self.inner_of(seed, obs), totals)

    def inner_of(self, seed: jax.Array, obs: jax.Array) -> Inner:
        saved = jnp.zeros(self.host.asked.fields["saved"].shape, jnp.uint32)
        return Inner(seed, seed, obs, jnp.zeros(self.actions.shape, self.actions.dtype), saved)

    def stepped(self, key: jax.Array, state: State, action: Any, cut: Any) -> Any:
        inner, action = state.inner, jnp.asarray(action, self.actions.dtype)
        seed = jax.random.bits(key, (2,), jnp.uint32)
        token = hashed(inner.token, self.host.asked._to_words(self.action_field, action))
        given = self.called(
            self.host.step, token=inner.token, next_token=token, seed=inner.seed, next_seed=seed, time=state.time,
            cut=cut, action=action, last_action=inner.action, obs=inner.obs, saved=inner.saved,
        )  # fmt: skip
        info = dict(zip(self.metrics, given["metrics"], strict=True))
        after = Inner(token, inner.seed, given["final_obs"], action, given["saved"])
        return given, State(state.time + 1, given["truncated"], after, state.totals), seed, info

    def step_env(self, key: jax.Array, state: State, action: Any, params: Any) -> Any:
        given, after, _, info = self.stepped(key, state, action, False)
        return given["final_obs"], after, given["reward"], given["terminated"], info

    def step(self, key: jax.Array, state: State, action: Any, params: Any = None) -> Any:
        params = self.default_params if params is None else params
        key_step, _ = jax.random.split(key)
        limit = params.max_steps_in_episode
        cut = False if limit is None else state.time + 1 >= limit
        given, after, seed, info = self.stepped(key_step, state, action, cut)
        truncated = self.is_truncated(after, params)
        ended = given["terminated"] | truncated
        totals = after.totals and after.totals.after(info, ended)
        fresh = State(jnp.int32(0), jnp.bool(False), self.inner_of(seed, given["obs"]), None)
        after = jax.tree.map(lambda x, y: jnp.where(ended, x, y), fresh, after.replace(totals=None))
        after = after.replace(totals=totals)
        info = info | {"final_observation": given["final_obs"]}
        return given["obs"], after, given["reward"], given["terminated"], truncated, info


def drawing(make: Callable[..., gymnasium.Env]) -> tuple[gymnasium.Env, Callable[[], gymnasium.Env]]:
    """An environment, and what makes more: such as can be drawn, where it knows of that."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a render mode that is not among those it lists
            env = make(render_mode="rgb_array")
        if "rgb_array" in (env.metadata or {}).get("render_modes", ()):
            return env, functools.partial(make, render_mode="rgb_array")
        env.close()
    except TypeError:  # it takes no render_mode
        pass
    return make(), make


def layers(env: gymnasium.Env) -> Iterator[gymnasium.Env]:
    """An environment's wrappers, and what is beneath."""
    yield env
    while isinstance(env, gymnasium.Wrapper):
        env = env.env
        yield env


@functools.cache
def said_once(text: str) -> None:
    """What MuJoCo warns of; it would write it, for each environment again, to a file in the user's folder as well."""
    print(f"MuJoCo: {text}", file=sys.stderr)


def hashed(token: jax.Array, words: jax.Array) -> jax.Array:
    """The next token `[2]`: multiplications and shifts, as in MurmurHash3's finaliser (Appleby 2011)."""
    factors = jnp.array([0x85EBCA6B, 0xC2B2AE35], jnp.uint32)
    for word in words:
        token = (token ^ word) * factors
        token = token ^ (token >> 15) ^ jnp.roll(token, 1) << 7
    return (token ^ (token >> 13)) * factors[::-1] + 1


def apart(env: gymnasium.Env) -> tuple[Any, int]:
    """The space of what networks are to see, and how long the action mask is, in a Dict's `action_mask`, beside it.

    One thing beside the mask is as it would be alone: an image stays one.
    """
    space = env.observation_space
    if not isinstance(space, spaces.Dict) or "action_mask" not in space.spaces:
        return space, 0
    others = {name: x for name, x in space.spaces.items() if name != "action_mask"}
    return next(iter(others.values())) if len(others) == 1 else spaces.Dict(others), int(
        np.prod(space.spaces["action_mask"].shape or ())
    )


def observations_of(env: gymnasium.Env, name: str) -> Any:
    space, mask_size = apart(env)
    if isinstance(space, spaces.Dict) and not space.spaces:
        raise UsageError(f"{name} shows nothing but an action_mask: there is nothing to learn from")
    if not isinstance(space, spaces.Box | spaces.Discrete):
        try:
            space = spaces.flatten_space(space)
        except NotImplementedError:
            raise UsageError(f"{name} has the observation space {space}, which cannot be flattened") from None
        if not isinstance(space, spaces.Box):
            raise UsageError(f"{name} has the observation space {space}, which cannot be flattened")
    if isinstance(space, spaces.Discrete):
        seen = discrete(int(space.n))
    else:
        dtype = np.uint8 if space.dtype == np.uint8 else np.float32
        seen = box(space.low.astype(dtype), space.high.astype(dtype), space.shape, dtype)
    if not mask_size:
        return seen
    masked = Masked(seen, mask_size)
    if mask_fault(masked, actions_of(env, name)):  # said of gymnasium's own space
        raise UsageError(f"{name} has an action_mask of {mask_size} for the action space {env.action_space}")
    return masked


def actions_of(env: gymnasium.Env, name: str) -> Any:
    space = env.action_space
    if isinstance(space, spaces.Discrete):
        return discrete(int(space.n))
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        return MultiDiscrete(space.nvec.tolist())
    if isinstance(space, spaces.MultiBinary) and len(space.shape) == 1:
        return MultiDiscrete([2] * space.shape[0])
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return box(space.low.astype(np.float32), space.high.astype(np.float32), space.shape)
    said = " ".join(str(space).split())
    raise UsageError(f"{name} has the action space {said}; agents take Discrete, Box of floats, or one row of choices")


make = GymnasiumEnv
