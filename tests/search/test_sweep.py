import itertools
import json
import zlib

import numpy as np
import pandas as pd
import pytest

from rlref import ppo
from rlref.cli import main
from rlref.errors import UsageError
from rlref.reports import reference
from rlref.runs.run import Run
from rlref.search import space, sweep, variants

SPACE = {"learning_rate": space.Range(1e-5, 1e-2, "log"), "ent_coef": space.Range(0.0, 0.1), "update_epochs": (2, 4)}
GIVEN = {"space": {"learning_rate": (2.5e-4, 1e-5)}}
RANDOM = 10.0


def planted(f, noise=1.0, batches=None):
    """In place of training: a seed's score is f(config) and some luck."""

    calls = itertools.count()

    def train(module, config, given, *, num_seeds, seed, **_):
        if batches is not None:
            batches.append((list(given), list(range(seed, seed + num_seeds))))
        scores = {label: f(config.replace(**changes)) for label, changes in given.items()}
        return {label: run_of(score, seed, num_seeds, noise, next(calls)) for label, score in scores.items()}

    return train


def run_of(score, seed, num_seeds, noise, call):
    rng = np.random.default_rng(zlib.crc32(repr((score, seed, call)).encode()))
    scores = score + noise * rng.normal(size=num_seeds)
    early = scores / 2 + rng.normal(size=num_seeds)
    metrics = {"env_steps": np.tile([100.0, 200.0], (num_seeds, 1)), "return_mean": np.stack([early, scores], 1)}
    return Run("ppo", {"env_id": "CartPole-v1"}, list(range(seed, seed + num_seeds)), metrics, {"status": "finished"})


@pytest.fixture
def search(monkeypatch):
    monkeypatch.setattr(reference, "random_returns", lambda *_: np.array([RANDOM]))

    def run(f, noise=1.0, batches=None, **options):
        monkeypatch.setattr(variants, "train", planted(f, noise, batches))
        return sweep.sweep("ppo", ppo.Config(), **({"space": SPACE, "num_settings": 60, "num_seeds": 4} | options))

    return run


def hill(config):
    """Best at a learning rate of 1e-3, falling gently; entropy bonuses do nothing; more epochs help a little."""
    return 100 - 20 * (np.log10(config.learning_rate) + 3) ** 2 + 5 * (config.update_epochs == 4)


def cliff(config):
    """As the hill, but broken from a little above its best learning rate on."""
    return hill(config) if config.learning_rate < 1.05e-3 else 12.0


def test_finds_the_best_and_what_matters(search):
    found = search(hill)
    assert found.best.settings["learning_rate"] == pytest.approx(1e-3, rel=0.5)
    assert found.best.settings["update_epochs"] == 4
    shares = {name: one.share for name, one in found.regression.importances.items()}
    assert shares["learning_rate"] > 0.8 > 0.1 > abs(shares["ent_coef"])
    low, high = found.region["learning_rate"]
    assert 1e-4 < low < 1e-3 < high < 1e-2
    assert found.confirmed.results[0].contrasts[0].verdict == "better"
    assert "learning_rate" in sweep.sentences(found)[0]


def test_small_changes_of_a_hill_break_nothing(search):
    found = search(hill)
    assert {n.setting for n in found.neighbours} == {"learning_rate", "ent_coef"}
    assert not found.too_sensitive
    assert found.verdict.startswith("not sensitive")


def test_a_cliff_is_too_sensitive_to_be_trusted(search):
    found = search(cliff, num_settings=200)
    assert found.too_sensitive
    assert [n.setting for n in found.neighbours if n.breaks] == ["learning_rate"]
    assert found.verdict.startswith("too sensitive to be trusted: learning_rate")


