import dataclasses
import math
import re
import subprocess
import sys
from collections import Counter, deque
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
import toy_envs
from gymnax.environments import spaces
from helpers import adam_of, child_environment, count_conds, flat, leaves_equal, task_of, trains_alone
from jax.flatten_util import ravel_pytree

from rlref import dqn, metrics

# The compiler takes seconds for each set of static settings, so tests share these few; float settings are traced.
# An update is 4 cycles of 2 steps in 2 environments; the buffer holds two updates and a half.
SMALL = dqn.Config(num_envs=2, train_frequency=4, cycles_per_update=4, total_timesteps=160, hidden_sizes=(8,))
SMALL = SMALL.replace(learning_starts=16, buffer_size=40, batch_size=16, target_network_frequency=8)
RICH = SMALL.replace(n_step=3, target="expected_sarsa", target_network_frequency=16, loss="huber", dueling=True)
RICH = RICH.replace(anneal_lr=True, max_grad_norm=1e9)
LATE = SMALL.replace(learning_starts=22, target_network_frequency=48)
CLOCK = toy_envs.Clock()
PAIR = toy_envs.Pair()
TAGS = toy_envs.Tags()
REWARDS = np.random.default_rng(0).normal(0.5, 1, 64).astype(np.float32)
ONES, TIMES = np.ones(64, np.float32), np.arange(64, dtype=np.float32)


@partial(jax.jit, static_argnums=0)
def init(env, config, key):
    return dqn.make(config, env).init(key)


@partial(jax.jit, static_argnums=0)
def update(env, config, state, step, env_params):
    return dqn.make(config, env, env_params).update(state, step)


@jax.jit
def look(config, state, obs):
    """The agent's policy and value at many observations of `Clock`."""
    agent = dqn.make(config, CLOCK)
    return tuple(jax.vmap(f, (None, 0))(state, obs) for f in (agent.policy, agent.value))


def network(params, q=(0.0, 0.0), kernel=None, hidden=None):
    """Parameters for `Clock`: the network says `q` everywhere, unless there is a `kernel` of one hidden unit."""
    p = jax.tree.map(jnp.zeros_like, params)["params"]
    q = jnp.array(q, jnp.float32)
    p["head"]["bias"] = q
    if "value_head" in p:
        p["value_head"]["bias"] = q.mean(keepdims=True)
    if kernel is not None:  # unit 0 is .1 x time
        p["hidden_0"]["kernel"] = p["hidden_0"]["kernel"].at[0, 0].set(1)
        p["head"]["kernel"] = p["head"]["kernel"].at[0].set(jnp.array(kernel))
    if hidden is not None:
        p["hidden_0"]["bias"] = jnp.array(hidden, jnp.float32)
    return {"params": p}


def begin(config, time=None, seed=0, target_q=None, **says):
    """The first state on `Clock`; `says` and `target_q` plant networks that are known."""
    state = init(CLOCK, config, jax.random.key(seed))
    if time is not None:
        time = jnp.array(time, jnp.int32)
        state = state.replace(env_state=state.env_state.replace(time=time), obs=toy_envs.clock_obs(time))
    if says:
        params = network(state.params, **says)
        state = state.replace(params=params, target_params=params)
    if target_q is not None:
        state = state.replace(target_params=network(state.params, target_q))
    return state


def run(config, state, steps=(0,), **params):
    """States before, between and after updates on `Clock`; and the diagnostics of each."""
    params = CLOCK.default_params.replace(**({"rewards": REWARDS} | params))
    states, diagnostics = [state], []
    for step in steps:
        state, got = update(CLOCK, config, states[-1], step, params)
        states.append(state)
        diagnostics.append({name: float(x) for name, x in got.items()})
    return states, diagnostics


def fixed(config, epsilon, **settings):
    return config.replace(start_e=epsilon, end_e=epsilon, **settings)


def spread(diagnostics, name):
    return [diagnostics[f"{name}_{how}"] for how in ("mean", "std", "min", "max")]


def moments(x):
    return [np.mean(x), np.std(x), np.min(x), np.max(x)]


def gradient_of(state):
    """The gradient of the first optimiser step, from Adam's first moment."""
    adam = adam_of(state)
    assert adam.count == 1
    return jax.tree.map(np.float64, ravel_pytree(state.params)[1](adam.mu / 0.1))["params"]


# The replay buffer: what is written.

FLAGS = {(False, False), (False, True), (True, False), (True, True)}  # terminated, truncated


@pytest.fixture(scope="module")
def tagged():
    """States of five updates (40 rows) on `Tags`, by the dtype of the buffer (20 rows)."""

    def tagged(buffer_dtype):
        if buffer_dtype not in runs:
            config = SMALL.replace(buffer_dtype=buffer_dtype, learning_rate=0.01)
            states = [init(TAGS, config, jax.random.key(3))]
            for step in range(5):
                states.append(update(TAGS, config, states[-1], step, TAGS.default_params)[0])
            runs[buffer_dtype] = states
        return runs[buffer_dtype]

    runs = {}
    return tagged


def memory(state, buffer_dtype="same"):
    """The steps in the replay buffer, `[40, ...]`, or `[seeds, 40, ...]`."""
    if state.buffer.ndim == 3:
        return jax.vmap(dqn.unpack)(state.buffer, state.obs)
    return dqn.unpack(state.buffer, dqn.encode(state.obs, buffer_dtype))


def with_rewards(state, reward):
    """`state` with this reward in all slots."""
    return state.replace(buffer=dqn.pack(memory(state).replace(reward=jnp.full(40, reward))))


def stored(state, buffer_dtype="same", written=20):
    """The buffer's rows, `[written, 2, ...]` of each field; an observation as the episode's number and the time."""
    rows = {x.name: np.array(getattr(memory(state, buffer_dtype), x.name)) for x in dataclasses.fields(dqn.Buffer)}
    rows = {name: x.reshape(20, 2, *x.shape[1:])[:written] for name, x in rows.items()}
    for name in ("obs", "next_obs"):
        bits = rows[name]
        if buffer_dtype == "bool":
            bits = np.unpackbits(bits, axis=-1)[..., :23]
        rows[name] = TAGS.read(bits)
    return rows


@pytest.mark.parametrize(
    ("buffer_dtype", "words"),
    [("same", 2 * 23), ("uint8", 12), ("bool", 2)],  # two observations of 23 floats, of 23 bytes, of 3 bytes
)
def test_every_transition_is_stored_whole(tagged, buffer_dtype, words):
    for written, state in zip((8, 16, 20, 20, 20), tagged(buffer_dtype)[1:], strict=True):
        assert state.buffer.shape == (40, 4 + words)
        rows = stored(state, buffer_dtype, written)
        (tag, time), (next_tag, next_time) = rows["obs"], rows["next_obs"]
        # The final observation is of the same episode, one step on: a reset would show another number, and time 0.
        np.testing.assert_array_equal(next_tag, tag)
        np.testing.assert_array_equal(next_time, time + 1)
        np.testing.assert_array_equal(rows["reward"], TAGS.reward(tag, time, rows["action"]))
        terminated, truncated = TAGS.ends(tag, next_time)
        np.testing.assert_array_equal(rows["terminated"], terminated)
        np.testing.assert_array_equal(rows["truncated"], truncated)
    assert set(rows["action"].reshape(-1)) == {0, 1, 2, 3}
    assert set(zip(terminated.flat, truncated.flat, strict=True)) == FLAGS


def test_the_buffer_holds_the_newest_steps_in_order_over_the_wrap_around(tagged):
    written = 0
    for state in tagged("same")[1:]:
        written += 8
        rows = stored(state)
        kept = min(written, 20)
        order = np.arange(written - kept, written) % 20  # the oldest first
        tag, time = (
            np.concatenate([x[order], y[None]]) for x, y in zip(rows["obs"], TAGS.read(state.obs), strict=True)
        )
        ended = (rows["terminated"] | rows["truncated"])[order]
        assert ended.any()
        # Each row goes on where the one before left off; the newest leads to what the state shows.
        np.testing.assert_array_equal(tag[1:] == tag[:-1], ~ended)
        np.testing.assert_array_equal(time[1:], np.where(ended, 0, time[:-1] + 1))
        assert not any(x[kept:].any() for x in (rows["reward"], *rows["obs"]))  # not written yet


def test_every_reset_has_randomness_of_its_own(tagged):
    rows = [stored(state) for state in tagged("same")[2::3]]  # rows 0 to 15, and 20 to 39
    tags = np.concatenate([x["obs"][0][x["obs"][1] == 0] for x in rows])  # with the unwritten slots' 0
    assert len(tags) > 20
    assert len(set(tags[tags > 0])) == (tags > 0).sum()


def test_training_does_not_depend_on_how_observations_are_stored(tagged):
    same = flat(tagged("same")[5].params)
    assert np.abs(same - flat(tagged("same")[0].params)).max() > 0.01
    for buffer_dtype in ("uint8", "bool"):
        np.testing.assert_allclose(flat(tagged(buffer_dtype)[5].params), same, atol=1e-5)


