"""Tiny gymnax environments whose observations, rewards and endings are known in advance."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment, spaces

NEVER = 1_000_000


def clock_obs(time):
    """What `Clock` shows at a time; for NumPy as well as for jax."""
    stack = jnp.stack if isinstance(time, jax.Array) else np.stack
    return stack([0.1 * time, 1 - 0.05 * time], axis=-1)


@struct.dataclass
class ClockState(environment.EnvState):
    actions: jax.Array  # uint32, the last 32 actions of the episode as bits, the newest lowest


@struct.dataclass
class ClockParams(environment.EnvParams):
    max_steps_in_episode: int = NEVER  # the time that truncates
    terminate_at: int = NEVER
    spread: int = 1  # episodes start at a random time below this
    rewards: np.ndarray | jax.Array | None = None  # [64]: the reward of the step taken at that time


class Clock(environment.Environment[ClockState, ClockParams]):
    """Shows the time, pays a reward from a table, and ends at a set time; two actions, of which it keeps a record."""

    @property
    def default_params(self):
        return ClockParams(rewards=np.zeros(64, np.float32))

    def reset_env(self, key, params):
        state = ClockState(jax.random.randint(key, (), 0, params.spread), jnp.uint32(0))
        return clock_obs(state.time), state

    def step_env(self, key, state, action, params):
        reward = jnp.asarray(params.rewards)[state.time % 64]
        state = ClockState(state.time + 1, state.actions * 2 + action.astype(jnp.uint32))
        return clock_obs(state.time), state, reward, state.time >= params.terminate_at, {}

    def action_space(self, params=None):
        return spaces.Discrete(2)

    def observation_space(self, params=None):
        return spaces.Box(-1e6, 1e6, (2,))


@struct.dataclass
class PairState(environment.EnvState):
    which: jax.Array
    cut: jax.Array


class Pair(environment.Environment[PairState, environment.EnvParams]):
    """Episodes of one step with reward 1 from A = 0 or B = 1, by a fair coin.

    A leads to B and terminates; B leads to A and is truncated. So V(A) = 1 and V(B) = 1 + gamma V(A).
    """

    def reset_env(self, key, params):
        which = jax.random.bernoulli(key).astype(jnp.int32)
        return which, PairState(jnp.int32(0), which, jnp.bool(False))

    def step_env(self, key, state, action, params):
        after = PairState(state.time + 1, 1 - state.which, state.which == 1)
        return after.which, after, jnp.float32(1), state.which == 0, {}

    def is_truncated(self, state, params):
        return state.cut

    def action_space(self, params=None):
        return spaces.Discrete(2)

    def observation_space(self, params=None):
        return spaces.Discrete(2)


@struct.dataclass
class ReachState(environment.EnvState):
    received: jax.Array  # the last action


class Reach(environment.Environment[ReachState, environment.EnvParams]):
    """Takes two numbers of at most +-.5 as its action, and shows as its observation what it was given."""

    @property
    def default_params(self):
        return environment.EnvParams(max_steps_in_episode=NEVER)

    def reset_env(self, key, params):
        state = ReachState(jnp.int32(0), jnp.zeros((2, 1)))
        return state.received, state

    def step_env(self, key, state, action, params):
        state = ReachState(state.time + 1, action)
        return action, state, jnp.float32(0), jnp.bool(False), {}

    def action_space(self, params=None):
        return spaces.Box(-0.5, 0.5, (2, 1))

    def observation_space(self, params=None):
        return spaces.Box(-0.5, 0.5, (2, 1))


class Still(environment.Environment[environment.EnvState, environment.EnvParams]):
    """Shows ones for ever, in spaces of your choice."""

    def __init__(self, obs_space, action_space):
        super().__init__()
        self.spaces = obs_space, action_space

    def reset_env(self, key, params):
        return jnp.ones(self.spaces[0].shape, self.spaces[0].dtype), environment.EnvState(jnp.int32(0))

    def step_env(self, key, state, action, params):
        obs, _ = self.reset_env(key, params)
        return obs, environment.EnvState(jnp.int32(0)), jnp.float32(0), jnp.bool(False), {}

    def observation_space(self, params=None):
        return self.spaces[0]

    def action_space(self, params=None):
        return self.spaces[1]


@struct.dataclass
class TagsState(environment.EnvState):
    tag: jax.Array


class Tags(environment.Environment[TagsState, environment.EnvParams]):
    """Shows the random number of the episode (20 bits) and the time (3 bits), all as 0. and 1.; four actions.

    The number decides when and how the episode ends; it, the time and the action decide the reward.
    """

    bits = np.arange(23)

    @staticmethod
    def reward(tag, time, action):
        return tag % 1000 + 1000 * time + 10_000 * action

    @staticmethod
    def ends(tag, time):
        """Terminated, and truncated, by the step that led to `time`; every third episode is both."""
        over, kind = time >= 2 + tag % 4, tag // 4 % 3
        return over & (kind != 1), over & (kind != 0)

    @staticmethod
    def read(obs):
        """The number of the episode and the time of observations `[..., 23]`."""
        number = (np.asarray(obs).astype(np.int64) << Tags.bits).sum(axis=-1)
        return number % 2**20, number // 2**20

    def show(self, state):
        return ((state.tag + 2**20 * state.time) >> self.bits & 1).astype(jnp.float32)

    def reset_env(self, key, params):
        state = TagsState(jnp.int32(0), jax.random.randint(key, (), 0, 2**20))
        return self.show(state), state

    def step_env(self, key, state, action, params):
        reward = self.reward(state.tag, state.time, action).astype(jnp.float32)
        state = TagsState(state.time + 1, state.tag)
        return self.show(state), state, reward, self.ends(state.tag, state.time)[0], {}

    def is_truncated(self, state, params):
        return self.ends(state.tag, state.time)[1]

    def action_space(self, params=None):
        return spaces.Discrete(4)

    def observation_space(self, params=None):
        return spaces.Box(0, 1, (23,))


@struct.dataclass
class LandscapeParams(environment.EnvParams):
    max_steps_in_episode: int = struct.field(pytree_node=False, default=1)
    slope: np.ndarray | jax.Array | float = 0.0  # [D]
    curvature: np.ndarray | jax.Array | float = 0.0  # [D]
    optimum: np.ndarray | jax.Array | float = 0.0  # [D]
    noise: float = 0.0  # standard deviation, drawn anew for every action


class Landscape(environment.Environment[environment.EnvState, LandscapeParams]):
    """One step that pays a known function of the policy's parameters.

    Its observation is 0, so that a linear policy acts by its `D` biases z alone, through tanh, which the environment
    takes back. The reward is slope . z - sum curvature (z - optimum)^2 / 2, and noise.
    """

    def __init__(self, num_biases):
        super().__init__()
        self.num_biases = num_biases

    @property
    def default_params(self):
        return LandscapeParams()

    def reset_env(self, key, params):
        return jnp.zeros(1), environment.EnvState(jnp.int32(0))

    def step_env(self, key, state, action, params):
        z = jnp.arctanh(action)
        key = jax.random.fold_in(key, jax.lax.bitcast_convert_type(action.sum(), jnp.int32))
        reward = jnp.sum(params.slope * z - params.curvature * (z - params.optimum) ** 2 / 2)
        reward += params.noise * jax.random.normal(key)
        return jnp.zeros(1), environment.EnvState(state.time + 1), reward, jnp.bool(True), {}

    def action_space(self, params=None):
        return spaces.Box(-1.0, 1.0, (self.num_biases,))

    def observation_space(self, params=None):
        return spaces.Box(-1.0, 1.0, (1,))
