"""Leases and their settlement."""

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from spillway.broker.bodies import Bodies, MissingBodyError, Slice, cut, weight
from spillway.broker.breaker import Breaker, TooLateError
from spillway.broker.dispatch import Dispatch, Line
from spillway.broker.facts import Facts, LaneFacts, QueueFacts
from spillway.broker.lanes import LaneEntry
from spillway.broker.receipts import prefix, sort
from spillway.broker.shard import Shard
from spillway.core import commands as cmd
from spillway.core.errors import DatabaseUnavailableError, NotOwnerError, SpillwayError
from spillway.core.message import BYTES
from spillway.core.order import at_hole_cap
from spillway.core.ranges import Range, RangeSet
from spillway.wire import (
    Consumer,
    LeaseReply,
    LeaseRequest,
    Message,
)

_HELD_BACK = ("ack_hole_cap", "lane_busy", "blocked", "retry_pending")
AWAY = DatabaseUnavailableError.code
LANES_GRANTED_MAX = 64
"""How many lanes one lease may gather from; the wheel goes on from there."""
LANES_ASKED_MAX = 512
"""How many lanes one turn of the wheel asks before others get their turn."""
LANES_LOADED_MAX = 64
"""How many lanes one question brings back from the log."""
SCAN_S = 1.0
"""How long a lease goes on looking where very much is in the way, even if it must not wait."""


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
    def size(self) -> int:
        """How many messages."""
        return sum(end - start + 1 for start, end, _ in self.grant.runs)

    @property
    def prefix(self) -> str:
        """What the receipts of this lease begin with."""
        lane_id = self.entry.facts.lane_id
        return prefix(lane_id, self.grant.lease_id, self.shard.epoch, self.group)

    def give_back(self, ranges: tuple[Range, ...] | None = None) -> None:
        """The holder never got it, or these versions of it: no attempt is spent."""
        if not self.entry.dead and self.shard.owned:
            with suppress(SpillwayError):  # then it runs out by itself
                command = cmd.Return(self.grant.lease_id, ranges)
                self.shard.handle(self.entry, self.group, command)

    def give_back_but(self, version: int) -> None:
        """As `give_back`, but for one that would only be the same trouble again."""
        rest = RangeSet((start, end) for start, end, _ in self.grant.runs)
        rest.discard(version, version)
        self.give_back(tuple(rest))


