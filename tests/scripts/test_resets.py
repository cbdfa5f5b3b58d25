"""scripts/resets.py, on an environment of the tests."""

import importlib
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from rlref.envs.suites import base


class Counting(base.SuiteEnv):
    """Ends after as many steps as it began with."""

    id, limit = "toy:counting", 5
    observations, actions = base.unbounded((1,)), base.discrete(2)

    def first(self, key):
        left = jax.random.randint(key, (), 1, 9)
        return left[None], left

    def next(self, key, inner, action):
        return base.Step((inner - 1)[None], inner - 1, 1.0, inner <= 1)


@pytest.fixture
def resets(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "scripts")
    return importlib.import_module("resets")


def test_each_way_of_resetting_is_measured(monkeypatch, resets):
    monkeypatch.setattr(resets, "make_env", lambda _: (Counting(), base.Params(5)))
    for name, value in {"STEPS": 16, "SECONDS": 0.0, "REPEATS": 2}.items():
        monkeypatch.setattr(resets, name, value)
    row = resets.measured("toy:counting")
    assert row["starts"] == 16
    assert row["kilobytes"] == pytest.approx((4 + 1 + 4) / 1e3)  # time, truncated, what is left
    assert {name: len(x) for name, x in row["speeds"].items()} == {"every": 2, "pool": 2, "all": 2}
    monkeypatch.setattr(resets, "IDS", ("toy:counting",))
    line = resets.table({"toy:counting": row}).splitlines()[-1]
    assert line.count("|") == len(resets.HEADS) + 1


def test_the_page_is_what_the_results_say(resets):
    rows = json.loads((resets.RESULTS / "resets.json").read_text())
    page = resets.RESULTS / "resets.md"
    assert resets.page.read(page, "scripts/resets.py").strip() == resets.table(rows)


def test_all_are_reset_at_each_step_in_the_third_way(resets):
    ended = jnp.array([True, False])
    env = Counting()
    old = jax.vmap(env.begun, (0, None))(jax.random.split(jax.random.key(0), 2), base.Params(5))
    keys = jax.random.split(jax.random.key(1), 2)
    got = jax.vmap(lambda *x: resets.all_reset(*x, env=env), (0, 0, None, 0))(ended, keys, base.Params(5), old)
    new = jax.vmap(env.begun, (0, None))(keys, base.Params(5))
    for x, y, z in zip(*map(jax.tree.leaves, (got, new, old)), strict=True):
        assert x[0] == y[0]
        assert x[1] == z[1]
