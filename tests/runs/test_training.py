import contextlib
import dataclasses
import functools
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import counting_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlref
from rlref import dqn, ppo
from rlref.envs.ids import make_env
from rlref.errors import UsageError
from rlref.runs import programs, training
from rlref.runs.display import Silent
from rlref.runs.footprint import free_in_cgroups, peak_bytes, trace_row
from rlref.runs.job import Job
from rlref.runs.plan import make_plan, rows_at_once
from rlref.runs.programs import compile_programs

SMALL = ppo.Config(
    total_timesteps=10 * 12, num_envs=3, num_steps=4, num_minibatches=1, update_epochs=1, hidden_sizes=(8,)
)


def train(config=SMALL, **options):
    return rlref.train("ppo", config, **({"env": counting_env.Counting()} | options))


def row_bytes(module, config):
    return trace_row(lambda c: module.make(c, counting_env.Counting()), config).peak_bytes


def job_of(config, num_seeds):
    env = counting_env.Counting()
    return Job(ppo, config, env, env.default_params, list(range(num_seeds)), 0, 1, True)


class Recorder(Silent):
    def __init__(self):
        self.said, self.done = [], []

    def say(self, text):
        self.said.append(text)

    def progress(self, done, total, metrics, verdict):
        self.done.append((done, total))


@pytest.fixture(scope="module")
def plain():
    return train(num_seeds=3)


def test_metrics_are_seed_by_update(plain):
    assert {x.shape for x in plain.metrics.values()} == {(3, 10)}
    np.testing.assert_array_equal(plain.metrics["env_steps"], np.tile(np.arange(1, 11) * 12, (3, 1)))
    assert plain.summary["status"] == "finished"
    assert plain.summary["env_steps"] == 3 * 120
    assert plain.seeds == [0, 1, 2]


