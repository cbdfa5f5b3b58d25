"""What all suites share, on suites that need no package; gymnasium arrives with gymnax."""

import importlib
import importlib.util
import signal
import subprocess
import sys
import tomllib
import types
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments import environment
from helpers import SMALL, SUITES_INSTALLED, child_environment

import rlref
from rlref import ppo, tuned
from rlref.cli import main
from rlref.envs import episodes, listing, make_env, suites
from rlref.envs.ids import resolved
from rlref.envs.partial import Stacked
from rlref.envs.suites import base, pool
from rlref.envs.suites.gymnasium import GymnasiumEnv
from rlref.envs.suites.pool import Pooled
from rlref.envs.suites.words import Field, Words
from rlref.errors import UsageError
from rlref.inspection.inspect import inspect
from rlref.reports.reference import random_returns

takes_mujoco = pytest.mark.skipif(
    not importlib.util.find_spec("mujoco") and "mujoco" not in SUITES_INSTALLED, reason="takes gymnasium[mujoco]"
)
ON_HOST = "--num-seeds 2 --num-envs 2 --num-steps 16 --num-minibatches 1 --update-epochs 1 --hidden-sizes 8"


@pytest.fixture
def survival(monkeypatch):
    """scripts/survival.py, whose trainings may be others."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "scripts")
    module = importlib.import_module("survival")
    monkeypatch.setattr(module, "SMALL", {})
    return module


class Toy(base.SuiteEnv):
    """Ends by itself after 3 steps where its start is below .3, is cut by itself after 5 where it is above .9."""

    id, limit = "toy:toy", 7
    observations, actions = base.unbounded((2,)), base.discrete(2)
    metrics = ("steps",)

    def first(self, key):
        start = jax.random.uniform(key)
        return jnp.stack([start, 0.0]), {"start": start, "steps": jnp.int32(0)}

    def next(self, key, inner, action):
        steps = inner["steps"] + 1
        obs = jnp.stack([inner["start"], steps.astype(jnp.float32)])
        ends, cut = (inner["start"] < 0.3) & (steps >= 3), (inner["start"] > 0.9) & (steps >= 5)
        return base.Step(obs, inner | {"steps": steps}, action, ends, cut, {"steps": 1.0})


class ResetAll(Toy):
    """The same with gymnax's own step, which resets every environment at every step."""

    metrics = ()
    step = environment.Environment.step


def rolled(env, num_envs, num_steps, seeds, params=None):
    """Observations, rewards, endings and final observations `[seeds, T, N, ...]`, and the last state."""
    params = env.default_params if params is None else params

    def run(key):
        key, key_reset = jax.random.split(key)
        start = jax.vmap(env.reset, (0, None))(jax.random.split(key_reset, num_envs), params)

        def step(carry, key):
            key_act, key_env = jax.random.split(key)
            action = jax.vmap(env.action_space(params).sample)(jax.random.split(key_act, num_envs))
            keys = jax.random.split(key_env, num_envs)
            obs, state, reward, terminated, truncated, info = jax.vmap(env.step, (0, 0, 0, None))(
                keys, carry[1], action, params
            )
            seen = (carry[0], action, reward, terminated, truncated, info["final_observation"], obs)
            return (obs, state), seen

        (_, state), seen = jax.lax.scan(step, start, jax.random.split(key, num_steps))
        return state, seen

    return jax.jit(jax.vmap(run))(jax.vmap(jax.random.key)(jnp.arange(seeds)))


def test_what_has_ended_alone_is_reset_with_the_same_numbers():
    (ours, seen), (theirs, wanted) = rolled(Toy(), 300, 40, 3), rolled(ResetAll(), 300, 40, 3)
    assert all(np.array_equal(a, b) for a, b in zip(seen, wanted, strict=True))
    for name in ("time", "truncated", "inner"):
        pairs = zip(jax.tree.leaves(getattr(ours, name)), jax.tree.leaves(getattr(theirs, name)), strict=True)
        assert all(np.array_equal(a, b) for a, b in pairs)


