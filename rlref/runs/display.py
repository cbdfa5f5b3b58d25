"""Where a training says what it is doing: on a terminal (cli/terminal.py), under a notebook's cell, or nowhere."""

import contextlib
import importlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np

from rlref import stats
from rlref.health import findings
from rlref.health.engine import Diagnosis
from rlref.health.explained import fit_in_words

LIVE = (
    ("return", "return_mean"),
    ("of the mean policy", "mean_policy_return"),
    ("entropy", "entropy"),
    ("KL", "kl"),
)
"""the diagnostics that are shown while it trains: label, metric"""


class Display(Protocol):
    """Where a training says what it is doing."""

    def say(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...

    def compiling(self, what: str) -> contextlib.AbstractContextManager[Any]: ...

    def progress(
        self, done: int, total: int, metrics: dict[str, np.ndarray], verdict: Callable[[], Diagnosis]
    ) -> None: ...


class Silent:
    """No display; warnings are Python's."""

    def say(self, text: str) -> None:
        pass

    def warn(self, text: str) -> None:
        warnings.warn(text, stacklevel=2)

    def compiling(self, what: str) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def progress(self, done: int, total: int, metrics: dict[str, np.ndarray], verdict: Callable[[], Diagnosis]) -> None:
        pass


class Notebook:
    """Two lines under a notebook's cell, drawn over as the training goes on; a pair of its own for each training."""

    SECONDS = 0.5
    """how long one drawing stands"""

    def __init__(self) -> None:
        self.shown: Any = None  # IPython's handle of what is drawn over
        self.drawn_at, self.next_verdict, self.verdict = 0.0, 0.0, ""
        self.began: tuple[float, int] | None = None  # when the first progress was reported, and how much was done then

    def say(self, text: str) -> None:
        print(text)

    def warn(self, text: str) -> None:
        print(f"warning: {text}")

    @contextlib.contextmanager
    def compiling(self, what: str) -> Iterator[None]:
        self.shown, self.began, self.next_verdict = None, None, 0.0
        began = time.monotonic()
        self.draw(f"XLA compiles {what}")
        yield
        self.draw(f"XLA compiled {what} in {time.monotonic() - began:.0f} s")

    def progress(self, done: int, total: int, metrics: dict[str, np.ndarray], verdict: Callable[[], Diagnosis]) -> None:
        now = time.monotonic()
        self.began = self.began or (now, done)
        if done < total and now < self.drawn_at + self.SECONDS:
            return
        if now > self.next_verdict or done == total:
            self.verdict = leading(verdict())[1]
            self.next_verdict = next_verdict(now)
        since, before = self.began
        took = now - since
        left = f", about {took * (total - done) / (done - before):.0f} s left" if before < done < total else ""
        bar = f"{'█' * (20 * done // total):░<20}"
        self.draw(f"{bar} {done / total:.0%} in {took:.0f} s{left}  {in_numbers(metrics)}\n{self.verdict}")

    def draw(self, text: str) -> None:
        what = {"text/plain": text}
        if self.shown is None:
            show = importlib.import_module("IPython.display").display  # it runs in IPython, if anywhere
            self.shown = show(what, raw=True, display_id=True)
        else:
            self.shown.update(what, raw=True)
        self.drawn_at = time.monotonic()


def default() -> Display:
    """Where the kernel of a notebook runs, one that the notebook shows; else none."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    # By name: a script need not have it, and Colab's is a class under it. In IPython on a terminal it is another one.
    kernel = any(parent.__name__ == "ZMQInteractiveShell" for parent in type(shell).__mro__)
    return Notebook() if kernel else Silent()


def in_numbers(metrics: dict[str, np.ndarray]) -> str:
    """LIVE, how well values fit, and the speed, at the last update of `metrics` `[rows, updates]`.

    IQM over the seeds where it is defined.
    """
    live = [f"{label} {stats.iqm(metrics[name][:, -1]):.4g}" for label, name in LIVE if name in metrics]
    if "explained_variance" in metrics:
        live.append(fit_in_words(metrics, short=True))
    return "  ".join([*live, f"{metrics['steps_per_second'][0, -1]:,.0f} steps/s"])


def leading(diagnosis: Diagnosis) -> tuple[str, str]:
    """The worst severity, '' for none above INFO, and the finding that leads, in a line."""
    worst = diagnosis.above_info
    return (worst[0].worst, findings.sentence(worst[0])) if worst else ("", "healthy so far")


def next_verdict(began: float) -> float:
    """When to ask for a verdict again after one that was asked for at `began`: the checks may take 2 % of the time."""
    now = time.monotonic()
    return now + max(1.0, 50 * (now - began))