def test_rows_train_like_the_agent_alone(plain):
    agent = ppo.make(SMALL, counting_env.Counting())
    for i in range(3):
        _, diagnostics = jax.jit(agent.update)(agent.init(jax.random.key(i)), jnp.int32(0))
        for name, x in diagnostics.items():
            np.testing.assert_allclose(plain.metrics[name][i, 0], x, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_first_seed_shifts_the_seeds(plain):
    shifted = train(num_seeds=1, seed=2)
    assert shifted.seeds == [2]
    np.testing.assert_allclose(shifted.metrics["policy_loss"][0, 0], plain.metrics["policy_loss"][2, 0], atol=1e-6)


def test_rerun_is_bitwise_equal(plain):
    again = train(num_seeds=3)
    for name in set(plain.metrics) - {"steps_per_second"}:
        np.testing.assert_array_equal(again.metrics[name], plain.metrics[name], err_msg=name)


def test_length_of_chunks_changes_nothing(plain, monkeypatch):
    monkeypatch.setattr(programs, "MAX_CHUNK", 3)
    display = Recorder()
    chunked = train(num_seeds=3, display=display)
    assert len(display.done) >= 4
    assert display.done[-1] == (30, 30)
    for name in set(plain.metrics) - {"steps_per_second"}:
        np.testing.assert_array_equal(chunked.metrics[name], plain.metrics[name], err_msg=name)


def test_speed_where_sending_off_a_chunk_waits_for_its_end(monkeypatch):
    """As on a GPU that asks the host at each turn of a loop: the chunk before has been read by then."""
    compile_to_fit = training.compile_to_fit

    def waiting(*arguments):
        compiled, plan = compile_to_fit(*arguments)

        def chunk(config, state, start, count):
            time.sleep(0.05 * count)
            return jax.block_until_ready(compiled.chunk(config, state, start, count))

        return compiled._replace(chunk=chunk), plan

    monkeypatch.setattr(training, "compile_to_fit", waiting)
    speed = train(num_seeds=3).metrics["steps_per_second"]
    assert (speed < 3 * 12 / 0.05).all()
    assert np.median(speed) > 3 * 12 / 0.05 / 2  # of all seeds together


@pytest.mark.cpus
def test_more_seeds_than_memory_train_in_groups(plain):
    display = Recorder()
    row = row_bytes(ppo, SMALL)
    grouped = train(num_seeds=3, memory_gb=2.5 * row / 1e9, display=display)
    assert "2 groups of at most 2" in display.said[0]
    assert display.done[-1] == (30, 30)
    np.testing.assert_allclose(grouped.metrics["policy_loss"][:, 0], plain.metrics["policy_loss"][:, 0], atol=1e-5)
    assert np.isfinite(grouped.metrics["env_steps"]).all()


@pytest.mark.slow
def test_rows_train_in_blocks_as_without(monkeypatch):
    rates = np.geomspace(1e-4, 1e-2, 8)  # a row each, two to a device
    config = dataclasses.replace(SMALL, learning_rate=rates)
    whole = train(config, num_seeds=1, eval_every=5)
    monkeypatch.setattr(programs, "rows_at_once", lambda job, rows, mesh: 1)
    blocks = train(config, num_seeds=1, eval_every=5)
    for name in set(whole.metrics) - {"steps_per_second"}:
        a, b = whole.metrics[name][:, 0], blocks.metrics[name][:, 0]
        np.testing.assert_allclose(b[:, :2], a[:, :2], rtol=1e-4, atol=1e-5, err_msg=name)
    for name in ("env_steps", "episodes", "return_mean", "eval_length_greedy"):
        np.testing.assert_array_equal(blocks.metrics[name], whole.metrics[name], err_msg=name)
    annealed = rates[:, None] * (1 - np.arange(10) / 10)
    np.testing.assert_allclose(blocks.metrics["learning_rate"][:, 0], annealed, rtol=1e-5)


@pytest.mark.cpus
@pytest.mark.parametrize(
    ("rows", "kilobytes", "block"),
    [(1, 500, 1), (8, 500, 8), (12, 500, 6), (17, 500, 17), (64, 500, 8), (64, 1200, 4), (64, 2000, 4), (6, 50_000, 1)],
)
def test_a_block_is_what_caches_hold(rows, kilobytes, block):
    job = types.SimpleNamespace(row=types.SimpleNamespace(peak_bytes=1000 * kilobytes))
    assert rows_at_once(job, rows) == block


@pytest.mark.cpus
@pytest.mark.parametrize(
    ("rows", "devices", "padded"), [(8, 4, 8), (6, 3, 6), (5, 3, 6), (1, 1, 1), (9, 3, 9), (7, 4, 8)]
)
def test_rows_fill_devices_with_the_least_padding(rows, devices, padded):
    plan = make_plan(rows, 1, 1.0, Silent())
    assert (plan.mesh.devices.size, plan.padded, plan.rows) == (devices, padded, rows)


def test_memory_estimate_counts_what_is_alive():
    def f(x):
        y = jnp.outer(x, x)  # 4 MB, freed after the next line
        z = y @ y  # 4 MB
        return z.sum()

    estimate = peak_bytes(jax.make_jaxpr(f)(jnp.zeros(1000)).jaxpr)
    assert 8e6 <= estimate <= 8.1e6


def test_memory_estimate_counts_what_is_written_in_place_once():
    def step(x, i):
        return jax.lax.dynamic_update_slice(x, jnp.ones(1), (i,)), None

    def f(x, keep):
        y, _ = jax.lax.scan(step, x, jnp.arange(10))
        return (x, y) if keep else y

    for keep, least in ((False, 4e6), (True, 8e6)):
        estimate = peak_bytes(jax.make_jaxpr(functools.partial(f, keep=keep))(jnp.zeros(1_000_000)).jaxpr)
        assert least <= estimate <= 1.01 * least


def test_memory_estimate_of_a_replay_buffer_is_its_size():
    config = dqn.Config(buffer_size=1_000_000, hidden_sizes=(8,))
    env, params = make_env("CartPole-v1")
    row = trace_row(lambda c: dqn.make(c, env, params), config)
    assert 48e6 <= row.peak_bytes <= 50e6  # 48 bytes a transition
    assert 48e6 <= row.state_bytes <= 50e6  # and the copy that is saved


def test_memory_estimate_sees_a_rollout():
    small = row_bytes(ppo, SMALL)
    long = dataclasses.replace(SMALL, num_steps=4000, total_timesteps=12_000)
    # 12,000 steps of two float32 observations, before and after, are the least that a rollout holds.
    assert row_bytes(ppo, long) - small > 12_000 * 2 * 2 * 4


@pytest.mark.cpus
def test_training_has_no_collective():
    plan = make_plan(8, 1, 1.0, Silent())
    programs = compile_programs(job_of(SMALL, 8), plan, Silent())
    text = programs.chunk.as_text()
    assert plan.mesh.devices.size == 4
    for collective in ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter"):
        assert collective not in text


def test_batched_settings_train_with_every_seed(plain):
    config = SMALL.replace(learning_rate=np.array([2.5e-4, 1e-2]), gamma=np.array([0.99, 0.5]))
    run = train(config, num_seeds=3)
    assert run.metrics["kl"].shape == (2, 3, 10)
    np.testing.assert_allclose(run.metrics["policy_loss"][0, :, 0], plain.metrics["policy_loss"][:, 0], atol=1e-5)
    np.testing.assert_allclose(run.metrics["learning_rate"][1, :, 0], 1e-2)
    assert len(run.summary["iqm"]) == 2
    frame = run.to_frame()
    assert len(frame) == 2 * 3 * 10
    assert set(frame["config_gamma"].round(2)) == {0.99, 0.5}


@pytest.mark.slow
def test_a_list_is_a_batch_of_settings():
    run = train(SMALL.replace(learning_rate=[1e-3, 1e-2], anneal_lr=False), num_seeds=1)
    np.testing.assert_allclose(run.metrics["learning_rate"][:, 0, -1], [1e-3, 1e-2])


def test_a_module_without_the_contract_is_no_agent():
    with pytest.raises(UsageError, match="counting_env is no agent: it lacks Config"):
        rlref.train(counting_env, SMALL)


def test_an_agent_has_to_count_its_steps(tmp_path):
    source = Path(ppo.__file__).read_text()
    silent = source.replace('diagnostics |= {"env_steps": (step + 1.0) * reward.size, ', "diagnostics |= {")
    (tmp_path / "silent.py").write_text(silent)
    with pytest.raises(UsageError, match="silent does not report env_steps"):
        rlref.train(tmp_path / "silent.py", num_seeds=1, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


STATE = {"x": jnp.zeros(3), "n": jnp.int32(0)}
GIVEN = {"env_steps": jnp.float32(0), "loss": jnp.float32(0)}


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ((STATE, GIVEN, 0), "a pair: the new state, and a dictionary"),
        (None, "a pair: the new state, and a dictionary"),
        ((STATE, list(GIVEN)), "a pair: the new state, and a dictionary"),
        (({"x": STATE["x"]}, GIVEN), "of the same structure as init's"),
        (
            (STATE | {"n": jnp.float32(0)}, GIVEN),
            r"leave \['n'\] of its state as it is: int32\[\], and not float",
        ),
        ((STATE | {"x": jnp.zeros(2)}, GIVEN), r"leave \['x'\] of its state as it is: float32\[3\], and not float32"),
        ((STATE, GIVEN | {7: jnp.float32(0)}), "one number as the diagnostic 7"),
        ((STATE, GIVEN | {"loss": jnp.zeros(3)}), "one number as the diagnostic 'loss'"),
        ((STATE, GIVEN | {"loss": None}), "one number as the diagnostic 'loss'"),
        ((STATE, GIVEN | {"loss": "low"}), "one number as the diagnostic 'loss'"),
        ((STATE, GIVEN | {"loss": 1, "clipped": True, "kl": 0.5}), None),
    ],
)
def test_an_update_returns_what_can_be_trained_with(returned, message):
    agent = types.SimpleNamespace(init=lambda key: STATE, update=lambda state, step: returned)
    with contextlib.nullcontext() if message is None else pytest.raises(UsageError, match=message):
        trace_row(lambda config: agent, None, "mine")


