"""Pushes: check each item, find its lane, dedupe it, give it a version, wait for the commit."""

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar
from zlib import crc32

from spillway.broker.facts import Facts, LaneFacts, QueueFacts
from spillway.broker.lanes import LaneEntry
from spillway.broker.shard import Shard
from spillway.core.errors import (
    InvalidItemError,
    InvalidNameError,
    QueueFullError,
    SpillwayError,
    TransactionConflictError,
)
from spillway.core.lane import DedupeWindow
from spillway.core.message import BYTES, JSON, RecordBatch
from spillway.core.routing import partition_of
from spillway.wire import ErrorDetail, PushItem, PushResult, QueueOptions

T = TypeVar("T")

NAME_CHARS_MAX = 128
_NAME_REST = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
SPAN_MS_MAX = 366 * 86_400_000


def is_name(name: str) -> bool:
    """Whether it can be the name of a queue or a group."""
    return 0 < len(name) <= NAME_CHARS_MAX and name[0] not in "._-" and _NAME_REST.issuperset(name)


def error_detail(error: SpillwayError) -> ErrorDetail:
    """An error as it travels."""
    return ErrorDetail(code=error.code, message=error.message, hint=error.hint)


@dataclass(frozen=True, slots=True)
class ItemLimits:
    """What one message may weigh."""

    message_bytes_max: int = 1024 * 1024
    key_bytes_max: int = 1024
    headers_bytes_max: int = 16 * 1024
    transaction_id_bytes_max: int = 256


@dataclass(slots=True)
class Arrival:
    """A checked item on its way into a lane."""

    index: int
    item: PushItem
    payload: bytes
    transaction_id: str
    given_id: bool
    deliver_ms: int | None = None
    expires_ms: int | None = None


class Intake:
    """What a push goes through."""

    def __init__(
        self,
        facts: Facts,
        shards: list[Shard],
        limits: ItemLimits,
        *,
        auto_create: bool,
        now_ms: Callable[[], int],
    ) -> None:
        self._facts = facts
        self._shards = shards
        self._limits = limits
        self._auto_create = auto_create
        self._now_ms = now_ms

    async def push(self, org: str, items: list[PushItem]) -> list[PushResult]:
        """Store what can be stored; one result an item, in order."""
        results: list[PushResult | None] = [None] * len(items)
        by_lane = await self._sort(org, items, results)
        tickets: list[tuple[asyncio.Future[None], list[Arrival]]] = []
        for lane, arrivals in by_lane.values():
            shard = self._shards[lane.shard_id]
            try:
                entry = shard.entries.get(lane.lane_id)
                if entry is None or (
                    entry.lane.dedupe is None and any(a.given_id for a in arrivals)
                ):
                    entry = await _ready(shard, lane)
                append(shard, entry, arrivals, results, self._now_ms())
                tickets.append((shard.ticket(), arrivals))
            except SpillwayError as error:
                _fail(results, arrivals, error)
        await _wait(tickets, results)
        return [result for result in results if result is not None]

    async def _sort(
        self, org: str, items: list[PushItem], results: list[PushResult | None]
    ) -> dict[int, tuple[LaneFacts, list[Arrival]]]:
        """Checked items by lane, in order; bad ones get their result here."""
        by_lane: dict[int, tuple[LaneFacts, list[Arrival]]] = {}
        prefix = secrets.token_urlsafe(16)
        now_ms = self._now_ms()
        for index, item in enumerate(items):
            try:
                arrival = self._check(index, item, prefix, now_ms)
                queue = self._facts.cached_queue(org, item.queue) or await self._queue(
                    org, item.queue
                )
                partition = route(queue, item, arrival.transaction_id)
                lane = queue.lanes.get(partition) or await self._facts.lane(queue, partition)
            except SpillwayError as error:
                results[index] = failed(index, item, error)
                continue
            known = by_lane.get(lane.lane_id)
            if known is None:
                by_lane[lane.lane_id] = (lane, [arrival])
            else:
                known[1].append(arrival)
        return by_lane

    async def _queue(self, org: str, name: str) -> QueueFacts:
        if not is_name(name):
            raise InvalidNameError(f"queue name {name[:64]!r} is outside the pattern")
        if self._auto_create:
            return (await self._facts.create_queue(org, name, QueueOptions()))[1]
        return await self._facts.queue(org, name)

    def _check(self, index: int, item: PushItem, prefix: str, now_ms: int) -> Arrival:
        payload = bytes(item.payload)
        limits = self._limits
        if len(payload) > limits.message_bytes_max:
            raise InvalidItemError(
                f"payload has {len(payload)} bytes, the limit is {limits.message_bytes_max}"
            )
        transaction_id = item.transaction_id
        if transaction_id is None:
            arrival = Arrival(index, item, payload, f"{prefix}-{index}", given_id=False)
        else:
            _check_text("transaction_id", transaction_id, 1, limits.transaction_id_bytes_max)
            arrival = Arrival(index, item, payload, transaction_id, given_id=True)
        if item.key is not None:
            _check_text("key", item.key, 1, limits.key_bytes_max)
        if item.trace_id is not None:
            _check_text("trace_id", item.trace_id, 1, limits.transaction_id_bytes_max)
        if item.headers is not None:
            _check_headers(item.headers, limits.headers_bytes_max)
        if item.priority != 2:  # noqa: PLR2004 (the default; the others come with priorities)
            raise InvalidItemError(f"priority {item.priority} is not available yet; leave it out")
        _set_times(arrival, now_ms)
        return arrival


