"""The README and all other pages: what they say of results is what the scripts found, and links lead somewhere."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import child_environment

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
RESULTS = ROOT / "scripts" / "results"
PAGES = [ROOT / "README.md", *(p for name in ("rlref", "probes", "scripts") for p in (ROOT / name).rglob("*.md"))]
sys.path.insert(0, str(ROOT / "scripts"))

import front_door  # noqa: E402
import page  # noqa: E402
import scores  # noqa: E402
import speed  # noqa: E402


def test_it_is_short():
    assert README.count("\n") <= 140
    assert len(README.split()) <= 1400


def test_the_command_of_the_tests_is_the_one_that_ci_reads():
    assert len(re.findall(r"^pip install .*pytest$", README, re.MULTILINE)) == 1


def test_tables_are_those_that_the_scripts_write():
    for script, name in ((scores, "scores"), (speed, "speed")):
        results = json.loads((RESULTS / f"{name}.json").read_text())
        assert page.read(RESULTS / f"{name}.md", name) == script.report(results).strip("\n") + "\n"
    assert page.read(ROOT / "README.md", "table") == front_door.table()


def masked(text):
    """A transcript without its numbers, which another machine rounds otherwise."""
    return re.sub(r"-?\d[\d.,e-]*", "0", text)


@pytest.mark.slow
def test_the_broken_copy_is_told_of_in_these_words(tmp_path):
    assert masked(front_door.probe(tmp_path)) == masked(page.read(ROOT / "README.md", "probe"))


@pytest.mark.slow
def test_the_sick_run_is_told_of_in_these_words(tmp_path):
    # Which seeds, and what follows, is chance on another machine; what leads is not.
    said, written = front_door.diagnose(tmp_path), page.read(ROOT / "README.md", "diagnose")
    assert masked(said).splitlines()[:8] == masked(written).splitlines()[:8]


@pytest.mark.slow
def test_the_python_of_the_readme_runs(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    tuned = 'tuned.config("ppo", "CartPole-v1")'
    assert tuned in code
    code = code.replace(tuned, tuned[:-1] + ", total_timesteps=40_960)")
    code += "assert run.scores.shape == (8,)\nassert policy(__import__('numpy').zeros(4)) in (0, 1)\n"
    command = [sys.executable, "-W", "error", "-c", code]
    subprocess.run(command, cwd=tmp_path, env=child_environment(), check=True, timeout=500)


def anchors(path):
    """The names that headings of a page can be linked by."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    # A link begins with a bracket; mathematics and code may look like one, so without them.
    text = re.sub(r"```.*?```|`[^`]*`|\$[^$\n]*\$", "`code`", path.read_text(), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)|^\[\w+\]: (\S+)$", text, re.MULTILINE):
        link = link[0] or link[1]
        if link.startswith("http"):
            continue
        name, _, anchor = link.partition("#")
        target = Path(os.path.normpath(path.parent / name)) if name else path
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), link


@pytest.mark.parametrize("agent", ["ppo", "dqn", "cem"])
def test_expected_result_in_the_agent_is_what_was_measured(agent):
    measured = json.loads((RESULTS / "scores.json").read_text())[f"{agent}/CartPole-v1"]
    assert len(measured["scores"]) == 32
    said = " ".join((ROOT / "rlref" / f"{agent}.py").read_text().split())
    expected = re.search(rf"`rlref train {agent}` ends on CartPole-v1 at an IQM of at least (\d+) over 32 seeds,", said)
    assert float(expected.group(1)) <= measured["iqm"] <= float(expected.group(1)) + 10


@pytest.mark.parametrize("path", ["README.md", "rlref/manual.md", "probes/README.md"])
def test_planted_bugs_are_those_that_the_script_found(path):
    said = " ".join((ROOT / path).read_text().split())
    rows = json.loads((RESULTS / "mutation_score.json").read_text()).values()
    for agent in ("ppo", "dqn", "cem"):
        counted = [r for r in rows if r["part"] == "full" and r["agent"] == agent and not r["equivalent"]]
        caught = sum(bool(row["check"]) for row in counted)
        assert f"{caught} of {len(counted)} planted in {agent.upper()}" in said


def test_bugs_that_behaviour_alone_shows_are_those_that_the_script_found():
    said = " ".join((ROOT / "probes" / "README.md").read_text().split())
    table = (ROOT / "probes" / "planted_bugs.md").read_text()
    found = re.search(r"Under other names: caught (\d+) of (\d+) \(.*?\), .*? in (\d+) of these", table)
    assert "catches {} of the {} and places {}.".format(*found.groups()) in said


@pytest.mark.parametrize("path", ["README.md", "rlref/manual.md"])
def test_calibration_figures_are_those_that_the_script_found(path):
    said = " ".join((ROOT / path).read_text().split())
    found = json.loads((RESULTS / "verdicts.json").read_text())
    worst = f"{100 * found['false_alarms']['WARN']:.1f} %"
    assert f"no ERROR in {found['healthy']} healthy seeds, and no WARN in more than {worst} of those" in said
    assert f"of {found['unhealthy']} unhealthy ones {100 * found['hit']:.0f} % are warned of" in said
    assert f"in {100 * found['right']:.0f} % the leading finding names the cause" in said


def test_bugs_of_the_guide_are_counted_right():
    _, *bugs = (RESULTS / "guide-bugs.md").read_text().splitlines()[2:]
    shown, probed = sum("| healthy |" not in row for row in bugs), sum(row.endswith("` |") for row in bugs)
    assert probed == len(bugs)
    assert f"{len(bugs)} bugs, of which metrics show {shown} and probes all" in " ".join(README.split())


def test_search_is_the_one_that_was_run():
    said = (ROOT / "rlref" / "search" / "README.md").read_text()
    quoted = said.split("```text\n")[1].split("\n```")[0].split("\n[...]\n")
    printed = (RESULTS / "sweep.txt").read_text()
    assert len(quoted) == 2
    assert all(part in printed for part in quoted)
    best, given = (re.search(rf" {name} +32 +([\d.]+) ", printed).group(1) for name in ("best", "as given"))
    reached = f"reaches an IQM of {float(best):.0f} in 100,000 steps, where the defaults reach {float(given):.0f}"
    assert reached in " ".join((ROOT / "rlref" / "manual.md").read_text().split())
