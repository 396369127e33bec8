"""Every question about queues, messages and the broker. Reads, changes nothing.

The skins (HTTP, command line, web) ask here, so they all tell the same.
"""

from datetime import datetime
from typing import Any

from msgspec import convert

from spillway import wire
from spillway.broker import blockings
from spillway.broker.browse import Browse, Cursor, body, decode, lanes_from
from spillway.broker.census import Census, LaneCount, Tally, groups_of
from spillway.broker.delivery import rfc3339
from spillway.broker.facts import GROUP_DEFAULT, Facts, LaneFacts, QueueFacts
from spillway.broker.shard import Shard
from spillway.core.errors import GroupNotFoundError, MessageNotFoundError, OverloadedError
from spillway.core.state import (
    BLOCKED,
    DEFERRED,
    DROPPED,
    LEASED,
    PARKED,
    READY,
    SETTLED,
)
from spillway.log.audit import run as run_audit
from spillway.log.database import Database

AUDIT_STATEMENT_S = 60.0
"""What takes longer is work for `spillway audit --database-url`."""
DEAD_PAGE_BYTES = 8 * 1024 * 1024


class Insights:
    """Answers."""

    def __init__(
        self, facts: Facts, shards: list[Shard], database: Database, census: Census
    ) -> None:
        self._facts = facts
        self._shards = shards
        self._database = database
        self._census = census
        self._is_auditing = False
        self._browse = Browse(census.glance, database)

    # ------------------------------------------------------------ queues and groups

    async def get_queue(self, org: str, name: str) -> wire.QueueReply:
        """A queue with its counts."""
        return await self._reply(await self._facts.queue(org, name))

    async def list_queues(self, org: str, after: str | None, limit: int) -> wire.QueueListReply:
        """A page of queues by name."""
        found = await self._facts.queues(self._database, org, after or "", limit + 1)
        replies = [await self._reply(queue) for queue in found[:limit]]
        more = len(found) > limit
        return wire.QueueListReply(queues=replies, next=found[limit - 1].name if more else None)

    async def _reply(self, queue: QueueFacts) -> wire.QueueReply:
        counted = await self._census.of_lanes(await self._facts.lanes(queue))
        return wire.QueueReply(
            queue=queue.name,
            org=queue.org,
            created_at=rfc3339(int(queue.created_at.timestamp() * 1000)),
            paused=queue.paused,
            options=queue.options,
            lanes=len(counted),
            tail=sum(count.tail for count in counted),
            groups=_groups(queue, counted),
        )

    async def list_groups(self, org: str, queue_name: str) -> list[wire.GroupCounts]:
        """The groups of a queue with their counts."""
        queue = await self._facts.queue(org, queue_name)
        return _groups(queue, await self._census.of_lanes(await self._facts.lanes(queue)))

    async def get_group(self, org: str, queue_name: str, group: str) -> wire.GroupCounts:
        """One group with its counts."""
        queue = await self._facts.queue(org, queue_name)
        if group not in groups_of(queue):
            raise GroupNotFoundError(f"queue {queue.name!r} has no group {group!r}")
        counted = await self._census.of_lanes(await self._facts.lanes(queue))
        return next(counts for counts in _groups(queue, counted) if counts.group == group)

    # ------------------------------------------------------------ messages

    async def browse(
        self,
        org: str,
        queue_name: str,
        *,
        partition: str | None,
        from_version: int | None,
        limit: int,
        state: str | None,
        group: str,
        next: str | None,  # noqa: A002 (the name it has on the wire)
    ) -> wire.BrowseReply:
        """A page of messages; `from_version` leaves out the lower versions of every lane."""
        queue = await self._facts.queue(org, queue_name)
        _check_group(queue, group)
        lanes = list(lanes_from(await self._facts.lanes(queue), partition))
        start = _start(lanes, from_version) if next is None else decode(next, Cursor)
        return await self._browse.page(lanes, group, state, start, limit)

    async def story(
        self, org: str, queue_name: str, partition: str, version: int, group: str
    ) -> wire.StoryReply:
        """A message and what happened to it."""
        queue = await self._facts.queue(org, queue_name)
        _check_group(queue, group)
        lanes = list(lanes_from(await self._facts.lanes(queue), partition))
        if not lanes:
            raise MessageNotFoundError(f"queue {queue_name!r} has no partition {partition!r}")
        return await self._browse.story(lanes[0], version, group)

    async def dead(
        self,
        org: str,
        queue_name: str,
        *,
        group: str | None,
        partition: str | None,
        key: str | None,
        error_contains: str | None,
        before: datetime | None,
        limit: int,
        after: int | None,
    ) -> wire.DeadReply:
        """A page of dead letters, oldest first."""
        queue = await self._facts.queue(org, queue_name)
        chosen: dict[str, Any] = {
            "queue_id": queue.queue_id,
            "group": group,
            "partition": partition,
            "key": key,
            "error": error_contains,
            "before": before,
            **dict.fromkeys(("ids", "partitions", "versions")),
        }
        total = await self._database.row("dead_count", **chosen)
        found = await self._database.rows(
            "dead_select", **chosen, after=after or 0, limit=limit + 1
        )
        ids = [row[0] for row in found[:limit]]
        rows = await self._database.rows("dead_page", ids=ids, bytes=DEAD_PAGE_BYTES)
        more = len(found) > len(rows) and rows
        return wire.DeadReply(
            dead=[_dead(row) for row in rows],
            total=total[0] if total else 0,
            next=rows[-1][0] if more else None,
        )

    async def blocked(
        self,
        org: str,
        queue_name: str,
        *,
        group: str | None,
        limit: int,
        next: str | None,  # noqa: A002 (the name it has on the wire)
    ) -> wire.BlockedReply:
        """A page of what is blocked."""
        queue = await self._facts.queue(org, queue_name)
        groups = groups_of(queue) if group is None else [group]
        if group is not None:
            _check_group(queue, group)
        lanes = list(lanes_from(await self._facts.lanes(queue), None))
        return await blockings.page(self._census.glance, lanes, groups, next, limit)

    # ------------------------------------------------------------ the broker

    async def topology(self) -> wire.TopologyReply:
        """Shards and brokers."""
        shards = await self._database.rows("topology_shards")
        brokers = await self._database.rows("brokers")
        return wire.TopologyReply(
            num_shards=len(shards),
            shards=[self._shard(*row) for row in shards],
            brokers=[_broker(*row) for row in brokers],
        )

    def _shard(
        self, shard_id: int, epoch: int, commit_seq: int, owner: str | None, until: int | None
    ) -> wire.ShardReply:
        return wire.ShardReply(
            shard=shard_id,
            epoch=epoch,
            owner=owner,
            owned_here=self._shards[shard_id].owned,
            lease_until=None if until is None else rfc3339(until),
            commit_seq=commit_seq,
        )

    async def audit(self, org: str | None = None) -> wire.AuditReply:
        """The conservation law, checked from the log itself, for all orgs or for one."""
        if self._is_auditing:
            raise OverloadedError(
                "an audit is under way", hint="one at a time: ask again when it is done"
            )
        self._is_auditing = True
        try:
            found = await run_audit(self._database.url, org, AUDIT_STATEMENT_S)
        finally:
            self._is_auditing = False
        reply: wire.AuditReply = convert(found, wire.AuditReply, from_attributes=True)
        return reply