async def _wait(
    tickets: list[tuple[asyncio.Future[None], list[Arrival]]],
    results: list[PushResult | None],
) -> None:
    """Wait for every commit; where all of them failed, the push failed."""
    failures: list[SpillwayError] = []
    for ticket, arrivals in tickets:
        try:
            await ticket
        except SpillwayError as error:
            failures.append(error)
            _fail(results, arrivals, error)
    if failures and len(failures) == len(tickets):
        raise failures[0]


def _check_text(name: str, value: str, low: int, high: int) -> None:
    size = len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
    if not low <= size <= high:
        raise InvalidItemError(f"{name} has {size} bytes, allowed are {low} to {high}")
    if "\0" in value:
        raise InvalidItemError(f"{name} contains a NUL character")


def _check_headers(headers: dict[str, str], high: int) -> None:
    size = sum(len(k.encode()) + len(v.encode()) for k, v in headers.items())
    if size > high:
        raise InvalidItemError(f"headers have {size} bytes, the limit is {high}")
    if any("\0" in k or "\0" in v for k, v in headers.items()):
        raise InvalidItemError("headers contain a NUL character")


def _set_times(arrival: Arrival, now_ms: int) -> None:
    item = arrival.item
    if item.delay_ms is not None:
        if item.deliver_at is not None:
            raise InvalidItemError("delay_ms and deliver_at exclude each other")
        _check_span("delay_ms", item.delay_ms, 0)
        arrival.deliver_ms = now_ms + item.delay_ms
    elif item.deliver_at is not None:
        arrival.deliver_ms = _moment_ms("deliver_at", item.deliver_at, now_ms)
    if item.ttl_ms is not None:
        _check_span("ttl_ms", item.ttl_ms, 1)
        arrival.expires_ms = now_ms + item.ttl_ms


def _check_span(name: str, span_ms: int, low: int) -> None:
    if not low <= span_ms <= SPAN_MS_MAX:
        raise InvalidItemError(f"{name} is {span_ms}, allowed are {low} to {SPAN_MS_MAX}")


def _moment_ms(name: str, moment: datetime, now_ms: int) -> int:
    ms = int(moment.timestamp() * 1000)
    if ms > now_ms + SPAN_MS_MAX:
        raise InvalidItemError(f"{name} is more than {SPAN_MS_MAX} ms away")
    return ms


def route(queue: QueueFacts, item: PushItem, transaction_id: str) -> str:
    """The partition of an item: its own, or by its key, or spread by its transaction id."""
    if item.partition is not None:
        return item.partition
    return partition_of(item.key or transaction_id, queue.options.partitions)


def failed(index: int, item: PushItem, error: SpillwayError) -> PushResult:
    """The result of an item that was not stored."""
    return PushResult(
        index=index,
        status="failed",
        partition=item.partition,
        transaction_id=item.transaction_id,
        error=error_detail(error),
    )


def _fail(results: list[PushResult | None], arrivals: list[Arrival], error: SpillwayError) -> None:
    for arrival in arrivals:
        results[arrival.index] = failed(arrival.index, arrival.item, error)


async def _ready(shard: Shard, lane: LaneFacts) -> LaneEntry:
    found = await shard.lanes([lane])
    if not found:
        raise InvalidItemError("the queue was deleted while the message arrived")
    await shard.know_recent(found[0])
    shard.check_owned()
    return found[0]