def test_an_update_whose_custom_vmap_closes_over_a_setting_trains():
    def make(config):
        slow = jax.custom_batching.sequential_vmap(lambda x: x * config)
        return types.SimpleNamespace(init=lambda key: config, update=lambda state, step: (slow(state), GIVEN))

    row = trace_row(make, np.float32(3))
    new, _ = jax.jit(jax.vmap(row.update, (None, 0, None)))(jnp.float32(3), jnp.arange(4.0), jnp.int32(0))
    np.testing.assert_array_equal(new, 3 * np.arange(4.0))


def test_batched_settings_must_agree():
    with pytest.raises(UsageError, match=r"learning_rate \[2\], gamma \[3\]"):
        train(SMALL.replace(learning_rate=np.ones(2), gamma=np.ones(3)))


def test_environment_parameters_are_used(plain):
    run = train(num_seeds=1, env_params=counting_env.Params(reward=4.0))
    assert plain.metrics["reward_max"].max() == 2
    assert run.metrics["reward_max"].max() == 4


@pytest.fixture(scope="module")
def learned():
    config = SMALL.replace(total_timesteps=12 * 100, learning_rate=0.05)
    return train(config, num_seeds=2, seed=3, eval_every=40, eval_episodes=7)


def test_evaluation_runs_whole_episodes_at_its_updates(learned):
    greedy = learned.metrics["eval_return_greedy"]
    assert np.flatnonzero(np.isfinite(greedy[0])).tolist() == [39, 79, 99]
    np.testing.assert_array_equal(greedy[:, 99], 10)  # five steps of reward 2 for the right action
    sampled = learned.metrics["eval_return_sampled"]
    assert (sampled[:, 39] > 0).all()
    assert (sampled[:, 39] <= 10).all()
    np.testing.assert_array_equal(learned.metrics["eval_length_greedy"][:, 99], 5)


