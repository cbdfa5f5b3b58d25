"""What the runner does with agents that have a memory: playing, acting, exporting."""

import itertools
from functools import partial

import counting_env
import jax
import numpy as np
import pytest
from helpers import SMALL

import rlref
from rlref import ppo_rnn
from rlref.cli import main
from rlref.errors import UsageError
from rlref.runs import trained

ENV = counting_env.Counting()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    config = SMALL["ppo_rnn"].replace(env_id="counting_env:make_env")
    return rlref.train("ppo_rnn", config, num_seeds=2, run_dir=tmp_path_factory.mktemp("remembering") / "run")


def acted(policy, key=None):
    """An episode of `Counting` by a run's policy: its return, and the memories on the way."""
    key, key_reset = jax.random.split(jax.random.key(3))
    obs, state = ENV.reset(jax.random.split(key_reset, 1)[0])
    memory, action, reward, total, memories, over = None, None, None, 0.0, [], False
    while not over:
        action, memory = policy(obs, memory, action, reward)
        memories.append(np.asarray(memory))
        obs, state, reward, terminated, truncated, _ = ENV.step(key, state, action)
        total, over = total + float(reward), bool(terminated | truncated)
    return total, memories


def test_a_policy_hands_its_memory_on(run):
    total, memories = acted(run.policy(1))
    assert len(memories) == 5
    assert all((x != y).any() for x, y in itertools.pairwise(memories))
    again, same = acted(run.policy(1))
    assert again == total
    np.testing.assert_array_equal(memories, same)
    np.testing.assert_array_equal(acted(rlref.load(run.path).policy(1))[1], memories)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((np.ones(2), np.zeros(4)), "with a memory come the action and the reward of the step before"),
        ((np.ones(2), np.zeros(3), 0, 0.0), r"the memory has the shape \(3,\); of one step it is \(4,\)"),
        ((np.ones((5, 2)),), r"the observation has the shape \(5, 2\); of one step it is \(2,\): jax.vmap for more"),
        ((np.ones(2), np.zeros(4), [1], 0.0), r"the last action has the shape \(1,\); of one step it is \(\)"),
        ((np.ones(2), jax.random.key(0), 0, 0.0), "the memory has the shape"),
    ],
)
def test_a_policy_says_what_it_must_be_given(run, given, said):
    with pytest.raises(UsageError, match=said):
        run.policy(0)(*given)


def test_a_policy_is_batched_by_vmap(run):
    action, memory = jax.vmap(run.policy(0))(np.ones((5, 2), np.float32))
    assert (action.shape, memory.shape) == ((5,), (5, 4))


def test_play_remembers_within_an_episode_and_not_beyond(run):
    """Every greedy episode of `Counting` is the same but for the number it shows: the return is that of acting so."""
    returns, lengths = run.trained.play(0, 3, 0)["greedy"]
    assert (lengths == 5).all()
    agent, state = ppo_rnn.make(SMALL["ppo_rnn"], ENV), run.trained.state(SMALL["ppo_rnn"], run.trained.of_row(0))
    act = jax.jit(partial(agent.policy, state))
    for key, total in zip(jax.random.split(jax.random.key(0), 3), returns, strict=True):
        _, key_reset = jax.random.split(key)
        obs, _ = ENV.reset(key_reset)
        memory, action, reward, got = agent.memory0, np.int32(0), np.float32(0), 0.0
        for time in range(5):
            odds, memory = act(memory, obs, action, reward, time == 0)
            action = np.int32(odds.argmax())
            reward = np.float32(2.0 * action)
            got += float(reward)
            obs = obs.at[0].add(1)
        assert got == total


def test_what_is_exported_acts_the_same(run, tmp_path, capsys):
    file = tmp_path / "seed.npz"
    assert main(["export", str(run.path), "--seed", "1", "--out", str(file)]) == 0
    assert (
        f"from rlref import envs; agent, state = ppo_rnn.load({str(file)!r}, *envs.make_env('counting_env:make_env'))"
        in capsys.readouterr().out
    )
    np.testing.assert_array_equal(acted(trained.of_file(file).policy(0))[1], acted(run.policy(1))[1])
    agent, state = ppo_rnn.load(file, ENV)
    obs = np.ones(2, np.float32)
    _, memory = agent.policy(state, agent.memory0, obs, np.int32(0), np.float32(0), np.bool_(True))
    np.testing.assert_allclose(memory, run.policy(1)(obs)[1], atol=1e-6)
    assert main(["play", str(file), "--episodes", "2"]) == 0
    assert "greedy" in capsys.readouterr().out


def test_the_report_has_its_metrics_and_its_map(run, tmp_path):
    assert main(["report", str(run.path), "--out", str(tmp_path / "report.html")]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "memory_kl" in page
    assert "Not drawn" not in page