def append(
    shard: Shard,
    entry: LaneEntry,
    arrivals: list[Arrival],
    results: list[PushResult | None],
    now_ms: int,
) -> None:
    """Give arrivals their versions, in order. All of it in one turn: nothing comes between."""
    draft = shard.draft_for(entry)
    lane, facts = entry.lane, entry.facts
    options = facts.queue.options
    room = options.max_depth - (lane.tail - entry.trim()) if options.max_depth else None
    dedupe = lane.dedupe
    partition = facts.partition
    new_ids: list[str] = []
    tally: Counter[str] = Counter()
    for arrival in arrivals:
        index = arrival.index
        transaction_id = arrival.transaction_id
        fingerprint = 0
        if arrival.given_id and dedupe is not None:
            fingerprint = crc32(arrival.payload)
            seen = dedupe.find(transaction_id)
            if seen is not None:
                results[index] = _repeat(arrival, seen, fingerprint, partition)
                tally["duplicates"] += 1
                continue
        if room is not None:
            if room <= 0:
                full = QueueFullError(f"queue {facts.queue.name!r} holds {options.max_depth}")
                results[index] = failed(index, arrival.item, full)
                tally["refused"] += 1
                continue
            room -= 1
        lane.tail += 1
        _store(shard, entry, arrival, lane.tail, now_ms)
        if arrival.given_id and dedupe is not None:
            dedupe.add(transaction_id, lane.tail, fingerprint)
            new_ids.append(transaction_id)
        tally["produced"] += 1
        results[index] = PushResult(
            index=index,
            status="stored",
            partition=partition,
            version=lane.tail,
            transaction_id=transaction_id,
        )
    if entry.open_batch is not None:
        entry.window.recount(entry.open_batch)
    if dedupe is not None:
        _slide(dedupe, new_ids, options, now_ms)
    for name, count in tally.items():
        draft.counts[facts.queue.queue_id, name] += count
    draft.messages += tally["produced"]
    entry.used_ms = now_ms
    if lane.schedule:
        shard.set_alarm(entry)
    shard.on_ready(entry)


def _slide(dedupe: DedupeWindow, new_ids: list[str], options: QueueOptions, now_ms: int) -> None:
    dedupe.close_batch(now_ms, new_ids)
    dedupe.slide(now_ms, options.dedupe_window_ms, options.dedupe_count)


def _repeat(
    arrival: Arrival, seen: tuple[int, int], fingerprint: int, partition: str
) -> PushResult:
    version, known = seen
    if fingerprint != known:
        conflict = TransactionConflictError(
            f"transaction id {arrival.transaction_id!r} is version {version} with another payload"
        )
        return failed(arrival.index, arrival.item, conflict)
    return PushResult(
        index=arrival.index,
        status="duplicate",
        partition=partition,
        version=version,
        transaction_id=arrival.transaction_id,
    )


def _store(shard: Shard, entry: LaneEntry, arrival: Arrival, version: int, now_ms: int) -> None:
    """Put one message at the end of the lane's open batch."""
    batch = entry.open_batch
    if batch is None or batch.is_full:
        batch = _begin_batch(shard, entry, version, now_ms)
    batch.transaction_ids.append(arrival.transaction_id)
    batch.payloads.append(arrival.payload)
    batch.payload_bytes += len(arrival.payload)
    item = arrival.item
    if item.key is not None or batch.keys is not None:
        batch.keys = _put(batch.keys, batch.count, item.key, None)
    if item.headers is not None or batch.headers is not None:
        batch.headers = _put(batch.headers, batch.count, item.headers, None)
    if item.trace_id is not None or batch.trace_ids is not None:
        batch.trace_ids = _put(batch.trace_ids, batch.count, item.trace_id, None)
    if type(item.payload) is bytes or batch.content_types is not None:
        kind = BYTES if type(item.payload) is bytes else JSON
        batch.content_types = _put(batch.content_types, batch.count, kind, JSON)
    if arrival.deliver_ms is not None or batch.deliver_ms is not None:
        batch.deliver_ms = _put(batch.deliver_ms, batch.count, arrival.deliver_ms, None)
    if arrival.expires_ms is not None or batch.expires_ms is not None:
        batch.expires_ms = _put(batch.expires_ms, batch.count, arrival.expires_ms, None)
    if arrival.deliver_ms is not None and arrival.deliver_ms > now_ms:
        entry.lane.schedule.defer(version, arrival.deliver_ms)
    if arrival.expires_ms is not None:
        entry.lane.schedule.expire(version, arrival.expires_ms)


def _begin_batch(shard: Shard, entry: LaneEntry, version: int, now_ms: int) -> RecordBatch:
    if entry.open_batch is not None:
        entry.window.recount(entry.open_batch)
    batch = RecordBatch(entry.facts.lane_id, version, now_ms)
    draft = shard.draft_for(entry)
    draft.commit.batches.append(batch)
    entry.open_batch = batch
    entry.window.offer(batch, version - 1)
    return batch


def _put(column: list[T] | None, count: int, value: T, missing: T) -> list[T]:
    """Append to an optional column, which begins when it is first needed."""
    if column is None:
        column = [missing] * (count - 1)
    column.append(value)
    return column
