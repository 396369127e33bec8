"""From the spool into the log: spooled events become messages again, exactly once and in order.

Three things keep an event from being stored twice. The commit that stores it also says how far its
file has come in its lane, so whatever a crash cut off goes on behind it. Where a push went to a
file because the outcome of its commit was not known, the log is asked for its transaction id. And
a client's own repeat is found by the queue's dedupe window, as of the moment of its acceptance.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType

import msgspec
from msgspec import Raw

from spillway.broker.append import Arrivals, append, conflicts
from spillway.broker.buffering import BYTES_HEAD, payload_of
from spillway.broker.facts import LaneFacts
from spillway.broker.intake import PRIORITY_DEFAULT, Intake
from spillway.broker.lanes import LaneEntry
from spillway.broker.shard import Shard
from spillway.core.errors import (
    DatabasePermissionError,
    DatabaseSchemaError,
    QueueNotFoundError,
    QuotaExceededError,
    SpillwayError,
)
from spillway.log.database import Database
from spillway.spool.event import Address, Event, moment
from spillway.wire import PushItem, PushResult

TOGETHER = timedelta(seconds=1)
"""Events accepted within this share one look at the dedupe window."""


class Spooled(msgspec.Struct, gc=False):
    """An event at its place in a file, as the push that it was."""

    index: int
    event: Event
    address: Address
    payload: bytes
    item: PushItem | None
    """None: a payload is all that it had."""


Refused = tuple[Spooled, SpillwayError]
"""An event that the log will not have, and why."""

PLAIN = PushItem("", Raw(b"null"))
"""Stands for an item that had nothing but a payload, which is in a column of its own."""


@dataclass(slots=True)
class Bite:
    """Events of one lane on their way into the log."""

    lane: LaneFacts
    shard: Shard
    epoch: int
    events: list[Spooled]
    results: list[PushResult | None]
    """What has none is stored."""
    ticket: asyncio.Future[None]
    apart: bool
    """Whether nothing else was in its commit."""

    @property
    def is_interrupted(self) -> bool:
        """Whether it failed, or its shard was lost and taken again: what follows must wait."""
        if self.shard.epoch != self.epoch or not self.shard.owned:
            return True
        return self.ticket.done() and self.ticket.exception() is not None


@dataclass(slots=True)
class _Home:
    """Where the events of one address belong, once that is known."""

    address: Address
    events: list[Spooled] | None = None
    refused: SpillwayError | None = None


@dataclass(slots=True)
class Sorted:
    """Events by lane in their order, and those that the rules of today refuse."""

    lanes: dict[int, tuple[LaneFacts, list[Spooled]]] = field(default_factory=dict)
    refused: list[Refused] = field(default_factory=list)

    def add(self, later: "Sorted") -> None:
        """Take in what was sorted behind it."""
        for lane_id, (lane, events) in later.lanes.items():
            self.lanes.setdefault(lane_id, (lane, []))[1].extend(events)
        self.refused += later.refused


class Handover:
    """Puts events into the log."""

    def __init__(
        self,
        intake: Intake,
        shards: list[Shard],
        database: Database,
        now_ms: Callable[[], int],
    ) -> None:
        self._intake = intake
        self._shards = shards
        self._database = database
        self._now_ms = now_ms

    def now(self) -> datetime:
        """The time that messages get."""
        return moment(self._now_ms())

    async def sort(self, events: Sequence[tuple[int, Event]]) -> Sorted:
        """Find the lane of each; transient errors (PostgreSQL is away) are raised."""
        found = Sorted()
        homes: dict[tuple[str, str, str | None], _Home] = {}
        refused: dict[tuple[str, str], SpillwayError] = {}
        now_ms = self._now_ms()
        fit = self._intake.fit_all(
            [event.payload for _, event in events],
            [event.transaction_id for _, event in events],
        )
        for index, event in events:
            place = event.org, event.queue, event.partition
            home = homes.get(place)
            if home is None:
                home = homes[place] = _Home(event.address, refused=refused.get(place[:2]))
            spooled = _spooled(index, event, home.address, now_ms)
            try:
                if not fit or spooled.item is not None:
                    self._check(spooled)
                mates = home.events
                if mates is None:
                    mates = await self._mates(found, home, spooled, now_ms)
            except SpillwayError as error:
                if is_ours(error):
                    raise
                if isinstance(error, QueueNotFoundError | QuotaExceededError):
                    home.refused = refused[place[:2]] = error  # not to be asked for each of them
                found.refused.append((spooled, error))
                continue
            mates.append(spooled)
        return found

    def _check(self, spooled: Spooled) -> None:
        """The rules of today."""
        if spooled.item is None:
            self._intake.check_plain(spooled.payload, spooled.event.transaction_id)
        else:
            self._intake.check(spooled.item, spooled.payload)

    async def _mates(
        self, found: Sorted, home: _Home, spooled: Spooled, now_ms: int
    ) -> list[Spooled]:
        """The events of its lane, for it to stand behind."""
        if home.refused is not None:
            raise home.refused.with_traceback(None)
        event = spooled.event
        item = spooled.item or _item(event, event.payload, now_ms)
        lane = await self._intake.lane_of(event.org, item, event.transaction_id)
        mates = found.lanes.setdefault(lane.lane_id, (lane, []))[1]
        if event.partition is not None:
            home.events = mates
        return mates

    async def split(
        self,
        lane: LaneFacts,
        events: list[Spooled],
        mark: int,
        tried: Mapping[int, datetime] = MappingProxyType({}),
    ) -> tuple[list[Spooled], list[Spooled]]:
        """Those that the log does not have, and those that it has already: up to the mark, all.

        `tried` says of some, by their index, when they may have got there; of others in doubt it
        is known that they came when they were accepted, or never.
        """
        known = {s.index for s in events if s.event.seq <= mark} if mark else set()
        doubtful = [s for s in events if s.event.doubt is True and s.index not in known]
        if doubtful:
            since = min(tried.get(s.index, s.event.accepted_at) for s in doubtful)
            known |= await self._in_log(lane, doubtful, since)
        if not known:
            return events, []
        return [s for s in events if s.index not in known], [s for s in events if s.index in known]

    async def marks(self, source: str) -> dict[int, int]:
        """How far a source has come, by lane. Whoever begins with a source asks anew: after a
        commit that failed only the log knows.
        """
        return dict(await self._database.rows("replayed_of_source", source=source))

    async def forget_sources(self, sources: list[str]) -> None:
        """Their files are gone, durably."""
        await self._database.rows("replayed_forget", sources=sources)

    async def _in_log(self, lane: LaneFacts, doubtful: list[Spooled], since: datetime) -> set[int]:
        # A push that gave up waiting may still be on its way: let it arrive before looking.
        await self._shards[lane.shard_id].flush()
        rows = await self._database.rows(
            "ids_since",
            lane_id=lane.lane_id,
            ids=[s.event.transaction_id for s in doubtful],
            since_ms=int(since.timestamp() * 1000) - 1,
        )
        stored = {(row[0], bytes(row[1])) for row in rows}
        return {s.index for s in doubtful if (s.event.transaction_id, s.payload) in stored}

    async def prepare(self, lanes: Sequence[tuple[LaneFacts, list[Spooled]]]) -> None:
        """Have the lanes in memory; what can be read of them together is."""
        absent: dict[int, list[LaneFacts]] = {}
        for lane, _ in lanes:
            if lane.lane_id not in self._shards[lane.shard_id].entries:
                absent.setdefault(lane.shard_id, []).append(lane)
        for shard_id, facts in absent.items():
            await self._shards[shard_id].lanes(facts)

    async def bite(
        self,
        lane: LaneFacts,
        events: list[Spooled],
        source: str | None,
        check: Callable[[], None] = lambda: None,
        *,
        apart: bool = False,
    ) -> tuple[Bite | None, list[Refused]]:
        """Append events; they are in the log once the ticket of the bite is done.

        Should some have transaction ids that stand for other payloads, nothing is appended: set
        them aside first, for the commit of the others says that all before them is done.

        `check` may refuse at the last moment: behind it nothing is awaited. With `apart` they get
        a commit of their own: if it is refused, nothing else is to blame.
        """
        shard = self._shards[lane.shard_id]
        accepted_ms = _accepted_ms(events)
        entry = await self._entry(shard, lane, accepted_ms)
        arrivals = _arrivals(lane, events)
        arrivals.source, arrivals.accepted_ms = source, accepted_ms
        results: list[PushResult | None] = [None] * len(events)
        check()
        refused = conflicts(entry, arrivals, accepted_ms)
        if refused:
            return None, [(events[at], error) for at, error in refused]
        if apart:
            shard.seal()
        now_ms = self._now_ms()
        _reckon_lives(events, now_ms)
        append(shard, entry, arrivals, results, now_ms)
        ticket = shard.ticket_apart() if apart else shard.ticket()
        return Bite(lane, shard, shard.epoch, events, results, ticket, apart), []

    async def _entry(self, shard: Shard, lane: LaneFacts, accepted_ms: int) -> LaneEntry:
        """The lane in memory, with its dedupe window."""
        entry = shard.entries.get(lane.lane_id)
        if entry is None or entry.lane.dedupe is None:
            entry = await self._intake.ready(shard, lane, accepted_ms)
        return entry

    async def settle(self) -> None:
        """Wait until whatever was decided is in the log, or known not to be."""
        for shard in self._shards:
            if shard.owned:
                with suppress(SpillwayError):
                    await shard.flush()

    @property
    def is_owner(self) -> bool:
        """Whether this broker writes anything at all; a standby keeps its files."""
        return any(shard.owned for shard in self._shards)

    def check_owned(self, lane: LaneFacts) -> None:
        """Refuse a lane that this broker does not write."""
        self._shards[lane.shard_id].check_owned()


def is_ours(error: SpillwayError) -> bool:
    """Whether it is about PostgreSQL or this broker, so that every event would meet it; what is
    about the event alone is the event's fault.
    """
    return error.transient or isinstance(error, DatabasePermissionError | DatabaseSchemaError)


def bites(events: list[Spooled], count_max: int) -> Iterator[list[Spooled]]:
    """Some at a time, those of a bite accepted close together."""
    start = 0
    while start < len(events):
        end = min(start + count_max, len(events))
        latest = events[start].event.accepted_at + TOGETHER
        if events[end - 1].event.accepted_at > latest:
            end = next(i for i in range(start, end) if events[i].event.accepted_at > latest)
        yield events[start:end]
        start = end


def _accepted_ms(events: list[Spooled]) -> int:
    return int(events[0].event.accepted_at.timestamp() * 1000)


def _arrivals(lane: LaneFacts, events: list[Spooled]) -> Arrivals:
    """Events as columns."""
    items = [spooled.item for spooled in events]
    is_plain = not any(items)
    return Arrivals(
        lane,
        Address(lane.queue.org, lane.queue.name, lane.partition),
        list(range(len(events))),
        [PLAIN] * len(items) if is_plain else [item or PLAIN for item in items],
        [spooled.payload for spooled in events],
        [spooled.event.transaction_id for spooled in events],
        is_plain=is_plain,
        has_given_ids=True,
        is_quiet=True,
        seqs=[spooled.event.seq for spooled in events],
    )


def _spooled(index: int, event: Event, address: Address, now_ms: int) -> Spooled:
    text = bytes(event.payload)
    if (
        not text.startswith(BYTES_HEAD)
        and event.key is None
        and event.headers is None
        and event.priority == PRIORITY_DEFAULT
        and event.trace_id is None
        and event.deliver_at is None
        and event.expires_at is None
    ):
        return Spooled(index, event, address, text, None)
    payload = payload_of(event)
    return Spooled(index, event, address, bytes(payload), _item(event, payload, now_ms))


def _item(event: Event, payload: Raw | bytes, now_ms: int) -> PushItem:
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


def _reckon_lives(events: list[Spooled], now_ms: int) -> None:
    """An item says how long it lives from now on, an event when its life is over."""
    for spooled in events:
        if spooled.item is not None:
            spooled.item.ttl_ms = _ttl_ms(spooled.event, now_ms)


def _ttl_ms(event: Event, now_ms: int) -> int | None:
    """What is left of its life now; nothing is still a millisecond, so that it expires."""
    if event.expires_at is None:
        return None
    return max(1, int(event.expires_at.timestamp() * 1000) - now_ms)
