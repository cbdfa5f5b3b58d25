"""scripts/memory.py: its page is what its results say, and a row can be made."""

import importlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def memory(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    sys.modules.pop("memory", None)
    return importlib.import_module("memory")


def test_the_page_is_what_the_results_say(memory):
    rows = json.loads((memory.RESULTS / "memory.json").read_text())
    page = memory.RESULTS / "memory.md"
    assert memory.page.read(page, "scripts/memory.py").strip() == memory.table(rows)
    assert memory.page.read(page, "speed").strip() == memory.speed_table(rows["speed"])
    of_tasks = {f"{agent}/{name}" for name, task in memory.TASKS.items() for agent in task.agents}
    assert rows.keys() == of_tasks | {"speed"}


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["ppo_rnn", "ppo", "stacked"])
def test_a_row(memory, agent):
    task = memory.Task("MemoryChain-bsuite", {"total_timesteps": 2_048}, {"memory_length": 3}, seeds=2)
    row = memory.trained(task, agent)
    assert len(row["scores"]) == 2
    assert row["steps"] == 2_048
    assert memory.cell(row | {"scores": [1.0, 2.0, 3.0, 4.0]}).startswith("2.50 [")
