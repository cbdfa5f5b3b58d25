"""Ctrl-C and SIGTERM: a training ends after the chunk under way."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any


class Stop:
    """Whether the training is to end after the chunk under way."""

    signal = 0
    """the number of the signal that said so"""


@contextlib.contextmanager
def signals() -> Iterator[Stop]:
    """What Ctrl-C or SIGTERM sets; a second one interrupts at once. Outside the main thread, never set."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handler(signum: int, frame: Any) -> None:
        if stop.signal:
            raise KeyboardInterrupt
        stop.signal = signum
        print("\nstopping after this chunk; Ctrl-C again to stop at once", file=sys.stderr)

    previous = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, old in previous.items():
            signal.signal(number, old)
