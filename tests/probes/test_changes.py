"""What a copy has changed of its original, and the smallest change without which something passes."""

import hashlib
import re
from pathlib import Path

import pytest

from probes import changes, check
from rlref import cem, dqn, ppo, ppo_rnn

SOURCE = Path(ppo.__file__).read_text()


def edited(*edits, source=SOURCE):
    for old, new in edits:
        assert source.count(old) == 1
        source = source.replace(old, new)
    return source


def line_with(text, source):
    return source[: source.index(text)].count("\n") + 1


@pytest.mark.parametrize("agent", [ppo, dqn, cem, ppo_rnn], ids=lambda agent: agent.__name__)
def test_the_stamp_of_an_agent_is_the_hash_of_its_text(agent):
    text = Path(agent.__file__).read_text()
    found = changes.STAMP.search(text)
    assert found[1] == agent.__name__.rpartition(".")[2]
    blank = text.replace(found[2], "0" * 12)
    assert found[2] == hashlib.sha256(blank.encode()).hexdigest()[:12], "python scripts/stamp.py writes it"


def test_texts_of_earlier_versions_belong_to_their_names():
    for path in changes.EARLIER.glob("*.txt"):  # none before the first release
        assert path.stem.endswith("_" + changes.stamp_of(path.read_text()))


def test_an_unchanged_copy_has_changed_nothing():
    assert changes.changes(SOURCE).hunks == ()


def test_functions_fields_and_constants_that_changed_are_named_with_their_lines():
    text = edited(
        ("RING = 100 ", "RING = 200 "),
        ("    vf_coef: float = leaf(", "    kl_coef: float = leaf(0.1)\n    vf_coef: float = leaf("),
        ("- config.ent_coef * policy.entropy()", "- 2 * config.ent_coef * policy.entropy()"),
        ("def is_discrete(", "def helper():\n    pass\n\n\ndef is_discrete("),
    )
    found = changes.changes(text)
    line = line_with("- 2 * config.ent_coef", text)
    said = str(found)
    assert said.startswith("changed, of rlref's ppo.py: ")
    assert "`RING` (line " in said
    assert "`Config` (+1 field)" in said
    assert f"`loss` (line {line})" in said
    assert "`helper` (new, lines " in said
    assert not found.too_different
    assert found.undone(found.hunks) == SOURCE


def test_comments_and_docstrings_are_no_changes():
    text = edited(('"""Everything needed to go on training one seed."""', '"""All that one seed needs."""'),
                  ("# a gymnax id; in", "# an id; in"))  # fmt: skip
    assert str(changes.changes(text)) == "changed: nothing of rlref's ppo.py but comments"


def test_statements_between_definitions_are_changes():
    text = edited(("RING = 100 ", "jax.config.update('jax_enable_x64', False)\nRING = 100 "))
    assert re.fullmatch(r"changed, of rlref's ppo.py: line \d+ at the top level", str(changes.changes(text)))
    assert "top level" not in str(changes.changes(edited(("    target = advantage + value\n", "    target = value\n"))))


def test_a_byte_order_mark_is_no_change(tmp_path):
    (tmp_path / "mark.py").write_text(SOURCE, "utf-8-sig")
    assert check.run(str(tmp_path / "mark.py"), only=["advantages"]).changes is None


def test_without_a_stamp_the_nearest_agent_is_the_original():
    text = Path(dqn.__file__).read_text()
    bare = text.replace(changes.STAMP.search(text)[0], "# a copy").replace("RING = 100 ", "RING = 50 ")
    said = str(changes.changes(bare))
    assert "of rlref's dqn.py as it is installed, the nearest (there is no stamp): `RING`" in said


def test_a_copy_of_an_earlier_version_is_compared_with_that(tmp_path, monkeypatch):
    blank = edited(("RING = 100 ", "RING = 70 "))
    stamp = changes.stamp_of(blank)
    earlier = blank.replace(changes.STAMP.search(blank)[2], stamp)
    (tmp_path / f"ppo_{stamp}.txt").write_text(earlier)
    monkeypatch.setattr(changes, "EARLIER", tmp_path)
    found = changes.changes(earlier.replace("RING = 70 ", "RING = 7 "))
    assert str(found).startswith("changed, of rlref's ppo.py, as it was: `RING` (line ")
    assert len(found.hunks) == 1


def test_a_file_of_somebody_else_is_too_different():
    said = changes.changes("import jax\n\n\ndef make():\n    return None\n")
    assert said.too_different
    assert "too much to compare" in str(said)


USES = """
class Task:
    scale: Scale

class Scale: ...

def make(config):
    task = Task(config)
    return Agent(init, loss)

def init(task: Task): ...

def loss(task, init):
    return helper(init)

def helper(x):
    loss = x
    return loss
"""


def test_references_are_names_and_annotations_without_what_is_local():
    assert changes.references(USES) == {
        "Task": {"Scale"}, "Scale": set(), "make": {"Task", "init", "loss"}, "init": {"Task"}, "loss": {"helper"},
        "helper": set(),
    }  # fmt: skip
    assert changes.reached(changes.references(USES), {"loss"}) == {"loss", "helper"}


@pytest.fixture
def with_another_gae(tmp_path):
    path = tmp_path / "changed.py"
    path.write_text(Path(ppo.__file__).read_text().replace("terminated, 0.0, next_value", "terminated, 1.0, value"))
    return path


def asked(path, monkeypatch, unable="", **options):
    """The oracles in the order in which they are asked about a file, and as they are listed.

    Each passes, but for `advantages`, which fails, and one that is `unable` to say.
    """
    order = []

    def ask(oracle, module):
        order.append(oracle.name)
        why = "no" if oracle.name == unable else check.missing(oracle, module)
        return check.OracleResult(oracle, None if why else "wrong" if oracle.name == "advantages" else "", why)

    monkeypatch.setattr(check, "ask", ask)
    oracles = [name for name, x in check.ORACLES.items() if "ppo" in x.kinds]
    report = check.run(str(path), only=oracles, bisect=False, **options)
    return order, [x.name for x in report.oracles]


def test_what_a_change_cannot_have_reached_is_asked_last_and_reported_in_its_place(
    with_another_gae, tmp_path, monkeypatch
):
    same = tmp_path / "same.py"
    same.write_text(Path(ppo.__file__).read_text())
    canonical, listed = asked(same, monkeypatch)
    order, again = asked(with_another_gae, monkeypatch)
    assert canonical == listed == again
    assert set(order) == set(canonical)
    late = {"categorical", "gaussian", "policy_loss", "gradient_steps", "transitions", "dormant_units"}
    first = {"advantages", "learned_batch", "learned_targets", "keys_used_once", "known_losses"}
    assert max(map(order.index, first)) < min(map(order.index, late))
    assert asked(with_another_gae, monkeypatch, fail_fast=True)[0] == ["advantages"]


@pytest.mark.parametrize("old", ["class Network(nn.Module):", "discrete = bool(choices(action_space))"])
def test_a_change_of_what_tasks_are_made_of_can_have_reached_everything(tmp_path, monkeypatch, old):
    path = tmp_path / "changed.py"
    text = Path(ppo.__file__).read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, f"{old}\n    more = 1\n" if "class" in old else f"num_outputs = {old}"))
    order, listed = asked(path, monkeypatch)
    assert order == listed


def test_an_oracle_instead_of_others_is_asked_where_one_of_those_asked_last_cannot_answer(
    with_another_gae, monkeypatch
):
    assert "exact_policy" not in asked(with_another_gae, monkeypatch)[0]
    assert "exact_policy" in asked(with_another_gae, monkeypatch, unable="policy_loss")[1]
