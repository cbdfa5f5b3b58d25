"""What ppo_rnn.py does with its memory; the parts in SAME are the text of ppo.py, and are tested there."""

import inspect
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_envs
from flax import linen as nn
from flax import struct
from gymnax.environments import environment, spaces
from helpers import task_of, trains_alone

from rlref import ppo, ppo_rnn

CLOCK = toy_envs.Clock()
REWARDS = np.random.default_rng(0).normal(0.5, 1, 64).astype(np.float32)
SMALL = ppo_rnn.Config(
    num_envs=4, num_steps=12, total_timesteps=48 * 8, hidden_sizes=(8,), memory_size=6, num_minibatches=2,
    learning_rate=0.0, max_grad_norm=float("inf"), sequence_length=None, normalize_observations=False,
    scale_rewards=False,
)  # fmt: skip
ENDINGS = {"terminated": {"terminate_at": 5}, "truncated": {"max_steps_in_episode": 5}}
SAME = (
    "static leaf is_discrete choices without_mask features patches orthogonal Moments normalize discounted_returns "
    "reward_scale env_action DiagonalGaussian summary explained_variance dormant_fraction gradient_noise_scale "
    "record_episodes check_settings load train make_optimizer"
)


@pytest.mark.parametrize("name", SAME.split())
def test_what_it_repeats_is_the_same_text(name):
    assert inspect.getsource(getattr(ppo_rnn, name)) == inspect.getsource(getattr(ppo, name))


@partial(jax.jit, static_argnums=(0, 1))
def trained(config, updates, params, key):
    """The state after some updates, and the diagnostics of the last."""
    agent = ppo_rnn.make(config, CLOCK, params)
    state, diagnostics = jax.lax.scan(agent.update, agent.init(key), jnp.arange(updates))
    return state, jax.tree.map(lambda x: x[-1], diagnostics)


@partial(jax.jit, static_argnums=0)
def value_and_policy(config, state, *given):
    agent = ppo_rnn.make(config, CLOCK)
    return agent.value(state, *given), agent.policy(state, *given)


def told(config, state, times, actions):
    """Memories and values of an episode of `Clock` that began at `times[0]`, step by step by the contract."""
    memory, seen, action, reward = jnp.full_like(state.memory[0], 7.0), [], 1, 9.0  # not to be looked at
    for i, time in enumerate(times):
        given = memory, jnp.float32(toy_envs.clock_obs(time)), jnp.int32(action), jnp.float32(reward), jnp.bool(i == 0)
        (value, after), (policy, memory) = value_and_policy(config, state, *given)
        np.testing.assert_array_equal(memory, after)
        seen.append((np.asarray(memory), float(value), np.asarray(policy)))
        action, reward = actions[i] if i < len(actions) else 0, REWARDS[time % 64]
    return seen


slow = partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize("cell", ["gru", slow("lstm")])
@pytest.mark.parametrize("ending", ENDINGS)
def test_the_memory_is_that_of_the_episode_under_way_alone(cell, ending):
    config, params = (
        SMALL.replace(cell=cell),
        CLOCK.default_params.replace(rewards=REWARDS, spread=4, **ENDINGS[ending]),
    )
    state, _ = trained(config, 2, params, jax.random.key(0))
    assert len(set(state.env_state.time.tolist())) > 1
    for i in range(config.num_envs):
        # The record of `Clock` says which actions were taken since the reset; when that was follows from the length.
        time, steps = int(state.env_state.time[i]), int(state.episode_length[i])
        actions = [int(state.env_state.actions[i]) >> (steps - 1 - k) & 1 for k in range(steps)]
        seen = told(config, state, [time - steps + k for k in range(steps)], actions)
        memory = seen[-1][0] if steps else None
        assert bool(state.seen.reset[i]) == (steps == 0)
        if steps:
            np.testing.assert_allclose(state.memory[i], memory, atol=1e-6)
            assert int(state.seen.last_action[i]) == actions[-1]
            assert float(state.seen.last_reward[i]) == REWARDS[(time - 1) % 64]


