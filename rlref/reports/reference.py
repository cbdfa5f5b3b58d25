"""Scores of a random policy and published scores, which are 0 and 1 of a normalised score."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlref.envs.ids import make_env
from rlref.envs.interface import check_host
from rlref.envs.params import plain_values, with_values
from rlref.errors import UsageError


class Reference(NamedTuple):
    """A published score."""

    score: float
    source: str


_GYMNAX = "gymnax's README, the PPO or ES agents of gymnax-blines"

# SpaceInvaders-MinAtar is left out: its published score (131) is for its rules before gymnax 1.0.1.
REFERENCES: dict[str, Reference] = {
    "Acrobot-v1": Reference(-80, _GYMNAX),
    "Asterix-MinAtar": Reference(15, _GYMNAX),
    "Breakout-MinAtar": Reference(28, _GYMNAX),
    "CartPole-v1": Reference(500, _GYMNAX),
    "Freeway-MinAtar": Reference(58, _GYMNAX),
    "MountainCar-v0": Reference(-118, _GYMNAX),
    "MountainCarContinuous-v0": Reference(92, _GYMNAX),
    "Pendulum-v1": Reference(-130, _GYMNAX),
}

MAX_STEPS = 100_000  # of an episode: an environment may have no time limit


def reference_of(env_id: str, given: Mapping[str, float] | None = None) -> Reference:
    """The score that counts as 1 when normalised: the one `given`, else a published one.

    Raises UsageError if there is neither.
    """
    if given and env_id in given:
        return Reference(float(given[env_id]), "given")
    if env_id not in REFERENCES:
        raise UsageError(f"no reference score of {env_id} is known: give one, as --reference {env_id}=SCORE")
    return REFERENCES[env_id]


def random_return(env_id: str, values: Mapping[str, Any] | None = None) -> float:
    """Mean return of uniformly random actions over 500 episodes, with the environment's default parameters.

    `values`: parameters, by name, in place of the default ones. Raises UsageError if there is no such environment.
    """
    env, env_params = make_env(env_id)
    return float(random_returns(env, with_values(env_params, values or {})).mean())


def changed_parameters(env_id: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of an environment's parameters, by name, that are other than by default."""
    if not values:
        return {}  # it may have been given from Python, without an id
    default = plain_values(make_env(env_id)[1])
    return {name: x for name, x in values.items() if default.get(name, x) != x}


def random_returns(env: Any, env_params: Any, episodes: int = 500, seeds: Sequence[int] = (0,)) -> np.ndarray:
    """Returns `[seeds, episodes]` of uniformly random actions over whole episodes.

    An episode that has not ended after 100,000 steps counts with its return so far.
    """
    import jax
    import jax.numpy as jnp

    from rlref.envs.episodes import play, random_act

    def one(key: jax.Array) -> jax.Array:
        return play(env, env_params, random_act(env, env_params), key, MAX_STEPS).total

    keys = jnp.concatenate([jax.random.split(jax.random.key(seed), episodes) for seed in seeds])
    returns = np.asarray(jax.jit(jax.vmap(one))(keys)).reshape(len(seeds), episodes)
    check_host(env)
    return returns
