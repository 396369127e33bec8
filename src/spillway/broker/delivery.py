"""Leases and their settlement."""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from spillway.broker.append import error_detail
from spillway.broker.bodies import Bodies, Slice
from spillway.broker.dispatch import Dispatch, Line
from spillway.broker.facts import Facts, LaneFacts, QueueFacts
from spillway.broker.lanes import LaneEntry
from spillway.broker.shard import Shard
from spillway.core import commands as cmd
from spillway.core.errors import SpillwayError, StaleReceiptError
from spillway.core.message import BYTES
from spillway.core.ranges import coalesce
from spillway.wire import (
    Consumer,
    LeaseReply,
    LeaseRequest,
    Message,
    SettleReply,
    SettleRequest,
    SettleResult,
)

ERROR_CHARS_MAX = 2_000
_HELD_BACK = ("ack_hole_cap", "lane_busy", "blocked", "retry_pending")
LANES_A_LEASE_MAX = 64
"""How many lanes one lease may gather from; the wheel goes on from there."""


@dataclass(frozen=True, slots=True)
class Granted:
    """A lease on one lane, decided but not yet durable."""

    shard: Shard
    entry: LaneEntry
    group: str
    grant: cmd.Grant
    ticket: asyncio.Future[None]
    slices: list[Slice] | None
    """The bodies, where they were at hand when the lease was decided."""

    @property
    def prefix(self) -> str:
        """What the receipts of this lease begin with."""
        lane_id = self.entry.facts.lane_id
        return f"{lane_id}~{self.grant.lease_id}~{self.shard.epoch}~{self.group}~"

    def give_back(self) -> None:
        """The holder never got it."""
        if not self.entry.dead and self.shard.owned:
            self.shard.handle(self.entry, self.group, cmd.Return(self.grant.lease_id))


@dataclass(slots=True)
class Settling:
    """The receipts of a request that belong to one lease."""

    lane_id: int
    lease_id: int
    group: str
    versions: list[int] = field(default_factory=list)
    indexes: list[int] = field(default_factory=list)


