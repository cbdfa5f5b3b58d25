import os
import shutil
import signal

import counting_env
import numpy as np
import pytest

import rlref
from rlref import ppo
from rlref.errors import Stopped, UsageError
from rlref.reports import reference
from rlref.runs import provenance, training
from rlref.runs.display import Silent
from rlref.search import ablate, baselines, space, sweep, variants

BASE = ppo.Config(total_timesteps=48, num_envs=3, num_steps=4, num_minibatches=1, update_epochs=1, hidden_sizes=(8,))
VARIANTS = {
    "given": {},
    "fast": {"learning_rate": 1e-2},
    "no bonus": {"ent_coef": 0.0, "max_grad_norm": float("inf")},
    "constant": {"anneal_lr": False},
}


def train(folder=None, given=VARIANTS, **options):
    options = {"num_seeds": 2, "seed": 5, "env": counting_env.Counting(), "folder": folder} | options
    return variants.train("ppo", BASE, given, **options)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("variants") / "of-ppo"
    return folder, train(folder)


@pytest.mark.parametrize(
    "search",
    [
        lambda **given: sweep.sweep("ppo", BASE, {"learning_rate": space.Range(1e-4, 1e-2, "log")}, **given),
        lambda **given: ablate.ablate("ppo", BASE, **given),
        lambda **given: baselines.baselines("mine", **given),
    ],
    ids=["sweep", "ablate", "baselines"],
)
def test_searches_train_in_the_environment_that_they_are_given(search, monkeypatch):
    seen, played = {}, []

    class FarEnoughError(Exception):
        pass

    def train(*_, **options):
        seen.update(options)
        raise FarEnoughError

    def random_returns(env, params, *_):
        played.append((env, params))
        return np.zeros((2, 3))

    monkeypatch.setattr(variants, "train", train)
    monkeypatch.setattr(reference, "random_returns", random_returns)
    env, params = counting_env.Counting(), counting_env.Params(reward=7.0)
    with pytest.raises(FarEnoughError):
        search(env=env, env_params=params, memory_gb=1.5, num_seeds=2, seed=3)
    assert seen["env"] is env
    assert (seen["env_params"], seen["memory_gb"], seen["num_seeds"], seen["seed"]) == (params, 1.5, 2, 3)
    assert all(x == (env, params) for x in played)


@pytest.mark.slow
def test_each_variant_is_a_run_with_its_own_settings(kept):
    _, trained = kept
    assert list(trained) == list(VARIANTS)
    for label, changes in VARIANTS.items():
        run = trained[label]
        assert run.seeds == [5, 6]
        assert run.batched == []
        assert {x.shape for x in run.metrics.values()} == {(2, 4)}
        for name in ("learning_rate", "ent_coef", "max_grad_norm", "anneal_lr"):
            assert run.config[name] == pytest.approx(changes.get(name, getattr(BASE, name)))
    rates = {label: run.metrics["learning_rate"][0] for label, run in trained.items()}
    np.testing.assert_allclose(rates["fast"], 1e-2 * np.array([1, 0.75, 0.5, 0.25]))
    np.testing.assert_allclose(rates["constant"], 2.5e-4)


@pytest.mark.slow
def test_what_is_the_same_is_trained_once():
    trained = train(given={"given": {}, "same": {"learning_rate": BASE.learning_rate}})
    assert trained["same"] is trained["given"]
    assert trained["same"].batched == []


@pytest.mark.slow
def test_those_of_one_program_share_a_run(kept):
    folder, trained = kept
    assert sorted(path.name for path in folder.iterdir()) == ["000", "001", "variants.json"]
    assert [trained[label].path.name for label in VARIANTS] == ["000", "000", "000", "001"]
    assert [trained[label].setting for label in VARIANTS] == [0, 1, 2, None]


