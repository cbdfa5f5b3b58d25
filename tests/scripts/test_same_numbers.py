"""The comparison that proves a refactoring: it must see one bit, and nothing where there is nothing."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import same_numbers  # noqa: E402


@pytest.fixture
def metrics():
    shape = same_numbers.SEEDS, same_numbers.UPDATES
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    return {"kl": x, "entropy": np.where(x > 0, np.float32(np.nan), x), "steps_per_second": x}


def test_equal_metrics_are_equal_and_speed_does_not_count(metrics):
    assert (
        same_numbers.differences(metrics, metrics | {"steps_per_second": metrics["kl"] + 1, "new": metrics["kl"]}) == []
    )


def test_one_bit_shows_with_its_place(metrics):
    other = metrics["kl"].copy()
    other[2, 7] = np.nextafter(other[2, 7], np.float32(9))
    (found,) = same_numbers.differences(metrics, metrics | {"kl": other})
    assert found.startswith("kl: ")
    assert found.endswith("in update 7 of seed 2")


def test_a_sign_of_zero_shows(metrics):
    zero, other = np.zeros_like(metrics["kl"]), np.zeros_like(metrics["kl"])
    other[1, 1] = -0.0
    assert len(same_numbers.differences({"kl": zero}, {"kl": other})) == 1


@pytest.mark.parametrize("place", [(0, 0), (3, 19)])
def test_a_number_where_the_other_is_undefined_shows(metrics, place):
    other = metrics["entropy"].copy()
    other[place] = 1.0 if np.isnan(other[place]) else np.nan
    assert len(same_numbers.differences(metrics, metrics | {"entropy": other})) == 1


def test_fewer_updates_show(metrics):
    assert same_numbers.differences(metrics, metrics | {"kl": metrics["kl"][:, :3]}) == ["kl: (4, 20) and (4, 3)"]


def test_an_unknown_case_is_wrong_usage():
    command = [sys.executable, str(SCRIPTS / "same_numbers.py"), "HEAD", "sarsa"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2
    assert "there are the cases ppo-discrete" in done.stderr
