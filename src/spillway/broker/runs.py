"""Runs: events out of a file that go into the log together."""

from collections import deque
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import accumulate, groupby

from msgspec import Raw

from spillway.broker.append import Arrivals
from spillway.broker.buffering import BYTES_HEAD, payload_of
from spillway.broker.facts import LaneFacts
from spillway.broker.intake import PRIORITY_DEFAULT
from spillway.spool.event import Address, Event
from spillway.wire import PushItem

TOGETHER = timedelta(seconds=1)
"""Events accepted within this share one look at the dedupe window."""

PLAIN = PushItem("", Raw(b"null"))
"""Stands for an item that had nothing but a payload, which is in a column of its own."""


@dataclass(slots=True)
class Run:
    """Events that go into the log together, column by column: of one lane, in their order,
    accepted close to each other.

    An event is read, put into the columns and let go: what the loop touches for a million of them
    stays in the processor's cache.
    """

    lane: LaneFacts
    address: Address
    """Of the first of them, and so of most."""
    earliest: datetime
    latest: datetime
    indexes: list[int] = field(default_factory=list)
    """Their places in the file."""
    seqs: list[int] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    rich: dict[int, tuple[Event, Raw | bytes]] = field(default_factory=dict)
    """By their index, those that had more than JSON for a payload, and what that was."""
    doubtful: set[int] = field(default_factory=set)
    """The indexes of those that may be in the log already."""
    strangers: dict[int, Address] = field(default_factory=dict)
    """By their index, those of another address: from before the queue was known, say."""

    @classmethod
    def behind(cls, lane: LaneFacts, address: Address, first: Event) -> "Run":
        """None yet, for events accepted from this one on."""
        return cls(lane, address, first.accepted_at, first.accepted_at + TOGETHER)

    def add(self, index: int, event: Event, address: Address) -> None:
        """One more."""
        payload = bytes(event.payload)
        if not _is_plain(event, payload):
            pushed = payload_of(event)
            self.rich[index] = event, pushed
            payload = bytes(pushed)
        if event.doubt is True:
            self.doubtful.add(index)
        if address is not self.address:
            self.strangers[index] = address
        self.indexes.append(index)
        self.seqs.append(event.seq)
        self.ids.append(event.transaction_id)
        self.payloads.append(payload)

    def without(self, gone: Container[int]) -> "Run":
        """But for those at these places."""
        kept = [at for at, index in enumerate(self.indexes) if index not in gone]
        return self if len(kept) == len(self.indexes) else self._only(kept)

    def within(self, chosen: Container[int]) -> "Run":
        """Those at these places."""
        return self._only([at for at, index in enumerate(self.indexes) if index in chosen])

    def apart(self) -> Iterator["Run"]:
        """Each by itself."""
        return (self._only([at]) for at in range(len(self.indexes)))

    def cut(self, appetite: "Appetite") -> tuple["Run", "Run | None"]:
        """As much of its beginning as that, at least one; and what is left."""
        sizes = accumulate(map(len, self.payloads[: appetite.events]))
        count = max(1, sum(size <= appetite.bytes for size in sizes))
        if count == len(self.indexes):
            return self, None
        places = range(len(self.indexes))
        return self._only(places[:count]), self._only(places[count:])

    def _only(self, kept: Sequence[int]) -> "Run":
        return Run(
            self.lane,
            self.address,
            self.earliest,
            self.latest,
            [self.indexes[at] for at in kept],
            [self.seqs[at] for at in kept],
            [self.ids[at] for at in kept],
            [self.payloads[at] for at in kept],
            self.rich,
            self.doubtful,
            self.strangers,
        )

    def by_address(self) -> Iterator[tuple[Address, list[int]]]:
        """The indexes of those that stand together and are of one address."""
        if not self.strangers:
            yield self.address, self.indexes
            return
        for address, some in groupby(self.indexes, lambda i: self.strangers.get(i, self.address)):
            yield address, list(some)

    @property
    def accepted_ms(self) -> int:
        """When the first of them was accepted, or a moment before."""
        return int(self.earliest.timestamp() * 1000)

    def items(self, now_ms: int) -> list[PushItem]:
        """As the pushes that they were."""
        if not self.rich:
            return [PLAIN] * len(self.indexes)
        rich = map(self.rich.get, self.indexes)
        return [PLAIN if one is None else item_of(*one, now_ms) for one in rich]

    def arrivals(self, source: str | None, now_ms: int) -> Arrivals:
        """On their way into the lane."""
        return Arrivals(
            self.lane,
            self.lane.address,
            self.indexes,
            self.items(now_ms),
            self.payloads,
            self.ids,
            is_plain=not self.rich,
            has_given_ids=True,
            source=source,
            seqs=self.seqs,
            accepted_ms=self.accepted_ms,
            is_quiet=True,
        )


@dataclass(frozen=True, slots=True)
class Appetite:
    """How much goes into the log in one turn of the loop."""

    events: int
    bytes: int
    runs: int


def portion(waiting: deque[Run], appetite: Appetite) -> list[Run]:
    """Take from the front what goes in together: all of one shard, one of each lane. The first is
    cut if it is too long for the appetite, the others stay whole or stay behind.
    """
    first, rest = waiting.popleft().cut(appetite)
    taken, events, size = [first], len(first.ids), sum(map(len, first.payloads))
    if rest is not None:
        waiting.appendleft(rest)
        return taken
    while waiting and len(taken) < appetite.runs:
        one = waiting[0]
        events, size = events + len(one.ids), size + sum(map(len, one.payloads))
        if events > appetite.events or size > appetite.bytes:
            break
        if one.lane.lane_id == taken[-1].lane.lane_id or one.lane.shard_id != first.lane.shard_id:
            break
        taken.append(waiting.popleft())
    return taken


def _is_plain(event: Event, payload: bytes) -> bool:
    """Whether a payload is all that it had."""
    return (
        event.key is None
        and event.headers is None
        and event.priority == PRIORITY_DEFAULT
        and event.trace_id is None
        and event.deliver_at is None
        and event.expires_at is None
        and not payload.startswith(BYTES_HEAD)
    )


def item_of(event: Event, payload: Raw | bytes, now_ms: int) -> PushItem:
    """The push that an event was."""
    return PushItem(
        event.queue,
        payload,  # type: ignore[arg-type]  # bytes stand for themselves
        event.partition,
        event.key,
        event.transaction_id,
        event.headers,
        event.priority,
        None,
        event.deliver_at,
        _ttl_ms(event, now_ms),
        event.trace_id,
    )


def _ttl_ms(event: Event, now_ms: int) -> int | None:
    """What is left of its life now; nothing is still a millisecond, so that it expires."""
    if event.expires_at is None:
        return None
    return max(1, int(event.expires_at.timestamp() * 1000) - now_ms)
