"""The broker's time: PostgreSQL's clock at the last look, carried on by the monotonic clock.

A jump of the machine's wall clock therefore ends no lease early and makes no retry late.
"""

import time


class Clock:
    """Milliseconds since 1970, never going back."""

    __slots__ = ("_anchor_ms", "_last_ms")

    def __init__(self) -> None:
        self._anchor_ms = time.time() * 1000 - time.monotonic() * 1000
        self._last_ms = 0

    def anchor(self, database_s: float) -> None:
        """PostgreSQL said what time it is."""
        self._anchor_ms = database_s * 1000 - time.monotonic() * 1000

    def now_ms(self) -> int:
        """The time."""
        now = int(self._anchor_ms + time.monotonic() * 1000)
        self._last_ms = max(self._last_ms, now)
        return self._last_ms