def test_endings_of_an_adapted_environment():
    _, (obs, _, _, terminated, truncated, final, after) = rolled(Toy(), 16, 40, 2)
    steps, start = final[..., 1], final[..., 0]
    assert np.array_equal(terminated, (start < 0.3) & (steps == 3))
    assert np.array_equal(truncated, (steps == 7) | ((start > 0.9) & (steps == 5)))
    ended = np.asarray(terminated | truncated)
    assert np.array_equal(start, obs[..., 0])  # what the step led to, not the next episode
    assert (after[..., 1][ended] == 0).all()
    starts = np.asarray(after[..., 0])[ended]
    assert len(np.unique(starts)) == len(starts) > 50  # no environment returns to a start


def test_a_pool_gives_the_same_episodes_from_few_starts():
    (_, starts), seen = rolled(Pooled(Toy(), 3), 16, 160, 2)  # long enough to meet every start
    obs, _, _, terminated, truncated, final, after = seen
    steps, start = final[..., 1], final[..., 0]
    assert np.array_equal(terminated, (start < 0.3) & (steps == 3))
    assert np.array_equal(truncated, (steps == 7) | ((start > 0.9) & (steps == 5)))
    assert np.array_equal(start, obs[..., 0])
    ended = np.asarray(terminated | truncated)
    assert (after[..., 1][ended] == 0).all()
    for seed in range(2):
        for env in range(16):
            own = set(np.asarray(starts[0])[seed, env, :, 0])
            met = set(np.asarray(after[..., 0])[seed, :, env][ended[seed, :, env]])
            assert len(own) == 3  # drawn once
            assert met <= own
    assert len(np.unique(np.asarray(starts[0])[..., 0])) == 2 * 16 * 3  # of no other environment, nor seed
    assert len(np.unique(np.asarray(after[..., 0])[ended])) == 2 * 16 * 3  # and each of them is met


@pytest.mark.slow
def test_a_pool_keeps_totals_over_resets_and_the_interface():
    found = inspect("pool", env=Pooled(Toy(), 3), episodes=20)
    assert not [x for x in found.findings if x.severity == "ERROR"]
    info = {}
    for name, env in (("every", Toy()), ("pool", Pooled(Toy(), 3))):
        info[name] = rlref.train("ppo", SMALL["ppo"], env=env, num_seeds=2, sinks=()).metrics["info/steps"]
    assert np.isfinite(info["pool"]).any()
    assert np.nanmax(info["pool"]) <= 7
    assert info["pool"].shape == info["every"].shape


def test_what_is_drawn_of_a_pool():
    class Drawn(Toy):
        def render(self, state):
            return state.time

    pooled = Pooled(Drawn(), 3)
    assert pooled.render(pooled.reset(jax.random.key(0))[1]) == 0
    assert not hasattr(Pooled(Toy(), 3), "render")
    assert not hasattr(Pooled(Toy(), 3), "html")


def test_single_episodes_are_played_without_a_pool():
    for env in (Pooled(Toy(), 3), Stacked(Pooled(Toy(), 3), 2)):
        alone = episodes.without_pool(env)
        assert not hasattr(alone, "pooled")
        assert type(alone) is (Toy if type(env) is Pooled else Stacked)
        key, params = jax.random.key(3), env.default_params
        pairs = [episodes.play(x, params, episodes.random_act(x, params), key, 20) for x in (env, alone)]
        assert all(np.array_equal(x, y) for x, y in zip(*map(jax.tree.leaves, (x.obs for x in pairs)), strict=True))
        assert jax.tree.structure(pairs[0].state) == jax.tree.structure(pairs[1].state)


class Keyed(Toy):
    """What is seen after its start follows from a random key in its state."""

    def __init__(self, typed):
        super().__init__()
        self.typed = typed

    def first(self, key):
        obs, inner = super().first(key)
        return obs, inner | {"rng": key if self.typed else jax.random.key_data(key), "at": jnp.zeros(2, jnp.uint32)}

    def next(self, key, inner, action):
        step = super().next(key, inner, action)
        rng = jax.random.split(inner["rng"])[0]
        return step._replace(obs=step.obs.at[1].set(jax.random.uniform(rng)), inner=step.inner | {"rng": rng})


