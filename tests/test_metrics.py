from pathlib import Path

import counting_env
import jax
import jax.numpy as jnp

from rlref import metrics, ppo

README = Path(metrics.__file__).with_name("README.md")


def emitted(env):
    config = ppo.Config(num_envs=3, num_steps=4, num_minibatches=1, hidden_sizes=(8,))
    agent = ppo.make(config, env)
    state = jax.eval_shape(agent.init, jax.random.key(0))
    return jax.eval_shape(agent.update, state, jnp.int32(0))[1]


def test_table_names_what_ppo_emits():
    runner_adds = {"steps_per_second"}
    assert set(emitted(counting_env.Counting())) | runner_adds == {m.name for m in metrics.METRICS if "ppo" in m.agents}


def test_every_diagnostic_is_a_float32_scalar():
    for name, x in emitted(counting_env.Counting()).items():
        assert (x.shape, x.dtype) == ((), jnp.float32), name


def test_names_and_tags_are_unique():
    assert len(metrics.BY_NAME) == len(metrics.METRICS)
    tags = [m.tag for m in metrics.METRICS]
    assert len(set(tags)) == len(tags)


def test_readme_has_the_table_as_generated():
    assert metrics.markdown() in README.read_text()