def test_write_overwrites_its_rows_alone():
    def rows(*x):
        return jnp.array(x)[:, None] * jnp.ones((1, 3), jnp.uint32)

    got = dqn.write(rows(1, 2, 3, 4, 5, 6), rows(7, 8), jnp.int32(1), 2)
    np.testing.assert_array_equal(got, rows(1, 2, 7, 8, 5, 6))


@pytest.mark.parametrize("dtype", ["float32", "int32", "float16", "uint8", "bool"])
def test_what_is_packed_comes_back_to_the_last_bit(dtype):
    rng = np.random.default_rng(0)
    obs, next_obs = rng.integers(0, 2 if dtype == "bool" else 256, (2, 6, 3, 5)).astype(dtype)
    if dtype in ("float32", "float16"):
        obs[0, 0, :4] = [np.nan, -0.0, np.inf, np.finfo(dtype).smallest_subnormal]
    terminated, truncated = rng.random((2, 6)) < 0.5
    steps = dqn.Buffer(obs, np.arange(6), rng.normal(size=6).astype("float32"), terminated, truncated, next_obs)
    packed = dqn.pack(jax.tree.map(jnp.array, steps))
    assert packed.dtype == jnp.uint32
    got = dqn.unpack(packed[jnp.array([4, 0])], jnp.array(obs))
    for field in dataclasses.fields(steps):
        want, x = getattr(steps, field.name)[[4, 0]], getattr(got, field.name)
        want = want.reshape(x.shape).astype("int32" if field.name == "action" else want.dtype)
        assert x.dtype == want.dtype
        assert np.asarray(x).tobytes() == want.tobytes()


# The replay buffer: what is drawn.


@pytest.mark.parametrize("n_step", [1, 3])
def test_every_whole_return_is_drawn_equally_often_and_nothing_else(n_step):
    capacity, num_envs = 5, 3
    memory = deque(maxlen=capacity)
    for row in range(14):
        memory.append((row, row % capacity))
        rows = row + 1
        if rows < n_step:
            continue
        want = {}
        for first in range(len(memory) - n_step + 1):
            for env in range(num_envs):
                path = tuple(memory[first + k][1] * num_envs + env for k in range(n_step))
                want[path] = (row - memory[first][0]) * num_envs
        bits = jnp.arange(2 * len(want), dtype=jnp.uint32)
        index, age = dqn.replay_indices(bits, jnp.int32(rows), capacity, num_envs, n_step)
        index = [tuple(path) for path in np.array(index).tolist()]
        assert Counter(index) == dict.fromkeys(want, 2)
        assert [want[path] for path in index] == age.tolist()


def test_drawn_steps_are_uniform():
    bits = jax.random.bits(jax.random.key(0), (20, 1000))
    index, _ = dqn.replay_indices(bits, jnp.full((20, 1), 23), 10, 7, 3)
    assert index.shape == (20, 1000, 3)
    counts = np.bincount(np.array(index[..., 0]).reshape(-1), minlength=70)
    # Row 22 is the newest, in the third place: rows 13 to 20 are in the places 3 to 9 and 0.
    assert set(np.flatnonzero(counts == 0)) == set(range(7, 21))
    assert scipy.stats.chisquare(counts[counts > 0]).pvalue > 1e-4


def test_bits_of_any_size_are_in_range():
    bits = jnp.array([0, 2**31 - 1, 2**31, 2**32 - 1], jnp.uint32)
    index, _ = dqn.replay_indices(bits, jnp.int32(3), 5, 3, 1)
    np.testing.assert_array_equal(index[:, 0], np.array([0, 2**31 - 1, 2**31, 2**32 - 1]) % 9)


def random_buffer(rows, num_envs, seed=0):
    rng = np.random.default_rng(seed)
    size = rows * num_envs
    obs, next_obs = rng.normal(size=(2, size, 2)).astype(np.float32)
    terminated, truncated = rng.random((2, size)) < 0.2
    action, reward = rng.integers(0, 2, size), rng.normal(size=size).astype(np.float32)
    return dqn.Buffer(obs, action, reward, terminated, truncated, next_obs)


@pytest.mark.parametrize("n_step", [1, 3])
def test_samples_equal_a_naive_loop(n_step):
    gamma, rows, num_envs = 0.9, 40, 2
    task = task_of(dqn.make(SMALL.replace(n_step=n_step, gamma=gamma), CLOCK))
    buffer = random_buffer(rows, num_envs)
    index = [[(row + k) % rows * num_envs + env for k in range(n_step)] for row in range(rows) for env in (0, 1)]
    packed = dqn.pack(jax.tree.map(jnp.array, buffer))
    batch = dqn.sample(task, packed, jnp.array(index), jnp.zeros((5, 2)))
    assert set(zip(buffer.terminated.tolist(), buffer.truncated.tolist(), strict=True)) == FLAGS
    for i, path in enumerate(index):
        total = 0.0
        for k, slot in enumerate(path):
            total += gamma**k * buffer.reward[slot]
            if buffer.terminated[slot] or buffer.truncated[slot]:
                break
        np.testing.assert_array_equal(batch.obs[i], buffer.obs[path[0]])
        assert batch.action[i] == buffer.action[path[0]]
        assert batch.reward[i] == pytest.approx(total, abs=1e-5)
        np.testing.assert_array_equal(batch.next_obs[i], buffer.next_obs[slot])
        assert batch.discount[i] == pytest.approx(0 if buffer.terminated[slot] else gamma ** (k + 1), rel=1e-5)


@pytest.mark.parametrize(
    ("terminated", "truncated", "reward", "discount", "last"),
    [
        ([0, 0, 0], [0, 0, 0], 4 + 1 + 0.25, 0.125, 2),
        ([0, 1, 0], [0, 0, 0], 4 + 1, 0, 1),
        ([0, 0, 0], [0, 1, 0], 4 + 1, 0.25, 1),
        ([1, 0, 0], [1, 0, 0], 4, 0, 0),
        ([0, 0, 0], [1, 0, 0], 4, 0.5, 0),
        ([0, 0, 1], [1, 0, 0], 4, 0.5, 0),  # the next episode's ending is none of this one
    ],
)
def test_a_three_step_return_by_hand(terminated, truncated, reward, discount, last):
    task = task_of(dqn.make(SMALL.replace(n_step=3, gamma=0.5), CLOCK))
    obs = jnp.array([[10.0, 10], [20, 20], [30, 30]])
    ends = (jnp.array(x, bool) for x in (terminated, truncated))
    buffer = dqn.Buffer(obs, jnp.array([1, 0, 0]), jnp.array([4.0, 2, 1]), *ends, obs + 1)
    batch = dqn.sample(task, dqn.pack(buffer), jnp.array([[0, 1, 2]]), jnp.zeros((1, 2)))
    assert (batch.action[0], batch.reward[0], batch.discount[0]) == (1, reward, discount)
    assert (batch.obs[0, 0], batch.next_obs[0, 0]) == (10, 10 * (last + 1) + 1)


@pytest.mark.slow
def test_nothing_is_learned_from_slots_not_yet_written():
    for config in (SMALL, RICH):
        state = begin(config)
        state = with_rewards(state, jnp.nan)
        _, diagnostics = run(config, state, range(4), terminate_at=5)
        assert [d["nonfinite"] for d in diagnostics] == [0, 0, 0, 0]


def test_the_newest_and_the_oldest_steps_are_learned_from():
    # The target is the reward, the reward the time. The last gradient step sees the times up to 15, then up to 23.
    config = SMALL.replace(gamma=0.0, learning_rate=0.0)
    runs = [run(config, begin(config, seed=seed), range(4), rewards=TIMES)[1] for seed in range(10)]
    got = [(min(d["target_min"] for d in ds), max(d["target_max"] for d in ds)) for ds in zip(*runs, strict=True)]
    assert got == [(0, 7), (0, 15), (0, 23), (6, 31)]  # of 26 rows, in the 13th cycle, 20 are stored


def test_age_is_counted_in_environment_steps():
    # One gradient step, when the newest time is 7; two environments pass in step.
    _, (d,) = run(SMALL.replace(gamma=0.0, learning_rate=0.0), begin(SMALL), rewards=TIMES)
    assert 0 < d["target_mean"] < 7
    assert d["sample_age"] == pytest.approx(2 * (7 - d["target_mean"]), rel=1e-5)


def test_buffer_fill():
    _, diagnostics = run(SMALL, begin(SMALL), range(4))
    assert [d["buffer_fill"] for d in diagnostics] == [pytest.approx(0.4), pytest.approx(0.8), 1, 1]


@pytest.mark.parametrize("shape", [(), (1,), (5,), (8,), (3, 7), (10, 10, 4)])
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "bool"])
def test_bits_come_back_as_they_were(shape, dtype):
    obs = (np.random.default_rng(0).random((6, *shape)) < 0.5).astype(dtype)
    code = dqn.encode(jnp.array(obs), "bool")
    assert (code.dtype, code.shape) == (jnp.uint8, (6, max(math.ceil(math.prod(shape) / 8), 1)))
    got = dqn.decode(code, "bool", jnp.zeros((2, *shape), dtype))
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, obs)


