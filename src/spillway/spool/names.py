"""Names of buffer files: the stream, and a UUIDv7 that sorts behind every earlier one.

The random half of the UUID is drawn once a run, so a name also tells which run numbered the events
in it: their `seq` ascends over all files of one source.
"""

import re
import secrets
import threading
import time

FAILOVER, QOS0 = "failover", "qos0"
OPEN, COMPLETE = ".buf.tmp", ".buf"

_NAME = re.compile(
    r"(failover|qos0)_([0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-([89ab][0-9a-f]{3}-[0-9a-f]{12}))\.buf(\.tmp)?"
)
_VERSION = 0x7 << 76
_VARIANT = 0b10 << 62
_COUNT_BITS = 12
_RUN_BITS = 62


def stream_of(name: str) -> str | None:
    """The stream of a buffer file, or None: it is none of ours."""
    found = _NAME.fullmatch(name)
    return None if found is None else found[1]


def source_of(name: str) -> str:
    """Who numbered the events of a file."""
    found = _NAME.fullmatch(name)
    return "" if found is None else f"{found[1]}_{found[3]}"


def is_open(name: str) -> bool:
    """Whether the file was still being written."""
    return name.endswith(OPEN)


class Names:
    """Makes names. A clock that goes back does not make them go back: order is by name."""

    def __init__(self) -> None:
        self._run = secrets.randbits(_RUN_BITS)
        self._last = (0, 0)
        self._lock = threading.Lock()
        """The writers of both streams ask, each in its own thread."""

    def note(self, name: str) -> None:
        """A name that exists: the next ones sort behind it."""
        found = _NAME.fullmatch(name)
        if found is not None:
            number = int(found[2].replace("-", ""), 16)
            self._last = max(self._last, (number >> 80, number >> 64 & 0xFFF))

    def next(self, stream: str) -> str:
        """The name of a new file, still open."""
        with self._lock:
            stamp, count = self._last = self._after(*self._last)
        number = stamp << 80 | _VERSION | count << 64 | _VARIANT | self._run
        text = f"{number:032x}"
        parts = (text[:8], text[8:12], text[12:16], text[16:20], text[20:])
        return f"{stream}_{'-'.join(parts)}{OPEN}"

    @staticmethod
    def _after(stamp: int, count: int) -> tuple[int, int]:
        now = time.time_ns() // 1_000_000
        if now > stamp:
            return now, 0
        if count < (1 << _COUNT_BITS) - 1:
            return stamp, count + 1
        return stamp + 1, 0