class Delivery:
    """Hands messages out and takes their settlement."""

    def __init__(
        self, facts: Facts, shards: list[Shard], dispatch: Dispatch, bodies: Bodies
    ) -> None:
        self._facts = facts
        self._shards = shards
        self._dispatch = dispatch
        self._bodies = bodies

    # ------------------------------------------------------------ lease

    async def lease(self, org: str, queue_name: str, request: LeaseRequest) -> LeaseReply:
        """Hand out what is due, waiting up to `wait_ms` for the first of it."""
        queue = await self._facts.queue(org, queue_name)
        await self._ensure_group(queue, request.group)
        line = self._dispatch.line(queue, request.group)
        deadline = time.monotonic() + request.wait_ms / 1000
        while True:
            reason = self._paused(queue, request.group)
            granted: list[Granted] = []
            if reason is None:
                granted, reason = await self._grant(queue, line, request)
            if granted:
                return LeaseReply(messages=await self._deliver(granted))
            left_s = deadline - time.monotonic()
            if left_s <= 0 or self._dispatch.stopped:
                return LeaseReply(messages=[], reason=reason)
            await line.wait(left_s)
            queue = await self._facts.queue(org, queue_name)

    async def _ensure_group(self, queue: QueueFacts, group: str) -> None:
        if group not in queue.groups:
            await self._facts.ensure_group(queue, group)

    def _paused(self, queue: QueueFacts, group: str) -> str | None:
        facts = queue.groups.get(group)
        return "paused" if queue.paused or (facts is not None and facts.paused) else None

    async def _grant(
        self, queue: QueueFacts, line: Line, request: LeaseRequest
    ) -> tuple[list[Granted], str | None]:
        """Turn the wheel until enough is found or every candidate was asked."""
        if not line.primed:
            await self._prime(queue, line)
        wanted = None if request.partitions is None else set(request.partitions)
        granted: list[Granted] = []
        left = request.max
        reason: str | None = "empty"
        for lane_id in list(line.candidates):
            lane = line.candidates.get(lane_id)
            if lane is None or (wanted is not None and lane.partition not in wanted):
                continue
            shard = self._shards[lane.shard_id]
            entry = shard.entries.get(lane_id) or await self._load(shard, lane, line)
            if entry is None:
                continue
            found = self._ask(shard, entry, line, request, left)
            if found.grant.runs:
                granted.append(found)
                left -= sum(end - start + 1 for start, end, _ in found.grant.runs)
            else:
                reason = found.grant.reason if reason == "empty" else reason
            if left == 0 or len(granted) == LANES_A_LEASE_MAX:
                break
        return granted, reason

    def _ask(
        self, shard: Shard, entry: LaneEntry, line: Line, request: LeaseRequest, left: int
    ) -> Granted:
        group = request.group
        if not entry.group(group).state.exists:
            shard.handle(entry, group, cmd.CreateGroup(after=entry.lane.pruned_to))
        consumer = _consumer_text(request.consumer)
        command = cmd.LeaseMessages(left, request.visibility_ms, consumer)
        grant = shard.handle(entry, group, command)
        lane_id = entry.facts.lane_id
        size = sum(end - start + 1 for start, end, _ in grant.runs)
        if size < left and grant.reason != "scanning":
            line.candidates.pop(lane_id, None)
        else:
            line.candidates.move_to_end(lane_id)
            line.wake()
        entry.group(group).held_back = grant.reason in _HELD_BACK
        # Taken now: whoever leases next lets go of what has been handed out.
        slices = self._bodies.at_hand(entry, grant.runs)
        return Granted(shard, entry, group, grant, shard.ticket(), slices)

    async def _prime(self, queue: QueueFacts, line: Line) -> None:
        """Nobody has looked since the start: every lane may have something."""
        for lane in await self._facts.lanes(queue):
            line.candidates.setdefault(lane.lane_id, lane)
        line.primed = True

    async def _load(self, shard: Shard, lane: LaneFacts, line: Line) -> LaneEntry | None:
        missing = [
            known
            for known in list(line.candidates.values())[:LANES_A_LEASE_MAX]
            if known.shard_id == lane.shard_id and known.lane_id not in shard.entries
        ]
        await shard.lanes(missing if lane in missing else [lane, *missing])
        return shard.entries.get(lane.lane_id)

    async def _deliver(self, granted: list[Granted]) -> list[Message]:
        """Bodies and receipts, once the leases are durable; all given back if the caller left."""
        try:
            return await self._messages(granted)
        except asyncio.CancelledError:
            for lease in granted:
                lease.give_back()
            raise

    async def _messages(self, granted: list[Granted]) -> list[Message]:
        for lease in granted:
            await lease.ticket
        messages: list[Message] = []
        for lease in granted:
            slices = lease.slices
            if slices is None:
                slices = await self._bodies.find(lease.entry, lease.grant.runs)
            for piece in slices:
                messages.extend(_messages(lease.entry.facts, lease.prefix, piece))
            self._bodies.let_go(lease.entry)
        return messages

    # ------------------------------------------------------------ settle

    async def settle(self, org: str, request: SettleRequest) -> SettleReply:
        """Ack, nack, extend, in this order; then lease in the same commits."""
        results: list[SettleResult | None] = [None] * (
            len(request.ack) + len(request.nack) + len(request.extend)
        )
        tickets: list[asyncio.Future[None]] = []
        await self._settle_acks(org, request, results, tickets)
        await self._settle_nacks(org, request, results, tickets)
        await self._settle_extends(org, request, results, tickets)
        reply = SettleReply(results=[r for r in results if r is not None])
        if request.lease is not None:
            leased = await self.lease(org, request.lease.queue, request.lease)
            reply.messages, reply.reason = leased.messages, leased.reason
        for ticket in tickets:
            await ticket
        return reply

    async def _settle_acks(
        self,
        org: str,
        request: SettleRequest,
        results: list[SettleResult | None],
        tickets: list[asyncio.Future[None]],
    ) -> None:
        for settling in sort_receipts(request.ack, 0, results):
            found = await self._entry(org, settling, request.ack, results)
            if found is None:
                continue
            shard, entry = found
            ranges = tuple(coalesce(settling.versions))
            verdict = shard.handle(entry, settling.group, cmd.Ack(settling.lease_id, ranges))
            tickets.append(shard.ticket())
            refused = verdict.refused
            for index, version in zip(settling.indexes, settling.versions, strict=True):
                receipt = request.ack[index]
                if refused and any(start <= version <= end for start, end in refused):
                    results[index] = _refused(receipt)
                else:
                    results[index] = SettleResult(receipt=receipt, status="acked")

    async def _settle_nacks(
        self,
        org: str,
        request: SettleRequest,
        results: list[SettleResult | None],
        tickets: list[asyncio.Future[None]],
    ) -> None:
        offset = len(request.ack)
        receipts = [nack.receipt for nack in request.nack]
        for settling in sort_receipts(receipts, offset, results):
            found = await self._entry(org, settling, receipts, results, offset)
            if found is None:
                continue
            shard, entry = found
            for index, version in zip(settling.indexes, settling.versions, strict=True):
                nack = request.nack[index]
                error = nack.error[:ERROR_CHARS_MAX].replace("\0", "�") if nack.error else None
                command = cmd.Nack(
                    settling.lease_id, ((version, version),), nack.delay_ms, error, nack.park
                )
                verdict = shard.handle(entry, settling.group, command)
                results[offset + index] = _nack_result(nack.receipt, verdict)
            tickets.append(shard.ticket())

    async def _settle_extends(
        self,
        org: str,
        request: SettleRequest,
        results: list[SettleResult | None],
        tickets: list[asyncio.Future[None]],
    ) -> None:
        offset = len(request.ack) + len(request.nack)
        receipts = [extend.receipt for extend in request.extend]
        for settling in sort_receipts(receipts, offset, results):
            found = await self._entry(org, settling, receipts, results, offset)
            if found is None:
                continue
            shard, entry = found
            visibility_ms = max(request.extend[i].visibility_ms for i in settling.indexes)
            command = cmd.Extend(settling.lease_id, visibility_ms)
            lease = entry.group(settling.group).state.leases.get(settling.lease_id)
            held = set() if lease is None else {v for v in settling.versions if v in lease.held}
            if held:
                shard.handle(entry, settling.group, command)
            tickets.append(shard.ticket())
            for index, version in zip(settling.indexes, settling.versions, strict=True):
                receipt = receipts[index]
                results[offset + index] = (
                    SettleResult(receipt=receipt, status="extended")
                    if version in held
                    else _refused(receipt)
                )

    async def _entry(
        self,
        org: str,
        settling: Settling,
        receipts: list[str],
        results: list[SettleResult | None],
        offset: int = 0,
    ) -> tuple[Shard, LaneEntry] | None:
        """The lane behind a lease; a receipt of another org is as stale as one of a dead queue."""
        lane = self._facts.cached_lane(settling.lane_id)
        if lane is None:
            lane = await self._facts.lane_by_id(settling.lane_id)
        entry: LaneEntry | None = None
        if lane is not None and lane.queue.org == org:
            shard = self._shards[lane.shard_id]
            entry = shard.entries.get(lane.lane_id)
            if entry is None:
                entry = next(iter(await shard.lanes([lane])), None)
            shard.check_owned()
            if entry is not None and entry.group(settling.group).state.exists:
                return shard, entry
        for index in settling.indexes:
            results[offset + index] = _refused(receipts[index])
        return None