@pytest.mark.parametrize(("buffer_dtype", "stored"), [("same", "int16"), ("uint8", "uint8")])
@pytest.mark.parametrize("shape", [(), (5, 3)])
def test_whole_numbers_come_back_as_they_were(shape, buffer_dtype, stored):
    obs = np.random.default_rng(0).integers(0, 256, (6, *shape)).astype("int16")
    code = dqn.encode(jnp.array(obs), buffer_dtype)
    assert (code.dtype, code.shape) == (stored, (6, *shape))
    got = dqn.decode(code, buffer_dtype, jnp.zeros((2, *shape), "int16"))
    assert got.dtype == "int16"
    np.testing.assert_array_equal(got, obs)


@pytest.mark.parametrize(("buffer_dtype", "low", "high"), [("bool", 100, 130), ("same", 3200, 3300)])
def test_bytes_of_a_transition_of_breakout(buffer_dtype, low, high):
    config = dqn.Config(env_id="Breakout-MinAtar", buffer_dtype=buffer_dtype)  # 'bool' is accepted, too
    state = jax.eval_shape(dqn.make(config).init, jax.random.key(0))
    size = sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(state.buffer))
    assert low <= size / config.buffer_size <= high


# Targets and loss.

TARGET_Q, ONLINE_Q = jnp.array([[1.0, 5, 3], [-2, -8, -5]]), jnp.array([[0.0, 1, 2], [7, 9, 8]])


@pytest.mark.parametrize(
    ("kind", "epsilon", "want"),
    [
        ("max", 0.3, [5, -2]),
        ("double", 0.3, [3, -8]),  # the target network's value of the online network's best
        ("expected_sarsa", 0.0, [5, -2]),
        ("expected_sarsa", 0.3, [0.1 * 1 + 0.8 * 5 + 0.1 * 3, 0.8 * -2 + 0.1 * -8 + 0.1 * -5]),
        ("expected_sarsa", 1.0, [3, -5]),
    ],
)
def test_values_of_next_states(kind, epsilon, want):
    np.testing.assert_allclose(dqn.next_values(kind, TARGET_Q, ONLINE_Q, epsilon), want, rtol=1e-6)


def test_taken_is_the_value_of_the_action():
    np.testing.assert_array_equal(dqn.taken(TARGET_Q, jnp.array([2, 1])), [3, -8])


def test_taken_leaves_out_what_is_not_finite_elsewhere():
    assert dqn.taken(jnp.array([[jnp.inf, 1, jnp.nan]]), jnp.array([1])) == 1


def small_batch(**fields):
    obs = jnp.array([[0.1, 0.9], [0.2, 0.8]])
    batch = dqn.Batch(obs, jnp.array([0, 1]), jnp.array([1.0, 2.0]), jnp.array([0.5, 0.0]), obs + 0.1)
    return batch._replace(**fields)


@pytest.mark.parametrize(
    ("kind", "want"),
    [("double", [1 + 0.5 * 4, 2]), ("max", [1 + 0.5 * 6, 2]), ("expected_sarsa", [1 + 0.5 * (0.1 * 4 + 0.9 * 6), 2])],
)
def test_targets_by_hand(kind, want):
    task = task_of(dqn.make(SMALL.replace(target=kind), CLOCK))
    params = init(CLOCK, SMALL, jax.random.key(0)).params
    got = dqn.targets(task, network(params, (6.0, 4.0)), network(params, (0.0, 1.0)), small_batch(), 0.2)
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_targets_are_of_the_next_observation():
    task = task_of(dqn.make(SMALL.replace(target="max"), CLOCK))
    params = init(CLOCK, SMALL, jax.random.key(0)).params
    params = network(params, kernel=(1.0, 0.0))  # Q of action 0 is the first feature: .2 after .1
    got = dqn.targets(task, params, params, small_batch(), 0.0)
    np.testing.assert_allclose(got, [1 + 0.5 * 0.2, 2], rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "loss", "gradient"),
    [("squared", (2 + 0.125) / 2, [-2 / 2, -0.5 / 2]), ("huber", (1.5 + 0.125) / 2, [-1 / 2, -0.5 / 2])],
)
def test_loss_and_its_gradient_take_the_target_as_given(kind, loss, gradient):
    # Q is 1 and 4; the targets are 2 and 1/2 above.
    task = task_of(dqn.make(SMALL.replace(loss=kind), CLOCK))
    params = network(init(CLOCK, SMALL, jax.random.key(0)).params, (1.0, 4.0))
    target = jnp.array([3.0, 4.5])
    (got, q), grad = jax.value_and_grad(dqn.loss, has_aux=True)(params, task, small_batch(), target)
    assert got == pytest.approx(loss)
    np.testing.assert_array_equal(q, [1, 4])
    np.testing.assert_allclose(grad["params"]["head"]["bias"], gradient, rtol=1e-6)


def test_no_gradient_flows_through_the_target_of_an_update():
    # Q is 2 for both actions, the target 1 + .9 x 2: the gradients of the two biases add up to 2 - 2.8. Were the
    # target's gradient there, it would be a tenth of that.
    (_, after), (d,) = run(SMALL.replace(gamma=0.9), begin(SMALL, q=(2.0, 2.0)), rewards=ONES)
    gradient = gradient_of(after)["head"]["bias"]
    assert gradient.sum() == pytest.approx(-0.8, rel=1e-5)
    assert d["grad_norm"] == pytest.approx(np.linalg.norm(gradient), rel=1e-5)
    assert (gradient < 0).all()


def test_first_step_is_adams():
    config = SMALL.replace(learning_rate=0.01, adam_eps=1e-3)
    (before, after), _ = run(config, begin(config))
    gradient = flat(gradient_of(after))
    assert np.abs(gradient).max() > 0.1
    want = flat(before.params) - 0.01 * gradient / (np.abs(gradient) + 1e-3)
    np.testing.assert_allclose(flat(after.params), want, atol=1e-6)


@pytest.mark.slow
def test_every_parameter_tensor_moves():
    states, _ = run(RICH, begin(RICH), range(2))
    for x, y in zip(jax.tree.leaves(states[0].params), jax.tree.leaves(states[2].params), strict=True):
        assert not np.array_equal(x, y)


@pytest.mark.parametrize(("epsilon", "value"), [(0.0, 8.0), (0.5, 6.0)])
def test_three_step_expected_sarsa_targets_of_an_update(epsilon, value):
    config = fixed(RICH, epsilon, gamma=0.5, learning_rate=0.0)
    _, diagnostics = run(config, begin(config, q=(0.0, 8.0)), range(4), rewards=ONES)
    for d in diagnostics:
        assert spread(d, "target") == pytest.approx([1.75 + value / 8, 0, *[1.75 + value / 8] * 2], abs=1e-5)


def test_three_step_returns_end_with_the_episode():
    config = RICH.replace(gamma=0.5, learning_rate=0.0)
    _, (_, d) = run(config, begin(config, q=(0.0, 0.0)), range(2), rewards=ONES, terminate_at=4)
    assert (d["target_min"], d["target_max"]) == (1, 1.75)


def test_half_the_minibatches_are_before_the_sync_in_the_middle_of_an_update():
    config = SMALL.replace(gamma=0.5, learning_rate=0.0)
    state = run(config, begin(config, q=(0.0, 0.0)), rewards=0 * ONES)[0][1]
    state = state.replace(target_params=network(state.params, (1000.0, 1000.0)))
    _, (d,) = run(config, state, [1], rewards=0 * ONES)
    assert spread(d, "target") == [250, 250, 0, 500]


def test_an_update_bootstraps_from_the_target_network_at_the_online_networks_best_action():
    config = SMALL.replace(gamma=0.5, learning_rate=0.0)
    _, (d,) = run(config, begin(config, q=(1.0, 2.0), target_q=(6.0, 4.0)), rewards=ONES)
    assert spread(d, "target") == [3, 0, 3, 3]


# Exploration.


@pytest.mark.parametrize(
    ("steps", "epsilon"), [(0, 1.0), (20, 0.7625), (40, 0.525), (80, 0.05), (81, 0.05), (10_000, 0.05)]
)
def test_epsilon_falls_linearly_over_half_of_the_training(steps, epsilon):
    assert dqn.epsilon_at(SMALL, steps) == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.parametrize(("steps", "epsilon"), [(0, 1.0), (1, 0.05), (160, 0.05)])
def test_without_exploration_epsilon_falls_at_once(steps, epsilon):
    assert dqn.epsilon_at(SMALL.replace(exploration_fraction=0.0), steps) == pytest.approx(epsilon, rel=1e-6)


def test_epsilon_may_rise():
    assert dqn.epsilon_at(SMALL.replace(start_e=0.0, end_e=0.5), 40) == 0.25


def test_epsilon_greedy_probabilities():
    got = dqn.epsilon_greedy(jnp.array([[1.0, 3, 2, 0]]), 0.2)
    np.testing.assert_allclose(got, [[0.05, 0.85, 0.05, 0.05]], rtol=1e-6)