class Delivery:
    """Hands messages out and takes their settlement."""

    def __init__(
        self,
        facts: Facts,
        shards: list[Shard],
        dispatch: Dispatch,
        bodies: Bodies,
        breaker: Breaker,
        *,
        bytes_max: int = 16 * 1024 * 1024,
    ) -> None:
        self._facts = facts
        self._shards = shards
        self._dispatch = dispatch
        self._bodies = bodies
        self._breaker = breaker
        self._bytes_max = bytes_max

    # ------------------------------------------------------------ lease

    async def lease(self, org: str, queue_name: str, request: LeaseRequest) -> LeaseReply:
        """Hand out what is due, waiting up to `wait_ms` for the first of it.

        While PostgreSQL is away nobody can lease: the answer is empty, at once, and says so.
        """
        if self._breaker.is_open:
            return LeaseReply(messages=[], reason=AWAY)
        try:
            return await self._lease(org, queue_name, request)
        except DatabaseUnavailableError as error:
            if not isinstance(error, TooLateError):
                self._breaker.trip(error)
        except NotOwnerError:
            if not self._breaker.is_open:
                raise
        return LeaseReply(messages=[], reason=AWAY)

    async def _lease(self, org: str, queue_name: str, request: LeaseRequest) -> LeaseReply:
        deadline = time.monotonic() + request.wait_ms / 1000
        scan_until = max(deadline, time.monotonic() + SCAN_S)
        while True:
            queue = await self._breaker.patient(self._queue(org, queue_name, request.group))
            line = self._dispatch.line(queue, request.group)
            wakes = line.wakes
            reason = _paused(queue, request.group)
            granted: list[Granted] = []
            if reason is None:
                granted, reason = await self._grant(queue, line, request)
            if granted:
                return LeaseReply(messages=await self._deliver(granted))
            left_s = (scan_until if reason == "scanning" else deadline) - time.monotonic()
            if self._breaker.is_open:
                return LeaseReply(messages=[], reason=AWAY)
            if left_s <= 0 or self._dispatch.stopped:
                return LeaseReply(messages=[], reason=reason)
            if reason == "scanning" or line.wakes != wakes:
                await asyncio.sleep(0)
            else:
                await line.wait(left_s, request.partitions)

    async def _queue(self, org: str, name: str, group: str) -> QueueFacts:
        """A queue that must exist, with its group, which is made on first use."""
        queue = await self._facts.queue(org, name)
        await self._facts.ensure_group(queue, group)
        return queue

    async def _grant(
        self, queue: QueueFacts, line: Line, request: LeaseRequest
    ) -> tuple[list[Granted], str | None]:
        """Turn the wheel until enough is found or every candidate was asked."""
        if not line.primed:
            line.prime(await self._breaker.soon(self._facts.lanes(queue)))
        granted: list[Granted] = []
        try:
            reason = await self._turn(line, request, granted)
        except BaseException as exc:
            # Whatever interrupts it, what was granted so far has no holder.
            for lease in granted:
                lease.give_back()
            if isinstance(exc, asyncio.CancelledError):
                # Perhaps it was woken for a lane that it has not looked at yet.
                line.wake_all()
            raise
        return granted, None if granted else reason

    async def _turn(self, line: Line, request: LeaseRequest, granted: list[Granted]) -> str | None:
        left = request.max
        foreign, scanning = 0, False
        lanes = line.next_lanes(LANES_ASKED_MAX, request.partitions)
        for lane in lanes:
            shard = self._shards[lane.shard_id]
            if not shard.owned:
                foreign += 1
                continue
            entry = shard.entries.get(lane.lane_id) or await self._load(shard, lane, lanes)
            if entry is None:
                line.drop(lane)
                continue
            if (paused := _paused(lane.queue, request.group)) is not None:
                return paused  # since this poll began
            found = self._ask(shard, entry, line, request, left)
            if found.grant.runs:
                granted.append(found)
                left -= found.size
            scanning |= found.grant.reason == "scanning"
            if left == 0 or len(granted) == LANES_GRANTED_MAX:
                return None
        if foreign and foreign == len(lanes):
            raise NotOwnerError("the shards of this queue's lanes are not (yet) owned here")
        if scanning or len(lanes) == LANES_ASKED_MAX:
            return "scanning"
        return line.reason(request.partitions)

    def _ask(
        self, shard: Shard, entry: LaneEntry, line: Line, request: LeaseRequest, left: int
    ) -> Granted:
        target = entry.group(request.group)
        if not target.state.exists:
            shard.handle(entry, request.group, cmd.CreateGroup(after=entry.lane.pruned_to))
        consumer = _consumer_text(request.consumer)
        command = cmd.LeaseMessages(left, request.visibility_ms, consumer)
        grant = shard.handle(entry, request.group, command)
        # Retries may go above the hole cap, so a lease that got some can be held back by it too.
        at_cap = at_hole_cap(target.state, entry.facts.queue.policy)
        why = grant.reason or ("ack_hole_cap" if at_cap else None)
        held_back_by = why if why in _HELD_BACK else None
        target.held_back = held_back_by is not None
        # Bodies are taken now: whoever leases next lets go of what has been handed out.
        slices = self._bodies.at_hand(entry, grant.runs)
        found = Granted(shard, entry, request.group, grant, shard.ticket(), slices)
        if found.size < left and grant.reason != "scanning":
            line.drop(entry.facts, held_back_by)
        else:
            line.candidates.move_to_end(entry.facts.lane_id)
            line.wake(entry.facts.partition)
        return found

    async def _load(
        self, shard: Shard, lane: LaneFacts, others: list[LaneFacts]
    ) -> LaneEntry | None:
        """A lane in memory; those that will be asked next come with the same question."""
        missing = [
            other
            for other in others[others.index(lane) :]
            if other.shard_id == lane.shard_id and other.lane_id not in shard.entries
        ]
        await self._breaker.soon(shard.lanes(missing[:LANES_LOADED_MAX]))
        return shard.entries.get(lane.lane_id)

    async def _deliver(self, granted: list[Granted]) -> list[Message]:
        """Bodies and receipts, once the leases are durable; else nobody holds them."""
        try:
            return await self._messages(granted)
        except BaseException as exc:
            missing = exc.place if isinstance(exc, MissingBodyError) else None
            for lease in granted:
                if missing is not None and lease.entry.facts.lane_id == missing[0]:
                    lease.give_back_but(missing[1])
                else:
                    lease.give_back()
            raise

    async def _messages(self, granted: list[Granted]) -> list[Message]:
        for lease in granted:
            await self._breaker.landed(lease.ticket)
        messages: list[Message] = []
        room = self._bytes_max
        for lease in granted:
            slices = await self._slices(lease, room, is_first=not messages)
            room -= sum(map(weight, slices))
            for piece in slices:
                messages.extend(_messages(lease.entry.facts, lease.prefix, piece))
            first, last = slices[-1][2] + 1 if slices else 1, lease.grant.runs[-1][1]
            if first <= last:
                lease.give_back(((first, last),))  # its bodies stay for the next one
            else:
                self._bodies.let_go(lease.entry)
        return messages

    async def _slices(self, lease: Granted, room: int, *, is_first: bool) -> list[Slice]:
        """The bodies of a lease that a reply has room for; the very first message always fits."""
        if room <= 0:
            return []
        slices = lease.slices
        if slices is None:
            slices = await self._bodies.find(lease.entry, lease.grant.runs, room)
        fitting = cut(slices, room)
        if fitting or not is_first:
            return fitting
        batch, start, _, attempt = slices[0]
        return [(batch, start, start, attempt)]

    def give_back(self, receipts: Iterable[str]) -> None:
        """A reply never reached its caller: its leases end, no attempt is spent."""
        for lease in sort(list(receipts))[0]:
            lane = self._facts.cached_lane(lease.lane_id)
            shard = None if lane is None else self._shards[lane.shard_id]
            entry = None if shard is None else shard.entries.get(lease.lane_id)
            if shard is not None and entry is not None and shard.owned:
                with suppress(SpillwayError):  # then it runs out by itself
                    shard.handle(entry, lease.group, cmd.Return(lease.lease_id))


def _paused(queue: QueueFacts, group: str) -> str | None:
    facts = queue.groups.get(group)
    halted = queue.paused or facts is None or facts.paused or group in queue.changing
    return "paused" if halted else None


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
