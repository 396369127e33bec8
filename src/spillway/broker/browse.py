"""Looking at messages without leasing them: pages of a queue, and the story of one message."""

import base64
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from spillway.broker.delivery import rfc3339
from spillway.broker.facts import LaneFacts
from spillway.broker.glance import Glance
from spillway.broker.places import runs_in, state_on
from spillway.core import events as ev
from spillway.core.errors import BadRequestError, MessageNotFoundError
from spillway.core.message import BYTES, RecordBatch
from spillway.core.ranges import RangeMap
from spillway.core.state import GroupState, Moment, attempts_of, leased_in, state_of
from spillway.log import events as codec
from spillway.log.database import Database
from spillway.log.reader import read_batches
from spillway.wire import BrowsedMessage, BrowseReply, StoryEvent, StoryReply

PAGE_BYTES = 8 * 1024 * 1024
"""A page ends early when its bodies weigh more: its `next` goes on."""
LANES_A_PAGE = 512
"""As many lanes are looked at for one page, full or not."""
STORY_ROWS_MAX = 50_000
STORY_EVENTS_MAX = 1_000
ROWS_A_READ = 1_000


Place = TypeVar("Place", bound=Struct)


class Cursor(Struct, array_like=True):
    """Where the next page begins; opaque to those who carry it."""

    partition: str
    priority: int
    enqueue_shard: int
    version: int
    floor: int
    """Lower versions are left out on every lane."""


def encode(cursor: Struct) -> str:
    """A cursor as it travels."""
    return base64.urlsafe_b64encode(msgspec.json.encode(cursor)).decode().rstrip("=")


def decode(text: str, kind: type[Place]) -> Place:
    """A cursor that came back."""
    try:
        padded = text.encode() + b"=" * (-len(text) % 4)
        return msgspec.json.decode(base64.urlsafe_b64decode(padded), type=kind)
    except (ValueError, msgspec.MsgspecError) as error:
        raise BadRequestError(f"next={text[:60]!r} is no cursor of ours") from error


class Browse:
    """Reads messages."""

    def __init__(self, glance: Glance, database: Database) -> None:
        self._glance = glance
        self._database = database

    # ------------------------------------------------------------ pages

    async def page(
        self, lanes: list[LaneFacts], group: str, state: str | None, start: Cursor, limit: int
    ) -> BrowseReply:
        """Messages in the order of (partition, version), from a cursor on."""
        found: list[BrowsedMessage] = []
        room = PAGE_BYTES
        ahead = [lane for lane in lanes if address(lane) >= _place(start)]
        for lane in ahead[:LANES_A_PAGE]:
            low = start.version if address(lane) == _place(start) else start.floor
            async for message, size in self._of_lane(lane, group, state, low):
                if len(found) == limit or (found and room < size):
                    return BrowseReply(
                        messages=found, next=encode(_cursor(lane, message.version, start.floor))
                    )
                found.append(message)
                room -= size
        rest = ahead[LANES_A_PAGE:]
        following = encode(_cursor(rest[0], start.floor, start.floor)) if rest else None
        return BrowseReply(messages=found, next=following)

    async def _of_lane(
        self, lane: LaneFacts, group: str, name: str | None, low: int
    ) -> AsyncIterator[tuple[BrowsedMessage, int]]:
        entry = await self._glance.one(lane)
        if entry is None:
            return
        state, now = state_on(entry, group), self._glance.moment(entry)
        low = max(low, entry.lane.pruned_to + 1)
        # Noted before anything is awaited: a lane in memory moves on while bodies are read.
        runs = list(runs_in(state, now, name, low, entry.durable_tail))
        leased = leased_in(state, low, entry.durable_tail)
        for start, end in runs:
            async for batch in self._batches(lane.lane_id, start, end):
                first, last = max(start, batch.base_version), min(end, batch.last_version)
                for version in range(first, last + 1):
                    message = browsed(lane, batch, version, state, now, leased=leased)
                    if name is None or message.state == name:
                        yield message, len(batch.payloads[version - batch.base_version])

    async def _batches(self, lane_id: int, start: int, end: int) -> AsyncIterator[RecordBatch]:
        at = start
        while at <= end:
            ahead = min(end - at + 1, ROWS_A_READ)
            async with self._database.connection() as conn:
                batches = await read_batches(conn, lane_id, at, ahead, PAGE_BYTES)
            batches = [batch for batch in batches if batch.last_version >= at]
            for batch in batches:
                yield batch
            if not batches:
                return
            at = batches[-1].last_version + 1

    # ------------------------------------------------------------ the story of one

    async def story(self, lane: LaneFacts, version: int, group: str) -> StoryReply:
        """A message and the control events that touched it, as far back as the log reaches."""
        entry = await self._glance.one(lane)
        if entry is None:
            raise MessageNotFoundError
        await self._glance.durable([entry])
        batch = await self._batch_of(lane.lane_id, version)
        state, now = state_on(entry, group), self._glance.moment(entry)
        leased = leased_in(state, version, version)
        message = browsed(lane, batch, version, state, now, leased=leased)
        return StoryReply(message=message, story=await self._events(lane, version, batch))

    async def _batch_of(self, lane_id: int, version: int) -> RecordBatch:
        async for batch in self._batches(lane_id, version, version):
            if batch.base_version <= version:
                return batch
        raise MessageNotFoundError(f"version {version} is not in the log of this partition")

    async def _events(self, lane: LaneFacts, version: int, batch: RecordBatch) -> list[StoryEvent]:
        told: list[tuple[int, StoryEvent]] = []
        leases: dict[str, set[int]] = {}
        async for group, seq, data in self._rows(lane.lane_id, batch.appended_ms):
            for at_ms, event in codec.decode(data):
                if touches(event, version, leases.setdefault(group, set())):
                    told.append((at_ms, told_event(seq, at_ms, group, event, version)))
            if len(told) >= STORY_EVENTS_MAX:
                break
        return [event for _, event in sorted(told, key=lambda one: (one[0], one[1].seq))]

    async def _rows(self, lane_id: int, since_ms: int) -> AsyncIterator[tuple[str, int, bytes]]:
        after, seen = ("", 0), 0
        while seen < STORY_ROWS_MAX:
            rows = await self._database.rows(
                "story_rows",
                lane_id=lane_id,
                after_group=after[0],
                after_seq=after[1],
                since_ms=since_ms,
                limit=ROWS_A_READ,
            )
            for row in rows:
                yield row[0], row[1], row[2]
            if len(rows) < ROWS_A_READ:
                return
            after, seen = (rows[-1][0], rows[-1][1]), seen + len(rows)


