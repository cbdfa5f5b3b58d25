"""What a training shows under a notebook's cell, and that a script stays silent."""

import sys
import types

import numpy as np
import pytest

import rlref
from rlref import metrics, ppo
from rlref.health.checks import CHECKS
from rlref.health.engine import Diagnosis
from rlref.health.findings import Finding
from rlref.runs import display
from rlref.runs.display import Notebook, Silent

HEALTHY = Diagnosis([], ["kl_high"], {})
WARNED = Diagnosis([Finding("kl_high", "WARN", "KL high", "", "", "", onset=3)], ["kl_high"], {})
STEP = {"steps_per_second": np.full((2, 1), 1234.0), "return_mean": np.full((2, 1), 21.5)}


class ZMQInteractiveShell:
    """By name what IPython's kernels have."""


class Colab(ZMQInteractiveShell):
    pass


class TerminalInteractiveShell:
    pass


def put_shell(shell, monkeypatch):
    """Let IPython run with `shell`; returns the texts that are shown, a list for each place under the cell."""
    shown = []

    class Handle:
        def update(self, what, raw):
            shown[-1].append(what["text/plain"])

    def show(what, raw, display_id):
        shown.append([what["text/plain"]])
        return Handle()

    ipython, its_display = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    ipython.get_ipython, its_display.display = lambda: shell, show
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", its_display)
    return shown


@pytest.mark.parametrize(
    ("shell", "kind"),
    [(None, Silent), (TerminalInteractiveShell(), Silent), (ZMQInteractiveShell(), Notebook), (Colab(), Notebook)],
)
def test_only_the_kernel_of_a_notebook_gets_a_display(shell, kind, monkeypatch):
    put_shell(shell, monkeypatch)
    assert type(display.default()) is kind


def test_without_ipython_there_is_no_display(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert type(display.default()) is Silent


def test_progress_is_two_lines(monkeypatch):
    shown = put_shell(ZMQInteractiveShell(), monkeypatch)
    one = Notebook()
    one.progress(1, 4, STEP, lambda: WARNED)
    assert shown == [["█████░░░░░░░░░░░░░░░ 25% in 0 s  return 21.5  1,234 steps/s\nWARN: KL high (update 3)"]]


def test_what_is_left_follows_from_what_was_done_here(monkeypatch):
    shown = put_shell(ZMQInteractiveShell(), monkeypatch)
    now = [100.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    one = Notebook()
    one.progress(50, 100, STEP, lambda: HEALTHY)  # resumed there
    now[0] += 10
    one.progress(75, 100, STEP, lambda: HEALTHY)
    now[0] += 10
    one.progress(100, 100, STEP, lambda: HEALTHY)
    assert [text.partition("  ")[0].split(" ", 1)[1] for text in shown[0]] == [
        "50% in 0 s",
        "75% in 10 s, about 10 s left",
        "100% in 20 s",
    ]


def test_drawn_twice_a_second_at_most_and_at_the_end(monkeypatch):
    shown = put_shell(ZMQInteractiveShell(), monkeypatch)
    now, asked = [100.0], []
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])

    def verdict():
        asked.append(now[0])
        return HEALTHY

    one = Notebook()
    for done in range(1, 41):  # ten seconds, four progresses each
        one.progress(done, 41, STEP, verdict)
        now[0] += 0.25
    assert len(shown[0]) == 20
    assert len(asked) <= 10  # a verdict a second at most
    one.progress(41, 41, STEP, verdict)
    assert shown[0][-1].startswith("█" * 20 + " 100%")
    assert asked[-1] == now[0]


def test_every_training_has_lines_of_its_own(monkeypatch):
    shown = put_shell(ZMQInteractiveShell(), monkeypatch)
    one = Notebook()
    for _ in range(2):
        with one.compiling("the training"):
            pass
        one.progress(1, 1, STEP, lambda: HEALTHY)
    assert len(shown) == 2
    for texts in shown:
        assert texts[:2] == ["XLA compiles the training", "XLA compiled the training in 0 s"]
        assert texts[-1].endswith("healthy so far")


def test_what_is_said_and_warned_of_is_text(capsys):
    Notebook().say("rows 0 to 3")
    Notebook().warn("the disk is full")
    assert capsys.readouterr().out == "rows 0 to 3\nwarning: the disk is full\n"


@pytest.mark.slow
def test_a_training_shows_itself_in_a_notebook_alone(monkeypatch, capsys):
    shown = put_shell(ZMQInteractiveShell(), monkeypatch)
    config = ppo.Config(total_timesteps=3 * 8, num_envs=2, num_steps=4, num_minibatches=1, hidden_sizes=(4,))
    rlref.train("ppo", config, num_seeds=1)
    assert len(shown) == 1
    assert shown[0][-1].startswith("█" * 20 + " 100%")
    rlref.train("ppo", config, num_seeds=1, display=Silent())
    put_shell(None, monkeypatch)
    rlref.train("ppo", config, num_seeds=1)
    assert len(shown) == 1
    assert capsys.readouterr() == ("", "")


def test_what_is_shown_live_is_a_metric():
    assert {name for _, name in display.LIVE} <= set(metrics.BY_NAME)


def test_only_what_is_worse_than_info_leads():
    infos = [Finding("kl_tiny", "INFO", CHECKS["kl_tiny"].title, "", "", "")]
    assert display.leading(Diagnosis(infos, [], {})) == ("", "healthy so far")
