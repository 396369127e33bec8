"""Appending: arrivals get their versions, in order, in one turn of the loop.

A thousand messages of one request are handled as columns, not one by one: the loop that serves
everybody must not stand still for them.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import accumulate, repeat
from typing import Protocol, TypeVar

from spillway.broker.draft import Draft
from spillway.broker.facts import LaneFacts
from spillway.broker.lanes import LaneEntry
from spillway.broker.shard import Shard
from spillway.core.errors import (
    QueueFullError,
    SpillwayError,
    TransactionConflictError,
    invariant,
)
from spillway.core.lane import DedupeWindow
from spillway.core.message import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX, BYTES, JSON, RecordBatch
from spillway.spool.event import Address
from spillway.wire import ErrorDetail, PushItem, PushResult

T = TypeVar("T")


class Results(Protocol):
    """Where the result of each item goes, by its index."""

    def __setitem__(self, index: int, result: PushResult, /) -> None: ...


def error_detail(error: SpillwayError) -> ErrorDetail:
    """An error as it travels."""
    return ErrorDetail(code=error.code, message=error.message, hint=error.hint)


def failed(index: int, item: PushItem, error: SpillwayError) -> PushResult:
    """The result of an item that was not stored."""
    return PushResult(
        index=index,
        status="failed",
        partition=item.partition,
        transaction_id=item.transaction_id,
        error=error_detail(error),
    )


@dataclass(slots=True)
class Arrivals:
    """Checked items on their way into one lane, column by column."""

    lane: LaneFacts | None
    """None: the queue cannot be looked up now; whose order they belong to is still known."""
    address: Address
    indexes: list[int] = field(default_factory=list)
    items: list[PushItem] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    is_plain: bool = True
    """Whether no item has a key, headers, times, a trace or bytes for a payload."""
    has_given_ids: bool = False
    echoes: list[tuple[int, PushItem, int]] = field(default_factory=list)
    """Repeats of an item of the same request, with the version that it is meant to get."""
    source: str | None = None
    """The file that they come from, out of the spool; `seqs` are their numbers there."""
    seqs: list[int] = field(default_factory=list)
    accepted_ms: int | None = None
    """When they were accepted, if that is not now: repeats are looked for as of then."""
    is_quiet: bool = False
    """Whether nobody waits for their versions: what has no result then is stored."""
    are_new: bool = False
    """Whether it is known in this turn of the loop that no id of them was seen before."""

    @classmethod
    def at(cls, lane: LaneFacts) -> "Arrivals":
        """None yet, for a lane."""
        return cls(lane, lane.address)

    @property
    def home(self) -> LaneFacts:
        """The lane, where it is known."""
        invariant(self.lane is not None, "arrivals without a lane can only be buffered")
        assert self.lane is not None
        return self.lane

    def add(self, index: int, item: PushItem, payload: bytes, transaction_id: str) -> None:
        """One more."""
        self.indexes.append(index)
        self.items.append(item)
        self.payloads.append(payload)
        self.ids.append(transaction_id)

    def straighten(self) -> None:
        """Put JSON on one line, as the spool has it: a repeat is known by its fingerprint."""
        if b"\n" not in b"".join(self.payloads):
            return
        self.payloads = [
            payload.replace(b"\n", b" ").replace(b"\r", b" ")
            if b"\n" in payload and type(item.payload) is not bytes
            else payload
            for item, payload in zip(self.items, self.payloads, strict=True)
        ]

    def fail(self, results: list[PushResult | None], error: SpillwayError) -> None:
        """No success for any of them; with the ids under which they may be pushed again."""
        detail, partition = error_detail(error), self.address.partition
        for index, transaction_id in zip(self.indexes, self.ids, strict=True):
            results[index] = PushResult(
                index=index,
                status="failed",
                partition=partition,
                transaction_id=transaction_id,
                error=detail,
            )

    def buffered(self, results: list[PushResult | None]) -> None:
        """All of them are in files."""
        partition = self.address.partition
        for index, transaction_id in zip(self.indexes, self.ids, strict=True):
            results[index] = PushResult(
                index=index, status="buffered", partition=partition, transaction_id=transaction_id
            )

    def stored(self, results: Results, first: int) -> None:
        """All of them got their versions, from this one on."""
        partition = self.address.partition
        for version, (index, transaction_id) in enumerate(
            zip(self.indexes, self.ids, strict=True), first
        ):
            results[index] = PushResult(
                index=index,
                status="stored",
                partition=partition,
                version=version,
                transaction_id=transaction_id,
            )

    def only(self, kept: list[int]) -> "Arrivals":
        """Those at these places."""
        return Arrivals(
            self.lane,
            self.address,
            [self.indexes[i] for i in kept],
            [self.items[i] for i in kept],
            [self.payloads[i] for i in kept],
            [self.ids[i] for i in kept],
            self.is_plain,
            self.has_given_ids,
            self.echoes,
            self.source,
            [self.seqs[i] for i in kept] if self.source else [],
            self.accepted_ms,
            self.is_quiet,
        )


def append(
    shard: Shard,
    entry: LaneEntry,
    arrivals: Arrivals,
    results: Results,
    now_ms: int,
) -> None:
    """Dedupe, refuse what the queue has no room for, store the rest."""
    seen_ms = arrivals.accepted_ms or now_ms
    draft = shard.draft_for(entry)
    queue_id = entry.facts.queue.queue_id
    prints: list[int] = []
    if arrivals.has_given_ids:
        arrivals, prints = _dedupe(draft, entry, arrivals, results, seen_ms)
    if entry.facts.queue.options.max_depth:
        arrivals = _fit(draft, entry, arrivals, results)
    if not arrivals.ids:
        return
    first = store(shard, entry, arrivals, now_ms)
    if entry.lane.dedupe is not None:
        if prints:
            # Known from now on, however long ago they were accepted: a repeat may come any time.
            entry.lane.dedupe.add_batch(now_ms, arrivals.ids, first, prints)
        _slide(entry.lane.dedupe, entry, seen_ms)
    draft.counts[queue_id, "produced"] += len(arrivals.ids)
    if not arrivals.is_quiet:
        arrivals.stored(results, first)


# ---------------------------------------------------------------- dedupe and room


def _dedupe(
    draft: Draft,
    entry: LaneEntry,
    arrivals: Arrivals,
    results: Results,
    now_ms: int,
) -> tuple[Arrivals, list[int]]:
    """Without the repeats, and the fingerprints of what is left."""
    dedupe = entry.lane.dedupe
    prints = list(map(hash, arrivals.payloads))
    if dedupe is not None:
        _slide(dedupe, entry, now_ms)
    if dedupe is None or arrivals.are_new or dedupe.knows_none(arrivals.ids):
        return arrivals, prints
    kept: list[int] = []
    versions: dict[str, tuple[int, int]] = {}
    tail = entry.lane.tail
    for i, transaction_id in enumerate(arrivals.ids):
        seen = dedupe.find(transaction_id) or versions.get(transaction_id)
        if seen is None:
            kept.append(i)
            versions[transaction_id] = (tail + len(kept), prints[i])
            continue
        index, item = arrivals.indexes[i], arrivals.items[i]
        if prints[i] == seen[1]:
            results[index] = PushResult(
                index=index,
                status="duplicate",
                partition=entry.facts.partition,
                version=seen[0],
                transaction_id=transaction_id,
            )
        else:
            results[index] = failed(index, item, _conflict(transaction_id, seen[0]))
        if seen[0] > tail:
            arrivals.echoes.append((index, item, seen[0]))
    draft.counts[entry.facts.queue.queue_id, "duplicates"] += len(arrivals.ids) - len(kept)
    return arrivals.only(kept), [prints[i] for i in kept]


def conflicts(
    entry: LaneEntry, arrivals: Arrivals, seen_ms: int
) -> list[tuple[int, TransactionConflictError]]:
    """Which of these the lane would refuse, by their place: their id stands for another payload."""
    ids, payloads = arrivals.ids, arrivals.payloads
    dedupe = entry.lane.dedupe
    if dedupe is None:
        return []
    _slide(dedupe, entry, seen_ms)
    arrivals.are_new = dedupe.knows_none(ids)
    if arrivals.are_new:
        return []
    found: list[tuple[int, TransactionConflictError]] = []
    firsts: dict[str, int] = {}
    for at, (transaction_id, fingerprint) in enumerate(zip(ids, map(hash, payloads), strict=True)):
        seen = dedupe.find(transaction_id)
        known = firsts.setdefault(transaction_id, fingerprint) if seen is None else seen[1]
        if known != fingerprint:
            found.append((at, _conflict(transaction_id, None if seen is None else seen[0])))
    return found


def _conflict(transaction_id: str, version: int | None) -> TransactionConflictError:
    whose = "an earlier message" if version is None else f"version {version}"
    return TransactionConflictError(
        f"transaction id {transaction_id!r} is {whose} with another payload"
    )


def _fit(draft: Draft, entry: LaneEntry, arrivals: Arrivals, results: Results) -> Arrivals:
    """What the queue's max_depth has room for."""
    queue = entry.facts.queue
    limit = queue.options.max_depth
    room = max(0, limit - entry.depth())
    full = QueueFullError(f"lane {entry.facts.partition!r} of {queue.name!r} holds {limit}")
    for index, item in zip(arrivals.indexes[room:], arrivals.items[room:], strict=True):
        results[index] = failed(index, item, full)
    for index, item, version in arrivals.echoes:
        if version > entry.lane.tail + room:
            results[index] = failed(index, item, full)
    draft.counts[queue.queue_id, "refused"] += max(0, len(arrivals.ids) - room)
    return arrivals.only(list(range(min(room, len(arrivals.ids)))))


