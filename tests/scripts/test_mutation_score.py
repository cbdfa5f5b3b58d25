"""The mutation score's own machinery, and a few planted bugs through all of it."""

import collections
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import mutants  # noqa: E402
import mutants_rnn  # noqa: E402
import mutation_score  # noqa: E402

from probes.ladder import LADDER  # noqa: E402
from probes.memory import MEMORY  # noqa: E402
from probes.oracles import MEMORY_ORACLES, ORACLES  # noqa: E402


def test_every_bug_of_the_catalogue_can_be_planted():
    rows = mutation_score.catalogue("full").values()
    for row in rows:
        mutation_score.source_of(row)  # raises where a text does not occur exactly once
    counted = collections.Counter(row["agent"] for row in rows if row["part"] == "full" and not row["equivalent"])
    assert all(counted[agent] >= least for agent, least in {"ppo": 24, "dqn": 22, "cem": 18, "ppo_rnn": 60}.items())
    assert sum(not x.equivalent for x in mutants_rnn.MEMORY) >= 60
    for list_ in mutation_score.ALL.values():
        assert len({mutant.name for mutant in list_}) == len(list_)
        assert sum(bool(mutant.equivalent) for mutant in list_) <= 0.1 * len(list_)
        assert sum(bool(mutant.apart) for mutant in list_) <= 0.15 * len(list_)


def test_a_bug_whose_text_is_gone_or_ambiguous_stops_the_script(monkeypatch):
    for old, count in (("no such text", 0), ("jnp.", (SCRIPTS.parent / "rlref" / "ppo.py").read_text().count("jnp."))):
        bug = mutants.Mutant("a bug", old, "", "rollout")
        with pytest.raises(ValueError, match=f"ppo, a bug: the text to be replaced occurs {count} times, not once"):
            mutation_score.planted("ppo", bug)


def test_every_component_is_isolated_by_checks_of_its_agent():
    checks = ORACLES | MEMORY_ORACLES | LADDER | MEMORY
    for agent, components in mutation_score.ISOLATED_BY.items():
        assert {mutant.component for mutant in mutation_score.ALL[agent]} <= components.keys()
        for names in components.values():
            assert all(agent.removesuffix("_rnn") in checks[name].kinds for name in names.split())


