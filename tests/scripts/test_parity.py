"""The comparison with Stable-Baselines3, without Stable-Baselines3: what is ours of it."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.mark.parametrize("kind", ["Box", pytest.param("Discrete", marks=pytest.mark.slow)])
def test_the_two_lines_do_what_is_said_of_them(monkeypatch, kind):
    monkeypatch.syspath_prepend(SCRIPTS)
    parity, mutants = importlib.import_module("parity"), importlib.import_module("mutants")
    source = (SCRIPTS.parent / "rlref" / "ppo.py").read_text()
    given = parity.problem(kind, np.random.default_rng(0))
    mine = parity.ours(source, kind, given)
    other = parity.ours(mutants.plant("", source, parity.LINES.values()), kind, given)
    n = parity.BATCH
    np.testing.assert_allclose(other["value_loss"], 2 * mine["value_loss"], rtol=1e-6)
    np.testing.assert_allclose(other["policy_loss"], mine["policy_loss"] * np.sqrt((n - 1) / n), atol=1e-6)
    assert mine["clip_fraction"] > 0.2, "else it is not seen how ratios are clipped"
    norm = np.linalg.norm(mine[parity.GRADIENT])
    np.testing.assert_allclose(norm, parity.MAX_NORM, rtol=1e-5)


def test_what_is_committed_differs_in_the_two_lines_alone(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)
    parity = importlib.import_module("parity")
    found = json.loads((SCRIPTS / "results" / "parity.json").read_text())
    assert parity.differences(found) == []
    assert parity.differences({"two lines changed": found["as it is"]}), "else the two lines change nothing"
    for name in found["two lines changed"]["Box"]:
        worse = {"two lines changed": {"Box": found["two lines changed"]["Box"] | {name: float("nan")}}}
        assert parity.differences(worse) == [f"Box, {name}: nan"]
