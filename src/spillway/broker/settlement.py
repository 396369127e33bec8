"""Settlement: acks, nacks and extensions, by receipt; one answer for each."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from spillway.broker.append import error_detail
from spillway.broker.breaker import Breaker
from spillway.broker.facts import Facts
from spillway.broker.lanes import LaneEntry
from spillway.broker.receipts import Receipts, sort
from spillway.broker.shard import Shard
from spillway.core import commands as cmd
from spillway.core.errors import InvalidReceiptError, SpillwayError, StaleReceiptError
from spillway.core.ranges import coalesce
from spillway.wire import Extend, Nack, SettleRequest, SettleResult, SettleStatus

ERROR_CHARS_MAX = 2_000

Settle = Callable[[Shard, LaneEntry, Receipts, list[SettleResult | None]], None]


@dataclass(slots=True)
class Settled:
    """The answers, and the commits that they wait for."""

    results: list[SettleResult] = field(default_factory=list)
    tickets: list[asyncio.Future[None]] = field(default_factory=list)


class Settlement:
    """Takes settlements."""

    def __init__(self, facts: Facts, shards: list[Shard], breaker: Breaker) -> None:
        self._facts = facts
        self._shards = shards
        self._breaker = breaker

    async def settle(self, org: str, request: SettleRequest) -> Settled:
        """Decide all of it, in the order ack, nack, extend; the answers hold with the tickets."""
        settled = Settled()
        for receipts, settle in (
            (request.ack, partial(_ack, request.ack)),
            ([nack.receipt for nack in request.nack], partial(_nack, request.nack)),
            ([extend.receipt for extend in request.extend], partial(_extend, request.extend)),
        ):
            if receipts:
                await self._each(org, receipts, settle, settled)
        return settled

    async def _each(self, org: str, receipts: list[str], settle: Settle, settled: Settled) -> None:
        results: list[SettleResult | None] = [None] * len(receipts)
        leases, strange = sort(receipts)
        for index in strange:
            results[index] = refused(receipts[index], InvalidReceiptError())
        for lease in leases:
            found = await self._find(org, lease)
            if found is None:
                for index in lease.indexes:
                    results[index] = stale(receipts[index])
                continue
            shard, entry = found
            settle(shard, entry, lease, results)
            settled.tickets.append(shard.ticket())
        settled.results += [result for result in results if result is not None]

    async def _find(self, org: str, lease: Receipts) -> tuple[Shard, LaneEntry] | None:
        """The lane of a lease. A receipt of another org is as stale as one of a deleted queue."""
        soon = self._breaker.soon
        lane = self._facts.cached_lane(lease.lane_id)
        lane = lane or await soon(self._facts.lane_by_id(lease.lane_id))
        if lane is None or lane.queue.org != org:
            return None
        shard = self._shards[lane.shard_id]
        entry = shard.entries.get(lane.lane_id)
        if entry is None:
            entry = next(iter(await soon(shard.lanes([lane]))), None)
        if lease.epoch > shard.epoch:
            # A later owner wrote this receipt, or a forger did: the fence knows.
            await soon(shard.flush())
            return None
        shard.check_owned()
        if entry is None or lease.group not in entry.groups:
            return None
        return (shard, entry) if entry.group(lease.group).state.exists else None


def refused(receipt: str, error: SpillwayError) -> SettleResult:
    """Nothing was done for this receipt."""
    return SettleResult(receipt=receipt, status="refused", error=error_detail(error))


def stale(receipt: str) -> SettleResult:
    """The lease behind a receipt is over."""
    return refused(receipt, StaleReceiptError())


def _ack(
    receipts: list[str],
    shard: Shard,
    entry: LaneEntry,
    lease: Receipts,
    results: list[SettleResult | None],
) -> None:
    ranges = tuple(coalesce(lease.versions))
    verdict = shard.handle(entry, lease.group, cmd.Ack(lease.lease_id, ranges))
    for index, version in zip(lease.indexes, lease.versions, strict=True):
        receipt = receipts[index]
        if verdict.refused and any(low <= version <= high for low, high in verdict.refused):
            results[index] = stale(receipt)
        else:
            results[index] = SettleResult(receipt=receipt, status="acked")


def _nack(
    nacks: list[Nack],
    shard: Shard,
    entry: LaneEntry,
    lease: Receipts,
    results: list[SettleResult | None],
) -> None:
    for index, version in zip(lease.indexes, lease.versions, strict=True):
        nack = nacks[index]
        error = nack.error[:ERROR_CHARS_MAX].replace("\0", "\ufffd") if nack.error else None
        one = ((version, version),)
        command: cmd.Command = cmd.Nack(lease.lease_id, one, nack.delay_ms, error, nack.park)
        if nack.release:
            command = cmd.Return(lease.lease_id, one)
        verdict = shard.handle(entry, lease.group, command)
        if verdict.refused:
            results[index] = stale(nack.receipt)
        else:
            status: SettleStatus = "parked" if verdict.parked else "nacked"
            results[index] = SettleResult(receipt=nack.receipt, status=status)


def _extend(
    extends: list[Extend],
    shard: Shard,
    entry: LaneEntry,
    lease: Receipts,
    results: list[SettleResult | None],
) -> None:
    """Extending one message extends its lease: the holder is alive."""
    state = entry.group(lease.group).state
    visibility_ms = max(extends[index].visibility_ms for index in lease.indexes)
    live = shard.handle(entry, lease.group, cmd.Extend(lease.lease_id, visibility_ms)) is not None
    held = state.leases[lease.lease_id].held if live else ()
    for index, version in zip(lease.indexes, lease.versions, strict=True):
        receipt = extends[index].receipt
        if version in held:
            results[index] = SettleResult(receipt=receipt, status="extended")
        else:
            results[index] = stale(receipt)
