"""The calibration's own machinery, on a corpus of three tiny trainings; and what it found of the whole one."""

import json
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import calibrate_verdicts as calibrate  # noqa: E402
from calibrate_verdicts import Case  # noqa: E402

from rlref.health.registry import CHECKS  # noqa: E402

TINY = {"num_generations": 4, "population_size": 16, "num_rollouts": 2, "num_eval_rollouts": 2}


def bug(name):
    (mutant,) = [m for m in calibrate.MUTANTS["cem"] if m.name == name]
    edits = ((mutant.old, mutant.new),)
    return Case("cem", "CartPole-v1", f"bug: {name}", TINY, 4, edits=edits, component=mutant.component)


@pytest.fixture(scope="module")
def judged():
    """What is said of a healthy training, of one that chooses the worst candidates, and of one with an idle bug."""
    cases = [
        Case("cem", "CartPole-v1", settings=TINY, num_seeds=4),
        bug("lowest scores as elites"),
        bug("images not scaled"),
    ]
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(calibrate, "RUNS", Path(folder))
        patch.setattr(calibrate, "corpus", lambda agents: cases)
        patch.setattr(calibrate, "settings_of", lambda agent, env_id: TINY)
        patch.setitem(calibrate.GOOD, "CartPole-v1", 0)
        said = [calibrate.train(case, Path(folder)) for case in cases]
        yield said, *calibrate.judge(1)


@pytest.mark.slow
def test_a_bug_that_leaves_the_program_as_it_was_is_left_out(judged):
    said, _, tables = judged
    assert said[2] == "takes no effect"
    assert "1 of the catalogue's bugs take effect" in tables


@pytest.mark.slow
def test_what_is_found_is_counted_seed_by_seed(judged):
    _, data, tables = judged
    assert "Healthy: 2 seeds of 1 trainings" in tables
    assert "| `elites_below` | ERROR | 0 of 2 | 0.0 % | " in tables
    sick = data["rows"]["cem/CartPole-v1/bug: lowest scores as elites"]
    assert [row["leading"] for row in sick] == ["elites_below"] * 2  # seeds 1 and 3


@pytest.mark.parametrize("agents", [calibrate.THREE, calibrate.MEMORY])
def test_every_fault_has_checks_that_name_it(agents):
    for case in calibrate.corpus(agents):
        if case.fault:
            names = calibrate.CAUSES[case.agent][case.component or case.fault].split()
            assert set(names) <= set(CHECKS), case.name


@pytest.mark.parametrize("agents", [calibrate.THREE, calibrate.MEMORY])
def test_every_fault_can_be_planted(agents):
    corpus = calibrate.corpus(agents)
    for case in corpus:
        source = (ROOT / "rlref" / f"{case.agent}.py").read_text()
        assert all(source.count(old) == 1 for old, _ in case.edits), case.name
    assert len({case.path for case in corpus}) == len(corpus)


def test_the_page_says_what_was_found():
    found = json.loads(calibrate.RESULTS.read_text())
    assert found["tables"] in calibrate.PAGE.read_text()
    assert found["false_alarms"]["ERROR"] == 0
    assert found["false_alarms"]["WARN"] <= 0.02
    assert found["hit"] >= 0.8
    assert found["right"] >= 0.6