@pytest.fixture
def results(tmp_path, monkeypatch):
    """The script with files of its own, and a probe that does nothing but note what it was given."""
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{mutation_score.BEGIN}old\n{mutation_score.END}after\n")
    monkeypatch.setattr(mutation_score, "PAGE", readme)
    monkeypatch.setattr(mutation_score, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(mutation_score, "CAUGHT_BY", tmp_path / "caught_by.json")
    monkeypatch.setattr(mutation_score, "CHECKS", tmp_path / "checks.json")
    probed = []

    def probe(agent, source, folder, options):
        probed.append((agent, options))
        bug = source != (SCRIPTS.parent / "rlref" / f"{agent}.py").read_text()
        return {"check": "selection" if bug else "", "by": "oracle" if bug else "", "verdict": "", "seconds": 1}

    monkeypatch.setattr(mutation_score, "probe", probe)

    def run(*arguments):
        probed.clear()
        monkeypatch.setattr(sys, "argv", ["mutation_score.py", "--agent", "cem", *arguments])
        return mutation_score.main(), len(probed), readme.read_text()

    return run


def test_a_stopped_run_goes_on_where_it_was(results, monkeypatch):
    number = len(mutants.MUTANTS["cem"])
    code, probed, _ = results("elites")  # of which there are a few
    assert code == 0
    assert 0 < probed < number
    code, rest, said = results()
    assert (code, probed + rest) == (0, number + 3)
    assert said.startswith("before\n")
    assert said.endswith("after\n")
    assert "- CEM: caught " in said
    assert "Unchanged: 3 of 3 sets of 64 seeds pass every check." in said
    assert results()[1] == 0
    monkeypatch.setitem(mutation_score.ALL, "cem", [mutants.MUTANTS["cem"][0]._replace(new="-jnp.argsort(score)")])
    assert results()[1] == 1


RUNG = {"check": "bandit", "by": "rung", "word": "WRONG", "verdict": "WRONG at bandit: ...", "seconds": 100}
LIKENESS = {"check": "common_numbers", "by": "oracle", "word": "WRONG", "verdict": "WRONG at bandit", "seconds": 100}
NOTHING = {"check": "", "by": "", "word": "RIGHT", "verdict": "RIGHT: ...", "seconds": 100}
ERROR = {"check": "error", "by": "error", "verdict": "line 3", "seconds": 5}


@pytest.mark.parametrize(
    ("before", "another", "found", "asked"),
    [
        (RUNG, "patience", NOTHING, []),  # later than what has failed
        (RUNG, "selection", NOTHING, [["--only", "selection"]]),
        (RUNG, "selection", RUNG | {"check": "selection"}, [["--only", "selection"], []]),
        (RUNG, "selection", ERROR, [["--only", "selection"], []]),
        (RUNG, "bandit", RUNG, [[]]),
        (LIKENESS, "bandit", RUNG, [[]]),
        (LIKENESS, "common_numbers", RUNG, [[]]),
        (LIKENESS, "patience", NOTHING, []),
        (LIKENESS | {"word": "DIFFERS"}, "patience", NOTHING, [["--only", "patience"]]),
        (NOTHING, "patience", NOTHING, [["--only", "patience"]]),
        (ERROR, "patience", ERROR, [[]]),
        (RUNG, "", NOTHING, []),
    ],
)
def test_of_the_same_file_what_has_changed_is_asked_alone(results, monkeypatch, before, another, found, asked):
    probed = []

    def run(found):
        probed.clear()
        monkeypatch.setattr(mutation_score, "probe", lambda *given: probed.append(given[-1]) or found)
        results("lowest")
        (row,) = json.loads(mutation_score.RESULTS.read_text()).values()
        return {name: row[name] for name in found if name in row}

    now = mutation_score.versions("cem")
    assert run(before) == before
    assert probed == [[]]
    monkeypatch.setattr(mutation_score, "versions", lambda agent: now | ({another: "changed"} if another else {}))
    after = run(found)
    assert probed == asked
    assert after == (found if [] in asked else {name: before[name] for name in found})
    run(found)
    assert probed == []


def test_what_a_check_depends_on():
    before = mutation_score.versions("ppo_rnn")
    assert before.keys() >= {"recall_1", "known_memory", "bandit", "exact_policy"}
    assert before.keys().isdisjoint({"gae", "truncation_pair"})
    assert len({before[name] for name in ("recall_1", "recall_4", "bandit")}) == 3
    assert mutation_score.versions("ppo").keys().isdisjoint(MEMORY)
    shared, own = mutation_score.of_rungs()
    assert own.keys() >= MEMORY.keys()
    assert any("name='recall'" in text for text in shared)


def test_a_bug_that_nothing_catches_fails_the_script_and_shows_in_the_table(results, monkeypatch):
    monkeypatch.setattr(mutation_score, "probe", lambda *_: {"check": "", "by": "", "verdict": "PASS", "seconds": 1})
    code, _, said = results("lowest")
    assert code == 1
    assert "| CEM | lowest scores as elites | elites | nothing |  | 1 |" in said
    assert "- CEM: caught 0 of 1 (0%)" in said


def test_bugs_under_other_names_are_counted_by_themselves(results, monkeypatch):
    results("lowest", "std taken for its variance")
    probed = []

    def probe(agent, source, folder, options):
        probed.append(source)
        check = "bandit" if "argsort(my_score)" in source and "selection" not in options else ""
        return {"check": check, "by": "rung" if check else "", "verdict": "", "seconds": 2}

    monkeypatch.setattr(mutation_score, "probe", probe)
    code, _, said = results("--renamed", "lowest", "std taken for its variance")
    assert (code, len(probed)) == (1, 4)  # each by the oracles first
    assert all("class MyState" in source and "class Config" in source for source in probed)
    of = sum(not mutant.equivalent for mutant in mutants.MUTANTS["cem"])
    measured = f"Under other names, in the 2 of {of} that are measured so far: "
    assert f"{measured}caught 1 of 2 (50%), the right component named first in 1 of these (100%). Of all" in said
    assert "| CEM | lowest scores as elites | elites | selection | yes | 1 |  |  | bandit | yes | 2 |" in said
    bugs = [x._replace(apart="nobody can see it") if "its variance" in x.name else x for x in mutants.MUTANTS["cem"]]
    monkeypatch.setitem(mutants.MUTANTS, "cem", bugs)
    code, _, said = results("--renamed", "lowest", "std taken for its variance")
    assert (code, len(probed)) == (0, 4)
    assert f"{measured}caught 1 of 1 (100%), the right component named first in 1 of these (100%); 1 are set" in said
    assert "nothing, set apart: nobody can see it" in said


@pytest.mark.slow
def test_a_sample_of_the_bugs_is_caught():
    command = [sys.executable, str(SCRIPTS / "mutation_score.py"), "--sample", "3", "--seed", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=590, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "caught 3 of 3 (100%)" in done.stdout


def test_what_catches_a_bug_is_kept_for_the_probes():
    about = {"agent": "ppo", "equivalent": ""}
    first = {"a": ("policy_loss", "bandit", "bandit"), "b": ("categorical", "", "")}
    rows = [
        about | {"part": part, "mutant": name, "check": check}
        for name, checks in first.items()
        for part, check in zip(("full", "trained", "renamed"), checks, strict=True)
    ]
    found = mutation_score.caught_by(rows)
    assert found == {
        "ppo": {"a": ["policy_loss", "bandit"], "b": ["categorical", ""]},
        "dqn": {},
        "cem": {},
        "ppo_rnn": {},
    }
    kept = json.loads(mutation_score.RESULTS.read_text())
    assert mutation_score.caught_by(list(kept.values())) == json.loads(mutation_score.CAUGHT_BY.read_text())


def test_results_are_of_this_catalogue():
    rows = json.loads(mutation_score.RESULTS.read_text())
    assert rows.keys() >= mutation_score.catalogue("full").keys()


def test_each_bug_runs():
    rows = json.loads(mutation_score.RESULTS.read_text())
    assert [key for key, row in rows.items() if row["part"] == "full" and row["check"] == "error"] == []


def test_a_bug_that_only_differs_has_a_method_in_which_it_would_be_right():
    rows = json.loads(mutation_score.RESULTS.read_text()).values()
    counted = [row for row in rows if row["part"] == "full" and not row["equivalent"]]
    differ = {row["mutant"] for row in counted if row.get("word") == "DIFFERS"}
    methods = mutants.METHODS | mutants_rnn.METHODS_RNN
    assert differ <= methods.keys() <= {x.name for bugs in mutation_score.ALL.values() for x in bugs}
