"""The smallest change of a copy without which something passes."""

import functools
import itertools
import types
from pathlib import Path

import numpy as np
import pytest

from probes import check
from probes.changes import Changes, Hunk, changes
from probes.ladder import LADDER
from probes.undo import smallest, unbound
from rlref import ppo

SOURCE = Path(ppo.__file__).read_text()


def edited(*edits, source=SOURCE):
    for old, new in edits:
        assert source.count(old) == 1
        source = source.replace(old, new)
    return source


def line_with(text, source):
    return source[: source.index(text)].count("\n") + 1


EDITS = [
    ("RING = 100 ", "RING = 200 "),
    ("- config.ent_coef * policy", "+ config.ent_coef * policy"),
    ("advantage = (advantage - advantage.mean())", "advantage = (advantage + advantage.mean())"),
    ("log_ratio = policy.log_prob(batch.action)", "log_ratio = 2 * policy.log_prob(batch.action)"),
]


@pytest.mark.parametrize("bad", range(len(EDITS)))
def test_the_one_change_that_matters_is_found(bad):
    text = edited(*EDITS)
    found = changes(text)
    asked = []

    def passes(text):
        asked.append(text)
        return EDITS[bad][0] in text

    undo = smallest(found, passes, {"loss"}, 10)
    line = line_with(EDITS[bad][1], text)
    assert undo.lines == [(line, line)]
    assert str(undo) == f"undo line {line}, in `{'RING' if bad == 0 else 'loss'}`"
    assert len(asked) <= len(found.hunks) + 1


def test_two_changes_that_matter_only_together_are_found_with_delta_debugging():
    text = edited(*EDITS)
    wanted = [EDITS[1], EDITS[3]]
    undo = smallest(changes(text), lambda text: all(old in text for old, _ in wanted), (), 10)
    assert sorted(first for first, _ in undo.lines) == sorted(line_with(new, text) for _, new in wanted)


def test_of_lines_changed_together_the_one_that_matters_is_found():
    lines = SOURCE.splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if line.startswith("def gae("))
    body = range(at + 3, at + 9)
    copy = [f"{line.rstrip()}  #\n" if i in body and line.strip() else line for i, line in enumerate(lines)]
    bad = [i for i in body if lines[i].strip()][2]
    undo = smallest(changes("".join(copy)), lambda text: lines[bad] in text, (), 10)
    assert undo.lines == [(bad + 1, bad + 1)]


def test_what_was_only_left_out_is_put_back():
    text = edited(("    if is_discrete(space):\n        return jax.nn.one_hot(obs, space.n)\n", ""))
    undo = smallest(changes(text), lambda text: "jax.nn.one_hot(obs" in text, (), 10)
    assert str(undo).startswith("put back what stood after line ")
    assert str(undo).endswith(", in `features`")


def test_nothing_is_named_where_the_time_is_over():
    assert smallest(changes(edited(*EDITS)), lambda text: True, (), -1) is None


def test_what_is_found_by_the_time_is_given(monkeypatch):
    lines, sizes = [f"x{i} = {i}\n" for i in range(8)], []
    hunks = tuple(Hunk(i, i + 1, (f"x{i} = 0\n",)) for i in range(8))
    found = Changes("", "".join(lines), hunks, (), False)

    def passes(text):
        return all(f"x{i} = 0\n" in text for i in (2, 5))

    for seconds in range(40):
        clock = itertools.count()
        monkeypatch.setattr("probes.undo.time", types.SimpleNamespace(monotonic=functools.partial(next, clock)))
        undo = smallest(found, passes, (), seconds)
        sizes.append(len(undo.hunks) if undo else 0)
        assert undo is None or passes(found.undone(undo.hunks))
    assert sizes == sorted(sizes, key=lambda n: (n > 0, -n))
    assert {*sizes} >= {0, 4, 2}