def test_epsilon_of_an_update_is_the_mean_over_its_steps():
    # It falls by .95 in 80 steps; the two environments' steps begin at 0, 2, ..., 14 and so on.
    state = begin(SMALL)
    got = [run(SMALL, state, [step])[1][0]["epsilon"] for step in (0, 4, 5, 9)]
    np.testing.assert_allclose(got, [1 - 0.95 * 7 / 80, 1 - 0.95 * 71 / 80, 0.05, 0.05], rtol=1e-5)


def test_entropy_is_that_of_the_epsilon_greedy_policy():
    config = SMALL.replace(end_e=0.0, exploration_fraction=0.1)
    _, (first, second) = run(config, begin(config), range(2))
    want = np.mean([scipy.stats.entropy([1 - e / 2, e / 2]) for e in np.arange(1, 9) / 8])
    assert first["entropy"] == pytest.approx(want, rel=1e-5)
    assert first["relative_entropy"] == pytest.approx(want / np.log(2), rel=1e-5)
    assert (second["entropy"], second["relative_entropy"]) == (0, 0)


def test_entropy_of_three_actions():
    want = scipy.stats.entropy([0.8, 0.1, 0.1])
    assert dqn.policy_entropy(jnp.array([0.3]), 3)[0] == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize("best", [0, 1])
def test_without_epsilon_actions_are_greedy(best):
    config = fixed(SMALL, 0.0, learning_rate=0.0)
    (_, state), (d,) = run(config, begin(config, q=(1.0 - best, best)))
    np.testing.assert_array_equal(memory(state).action[:16], [best] * 16)
    assert d["action_entropy"] == 0


def test_action_entropy_is_that_of_the_actions_of_this_update():
    config = fixed(SMALL, 0.5, learning_rate=0.0)
    states, diagnostics = run(config, begin(config, q=(0.0, 1.0)), range(2))
    for i, d in enumerate(diagnostics):
        share = np.bincount(memory(states[i + 1]).action[16 * i : 16 * i + 16], minlength=2) / 16
        assert 0 < share[0] < 0.5
        assert d["action_entropy"] == pytest.approx(scipy.stats.entropy(share), rel=1e-5)


def test_every_update_draws_new_actions_and_samples():
    config = fixed(SMALL, 1.0, learning_rate=0.0)
    states, _ = run(config, begin(config), range(3))
    actions = np.array([state.env_state.actions & 0xFF for state in states[1:]])  # the newest eight
    assert len(np.unique(actions, axis=0)) == 3
    ages = [run(config, states[0].replace(key=state.key), [3])[1][0]["sample_age"] for state in states]
    assert len(set(ages)) == 4


@pytest.fixture(scope="module")
def seeds():
    """Fifty seeds side by side, epsilon from 1 to 0 in the first update: before, after one, after two, after a rerun.

    The states are donated.
    """
    config = SMALL.replace(end_e=0.0, exploration_fraction=0.1, learning_rate=0.01)
    params = CLOCK.default_params.replace(rewards=REWARDS, spread=9, terminate_at=13)
    keys = jax.random.split(jax.random.key(7), 50)
    agent = dqn.make(config, CLOCK, params)
    many = jax.jit(jax.vmap(agent.init))
    before, spent = many(keys), many(keys)
    step = jax.jit(jax.vmap(agent.update, in_axes=(0, None)), donate_argnums=0)
    after, diagnostics = step(spent, 0)
    later, _ = step(jax.tree.map(jnp.copy, after), 1)
    again = step(many(keys), 0)
    return config, keys, params, before, spent, after, diagnostics, later, again


@pytest.mark.slow
def test_states_can_be_donated(seeds):
    assert all(x.is_deleted() for x in jax.tree.leaves(seeds[4]))


def test_actions_are_uniform_while_epsilon_is_1(seeds):
    action = np.array(memory(seeds[5]).action[:, :2])  # the first step of both environments
    low, high = scipy.stats.binom.interval(1 - 1e-4, 100, 0.5)
    assert low <= action.sum() <= high


def greedy_share(config, state, buffer, first, steps):
    """In each of some steps, the share of seeds and environments that took the action `state`'s network likes best."""
    slots = slice(2 * first, 2 * (first + steps))
    greedy = []
    for seed in range(50):
        params = jax.tree.map(lambda x, seed=seed: x[seed], state.params)
        _, q = look(config, begin(config).replace(params=params), buffer.obs[seed, slots])
        greedy.append(np.argmax(q, axis=-1) == buffer.action[seed, slots])
    return np.array(greedy).reshape(50, steps, 2).mean(axis=(0, 2))


def test_actions_become_greedy_as_epsilon_falls(seeds):
    config, _, _, before, _, after, *_ = seeds
    share = greedy_share(config, before, memory(after), 0, 8)  # nothing is learned before the last is taken
    for t in range(8):
        low, high = scipy.stats.binom.interval(1 - 1e-4, 100, 1 - (1 - t / 8) / 2)
        assert low <= 100 * share[t] <= high


def test_actions_are_greedy_once_epsilon_is_0(seeds):
    config, _, _, _, _, after, _, later, _ = seeds
    share = greedy_share(config, after, memory(later), 8, 2)  # up to the first gradient step of the second update
    np.testing.assert_array_equal(share, 1)


def test_a_seed_alone_equals_that_seed_among_others(seeds):
    config, keys, params, _, _, after, diagnostics, _, _ = seeds
    alone = dqn.make(config, CLOCK, params).init(keys[1])
    alone = update(CLOCK, config, alone, 0, params)
    among = jax.tree.map(lambda x: x[1], (after, diagnostics))
    for x, y in zip(jax.tree.leaves(alone), jax.tree.leaves(among), strict=True):
        if jnp.issubdtype(x.dtype, jnp.floating):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
        else:  # keys, counts, times, and the record of all actions
            assert leaves_equal(x, y)


def test_seeds_differ_in_parameters_environments_actions_and_samples(seeds):
    _, _, _, before, _, after, diagnostics, _, _ = seeds
    for what in (before.params, before.env_state.time, after.params):
        rows = np.concatenate([np.array(x).reshape(50, -1) for x in jax.tree.leaves(what)], axis=1)
        assert len(np.unique(rows, axis=0)) > 30
    assert len(np.unique(memory(after).action[:, :2], axis=0)) == 4
    assert len(np.unique(memory(after).action[:, :16], axis=0)) > 45
    assert len(np.unique(diagnostics["sample_age"])) > 20


def test_a_rerun_is_bitwise_equal(seeds):
    assert leaves_equal(seeds[5:7], seeds[8])


def test_environments_of_a_seed_differ(seeds):
    action = np.array(memory(seeds[5]).action[:, :16]).reshape(50, 8, 2)
    same = (action[..., 0] == action[..., 1])[:, :4].mean()
    assert 0.4 < same < 0.8


# The learning rate, the warm-up, and the target network.


def test_learning_rate_is_constant_without_annealing():
    _, diagnostics = run(SMALL.replace(learning_rate=0.02), begin(SMALL), (0, 9))
    assert [d["learning_rate"] for d in diagnostics] == [pytest.approx(0.02)] * 2


@pytest.mark.parametrize(("step", "share", "gradient_steps"), [(0, 1, 1), (1, 0.9, 4), (5, 0.5, 4), (9, 0.1, 4)])
def test_learning_rate_falls_linearly_to_zero(step, share, gradient_steps):
    # Beyond 1 the Huber loss's gradient for the state's value is constant, and Adam's step the learning rate.
    config = RICH.replace(learning_rate=0.01, gamma=0.0)
    state = begin(config, q=(0.0, 0.0))
    state = with_rewards(state, 1000.0)
    (_, after), (d,) = run(config, state, [step], rewards=1000 * ONES)
    assert d["learning_rate"] == pytest.approx(0.01 * share, rel=1e-5)
    assert d["gradient_steps"] == gradient_steps
    np.testing.assert_allclose(after.params["params"]["value_head"]["bias"], 0.01 * share * gradient_steps, rtol=1e-3)


@pytest.mark.parametrize(
    ("config", "gradient_steps"),
    [(SMALL, [1, 4, 4]), (LATE, [0, 3, 4])],  # from the 16th step on; from the 22nd, that is, the sixth cycle's end
)
def test_learning_starts_with_the_cycle_that_reaches_it(config, gradient_steps):
    states, diagnostics = run(config, begin(config), range(3))
    assert [d["gradient_steps"] for d in diagnostics] == gradient_steps
    assert [adam_of(state).count for state in states] == np.cumsum([0, *gradient_steps]).tolist()


LEARNED = [
    *(f"{name}_{how}" for name in ("value", "target", "td_error") for how in ("mean", "std", "min", "max")),
    *"kl churn explained_variance value_bias dormant_fraction grad_norm update_ratio td_loss sample_age".split(),
    *("target_distance", "target_step"),
]


