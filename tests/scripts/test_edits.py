"""The catalogue of right edits and of bugs on top of them, and the score's own machinery. Nothing trains here."""

import collections
import json
import shutil
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import edits  # noqa: E402
import edits_score  # noqa: E402
import mutants  # noqa: E402
import mutation_score  # noqa: E402
import page  # noqa: E402


@pytest.mark.parametrize("edit", edits.EDITS, ids=lambda edit: edit.name)
def test_an_edit_changes_what_it_says_in_the_style_of_the_file(edit):
    source = edits.edited(edit)  # raises where a text does not occur exactly once
    compile(source, f"{edit.agent}.py", "exec")
    assert set(edit.changes) == edits.changed_by(edit)
    assert len(set(edit.changes)) == len(edit.changes)
    assert max(map(len, source.splitlines())) <= 120


@pytest.mark.parametrize("bug", edits.BUGS, ids=lambda bug: bug.name)
def test_a_bug_is_where_it_says(bug):
    edit = edits.BY_NAME[bug.edit]
    right, wrong = edits.edited(edit), edits.with_bug(bug)
    compile(wrong, f"{edit.agent}.py", "exec")
    before = edits.definitions(right)
    assert {name for name, text in edits.definitions(wrong).items() if before.get(name) != text} == {bug.definition}
    assert bug.component in mutants.COMPONENTS[edit.agent]
    first, last = edits.bug_lines(bug)
    old, new = right.splitlines(), wrong.splitlines()
    differ = [i for i, (x, y) in enumerate(zip(old, new, strict=False), 1) if x != y]
    assert first == differ[0]
    assert last - first <= 1
    if len(old) == len(new):
        assert set(differ) <= set(range(first, last + 1))


def test_the_catalogue_has_enough_of_each():
    of_edits = collections.Counter(edit.agent for edit in edits.EDITS)
    assert all(of_edits[agent] >= least for agent, least in {"ppo": 12, "dqn": 10, "cem": 6, "ppo_rnn": 9}.items())
    assert len(edits.EDITS) >= 28
    assert len(edits.BUGS) >= 27
    assert len(edits.BY_NAME) == len(edits.EDITS)
    assert len({bug.name for bug in edits.BUGS}) == len(edits.BUGS)
    share = sum(edits_score.inside(bug.edit, bug.old) for bug in edits.BUGS) / len(edits.BUGS)
    assert 0.4 <= share <= 0.6


def test_text_that_is_gone_stops_the_script():
    edit = edits.EDITS[0]._replace(replace=(("no such text", ""),))
    with pytest.raises(ValueError, match=f"{edit.name}: the text to be replaced occurs 0 times, not once"):
        edits.edited(edit)


def report(verdict, **failed):
    """What `rlref probe` says, with these checks failed, each with what it holds."""
    oracles = [{"name": name, "holds": holds, "status": "failed"} for name, holds in failed.items()]
    return {
        "verdict": verdict,
        "says": "the loss is another than rlref's",
        "code": {"RIGHT": 0, "WRONG": 1}.get(verdict, 3),
        "failed": [[x["name"], x["holds"]] for x in oracles],
        "changed": [],
        "undo": None,
        "seconds": 1,
    }


@pytest.fixture
def results(tmp_path, monkeypatch):
    """The script with files of its own, and a probe that knows of likeness alone; it notes what it was given."""
    marks = [mark for name in ("train", "edit", "bug") for mark in page.marks(name)]
    (tmp_path / "right_edits.md").write_text("\n".join(marks))
    monkeypatch.setattr(edits_score, "PAGE", tmp_path / "right_edits.md")
    monkeypatch.setattr(edits_score, "RESULTS", tmp_path / "edits.json")
    monkeypatch.setattr(mutation_score, "CHECKS", tmp_path / "checks.json")
    probed = []
    right = {edits.edited(edit) for edit in edits.EDITS}

    def probe(agent, source, folder, *options):
        probed.append(source)
        if source in right:
            return report("DIFFERS", next_gaussian="likeness")
        return report("RIGHT") if "PROBE_MEANT" in source else report("WRONG", next_gaussian="definition")

    monkeypatch.setattr(edits_score, "probe", probe)
    monkeypatch.setattr(edits_score, "train", lambda *_: {"iqm": 450.0, "min": 1.0, "max": 500.0, "findings": []})

    def run(*arguments):
        probed.clear()
        monkeypatch.setattr(sys, "argv", ["edits_score.py", "--agent", "cem", *arguments])
        return edits_score.main(), len(probed), (tmp_path / "right_edits.md").read_text()

    return run


