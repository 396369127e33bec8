"""The first Ctrl-C asks politely, the second insists."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from spillway.cli.outcome import say


@contextmanager
def polite(what: str = "finishing; Ctrl-C again to stop at once") -> Iterator[threading.Event]:
    """An event that the first SIGINT or SIGTERM sets; the second SIGINT interrupts as usual."""
    stop = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            signal.default_int_handler(number, frame)
        stop.set()
        say(what)

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
