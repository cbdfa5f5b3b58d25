"""Where a training says what it is doing: on a terminal (rlref/cli/terminal.py), or nowhere."""

import contextlib
import warnings
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from rlref.health.engine import Diagnosis


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