@pytest.mark.slow
def test_a_stopped_run_goes_on_where_it_was(results):
    number = sum(edit.agent == "cem" for edit in edits.EDITS)
    bugs = sum(edits.BY_NAME[bug.edit].agent == "cem" for bug in edits.BUGS)
    code, first, _ = results("mirrored")
    assert code == 0
    code, rest, said = results()
    assert (code, first + rest) == (0, 2 * number + bugs)  # each edit once more, declared
    assert f"- {number} right edits are called: {number} DIFFERS." in said
    assert f"- Declared, {number} are called: {number} RIGHT." in said
    assert "| CEM | mirrored sampling | DIFFERS | next_gaussian |  | no | RIGHT | 0 | 1 |" in said
    assert results()[1] == 0
    code, probed, said = results("--train")
    assert (code, probed) == (0, 0)
    assert f"{number} of {number} edits train" in said
    assert "- Declared" in said


def test_a_right_edit_that_is_called_wrong_fails_the_script(results, monkeypatch):
    monkeypatch.setattr(edits_score, "probe", lambda *_: report("WRONG", elites="definition"))
    code, _, said = results("mirrored")
    assert code == 1
    assert "| CEM | mirrored sampling | WRONG |  | elites (definition) |" in said


@pytest.mark.parametrize(
    ("key", "anew"),
    [
        ("edit/mirrored sampling", "--no-bisect"),
        ("bug/each draw comes twice, not with its mirror image", "--fail-fast"),
    ],
)
def test_a_row_stands_where_what_has_changed_finds_nothing(key, anew, results, monkeypatch, tmp_path):
    now, source = dict(edits_score.versions("cem")), edits_score.catalogue("probe")[key]["source"]
    for name in ("changes", "undo", "verdict"):
        shutil.copy(edits_score.PROBES / f"{name}.py", tmp_path)
    monkeypatch.setattr(edits_score, "PROBES", tmp_path)

    def again(text, another, found):
        """What is asked after the probes' text has changed, and this check; what is found by it."""
        asked = []

        def probe(agent, text, folder, *options):
            if text == source:
                asked.append(options)
            return found | {"seconds": 9}

        monkeypatch.setattr(edits_score, "probe", probe)
        monkeypatch.setattr(edits_score, "of_the_probes", lambda bisect: [text])
        monkeypatch.setattr(mutation_score, "versions", lambda agent: now)
        now[another] = text
        results("mirrored")
        return json.loads(edits_score.RESULTS.read_text())[key]["seconds"], asked

    alone = ("--no-bisect", "--only", "bandit")
    results("mirrored")  # where next_gaussian fails
    assert again("another", "bandit", report("RIGHT")) == (1, [alone])
    assert again("another", "bandit", report("RIGHT")) == (1, [])
    assert again("a third", "next_gaussian", report("DIFFERS", next_gaussian="likeness")) == (9, [(anew,)])
    fails = report("DIFFERS", bandit="likeness")
    assert again("a fourth", "bandit", fails) == (9, [alone, (anew,)])
    (tmp_path / "undo.py").write_text("undoes otherwise")
    wanted = [(anew,)] if key.startswith("bug") else [("--no-bisect", "--only", "known_fitness")]  # nothing is undone
    assert again("a fifth", "known_fitness", report("RIGHT"))[1] == wanted


def test_a_bug_that_nothing_sees_fails_the_script(results, monkeypatch):
    monkeypatch.setattr(edits_score, "probe", lambda *_: report("RIGHT"))
    code, _, said = results("comes twice")
    assert code == 1
    assert "| yes | RIGHT | nothing | no | no | 1 |" in said


def test_the_undo_must_be_of_the_bugs_own_lines():
    for undo, wanted in ((None, False), ([[3, 4]], False), ([[5, 5]], True), ([[1, 1], [4, 9]], True)):
        assert edits_score.right_hunk({"undo": undo, "lines": [5, 6]}) == wanted


def test_what_is_declared_can_be_read_by_python():
    names: dict[str, object] = {}
    exec(edits_score.declared("x = 1", ["schedule"], "a user's 'reason'"), names)
    assert names["PROBE_MEANT"] == {"schedule": "a user's 'reason'"}


def test_every_edit_trains():
    rows = json.loads(edits_score.RESULTS.read_text())
    wanted = edits_score.catalogue("train")
    assert rows.keys() >= wanted.keys()
    assert all(edits_score.ok(rows[key]) for key, row in wanted.items() if row["edit"])


def test_no_right_edit_is_called_wrong_and_each_is_right_once_declared():
    rows = json.loads(edits_score.RESULTS.read_text())
    wanted = {key: row for key, row in edits_score.catalogue("probe").items() if row["part"] == "edit"}
    assert rows.keys() >= wanted.keys()
    assert [key for key in wanted if not edits_score.ok(rows[key])] == []
