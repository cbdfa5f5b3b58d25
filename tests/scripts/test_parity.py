"""The comparison with Stable-Baselines3, without Stable-Baselines3: what is ours of it."""

import importlib
from pathlib import Path

import numpy as np
import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.mark.parametrize("kind", ["Discrete", "Box"])
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
