import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import page  # noqa: E402
import scores  # noqa: E402

from rlref import stats, tuned  # noqa: E402
from rlref.runs import training  # noqa: E402
from rlref.settings import (  # noqa: E402
    in_json,
    settings_of,
)

NAME = "cem/SimpleBandit-bsuite"
COMMITTED = json.loads((SCRIPTS / "results" / "scores.json").read_text())


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """Folders of runs and of results, and the exit code that gave them."""
    folder, out = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("out")
    options = ["--num-seeds", "8", "--run-dir", str(folder), "--out", str(out)]
    return options, out, scores.main([NAME, *options])


def changed(out, shift):
    """Results whose scores are shifted, in a folder of their own."""
    folder = out / f"shifted{shift}"
    folder.mkdir(exist_ok=True)
    results = json.loads((out / "scores.json").read_text())
    results[NAME]["scores"] = [x + shift for x in results[NAME]["scores"]]
    (folder / "scores.json").write_text(json.dumps(results))
    return folder


def test_a_benchmark_is_trained_and_written_down(once):
    _, out, code = once
    assert code == 0
    row = json.loads((out / "scores.json").read_text())[NAME]
    assert len(row["scores"]) == 8
    assert row["iqm"] == pytest.approx(stats.iqm(row["scores"]))
    assert np.shape(row["curves"]) == (8, len(row["curve_steps"]))
    assert {"jax", "gymnax"} <= row["versions"].keys()
    assert row["train_seconds"] > 0
    written = (out / "scores.md").read_text()
    assert "`rlref train cem --env-id SimpleBandit-bsuite --num-seeds 8`" in written
    assert "Not run yet: ppo/CartPole-v1" in written


def test_what_is_finished_is_only_read(once, monkeypatch):
    options, out, _ = once
    before = json.loads((out / "scores.json").read_text())
    monkeypatch.setattr(training, "run_job", lambda *_, **__: pytest.fail("it trains again"))
    assert scores.main([NAME, *options]) == 0
    assert json.loads((out / "scores.json").read_text()) == before


