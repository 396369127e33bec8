"""What a lane knows beside its log: its tail, which messages wait for a time, and who pushed lately.

All of it can be rebuilt from the log; none of it is stored.
"""

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush

from spillway.core.ranges import RangeMap, RangeSet


class Schedule:
    """`deliver_at` and `expires_at` of the messages of a lane, by version."""

    __slots__ = ("_deliver", "_deliveries", "_expiries", "_expiry", "expired")

    def __init__(self) -> None:
        self._deliver: RangeMap[int] = RangeMap()
        self._deliveries: list[int] = []
        self._expiry: RangeMap[int] = RangeMap()
        self._expiries: list[tuple[int, int, int]] = []
        self.expired = RangeSet()

    def defer(self, version: int, deliver_ms: int) -> None:
        """A message is not to be delivered before its time."""
        self._deliver.put(version, version, deliver_ms)
        heappush(self._deliveries, deliver_ms)

    def expire(self, version: int, expires_ms: int) -> None:
        """A message is not to be delivered after its time."""
        self._expiry.put(version, version, expires_ms)
        heappush(self._expiries, (expires_ms, version, version))

    def ripen(self, now_ms: int) -> None:
        """Note which messages are past their time to live."""
        while self._expiries and self._expiries[0][0] <= now_ms:
            _, start, end = heappop(self._expiries)
            self._expiry.take(start, end)
            self.expired.add(start, end)

    def not_yet(self, start: int, end: int, now_ms: int) -> Iterator[tuple[int, int, int]]:
        """The runs of `start..end` whose time has not come, with that time."""
        for low, high, deliver_ms in self._deliver.within(start, end):
            if deliver_ms > now_ms:
                yield low, high, deliver_ms

    def next_delivery_ms(self, now_ms: int) -> int | None:
        """When the next message comes due; None when none waits."""
        while self._deliveries and self._deliveries[0] <= now_ms:
            heappop(self._deliveries)
        return self._deliveries[0] if self._deliveries else None

    def next_expiry_ms(self) -> int | None:
        """When the next message passes its time to live."""
        return self._expiries[0][0] if self._expiries else None

    def forget(self, through: int) -> None:
        """Every group is done with the versions up to here."""
        if through >= 1:
            self._deliver.take(1, through)
            self._expiry.take(1, through)
            self.expired.discard(1, through)

    def __bool__(self) -> bool:
        return bool(self._deliver or self._expiry or self.expired.total)


class DedupeWindow:
    """The transaction ids pushed lately, with the version and payload fingerprint of each."""

    __slots__ = ("_batches", "_seen")

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self._batches: deque[tuple[int, list[str]]] = deque()

    def find(self, transaction_id: str) -> tuple[int, int] | None:
        """(version, fingerprint) of an earlier push, if the window still knows it."""
        packed = self._seen.get(transaction_id)
        return None if packed is None else (packed >> 32, packed & 0xFFFFFFFF)

    def add(self, transaction_id: str, version: int, fingerprint: int) -> None:
        """Remember a push; `close_batch` makes it subject to the window."""
        self._seen[transaction_id] = version << 32 | fingerprint

    def close_batch(self, at_ms: int, transaction_ids: list[str]) -> None:
        """The ids added since the last call were pushed at this time."""
        if transaction_ids:
            self._batches.append((at_ms, transaction_ids))

    def slide(self, now_ms: int, window_ms: int, count_max: int) -> None:
        """Forget what is older than the window, or beyond the count."""
        batches = self._batches
        while batches and (batches[0][0] <= now_ms - window_ms or len(self._seen) > count_max):
            for transaction_id in batches.popleft()[1]:
                self._seen.pop(transaction_id, None)

    def __len__(self) -> int:
        return len(self._seen)


class Lane:
    """One ordered log: the view that deciders need of it."""

    __slots__ = ("dedupe", "pruned_to", "schedule", "tail")

    def __init__(self, tail: int = 0, pruned_to: int = 0) -> None:
        self.tail = tail
        self.pruned_to = pruned_to
        self.schedule = Schedule()
        self.dedupe: DedupeWindow | None = None
