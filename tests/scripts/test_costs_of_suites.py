"""scripts/suites.py, on environments that need no suite."""

import importlib
from pathlib import Path

import pytest


@pytest.fixture
def suites(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "scripts")
    return importlib.import_module("suites")


@pytest.mark.slow
def test_shares_are_of_whole_updates(monkeypatch, suites):
    monkeypatch.setattr(suites, "SECONDS", 0.0)
    (row,) = suites.shares("CartPole-v1")
    seconds = row["shares"]
    assert [*seconds] == ["update", "rollout", "environments"]
    assert min(seconds.values()) > 0


def test_shares_add_up(suites):
    row = {"shares": {"update": 2.0, "rollout": 1.0, "environments": 0.5}}
    assert suites.shares_of(row) == "25, 25, 50"
    assert suites.shares_of({}) == ""
