"""The probe environments, in gymnax's interface: everything that differs between probes is a parameter.

`Tabular` is a Markov decision process written as tables, `Target` a one-step task with continuous actions. Probes whose
tables have equal shapes train in one program, `vmap` over probe and seed, with the tables as batched parameters.

Letters: `n` states, `A` actions, `D` action dimensions.
"""

from functools import partial
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
from gymnax.environments import environment, spaces

from rlref.envs.spaces import Masked, MultiDiscrete

NEVER = np.iinfo(np.int32).max
LONGEST = 10  # steps: episodes of the ladder that end do so sooner


@flax.struct.dataclass
class Tables:
    """A Markov decision process: the parameters of `Tabular`. Leaves are NumPy arrays until a program takes them."""

    obs: Any  # [n, ...] what each state shows; states that show the same cannot be told apart
    start: Any  # [n] probability of each state to begin an episode
    reward: Any  # [n, A]
    next: Any  # [n, A] int32: the state a step leads to, also at an ending: its observation is the final one
    terminated: Any  # [n, A] bool
    truncated: Any  # [n, A] bool
    after: Any  # [n, A] int32: the state that the NEXT episode begins in after this step ended one; -1: by `start`
    noise: Any  # scalar: every reward is this much higher or lower, with equal odds
    flip_at: Any  # int32 scalar: from this many steps on, counted over resets, rewards have the other sign
    # For agents that must know beforehand; static, for tables are traced.
    max_steps_in_episode: int = flax.struct.field(pytree_node=False, default=LONGEST)
    # How many of the last numbers of what each state shows say which actions are allowed there; 0: all are.
    action_mask: int = flax.struct.field(pytree_node=False, default=0)
    # Numbers of options, where an action is several choices at a time and A all their combinations, the last fastest.
    choices: tuple[int, ...] = flax.struct.field(pytree_node=False, default=())


def tables(
    obs: Any,
    reward: Any,
    next: Any,  # the field of the table
    *,
    terminated: Any = False,
    truncated: Any = False,
    start: Any = 0,
    after: Any = -1,
    noise: float = 0.0,
    flip_at: int = NEVER,
    action_mask: int = 0,
    choices: tuple[int, ...] = (),
) -> Tables:
    """Tables from nested lists; entries per state are repeated over actions. `start`: a state, or `[n]` odds."""
    obs = np.asarray(obs)
    columns = [np.asarray(x) for x in (reward, next, terminated, truncated, after)]
    num_actions = max([x.shape[1] for x in columns if x.ndim == 2], default=1)
    full = [np.broadcast_to(x[:, None] if x.ndim == 1 else x, (len(obs), num_actions)) for x in columns]
    kinds = (np.float32, np.int32, bool, bool, np.int32)
    reward, next, terminated, truncated, after = (x.astype(kind) for x, kind in zip(full, kinds, strict=True))
    return Tables(
        obs=obs if obs.dtype == np.uint8 else obs.astype(np.float32),
        start=np.asarray(start, np.float32) if np.ndim(start) else np.eye(len(obs), dtype=np.float32)[start],
        reward=reward,
        next=next,
        terminated=terminated,
        truncated=truncated,
        after=after,
        noise=np.float32(noise),
        flip_at=np.int32(flip_at),
        action_mask=action_mask,
        choices=choices,
    )


@flax.struct.dataclass
class TabularState:
    """Where a `Tabular` is."""

    index: jax.Array  # int32, of the state
    steps: jax.Array  # int32, counted over resets
    truncated: jax.Array  # bool, whether the last step met the time limit