def test_nothing_is_learned_or_synced_in_the_warm_up():
    state = begin(LATE, target_q=(1.0, 2.0))
    (before, after), (d,) = run(LATE, state)
    assert leaves_equal((after.params, after.opt_state), (before.params, before.opt_state))
    assert leaves_equal(after.target_params, before.target_params)
    assert {name for name, x in d.items() if name in LEARNED and not np.isnan(x)} == set()
    defined = {name for name in d if name not in LEARNED and not name.startswith(("return_", "length_"))}
    assert {name for name in defined if np.isnan(d[name])} == {"overestimation"}  # no episode has ended
    assert d["nonfinite"] == d["gradient_steps"] == 0
    assert d["env_steps"] == 16


def test_no_sync_before_the_first_gradient_step():
    # A sync would be due at the 8th step and the 16th; only the latter finds a distance, that of (3, 4) from 0.
    config = SMALL.replace(learning_rate=0.0)
    _, (d,) = run(config, begin(config, q=(0.0, 0.0), target_q=(3.0, 4.0)))
    assert d["target_distance"] == d["target_step"] == pytest.approx(5)


@pytest.mark.parametrize(("config", "synced"), [(SMALL, [0, 1, 2, 3, 4]), (RICH, [0, 1, 2, 3, 4]), (LATE, [2])])
def test_a_hard_sync_copies_and_between_syncs_nothing_changes(config, synced):
    config = config.replace(learning_rate=0.01)
    states, diagnostics = run(config, begin(config, target_q=(1.0, 2.0)), range(5))
    for k, d in enumerate(diagnostics):
        before, after = states[k : k + 2]
        assert leaves_equal(after.target_params, after.params) == (k in synced)
        assert leaves_equal(after.target_params, before.target_params) == (k not in synced)
        assert np.isnan(d["target_distance"]) == np.isnan(d["target_step"]) == (k not in synced)
        if k in synced:
            assert d["target_step"] == d["target_distance"] > 0


def test_distance_of_one_sync_is_that_from_the_last():
    states, diagnostics = run(LATE.replace(learning_rate=0.01), begin(LATE), range(3))
    want = np.linalg.norm(flat(states[3].params) - flat(states[0].target_params))
    assert diagnostics[2]["target_distance"] == pytest.approx(want, rel=1e-5)


def test_distance_is_the_mean_over_the_syncs_of_an_update():
    # Two syncs: the first closes the whole distance of 5, the second finds none.
    config = SMALL.replace(learning_rate=0.0)
    state = run(config, begin(config, q=(0.0, 0.0)))[0][1]
    state = state.replace(target_params=network(state.params, (3.0, 4.0)))
    _, (d,) = run(config, state, [1])
    assert d["target_distance"] == d["target_step"] == pytest.approx(2.5)


def test_polyak_syncs_close_a_quarter_of_the_distance():
    config = SMALL.replace(learning_rate=0.0, tau=0.25)
    states, diagnostics = run(config, begin(config, q=(8.0, 8.0), target_q=(0.0, 0.0)), range(2))
    got = [state.target_params["params"]["head"]["bias"] for state in states]
    np.testing.assert_allclose(got, [[0, 0], [2, 2], [4.625, 4.625]], rtol=1e-6)  # 2 -> 3.5 -> 4.625
    far = 2**0.5
    distances = [(d["target_distance"], d["target_step"]) for d in diagnostics]
    np.testing.assert_allclose(distances, [(8 * far, 2 * far), (5.25 * far, 5.25 / 4 * far)], rtol=1e-5)


def test_gradients_are_clipped_to_their_norm():
    (_, free), (unclipped,) = run(RICH.replace(max_grad_norm=1e9), begin(RICH))
    (_, held), (clipped,) = run(RICH.replace(max_grad_norm=1e-3), begin(RICH))
    norm = np.linalg.norm(flat(gradient_of(free)))
    assert norm > 0.01
    assert unclipped["grad_norm"] == clipped["grad_norm"] == pytest.approx(norm, rel=1e-4)
    np.testing.assert_allclose(flat(gradient_of(held)), flat(gradient_of(free)) * 1e-3 / norm, rtol=1e-3, atol=1e-8)


def test_without_a_norm_gradients_are_not_clipped():
    (_, after), (d,) = run(SMALL, begin(SMALL), rewards=1e4 * ONES)
    assert d["grad_norm"] == pytest.approx(np.linalg.norm(flat(gradient_of(after))), rel=1e-4)
    assert d["grad_norm"] > 1000


# The network, the policy and the value.


def test_dueling_heads_add_the_value_to_what_actions_differ_by():
    task = task_of(dqn.make(RICH, CLOCK))
    params = network(init(CLOCK, RICH, jax.random.key(0)).params)
    params["params"]["head"]["bias"] = jnp.array([1.0, 5.0])
    params["params"]["value_head"]["bias"] = jnp.array([10.0])
    np.testing.assert_allclose(dqn.forward(task, params, jnp.ones((1, 2))), [[8, 12]], rtol=1e-6)


def test_value_is_q_and_policy_its_greedy_action():
    state = begin(SMALL, q=(0.1, 0.0), kernel=(0.0, 1.0), target_q=(7.0, 9.0))  # Q of action 1 is .1 x time
    times = np.array([0, 3])
    policy, value = look(SMALL, state, toy_envs.clock_obs(times).astype(np.float32))
    np.testing.assert_allclose(value, [[0.1, 0], [0.1, 0.3]], rtol=1e-6)
    np.testing.assert_array_equal(policy, [[1, 0], [0, 1]])


@pytest.mark.parametrize(
    ("obs_space", "settings", "want"),
    [
        (spaces.Box(0, 255, (9, 9, 2), jnp.uint8), {}, [(18, 6), (24, 5), (45, 8), (8, 4)]),
        (spaces.Box(0, 255, (9, 9, 2), jnp.uint8), {"dueling": True}, [(18, 6), (24, 5), (45, 8), (8, 4), (8, 1)]),
        (spaces.Box(0, 1, (3, 2)), {"hidden_sizes": (8, 5)}, [(6, 8), (8, 5), (5, 4)]),
        (spaces.Discrete(7), {}, [(7, 8), (8, 4)]),
    ],
)
def test_layers(obs_space, settings, want):
    # 9 x 9 x 2 -> 4 x 4 x 6 -> 3 x 3 x 5 -> 8 -> 4 actions
    env = toy_envs.Still(obs_space, spaces.Discrete(4))
    agent = dqn.make(SMALL.replace(conv_layers=((6, 3, 2), (5, 2, 1)), **settings), env)
    state = jax.eval_shape(agent.init, jax.random.key(0))
    after, _ = jax.eval_shape(agent.update, state, jnp.int32(0))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), state)
    assert sorted(layer["kernel"].shape for layer in state.params["params"].values()) == sorted(want)


def test_convolution_equals_a_loop_over_positions():
    # 7 x 6, for rows and columns must not be swapped, and a stride of 2.
    env = toy_envs.Still(spaces.Box(0, 255, (7, 6, 2)), spaces.Discrete(3))
    agent = dqn.make(SMALL.replace(conv_layers=((4, 3, 2),)), env)
    params = jax.jit(agent.init)(jax.random.key(0)).params
    image = np.array(jax.random.normal(jax.random.key(1), (2, 7, 6, 2)))
    q, aux = dqn.forward(task_of(agent), params, jnp.array(image), mutable=["intermediates"])
    layer = params["params"]["conv_0"]
    kernel = np.array(layer["kernel"]).reshape(3, 3, 2, 4)
    want = np.zeros((2, 3, 2, 4))
    for i in range(3):
        for j in range(2):
            patch = image[:, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3]
            want[:, i, j] = np.maximum(np.einsum("brcx,rcxf->bf", patch, kernel) + layer["bias"], 0)
    hidden = aux["intermediates"]["hidden"]
    np.testing.assert_allclose(hidden[0], want, atol=1e-5)
    assert [x.shape for x in (*hidden, q)] == [(2, 3, 2, 4), (2, 8), (2, 3)]


@pytest.mark.parametrize(("activation", "want"), [("relu", [-3, 0.5]), ("tanh", [-3 + np.tanh(-2), 0.5])])
def test_activation(activation, want):
    task = task_of(dqn.make(SMALL.replace(activation=activation), CLOCK))
    params = network(init(CLOCK, SMALL, jax.random.key(0)).params, (-3.0, 0.5), kernel=(1.0, 0.0))
    np.testing.assert_allclose(dqn.forward(task, params, jnp.array([[-2.0, 7.0]])), [want], rtol=1e-6)


def test_first_target_network_is_the_online_network():
    state = init(CLOCK, SMALL, jax.random.key(0))
    assert leaves_equal(state.params, state.target_params)


# Diagnostics.


def test_summary_of_a_part():
    x = jnp.array([[9.0, 2.0], [2.0, 4.0], [-9.0, jnp.nan]])
    got = dqn.summary("x", x, jnp.array([[False], [True], [False]]))
    assert {name: float(x) for name, x in got.items()} == {"x_mean": 3, "x_std": 1, "x_min": 2, "x_max": 4}


def test_dormant_fraction_of_a_known_network():
    # The units say 0, 0, .01 and five times 1, on average .63: three are below 2.5 % of that.
    config = SMALL.replace(learning_rate=0.0)
    _, (d,) = run(config, begin(config, hidden=[0, 0, 0.01, 1, 1, 1, 1, 1]))
    assert d["dormant_fraction"] == 3 / 8