def _slide(dedupe: DedupeWindow, entry: LaneEntry, now_ms: int) -> None:
    options = entry.facts.queue.options
    dedupe.slide(now_ms, options.dedupe_window_ms, options.dedupe_count)


# ---------------------------------------------------------------- into record batches


def store(shard: Shard, entry: LaneEntry, arrivals: Arrivals, now_ms: int) -> int:
    """Put arrivals at the end of the lane; returns the version of the first."""
    draft = shard.draft_for(entry)
    lane = entry.lane
    first = lane.tail + 1
    at, count = 0, len(arrivals.ids)
    while at < count:
        batch = entry.open_batch
        if batch is None or batch.is_full:
            batch = _begin_batch(draft, entry, now_ms)
        taken = _room(batch, arrivals.payloads, at)
        _extend(batch, arrivals, at, at + taken, now_ms)
        lane.tail += taken
        at += taken
        entry.window.recount(batch)
    if not arrivals.is_plain:
        _schedule(entry, arrivals, first, now_ms)
        shard.set_alarm(entry)
    draft.messages += count
    draft.payload_bytes += sum(map(len, arrivals.payloads))
    if arrivals.source is not None:
        # In the same commit: after a crash the replay goes on behind them.
        draft.commit.replayed[entry.facts.lane_id, arrivals.source] = arrivals.seqs[-1]
    entry.used_ms = now_ms
    shard.on_ready(entry)
    return first


