import json
from pathlib import Path

import counting_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from gymnax.environments import environment, spaces
from rich.console import Console
from toy_envs import Reach, Still

from rlref.cli import main
from rlref.cli.inspect import print_statistics
from rlref.errors import UsageError
from rlref.inspection import inspect as inspecting
from rlref.inspection import pictures, random_policy
from rlref.inspection.catalogue import CHECKS
from rlref.inspection.inspect import inspect

HERE = Path(__file__).parents[1]


@struct.dataclass
class State(environment.EnvState):
    x: jax.Array


class Right(environment.Environment[State, environment.EnvParams]):
    """A walk from a random place in [-.7, .7], over beyond +-1 or after 20 steps; the reward is the place."""

    @property
    def default_params(self):
        return environment.EnvParams(max_steps_in_episode=20)

    def reset_env(self, key, params):
        state = State(jnp.int32(0), jax.random.uniform(key, minval=-0.7, maxval=0.7))
        return self.show(state), state

    def step_env(self, key, state, action, params):
        state = State(state.time + 1, state.x + 0.3 * (action - 0.5))
        return self.show(state), state, state.x, jnp.abs(state.x) > 1, {}

    def show(self, state):
        return jnp.stack([state.x, state.time / 10.0])

    def observation_space(self, params):
        return spaces.Box(-2.0, 2.0, (2,))

    def action_space(self, params):
        return spaces.Discrete(2)


class Stepped(Right):
    """Right, but for what `change` makes of (observation, state, reward, terminated, truncated, info)."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def step(self, key, state, action, params=None):
        return self.change(*super().step(key, state, action, params))


class Changed(Right):
    """Right, but for what `change` makes of (observation, state, reward, terminated, info) of `step_env`."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def step_env(self, key, state, action, params):
        return self.change(*super().step_env(key, state, action, params))


def having(**members):
    """Right, with other methods."""
    return type("Having", (Right,), members)()


def fails(*_):
    raise ValueError("nowhere to go")


def look(env, **options):
    return inspect("toy", env=env, **{"episodes": 8} | options)


def faults(result):
    return [(f.severity, f.check) for f in result.findings if f.severity != "INFO"]


def title(result, check):
    (text,) = [f.title for f in result.findings if f.check == check]
    return text


@pytest.fixture(scope="module")
def right():
    return look(Right(), episodes=40)


def test_nothing_is_wrong_with_a_right_environment(right):
    assert faults(right) == []


def test_every_check_has_a_severity_and_a_meaning():
    assert {c.severity for c in CHECKS.values()} <= {"ERROR", "WARN", "INFO"}
    assert all(c.meaning.endswith(".") for c in CHECKS.values())


# Interface: what cannot be run.


class Leaks(Right):
    def step_env(self, key, state, action, params):
        self.last = state.x
        return super().step_env(key, state, action, params)


class Once(Right):
    """Can be traced, but not again."""

    def __init__(self):
        super().__init__()
        self.tracings = 0

    def step_env(self, *args):
        self.tracings += 1
        if self.tracings > 2:
            raise RuntimeError("once is enough")
        return super().step_env(*args)


class Counts(Right):
    count = 0

    def step_env(self, key, state, action, params):
        self.count += 1
        obs, state, reward, terminated, info = super().step_env(key, state, action, params)
        return obs, state, reward + self.count, terminated, info


class Unkeyed(Right):
    def reset_env(self, key, params):
        state = State(jnp.int32(0), jnp.float32(np.random.default_rng().uniform(-0.5, 0.5)))
        return self.show(state), state


class Branches(Right):
    def step_env(self, key, state, action, params):
        if state.x > 0:
            return super().step_env(key, state, 1 - action, params)
        return super().step_env(key, state, action, params)


class Old(Right):
    def step(self, key, state, action, params=None):
        obs, state, reward, terminated, truncated, _ = super().step(key, state, action, params)
        return obs, state, reward, terminated | truncated, {"discount": 1.0}


class Callback(Right):
    def step_env(self, key, state, action, params):
        obs, state, reward, terminated, info = super().step_env(key, state, action, params)
        reward = jax.pure_callback(np.asarray, jax.ShapeDtypeStruct((), np.float32), reward)
        return obs, state, reward, terminated, info