def test_dormant_fraction_is_that_of_the_network_at_the_end():
    # All units say 1; one step of Adam pushes them up, or below 0, by the sign of what the head makes of them.
    state = begin(SMALL, hidden=[1.0] * 8)
    head = jnp.array([[1.0, 1.0]] * 3 + [[-1.0, -1.0]] * 5)
    state.params["params"]["head"]["kernel"] = head
    config = SMALL.replace(learning_rate=10.0, gamma=0.0)
    _, (d,) = run(config, state, rewards=1000 * ONES)
    assert d["dormant_fraction"] == 5 / 8


def test_the_ring_holds_the_last_100_episodes_in_order():
    rng = np.random.default_rng(0)
    fields = dict.fromkeys(field.name for field in dataclasses.fields(dqn.State))
    ring = {"ring_return": jnp.zeros(100), "ring_length": jnp.zeros(100), "num_episodes": jnp.int32(0)}
    state = dqn.State(**fields | ring)
    record = jax.jit(dqn.record_episodes)
    last, number = deque(maxlen=100), 0
    for share in (0, 0.2, 0.3, 0.1, 0.9, 0, 0.3, 1):  # of 200 steps: at .9 and 1, more than 100 end in one update
        ended = rng.random((40, 5)) < share
        returns, lengths = rng.normal(size=(40, 5)).astype(np.float32), rng.integers(1, 99, (40, 5))
        state = record(state, ended, returns, lengths)
        for t in range(40):
            for n in np.flatnonzero(ended[t]):
                last.append((returns[t, n], lengths[t, n]))
                number += 1
        assert state.num_episodes == number
        slots = np.arange(number - len(last), number) % 100
        np.testing.assert_array_equal(state.ring_return[slots], [x for x, _ in last])
        np.testing.assert_array_equal(state.ring_length[slots], [x for _, x in last])


def test_returns_and_lengths_are_those_of_finished_episodes():
    # In eight steps an update, both environments end at time 10: in the second update, and again in the third.
    _, diagnostics = run(SMALL, begin(SMALL), range(3), terminate_at=10)
    assert [d["episodes"] for d in diagnostics] == [0, 2, 2]
    assert [d["return_count"] for d in diagnostics] == [0, 2, 4]
    assert np.isnan(spread(diagnostics[0], "return") + spread(diagnostics[0], "length")).all()
    for d in diagnostics[1:]:
        assert spread(d, "length") == [10, 0, 10, 10]
        assert spread(d, "return") == pytest.approx(moments([REWARDS[:10].sum()]), rel=1e-5, abs=1e-5)


def test_returns_of_episodes_that_started_at_different_times():
    # In 16 steps both end twice: an episode that starts late has only the rewards from there, and none is discounted.
    _, (_, d) = run(SMALL.replace(gamma=0.5), begin(SMALL, [3, 7]), range(2), max_steps_in_episode=8)
    want = [REWARDS[first:8].sum() for first in (3, 7, 0, 0)]
    assert d["return_count"] == 4
    assert spread(d, "return") == pytest.approx(moments(want), rel=1e-4)
    assert spread(d, "length") == pytest.approx(moments([5, 1, 8, 8]), rel=1e-5)


def test_rewards_are_those_collected_in_the_update():
    _, diagnostics = run(SMALL, begin(SMALL, [0, 30]), range(2))
    for i, d in enumerate(diagnostics):
        want = np.float64(REWARDS[np.concatenate([np.arange(8), np.arange(30, 38)]) + 8 * i])
        assert spread(d, "reward") == pytest.approx(moments(want), rel=1e-4)


def test_values_targets_and_errors_of_known_networks():
    # Q is 1 and 3, the target 1 + .5 x 6: what is left open is the share of the second action in the minibatches.
    config = SMALL.replace(gamma=0.5, learning_rate=0.0, tau=1e-9)
    _, diagnostics = run(config, begin(config, q=(1.0, 3.0), target_q=(2.0, 6.0)), range(2), rewards=ONES)
    for d in diagnostics:
        share = (d["value_mean"] - 1) / 2
        assert 0.1 < share < 0.9
        width = 2 * np.sqrt(share * (1 - share))
        assert spread(d, "value") == pytest.approx([1 + 2 * share, width, 1, 3], rel=1e-4)
        assert spread(d, "target") == pytest.approx([4, 0, 4, 4], abs=1e-5)
        assert spread(d, "td_error") == pytest.approx([3 - 2 * share, width, 1, 3], rel=1e-4)
        assert d["td_loss"] == pytest.approx((9 * (1 - share) + share) / 2, rel=1e-4)
    assert share * 64 == pytest.approx(round(share * 64), abs=1e-3)  # 4 minibatches of 16


def test_td_error_is_the_target_minus_q():
    config = SMALL.replace(gamma=0.0, learning_rate=0.0)
    _, (d,) = run(config, begin(config, q=(1.0, 1.0)), rewards=3 * ONES)
    assert spread(d, "td_error") == [2, 0, 2, 2]


def test_value_bias_is_by_the_networks_at_the_start():
    # The target is 1 + .5 x 6, Q is 2; by the end of the update Q has moved, and the target network has followed.
    config = SMALL.replace(gamma=0.5, learning_rate=1.0)
    _, (d,) = run(config, begin(config, q=(2.0, 2.0), target_q=(6.0, 6.0)), rewards=ONES)
    assert d["value_bias"] == pytest.approx(2)


def test_expected_sarsa_has_the_epsilon_of_the_newest_step():
    # The only gradient step comes after the eighth step: the target is 1.75 + .125 x 8 x (1 - epsilon / 2).
    config = RICH.replace(gamma=0.5, learning_rate=0.0, end_e=0.0, exploration_fraction=0.1)
    _, (d,) = run(config, begin(config, target_q=(0.0, 8.0)), rewards=ONES)
    assert spread(d, "target") == pytest.approx([1.75 + 0.9375, 0, *[1.75 + 0.9375] * 2], abs=1e-5)


def test_value_bias_of_expected_sarsa_has_the_epsilon_of_the_start():
    # The target is 1.75 + .125 x 8 x (1 - epsilon / 2), Q in the mean 4 off by 4; at the update's start epsilon is 1.
    config = RICH.replace(gamma=0.5, learning_rate=0.0, end_e=0.0, exploration_fraction=0.1)
    _, (d,) = run(config, begin(config, q=(4.0, 4.0), target_q=(0.0, 8.0)), rewards=ONES)
    assert d["value_bias"] == pytest.approx(1.75 + 0.5 - 4)


def test_explained_variance_of_a_value_that_is_half_the_target():
    config = SMALL.replace(gamma=0.0, learning_rate=0.1)
    _, (d,) = run(config, begin(config, kernel=(0.5, 0.5)), rewards=0.1 * TIMES)
    assert d["explained_variance"] == pytest.approx(0.75, rel=1e-4)


def flipped(epsilon=None, **settings):
    """Both Q of (-.03, .03) are pulled to 0 by one step of Adam, of .1: the other action becomes the best."""
    config = SMALL.replace(gamma=0.0, learning_rate=0.1, **settings)
    _, (d,) = run(config, begin(config, q=(-0.03, 0.03)), rewards=0 * ONES)
    return d


def test_kl_is_from_the_old_policy_to_the_new_one_with_their_epsilons():
    # Epsilon falls from .8 to .64 over the update.
    d = flipped(start_e=0.8, end_e=0.0)
    assert d["churn"] == 1
    assert d["kl"] == pytest.approx(0.4 * np.log(0.4 / 0.68) + 0.6 * np.log(0.6 / 0.32), rel=1e-4)


def test_kl_of_greedy_policies_is_that_at_an_epsilon_of_a_hundredth():
    assert flipped(start_e=0.0, end_e=0.0)["kl"] == pytest.approx(0.99 * np.log(0.995 / 0.005), rel=1e-4)


def test_churn_is_the_share_of_observations_whose_greedy_action_changed():
    # Action 1 is worth .1 x time; Adam's step of -.3 in each parameter makes that .07 x time - .3 or so.
    config = fixed(SMALL, 0.2, gamma=0.0, learning_rate=0.05)
    _, (d,) = run(config, begin(config, q=(0.3, 0.0), kernel=(0.0, 1.0)), rewards=0 * ONES)
    assert 0 < d["churn"] < 1
    assert d["churn"] * 16 == round(d["churn"] * 16)
    assert d["kl"] == pytest.approx(d["churn"] * 0.8 * np.log(9), rel=1e-4)


def test_without_learning_there_is_no_churn_and_no_kl():
    config = fixed(SMALL, 0.2, learning_rate=0.0)
    _, (d,) = run(config, begin(config))
    assert (d["churn"], d["kl"]) == (0, 0)