@pytest.mark.parametrize(("scores", "code"), [("hill", 0), ("cliff", 1)])
def test_the_command_exits_with_1_where_the_best_is_too_sensitive(scores, code, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(reference, "random_returns", lambda *_: np.array([RANDOM]))
    monkeypatch.setattr(variants, "train", planted({"hill": hill, "cliff": cliff}[scores]))
    words = "sweep ppo --vary learning_rate=1e-5:1e-2 --num-settings 60 --num-seeds 4 --json --run-dir".split()
    assert main([*words, str(tmp_path)]) == code
    assert len(json.loads(capsys.readouterr().out)["trials"]) == 60


def test_what_a_few_seeds_cannot_tell_from_chance_is_said(search):
    found = search(cliff, num_settings=200, confirm_seeds=3)
    assert not found.too_sensitive
    assert found.verdict.startswith("perhaps too sensitive: learning_rate")


@pytest.mark.parametrize("score", [RANDOM - 5, RANDOM + 0.01])
def test_nothing_gained_is_said(search, score):
    found = search(lambda config: score)
    assert not found.too_sensitive
    assert found.verdict.startswith("no gain over a random policy is shown")


def test_small_changes_end_at_the_range():
    given = {
        "learning_rate": space.Range(1e-4, 1e-2, "log"),
        "ent_coef": space.Range(0.0, 1.0),
        "update_epochs": (2, 4),
    }
    best = {"learning_rate": 9e-3, "ent_coef": 1.0, "update_epochs": 2}
    moves = sweep.neighbour_values(given, best)
    assert [name for name, _ in moves] == ["learning_rate", "learning_rate", "ent_coef"]
    assert [value for _, value in moves] == pytest.approx([9e-3 / 100**0.1, 1e-2, 0.9], rel=1e-3)


def test_one_half_of_the_seeds_chooses_and_the_other_reports(search):
    found = search(lambda config: 50.0 + 1e-3 * config.learning_rate, noise=10.0)
    for trial in found.trials:
        assert trial.chosen_by == pytest.approx(np.mean(trial.scores[:2]))
        assert trial.reported == pytest.approx(np.mean(trial.scores[2:]))
    # All settings are alike, so the best one is the luckiest, and its other seeds say so.
    assert found.best.chosen_by == max(trial.chosen_by for trial in found.trials)
    assert found.best.chosen_by > np.mean([trial.chosen_by for trial in found.trials]) + 10
    assert found.best.reported < found.best.chosen_by - 5


def test_confirms_on_fresh_seeds(search):
    batches = []
    search(hill, batches=batches, seed=3, confirm_seeds=8)
    assert [seeds for _, seeds in batches] == [[3, 4, 5, 6], list(range(7, 15))]
    assert batches[1][0][:2] == ["as given", "best"]
    batches.clear()
    found = search(hill, batches=batches, confirm_seeds=0)
    assert len(batches) == 1
    assert (found.confirmed, found.neighbours, found.verdict) == (None, (), "")


def test_confirmed_by_one_seed_there_is_no_interval(search):
    found = search(hill, confirm_seeds=1)
    table = sweep.tables(found)[-1]
    assert table.rows[0]["IQM [95 % interval]"].endswith(" [undefined]")
    assert "nan" not in str(table)


def test_of_equals_the_faster_is_best(search):
    found = search(lambda config: 500.0, noise=0.0)
    assert {trial.chosen_by for trial in found.trials} == {500.0}
    assert found.best.area == max(trial.area for trial in found.trials) > min(trial.area for trial in found.trials)
    assert found.regression is None
    assert "nothing is said" in sweep.sentences(found)[0]


def test_failed_seeds_count_as_the_lowest_score(search):
    found = search(lambda config: float("nan") if config.learning_rate > 1e-3 else hill(config), confirm_seeds=0)
    failed = [trial for trial in found.trials if trial.failed]
    lowest = min(score for trial in found.trials if not trial.failed for score in trial.scores)
    assert failed
    assert all(trial.failed == 4 and set(trial.scores) == {lowest} for trial in failed)
    assert any("trainings failed" in text for text in sweep.sentences(found))


def test_the_settings_given_may_be_the_best(search):
    found = search(lambda config: hill(config) + 50 * (config.learning_rate == ppo.Config().learning_rate), **GIVEN)
    assert found.best.settings == {"learning_rate": 2.5e-4}
    assert found.confirmed.results[0].contrasts[0].verdict != "better"


def test_what_is_kept(search, tmp_path):
    (tmp_path / "sweep").mkdir()
    found = search(hill, folder=tmp_path / "sweep")
    table = pd.read_csv(tmp_path / "sweep" / "trials.csv")
    assert list(table["setting"]) == [trial.number for trial in found.trials]
    assert list(table["learning_rate"]) == [trial.settings["learning_rate"] for trial in found.trials]
    kept = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert kept["verdict"] == found.verdict
    assert kept["regression"]["importances"]["learning_rate"]["share"] == pytest.approx(
        found.regression.importances["learning_rate"].share
    )
    assert (tmp_path / "sweep" / "settings.png").stat().st_size > 10_000
    assert all(len({len(row) for row in table.rows}) == 1 for table in sweep.tables(found))


@pytest.mark.parametrize("few", [{"num_settings": 1}, {"num_seeds": 1}])
def test_too_few_are_refused(search, few):
    with pytest.raises(UsageError, match="must be at least 2"):
        search(hill, **few)