def other(o, s, r, t, i):
    return o, s.replace(time=s.time * 1.0), r, t, i


def wider(o, s, r, t, i):
    return jnp.append(o, 1.0), s, r, t, i


UNUSABLE = {
    "reset_raises": (lambda: having(reset_env=fails), "raises", "reset raises ValueError: nowhere to go (test_ins"),
    "step_raises": (lambda: having(step_env=fails), "raises", "step raises ValueError: nowhere to go"),
    "default_params_raises": (lambda: having(default_params=property(fails)), "raises", "default_params raises Value"),
    "observation_space_raises": (lambda: having(observation_space=fails), "raises", "observation_space raises Value"),
    "action_space_raises": (lambda: having(action_space=fails), "raises", "action_space raises ValueError: nowhere"),
    "bounds_of_another_shape": (
        lambda: having(observation_space=lambda *_: spaces.Box(np.zeros(3), np.ones(3), (2,))),
        "raises",
        "observation_space raises ValueError",
    ),
    "no_pair": (lambda: having(reset=lambda self, key, params: jnp.zeros(2)), "raises", "not (observation, state)"),
    "lacks": (lambda: 3, "incomplete", "it lacks reset, step, default_params, action_space, observation_space"),
    "space": (lambda: having(action_space=lambda *_: "left"), "space_kind", "action_space is a str"),
    "if": (Branches, "not_jittable", "step cannot be traced: TracerBoolConversionError"),
    "numpy": (lambda: Changed(lambda o, s, r, t, i: (o, s, np.float32(r), t, i)), "not_jittable", "TracerArrayConv"),
    "item": (lambda: Changed(lambda o, s, r, t, i: (o, s, r.item(), t, i)), "not_jittable", "Concretization"),
    "counter": (Counts, "impure", "step does something else the second time"),
    "once": (Once, "impure", "step does something else the second time"),
    "np.random": (Unkeyed, "impure", "reset does something else"),
    "leak": (Leaks, "impure", "step stores traced values in self.last"),
    "three_values": (lambda: Stepped(lambda *a: a[:3]), "step_values", "step returns 3 values"),
    "state_dtype": (
        lambda: Changed(other),
        "reset_and_step_differ",
        "state of reset and of step: .time int32[] and fl",
    ),
    "state_kind": (
        lambda: Changed(lambda o, s, r, t, i: (o, s.x, r, t, i)),
        "reset_and_step_differ",
        "the state of reset and of step",
    ),
    "observation": (
        lambda: Changed(wider),
        "reset_and_step_differ",
        "observation of reset and of step: float32[2] and",
    ),
    "vmap": (Callback, "not_vmappable", "under vmap"),
    "two_rewards": (
        lambda: Stepped(lambda o, s, r, *rest: (o, s, jnp.stack([r, r]), *rest)),
        "reward_type",
        "the reward is float32[2]",
    ),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_what_cannot_be_run_gives_one_finding_that_says_why(name):
    make, check, words = UNUSABLE[name]
    result = look(make())
    assert faults(result) == [("ERROR", check)]
    assert words in title(result, check)
    assert result.samples is None


# Interface: what can be run all the same.


class Lingers(Right):
    """Does not reset at its time limit, which stays passed."""

    def step(self, key, state, action, params=None):
        obs, state, reward, _, info = self.step_env(key, state, action, params)
        truncated = self.is_truncated(state, params)
        return obs, state, reward, jnp.bool(False), truncated, info | {"final_observation": obs}


class Wanders(Lingers):
    """Does not reset at an end either, but may come back from it; and has no `step_env` to compare with."""

    def step(self, key, state, action, params=None):
        x = state.x + 0.3 * (action - 0.5)
        state = State(state.time + 1, jnp.where(jnp.abs(x) > 2, 0.0, x))
        obs = self.show(state) * jnp.array([1, 0.1])
        over = jnp.abs(state.x) > 1
        return obs, state, x, over, jnp.bool(False), {"final_observation": obs}

    step_env = None


class ShowsReset(Right):
    """Its final observation is the next episode's first."""

    def step(self, key, state, action, params=None):
        obs, *rest, info = super().step(key, state, action, params)
        return obs, *rest, info | {"final_observation": obs}


class ShowsFixedReset(ShowsReset):
    """So that only what `step_env` gives tells that it is wrong."""

    def reset_env(self, key, params):
        state = State(jnp.int32(0), jnp.float32(0.1))
        return self.show(state), state


class ShowsResetAlone(ShowsReset):
    """So that only the comparison with the next observation tells, as its keys are not gymnax's."""

    def step(self, key, state, action, params=None):
        return super().step(jax.random.fold_in(key, 1), state, action, params)

    def step_env(self, key, state, action, params):
        return super().step_env(key, state, jax.random.randint(key, (), 0, 2), params)


def boxed(*arguments):
    return having(observation_space=lambda *_: spaces.Box(*arguments))


def nan_at(step, where):
    def change(o, s, r, t, i):
        bad = s.time == step
        return jnp.where(bad & (where == "obs"), jnp.nan, o), s, jnp.where(bad & (where == "reward"), jnp.nan, r), t, i

    return Changed(change)


def final(change):
    return Stepped(lambda *a: (*a[:-1], a[-1] | {"final_observation": change(a[-1]["final_observation"])}))


DECLARED = {
    "old": (Old, "ERROR", "old_interface", "gymnax 0.0.x"),
    "no_final": (lambda: Stepped(lambda *a: (*a[:-1], {})), "ERROR", "no_final_observation", "lacks"),
    "info": (lambda: Stepped(lambda *a: (*a[:-1], ())), "ERROR", "no_final_observation", "lacks"),
    "final_dtype": (lambda: final(lambda x: x.astype(jnp.float16)), "ERROR", "final_observation_type", "float16[2]"),
    "ending_dtype": (
        lambda: Stepped(lambda o, s, r, t, *rest: (o, s, r, t * 1.0, *rest)),
        "ERROR",
        "ending_type",
        "terminated is float32[], not bool[]",
    ),
    "ending_shape": (
        lambda: Stepped(lambda *a: (*a[:4], a[4][None], a[5])),
        "ERROR",
        "ending_type",
        "truncated is bool[1], not bool[]",
    ),
    "reward_shape": (
        lambda: Changed(lambda o, s, r, t, i: (o, s, r[None], t, i)),
        "ERROR",
        "reward_type",
        "the reward is float32[1], not float32[]",
    ),
    "observation_shape": (
        lambda: boxed(-2, 2, (3,)),
        "ERROR",
        "observation_type",
        "is float32[2], observation_space fl",
    ),
    "observation_dtype": (
        lambda: boxed(-2, 2, (2,), jnp.int32),
        "WARN",
        "observation_dtype",
        "is float32, observation_s",
    ),
    "tuple": (
        lambda: having(observation_space=lambda *_: spaces.Tuple([spaces.Discrete(2)])),
        "ERROR",
        "space_kind",
        "observation_space is a Tuple",
    ),
}


@pytest.mark.parametrize("name", DECLARED)
def test_a_fault_of_types_is_found_before_anything_is_run(name, monkeypatch):
    monkeypatch.setattr(inspecting, "_random_policy", lambda *_: None)
    make, severity, check, words = DECLARED[name]
    result = look(make())
    assert faults(result) == [(severity, check)]
    assert words in title(result, check)


RUNNABLE = {
    "final_nan": (lambda: final(lambda x: x.at[1].set(jnp.nan)), "ERROR", "nonfinite", "1 numbers of observations"),
    "final_is_reset": (ShowsReset, "ERROR", "final_observation_wrong", "it is not what step_env gives"),
    "final_is_fixed_reset": (ShowsFixedReset, "ERROR", "final_observation_wrong", "it is not what step_env gives"),
    "final_is_reset_alone": (ShowsResetAlone, "ERROR", "final_observation_wrong", "the next episode's first"),
    "both": (
        lambda: Stepped(lambda o, s, r, t, u, i: (o, s, r, t | u, t | u, i)),
        "WARN",
        "always_both",
        "both terminated and truncated",
    ),
    "limits_end": (
        lambda: Stepped(lambda o, s, r, t, u, i: (o, s, r, t | u, u, i)),
        "WARN",
        "always_both",
        "every end at the time limit is terminated as well",
    ),
    "bounds": (lambda: boxed(-2, 1.5, (2,)), "WARN", "out_of_bounds", "1 of 2 observation dimensions (1) out of"),
    "nan": (lambda: nan_at(3, "obs"), "ERROR", "nonfinite", "numbers of observations are NaN or infinite"),
    "nan_reward": (lambda: nan_at(3, "reward"), "ERROR", "nonfinite", "rewards are NaN or infinite"),
    "lingers": (Lingers, "ERROR", "no_auto_reset", "every step after the first end ends too"),
    "wanders": (Wanders, "ERROR", "no_auto_reset", "goes on from there"),
    "large": (
        lambda: having(
            show=lambda self, s: jnp.stack([s.x, s.time]), observation_space=lambda *_: spaces.Box(-99, 99, (2,))
        ),
        "WARN",
        "observation_scale",
        "1 of 2 observation dimensions (1) large",
    ),
    "tiny": (
        lambda: having(show=lambda self, s: jnp.stack([s.x, s.time / 1000.0])),
        "WARN",
        "observation_scale",
        "1 of 2 observation dimensions (1) tiny",
    ),
    "outliers": (
        lambda: Changed(lambda o, s, r, t, i: (o, s, jnp.where(t, 1000 * r, jnp.sign(r)), t, i)),
        "WARN",
        "reward_outliers",
        "far from the usual",
    ),
    "no_signal": (
        lambda: Changed(lambda o, s, r, t, i: (o, s, jnp.float32(t & (s.time < 0)), t, i)),
        "WARN",
        "no_signal",
        "episodes return 0",
    ),
}


@pytest.mark.parametrize("name", RUNNABLE)
def test_a_fault_is_found_and_a_random_policy_runs_all_the_same(name):
    make, severity, check, words = RUNNABLE[name]
    result = look(make(), episodes=16)
    # Rewards of 1000 are also large targets.
    assert [x for x in faults(result) if x != ("WARN", "value_targets")] == [(severity, check)]
    assert words in title(result, check)
    assert result.statistics["steps"] > 0


def test_a_random_policy_runs_whatever_the_types():
    class Odd(Old):
        def step(self, key, state, action, params=None):
            obs, state, reward, done, info = super().step(key, state, action, params)
            return obs, state, reward[None].astype(jnp.int32), done.astype(jnp.int32), info

        def observation_space(self, params):
            return spaces.Dict({"x": spaces.Discrete(3)})

    result = look(Odd())
    checks = {"old_interface", "reward_type", "ending_type", "space_kind"}
    assert {check for severity, check in faults(result) if severity == "ERROR"} == checks
    assert result.statistics["length"]["mean"] > 1
    assert result.statistics["terminated"] == 1


def test_resets_without_a_key_rewards_of_whole_numbers_and_constants_are_worth_knowing():
    class Plain(Right):
        def reset_env(self, key, params):
            state = State(jnp.int32(0), jnp.float32(0.1))
            return self.show(state), state

        def show(self, state):
            return jnp.stack([state.x, 0.5])

        def step_env(self, key, state, action, params):
            obs, state, _, terminated, info = super().step_env(key, state, action, params)
            return obs, state, action, terminated, info

    result = look(Plain())
    assert faults(result) == []
    assert title(result, "reset_ignores_key") == "64 resets with different keys are all the same"
    assert title(result, "reward_integer") == "the reward is int32[]"
    assert title(result, "constant_observation") == "1 of 2 observation dimensions (1) never change"


@pytest.fixture(scope="module")
def still():
    """A picture for ever."""
    return look(Still(spaces.Box(0.0, 1.0, (5, 5, 2)), spaces.Box(-np.inf, np.inf, (2,))), gamma=1.0)


def test_what_never_ends_and_never_changes_is_said(still):
    expected = {"never_ends", "constant_observation", "undiscounted", "unbounded_actions", "reset_ignores_key"}
    assert {f.check for f in still.findings} == expected
    assert still.statistics["return"] == {}


def test_episodes_that_the_cap_cuts_are_counted(monkeypatch):
    # 128 steps of each of 100 environments are one chunk, of which there is always one.
    monkeypatch.setattr(inspecting, "MAX_STEPS", 1)
    env_params = counting_env.Params(max_steps_in_episode=50)
    result = look(counting_env.Counting(), env_params=env_params, episodes=400)
    assert title(result, "cut") == "200 of 400 episodes ended within 12,800 steps"


def test_that_only_the_shortest_episodes_ended_is_said(monkeypatch):
    monkeypatch.setattr(inspecting, "MAX_STEPS", 1)
    monkeypatch.setattr(random_policy, "CHUNK", 3)
    result = look(Right(), episodes=400)
    assert title(result, "cut").endswith("only those of the fastest to end, so that lengths and returns are biased")
    assert result.statistics["length"]["max"] <= 3


# What a random policy meets.


def test_as_many_episodes_of_each_environment_count():
    terminated = np.zeros((6, 3), bool)
    terminated[[0, 1, 2, 3], 0] = terminated[[2, 5], 1] = terminated[[1, 3, 4], 2] = True
    steps = {"terminated": terminated, "truncated": np.zeros((6, 3), bool), "reward": np.arange(18.0).reshape(6, 3)}
    none = np.zeros(0)
    rollout = random_policy.Rollout(none, none, none, none, 0, none, 0, steps, none)
    assert rollout.episodes(1) == [(0, 0, 1), (1, 0, 3), (2, 0, 2)]
    assert rollout.episodes(3) == [(0, 0, 1), (1, 0, 3), (2, 0, 2), (0, 1, 2), (1, 3, 6), (2, 2, 4)]
    returns, lengths = rollout.returns_and_lengths([(1, 3, 6), (0, 0, 1)])
    assert (returns.tolist(), lengths.tolist()) == ([10 + 13 + 16, 0], [3, 1])
    terminated[:, 1] = False
    assert rollout.episodes(2) == [(0, 0, 1), (2, 0, 2), (0, 1, 2), (2, 2, 4)]


def test_statistics_are_those_of_what_was_collected(right):
    r, s = right.samples.rollout, right.statistics
    assert len(r.obs) == s["steps"]
    np.testing.assert_allclose(s["observation"]["per_dimension"]["mean"], r.obs.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(s["observation"]["per_dimension"]["std"], r.obs.std(axis=0), rtol=1e-4)
    assert s["observation"]["distinct"] == len(np.unique(r.obs, axis=0))
    assert s["observation"]["max"] == 2.0  # the last observation of episodes of 20 steps, which the reset hides
    assert r.obs.max() == pytest.approx(1.9)
    assert s["episodes"] == len(right.samples.returns) == 40
    ends = r.ended.sum()
    assert s["terminated"] == pytest.approx(r.steps["terminated"].sum() / ends)
    assert s["terminated"] < 1 <= s["terminated"] + s["truncated"]


def test_value_targets_and_their_multiplier():
    # Five steps of reward 2 for action 1.
    result = look(counting_env.Counting(), gamma=0.5, env_params=counting_env.Params(reward=-2.0))
    returns, targets = result.samples.returns, result.samples.targets.reshape(-1, 5)
    rewards = targets - np.append(targets[:, 1:], np.zeros((len(targets), 1)), axis=1) / 2
    np.testing.assert_allclose(rewards.sum(axis=1), returns)
    assert set(rewards.ravel()) == {0.0, -2.0}
    assert result.statistics["value_target"]["reward_multiplier"] == pytest.approx(-3 / targets.min())
    assert title(result, "resets_in_step") == "every episode has 5 steps"


def paying(reward, **fields):
    return look(counting_env.Counting(), env_params=counting_env.Params(reward=reward, **fields))


def test_the_scale_of_value_targets_is_judged():
    for reward, severity, words in ((0.01, "INFO", "tiny"), (1000.0, "WARN", "large")):
        (finding,) = [f for f in paying(reward).findings if f.check == "value_targets"]
        assert finding.severity == severity
        assert finding.title.startswith(words)


def test_a_horizon_much_shorter_than_an_episode_is_worse_where_rewards_are_rare():
    def only_at(time):
        return Changed(lambda o, s, r, t, i: (o, s, jnp.where((time < 0) | (s.time == time), r, 0.0), False, i))

    params = environment.EnvParams(max_steps_in_episode=100)
    for env, severity in ((only_at(-1), "INFO"), (only_at(50), "WARN")):
        (finding,) = [f for f in look(env, env_params=params, gamma=0.8).findings if f.check == "short_horizon"]
        assert (finding.severity, finding.value) == (severity, pytest.approx(5))


def test_rewards_that_few_episodes_see_are_said():
    # From the start above .55 and up, of [-.7, .7]: one episode in nineteen.
    rare = Changed(lambda o, s, r, t, i: (o, s, jnp.where((s.time == 1) & (s.x > 0.7), 1.0, 0.0), t, i))
    result = look(rare, episodes=400)
    assert title(result, "rare_signal").endswith("% of episodes return anything but 0")
    often = Changed(lambda o, s, r, t, i: (o, s, jnp.where((s.time == 1) & (s.x > 0.4), 1.0, 0.0), t, i))
    assert "rare_signal" not in {f.check for f in look(often, episodes=400).findings}  # in one of five


def test_a_horizon_far_beyond_every_episode_is_said(right):
    (finding,) = [f for f in look(Right(), gamma=0.9999).findings if f.check == "long_horizon"]
    assert finding.value == pytest.approx(10_000)
    assert "long_horizon" not in {f.check for f in right.findings}


def test_bytes_of_an_image_are_not_large_and_other_large_numbers_are():
    def image(dtype, shape):
        return having(
            show=lambda self, state: jnp.full(shape, 200 + 20 * state.x).astype(dtype),
            observation_space=lambda self, params: spaces.Box(0, 255, shape, dtype),
        )

    for dtype, shape, large in ((jnp.uint8, (6, 6, 1), False), (jnp.float32, (6, 6, 1), True), (jnp.uint8, (6,), True)):
        checks = {f.check for f in look(image(dtype, shape)).findings}
        assert ("observation_scale" in checks) == large, (dtype, shape)


def test_actions_are_repeated_within_an_episode():
    # Its observation is its last action, and zeros at first.
    explored = look(Reach(), env_params=environment.EnvParams(max_steps_in_episode=11)).samples.explored
    for repeat, changes in ((1, 10), (2, 5), (4, 3), (8, 2)):
        first = explored[repeat].first
        assert first.shape == (11, 2)
        assert (np.diff(first, axis=0) != 0).any(axis=1).sum() == changes
        assert np.abs(first).max() <= 0.5


def test_one_seed_gives_one_result(right):
    again = look(Right(), episodes=40)
    assert again.statistics == right.statistics
    assert again.findings == right.findings
    assert look(Right(), episodes=40, seed=1).statistics != right.statistics


# Pictures and the command.


@pytest.mark.slow
def test_pictures_are_drawn(right, still, tmp_path):
    discrete = look(Still(spaces.Discrete(3), spaces.Discrete(2)))
    for name, result in (("vector", right), ("image", still), ("discrete", discrete)):
        paths = pictures.draw(result, tmp_path / name)
        assert [path.name for path in paths] == ["histograms.png", "episode.png", "action_repeat.png"]
        assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_nothing_is_drawn_of_what_could_not_run(tmp_path):
    assert pictures.draw(look(3), tmp_path / "none") == []
    assert not (tmp_path / "none").exists()


def test_pictures_that_cannot_be_written_are_one_clear_line(right, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"histograms\.png cannot be written"):
        pictures.draw(right, tmp_path / "file")


def make_right():
    return Right()


@pytest.fixture
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(HERE))


@pytest.mark.usefixtures("_here")
def test_the_command_prints_json_alone(capsys):
    arguments = "inspect counting_env:make_env --episodes 8 --env-params reward=10 --json"
    assert main(arguments.split()) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["statistics"]["reward"]["max"] == 10
    assert {f["check"] for f in report["findings"]} == {"resets_in_step", "value_targets"}
    assert report["pictures"][0] == "inspect/counting_env-make_env/histograms.png"
    assert Path(report["pictures"][0]).exists()


@pytest.mark.usefixtures("_here")
def test_the_command_prints_a_table_findings_and_paths(capsys):
    assert main("inspect counting_env:make_env --episodes 8 --out here".split()) == 0
    text = capsys.readouterr().out
    for words in (
        "observations: Box 2 float32",
        "observation 1",
        "value target",
        "8 episodes, 0% terminated, 100% trunc",
    ):
        assert words in text
    assert "INFO   every episode has 5 steps" in text
    assert "drawn to here/episode.png" in text


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("nowhere:make_env", "there is no suite and no Python module 'nowhere'."),
        ("counting_env:not_an_env", "gives int, which is no gymnax environment"),
    ],
)
def test_a_broken_environment_is_one_error_and_exit_code_1(env_id, words, capsys):
    assert main(["inspect", env_id, "--episodes", "8"]) == 1
    text = capsys.readouterr().out
    assert text.count("ERROR") == 1
    assert words in text


