from pathlib import Path

import counting_env
import jax
import jax.numpy as jnp
import pytest

from rlref import cem, dqn, metrics, ppo, ppo_rnn

README = Path(metrics.__file__).with_name("metrics.md")


CONFIGS = {
    ppo: ppo.Config(num_envs=3, num_steps=4, num_minibatches=1, hidden_sizes=(8,)),
    ppo_rnn: ppo_rnn.Config(num_envs=3, num_steps=4, num_minibatches=1, hidden_sizes=(8,), memory_size=8),
    dqn: dqn.Config(num_envs=2, train_frequency=4, cycles_per_update=2, target_network_frequency=4, hidden_sizes=(8,)),
    cem: cem.Config(num_generations=2, population_size=6, elite_fraction=0.5, max_episode_steps=5),
}
every_agent = pytest.mark.parametrize("agent", CONFIGS, ids=lambda agent: agent.__name__.rpartition(".")[2])


def emitted(agent, env):
    built = agent.make(CONFIGS[agent], env)
    state = jax.eval_shape(built.init, jax.random.key(0))
    return jax.eval_shape(built.update, state, jnp.int32(0))[1]


@every_agent
def test_table_names_what_an_agent_emits(agent):
    names = {agent.__name__.rpartition(".")[2]} | ({"ppo"} if agent is ppo_rnn else set())
    assert set(emitted(agent, counting_env.Counting())) == {m.name for m in metrics.METRICS if names & {*m.agents}}


@every_agent
def test_every_diagnostic_is_a_float32_scalar(agent):
    for name, x in emitted(agent, counting_env.Counting()).items():
        assert (x.shape, x.dtype) == ((), jnp.float32), name


def test_names_and_tags_are_unique():
    assert len(metrics.BY_NAME) == len(metrics.METRICS)
    tags = [m.tag for m in metrics.METRICS]
    assert len(set(tags)) == len(tags)


def test_readme_has_the_table_as_generated():
    assert metrics.markdown() in README.read_text()
