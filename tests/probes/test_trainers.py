"""Trainers on the gymnasium form of the probes."""

import json
import runpy
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from probes import check, trainers
from probes.ladder import LADDER
from probes.registration import gym_id

HERE = Path(__file__).parent


def main(*arguments):
    return trainers.main([*arguments, "--num-seeds", "2"])


@pytest.fixture(autouse=True)
def _beside(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(HERE), *sys.path])
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)  # other tests have one, too
    yield
    sys.modules.pop("mine", None)


def case_of(env_id):
    return gymnasium.make(env_id).unwrapped.case


def answering(values):
    """A trainer that knows the truth: its value is `values(case, kind of row)` of each state."""

    def train(env_id, seed):
        case = case_of(env_id)
        index = {obs.tobytes(): i for i, obs in enumerate(case.params.obs)}
        policy = np.ones((len(index), case.params.reward.shape[1])) if case.truth.policy is None else case.truth.policy
        value = values(case)
        of = None if value is None else lambda obs: value[index[obs.tobytes()]]
        return lambda obs: policy[index[obs.tobytes()]], of

    return train


@pytest.mark.slow
def test_the_numpy_agent_passes(capsys):
    only = ["--only", "discount", "--only", "truncation_pair", "--only", "context_bandit"]
    assert main("--gymnasium", "numpy_agent:train", *only) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[-1].startswith(
        "RIGHT: numpy_agent:train answers every check right, each rung on 2 of 2"
    )
    assert "training on rlref/Discount-variant1-v0, seed 1" in said.err


def test_a_planted_bug_is_named(capsys, tmp_path):
    source = (HERE / "numpy_agent.py").read_text()
    bug = "0.0 if terminated or truncated else q.setdefault"
    (tmp_path / "mine.py").write_text(source.replace("0.0 if terminated else q.setdefault", bug))
    only = ["--only", "discount", "--only", "truncation_pair"]
    assert main("--gymnasium", "./mine.py:train", "--json", *only) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["kind"], report["verdict"]) == ("dqn", "WRONG")
    assert [rung["status"] for rung in report["rungs"]] == ["passed", "failed"]
    assert "truncation is treated as termination" in report["says"]


@pytest.mark.slow
def test_the_numpy_agent_passes_the_whole_ladder():
    from numpy_agent import train

    report = trainers.run(train, "numpy_agent", num_seeds=2)
    assert report.ok
    plain = [name for name, probe in LADDER.items() if "dqn" in probe.kinds and trainers.is_plain(probe)]
    assert [rung.probe.name for rung in report.rungs] == plain
    assert not [rung for rung in report.rungs if isinstance(rung, check.Skipped)]


def test_the_kind_follows_from_the_value():
    def v(case):
        return case.truth.value

    assert trainers.run(answering(v), "mine", only=["discount"]).kind == "ppo"
    report = trainers.run(answering(lambda case: case.params.reward), "mine", only=["context_bandit"])
    assert (report.kind, report.ok) == ("dqn", True)
    report = trainers.run(answering(lambda case: None), "mine", only=["context_bandit"])
    assert (report.kind, report.ok) == ("cem", True)
    assert report.rungs[0].cases[0].params.obs.shape == (4, 2)  # the pair, with its actions swapped


def test_what_a_probe_is_about_is_asked_of_trainers_that_take_settings():
    report = trainers.run(answering(lambda case: np.zeros(1)), "mine", only=["soft_bandit_1"])
    assert report.rungs[0].why == "it sets ent_coef: train(env_id, seed, settings) can take them"
    given = []

    def train(env_id, seed, settings):
        given.append(settings["ent_coef"])
        return answering(lambda case: np.zeros(1))(env_id, seed)

    assert trainers.run(train, "mine", only=["soft_bandit_1"], num_seeds=2).ok
    assert given == [1.0, 1.0]


def test_a_policy_is_an_action_or_probabilities_or_a_mean():
    case, box = LADDER["context_bandit"].case(0), LADDER["continuous_target"].case(0)
    for given, wanted in ((1, [0, 1]), (np.array([0]), [1, 0]), ([0.3, 0.7], [0.3, 0.7])):
        np.testing.assert_array_equal(trainers.policy_of("mine", case, given), wanted)
    np.testing.assert_array_equal(trainers.policy_of("mine", box, [0.5, -3]), [0.5, -1])


@pytest.mark.parametrize(
    ("source", "arguments", "message"),
    [
        ("", "mine", "takes module:function"),
        ("", "mine:train", "has no function 'train'"),
        ("", "nowhere:train", "there is no module 'nowhere'"),
        ("", "nowhere.py:train", "there is no file nowhere.py"),
        ("x = 1\n1 / 0\n", "mine:train", "mine, line 2: ZeroDivisionError"),
        ("def train(env_id, seed):\n    return 1 / 0\n", "mine:train", "mine:train, line 2: ZeroDivisionError"),
        ("def train(env_id, seed):\n    return lambda obs: 0\n", "mine:train", "must return a pair of functions"),
        ("def train(env_id, seed):\n    return lambda obs: 7, None\n", "mine:train --only bandit", "below 2"),
        ("def train(env_id, seed):\n    return lambda obs: 0, lambda obs: [1, 2, 3]\n", "mine:train --only bandit",
         "V is a number, Q has one per action"),
        ("def train(env_id, seed):\n    return lambda obs: 0, lambda obs: 0\n", "mine:train --only max_not_mean",
         "not for this kind of agent"),
        ("def train(env_id, seed): pass\n", "mine:train --only bandits", "Did you mean 'bandit'"),
    ],
)  # fmt: skip
def test_wrong_use_is_one_line_and_exits_with_2(source, arguments, message, capsys, tmp_path):
    (tmp_path / "mine.py").write_text(source)
    assert main("--gymnasium", *arguments.split(), "--json") == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_python_m_probes_takes_the_option(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["probes", "--gymnasium", "nowhere:train"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_module("probes", run_name="__main__")
    assert stop.value.code == 2
    assert "no module 'nowhere'" in capsys.readouterr().err


def test_variants_have_names_of_their_own():
    assert gym_id("truncation_pair") == "rlref/TruncationPair-v0"
    assert gym_id("truncation_pair", 3) == "rlref/TruncationPair-variant3-v0"
    assert gym_id("bandit", 3, "cem") == "rlref/Bandit-variant3-mirrored-v0"
