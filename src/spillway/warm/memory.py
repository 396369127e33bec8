"""Bodies in this process: for each lane a window of record batches, bounded for each queue."""

from bisect import bisect_right, insort
from operator import attrgetter

from spillway.core.message import RecordBatch

_base = attrgetter("base_version")

BYTES_MAX = 64 * 1024 * 1024
"""However few they are, the bodies of a queue take no more memory than this."""


class Budget:
    """How many bodies a queue may keep at hand, over all its lanes.

    Whole batches are kept: the last one of them may reach over the limit.
    """

    __slots__ = ("bytes", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.bytes = 0

    @property
    def room(self) -> int:
        """How many more."""
        return max(0, self.limit - self.used) if self.bytes < BYTES_MAX else 0


class Window:
    """The bodies of one lane that are at hand."""

    __slots__ = ("_batches", "_budget", "_counted")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._batches: list[RecordBatch] = []
        self._counted: dict[int, tuple[int, int]] = {}

    @property
    def last_version(self) -> int:
        """The highest version at hand; 0 when there is none."""
        return self._batches[-1].last_version if self._batches else 0

    @property
    def room(self) -> int:
        """How many more bodies the queue may keep."""
        return self._budget.room

    def find(self, version: int) -> RecordBatch | None:
        """The batch that holds a version, if it is at hand."""
        i = bisect_right(self._batches, version, key=_base) - 1
        if i >= 0 and self._batches[i].last_version >= version:
            return self._batches[i]
        return None

    def offer(self, batch: RecordBatch, tail: int) -> None:
        """A batch was begun behind `tail`: keep it if the window reaches that far and has room."""
        follows = not self._batches or self.last_version == tail
        if follows and self._budget.room > 0:
            self._batches.append(batch)
            self._count(batch)

    def recount(self, batch: RecordBatch) -> None:
        """A batch grew after it was offered."""
        if batch.base_version in self._counted:
            self._count(batch)

    def _count(self, batch: RecordBatch) -> None:
        count, size = self._counted.get(batch.base_version, (0, 0))
        self._budget.used += batch.count - count
        self._budget.bytes += batch.payload_bytes - size
        self._counted[batch.base_version] = batch.count, batch.payload_bytes

    def fill(self, batches: list[RecordBatch]) -> None:
        """Batches were read from the log: keep those that the queue has room for, in order."""
        for batch in batches:
            if batch.base_version in self._counted:
                continue
            if not self._budget.room:
                return
            insort(self._batches, batch, key=_base)
            self._count(batch)

    def forget(self, through: int) -> None:
        """Nobody will ask for the versions up to here soon."""
        done = 0
        while done < len(self._batches) and self._batches[done].last_version <= through:
            count, size = self._counted.pop(self._batches[done].base_version)
            self._budget.used -= count
            self._budget.bytes -= size
            done += 1
        if done:
            del self._batches[:done]

    def clear(self) -> None:
        """Forget all."""
        self.forget(self.last_version)

    def __len__(self) -> int:
        return sum(count for count, _ in self._counted.values())
