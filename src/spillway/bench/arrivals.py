"""When the next batch is to be sent: at once after the last one (closed), or by schedule (open)."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

Send = Callable[[int, float], None]


class Arrivals(Protocol):
    """Hands batch numbers to producers that are free."""

    def ready(self, send: Send) -> None: ...
    def begin(self, start: float) -> None: ...
    def stop(self) -> None: ...


class ClosedLoop:
    """A producer that is free sends the next batch at once."""

    def __init__(self, first: int, batches: int) -> None:
        self._next = first
        self._end = first + batches
        self._stopped = False

    def ready(self, send: Send) -> None:
        if self._stopped or self._next == self._end:
            return
        number = self._next
        self._next += 1
        send(number, time.perf_counter())

    def begin(self, start: float) -> None:
        """Nothing to do: the producers set the pace."""

    def stop(self) -> None:
        self._stopped = True


class OpenLoop:
    """Batch k is due at `start + k / rate`, whether a producer is free then or not.

    A batch that waits for a free producer keeps its due time, so the wait counts as latency: a slow
    broker cannot slow the measurement down (coordinated omission).
    """

    def __init__(self, first: int, rate: float, batches: int) -> None:
        self.late_s_max = 0.0
        self._first = first
        self._rate = rate
        self._batches = batches
        self._start = 0.0
        self._free: deque[Send] = deque()
        self._backlog: deque[int] = deque()
        self._stopped = threading.Event()

    def due_at(self, number: int) -> float:
        return self._start + (number - self._first) / self._rate

    def ready(self, send: Send) -> None:
        if self._backlog:
            number = self._backlog.popleft()
            send(number, self.due_at(number))
        else:
            self._free.append(send)

    def begin(self, start: float) -> None:
        self._start = start
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._pace, args=(loop,), name="pacer", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        self._backlog.clear()

    def arrive(self, number: int) -> None:
        if self._stopped.is_set():
            return
        if self._free:
            self._free.popleft()(number, self.due_at(number))
        else:
            self._backlog.append(number)

    def _pace(self, loop: asyncio.AbstractEventLoop) -> None:
        """A thread, because timers of event loops are a millisecond coarse."""
        for number in range(self._first, self._first + self._batches):
            early_s = self.due_at(number) - time.perf_counter()
            if early_s > 0:
                time.sleep(early_s)
            self.late_s_max = max(self.late_s_max, time.perf_counter() - self.due_at(number))
            if self._stopped.is_set():
                return
            try:
                loop.call_soon_threadsafe(self.arrive, number)
            except RuntimeError:
                return
