import subprocess
import sys
import textwrap
from types import SimpleNamespace

import counting_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments import spaces

from rlref.envs import episodes
from rlref.envs.gymnax_envs import describe
from rlref.envs.interface import check_interface
from rlref.envs.params import with_params
from rlref.errors import UsageError


def test_actions_are_drawn_by_their_odds():
    keys = jax.random.split(jax.random.key(0), 4000)
    several = SimpleNamespace(nvec=(2, 3))
    odds = jnp.array([0.2, 0.8, 0.5, 0.1, 0.4])  # of both choices, one after the other
    drawn = np.asarray(jax.vmap(lambda key: episodes.chosen(odds, several, key))(keys))
    shares = np.array([[np.mean((drawn == (i, j)).all(1)) for j in range(3)] for i in range(2)])
    np.testing.assert_allclose(shares, np.outer(odds[:2], odds[2:]), atol=0.03)  # so they are independent
    assert episodes.chosen(odds, several, None).tolist() == [1, 0]
    one = np.asarray(jax.vmap(lambda key: episodes.chosen(odds[2:], spaces.Discrete(3), key))(keys))
    np.testing.assert_allclose(np.bincount(one, minlength=3) / len(keys), odds[2:], atol=0.03)
    assert int(episodes.chosen(odds[2:], spaces.Discrete(3), None)) == 0


class Odd(counting_env.Counting):
    """The counting environment with one thing wrong."""

    def __init__(self, **wrong):
        super().__init__()
        self.wrong = wrong

    def step(self, key, state, action, params=None):
        obs, state, reward, terminated, truncated, info = super().step(key, state, action, params)
        if "without" in self.wrong:
            info = {}
        reward = jnp.zeros(self.wrong.get("reward", ()))
        return obs, state, reward, terminated.astype(self.wrong.get("terminated", bool)), truncated, info

    def observation_space(self, params):
        return spaces.Box(0.0, 1.0, self.wrong.get("shape", (2,)))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"without": True}, "lacks 'final_observation'"),
        ({"reward": (1,)}, "reward must be a scalar, not float32 of shape"),
        ({"terminated": float}, "terminated must be a scalar bool, not float32"),
        ({"shape": (7,)}, r"observation is \(2,\), but observation_space says \(7,\)"),
    ],
)
def test_an_environment_that_breaks_the_interface_is_refused(wrong, message):
    env = Odd(**wrong)
    with pytest.raises(UsageError, match=message):
        check_interface(env, env.default_params, "odd")


def test_an_environment_that_keeps_the_interface_is_accepted():
    env = Odd()
    check_interface(env, env.default_params, "even")


def test_parameters_are_set_in_their_own_type():
    params = with_params(counting_env.Params(), ["reward=3", "max_steps_in_episode=7"])
    assert (params.reward, params.max_steps_in_episode) == (3.0, 7)
    assert type(params.max_steps_in_episode) is int


def test_parameters_that_are_no_dataclass_cannot_be_set():
    assert with_params({"a": 1}, []) == {"a": 1}
    with pytest.raises(UsageError, match="no dataclass"):
        with_params({"a": 1}, ["a=2"])


def test_describe_names_a_space_in_a_few_words():
    assert describe(spaces.Discrete(3)) == "Discrete 3"
    assert describe(spaces.Box(0, 1, (10, 10, 4))) == "Box 10x10x4 float32"
    assert describe(spaces.Box(0, 1, ())) == "Box scalar float32"


def test_gymnax_is_imported_without_what_draws_its_pictures():
    code = """
    import sys
    from rlref import envs
    env, params = envs.make_env("Catch-bsuite")
    assert not {"seaborn", "matplotlib.pyplot", "scipy.stats"} & sys.modules.keys()
    import gymnax.environments.bsuite.catch as catch
    drawn = catch.plt.figure
    import matplotlib.pyplot
    assert drawn is matplotlib.pyplot.figure
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=300)