class Tabular(environment.Environment):
    """The Markov decision process of its parameters.

    `default` gives the shapes, and the parameters where none are passed.
    """

    def __init__(self, default: Tables):
        self.default = default

    @property
    def default_params(self) -> Tables:
        return self.default

    @property
    def num_actions(self) -> int:
        return self.default.reward.shape[-1]

    def action_space(self, params: Tables | None = None) -> spaces.Space:
        return MultiDiscrete(self.default.choices) if self.default.choices else spaces.Discrete(self.num_actions)

    def observation_space(self, params: Tables | None = None) -> spaces.Box:
        obs, size = self.default.obs, self.default.action_mask
        low, high = (0, 255) if obs.dtype == np.uint8 else (-np.inf, np.inf)
        if size:
            return Masked(spaces.Box(low, high, (obs.shape[1] - size,), obs.dtype), size)
        return spaces.Box(low, high, obs.shape[1:], obs.dtype)

    def reset_env(self, key: jax.Array, params: Tables) -> tuple[jax.Array, TabularState]:
        index = jax.random.categorical(key, jnp.log(jnp.asarray(params.start))).astype(jnp.int32)
        return jnp.asarray(params.obs)[index], TabularState(index, jnp.int32(0), jnp.bool(False))

    def step_env(
        self, key: jax.Array, state: TabularState, action: Any, params: Tables
    ) -> tuple[jax.Array, TabularState, jax.Array, jax.Array, dict[Any, Any]]:
        params = jax.tree.map(jnp.asarray, params)
        at = state.index, self.combined(action)
        reward = params.reward[at] + params.noise * jax.random.rademacher(key, (), jnp.float32)
        reward = jnp.where(state.steps >= params.flip_at, -reward, reward)
        new = TabularState(params.next[at], state.steps + 1, params.truncated[at])
        return params.obs[new.index], new, reward, params.terminated[at], {}

    def combined(self, action: Any) -> Any:
        """The number of an action among all combinations of choices."""
        sizes = self.default.choices
        return jnp.ravel_multi_index(tuple(action), sizes, mode="clip") if sizes else action

    def is_truncated(self, state: TabularState, params: Tables) -> jax.Array:
        return state.truncated

    @partial(jax.jit, static_argnames=("self",))
    def step(
        self, key: jax.Array, state: TabularState, action: Any, params: Tables | None = None
    ) -> tuple[Any, TabularState, jax.Array, jax.Array, jax.Array, dict[Any, Any]]:
        """gymnax's step with its reset at an ending, and with what outlives one: the step count, and `after`."""
        params = self.default if params is None else params
        _, new, reward, terminated, truncated, info = super().step(key, state, action, params)
        after = jnp.asarray(params.after)[state.index, self.combined(action)]
        index = jnp.where((terminated | truncated) & (after >= 0), after, new.index)
        new = TabularState(index, state.steps + 1, new.truncated)
        return jnp.asarray(params.obs)[index], new, reward, terminated, truncated, info


@flax.struct.dataclass
class Targets:
    """The parameters of `Target`: reward = peak - curvature |a - optimum|^2 + slope . a, in a Box of [-1, 1]^D."""

    obs: Any  # [n, ...]
    optimum: Any  # [n, D]
    slope: Any  # [n, D]
    curvature: Any  # scalar
    peak: Any  # scalar
    max_steps_in_episode: int = flax.struct.field(pytree_node=False, default=1)


@flax.struct.dataclass
class TargetState:
    """Which of a `Target`'s observations is shown."""

    index: jax.Array  # int32


class Target(environment.Environment):
    """One step, then it terminates. Actions are taken as they come: clipping them to the Box is the agent's part."""

    def __init__(self, default: Targets):
        self.default = default

    @property
    def default_params(self) -> Targets:
        return self.default

    def action_space(self, params: Targets | None = None) -> spaces.Box:
        return spaces.Box(-1.0, 1.0, self.default.optimum.shape[1:], jnp.float32)

    def observation_space(self, params: Targets | None = None) -> spaces.Box:
        return spaces.Box(-np.inf, np.inf, self.default.obs.shape[1:], jnp.float32)

    def reset_env(self, key: jax.Array, params: Targets) -> tuple[jax.Array, TargetState]:
        index = jax.random.randint(key, (), 0, params.obs.shape[0])
        return jnp.asarray(params.obs)[index], TargetState(index)

    def step_env(
        self, key: jax.Array, state: TargetState, action: Any, params: Targets
    ) -> tuple[jax.Array, TargetState, jax.Array, jax.Array, dict[Any, Any]]:
        params = jax.tree.map(jnp.asarray, params)
        distance = jnp.sum((action - params.optimum[state.index]) ** 2)
        reward = params.peak - params.curvature * distance + jnp.sum(params.slope[state.index] * action)
        return params.obs[state.index], state, reward, jnp.bool(True), {}

    def is_truncated(self, state: TargetState, params: Targets) -> jax.Array:
        return jnp.bool(False)
