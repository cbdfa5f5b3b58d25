import json
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def test_score_table_is_the_one_that_the_script_wrote():
    assert (ROOT / "scripts" / "results" / "scores.md").read_text() in README


def test_speed_figures_are_those_that_the_script_wrote():
    speed = json.loads((ROOT / "scripts" / "results" / "speed.json").read_text())
    assert f"{speed['rejax']['ratio']:.2f} x" in README
    assert f"{100 * speed['diagnostics']['cost']:.1f} %" in README
    assert f"{speed['memory'][-1]['peak_rss_mb']:,} MB" in README


def test_expected_result_in_the_agent_is_what_was_measured():
    scores = json.loads((ROOT / "scripts" / "results" / "scores.json").read_text())["CartPole-v1"]["scores"]
    assert len(scores) == 32
    assert f"the worst seed at {min(scores):.0f};" in (ROOT / "rlref" / "ppo.py").read_text()


def test_planted_bugs_are_those_that_the_script_found():
    results = ROOT / "scripts" / "results"
    assert (results / "mutants.md").read_text().strip() in (ROOT / "probes" / "README.md").read_text()
    counted = [row for row in json.loads((results / "mutants.json").read_text()) if not row["equivalent"]]
    caught = sum(bool(row["first"]) for row in counted)
    assert f"it catches {caught} of {len(counted)} planted bugs" in README
