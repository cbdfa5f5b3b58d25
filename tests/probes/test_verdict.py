"""What is said of an agent: WRONG, DIFFERS, NOT ENOUGH or RIGHT, and what a file may declare."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from probes import check, verdict
from probes.ladder import LADDER
from probes.oracles import ORACLES
from rlref import ppo
from rlref.cli import main
from rlref.errors import UsageError

SOURCE = Path(ppo.__file__).read_text()
L2 = ("config.ent_coef * policy.entropy().mean()", "config.ent_coef * policy.entropy().mean() + 0.5")
NO_CUT = ("gamma * jnp.where(terminated, 0.0, next_value)", "gamma * next_value")


@pytest.fixture
def copy(tmp_path):
    """A function of edits and of text to append: the path of a copy of ppo.py."""

    def write(*edits, more=""):
        text = SOURCE
        for old, new in edits:
            assert text.count(old) == 1
            text = text.replace(old, new)
        path = tmp_path / "my_ppo.py"
        path.write_text(text + more)
        return str(path)

    return write


def test_likeness_alone_differs_and_asks_whether_it_is_meant(copy):
    report = check.run(copy(L2), only=["advantages", "entropy_bonus", "policy_loss"])
    said = verdict.verdict(report)
    assert verdict.word(report) == "DIFFERS"
    assert said.startswith("DIFFERS at entropy_bonus: `loss` does otherwise than rlref's. ")
    assert "So at policy_loss." in said
    assert 'PROBE_MEANT = {"entropy_bonus": "why", "policy_loss": "why"}' in said
    line = next(i for i, text in enumerate(Path(copy(L2)).read_text().splitlines(), 1) if ".mean() + 0.5" in text)
    assert f"It is as in rlref if you undo line {line}, in `loss`." in said


def test_what_is_meant_is_listed_and_does_not_fail(copy):
    meant = '\nPROBE_MEANT = {"entropy_bonus": "a constant", "policy_loss": "a constant"}\n'
    report = check.run(copy(L2, more=meant), only=["advantages", "entropy_bonus", "policy_loss"])
    assert verdict.word(report) == "RIGHT"
    assert "; meant: entropy_bonus (a constant); meant: policy_loss (a constant)" in verdict.verdict(report)
    assert {x["name"]: x["status"] for x in verdict.to_json(report)["oracles"]} == {
        "advantages": "passed", "entropy_bonus": "meant", "policy_loss": "meant"
    }  # fmt: skip


def test_nothing_excuses_a_truth_or_a_definition(copy):
    report = check.run(copy(NO_CUT, more='\nPROBE_MEANT = {"advantages": "so"}\n'), only=["advantages"])
    said = verdict.verdict(report)
    assert said.startswith("WRONG at advantages: look at advantages. ")
    assert said.endswith("PROBE_MEANT has 'advantages', which holds for any right agent: it excuses nothing.")


def test_what_is_declared_in_vain_is_reported(copy):
    meant = '\nPROBE_MEANT = {"polcy_loss": "a typing error", "value_loss": "not needed"}\n'
    report = check.run(copy(more=meant), only=["policy_loss", "value_loss"])
    assert verdict.word(report) == "RIGHT"
    said = verdict.verdict(report)
    assert "PROBE_MEANT has 'polcy_loss', which is no check. Did you mean 'policy_loss'?" in said
    assert "PROBE_MEANT has 'value_loss', which passes: it is not needed." in said


@pytest.mark.parametrize("meant", ["['policy_loss']", "{'policy_loss': 1}", "{'policy_loss': ''}"])
def test_a_declaration_without_reasons_is_refused(copy, meant):
    with pytest.raises(UsageError, match="PROBE_MEANT must be a dictionary of reasons"):
        check.run(copy(more=f"\nPROBE_MEANT = {meant}\n"), only=["advantages"])


@pytest.mark.slow
def test_a_truth_that_fails_says_which_likeness_is_nearer_to_the_fault(copy):
    bug = ("policy_loss = -jnp.minimum", "policy_loss = jnp.minimum")
    report = check.run(copy(bug), only=["policy_loss", "bandit"], num_seeds=3)
    said = verdict.verdict(report)
    assert said.startswith(f"WRONG at bandit: look at {LADDER['bandit'].isolates}. 0 of 3 seeds pass")
    assert "Look first at `loss`, where policy_loss fails: " in said
    assert said.endswith("in `loss`, and bandit passes.")


def test_each_failing_check_of_a_copy_names_the_line_to_undo(copy):
    path = copy(NO_CUT, ("RING = 100 ", "RING = 90 "))
    report = check.run(path, only=["advantages"])
    line = next(i for i, text in enumerate(Path(path).read_text().splitlines(), 1) if NO_CUT[1] in text)
    assert verdict.verdict(report).endswith(f"Undo line {line}, in `gae`, and advantages passes.")
    assert verdict.to_json(report)["undo"] == [{"name": "gae", "lines": [line, line]}]
    assert Path(path).read_text().count("RING = 90 ") == 1  # the file is as it was
    assert "Undo" not in verdict.verdict(check.run(path, only=["advantages"], bisect=False))


def test_too_few_checks_are_not_enough():
    asked = [check.OracleResult(x, "" if x.name == "advantages" else None, "it has no gae") for x in ORACLES.values()
             if "ppo" in x.kinds]  # fmt: skip
    report = check.Report("./mine.py", "ppo", asked, [], whole=True)
    said = verdict.verdict(report)
    assert verdict.word(report) == "NOT ENOUGH"
    assert said.startswith(
        f"NOT ENOUGH: nothing is wrong in what was checked, but the 1 checks that ran, of {len(asked)}"
    )
    assert "it has no gae" in said
    whole = [check.OracleResult(x, "") for x in ORACLES.values() if "ppo" in x.kinds]
    assert verdict.word(check.Report("./mine.py", "ppo", whole, [], whole=True)) == "RIGHT"


def test_the_command_prints_what_was_changed_and_ends_with_3_where_it_differs(copy, capsys):
    path = copy(L2)
    assert main(["probe", path, "--only", "entropy_bonus", "--no-bisect"]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("changed, of rlref's ppo.py: `loss` (line ")
    assert lines[-1].startswith("DIFFERS at entropy_bonus: ")
    assert main(["probe", path, "--only", "entropy_bonus", "--json", "--no-bisect"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["changed"][0]["name"]) == ("DIFFERS", "loss")
    assert 0 < found["seconds"]["first_failure"] <= found["seconds"]["all"] < 600
    main(["probe", "ppo", "--only", "advantages", "--json"])
    assert json.loads(capsys.readouterr().out)["seconds"]["first_failure"] is None


@pytest.fixture(scope="module")
def rung():
    """A rung that is passed by two seeds."""
    report = check.run("ppo", only=["constant"], num_seeds=2)
    (found,) = report.rungs
    assert isinstance(found, check.RungResult)
    assert found.ok
    assert not found.slow
    return found


def report_of(rung, *oracles):
    return check.Report("my_ppo.py", "ppo", list(oracles), [rung])


def test_a_rung_that_takes_time_differs_where_nothing_explains_it(rung):
    late = dataclasses.replace(rung, slow=True)
    assert verdict.word(report_of(late)) == "DIFFERS"
    assert "more slowly or less exactly: only when trained for longer" in verdict.verdict(report_of(late))
    assert verdict.to_json(report_of(late))["rungs"][0]["holds"] == "likeness"
    meant = dataclasses.replace(late, meant="shared torso")
    assert "; meant: constant (shared torso)" in verdict.verdict(report_of(meant))
    likeness = check.OracleResult(ORACLES["schedule"], "moves otherwise", meant="no schedule")
    assert verdict.verdict(report_of(late, likeness)).startswith("RIGHT")
    assert "more slowly or less exactly than rlref's at constant" in verdict.verdict(report_of(late, likeness))


def test_a_rung_that_is_not_reached_is_wrong_but_for_one_that_is_likeness(rung):
    failed = dataclasses.replace(rung, slow=True, passed=~rung.passed)
    assert verdict.word(report_of(failed)) == "WRONG"
    scale = dataclasses.replace(failed, probe=dataclasses.replace(failed.probe, holds="likeness"))
    assert verdict.word(report_of(scale)) == "DIFFERS"
    assert "0 of 2 seeds pass; expected V (1)" in verdict.verdict(report_of(scale))


@pytest.mark.parametrize(("slow", "passed", "word"), [(True, 61, "DIFFERS"), (True, 60, "WRONG"), (False, 63, "WRONG")])
def test_one_seed_in_twenty_may_fail_what_was_given_time(rung, slow, passed, word):
    some = dataclasses.replace(
        rung, slow=slow, passed=np.arange(64) < passed, cases=rung.cases[:1] * 64, seeds=range(64),
        outcome=check.Outcome(*(np.repeat(x[:1], 64, axis=0) for x in (rung.outcome.value, rung.outcome.policy))),
    )  # fmt: skip
    assert verdict.word(report_of(some)) == word
    if word == "DIFFERS":
        assert "only when trained for longer, in 61 of 64 seeds" in verdict.verdict(report_of(some))
        meant = dataclasses.replace(some, meant="no clip")
        assert "each rung on 61 of 64 seeds (a failure rate below 11.7 %" in verdict.verdict(report_of(meant))


@pytest.mark.parametrize(
    ("in_quarter_steps", "tried", "value"),
    [(1.1, [0.25], 1.1), (0.3, [0.25, 1.0], 0.9), (0.0, [0.25], 0.0), (-0.2, [0.25], -0.2)],
    ids=["arrived", "on its way", "where it was", "further away"],
)
def test_what_is_nearer_but_has_far_to_go_is_trained_in_whole_steps(rung, monkeypatch, in_quarter_steps, tried, value):
    def at(value):  # the truth is V = 1, and twice the tolerance 0.2
        outcome = dataclasses.replace(rung.outcome, value=np.full_like(rung.outcome.value, value))
        return dataclasses.replace(rung, slow=True, outcome=outcome, passed=np.full(2, abs(value - 1) < 0.2))

    asked = []
    monkeypatch.setattr(
        check, "trained_longer", lambda _, kind, late, size, tell: asked.append(size) or [answers[size]]
    )
    answers = {0.25: at(in_quarter_steps), 1.0: at(0.9)}
    assert check.given_time(ppo, "ppo", [at(0.0)]) == [answers[tried[-1]]]
    assert asked == tried
    assert answers[tried[-1]].outcome.value[0, 0] == np.float32(value)


@pytest.mark.slow
@pytest.mark.parametrize("learning_rate", [2e-3, 5e-4], ids=["quarter steps", "whole steps"])
def test_more_time_is_given(monkeypatch, copy, learning_rate):
    for name, little in (("updates", 1), ("learning_rate", learning_rate)):
        monkeypatch.setitem(check.SETTINGS["ppo"], name, little)
    report = check.run("ppo", only=["constant"], num_seeds=2)
    assert [(x.slow, x.ok) for x in report.rungs] == [(True, True)]
    declared = check.run(copy(more='\nPROBE_MEANT = {"constant": "patience"}\n'), only=["constant"], num_seeds=2)
    assert verdict.verdict(declared).startswith("RIGHT")
    assert not declared.notes


def test_what_ends_further_from_the_truth_than_it_began_gets_no_more_time(rung):
    def late(value, holds=rung.probe.holds):
        outcome = dataclasses.replace(rung.outcome, value=np.full_like(rung.outcome.value, value))
        probe = dataclasses.replace(rung.probe, holds=holds)
        return dataclasses.replace(rung, probe=probe, outcome=outcome, passed=~rung.passed)

    # The truth is V = 1, an untrained V near 0, the tolerance 0.1.
    assert check.astray(late(-1.0))
    assert check.astray(late(np.nan))
    assert not check.astray(late(-1.0, holds="likeness"))
    assert not check.astray(late(0.0)), "it has not begun to learn"
    assert not check.astray(late(0.5))
    assert not check.astray(late(1.3)), "it has nearly arrived"


def test_what_no_check_has_run_is_not_called_right(copy, monkeypatch):
    """A new branch that is taken at settings of its own; `unused` is not the agent's, and does not count."""
    line = "    policy, value = forward(task, params, obs_moments, batch.obs)\n"
    branch = "    if task.config.num_envs == 999:\n        twice(1)\n"
    more = "\n\ndef twice(x):\n    return 2 * x\n\n\ndef unused(x):\n    return x\n"
    report = check.run(copy((line, line + branch), more=more), only=["policy_loss"])
    assert report.unseen == ("twice",)
    assert verdict.word(report) == "RIGHT"  # not all was asked for
    monkeypatch.setattr(verdict, "could_find", lambda report: (9, 10))
    whole = dataclasses.replace(report, whole=True)
    assert verdict.word(whole) == "NOT ENOUGH"
    assert "but none of them runs `twice`, at their settings." in verdict.verdict(whole)
    declared = check.run(
        copy((line, line + branch), more=f'{more}\nPROBE_MEANT = {{"twice": "by hand"}}\n'), only=["gaussian"]
    )
    assert (declared.unseen, declared.notes) == (("loss",), ())
