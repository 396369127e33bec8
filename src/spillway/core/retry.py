"""When a message that came back is tried again, and the room where it waits.

The waiting room keeps two views of the same runs: those that are due (`ripe`) and those that are
not yet. Moving a run from one to the other follows the clock alone, so it is no event and never
counts as a difference between two states.
"""

from dataclasses import dataclass
from heapq import heappop, heappush

from spillway.core.ranges import RangeMap


def backoff_ms(attempt: int, base_ms: int, cap_ms: int, jitter: float) -> int:
    """Exponential with full jitter: anything between 0 and min(cap, base x 2^(attempt-1))."""
    ceiling = min(cap_ms, base_ms << min(attempt - 1, 40))
    return int(ceiling * jitter)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a version is not with a holder: how often it was, and when it may go out again."""

    attempts: int
    due_ms: int
    error: str | None = None


class WaitingRoom:
    """Versions that wait for a later time, or for the next lease."""

    __slots__ = ("_due", "_unripe", "ripe")

    def __init__(self) -> None:
        self.ripe: RangeMap[Waiting] = RangeMap()
        self._unripe: RangeMap[Waiting] = RangeMap()
        # Versions may leave before they are due: an entry is a reminder to look, not a fact.
        self._due: list[tuple[int, int, int]] = []

    def put(self, start: int, end: int, waiting: Waiting) -> None:
        """Let versions wait."""
        self._unripe.put(start, end, waiting)
        heappush(self._due, (waiting.due_ms, start, end))

    def ripen(self, now_ms: int) -> None:
        """Move what is due by now to the ripe side."""
        while self._due and self._due[0][0] <= now_ms:
            _, start, end = heappop(self._due)
            for s, e, waiting in list(self._unripe.within(start, end)):
                if waiting.due_ms <= now_ms:
                    self._unripe.take(s, e)
                    self.ripe.put(s, e, waiting)

    def take(self, start: int, end: int) -> list[tuple[int, int, Waiting]]:
        """Remove and return what lies inside `start..end`, due or not."""
        taken = self.ripe.take(start, end) + self._unripe.take(start, end)
        return sorted(taken, key=lambda run: run[0])

    def next_due_ms(self) -> int | None:
        """When the next version becomes due; None when none waits for a time."""
        while self._due:
            due_ms, start, end = self._due[0]
            if any(waiting.due_ms == due_ms for _, _, waiting in self._unripe.within(start, end)):
                return due_ms
            heappop(self._due)
        return None

    def get(self, version: int) -> Waiting | None:
        """How a version waits, if it does."""
        return self.ripe.get(version) or self._unripe.get(version)

    def first_unripe_retry(self) -> int | None:
        """The lowest version that was tried before and may not go out yet."""
        return next((start for start, _, waiting in self._unripe if waiting.attempts), None)

    def within(self, start: int, end: int) -> list[tuple[int, int, Waiting]]:
        """All runs inside `start..end`, in version order."""
        runs = [*self.ripe.within(start, end), *self._unripe.within(start, end)]
        return sorted(runs, key=lambda run: run[0])

    def runs(self) -> list[tuple[int, int, Waiting]]:
        """Everything that waits, in version order, the same whatever has ripened."""
        last = max(self.ripe.last, self._unripe.last)
        return list(RangeMap(self.within(1, last))) if last else []

    @property
    def total(self) -> int:
        """How many versions wait."""
        return self.ripe.total + self._unripe.total

    @property
    def unripe_total(self) -> int:
        """How many versions wait for a later time."""
        return self._unripe.total