@pytest.mark.parametrize("ending", ENDINGS)
def test_values_and_targets_are_those_of_a_loop_over_episodes(ending):
    """One environment, whose rollout begins with an episode: all its steps, its values and its targets by hand."""
    config = SMALL.replace(num_envs=1, num_minibatches=1, memory_size=4, gamma=0.9, gae_lambda=0.8)
    params = CLOCK.default_params.replace(rewards=REWARDS, **ENDINGS[ending])
    agent = ppo_rnn.make(config, CLOCK, params)
    task, state = task_of(agent), agent.init(jax.random.key(1))
    _, key_collect, _ = jax.random.split(state.key, 3)  # as `update` does: its rollout
    _, rollout = jax.jit(partial(ppo_rnn.collect, task))(state, key_collect)
    actions = rollout.action[:, 0].tolist()
    targets, begin = [], 0
    while begin < config.num_steps:
        end = min(begin + 5, config.num_steps)
        times = list(range(end - begin + 1))  # with what the last step led to
        seen = told(config, state, times, actions[begin:end])
        advantage, row = 0.0, []
        for k in reversed(range(end - begin)):
            memory, value, policy = seen[k]
            ends = k + 1 == 5
            bootstrap = 0.0 if ends and ending == "terminated" else seen[k + 1][1]
            advantage = REWARDS[k] + 0.9 * bootstrap - value + 0.9 * 0.8 * (0.0 if ends else advantage)
            row.append(advantage + value)
            np.testing.assert_allclose(rollout.memory[begin + k, 0], memory, atol=1e-6)
            np.testing.assert_allclose(np.exp(rollout.policy.log_probs[begin + k, 0]), policy, atol=1e-6)
        targets += reversed(row)
        begin = end
    _, d = jax.jit(agent.update)(state, jnp.int32(0))
    for name, wanted in (("mean", np.mean), ("std", np.std), ("min", np.min), ("max", np.max)):
        np.testing.assert_allclose(d[f"target_{name}"], wanted(targets), atol=1e-5)


@pytest.mark.parametrize("length", [slow(None), 1, 4, slow(12)])
@pytest.mark.parametrize("ending", ENDINGS)
def test_learning_goes_through_the_memories_that_acted(ending, length):
    """With a learning rate of 0 every ratio is 1, in all epochs, wherever sequences are cut and episodes end."""
    params = CLOCK.default_params.replace(rewards=REWARDS, spread=4, **ENDINGS[ending])
    _, d = trained(SMALL.replace(sequence_length=length), 2, params, jax.random.key(3))
    assert d["first_ratio_error"] < 1e-6
    assert abs(d["approx_kl"]) < 1e-9
    assert d["memory_staleness"] < 1e-6
    assert d["gradient_steps"] == 8


