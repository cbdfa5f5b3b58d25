"""What DQN's replay buffer cannot hold is refused where random play shows it, and told of where it comes later."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_envs
from gymnax.environments import environment, spaces

import rlref
from rlref import dqn
from rlref.envs.ids import make_env
from rlref.errors import UsageError
from rlref.runs.job import agent_of

SMALL = {"num_envs": 2, "train_frequency": 20, "cycles_per_update": 10, "total_timesteps": 6000, "learning_starts": 200,
         "buffer_size": 1000, "batch_size": 16, "target_network_frequency": 200, "hidden_sizes": (8,)}  # fmt: skip


class TurnsBad(environment.Environment[environment.EnvState, environment.EnvParams]):
    """Shows 0 or 1, by the parity of its steps; from the 2,000th on what is `bad` instead of 1. It never ends."""

    def __init__(self, bad):
        super().__init__()
        self.bad = bad

    @property
    def default_params(self):
        return environment.EnvParams(max_steps_in_episode=1_000_000)

    def shown(self, time):
        return (time % 2 * jnp.where(time < 2000, 1.0, self.bad))[None]

    def reset_env(self, key, params):
        state = environment.EnvState(jnp.int32(0))
        return self.shown(state.time), state

    def step_env(self, key, state, action, params):
        state = environment.EnvState(state.time + 1)
        return self.shown(state.time), state, jnp.float32(1), jnp.bool(False), {}

    def action_space(self, params=None):
        return spaces.Discrete(2)

    def observation_space(self, params=None):
        return spaces.Box(-1e6, 1e6, (1,))


@pytest.mark.parametrize("buffer_dtype", ["uint8", "bool"])
def test_observations_that_do_not_fit_are_refused_before_training(buffer_dtype, tmp_path):
    message = f"buffer_dtype is '{buffer_dtype}', which changes observations of CartPole-v1 by up to"
    with pytest.raises(UsageError, match=message) as error:
        rlref.train("dqn", dqn.Config(buffer_dtype=buffer_dtype), run_dir=tmp_path / "run")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("n", "buffer_dtype", "fits"), [(256, "uint8", True), (257, "uint8", False), (3, "bool", False), (2, "bool", True)]
)
def test_discrete_observations_have_to_fit_whether_they_are_met_or_not(n, buffer_dtype, fits):
    env, config = toy_envs.Still(spaces.Discrete(n), spaces.Discrete(2)), dqn.Config(buffer_dtype=buffer_dtype)
    if fits:
        agent_of(dqn, config, env, env.default_params)
        return
    with pytest.raises(UsageError, match=f"has {n} observations"):
        agent_of(dqn, config, env, env.default_params)


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint8", "int16", "int32", "uint32", "float16", "bfloat16", "float32"]
)
def test_numbers_of_every_dtype_are_told_apart(dtype):
    obs = jnp.array([[0, 1], [1, 1]], dtype)
    assert dqn.storable(obs, "bool").tolist() == [True, True]
    assert dqn.storable(obs, "uint8").tolist() == [True, True]
    if dtype != "bool":
        assert dqn.storable(jnp.array([[0, 2], [1, 127]], dtype), "bool").tolist() == [False, False]
        assert dqn.storable(jnp.array([[0, 2], [1, 127]], dtype), "uint8").tolist() == [True, True]
    if dtype.startswith("int") or "float" in dtype:
        assert dqn.storable(jnp.array([[0, 1], [1, -1]], dtype), "uint8").tolist() == [True, False]
    assert dqn.storable(obs[:, 0], "bool").tolist() == [True, True]  # Discrete
    assert dqn.storable(obs.reshape(1, 2, 2, 1), "bool").tolist() == [True]  # images


def test_images_too_small_for_the_convolutions_are_refused_before_training():
    env = toy_envs.Still(spaces.Box(0, 1, (9, 2, 1)), spaces.Discrete(2))
    with pytest.raises(UsageError, match=r"dqn, line \d+: ValueError: conv_layers leave nothing of images"):
        agent_of(dqn, dqn.Config(), env, env.default_params)


def test_observations_that_fit_are_accepted():
    env, params = make_env("Breakout-MinAtar")
    agent_of(dqn, dqn.Config(env_id="Breakout-MinAtar", buffer_dtype="bool"), env, params)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("buffer_dtype", "bad", "told"),
    [
        ("bool", 0.5, True),
        ("uint8", 255.0, False),
        ("bool", np.nan, True),
        ("uint8", 256.0, True),
        ("uint8", -1.0, True),
        ("uint8", 0.1, True),
        ("same", np.nan, False),
    ],
)
def test_what_stops_to_fit_after_2000_steps_shows_through_jit(buffer_dtype, bad, told):
    train = jax.jit(lambda key: dqn.train(dqn.Config(**SMALL, buffer_dtype=buffer_dtype), key, TurnsBad(bad)))
    share = np.asarray(train(jax.random.key(0))[1]["unstorable_fraction"])  # [30], of updates of 100 steps each
    assert (share[:19] == 0).all()
    # Every second step shows what is bad, and the one after it begins from there.
    np.testing.assert_allclose(share[20:], 1.0 if told else 0.0)


@pytest.mark.slow
def test_it_is_an_error_in_the_verdict():
    config = dqn.Config(**SMALL, buffer_dtype="bool")
    run = rlref.train("dqn", config, num_seeds=2, env=TurnsBad(0.5))
    found = [f for f in run.diagnose().findings if f.check == "observations_changed"]
    assert [f.severity for f in found] == ["ERROR"]