@pytest.mark.parametrize("typed", [True, False])
def test_episodes_that_begin_alike_do_not_go_on_alike(typed):
    state, seen = rolled(Pooled(Keyed(typed), 1), 4, 60, 1)
    obs, _, _, terminated, truncated, final, _ = (np.asarray(x)[0] for x in seen)
    ended = terminated | truncated
    begun = np.concatenate([np.zeros((1, 4), bool), ended[:-1]])  # from the second episode on
    for env in range(4):
        assert len(np.unique(obs[:, env, 0])) == 1  # one start
        first = final[:, env, 1][begun[:, env]]
        assert len(np.unique(first)) == len(first) > 5
    assert (np.asarray(state[1][1][2]["at"]) == 0).all()  # no key


def test_how_many_starts_a_pool_has():
    assert pool.size(Toy(), 16) == 16
    assert pool.size(Toy(), 1024) == 2

    class Large(Toy):
        def first(self, key):
            obs, inner = super().first(key)
            return obs, inner | {"map": jnp.zeros(2**18)}  # 1 MiB

    assert pool.size(Large(), 8) == 7  # 63 of them, with what else they hold


def test_what_has_no_pool():
    with pytest.raises(UsageError, match="CartPole-v1 has no pool of start states"):
        make_env("pool:4:CartPole-v1")
    with pytest.raises(UsageError, match="no pool"):
        make_env("pool:4:gymnasium:CartPole-v1")
    for wrong in ("pool:CartPole-v1", "pool:0:a:b", "pool:-1:a:b", "pool:1000001:a:b", f"pool:{'9' * 5000}:a:b"):
        with pytest.raises(UsageError, match="says not how many"):
            make_env(wrong)
    with pytest.raises(UsageError, match="pool:2:toy:toy starts from a pool already"):
        Pooled(Pooled(Toy(), 2), 2)
    for other, name in ((Stacked(Toy(), 2), "stacked:2:toy:toy"), (object(), "object")):
        with pytest.raises(UsageError, match=f"{name} has no pool"):
            Pooled(other, 2)
    for count in (0, 2.0):
        with pytest.raises(UsageError, match=f"from 1, not {count}"):
            Pooled(Toy(), count)
    with pytest.raises(UsageError, match="cem begins all its episodes anew"):
        rlref.train("cem", env=Pooled(Toy(), 3))


def test_an_episode_that_cannot_begin_has_no_pool_either():
    class Bad(Toy):
        def first(self, key):
            raise ValueError("my own fault")

    with pytest.raises(UsageError, match="toy:toy cannot begin an episode: ValueError: my own fault"):
        pool.size(Bad(), 4)


@pytest.mark.slow
def test_a_pool_is_the_same_task(tmp_path, monkeypatch, capsys):
    assert tuned.tuned("ppo", "pool:4:pgx:minatar-breakout") is tuned.tuned("ppo", "pgx:minatar-breakout")
    monkeypatch.chdir(tmp_path)
    begun = ["train", "ppo", "--env-id", "test_suites:Toy", "--no-anneal-lr", *ON_HOST.split()]
    assert main([*begun, "--total-timesteps", "320", "--run-dir", "every"]) == 0
    pooled = [*begun, "--reset", "pool"]
    assert main([*pooled, "--total-timesteps", "160", "--run-dir", "pool"]) == 0
    assert main([*pooled, "--total-timesteps", "320", "--resume", "pool"]) == 0  # with the options that began it
    assert rlref.load("pool").config["env_id"] == "pool:128:test_suites:Toy"
    capsys.readouterr()
    assert main(["compare", "every", "pool"]) == 0
    assert "pool of 128" in capsys.readouterr().out


def test_a_limit_is_set_and_left_out_by_its_parameter():
    env = Toy()
    *_, final, _ = rolled(env, 4, 20, 1, base.Params(4))[1]
    assert final[..., 1].max() == 4
    *_, final, _ = rolled(env, 8, 20, 1, base.Params(None))[1]
    assert final[..., 1].max() == 20


@pytest.mark.slow
def test_scalars_of_info_are_averaged_over_the_episodes_that_ended():
    config = SMALL["ppo"].replace(num_steps=32, total_timesteps=4 * 96)
    run = rlref.train("ppo", config, num_seeds=2, env=Toy())
    length = run.metrics["info/steps"]
    assert length.shape == run.metrics["reward_mean"].shape
    assert ((length >= 3) & (length <= 7)).all()
    assert run.config["env_id"] == "toy:toy"  # not CartPole-v1, which its Config names