def test_an_environment_that_needs_the_network_is_one_error(monkeypatch, capsys):
    import gymnax

    def offline(env_id):
        raise OSError(f"{env_id}\nhas no network")

    monkeypatch.setattr(gymnax, "make", offline)
    assert main(["inspect", "MNISTBandit-bsuite", "--json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["check"], finding["severity"]) == ("cannot_be_made", "ERROR")


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("CartPol-v1", "Did you mean 'CartPole-v1'?"),
        ("CartPole-v1 --episodes 0", "--episodes is 0; it must be at least 1"),
        ("CartPole-v1 --gamma 1.5", "--gamma is 1.5; it must be in [0, 1]"),
        ("CartPole-v1 --gamma nan", "--gamma is nan; it must be in [0, 1]"),
        ("CartPole-v1 --seed -1", "--seed is -1; it must be in [0, 2**32)"),
        ("CartPole-v1 --env-params gravit=1", "no parameter 'gravit'. Did you mean 'gravity'?"),
        ("CartPole-v1 --out file", "--out is file, which is no folder"),
    ],
)
def test_wrong_usage_is_one_clear_line(arguments, message, capsys):
    Path("file").touch()
    assert main(["inspect", *arguments.split()]) == 2
    captured = capsys.readouterr()
    assert message in captured.err.splitlines()[-1]
    assert captured.out == ""


