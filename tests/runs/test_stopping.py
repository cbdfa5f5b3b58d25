"""Ctrl-C and SIGTERM, as a training takes them."""

import signal
import threading

import pytest

from rlref.runs import stopping


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_noted_and_the_second_interrupts_at_once(number, capsys):
    before = [signal.getsignal(x) for x in (signal.SIGINT, signal.SIGTERM)]
    with stopping.signals() as stop:
        assert stop.signal == 0
        signal.raise_signal(number)
        assert stop.signal == number
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert capsys.readouterr().err == "\nstopping after this chunk; Ctrl-C again to stop at once\n"
    assert [signal.getsignal(x) for x in (signal.SIGINT, signal.SIGTERM)] == before


def test_signals_are_as_before_after_an_error():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError), stopping.signals():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) == before


def test_outside_the_main_thread_nothing_is_set():
    noted = []

    def train():
        with stopping.signals() as stop:
            noted.append((stop.signal, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=train)
    thread.start()
    thread.join(60)
    assert noted == [(0, signal.getsignal(signal.SIGINT))]