def test_words_hold_every_dtype_to_the_last_bit():
    layout = Words(a=Field((2, 3), np.float32), b=Field((5,), np.uint8), c=Field((), bool), d=Field((2,), np.int32))
    arrays = {"a": np.float32([[1, -0.0, np.inf], [1e-42, 3, 4]]), "b": np.uint8([1, 2, 3, 4, 255])}
    arrays |= {"c": np.bool_(True), "d": np.int32([-1, 2**31 - 1])}
    rows = np.asarray(jax.jit(jax.vmap(lambda _: layout.pack(**arrays)))(jnp.arange(3)))
    for name, view in layout.views(rows.copy()).items():
        assert view.dtype == layout.fields[name].dtype
        assert view[2].tobytes() == arrays[name].tobytes()
    for name, x in jax.jit(layout.unpack)(rows[1]).items():
        assert np.asarray(x).tobytes() == arrays[name].tobytes()


def beside(env, raw, num_steps, limit):
    """Drive gymnasium's own environment beside the adapted one, through the same actions; how often each ending was."""
    params = base.Params(limit)
    reset, step = jax.jit(env.reset), jax.jit(env.step)
    obs, state = reset(jax.random.key(3), params)
    ends = {"terminated": 0, "truncated": 0}

    def seed(state):
        high, low = np.asarray(state.inner.seed).tolist()
        return (high ^ low) % 2**31

    def same(a, b):
        assert np.asarray(a).tobytes() == np.asarray(b, np.float32).tobytes()

    same(obs, raw.reset(seed=seed(state))[0])
    time = 0
    for key in jax.random.split(jax.random.key(4), num_steps):
        action = env.action_space(params).sample(key)
        obs, state, reward, terminated, truncated, info = step(key, state, action, params)
        raw_obs, raw_reward, raw_terminated, *_ = raw.step(np.asarray(action))
        time += 1
        same(info["final_observation"], raw_obs)
        same(reward, raw_reward)
        assert (terminated, truncated) == (raw_terminated, time == limit)
        if terminated or truncated:
            ends["terminated"] += int(terminated)
            ends["truncated"] += int(truncated)
            raw_obs, time = raw.reset(seed=seed(state))[0], 0
        same(obs, raw_obs)
    assert env.failure is None
    assert env.host.given_up == 0
    return ends


MANY_DEVICES = """
import rlref
from rlref.contract import load_agent
from rlref.envs.ids import make_env

env, _ = make_env("gymnasium:CartPole-v1")
config = load_agent("ppo").Config(total_timesteps=2048, num_envs=4, num_steps=64)
rlref.train("ppo", config, env=env, num_seeds=8)
print(env.host.devices, env.host.given_up)
"""


@pytest.mark.slow
def test_devices_leave_each_other_s_environments_alone():
    """Eight devices, a seed each: the environments of one host call are an eighth of all that go on."""
    variables = child_environment() | {"JAX_NUM_CPU_DEVICES": "8", "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-W", "ignore", "-c", MANY_DEVICES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=variables, check=False)
    assert done.stdout.split()[-2:] == ["8", "0"], done.stderr[-2000:]


def test_gymnasium_beside_itself_over_resets():
    ends = beside(GymnasiumEnv("CartPole-v1"), gymnasium.make("CartPole-v1").unwrapped, 300, 20)
    assert min(ends.values()) > 3


@takes_mujoco
@pytest.mark.parametrize("name", ["HalfCheetah-v5", "Hopper-v5", "Ant-v5"])
def test_mujoco_beside_itself_and_after_its_process_is_gone(name):
    env = GymnasiumEnv(name)
    assert env.can_be_saved
    beside(env, gymnasium.make(name).unwrapped, 100, 30)
    state, seen = rolled(env, 2, 40, 2)
    env.host.waiting.clear()
    again, same = rolled(env, 2, 40, 2)
    assert all(np.array_equal(a, b) for a, b in zip(seen, same, strict=True))

    def onward(state, key):
        return env.step(key, state, jnp.zeros(env.actions.shape), env.default_params)[0]

    keys = jax.random.split(jax.random.key(0), 4).reshape(2, 2)
    step = jax.jit(jax.vmap(jax.vmap(onward)))
    went = step(state, keys)
    env.host.waiting.clear()  # as in a new process
    assert np.array_equal(went, step(again, keys))
    assert env.host.given_up == 0


