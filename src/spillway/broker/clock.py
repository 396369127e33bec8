"""The broker's time: PostgreSQL's clock, carried on by a clock that nobody sets.

It is set where PostgreSQL is first reached, and where a shard is taken that another broker wrote
last. From then on it goes at most 5 % faster than time passes, and at least half as fast, until it
says what PostgreSQL says. So no clock that is set, on the broker's machine or on PostgreSQL's, ends
a lease early, forgets a transaction id, or makes a retry late; whoever wants the new time at once
starts the broker again.
"""

import time

import structlog

log = structlog.get_logger(__name__)

STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Goes on while the machine sleeps: that time has passed for everybody."""
SLOWEST = 0.5
FASTEST = 1.05
TOLD_MS = 2_000
"""A difference that is no longer that of two good clocks, or of a slow answer."""


class Clock:
    """Milliseconds since 1970, never going back and never standing still."""

    __slots__ = ("_anchor_ms", "_is_set", "_is_told", "_last_ms", "_ticks_ms")

    def __init__(self) -> None:
        self._ticks_ms = _ticks_ms()
        self._anchor_ms = time.time() * 1000 - self._ticks_ms
        self._last_ms = 0.0
        self._is_set = False
        self._is_told = False

    def set(self, database_s: float) -> None:
        """PostgreSQL says what time it is, and what was before does not count."""
        self._ticks_ms = _ticks_ms()
        self._anchor_ms = database_s * 1000 - self._ticks_ms
        self._last_ms = max(self._last_ms, database_s * 1000)
        self._is_set = True

    def anchor(self, database_s: float) -> None:
        """PostgreSQL says what time it is: go there, but not at once."""
        if not self._is_set:
            self.set(database_s)
            return
        ahead_ms = database_s * 1000 - self.now_ms()
        self._anchor_ms = database_s * 1000 - self._ticks_ms
        if abs(ahead_ms) < TOLD_MS:
            self._is_told = False
        elif not self._is_told:
            self._is_told = True
            log.warning("clock_jumped", ahead_s=round(ahead_ms / 1000, 1), now="catching up slowly")

    def now_ms(self) -> int:
        """The time."""
        ticks_ms = _ticks_ms()
        passed_ms = ticks_ms - self._ticks_ms
        now_ms = max(self._anchor_ms + ticks_ms, self._last_ms + passed_ms * SLOWEST)
        if self._is_set:
            now_ms = min(now_ms, self._last_ms + passed_ms * FASTEST)
        self._last_ms = now_ms
        self._ticks_ms = ticks_ms
        return int(now_ms)


def _ticks_ms() -> float:
    return time.clock_gettime(STEADY) * 1000
