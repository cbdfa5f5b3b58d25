"""A gymnax environment for tests of the runner whose every return is known."""

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment, spaces


@struct.dataclass
class State(environment.EnvState):
    time: int
    number: jax.Array


@struct.dataclass
class Params(environment.EnvParams):
    max_steps_in_episode: int = 5
    reward: float = 2.0


class Counting(environment.Environment[State, Params]):
    """Five steps; action 1 pays `params.reward`, action 0 nothing. The observation is (time, the reset's number).

    With `poison` an environment whose number is below .5 hands out NaN as its third reward.
    """

    def __init__(self, poison=False):
        super().__init__()
        self.poison = poison

    @property
    def default_params(self):
        return Params()

    def step_env(self, key, state, action, params):
        reward = jnp.float32(params.reward) * action
        if self.poison:
            reward = jnp.where((state.time == 2) & (state.number < 0.5), jnp.nan, reward)
        state = State(state.time + 1, state.number)
        return self.get_obs(state), state, reward, jnp.bool(False), {}

    def reset_env(self, key, params):
        state = State(0, jax.random.uniform(key))
        return self.get_obs(state), state

    def get_obs(self, state, params=None, key=None):
        return jnp.stack([jnp.float32(state.time), state.number])

    def action_space(self, params=None):
        return spaces.Discrete(2)

    def observation_space(self, params):
        return spaces.Box(0.0, 10.0, (2,))


def make_env():
    return Counting()


def poisoned():
    return Counting(poison=True)


def with_params():
    return Counting(), Params(reward=3.0)


def not_an_env():
    return 3


def other_dtype():
    """An environment whose final observation has another dtype than its observations."""

    class Half(Counting):
        def step(self, key, state, action, params=None):
            *rest, info = super().step(key, state, action, params)
            return *rest, info | {"final_observation": info["final_observation"].astype(jnp.float16)}

    return Half()


def five_values():
    """An environment of gymnax < 1.0."""

    class Old(Counting):
        def step(self, key, state, action, params=None):
            obs, state, reward, _, info = self.step_env(key, state, action, params)
            return obs, state, reward, jnp.bool(False), info

    return Old()