def address(lane: LaneFacts) -> tuple[str, int, int]:
    """What the lanes of a queue are sorted by."""
    return lane.partition, lane.priority, lane.enqueue_shard


def _place(cursor: Cursor) -> tuple[str, int, int]:
    return cursor.partition, cursor.priority, cursor.enqueue_shard


def _cursor(lane: LaneFacts, version: int, floor: int) -> Cursor:
    return Cursor(lane.partition, lane.priority, lane.enqueue_shard, version, floor)


def _of(column: list[Any] | None, i: int) -> Any:  # noqa: ANN401 (a column of anything)
    return None if column is None else column[i]


def _moment(ms: int | None) -> str | None:
    return None if ms is None else rfc3339(ms)


def body(payload: bytes, content_type: int | None) -> Any:  # noqa: ANN401 (the wire says Raw)
    """A payload as it goes to a skin: `Raw` of JSON text, or bytes."""
    return payload if content_type == BYTES else Raw(payload)


def browsed(
    lane: LaneFacts,
    batch: RecordBatch,
    version: int,
    state: GroupState,
    now: Moment,
    *,
    leased: RangeMap[int],
) -> BrowsedMessage:
    """A message of a batch, and where it is for a group."""
    i = version - batch.base_version
    return BrowsedMessage(
        partition=lane.partition,
        version=version,
        key=_of(batch.keys, i),
        payload=body(batch.payloads[i], _of(batch.content_types, i)),
        headers=_of(batch.headers, i),
        transaction_id=batch.transaction_ids[i],
        enqueued_at=rfc3339(batch.appended_ms),
        priority=lane.priority,
        deliver_at=_moment(_of(batch.deliver_ms, i)),
        expires_at=_moment(_of(batch.expires_ms, i)),
        state=state_of(state, now, version, leased),
        attempts=attempts_of(state, version, leased),
    )


# ---------------------------------------------------------------- events


LANE_WIDE = (ev.GroupCreated, ev.Sought, ev.ConfigChanged, ev.Deleted)


def touches(event: ev.Event, version: int, leases: set[int]) -> bool:
    """Whether an event has to do with a version; `leases` remembers which ones held it."""
    if isinstance(event, LANE_WIDE):
        return True
    if isinstance(event, ev.Extended):
        return event.lease_id in leases
    inside = any(run[0] <= version <= run[1] for run in _runs(event))
    if inside and isinstance(event, ev.Leased):
        leases.add(event.lease_id)
    elif inside:
        leases.discard(getattr(event, "lease_id", 0))
    return inside


def _runs(event: ev.Event) -> tuple[tuple[int, ...], ...]:
    runs: tuple[tuple[int, ...], ...] = getattr(event, "ranges", ()) or getattr(event, "runs", ())
    return runs


def told_event(seq: int, at_ms: int, group: str, event: ev.Event, version: int) -> StoryEvent:
    """An event as part of a story: of a thousand ranges only the one that matters."""
    detail = ev.detail(event)
    for name in detail.keys() & {"ranges", "runs"}:
        detail[name] = [run for run in detail[name] if run[0] <= version <= run[1]]
    return StoryEvent(
        seq=seq, at=rfc3339(at_ms), group=group, event=type(event).__name__, detail=detail
    )


def lanes_from(lanes: list[LaneFacts], partition: str | None) -> Iterator[LaneFacts]:
    """The lanes of a partition, or all, in the order of browsing."""
    wanted = (lane for lane in lanes if partition in (None, lane.partition))
    key: Callable[[LaneFacts], tuple[str, int, int]] = address
    return iter(sorted(wanted, key=key))