@pytest.mark.slow
def test_agents_of_action_values_are_evaluated_greedily_alone():
    config = dqn.Config(total_timesteps=400, num_envs=2, train_frequency=4, cycles_per_update=5, learning_starts=40)
    config = config.replace(buffer_size=200, batch_size=32, target_network_frequency=20, learning_rate=0.02)
    env = counting_env.Counting()
    run = rlref.train("dqn", config.replace(hidden_sizes=(8,)), env=env, num_seeds=2, eval_every=20, eval_episodes=3)
    np.testing.assert_array_equal(run.metrics["eval_return_greedy"][:, 19], 10)
    assert "eval_return_sampled" not in run.metrics
    policy, obs = run.policy(0), np.array([1.0, 0.5], np.float32)
    assert len({int(policy(obs)), *(int(policy(obs, jax.random.key(i))) for i in range(5))}) == 1


@pytest.mark.slow
def test_evaluations_draw_actions_and_average_over_their_episodes():
    # A policy that hardly learns: what differs between evaluations is drawn, and one episode's return is even.
    run = train(SMALL.replace(learning_rate=1e-12), num_seeds=2, eval_every=2, eval_episodes=4)
    sampled = run.metrics["eval_return_sampled"][:, 1::2]
    assert len(np.unique(sampled[0])) > 1
    assert (sampled % 2 != 0).any()
    assert np.isin(sampled * 4 % 2, 0).all()
    assert np.isin(run.metrics["eval_return_greedy"][:, 1::2], [0, 2, 4, 6, 8, 10]).all()


def test_a_policy_that_has_learned_nothing_is_drawn_from(plain):
    act, obs = plain.policy(0), np.array([1.0, 0.5], np.float32)
    assert {int(act(obs, jax.random.key(i))) for i in range(40)} == {0, 1}
    assert len({int(act(obs)) for _ in range(5)}) == 1


def test_policy_maps_an_observation_to_an_action(learned):
    assert learned.policy(4)(np.array([1.0, 0.5], np.float32)) == 1
    assert learned.policy(4)(np.array([1.0, 0.5], np.float32), jax.random.key(0)) in (0, 1)
    with pytest.raises(UsageError, match="no seed 0; it has 3 to 4"):
        learned.policy(0)
    with pytest.raises(UsageError, match="no setting 1; it has 0 to 0"):
        learned.policy(3, setting=1)


def test_policy_of_a_box_is_clipped():
    config = ppo.Config(env_id="Pendulum-v1", total_timesteps=512, hidden_sizes=(8,), init_log_std=3.0)
    act = rlref.train("ppo", config, num_seeds=1).policy(0)
    actions = np.array([act(np.zeros(3, np.float32), jax.random.key(i)) for i in range(20)])
    assert actions.shape == (20, 1)
    assert np.abs(actions).max() == 2


def test_a_seed_that_becomes_nonfinite_is_marked_and_the_others_train_on():
    config = SMALL.replace(num_envs=1, num_steps=4, total_timesteps=4 * 6)
    run = train(config, env=counting_env.Counting(poison=True), num_seeds=8)
    env = counting_env.Counting()
    agent = ppo.make(config, env)
    bad = [i for i in range(8) if agent.init(jax.random.key(i)).obs[0, 1] < 0.5]
    assert 0 < len(bad) < 8
    first = [entry for entry in run.summary["nonfinite"] if entry["update"] == 0]
    assert [entry["seed"] for entry in first] == bad
    marked = {entry["seed"] for entry in run.summary["nonfinite"]}
    fine = [i for i in range(8) if i not in marked]
    assert np.isfinite(run.metrics["loss"][fine]).all()
    assert (run.metrics["nonfinite"][bad, 0] == 1).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_seeds": 0}, "num_seeds is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"num_seeds": 2.0}, "num_seeds is 2.0"),
        ({"num_seeds": True}, "num_seeds is True"),
        ({"seed": 2**32}, r"seed \+ num_seeds is 4294967304; seeds are numbers below"),
        ({"num_seeds": 2**31, "seed": 1}, r"seed \+ num_seeds is 2147483649"),
        ({"env": counting_env.not_an_env()}, "env gives int, which is no gymnax environment: it lacks reset"),
        ({"env": counting_env.other_dtype()}, "must have one dtype, not float32 and float16"),
        ({"eval_every": 11}, "more than the 10 updates"),
        ({"config": {"gamma": 0.9}}, "must be a rlref.ppo.Config"),
        ({"config": ppo.Config}, "must be a rlref.ppo.Config"),
        ({"eval_every": -1}, "eval_every is -1"),
        ({"eval_episodes": 0}, "eval_episodes is 0"),
        ({"memory_gb": 0}, "memory_gb is 0"),
        ({"memory_gb": 1e-9}, "one seed takes about"),
        ({"config": SMALL.replace(gamma=2.0)}, "gamma is 2.0"),
        ({"config": SMALL.replace(gamma=np.array([0.5, 2.0]))}, "gamma is"),
        ({"env": counting_env.five_values()}, "is written for gymnax 0.0.x"),
    ],
)
def test_wrong_usage_is_one_line(options, message):
    with pytest.raises(UsageError, match=message) as error:
        train(**options)
    assert "\n" not in str(error.value)