def _begin_batch(draft: Draft, entry: LaneEntry, now_ms: int) -> RecordBatch:
    batch = RecordBatch(entry.facts.lane_id, entry.lane.tail + 1, now_ms)
    draft.commit.batches.append(batch)
    entry.open_batch = batch
    entry.window.offer(batch, entry.lane.tail)
    return batch


def _room(batch: RecordBatch, payloads: list[bytes], at: int) -> int:
    """How many of the next payloads still go into this batch; at least one."""
    most = min(BATCH_MESSAGES_MAX - batch.count, len(payloads) - at)
    sizes = accumulate(map(len, payloads[at : at + most]), initial=batch.payload_bytes)
    return max(1, bisect_right(list(sizes), BATCH_BYTES_MAX, lo=1) - 1)


def _extend(batch: RecordBatch, arrivals: Arrivals, start: int, end: int, now_ms: int) -> None:
    payloads = arrivals.payloads[start:end]
    before = batch.count
    batch.transaction_ids.extend(arrivals.ids[start:end])
    batch.payloads.extend(payloads)
    batch.payload_bytes += sum(map(len, payloads))
    if arrivals.is_plain and batch.is_plain:
        return
    items = arrivals.items[start:end]
    batch.keys = _column(batch.keys, before, [item.key for item in items])
    batch.headers = _column(batch.headers, before, [item.headers for item in items])
    batch.trace_ids = _column(batch.trace_ids, before, [item.trace_id for item in items])
    batch.deliver_ms = _column(batch.deliver_ms, before, [deliver_ms(i, now_ms) for i in items])
    batch.expires_ms = _column(batch.expires_ms, before, [expires_ms(i, now_ms) for i in items])
    kinds = [BYTES if type(item.payload) is bytes else JSON for item in items]
    if batch.content_types is not None or BYTES in kinds:
        batch.content_types = [*(batch.content_types or repeat(JSON, before)), *kinds]


def _column(
    column: list[T | None] | None, before: int, values: list[T | None]
) -> list[T | None] | None:
    """An optional column goes on; it begins when it is first needed."""
    if column is None and all(value is None for value in values):
        return None
    return [*(column or repeat(None, before)), *values]


def deliver_ms(item: PushItem, now_ms: int) -> int | None:
    """When an item may be delivered, if it says so. Calendars end at year 1; long ago is 1970."""
    if item.delay_ms is not None:
        return now_ms + item.delay_ms
    return None if item.deliver_at is None else max(0, int(item.deliver_at.timestamp() * 1000))


def expires_ms(item: PushItem, now_ms: int) -> int | None:
    """When an item's life is over, if it says so."""
    return None if item.ttl_ms is None else now_ms + item.ttl_ms


def _schedule(entry: LaneEntry, arrivals: Arrivals, first: int, now_ms: int) -> None:
    for version, item in enumerate(arrivals.items, first):
        due_ms = deliver_ms(item, now_ms)
        if due_ms is not None and due_ms > now_ms:
            entry.lane.schedule.defer(version, due_ms)
        end_ms = expires_ms(item, now_ms)
        if end_ms is not None:
            entry.lane.schedule.expire(version, end_ms)