@takes_mujoco
def test_a_killed_training_on_mujoco_ends_with_the_same_bits(survival):
    survival.SMALL["ppo"] = f"{ON_HOST} --env-id gymnasium:HalfCheetah-v5 --total-timesteps 20000"
    (kill,) = survival.kills(["ppo"], count=1, seed=1)["ppo"]["kills"]
    assert kill["differs"] == []


@pytest.mark.slow
def test_ctrl_c_stops_a_training_on_the_host_and_its_episodes_begin_anew(survival, tmp_path):
    run = tmp_path / "run"
    arguments = ["train", "ppo", *ON_HOST.split(), "--env-id", "gymnasium:CartPole-v1", "--run-dir", str(run)]
    with survival.rlref_process([*arguments, "--total-timesteps", "100000"], tmp_path / "cache") as process:
        survival.wait_for_metrics(run, process)
        process.send_signal(signal.SIGINT)
        assert process.wait(survival.LIMIT) == 130
    code, said = survival.finish(["train", "--resume", str(run)], tmp_path / "cache")
    assert code == 0
    assert "gymnasium:CartPole-v1 cannot be saved: episodes under way begin anew" in said
    assert rlref.load(run).summary["status"] == "finished"


def test_all_environments_of_all_seeds_are_one_call():
    env, calls = GymnasiumEnv("CartPole-v1"), []
    step = env.host.step
    env.host.step = lambda rows: calls.append(rows.shape) or step(rows)
    rolled(env, 8, 10, 2)
    assert calls == [(2, 8, env.host.asked.size)] * 10


def test_an_episode_that_cannot_go_on_is_cut_and_another_begun():
    env = GymnasiumEnv("CartPole-v1")
    obs, state = env.reset(jax.random.key(0))
    obs, state, *_ = env.step(jax.random.key(1), state, 0)
    env.host.waiting.clear()
    fresh, after, reward, terminated, truncated, info = env.step(jax.random.key(2), state, 0)
    assert (reward, terminated, truncated, after.time) == (0, False, True, 0)
    assert np.array_equal(info["final_observation"], obs)
    assert not np.array_equal(fresh, obs)
    assert not env.can_be_saved


class Breaks(gymnasium.Env):
    """Raises at its fortieth step."""

    observation_space = gymnasium.spaces.Dict(
        {"a": gymnasium.spaces.Box(-1, 1, (2,)), "b": gymnasium.spaces.Discrete(3)}
    )
    action_space = gymnasium.spaces.Discrete(2, start=5)
    steps = 0

    def shown(self):
        return {"a": np.zeros(2, np.float32), "b": 2}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.shown(), {}

    def step(self, action):
        assert action in (5, 6)
        self.steps += 1
        if self.steps == 40:
            raise KeyError("no such joint")
        return self.shown(), 1.0, False, False, {}


def breaks():
    return Breaks()


def test_an_error_of_a_users_environment_is_one_line_with_its_name():
    config = SMALL["ppo"].replace(env_id="test_suites:breaks")
    with pytest.raises(
        UsageError, match=r"test_suites:breaks: KeyError: 'no such joint' \(test_suites.py, line \d+\)$"
    ):
        rlref.train("ppo", config, num_seeds=1)


@pytest.mark.slow
def test_it_is_said_wherever_such_an_environment_is_played():
    env, params = make_env("test_suites:breaks")
    with pytest.raises(
        UsageError, match=r"test_suites:breaks: KeyError: 'no such joint' \(test_suites.py, line \d+\)$"
    ):
        random_returns(env, params.replace(max_steps_in_episode=60), episodes=2)
    (finding,) = inspect("test_suites:breaks", episodes=2).findings
    assert finding.check == "raises"
    assert finding.title.startswith("test_suites:breaks: KeyError: 'no such joint' (test_suites.py, line ")
    _, (_, _, reward, *_) = rolled(make_env("test_suites:breaks")[0], 1, 60, 1)
    assert np.isnan(reward[0, -1]).all()  # whoever does not ask