@pytest.mark.parametrize(
    "ending", [("terminate_at",), ("max_steps_in_episode",), ("terminate_at", "max_steps_in_episode")]
)
def test_overestimation_equals_a_loop_over_episodes(ending):
    config = fixed(SMALL, 0.5, learning_rate=0.0, gamma=0.9)
    states, diagnostics = run(config, begin(config, [0, 3]), range(2), **dict.fromkeys(ending, 6))
    action = np.array(memory(states[2]).action[:32]).reshape(16, 2)
    _, q = look(config, states[0], toy_envs.clock_obs(np.arange(6)).astype(np.float32))
    found = [], []
    for env, time in enumerate((0, 3)):
        rewards, values = [], []
        for t in range(16):
            rewards.append(REWARDS[time])
            values.append(q[time, action[t, env]])
            time += 1
            if time == 6:
                if "terminate_at" not in ending:
                    rewards[-1] = values[-1]  # stands for all that would have followed
                for k in range(len(rewards)):
                    followed = sum(0.9**j * x for j, x in enumerate(rewards[k:]))
                    found[t // 8].append(values[k] - followed)
                rewards, values, time = [], [], 0
    assert [len(x) for x in found] == [9, 18]
    got = [d["overestimation"] for d in diagnostics]
    np.testing.assert_allclose(got, [np.mean(x) for x in found], rtol=1e-4)


def test_update_ratio_is_the_length_of_a_step_relative_to_the_parameters():
    config = SMALL.replace(learning_rate=0.01)
    (before, after), (d,) = run(config, begin(config))
    old, new = flat(before.params), flat(after.params)
    assert d["update_ratio"] == pytest.approx(np.linalg.norm(new - old) / np.linalg.norm(old), rel=1e-3)


def test_norms_and_losses_are_means_over_the_gradient_steps():
    # Q is 1 for both actions, the target 4: four times the same, though two would be twice that of half of them.
    config = RICH.replace(learning_rate=0.0, gamma=0.0)
    _, diagnostics = run(config, begin(config, q=(1.0, 1.0)), range(2), rewards=4 * ONES)
    for d in diagnostics:
        assert d["td_loss"] == pytest.approx(2.5)
        assert 1 <= d["grad_norm"] < 1.1  # 1 by the state's value, and what the shares of the actions differ by
        assert d["update_ratio"] == 0


def test_steps_are_counted():
    _, diagnostics = run(SMALL, begin(SMALL), range(3))
    assert [d["env_steps"] for d in diagnostics] == [16, 32, 48]


def test_a_bad_reward_shows_as_nonfinite_from_its_update_on():
    rewards = REWARDS.copy()
    rewards[20] = np.nan  # steps 16 to 23 are the third update's
    _, diagnostics = run(SMALL, begin(SMALL), range(4), rewards=rewards)
    assert [d["nonfinite"] for d in diagnostics] == [0, 0, 1, 1]


def test_a_bad_reward_shows_in_the_warm_up():
    _, (d,) = run(LATE, begin(LATE), rewards=np.where(TIMES == 3, np.inf, REWARDS))
    assert d["nonfinite"] == 1


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_bad_parameters_show_as_nonfinite(bad):
    _, (d,) = run(SMALL, begin(SMALL, q=(0.0, bad)))
    assert d["nonfinite"] == 1


def test_diagnostics_are_those_of_the_table_and_scalars():
    names = {metric.name for metric in metrics.METRICS if "dqn" in metric.agents}
    for config in (SMALL, RICH, LATE):
        state = begin(config)
        for step in range(3):
            state, got = update(CLOCK, config, state, step, CLOCK.default_params)
            assert set(got) == names
            assert {(x.shape, x.dtype.name) for x in got.values()} == {((), "float32")}


# Training.

LEARNER = dqn.Config(num_envs=4, train_frequency=8, cycles_per_update=50, total_timesteps=30 * 400, hidden_sizes=(8,))
LEARNER = LEARNER.replace(learning_starts=80, buffer_size=800, batch_size=32, target_network_frequency=80)
LEARNER = LEARNER.replace(gamma=0.6, learning_rate=5e-3)
POLYAK = {"tau": 0.5, "target_network_frequency": 40, "target": "max", "max_grad_norm": 1.0}


@pytest.mark.parametrize("settings", [{}, POLYAK | {"n_step": 3, "dueling": True, "loss": "huber"}])
def test_a_time_limit_is_not_the_end_of_the_value(settings):
    # An episode that terminates is worth its reward; one that is cut, its reward and what it then saw promised.
    config = LEARNER.replace(**settings)
    state, diagnostics = jax.jit(lambda key: dqn.train(config, key, PAIR))(jax.random.key(0))
    agent = dqn.make(config, PAIR)
    got = jax.jit(jax.vmap(agent.value, (None, 0)))(state, jnp.arange(2))
    np.testing.assert_allclose(got, [[1, 1], [1.6, 1.6]], atol=0.1)
    assert {x.shape for x in diagnostics.values()} == {(30,)}
    assert diagnostics["env_steps"][-1] == 30 * 400


@pytest.mark.slow
def test_settings_can_be_vmapped_and_each_has_an_effect():
    base = {"learning_rate": 0.01, "gamma": 0.9, "start_e": 0.9, "end_e": 0.1, "exploration_fraction": 0.3}
    base |= {"tau": 1.0, "adam_eps": 1e-8}
    other = {"learning_rate": 0.02, "gamma": 0.5, "start_e": 0.2, "end_e": 0.6, "exploration_fraction": 0.6}
    other |= {"tau": 0.5, "adam_eps": 0.1}
    rows = [base, *(base | {name: other[name]} for name in base)]
    configs = jax.vmap(lambda settings: SMALL.replace(**settings))(
        {name: jnp.array([row[name] for row in rows]) for name in base}
    )
    params = CLOCK.default_params.replace(rewards=REWARDS)
    train = jax.jit(jax.vmap(lambda config, key: dqn.train(config, key, CLOCK, params), in_axes=(0, None)))
    state, diagnostics = train(configs, jax.random.key(0))
    ends = [flat(jax.tree.map(lambda x, i=i: x[i], state.params)) for i in range(8)]
    for i, name in enumerate(base):
        assert np.abs(ends[i + 1] - ends[0]).max() > 1e-4, name
    for i in (0, 3):
        states, alone = run(SMALL.replace(**rows[i]), begin(SMALL), range(10))
        np.testing.assert_allclose(ends[i], flat(states[10].params), atol=1e-4)
        np.testing.assert_allclose(diagnostics["epsilon"][i], [d["epsilon"] for d in alone], rtol=1e-5)


# Settings and spaces that cannot train.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"total_timesteps": 0}, "total_timesteps is 0; it must be int in"),
        ({"num_envs": 0}, "num_envs is 0; it must be int in"),
        ({"num_envs": 2.0}, "num_envs is 2.0; it must be int in"),
        ({"num_envs": True}, "num_envs is True; it must be int in"),
        ({"train_frequency": 0}, "train_frequency is 0; it must be int in"),
        ({"cycles_per_update": -1}, "cycles_per_update is -1; it must be int in"),
        ({"learning_starts": 0}, "learning_starts is 0; it must be int in"),
        ({"buffer_size": None}, "buffer_size is None; it must be int in"),
        ({"batch_size": 0}, "batch_size is 0; it must be int in"),
        ({"n_step": 0}, "n_step is 0; it must be int in"),
        ({"target_network_frequency": 0}, "target_network_frequency is 0; it must be int in"),
        ({"train_frequency": 5}, "train_frequency is 5; it must be a multiple of num_envs = 2, such as 4 or 6"),
        ({"train_frequency": 1}, "train_frequency is 1; it must be a multiple of num_envs = 2, such as 2$"),
        ({"buffer_size": 42}, "buffer_size is 42; it must be a multiple of train_frequency = 4, such as 40 or 44"),
        ({"buffer_size": 12, "learning_starts": 8}, "buffer_size is 12; it must be at least batch_size = 16 and"),
        (
            {"buffer_size": 20, "learning_starts": 24},
            "buffer_size is 20; it must be at least batch_size = 16 and learning_starts = 24",
        ),
        ({"learning_starts": 5, "n_step": 3}, "learning_starts is 5; it must be at least n_step x num_envs = 6"),
        ({"total_timesteps": 15}, "total_timesteps is 15; it must be at least one update's .* = 16"),
        (
            {"target_network_frequency": 6},
            "target_network_frequency is 6; it must be a divisor or a multiple of",
        ),
        (
            {"target_network_frequency": 12},
            r"is 12; it must be a divisor or a multiple .* = 16, and .* such as \[4, 8, 16\]",
        ),
        (
            {"target_network_frequency": 40},
            r"is 40; it must be a divisor or a multiple .* = 16, and .* such as \[16, 32, 48\]",
        ),
        ({"learning_starts": 161, "buffer_size": 164}, "learning_starts is 161; it must be at most the 160 steps"),
        ({"total_timesteps": 170, "target_network_frequency": 176}, "is 176; .* and the end at 160, such as"),
        ({"learning_starts": 36, "total_timesteps": 48, "target_network_frequency": 32}, "is 32; .* with a sync"),
        ({"buffer_size": 2**31}, r"buffer_size is 2147483648; it must be int in \[1, 2147483648\)"),
        ({"total_timesteps": 2**31}, r"total_timesteps is 2147483648; it must be int in \[1, 2147483648\)"),
        ({"max_grad_norm": 0.0}, r"max_grad_norm is 0\.0; it must be float \| None in \(0, inf\]"),
        ({"buffer_dtype": "float16"}, r"buffer_dtype is 'float16'; it must be Literal\['same', 'uint8', 'bool'\]"),
        ({"target": "sarsa"}, r"target is 'sarsa'; it must be Literal\['double', 'max', 'expected_sarsa'\]"),
        ({"loss": "l1"}, r"loss is 'l1'; it must be Literal\['squared', 'huber'\]"),
        ({"activation": "gelu"}, r"activation is 'gelu'; it must be Literal\['tanh', 'relu'\]"),
        ({"anneal_lr": 1}, "anneal_lr is 1; it must be bool"),
        ({"dueling": None}, "dueling is None; it must be bool"),
        ({"hidden_sizes": (8, 0)}, r"hidden_sizes is \(8, 0\)"),
        ({"hidden_sizes": [8]}, r"hidden_sizes is \[8\]; it must be tuple\[int, ...\] in"),
        ({"conv_layers": ((4, 3, 0),)}, r"conv_layers is \(\(4, 3, 0\),\); it must be tuple\[tuple\[int, int, int\]"),
        ({"conv_layers": ((4, 3),)}, r"conv_layers is \(\(4, 3\),\)"),
        ({"conv_layers": (4, 3, 1)}, r"conv_layers is \(4, 3, 1\)"),
        ({"gamma": None}, r"gamma is None; it must be float in \[0, 1\]"),
        ({"gamma": 1.1}, r"gamma is 1.1; it must be float in \[0, 1\]"),
        ({"gamma": -0.1}, "gamma is -0.1"),
        ({"start_e": 1.1}, r"start_e is 1.1; it must be float in \[0, 1\]"),
        ({"start_e": -0.1}, "start_e is -0.1"),
        ({"end_e": 1.1}, r"end_e is 1.1; it must be float in \[0, 1\]"),
        ({"end_e": np.nan}, "end_e is nan"),
        ({"exploration_fraction": 1.1}, r"exploration_fraction is 1.1; it must be float in \[0, 1\]"),
        ({"exploration_fraction": -0.1}, "exploration_fraction is -0.1"),
        ({"tau": 0.0}, r"tau is 0.0; it must be float in \(0, 1\]"),
        ({"tau": 1.1}, "tau is 1.1"),
        ({"learning_rate": -1.0}, r"learning_rate is -1.0; it must be float in \[0, inf\)"),
        ({"learning_rate": np.inf}, "learning_rate is inf"),
        ({"learning_rate": np.array([1e-3, -1.0])}, "learning_rate is array"),
        ({"learning_rate": "fast"}, "learning_rate is 'fast'"),
        ({"learning_rate": True}, "learning_rate is True"),
        ({"adam_eps": 0.0}, r"adam_eps is 0.0; it must be float in \(0, inf\)"),
        ({"adam_eps": np.inf}, "adam_eps is inf"),
        ({"max_grad_norm": -1.0}, r"max_grad_norm is -1.0; it must be float \| None in \(0, inf\]"),
        ({"max_grad_norm": np.nan}, "max_grad_norm is nan"),
    ],
)
def test_bad_settings_are_refused_in_one_line(settings, message):
    with pytest.raises(ValueError, match=message) as error:
        dqn.make(SMALL.replace(**settings), CLOCK)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"gamma": 0.0, "start_e": 0.0, "end_e": 0.0, "exploration_fraction": 0.0, "learning_rate": 0.0},
        {"gamma": 1, "start_e": 1, "end_e": 1, "exploration_fraction": 1, "tau": 1, "max_grad_norm": np.inf},
        {"num_envs": np.int64(2), "buffer_size": 16, "learning_starts": 3, "n_step": 1, "total_timesteps": 16},
    ],
)
def test_settings_at_their_bounds_are_allowed(settings):
    dqn.make(SMALL.replace(**settings), CLOCK)


