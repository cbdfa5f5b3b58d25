import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("name", ["scores", "speed"])
def test_tables_are_those_that_the_scripts_wrote(name):
    assert (ROOT / "scripts" / "results" / f"{name}.md").read_text() in README


@pytest.mark.parametrize("agent", ["ppo", "dqn", "cem"])
def test_expected_result_in_the_agent_is_what_was_measured(agent):
    measured = json.loads((ROOT / "scripts" / "results" / "scores.json").read_text())[f"{agent}/CartPole-v1"]
    assert len(measured["scores"]) == 32
    said = " ".join((ROOT / "rlref" / f"{agent}.py").read_text().split())
    expected = re.search(rf"`rlref train {agent}` ends on CartPole-v1 at an IQM of at least (\d+) over 32 seeds,", said)
    assert float(expected.group(1)) <= measured["iqm"] <= float(expected.group(1)) + 10


def test_planted_bugs_are_those_that_the_script_found():
    rows = json.loads((ROOT / "scripts" / "results" / "mutation_score.json").read_text()).values()
    for agent in ("ppo", "dqn", "cem"):
        counted = [r for r in rows if r["part"] == "full" and r["agent"] == agent and not r["equivalent"]]
        caught = sum(bool(row["check"]) for row in counted)
        assert f"{caught} of {len(counted)} planted in {agent.upper()}" in " ".join(README.split())


def test_calibration_figures_are_those_that_the_script_found():
    found = json.loads((ROOT / "scripts" / "results" / "verdicts.json").read_text())
    said = " ".join(README.split())
    worst = f"{100 * found['false_alarms']['WARN']:.1f} %"
    assert f"no ERROR in {found['healthy']} healthy seeds, and no WARN in more than {worst} of those" in said
    assert f"of {found['unhealthy']} unhealthy ones {100 * found['hit']:.0f} % are warned of" in said
    assert f"in {100 * found['right']:.0f} % the leading finding names the cause" in said


def test_search_is_the_one_that_was_run():
    said = (ROOT / "rlref" / "search" / "README.md").read_text()
    quoted = said.split("```text\n")[1].split("\n```")[0].split("\n[...]\n")
    printed = (ROOT / "scripts" / "results" / "sweep.txt").read_text()
    assert len(quoted) == 2
    assert all(part in printed for part in quoted)
    best, given = (re.search(rf" {name} +32 +([\d.]+) ", printed).group(1) for name in ("best", "as given"))
    reached = f"reaches an IQM of {float(best):.0f} in 100,000 steps, where the defaults reach {float(given):.0f}"
    assert reached in " ".join(README.split())
