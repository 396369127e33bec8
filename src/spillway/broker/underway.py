"""What a replay has decided and not yet seen in the log: bounded, and in order."""

from collections import deque

from spillway.broker.handover import Bite
from spillway.spool.folder import BufferFile

EVENTS_MAX = 8_000
BYTES_MAX = 8 * 1024 * 1024
"""Of payloads; a message may be a megabyte."""


class UnderWay:
    """Bites whose commits are not awaited yet, the oldest first."""

    def __init__(self) -> None:
        self._bites: deque[tuple[BufferFile, Bite]] = deque()
        self._latest: dict[int, Bite] = {}
        """By shard: what is wrong with an earlier bite is wrong with the last one, too."""
        self._events = 0
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._bites)

    @property
    def is_full(self) -> bool:
        """Whether one is to be awaited before the next one begins."""
        return self._events >= EVENTS_MAX or self._bytes >= BYTES_MAX

    @property
    def is_interrupted(self) -> bool:
        """Whether a commit failed: what follows it must not overtake it."""
        return any(bite.is_interrupted for bite in self._latest.values())

    def add(self, file: BufferFile, bite: Bite) -> None:
        """One more."""
        self._bites.append((file, bite))
        self._latest[bite.shard.shard_id] = bite
        self._events += bite.events
        self._bytes += bite.bytes

    def take(self) -> tuple[BufferFile, Bite]:
        """The oldest one, to be awaited."""
        file, bite = self._bites.popleft()
        if self._latest[bite.shard.shard_id] is bite:
            del self._latest[bite.shard.shard_id]
        self._events -= bite.events
        self._bytes -= bite.bytes
        return file, bite