@pytest.mark.parametrize(
    "space",
    [spaces.Discrete(0), spaces.Discrete(3.5), spaces.Box(1.0, -1.0, (2,)), spaces.Box(np.nan, 1.0, (2,))],
    ids=["empty", "broken", "upside down", "nan"],
)
def test_a_space_that_cannot_be_is_one_finding(space):
    result = look(having(action_space=lambda *_: space))
    assert [f.check for f in result.findings] == ["space_wrong"]


def test_an_observation_with_nothing_in_it_is_one_finding():
    result = look(having(observation_space=lambda *_: spaces.Box(-1.0, 1.0, (0,)), show=lambda *_: jnp.zeros(0)))
    assert [f.check for f in result.findings] == ["space_wrong"]


def test_an_environment_that_ends_the_program_is_one_finding():
    def leaves(*_):
        raise SystemExit(3)

    result = look(having(reset_env=leaves))
    assert [f.check for f in result.findings] == ["raises"]
    assert "ends the program" in result.findings[0].title


def test_rewards_that_are_all_nan_are_a_finding_and_no_traceback(tmp_path, capsys):
    result = look(Changed(lambda o, s, r, t, i: (o, s, jnp.float32(jnp.nan), t, i)))
    assert ("ERROR", "nonfinite") in faults(result)
    print_statistics(Console(), result.statistics)
    assert "random policy" in capsys.readouterr().out


def test_a_dimension_that_is_nan_is_not_large_as_well():
    result = look(Changed(lambda o, s, r, t, i: (o.at[1].set(jnp.nan), s, r, t, i)))
    assert "observation_scale" not in [f.check for f in result.findings]
    assert ("ERROR", "nonfinite") in faults(result)