# ---------------------------------------------------------------- facts into shapes


def _check_group(queue: QueueFacts, group: str) -> None:
    """`default` may be asked for before anybody has leased."""
    if group != GROUP_DEFAULT and group not in queue.groups:
        raise GroupNotFoundError(f"queue {queue.name!r} has no group {group!r}")


def _start(lanes: list[LaneFacts], from_version: int | None) -> Cursor:
    floor = from_version or 1
    if not lanes:
        return Cursor("", 0, 0, floor, floor)
    first = lanes[0]
    return Cursor(first.partition, first.priority, first.enqueue_shard, floor, floor)


def _groups(queue: QueueFacts, counted: list[LaneCount]) -> list[wire.GroupCounts]:
    sums = {group: Tally() for group in groups_of(queue)}
    for count in counted:
        for group, tally in count.groups.items():
            if group in sums:
                sums[group].add(tally)
    return [_group(queue, group, tally) for group, tally in sums.items()]


def _group(queue: QueueFacts, group: str, tally: Tally) -> wire.GroupCounts:
    facts, at = queue.groups.get(group), tally.counts
    oldest = tally.oldest_ready_ms
    return wire.GroupCounts(
        group=group,
        depth=tally.depth,
        ready=at[READY],
        deferred=at[DEFERRED],
        leased=at[LEASED],
        blocked=at[BLOCKED],
        parked=at[PARKED],
        dropped=at[DROPPED],
        settled=at[SETTLED],
        ack_hole_ranges=tally.holes,
        oldest_ready_at=None if oldest is None else rfc3339(oldest),
        paused=facts is not None and facts.paused,
    )


def _dead(row: tuple[Any, ...]) -> wire.DeadLetter:
    dead_id, group, partition, version, key, payload, kind, headers, *rest = row
    transaction_id, attempts, error, cause, enqueued_ms, dead_ms = rest
    return wire.DeadLetter(
        id=dead_id,
        group=group,
        partition=partition,
        version=version,
        key=key,
        payload=body(payload, kind),
        headers=headers,
        transaction_id=transaction_id,
        attempts=attempts,
        error=error,
        reason=cause,
        enqueued_at=rfc3339(enqueued_ms),
        dead_at=rfc3339(dead_ms),
    )


def _broker(
    broker_id: str,
    address: str,
    started_at: datetime,
    seen_at: datetime,
    alive: bool,  # noqa: FBT001
) -> wire.BrokerReply:
    return wire.BrokerReply(
        broker=broker_id,
        address=address,
        started_at=rfc3339(int(started_at.timestamp() * 1000)),
        seen_at=rfc3339(int(seen_at.timestamp() * 1000)),
        alive=alive,
    )