def test_sequences_are_cut_in_time_and_keep_their_environments():
    x = jnp.arange(12)[:, None] * 10 + jnp.arange(3)  # [T, N]: 10 t + n
    got = ppo_rnn.sequences(SMALL.replace(sequence_length=4), x)
    assert got.shape == (4, 9)
    np.testing.assert_array_equal(got[0], [0, 1, 2, 40, 41, 42, 80, 81, 82])
    np.testing.assert_array_equal(np.diff(got, axis=0), 10)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_cells_are_those_of_flax(cell):
    network = ppo_rnn.Network(2, True, ppo_rnn.Config(hidden_sizes=(), conv_layers=(), cell=cell, memory_size=5))
    key = jax.random.key(0)
    memory, new = jax.random.normal(key, (3, 5 if cell == "gru" else 10)), jax.random.normal(jax.random.key(1), (3, 4))
    params = network.init(key, new, jnp.zeros((3, 0)), memory)["params"]
    params = jax.tree.map(lambda x: x + 0.1 * jax.random.normal(key, x.shape), params)
    inputs = network.apply({"params": params}, new, jnp.zeros((3, 0)), method="encode")
    got = network.apply({"params": params}, memory, inputs, method="remember")
    own, entering = params["recurrent"], params["inputs"]

    def part(dense, i):
        return {"kernel": dense["kernel"][:, 5 * i : 5 * i + 5], "bias": dense["bias"][5 * i : 5 * i + 5]}

    if cell == "gru":
        theirs = {f"h{name}": part(own, i) for i, name in enumerate("rzn")}
        theirs |= {f"i{name}": part(entering, i) for i, name in enumerate("rzn")}
        # flax has one bias for both products of these gates.
        for name in "rz":
            theirs[f"i{name}"]["bias"] += theirs[f"h{name}"].pop("bias")
        _, wanted = nn.GRUCell(5).apply({"params": theirs}, memory, new)
    else:
        theirs = {f"h{name}": part(own, i) for i, name in enumerate("ifog")}
        theirs |= {f"i{name}": {"kernel": part(entering, i)["kernel"]} for i, name in enumerate("ifog")}
        for i, name in enumerate("ifog"):
            theirs[f"h{name}"]["bias"] += part(entering, i)["bias"] + (name == "f")
        h, c = jnp.split(memory, 2, axis=-1)
        (c, h), _ = nn.OptimizedLSTMCell(5).apply({"params": theirs}, (c, h), new)
        wanted = jnp.concatenate([h, c], axis=-1)
    np.testing.assert_allclose(got, wanted, atol=1e-6)


def test_each_gate_begins_orthogonal():
    kernel = np.asarray(ppo_rnn.each_orthogonal(jax.random.key(0), (6, 18), jnp.float32))
    for gate in np.split(kernel, 3, axis=1):
        np.testing.assert_allclose(gate @ gate.T, np.eye(6), atol=1e-5)
    assert np.abs(kernel[:, :6] - kernel[:, 6:12]).max() > 0.1


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_gradients_through_memory_as_finite_differences(cell):
    """Of a memory of one number, or two: how a small change of it fades in a step, by the cell's own Jacobian."""
    config = SMALL.replace(cell=cell, memory_size=1, num_envs=1, num_minibatches=1, num_steps=4)
    agent = ppo_rnn.make(config, CLOCK, CLOCK.default_params)
    task = task_of(agent)
    state, rollout = jax.jit(partial(ppo_rnn.collect, task))(agent.init(jax.random.key(0)), jax.random.key(1))
    new = jax.jit(partial(ppo_rnn.encode, task))(state.params, None, ppo_rnn.flat(rollout.seen))
    before = jnp.concatenate([jnp.zeros_like(rollout.memory[:1]), rollout.memory[:-1]])
    part = ppo_rnn.Batch(jnp.stack([before[0], rollout.memory[-1]]), rollout.seen, *[None] * 6)
    policy = jax.jit(partial(ppo_rnn.decide, task))(state.params, ppo_rnn.flat(rollout.memory), new)[0]
    got = jax.jit(partial(ppo_rnn.memory_diagnostics, task))(state.params, part, rollout.memory, new, policy)
    gradient, logs = np.full(before.shape[-1], before.shape[-1] ** -0.5), []
    for t in reversed(range(4)):
        jacobian = [
            (step(task, state.params, before[t] + e, new[t]) - step(task, state.params, before[t] - e, new[t])) / 2e-3
            for e in 1e-3 * np.eye(before.shape[-1])
        ]
        gradient = np.array([np.ravel(row) @ gradient for row in jacobian])
        logs.append(np.log(np.linalg.norm(gradient)))
        gradient /= np.linalg.norm(gradient)
    # The first step begins an episode: nothing goes back beyond it.
    np.testing.assert_allclose(got["memory_gradient"], np.exp(np.mean(logs[:-1])), rtol=1e-3)
    np.testing.assert_allclose(got["memory_norm"], np.sqrt((rollout.memory[..., :1] ** 2).mean()), rtol=1e-6)


