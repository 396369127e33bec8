"""When a message that came back is tried again, and the room where it waits.

The waiting room keeps two views of the same runs: those that are due (`ripe`) and those that are
not yet. Moving a run from one to the other follows the clock alone, so it is no event and never
counts as a difference between two states.
"""

from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from spillway.core.ranges import Range, RangeMap, RangeSet, merged

REMINDERS_SPARE = 64
"""How many reminders beyond twice the runs are kept before they are made afresh."""


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

    __slots__ = ("_due", "_ripened_ms", "retrying", "ripe", "scheduled", "unripe")

    def __init__(self) -> None:
        self.ripe: RangeMap[Waiting] = RangeMap()
        self.unripe: RangeMap[Waiting] = RangeMap()
        # What is unripe, told apart: tried before, or never handed out (its own time has not come).
        self.retrying = RangeSet()
        self.scheduled = RangeSet()
        # Versions may leave before they are due: an entry is a reminder to look, not a fact.
        self._due: list[tuple[int, int, int]] = []
        self._ripened_ms = 0

    def put(self, start: int, end: int, waiting: Waiting) -> None:
        """Let versions wait."""
        self._put_unripe(start, end, waiting)
        heappush(self._due, (waiting.due_ms, start, end))
        if len(self._due) > 2 * len(self.unripe) + REMINDERS_SPARE:
            self._due = [(waiting.due_ms, start, end) for start, end, waiting in self.unripe]
            heapify(self._due)

    def _put_unripe(self, start: int, end: int, waiting: Waiting) -> None:
        self.unripe.put(start, end, waiting)
        (self.retrying if waiting.attempts else self.scheduled).add(start, end)

    def _take_unripe(self, start: int, end: int) -> list[tuple[int, int, Waiting]]:
        self.retrying.discard(start, end)
        self.scheduled.discard(start, end)
        return self.unripe.take(start, end)

    def ripen(self, now_ms: int) -> None:
        """Move what is due by now to the ripe side, and nothing else."""
        if now_ms < self._ripened_ms:
            self._unripen(now_ms)
        self._ripened_ms = now_ms
        if self._due and self._due[0][0] <= now_ms:
            self._pick(now_ms)

    def _pick(self, now_ms: int) -> None:
        spans: list[Range] = []
        while self._due and self._due[0][0] <= now_ms:
            spans.append(heappop(self._due)[1:])
        # Neighbours together: one move of the lists behind them instead of one for each.
        for span in merged(tuple(spans)):
            for start, end, waiting in self._take_unripe(*span):
                if waiting.due_ms <= now_ms:
                    self.ripe.put(start, end, waiting)
                else:
                    self._put_unripe(start, end, waiting)

    def _unripen(self, now_ms: int) -> None:
        """The clock was set back: what is due must not depend on where it once stood."""
        for start, end, waiting in self.ripe:
            if waiting.due_ms > now_ms:
                self.ripe.take(start, end)
                self.put(start, end, waiting)

    def take(self, start: int, end: int) -> list[tuple[int, int, Waiting]]:
        """Remove and return what lies inside `start..end`, due or not."""
        taken = self.ripe.take(start, end)
        if self.unripe:
            taken += self._take_unripe(start, end)
            taken.sort(key=_first_version)
        return taken

    def next_due_ms(self) -> int | None:
        """When the next version becomes due; None when none waits for a time."""
        while self._due:
            due_ms, start, end = self._due[0]
            if any(waiting.due_ms == due_ms for _, _, waiting in self.unripe.within(start, end)):
                return due_ms
            heappop(self._due)
        return None

    def get(self, version: int) -> Waiting | None:
        """How a version waits, if it does."""
        return self.ripe.get(version) or self.unripe.get(version)

    def first_unripe_retry(self) -> int | None:
        """The lowest version that was tried before and may not go out yet."""
        return self.retrying.first

    def within(self, start: int, end: int) -> list[tuple[int, int, Waiting]]:
        """All runs inside `start..end`, in version order."""
        runs = [*self.ripe.within(start, end), *self.unripe.within(start, end)]
        return sorted(runs, key=_first_version)

    def runs(self) -> list[tuple[int, int, Waiting]]:
        """Everything that waits, in version order, the same whatever has ripened."""
        last = max(self.ripe.last, self.unripe.last)
        return list(RangeMap(self.within(1, last))) if last else []

    @property
    def total(self) -> int:
        """How many versions wait."""
        return self.ripe.total + self.unripe.total

    @property
    def unripe_total(self) -> int:
        """How many versions wait for a later time."""
        return self.unripe.total


def _first_version(run: tuple[int, int, Waiting]) -> int:
    return run[0]