def sort_receipts(
    receipts: list[str], offset: int, results: list[SettleResult | None]
) -> Iterable[Settling]:
    """Receipts by lease; one that is no receipt is refused here."""
    by_prefix: dict[str, Settling | None] = {}
    for index, receipt in enumerate(receipts):
        prefix, _, tail = receipt.rpartition("~")
        settling = by_prefix.get(prefix)
        if settling is None and prefix not in by_prefix:
            settling = by_prefix[prefix] = _parse_prefix(prefix)
        if settling is None or not (tail.isascii() and tail.isdigit() and len(tail) < 19):
            results[offset + index] = _refused(receipt)
            continue
        settling.versions.append(int(tail))
        settling.indexes.append(index)
    return [s for s in by_prefix.values() if s is not None and s.versions]


def _parse_prefix(prefix: str) -> Settling | None:
    parts = prefix.split("~", 3)
    if len(parts) != 4 or not all(p.isascii() and p.isdigit() and len(p) < 19 for p in parts[:3]):
        return None
    return Settling(int(parts[0]), int(parts[1]), parts[3])


def _refused(receipt: str) -> SettleResult:
    error: SpillwayError = StaleReceiptError()
    return SettleResult(receipt=receipt, status="refused", error=error_detail(error))


def _nack_result(receipt: str, verdict: cmd.Verdict) -> SettleResult:
    if verdict.refused:
        return _refused(receipt)
    return SettleResult(receipt=receipt, status="parked" if verdict.parked else "nacked")


def _consumer_text(consumer: Consumer | None) -> str | None:
    return None if consumer is None else msgspec.json.encode(consumer).decode()


def rfc3339(ms: int) -> str:
    """A moment as it travels."""
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{ms % 1000:03d}Z"


def _messages(facts: LaneFacts, prefix: str, piece: Slice) -> list[Message]:
    """The messages of a slice of a batch."""
    batch, start, end, attempt = piece
    enqueued_at = rfc3339(batch.appended_ms)
    base = batch.base_version
    queue, partition, priority = facts.queue.name, facts.partition, facts.priority
    keys, headers, traces, types = (
        batch.keys,
        batch.headers,
        batch.trace_ids,
        batch.content_types,
    )
    messages: list[Message] = []
    for i in range(start - base, end - base + 1):
        payload: Any = batch.payloads[i]
        if types is None or types[i] != BYTES:
            payload = msgspec.Raw(payload)
        messages.append(
            Message(
                receipt=f"{prefix}{base + i}",
                queue=queue,
                partition=partition,
                version=base + i,
                key=None if keys is None else keys[i],
                payload=payload,
                headers=None if headers is None else headers[i],
                attempt=attempt,
                transaction_id=batch.transaction_ids[i],
                enqueued_at=enqueued_at,
                priority=priority,
                trace_id=None if traces is None else traces[i],
            )
        )
    return messages