def test_check_sees_a_regression_and_nothing_else(once, tmp_path, capsys):
    _, out, _ = once
    check = ["--check", NAME, "--num-seeds", "8", "--run-dir", str(tmp_path / "check"), "--out"]
    assert scores.main([*check, str(out)]) == 0
    assert "not lower" in capsys.readouterr().out
    assert scores.main([*check, str(changed(out, 50.0))]) == 1
    assert "LOWER" in capsys.readouterr().out
    assert scores.main([*check, str(changed(out, -50.0))]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dqn/Pendulum-v1"], "no benchmark dqn/Pendulum-v1"),
        (["--check", "cem/CartPole-v1"], "no scores of cem/CartPole"),
        (["cem/CartPole-v1", "--num-seeds", "2", "--out", str(scores.RESULTS)], "takes --check, or another --out"),
    ],
)
def test_wrong_usage_is_said(arguments, message, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(scores, "trained", lambda *_: pytest.fail("it trains"))
    with pytest.raises(SystemExit):
        scores.main(["--out", str(tmp_path), *arguments])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("text", ["[]", '{"cem/CartPole-v1": {}}', '{"cem/'])
def test_a_damaged_file_is_said_before_anything_is_trained(text, tmp_path, capsys):
    (tmp_path / "scores.json").write_text(text)
    with pytest.raises(SystemExit):
        scores.main([NAME, "--out", str(tmp_path), "--run-dir", str(tmp_path / "runs")])
    assert "scores.json is damaged" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_check_that_could_find_nothing_is_refused(once, tmp_path, capsys):
    _, out, _ = once
    with pytest.raises(SystemExit):
        scores.main(["--check", NAME, "--num-seeds", "2", "--run-dir", str(tmp_path / "check"), "--out", str(out)])
    assert "2 fresh seeds of cem/SimpleBandit-bsuite against 8 cannot be found lower" in capsys.readouterr().err


def test_a_row_of_too_few_seeds_is_left_out_of_a_check_of_many(once, tmp_path, monkeypatch, capsys):
    _, out, _ = once
    row = json.loads((out / "scores.json").read_text())[NAME]
    few = "ppo/gymnasium:Ant-v5"
    (tmp_path / "scores.json").write_text(json.dumps({NAME: row, few: row | {"scores": row["scores"][:4]}}))
    monkeypatch.setattr(scores, "trained", lambda name, *_: SimpleNamespace(scores=np.asarray(row["scores"])))
    assert scores.main(["--check", NAME, few, "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert f"left out: 5 fresh seeds of {few} against 4 cannot be found lower" in said
    assert f"{NAME}: IQM" in said


def test_names_stand_for_benchmarks():
    assert scores.chosen(["Pendulum-v1"]) == ["ppo/Pendulum-v1", "cem/Pendulum-v1"]
    assert len(scores.chosen(["minatar"])) == 16
    assert scores.parsed("dqn/Breakout-MinAtar@5000000") == ("dqn", "Breakout-MinAtar", {"total_timesteps": 5_000_000})
    assert "dqn/Breakout-MinAtar@5000000" in scores.chosen(["Breakout-MinAtar"])
    assert scores.chosen(["playground"]) == ["ppo/playground:CartpoleBalance", "ppo/playground:CartpoleSwingup"]


def test_without_names_suites_that_are_not_installed_are_left_out(monkeypatch):
    monkeypatch.setattr(scores, "is_installed", lambda suite: suite != "navix")
    assert {*scores.BENCHMARKS} - {*scores.chosen([])} == {f"ppo/{x}" for x in scores.OTHER_SUITES["navix"]}


def test_targets_are_judged_by_what_they_are_of():
    assert scores.target_text("ppo/Acrobot-v1", {"iqm": -79.0, "scores": [-300.0, -79.0]}) == "-80: reached"
    assert scores.target_text("ppo/CartPole-v1", {"iqm": 500.0, "scores": [499.0, 500.0]}) == "500, every seed: MISSED"
    assert scores.target_text("cem/Catch-bsuite", {"iqm": 1.0, "scores": [1.0]}) == ""
    assert scores.target_text("cem/Pendulum-v1", {"iqm": None, "scores": [None]}) == "-180: MISSED"


def test_the_best_evaluation_is_of_one_moment_over_all_seeds():
    steps = np.tile(np.arange(1.0, 6.0) * 100, (2, 1))
    returns = np.asarray([[np.nan, 1, np.nan, 9, 4], [np.nan, 2, np.nan, 1, 8]], np.float32)
    metrics = {"env_steps": steps, "eval_return_greedy": returns, "eval_return_sampled": returns - 2}
    kept = scores.evaluations(SimpleNamespace(metrics=metrics))
    assert json.loads(json.dumps(kept)) == kept  # it goes into scores.json
    assert kept["evaluations"]["steps"] == [200, 400, 500]
    assert scores.best_mean(kept["evaluations"]["greedy"]) == (6, 2)
    assert scores.best_mean(kept["evaluations"]["sampled"]) == (4, 2)
    assert scores.evaluations(SimpleNamespace(metrics={"env_steps": steps})) == {}


def test_a_diverged_seed_counts_as_the_lowest_evaluation():
    assert scores.best_mean([[1, 9, None], [3, 7, 12]]) == (8, 1)
    assert scores.best_mean([[1, 9, None], [3, 7, 99]]) == (50, 49)


def test_rows_below_tianshou_s_are_said_but_for_another_robot():
    rows = {
        name: {"evaluations": {"sampled": [[mean + (1 if "Hopper" in name else -1)]]}}
        for name, (mean, _) in scores.BEST_MEAN.items()
    }
    said = "Not below Tianshou's mean: Hopper-v5; below Tianshou's mean: HalfCheetah-v5, Walker2d-v5, Ant-v5."
    assert scores.against_tianshou(rows) == said


def test_the_page_is_what_the_committed_rows_give():
    assert page.read(SCRIPTS / "results" / "scores.md", "scores").strip() == scores.report(COMMITTED).strip()


@pytest.mark.parametrize("name", COMMITTED)
def test_committed_rows_are_what_the_command_beside_them_trains(name):
    row = COMMITTED[name]
    agent, env_id, settings = scores.parsed(name)
    assert len(row["scores"]) >= scores.NUM_SEEDS[name]
    assert row["iqm"] == pytest.approx(stats.iqm(row["scores"]))
    assert [row["min"], row["max"]] == [min(row["scores"]), max(row["scores"])]
    assert row["iqm_interval_95"] == pytest.approx(stats.iqm_interval(row["scores"]), rel=1e-3, abs=1e-3)
    assert row["status"] == "finished"
    if name in scores.BEST_MEAN:
        evaluations = row["evaluations"]
        assert np.shape(evaluations["sampled"]) == np.shape(evaluations["greedy"]) == (len(row["scores"]), 33)
        assert max(evaluations["steps"]) <= 1_000_000
    assert row["settings"] == in_json(settings_of(tuned.config(agent, env_id, **settings)))