@pytest.mark.parametrize("cycles", [1, 4, 6, 10])
def test_target_network_frequencies_that_are_refused_come_with_some_that_work(cycles):
    refused = 0
    for frequency in [13, *range(4, 160 // (4 * cycles) * 4 * cycles + 1, 4)]:
        config = SMALL.replace(cycles_per_update=cycles, target_network_frequency=frequency)
        if frequency % 4 == 0 and (cycles % (frequency // 4) == 0 or (frequency // 4) % cycles == 0):
            dqn.make(config, CLOCK)
            continue
        with pytest.raises(ValueError, match="such as") as error:
            dqn.make(config, CLOCK)
        refused += 1
        suggested = re.findall(r"\d+", str(error.value).partition("such as")[2])
        assert suggested
        for works in suggested:
            dqn.make(config.replace(target_network_frequency=int(works)), CLOCK)
    assert (refused > 1) == (cycles > 1)


def test_traced_settings_are_not_looked_at():
    config = SMALL.replace(gamma=2.0, learning_rate=-1.0, tau=0.0, adam_eps=-1.0)
    jax.eval_shape(lambda config: dqn.make(config, CLOCK).init(jax.random.key(0)), config)


@pytest.mark.parametrize(
    ("obs_space", "action_space", "message"),
    [
        (spaces.Dict({"a": spaces.Discrete(2)}), spaces.Discrete(2), "observation space .* DQN takes Discrete or Box"),
        (spaces.Discrete(2), spaces.Box(-1, 1, (2,)), "action space .* DQN takes Discrete"),
        (spaces.Box(0, 1, (9, 2, 1)), spaces.Discrete(2), r"conv_layers leave nothing of images: 3 x 3 does not fit"),
    ],
)
def test_bad_spaces_are_refused_in_one_line(obs_space, action_space, message):
    with pytest.raises(ValueError, match=message) as error:
        dqn.make(SMALL, toy_envs.Still(obs_space, action_space)).init(jax.random.key(0))
    assert "\n" not in str(error.value)


# Programs and processes.


@pytest.fixture(scope="module")
def programs():
    """An update of one seed, of two seeds, and of two sets of float settings, as traced programs."""

    def step(config, state):
        return dqn.make(config, CLOCK).update(state, 0)

    start = dqn.make(RICH, CLOCK).init
    state = jax.eval_shape(start, jax.random.key(0))
    states = jax.eval_shape(jax.vmap(start), jax.random.split(jax.random.key(0), 2))
    configs = jax.tree.map(lambda x: jnp.array([x, x]), RICH)
    one = jax.make_jaxpr(step)(RICH, state)
    return one, jax.make_jaxpr(jax.vmap(step, (None, 0)))(RICH, states), jax.make_jaxpr(jax.vmap(step))(configs, states)


def test_vmap_turns_no_branch_into_a_computation_of_both(programs):
    one, seeds, settings = map(count_conds, programs)
    assert one == seeds == settings


def test_a_branch_that_vmap_computes_twice_would_be_noticed():
    def step(carry, x):
        return jax.lax.cond(carry > x, jnp.sin, jnp.cos, carry), x

    def planted(x):
        return jax.lax.scan(step, x, jnp.arange(3.0))

    one, many = jax.make_jaxpr(planted)(0.5), jax.make_jaxpr(jax.vmap(planted))(jnp.ones(2))
    assert (count_conds(one), count_conds(many)) == (1, 0)


@pytest.mark.slow
def test_eight_seeds_start_in_a_fresh_process():
    code = """
import jax, jax.numpy as jnp
from rlref import dqn
config = dqn.Config(total_timesteps=400, cycles_per_update=20, learning_starts=100, buffer_size=200)
config = config.replace(target_network_frequency=100, hidden_sizes=(256, 256))
keys = jax.vmap(jax.random.key)(jnp.arange(8))
state, diagnostics = jax.jit(jax.vmap(dqn.train, in_axes=(None, 0)))(config, keys)
print(diagnostics["env_steps"].shape, diagnostics["nonfinite"].max(), diagnostics["gradient_steps"].min(axis=0))
"""
    command = [sys.executable, "-W", "error", "-c", code]
    run = subprocess.run(command, env=child_environment(), timeout=300, check=True, capture_output=True, text=True)
    assert run.stdout.split("\n")[0] == "(8, 2) 0.0 [11. 20.]"


@pytest.mark.slow
def test_the_file_alone_trains(tmp_path):
    source = Path(dqn.__file__).read_text()
    for old, new in (("500_000", "2000"), ("10_000", "1000")):
        assert source.count(f"= static({old}") >= 1
        source = source.replace(f"= static({old}", f"= static({new}")
    printed = trains_alone(source, tmp_path)
    assert printed["env_steps"] == [2000] * 4
    assert printed["gradient_steps"] == [100] * 4
    assert printed["nonfinite"] == [0] * 4
    assert len(set(printed["return_mean"])) > 1


@pytest.mark.slow
def test_a_state_made_outside_jit_can_be_donated():
    agent = dqn.make(SMALL, CLOCK)
    state, _ = jax.jit(agent.update, donate_argnums=0)(agent.init(jax.random.key(0)), 0)
    assert np.isfinite(flat(state.params)).all()
