"""What a lane knows beside its log: its tail, which messages wait for a time, who pushed lately.

All of it can be rebuilt from the log; none of it is stored.
"""

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import islice, repeat
from operator import add

from spillway.core.ranges import Range, RangeMap, RangeSet, coalesce

SPLIT_WINDOW = 4_096
REMINDERS_SPARE = 1_024
"""How many reminders beyond twice the remembered messages are kept before they are sifted."""


class Schedule:
    """`deliver_at` and `expires_at` of the messages of a lane, by version."""

    __slots__ = (
        "_deliver",
        "_deliveries",
        "_expiries",
        "_forgotten",
        "_lapsed",
        "_last",
        "expired",
        "lapses",
    )

    def __init__(self) -> None:
        self._deliver: RangeMap[int] = RangeMap()
        self._deliveries: list[tuple[int, int]] = []
        self._expiries: list[tuple[int, int]] = []
        self._forgotten = 0
        self._last = 0
        self.expired = RangeSet()
        # The same in the order in which their time passed, so that a group looks at each once.
        self._lapsed: deque[int] = deque()
        self.lapses = 0

    def defer(self, version: int, deliver_ms: int) -> None:
        """A message is not to be delivered before its time."""
        self._deliver.put(version, version, deliver_ms)
        self._last = max(self._last, version)
        heappush(self._deliveries, (deliver_ms, version))

    def expire(self, version: int, expires_ms: int) -> None:
        """A message is not to be delivered after its time."""
        self._last = max(self._last, version)
        heappush(self._expiries, (expires_ms, version))

    def ripen(self, now_ms: int) -> None:
        """Note which messages are past their time to live."""
        while self._expiries and self._expiries[0][0] <= now_ms:
            _, version = heappop(self._expiries)
            if version > self._forgotten:
                self.expired.add(version, version)
                self._lapsed.append(version)
                self.lapses += 1

    def lapsed_since(self, seen: int) -> list[Range]:
        """What passed its time to live after the first `seen` did."""
        fresh = min(self.lapses - seen, len(self._lapsed))
        return coalesce(islice(reversed(self._lapsed), fresh))

    def not_yet(self, start: int, end: int, now_ms: int) -> Iterator[tuple[int, int, int]]:
        """The runs of `start..end` whose time has not come, with that time."""
        for low, high, deliver_ms in self._deliver.within(start, end):
            if deliver_ms > now_ms:
                yield low, high, deliver_ms

    def deliver_ms(self, version: int) -> int:
        """When the time of a message comes, or came; 0 where it had none to wait for."""
        return self._deliver.get(version) or 0

    def split(self, start: int, end: int, now_ms: int) -> Iterator[tuple[int, int, int]]:
        """`start..end` as runs (first, last, due); due is 0 for what may go now."""
        if not self._deliver:
            yield start, end, 0
            return
        # In windows: whoever takes a few must not look through all whose time came long ago.
        for low in range(start, end + 1, SPLIT_WINDOW):
            yield from self._split_window(low, min(end, low + SPLIT_WINDOW - 1), now_ms)

    def _split_window(self, start: int, end: int, now_ms: int) -> Iterator[tuple[int, int, int]]:
        for low, high, due_ms in self.not_yet(start, end, now_ms):
            if start < low:
                yield start, low - 1, 0
            yield low, high, due_ms
            start = high + 1
        if start <= end:
            yield start, end, 0

    def next_delivery_ms(self, now_ms: int) -> int | None:
        """When the next message comes due; None when none waits."""
        deliveries = self._deliveries
        while deliveries and (deliveries[0][0] <= now_ms or deliveries[0][1] <= self._forgotten):
            heappop(deliveries)
        return deliveries[0][0] if deliveries else None

    def next_expiry_ms(self) -> int | None:
        """When the next message passes its time to live."""
        while self._expiries and self._expiries[0][1] <= self._forgotten:
            heappop(self._expiries)
        return self._expiries[0][0] if self._expiries else None

    def forget(self, through: int) -> None:
        """The versions up to here are pruned: not even a seek brings them back."""
        if through <= self._forgotten:
            return
        self._forgotten = through
        self._deliver.take(1, through)
        self.expired.discard(1, through)
        while self._lapsed and self._lapsed[0] <= through:
            self._lapsed.popleft()
        kept_max = 2 * max(0, self._last - through) + REMINDERS_SPARE
        if len(self._expiries) > kept_max:
            self._expiries = [entry for entry in self._expiries if entry[1] > through]
            heapify(self._expiries)
        if len(self._deliveries) > kept_max:
            self._deliveries = [entry for entry in self._deliveries if entry[1] > through]
            heapify(self._deliveries)

    def __bool__(self) -> bool:
        return bool(self._deliver or self._expiries or self.expired.total)


class DedupeWindow:
    """The transaction ids pushed lately, with the version and payload fingerprint of each.

    Fingerprints are Python's own hashes: fast, and of use in this process alone, as the window is.
    """

    __slots__ = ("_batches", "_reused_at", "_seen")

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self._batches: deque[tuple[int, int, list[str]]] = deque()
        self._reused_at = 0
        """The last version by which an id was used again while it was still known."""

    def find(self, transaction_id: str) -> tuple[int, int] | None:
        """(version, fingerprint) of an earlier push, if the window still knows it."""
        packed = self._seen.get(transaction_id)
        return None if packed is None else _unpacked(packed)

    def knows_none(self, transaction_ids: list[str]) -> bool:
        """Whether all of them are new, and each stands there once."""
        new = set(transaction_ids)
        return len(new) == len(transaction_ids) and self._seen.keys().isdisjoint(new)

    def add_batch(
        self, at_ms: int, transaction_ids: list[str], first: int, fingerprints: list[int]
    ) -> None:
        """Remember pushes of consecutive versions, each with its fingerprint."""
        if not transaction_ids:
            return
        count, last = len(self._seen) + len(transaction_ids), first + len(transaction_ids) - 1
        versions = range(first << 64, last + 1 << 64, 1 << 64)
        self._seen.update(zip(transaction_ids, map(add, versions, fingerprints), strict=True))
        self._batches.append((at_ms, last, transaction_ids))
        if len(self._seen) < count:
            self._reused_at = last

    def slide(self, now_ms: int, window_ms: int, count_max: int) -> None:
        """Forget what is older than the window, or beyond the count.

        The newest batch stays, however large: a request that is sent again must be known whole.
        """
        batches = self._batches
        while batches and (
            batches[0][0] <= now_ms - window_ms
            or (len(self._seen) > count_max and (len(batches) > 1 or not count_max))
        ):
            _, last, transaction_ids = batches.popleft()
            if last < self._reused_at:
                # A later push may have used the id again: that one stays known.
                seen = self._seen.get
                transaction_ids = [i for i in transaction_ids if _unpacked(seen(i, 0))[0] <= last]
            deque(map(self._seen.pop, transaction_ids, repeat(None)), maxlen=0)

    def __len__(self) -> int:
        return len(self._seen)


def _unpacked(packed: int) -> tuple[int, int]:
    """Version and fingerprint; the latter may be negative, so the nearest multiple counts."""
    version = packed + (1 << 63) >> 64
    return version, packed - (version << 64)


class Lane:
    """One ordered log: the view that deciders need of it."""

    __slots__ = ("dedupe", "pruned_to", "schedule", "tail")

    def __init__(self, tail: int = 0, pruned_to: int = 0) -> None:
        self.tail = tail
        self.pruned_to = pruned_to
        self.schedule = Schedule()
        self.dedupe: DedupeWindow | None = None