def step(task, params, memory, new):
    return np.float64(ppo_rnn.remember(task, params, jnp.float32(memory).reshape(1, -1), new[None], jnp.zeros(1, bool)))


def test_where_episodes_last_one_step_the_memory_is_of_no_use():
    params = CLOCK.default_params.replace(rewards=REWARDS, terminate_at=1)
    _, d = trained(SMALL, 2, params, jax.random.key(0))
    assert d["memory_kl"] < 1e-9
    assert np.isnan(d["memory_gradient"])


@struct.dataclass
class CueState(environment.EnvState):
    cue: jax.Array


class Cue(environment.Environment[CueState, environment.EnvParams]):
    """Shows a cue of two in the first of three steps, and pays 1 if the third action is the cue's, else -1."""

    @property
    def default_params(self):
        return environment.EnvParams(max_steps_in_episode=toy_envs.NEVER)

    def reset_env(self, key, params):
        state = CueState(jnp.int32(0), jax.random.bernoulli(key).astype(jnp.int32))
        return self.shown(state), state

    def shown(self, state):
        return jnp.stack([jnp.where(state.time == 0, 2.0 * state.cue - 1, 0.0), state.time / 2])

    def step_env(self, key, state, action, params):
        last = state.time == 2
        reward = jnp.where(last, jnp.where(action == state.cue, 1.0, -1.0), 0.0)
        state = CueState(state.time + 1, state.cue)
        return self.shown(state), state, reward, last, {}

    def action_space(self, params=None):
        return spaces.Discrete(2)

    def observation_space(self, params=None):
        return spaces.Box(-1.0, 1.0, (2,))


LEARNING = {"total_timesteps": 12_000, "num_steps": 32, "num_envs": 8, "learning_rate": 3e-3, "gamma": 0.9}
ALONE = {"last_inputs": False, "sequence_length": None}


@pytest.mark.parametrize(
    "settings", [{}, *map(slow, ({"sequence_length": 8}, {"cell": "lstm"}, {"last_inputs": True}))], ids=str
)
def test_a_cue_is_remembered(settings):
    config = ppo_rnn.Config(hidden_sizes=(16,), memory_size=16, **LEARNING, **ALONE | settings)
    keys = jax.vmap(jax.random.key)(jnp.arange(4))
    _, d = jax.jit(jax.vmap(lambda key: ppo_rnn.train(config, key, Cue())))(keys)
    assert d["return_mean"][:, -1].min() > 0.9
    assert d["memory_kl"][:, -1].min() > 0.1


def test_without_a_memory_it_is_not():
    config = ppo.Config(hidden_sizes=(16,), **LEARNING)
    keys = jax.vmap(jax.random.key)(jnp.arange(4))
    _, d = jax.jit(jax.vmap(lambda key: ppo.train(config, key, Cue())))(keys)
    assert np.abs(d["return_mean"][:, -1]).max() < 0.5


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"sequence_length": 5}, r"sequence_length is 5; it must be a divisor of num_steps 12, such as \[3, 4, 6\]"),
        (
            {"num_minibatches": 3},
            r"num_minibatches is 3; it must be a divisor of the 4 sequences of a rollout, such as",
        ),
        ({"cell": "rnn"}, "cell is 'rnn'"),
        ({"memory_size": 0}, "memory_size is 0"),
    ],
)
def test_settings_that_cannot_train_are_refused_in_a_line(settings, said):
    with pytest.raises(ValueError, match=said):
        ppo_rnn.make(SMALL.replace(**settings), CLOCK)


@pytest.mark.slow
def test_it_trains_where_there_is_no_rlref(tmp_path):
    source = inspect.getsource(ppo_rnn).replace("500_000", "2048")
    printed = trains_alone(source, tmp_path)
    assert len(printed["return_mean"]) == 4
    assert printed["env_steps"] == [2048.0] * 4


def test_it_stays_readable():
    assert len(inspect.getsource(ppo_rnn).splitlines()) <= 869
