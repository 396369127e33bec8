"""The broker's time: PostgreSQL's clock at the last look, carried on by the monotonic clock.

A jump of the machine's wall clock therefore ends no lease early and makes no retry late.
"""

import time


class Clock:
    """Milliseconds since 1970, never going back and never standing still."""

    __slots__ = ("_anchor_ms", "_last_ms", "_ticks_ms")

    def __init__(self) -> None:
        self._ticks_ms = time.monotonic() * 1000
        self._anchor_ms = time.time() * 1000 - self._ticks_ms
        self._last_ms = 0.0

    def anchor(self, database_s: float) -> None:
        """PostgreSQL said what time it is."""
        self._anchor_ms = database_s * 1000 - time.monotonic() * 1000

    def now_ms(self) -> int:
        """The time."""
        ticks_ms = time.monotonic() * 1000
        # Ahead of PostgreSQL (its clock was set back): half as fast until it has caught up.
        least_ms = self._last_ms + (ticks_ms - self._ticks_ms) / 2
        self._last_ms = max(self._anchor_ms + ticks_ms, least_ms)
        self._ticks_ms = ticks_ms
        return int(self._last_ms)