class Broad(gymnasium.Env):
    """What a batch of it shows is more than jax copies at once."""

    observation_space = gymnasium.spaces.Box(0, 1, (5_000,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(5_000, np.float32), {}

    def step(self, action):
        return np.zeros(5_000, np.float32), 0.0, False, False, {}


@pytest.mark.slow
def test_large_observations_do_not_hang_where_each_core_has_a_device():
    folder = str(Path(__file__).parent)
    code = (
        f"import sys, gymnasium, rlref.ppo\nsys.path.append({str(Path(__file__).parents[1])!r})\nimport test_suites\n"
        "gymnasium.register('Broad-v0', entry_point=test_suites.Broad)\n"
        "config = rlref.ppo.Config('gymnasium:Broad-v0', 128, num_envs=16, num_steps=4, hidden_sizes=(2,))\n"
        "rlref.train('ppo', config, num_seeds=4, run_dir=None, sinks=())\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=folder, env=child_environment(), check=True, timeout=100)


class Picky(gymnasium.Env):
    """Takes actions of float64 that it may change, seeds as NumPy's old generator does, and pays an array."""

    observation_space = gymnasium.spaces.Box(0, 255, (2,), np.uint8)
    action_space = gymnasium.spaces.Box(-0.1, 0.1, (2,), np.float64)
    shown: Any = np.zeros(2, np.uint8)

    def reset(self, *, seed=None, options=None):
        np.random.RandomState(seed)
        return self.shown, {}

    def step(self, action):
        assert self.action_space.contains(action)
        action *= 2
        return self.shown, np.array([1.0]), False, False, {"cost": 1.0} if action[0] > 0 else {}


class Wide(Picky):
    shown = np.zeros((2, 1), np.uint8)


class Fractions(Picky):
    shown = np.array([0.5, 0.0], np.float32)


class OfGym(Picky):
    def step(self, action):
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, terminated, info


def picky():
    return Picky()


def of_gym():
    return OfGym()


def wide():
    return Wide()


def fractions():
    return Fractions()


def test_an_environment_gets_what_its_spaces_say():
    env, params = make_env("test_suites:picky")
    assert env.metrics == ("cost",)
    _, state = env.reset(jax.random.key(0), params)
    _, state, reward, *_ = env.step(jax.random.key(0), state, jnp.full(2, 0.1), params)
    assert (env.failure, reward, state.totals.running["cost"]) == (None, 1, 1)
    _, state, *_ = env.step(jax.random.key(0), state, jnp.full(2, -0.1), params)
    assert (env.failure, state.totals.running["cost"]) == (None, 1)  # a step that says nothing adds nothing


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wide", r"an observation is \(2, 1\), and its space says \(2,\)$"),
        ("fractions", "an observation of float32 has numbers that its space's uint8 has not$"),
    ],
)
def test_an_observation_that_its_space_does_not_have_is_refused(name, message):
    with pytest.raises(UsageError, match=f"test_suites:{name} cannot be made here: ValueError: {message}"):
        make_env(f"test_suites:{name}")


def test_what_fails_in_its_first_steps_says_so_and_where():
    said = r"test_suites:of_gym fails in step 1: TypeError: step gives 4 values; gymnasium's gives .* \(gymnasium.py, "
    with pytest.raises(UsageError, match=said):
        make_env("test_suites:of_gym")


def test_a_name_in_place_of_an_environment_is_refused():
    with pytest.raises(UsageError, match="env is the name 'CartPole-v1'; give it as the setting env_id"):
        rlref.train(env="CartPole-v1")


def test_an_environment_that_its_own_module_registers_is_named_with_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("registers.py").write_text(
        "import gymnasium\nimport test_suites\n"
        "gymnasium.register('Picky-v3', entry_point=test_suites.Picky, max_episode_steps=7)\n"
    )
    env, params = make_env("gymnasium:registers:Picky-v3")  # it takes no render_mode
    assert (env.id, params.max_steps_in_episode) == ("gymnasium:Picky-v3", 7)
    with pytest.raises(UsageError, match="gymnasium:nothing:Picky-v3: nothing cannot be imported"):
        make_env("gymnasium:nothing:Picky-v3")


class Bonus(gymnasium.Wrapper, gymnasium.utils.RecordConstructorArgs):
    """Pays 5 more at the end, however it comes."""

    def __init__(self, env):
        gymnasium.utils.RecordConstructorArgs.__init__(self)
        super().__init__(env)

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward + 5 * (terminated or truncated), terminated, truncated, info


def test_wrappers_of_an_object_see_its_limit():
    env, params = resolved("", Bonus(gymnasium.make("CartPole-v1", max_episode_steps=4)))
    _, state = env.reset(jax.random.key(0), params)
    rewards = []
    for _ in range(4):
        _, state, reward, terminated, truncated, _ = env.step(jax.random.key(0), state, jnp.int32(0), params)
        rewards.append(float(reward))
    assert (rewards, bool(terminated), bool(truncated)) == ([1, 1, 1, 6], False, True)
    assert not env.can_be_saved
    with pytest.raises(UsageError, match="as it is: register it, or give package"):
        resolved("", gymnasium.make_vec("CartPole-v1"))


def test_parts_of_an_observation_are_one_row():
    env, params = make_env("test_suites:breaks")
    obs, _ = env.reset(jax.random.key(0), params)
    assert obs.tolist() == [0, 0, 0, 0, 1]
    flat = base.Flat({"state": jnp.zeros((2, 3)), "mask": jnp.ones(4, bool)})
    assert flat.parts == {"mask": (4,), "state": (2, 3)}
    assert flat({"state": jnp.zeros((2, 3)), "mask": jnp.ones(4, bool)}).tolist() == [1] * 4 + [0] * 6


class Levers(gymnasium.Env):
    """Two levers, of 2 and 3 places; what may not be pulled raises. The mask alternates, and is beside the clock."""

    observation_space = gymnasium.spaces.Dict(
        {"action_mask": gymnasium.spaces.Box(0, 1, (5,), np.int8), "time": gymnasium.spaces.Box(0, 9, (1,))}
    )
    action_space = gymnasium.spaces.MultiDiscrete([2, 3], start=[1, 7])
    masks = np.array([[1, 0, 1, 1, 0], [0, 1, 0, 0, 1]], np.int8)
    time = 0

    def shown(self):
        return {"action_mask": self.masks[self.time % 2], "time": np.full(1, self.time, np.float32)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.shown(), {}

    def step(self, action):
        first, second = action - np.array([1, 7])
        mask = self.masks[self.time % 2]
        if not (mask[first] and mask[2 + second]):
            raise ValueError(f"{action} is not allowed")
        self.time += 1
        return self.shown(), 1.0, self.time == 9, False, {}


def levers():
    return Levers()


class Switches(Levers):
    """Four switches, and a mask for other actions."""

    action_space = gymnasium.spaces.MultiBinary(4)


def switches():
    return Switches()


def test_a_mask_beside_what_gymnasium_shows_is_kept_to_by_several_choices():
    env, params = make_env("test_suites:levers")
    space = env.observation_space(params)
    assert (space.action_mask, space.inner.shape, env.action_space(params).nvec) == (5, (1,), (2, 3))
    obs, _ = env.reset(jax.random.key(0), params)
    assert obs.tolist() == [0, 1, 0, 1, 1, 0]
    run = rlref.train("ppo", SMALL["ppo"].replace(env_id="test_suites:levers"), num_seeds=2)
    assert run.metrics["return_mean"][:, -1].tolist() == [9, 9]  # nothing has raised
    with pytest.raises(UsageError, match=r"action_mask of 5 for the action space MultiBinary\(4\)"):
        make_env("test_suites:switches")


class Pictured(gymnasium.Env):
    """One image, or whatever `what` is of, beside a mask of two actions."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, what=None, mask=(1, 0), seen=None):
        self.what = gymnasium.spaces.Box(0, 255, (10, 10, 3), np.uint8) if what is None else what
        self.observation_space = gymnasium.spaces.Dict(
            {"action_mask": gymnasium.spaces.MultiBinary(2), "what": self.what}
        )
        seen = np.full((10, 10, 3), 200, np.uint8) if seen is None else seen
        self.given = {"what": seen} | ({} if mask is None else {"action_mask": np.array(mask, np.int8)})

    def reset(self, *, seed=None, options=None):
        return self.given, {}

    def step(self, action):
        return self.given, 0.0, False, False, {}


def test_one_thing_beside_a_mask_is_as_it_would_be_alone():
    env = GymnasiumEnv("pictured", Pictured)
    space = env.observation_space(env.default_params)
    obs, _ = env.reset(jax.random.key(0), env.default_params)
    x = ppo.features(obs[None], space)
    assert (x.shape, float(x.max())) == ((1, 10, 10, 3), pytest.approx(200 / 255))
    assert ppo.without_mask(obs[None], space)[2].tolist() == [[True, False]]
    rooms = GymnasiumEnv("rooms", lambda: Pictured(gymnasium.spaces.Discrete(5, start=3), seen=4))
    obs, _ = rooms.reset(jax.random.key(0), rooms.default_params)
    assert ppo.features(obs[None], rooms.observation_space(rooms.default_params)).tolist() == [[0, 1, 0, 0, 0]]


@pytest.mark.parametrize(
    ("mask", "said"), [((1, 0, 1), "its space says 2 numbers"), (None, "lacks action_mask, which its space has")]
)
def test_a_mask_that_is_not_as_its_space_says_is_told_before_anything_is_compiled(mask, said):
    with pytest.raises(ValueError, match=said):
        GymnasiumEnv("pictured", lambda: Pictured(mask=mask))


def test_an_environment_of_gymnasium_is_adapted_where_it_can_be_made_again():
    env, params = resolved("", gymnasium.make("CartPole-v1"))
    assert (env.name, params.max_steps_in_episode) == ("gymnasium:CartPole-v1", 500)
    with pytest.raises(UsageError, match="env is a Breaks of gymnasium as it is: register it, or give package"):
        resolved("", Breaks())


def test_what_a_suite_prints_is_not_among_results(monkeypatch, capsys):
    monkeypatch.setattr(suites, "is_installed", lambda suite: True)
    monkeypatch.setattr(importlib, "import_module", lambda name: print("hello"))
    suites.module_of("brax")
    suites.made(types.SimpleNamespace(make=print), "brax:ant", "made")
    assert capsys.readouterr() == ("", "hello\nmade\n")


def test_a_raw_environment_of_another_suite_is_refused_with_its_id():
    raw = type("Ant", (), {"__module__": "brax.envs.ant"})()
    with pytest.raises(UsageError, match="env is a Ant of brax as it is: env_id='brax:NAME'"):
        resolved("", raw)


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("pgx:breakout", "pgx is not installed: pip install 'pgx>=2.6'"),
        ("gymnasium:CartPole-v9", "gymnasium has no environment 'CartPole-v9'. Did you mean 'CartPole-v1'?"),
        ("gymnax:CartPole", "there is no environment 'CartPole'. Did you mean 'CartPole-v1'?"),
    ],
)
def test_a_wrong_id_says_what_would_be_right(env_id, message, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pgx" else types.SimpleNamespace())
    with pytest.raises(UsageError, match=message.replace("?", r"\?")):
        make_env(env_id)


def test_a_suite_that_cannot_be_imported_is_one_line(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: types.SimpleNamespace())
    monkeypatch.setitem(sys.modules, "navix", None)
    monkeypatch.delitem(sys.modules, "rlref.envs.suites.navix", raising=False)
    with pytest.raises(UsageError, match=r"navix cannot be imported: .* pip install 'navix>=0.7.4,<4'"):
        make_env("navix:Navix-Empty-8x8-v0")


def test_each_suite_is_an_extra_of_its_name():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert {name: extras[name] for name in suites.SUITES} == {n: [x.requirement] for n, x in suites.SUITES.items()}


def test_gymnax_has_a_prefix_as_well():
    assert type(make_env("gymnax:CartPole-v1")[0]) is type(make_env("CartPole-v1")[0])


def test_environments_are_listed_and_searched():
    rows = listing.list_envs("gymnasium", ["cartpole", "pendulum-"], made=12)
    shown = {row.env_id: (row.observations, row.actions, row.time_limit) for row in rows}
    assert shown["gymnasium:CartPole-v1"] == ("Box 4 float32", "Discrete 2", 500)
    assert shown["gymnasium:Pendulum-v1"] == ("Box 3 float32", "Box 1 float32", 200)
    assert listing.list_envs("gymnasium", made=3)[0].observations == ""
    with pytest.raises(UsageError, match="no environment of gymnasium has quux in its id"):
        listing.list_envs("gymnasium", ["quux"])


def test_nothing_of_a_suite_is_imported_before_it_is_asked_for():
    code = "import sys, rlref.envs; rlref.envs.make_env('Catch-bsuite'); "
    code += (
        f"assert not {{*{[x.package for x in suites.SUITES.values() if x.package != 'gymnasium']}}} & {{*sys.modules}}"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