@pytest.mark.slow
def test_a_variant_is_what_it_would_be_alone(kept):
    alone = rlref.train("ppo", BASE.replace(learning_rate=1e-2), num_seeds=2, seed=5, env=counting_env.Counting())
    for name, x in alone.metrics.items():
        if name != "steps_per_second":
            np.testing.assert_allclose(kept[1]["fast"].metrics[name], x, rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.slow
def test_its_policy_is_that_of_its_setting(kept):
    fast = kept[1]["fast"]
    row = fast.trained.row(6, 1)
    assert fast.trained.job.config_of(row).learning_rate == pytest.approx(1e-2)
    obs = np.zeros(counting_env.Counting().observation_space(None).shape)
    assert fast.policy(6)(obs) == fast.trained.policy(row)(obs)


@pytest.mark.slow
def test_what_is_finished_is_loaded(kept, monkeypatch):
    folder, trained = kept

    def trains_again(*arguments, **options):
        raise AssertionError

    monkeypatch.setattr(training, "train", trains_again)
    monkeypatch.setattr(training, "resume", trains_again)
    for label, run in train(folder).items():
        np.testing.assert_array_equal(run.scores, trained[label].scores)
        assert run.config == trained[label].config


@pytest.mark.parametrize("other", [{"seed": 6}, {"num_seeds": 3}, {"given": {"given": {}}}])
def test_a_folder_of_something_else_is_refused(kept, other):
    with pytest.raises(UsageError, match="was begun with other"):
        train(kept[0], **other)


def test_a_folder_that_is_not_ours_is_refused(tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(UsageError, match="never overwritten"):
        train(tmp_path)


@pytest.mark.slow
def test_stopped_and_gone_on_with(kept, tmp_path):
    class Impatient(Silent):
        def progress(self, done, *_):
            if done == 6:  # the first program's first update; a second signal would not wait
                os.kill(os.getpid(), signal.SIGINT)

    folder = tmp_path / "stopped"
    with pytest.raises(Stopped, match="SIGINT"):
        train(folder, display=Impatient())
    stopped = rlref.load(folder / "000", agent="ppo", env=counting_env.Counting())
    assert stopped.summary["status"] == "interrupted"
    assert stopped.metrics["env_steps"].shape[1] < 4
    again = train(folder)
    for label, run in again.items():
        assert run.summary["status"] == "finished"
        for name, x in kept[1][label].metrics.items():
            if name != "steps_per_second":
                np.testing.assert_array_equal(run.metrics[name], x)


@pytest.mark.slow
@pytest.mark.parametrize("labels", [["given", "constant"], ["given", "fast"]])
def test_a_signal_in_a_programs_last_chunk_stops_what_comes_after(labels, tmp_path):
    class Late(Silent):
        def progress(self, done, total, *_):
            if done == total:
                os.kill(os.getpid(), signal.SIGTERM)

    given = {label: VARIANTS[label] for label in labels}
    with pytest.raises(Stopped, match="SIGTERM"):
        train(tmp_path / "stopped", given, display=Late())
    assert sorted(path.name for path in (tmp_path / "stopped").iterdir()) == ["000", "variants.json"]
    assert list(train(tmp_path / "stopped", given)) == list(given)


@pytest.mark.slow
def test_a_kill_while_a_folder_is_made_leaves_nothing_in_the_way(kept, tmp_path, monkeypatch):
    class KilledError(BaseException):
        pass

    def killed(*_):
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(provenance, "environment", killed)
        patched.setattr(shutil, "rmtree", lambda *_, **__: None)  # nothing is tidied up after a kill
        with pytest.raises(KilledError):
            train(tmp_path / "run")
    again = train(tmp_path / "run")
    np.testing.assert_array_equal(again["given"].scores, kept[1]["given"].scores)


def test_what_cannot_be_trained_is_said_before_anything_is(tmp_path):
    with pytest.raises(UsageError, match="num_minibatches"):
        train(tmp_path / "run", given={"given": {}, "odd": {"num_minibatches": 7}})
    with pytest.raises(UsageError, match="Did you mean 'learning_rate'"):
        train(tmp_path / "run", given={"given": {}, "odd": {"learning_rat": 1.0}})
    with pytest.raises(UsageError, match="num_seeds"):
        train(tmp_path / "run", num_seeds=0)
    assert not (tmp_path / "run").exists()


def test_a_setting_that_is_none_shapes_the_program():
    configs = {label: BASE.replace(target_kl=x) for label, x in {"a": None, "b": 0.1, "c": 0.2}.items()}
    assert variants.programs_of(configs) == [["a"], ["b", "c"]]
