"""What the agents' files repeat, so that each stands alone, must be the same in each."""

import ast
import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments import spaces

from rlref import cem, dqn, ppo


@pytest.fixture(params=[ppo, dqn], ids=["ppo", "dqn"])
def agent(request):
    return request.param


@pytest.fixture(params=[ppo, dqn, cem], ids=["ppo", "dqn", "cem"])
def any_agent(request):
    return request.param


def test_summary(any_agent):
    got = any_agent.summary("x", jnp.array([[1.0, 2.0], [3.0, 6.0]]))
    want = {"x_mean": 3.0, "x_std": 3.5**0.5, "x_min": 1.0, "x_max": 6.0}
    assert {name: float(x) for name, x in got.items()} == pytest.approx(want)


def test_summary_of_nothing_is_undefined(agent):
    assert all(np.isnan(x) for x in agent.summary("x", jnp.ones(3), jnp.zeros(3, bool)).values())


def test_explained_variance(agent):
    # The residuals 0 and 1 vary by 1/4, the targets by 1. With the arguments swapped it would be 0.
    assert agent.explained_variance(jnp.array([0.0, 2.0]), jnp.array([0.0, 1.0])) == 0.75


def test_explained_variance_of_targets_that_vary_by_rounding_alone_is_undefined(agent):
    target = jnp.array([100.0, 100.0 + 8e-6, 100.0])
    assert target.var() > 0
    assert np.isnan(agent.explained_variance(target, jnp.array([0.0, 1.0, 2.0])))


def test_dormant_units_are_those_far_below_the_mean_of_their_layer(agent):
    # Mean |activation| per unit: 1, 0, .06, 3 with the layer's mean 1.015, so only the second is below 2.5 % of it.
    dense = jnp.array([[1.0, 0.0, 0.06, 3.0], [-1.0, 0.0, -0.06, 3.0]])
    # Channels of an image layer: 10 and .1; .1 is below 2.5 % of 5.05, though not of the mean over both layers.
    image = jnp.broadcast_to(jnp.array([10.0, 0.1]), (2, 3, 3, 2))
    assert agent.dormant_fraction({"a": (dense,), "b": (image,)}) == pytest.approx(2 / 6)


def test_discrete_observations_become_one_hot(any_agent):
    got = any_agent.features(jnp.array([2, 0]), spaces.Discrete(3))
    np.testing.assert_array_equal(got, [[0, 0, 1], [1, 0, 0]])


def test_byte_images_become_numbers_from_0_to_1(agent):
    image = jnp.full((2, 5, 4, 3), 51, jnp.uint8)
    got = agent.features(image, spaces.Box(0, 255, (5, 4, 3), jnp.uint8))
    assert (got.shape, got.dtype) == ((2, 5, 4, 3), jnp.float32)
    np.testing.assert_allclose(got, 0.2, rtol=1e-6)


def test_float_images_are_left_alone(agent):
    got = agent.features(jnp.full((2, 5, 4, 3), 51.0), spaces.Box(0, 255, (5, 4, 3)))
    np.testing.assert_array_equal(got, np.full((2, 5, 4, 3), 51))


def test_observations_of_rank_2_are_flattened(any_agent):
    obs = jnp.arange(12).reshape(2, 3, 2)
    got = any_agent.features(obs, spaces.Box(0, 12, (3, 2), jnp.int32))
    np.testing.assert_array_equal(got, [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]])
    assert got.dtype == jnp.float32


REPEATED = {  # what agents repeat on purpose, to the letter
    "scan": "ppo dqn",
    "static": "ppo dqn cem",
    "leaf": "ppo dqn cem",
    "check_settings": "ppo dqn cem",
    "load": "ppo dqn cem",
    "is_discrete": "ppo dqn cem",
    "patches": "ppo dqn",
    "features": "ppo dqn",
    "explained_variance": "ppo dqn",
    "dormant_fraction": "ppo dqn",
    "record_episodes": "ppo dqn",
    "train": "ppo dqn",
}
MODULES = {"ppo": ppo, "dqn": dqn, "cem": cem}


@pytest.mark.parametrize("name", REPEATED)
def test_what_agents_repeat_is_the_same_text(name):
    texts = {inspect.getsource(getattr(MODULES[agent], name)) for agent in REPEATED[name].split()}
    assert len(texts) == 1


@pytest.mark.parametrize("agent", ["ppo", "dqn"])
def test_what_a_loop_keeps_comes_back_to_the_last_bit(agent):
    def step(count, x):
        return count + 1, {
            "float": x * jnp.float32(1.1) + jnp.array([jnp.nan, -0.0, jnp.inf, 1e-45]),
            "large": 2**24 + 1 + count,  # more than a float can tell apart
            "unsigned": jnp.uint32(2**32 - 1) - count.astype(jnp.uint32),
            "mask": x > jnp.arange(2.0),
            "image": jnp.ones((2, 3, 3), bool) & (x > 2),
            "bytes": (x + jnp.arange(3)).astype(jnp.uint8),
            "half": x.astype(jnp.float16),
            "key": jax.random.key(count),
            "number": 7,
            "nothing": None,
        }

    got, expected = (scan(step, jnp.int32(0), jnp.arange(5.0)) for scan in (MODULES[agent].scan, jax.lax.scan))
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        x, y = (jax.random.key_data(z) if jnp.issubdtype(z.dtype, jax.dtypes.prng_key) else z for z in (x, y))
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def test_the_command_line_of_a_copy_is_the_same_text():
    ends = {inspect.getsource(module).partition("if __name__")[2] for module in MODULES.values()}
    assert len(ends) == 1


def test_the_docstring_says_what_the_algorithm_is_and_how_long(any_agent):
    named, lines = re.search(r"Read (.*?): that is \w+, (\d+) lines", any_agent.__doc__, re.S).groups()
    functions = re.findall(r"`(\w+)`", named)
    assert sum(len(inspect.getsourcelines(getattr(any_agent, name))[0]) for name in functions) == int(lines)
    places = [inspect.getsourcelines(getattr(any_agent, name))[1] for name in functions]
    assert places == sorted(places)


def test_sections_come_in_the_same_order(any_agent):
    source = inspect.getsource(any_agent)
    rulers = [title.split(":")[0] for title in re.findall(r"^# ---- (.*?) -+$", source, re.M)]
    wanted = ["Settings and types", "Training", "The algorithm", "Diagnostics", "Checks and loading"]
    assert [title for title in rulers if title in wanted] == wanted
    names = [node.name for node in ast.parse(source).body if hasattr(node, "name")]
    order = [
        name for name in names if name in "Config State Task Agent train make init update diagnose check load".split()
    ]
    assert order == "Config State Task Agent train make init update diagnose check load".split()
    assert len(source.splitlines()) <= {"ppo": 773, "dqn": 809, "cem": 522}[any_agent.__name__.rpartition(".")[2]]
