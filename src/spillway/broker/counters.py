"""What happened since the start, for each queue: counted when its commit is in the log.

The number of series is bounded. The first queues get one of their own each, the busiest first; all
others are summed up as `other`. A queue keeps what it was given for life, so no series ever falls.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import accumulate

from spillway.core.metrics import Sample

QUEUES_SHOWN_MAX = 200
COUNTED = (
    "produced",
    "duplicates",
    "refused",
    "consumed",
    "acked",
    "nacked",
    "redelivered",
    "expired_leases",
    "parked",
    "blocked",
    "dropped",
    "redriven",
    "purged",
)
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
MESSAGES = (0, 1, 10, 100, 1_000, 10_000, 100_000)


class Histogram:
    """Observations by size."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """One more."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def samples(self) -> Iterator[Sample]:
        """As Prometheus wants it: each bucket holds the smaller ones too."""
        names = [*(f"{bound:g}" for bound in self._bounds), "+Inf"]
        for name, count in zip(names, accumulate(self._counts), strict=True):
            yield Sample({"le": name}, count, "_bucket")
        yield Sample({}, self._sum, "_sum")
        yield Sample({}, sum(self._counts), "_count")


class Counters:
    """Counts by (queue, name), and how commits go."""

    def __init__(self, shown_max: int = QUEUES_SHOWN_MAX) -> None:
        self.commit_seconds = Histogram(SECONDS)
        self.commit_messages = Histogram(MESSAGES)
        self._shown_max = shown_max
        self._by_queue: dict[int, Counter[str]] = {}
        self._shown: set[int] = set()
        self._other: Counter[str] = Counter()
        self._other_seen = False

    def add(self, counts: Iterable[tuple[tuple[int, str], int]]) -> None:
        """What a commit did: `Shard.on_counts`."""
        for (queue_id, name), count in counts:
            of_queue = self._by_queue.get(queue_id)
            if of_queue is None:
                of_queue = self._by_queue[queue_id] = Counter()
            of_queue[name] += count
            if queue_id not in self._shown:
                self._other[name] += count

    def commit(self, seconds: float, messages: int) -> None:
        """A commit landed."""
        self.commit_seconds.observe(seconds)
        self.commit_messages.observe(messages)

    # ------------------------------------------------------------ whose series

    def show(self, living: Iterable[int]) -> set[int]:
        """The queues that have series of their own; deleted ones make room for the busiest."""
        alive = set(living)
        self._shown &= alive
        for queue_id in self._by_queue.keys() - alive:
            del self._by_queue[queue_id]
        room = self._shown_max - len(self._shown)
        if room > 0:
            for queue_id in sorted(alive - self._shown, key=self._rank)[:room]:
                self._admit(queue_id)
        return self._shown

    def _rank(self, queue_id: int) -> tuple[int, int]:
        return -self._by_queue.get(queue_id, Counter()).total(), queue_id

    def _admit(self, queue_id: int) -> None:
        """What was counted so far stays with `other`, unless nobody has seen it there yet."""
        self._shown.add(queue_id)
        known = self._by_queue.get(queue_id)
        if known is None:
            return
        if self._other_seen:
            known.clear()
        else:
            self._other.subtract(known)

    def of_queue(self, queue_id: int, name: str) -> int:
        """How many of a shown queue."""
        return self._by_queue[queue_id][name] if queue_id in self._by_queue else 0

    def other(self, name: str) -> int:
        """How many of all the queues that are not shown, now or before."""
        self._other_seen = True
        return self._other[name]