def test_double_precision_is_refused():
    jax.config.update("jax_enable_x64", True)
    try:
        with pytest.raises(UsageError, match="jax_enable_x64 is on"):
            train(num_seeds=1)
    finally:
        jax.config.update("jax_enable_x64", False)


@pytest.mark.slow
def test_whole_numbers_stay_whole_in_the_record():
    run = train(SMALL.replace(num_envs=np.int64(3)), num_seeds=1)
    assert ppo.Config(**run.config | {"hidden_sizes": (8,), "conv_layers": SMALL.conv_layers}).num_envs == 3
    assert isinstance(run.config["num_envs"], int)


def test_the_users_file_is_an_agent(tmp_path):
    text = Path(ppo.__file__).read_text().replace('"policy_loss": policy_loss', '"policy_loss": 7.0 + 0 * policy_loss')
    (tmp_path / "mine.py").write_text(text)
    run = rlref.train(str(tmp_path / "mine.py"), SMALL, num_seeds=1, env=counting_env.Counting())
    assert (run.metrics["policy_loss"] == 7).all()
    assert run.agent == "mine"


@pytest.mark.slow
def test_ppo_learns_cartpole():
    run = rlref.train("ppo", ppo.Config(total_timesteps=100_000), num_seeds=4)
    assert run.summary["min"] > 200
    assert run.metrics["first_ratio_error"].max() < 1e-4
    assert run.metrics["kl"].min() > -1e-6


@pytest.mark.slow
def test_ctrl_c_leaves_a_run_that_loads(tmp_path):
    command = [sys.executable, "-m", "rlref.cli", "train", "ppo", "--total-timesteps", "100000000", "--num-seeds", "2"]
    with subprocess.Popen(
        [*command, "--run-dir", str(tmp_path / "run")], stderr=subprocess.PIPE, env=os.environ
    ) as process:
        try:
            deadline = time.monotonic() + 300
            while not list(tmp_path.glob("run/metrics/*.npz")) and time.monotonic() < deadline:
                time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            assert process.wait(300) == 130
        finally:
            process.kill()
    run = rlref.load(tmp_path / "run")
    assert run.summary["status"] == "interrupted"
    assert np.isfinite(run.metrics["env_steps"]).all()
    assert run.metrics["env_steps"].shape[0] == 2


V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


@pytest.mark.parametrize(
    ("line", "folder", "names"),
    [
        ("0::/job/step", "job", ("memory.max", "memory.current", "inactive_file")),
        ("4:cpu,memory:/job/step", "memory/job", V1),
        # In a container the group's name may be the host's, and what is mounted is the container's own.
        ("4:memory:/docker/0123", "memory", V1),
    ],
)
def test_free_memory_is_what_a_container_or_a_job_leaves(tmp_path, line, folder, names):
    own, mounted = tmp_path / "cgroup", tmp_path / "mounted"
    own.write_text(f"9:pids:/job/step\n{line}\n")
    (mounted / "memory" / "job" / "step").mkdir(parents=True)
    (mounted / "job" / "step").mkdir(parents=True)
    (mounted / "job" / "step" / "memory.max").write_text("max\n")
    assert free_in_cgroups(own, mounted) == np.inf
    limit, used, cached = names
    (mounted / folder / limit).write_text("8000\n")
    (mounted / folder / used).write_text("3000\n")
    (mounted / folder / "memory.stat").write_text(f"anon 2000\n{cached} 500\n")
    assert free_in_cgroups(own, mounted) == 5500
    assert free_in_cgroups(tmp_path / "none", mounted) == np.inf
