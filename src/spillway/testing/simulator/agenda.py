"""The clock of the simulated world: what happens next, and when."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Deed = Callable[..., None]


class Agenda:
    """Deeds in order of time; those of the same time in the order in which they were planned."""

    def __init__(self, start_ms: int) -> None:
        self.now_ms = start_ms
        self._planned = 0
        self._heap: list[tuple[int, int, Deed, tuple[Any, ...]]] = []

    def after(self, delay_ms: int, deed: Deed, *values: object) -> None:
        """Plan a deed."""
        self._planned += 1
        heappush(self._heap, (self.now_ms + delay_ms, self._planned, deed, values))

    def step(self) -> bool:
        """Let time pass to the next deed and do it; false when there is none."""
        if not self._heap:
            return False
        self.now_ms, _, deed, values = heappop(self._heap)
        deed(*values)
        return True