@pytest.mark.slow
def test_what_a_quicker_check_finds_is_tried_first():
    text, asked = edited(*EDITS), []

    def passes(text):
        asked.append(text)
        return EDITS[2][0] in text

    undo = smallest(changes(text), passes, (), 10, quick=lambda text: EDITS[2][0] in text)
    line = line_with(EDITS[2][1], text)
    assert undo.lines == [(line, line)]
    assert len(asked) == 1
    asked.clear()
    undo = smallest(changes(text), passes, (), 10, quick=lambda text: EDITS[0][0] in text)  # it leads astray
    assert undo.lines == [(line, line)]
    undo = smallest(changes(text), passes, (), 10, quick=lambda text: False)
    assert undo.lines == [(line, line)]


def test_settings_are_tried_last():
    both = [("update_epochs: int = static(4)", "update_epochs: int = static(5)"), EDITS[2]]
    text = edited(*both)
    undo = smallest(changes(text), lambda text: any(old in text for old, _ in both), (), 10)
    assert undo.names == ("loss",)
    assert smallest(changes(text), lambda text: both[0][0] in text, (), 10).names == ("Config",)


HELPER = (
    "def discounted_returns(",
    """def doubled(x):
    return twice(x)


def twice(x):
    return 2 * x


def thrice(x):
    return twice(x) + x


def discounted_returns(""",
)


def test_new_functions_that_nothing_uses_then_are_named():
    call = ("    target = advantage + value\n", "    target = doubled(advantage) + value\n")
    text = edited(HELPER, call)
    undo = smallest(changes(text), lambda text: call[0] in text, (), 10)
    line, first = line_with(call[1].strip(), text), line_with("def doubled(", text)
    assert str(undo) == (
        f"undo line {line}, in `update`, and no more use `doubled` (lines {first}-{first + 1}) "
        f"and `twice` (lines {first + 4}-{first + 5})"
    )
    # What the file uses elsewhere as well is not.
    elsewhere = ("    return state, {name: jnp", "    thrice(0)\n    return state, {name: jnp")
    undo = smallest(changes(edited(HELPER, call, elsewhere)), lambda text: call[0] in text, (), 10)
    assert [x.name for x in undo.unused] == ["doubled"]


@pytest.mark.parametrize(("failing", "first"), [([0], 0), ([30], 23), ([3, 60, 61], 54), ([7, 8, 9], 2)])
def test_the_seeds_to_search_with_are_those_that_fail(failing, first):
    passed = ~np.isin(np.arange(64), failing)
    rung = check.RungResult(LADDER["bandit"], "ppo", (), None, None, passed, range(100, 164))
    assert check.worst_seeds(rung) == range(100 + first, 108 + first)
    few = check.RungResult(LADDER["bandit"], "ppo", (), None, None, passed[:3], range(5, 8))
    assert check.worst_seeds(few) == range(5, 8)


def test_a_name_that_is_bound_nowhere_is_seen_before_anything_is_traced():
    text, asked = edited(HELPER, ("    target = advantage + value\n", "    target = doubled(advantage) + value\n")), []

    def passes(text):
        asked.append(text)
        return "doubled" not in text

    smallest(changes(text), passes, (), 10)
    assert not any("doubled(advantage)" in x and "def doubled" not in x for x in asked)
    assert not unbound(SOURCE)
    for source in ("x = y", "def f(a): return b", "import a.b\nc", "lambda x: z", "if"):
        assert unbound(source)
    for source in ("from a import *\ny", "import a.b\na", "import a as b\nb", "try: 1\nexcept E as e: e\nclass E: 1"):
        assert not unbound(source)


def test_many_changes_are_counted():
    more = ("ratio = jnp.exp(log_ratio)", "ratio = jnp.exp(2 * log_ratio)"), ("(ratio - 1 - log", "(ratio - 2 - log")
    text = edited(*EDITS, *more)
    undo = smallest(changes(text), lambda text: text == SOURCE, (), 10)
    assert str(undo).startswith(f"undo the {len(undo.hunks)} changes in lines {line_with('RING = 200', text)}-")
    assert str(undo).endswith(", of `RING`, `loss`")
