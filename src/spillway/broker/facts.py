"""The rows of fact that the broker works with, and the cache of them."""

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

import msgspec
import psycopg

from spillway.core.errors import (
    DatabaseUnavailableError,
    GroupConflictError,
    GroupNotFoundError,
    InvalidNameError,
    NotOwnerError,
    QueueNotFoundError,
    QuotaExceededError,
)
from spillway.core.policy import Policy
from spillway.core.routing import shard_of
from spillway.log.database import Database
from spillway.log.queries import QUERIES
from spillway.spool.event import Address
from spillway.wire import QueueOptions

GROUP_DEFAULT = "default"
PARTITION_BYTES_MAX = 256
NAME_SHOWN = 40
"""Characters of a wrong name that are repeated."""


@dataclass(slots=True)
class GroupFacts:
    """A consumer group of a queue."""

    name: str
    kind: str
    start: str
    paused: bool
    created_at: datetime


@dataclass(slots=True)
class QueueFacts:
    """A queue, with the lanes and groups that are known of it."""

    queue_id: int
    org: str
    name: str
    options: QueueOptions
    paused: bool
    created_at: datetime
    policy: Policy = field(default_factory=Policy)
    groups: dict[str, GroupFacts] = field(default_factory=dict)
    lanes: dict[str, "LaneFacts"] = field(default_factory=dict)
    lanes_known: bool = False
    changing: set[str] = field(default_factory=set)
    """Groups that are being made or deleted: their positions and their rows do not agree yet."""
    group_changes: int = 0
    """How often a group came, went or was paused here: what was read before that is old."""

    @contextmanager
    def group_change(self, name: str) -> Iterator[None]:
        """Make or delete a group inside the block; meanwhile nobody leases from it."""
        if name in self.changing:
            raise GroupConflictError(
                f"group {name!r} is being made or deleted right now", hint="try again"
            )
        self.changing.add(name)
        try:
            yield
        finally:
            self.changing.discard(name)

    def set_options(self, options: QueueOptions) -> None:
        """Take new options, and the policy that follows from them."""
        self.options = options
        self.policy = Policy(
            order=options.order,
            max_attempts=options.max_attempts,
            on_exhausted=options.on_exhausted,
            visibility_ms=options.visibility_ms,
            backoff_base_ms=options.backoff_base_ms,
            backoff_cap_ms=options.backoff_cap_ms,
            max_ack_holes=options.max_ack_holes,
        )


@dataclass(frozen=True, slots=True)
class LaneFacts:
    """One ordered log of a queue."""

    lane_id: int
    queue: QueueFacts
    partition: str
    priority: int
    enqueue_shard: int
    shard_id: int

    @property
    def address(self) -> Address:
        """Whose order is kept in it."""
        return Address(self.queue.org, self.queue.name, self.partition)


class Owned(Protocol):
    """What facts ask of a shard."""

    shard_id: int
    epoch: int

    def check_owned(self) -> None:
        """Raise unless this broker owns it."""


class Facts:
    """Queues, lanes and groups by name and number. The rows are the truth, this is a cache.

    The owner of the shards reads the rows when it takes a shard, and believes its cache from then
    on. So nobody else may change them.
    """

    def __init__(
        self,
        database: Database,
        shards: Sequence[Owned],
        queues_per_org_max: int,
        groups_per_queue_max: int,
    ) -> None:
        self._database = database
        self._shards = shards
        self._queues_per_org_max = queues_per_org_max
        self._groups_per_queue_max = groups_per_queue_max
        self._queues: dict[tuple[str, str], QueueFacts] = {}
        self._by_id: dict[int, QueueFacts] = {}
        self._lanes: dict[int, LaneFacts] = {}

    def check_owned(self) -> None:
        """Queues and groups concern every shard: only who owns them all may change them."""
        if not self._shards:
            raise DatabaseUnavailableError
        for shard in self._shards:
            shard.check_owned()

    @asynccontextmanager
    async def _owning(self) -> AsyncIterator[psycopg.AsyncConnection]:
        """A transaction that fails unless this broker owns every shard at its end.

        Only then is the fence asked: commits of the shards wait while it is held.
        """
        self.check_owned()
        async with self._database.connection() as conn, conn.transaction():
            yield conn
            ids, epochs = zip(*[(s.shard_id, s.epoch) for s in self._shards], strict=True)
            fence = {"shard_ids": list(ids), "epochs": list(epochs)}
            held = await conn.execute(QUERIES["facts_fence"].sql, fence)
            if held.rowcount < len(ids):
                raise NotOwnerError("another broker took a shard meanwhile")

    async def _change(self, query: str, **params: Any) -> tuple[Any, ...] | None:
        """One statement that changes facts."""
        async with self._owning() as conn:
            row: tuple[Any, ...] | None = await (
                await conn.execute(QUERIES[query].sql, params)
            ).fetchone()
        return row

    # ------------------------------------------------------------ queues

    def cached_queue(self, org: str, name: str) -> QueueFacts | None:
        """A queue, if it is known already."""
        return self._queues.get((org, name))

    def cached_queues(self) -> Iterable[QueueFacts]:
        """All queues that are known."""
        return list(self._queues.values())

    async def queue(self, org: str, name: str) -> QueueFacts:
        """A queue that must exist."""
        known = self._queues.get((org, name))
        if known is not None:
            return known
        row = await self._database.row("queue_find", org=org, name=name)
        if row is None:
            raise QueueNotFoundError(f"queue {name!r} does not exist in org {org!r}")
        return await self._admit(row)

    async def queue_by_id(self, queue_id: int) -> QueueFacts | None:
        """A queue by number, if it lives."""
        known = self._by_id.get(queue_id)
        if known is not None:
            return known
        row = await self._database.row("queue_by_id", queue_id=queue_id)
        return None if row is None else await self._admit(row)

    async def queues(self, door: Database, org: str, after: str, limit: int) -> list[QueueFacts]:
        """A page of queues in the order of their names, asked for through that door."""
        rows = await door.rows("queues_of_org", org=org, after=after, limit=limit)
        return [await self._admit(row) for row in rows]

    async def refresh(self) -> None:
        """Know every living queue as it is in the database now."""
        rows = await self._database.rows("queues_all")
        living = {row[0] for row in rows}
        for queue in [queue for queue in self._by_id.values() if queue.queue_id not in living]:
            self.forget(queue)
        for row in rows:
            queue = await self._admit(row)
            queue.set_options(msgspec.json.decode(row[3], type=QueueOptions))
            queue.paused, queue.lanes_known = row[4], False
        await self.learn_groups(list(self._by_id.values()))

    async def learn_groups(self, queues: list[QueueFacts]) -> None:
        """Know the groups of these queues as they are in the database now."""
        while queues:
            changes = {queue.queue_id: queue.group_changes for queue in queues}
            rows = await self._database.rows("groups_of_queues", queue_ids=list(changes))
            found: dict[int, dict[str, GroupFacts]] = {queue_id: {} for queue_id in changes}
            for queue_id, *row in rows:
                found[queue_id][row[0]] = GroupFacts(*row)
            for queue in queues:
                if queue.group_changes == changes[queue.queue_id]:
                    queue.groups = found[queue.queue_id]
            # Whatever changed while the rows were read is newer than they are: read again.
            queues = [q for q in queues if q.group_changes != changes[q.queue_id]]

    async def _admit(self, row: tuple[Any, ...]) -> QueueFacts:
        queue_id, org, name, options, paused, created_at = row
        known = self._by_id.get(queue_id)
        if known is not None:
            return known
        queue = QueueFacts(queue_id, org, name, QueueOptions(), paused, created_at)
        queue.set_options(msgspec.json.decode(options, type=QueueOptions))
        await self.learn_groups([queue])
        # Another task may have admitted it while this one waited for the groups.
        known = self._by_id.setdefault(queue_id, queue)
        self._queues[org, name] = known
        return known

    async def create_queue(
        self, org: str, name: str, options: QueueOptions
    ) -> tuple[bool, QueueFacts]:
        """Make a queue within the org's cap, or find it. True: it was made."""
        encoded = msgspec.json.encode(options, order="deterministic").decode()
        async with self._owning() as conn:
            await conn.execute(QUERIES["org_ensure"].sql, {"org": org})
            await conn.execute(QUERIES["org_lock"].sql, {"org": org})
            names = {"org": org, "name": name}
            row = await (await conn.execute(QUERIES["queue_find"].sql, names)).fetchone()
            made = row is None
            if row is None:
                count = await (await conn.execute(QUERIES["queue_count"].sql, names)).fetchone()
                self._check_cap(org, count[0] if count else 0)
                new = names | {"options": encoded}
                row = await (await conn.execute(QUERIES["queue_insert"].sql, new)).fetchone()
        assert row is not None
        return made, await self._admit(row)

    def _check_cap(self, org: str, count: int) -> None:
        if count >= self._queues_per_org_max:
            raise QuotaExceededError(
                f"org {org!r} has {count} queues, the limit is {self._queues_per_org_max}"
            )

    async def update_queue(self, queue: QueueFacts, options: QueueOptions) -> None:
        """Store new options."""
        encoded = msgspec.json.encode(options, order="deterministic").decode()
        row = await self._change("queue_update", queue_id=queue.queue_id, options=encoded)
        if row is None:
            self.forget(queue)
            raise QueueNotFoundError(f"queue {queue.name!r} was deleted")
        queue.set_options(options)

    async def delete_queue(self, queue: QueueFacts, action: dict[str, Any]) -> None:
        """Free the name for good; the pruner removes the rest.

        The audit's row is in the same transaction: soon nothing else will tell of the queue.
        """
        deletion = {"queue_id": queue.queue_id}
        async with self._owning() as conn:
            row = await (await conn.execute(QUERIES["queue_delete"].sql, deletion)).fetchone()
            if row is not None:
                await conn.execute(QUERIES["operator_action_insert"].sql, action)
        self.forget(queue)
        if row is None:
            raise QueueNotFoundError(f"queue {queue.name!r} was deleted already")

    def forget(self, queue: QueueFacts) -> None:
        """Drop a queue and its lanes from the cache."""
        if self._queues.get((queue.org, queue.name)) is queue:
            del self._queues[queue.org, queue.name]
        self._by_id.pop(queue.queue_id, None)
        for lane in queue.lanes.values():
            self._lanes.pop(lane.lane_id, None)

    async def pause_queue(self, queue: QueueFacts, *, paused: bool) -> None:
        """Stop or start leasing from a queue."""
        await self._change("queue_pause", queue_id=queue.queue_id, paused=paused)
        queue.paused = paused

    # ------------------------------------------------------------ groups

    async def ensure_group(
        self, queue: QueueFacts, name: str, start: str = "earliest"
    ) -> tuple[bool, GroupFacts]:
        """Make a group, or find it. True: it was made by this call."""
        known = queue.groups.get(name)
        if known is not None:
            return False, known
        if len(queue.groups) >= self._groups_per_queue_max:
            raise QuotaExceededError(
                f"queue {queue.name!r} has {len(queue.groups)} groups, which is the limit",
                hint="delete groups that nobody uses or raise the setting groups_per_queue_max",
            )
        row = await self._change(
            "group_insert", queue_id=queue.queue_id, group=name, kind="lease", start=start
        )
        if row is None:
            await self.learn_groups([queue])
            return False, self.group(queue, name)
        queue.group_changes += 1
        return True, queue.groups.setdefault(name, GroupFacts(*row))

    def group(self, queue: QueueFacts, name: str) -> GroupFacts:
        """A group that must exist."""
        group = queue.groups.get(name)
        if group is None:
            raise GroupNotFoundError(f"queue {queue.name!r} has no group {name!r}")
        return group

    async def pause_group(self, queue: QueueFacts, name: str, *, paused: bool) -> None:
        """Stop or start leasing for a group."""
        group = self.group(queue, name)
        await self._change("group_pause", queue_id=queue.queue_id, group=name, paused=paused)
        group.paused = paused
        queue.group_changes += 1

    async def delete_group(self, queue: QueueFacts, name: str) -> None:
        """Forget a group."""
        self.group(queue, name)
        await self._change("group_delete", queue_id=queue.queue_id, group=name)
        queue.groups.pop(name, None)
        queue.group_changes += 1

    # ------------------------------------------------------------ lanes

    async def lane(self, queue: QueueFacts, partition: str) -> LaneFacts:
        """The lane of a partition, made on first use."""
        await self.make_lanes(queue, (partition,))
        return queue.lanes[partition]

    async def make_lanes(self, queue: QueueFacts, partitions: Iterable[str]) -> None:
        """Have the lanes of these partitions known; new ones are made, all in one statement."""
        missing = sorted({one for one in partitions if one not in queue.lanes})
        if not missing:
            return
        for partition in missing:
            check_partition(partition)
        asked = {
            "queue_id": queue.queue_id,
            "partitions": missing,
            "priority": 2,
            "enqueue_shard": 0,
        }
        homes = [shard_of(queue.queue_id, name, len(self._shards)) for name in missing]
        rows = await self._database.rows("lanes_insert", **asked, shard_ids=homes)
        if len(rows) < len(missing):
            rows += await self._database.rows("lanes_find", **asked)
        for row in rows:
            self._admit_lane(queue, row)

    def _admit_lane(self, queue: QueueFacts, row: tuple[Any, ...]) -> LaneFacts:
        lane_id, _, partition, priority, enqueue_shard, shard_id = row
        known = self._lanes.get(lane_id)
        if known is None:
            known = LaneFacts(lane_id, queue, partition, priority, enqueue_shard, shard_id)
            self._lanes[lane_id] = known
        queue.lanes[partition] = known
        return known

    async def lanes(self, queue: QueueFacts) -> list[LaneFacts]:
        """All lanes of a queue."""
        if not queue.lanes_known:
            rows = await self._database.rows("lanes_of_queue", queue_id=queue.queue_id)
            for row in rows:
                self._admit_lane(queue, row)
            queue.lanes_known = True
        return list(queue.lanes.values())

    def cached_lanes(self) -> list[LaneFacts]:
        """All lanes that are known."""
        return list(self._lanes.values())

    def cached_lane(self, lane_id: int) -> LaneFacts | None:
        """A lane by number, if it is known."""
        return self._lanes.get(lane_id)

    async def lane_by_id(self, lane_id: int) -> LaneFacts | None:
        """A lane by number, if it and its queue live."""
        known = self._lanes.get(lane_id)
        if known is not None:
            return known
        row = await self._database.row("lane_by_id", lane_id=lane_id)
        if row is None:
            return None
        queue = await self.queue_by_id(row[1])
        return None if queue is None else self._admit_lane(queue, row)


def check_partition(partition: str) -> None:
    """Refuse what cannot be the name of a partition."""
    if not partition:
        wrong = "is empty"
    elif "\0" in partition:
        wrong = "has a NUL"
    elif (count := len(partition.encode())) > PARTITION_BYTES_MAX:
        wrong = f"has {count} bytes"
    else:
        return
    raise InvalidNameError(
        f"partition {_cut(partition)!r} {wrong}",
        hint=f"the name of a partition has 1 to {PARTITION_BYTES_MAX} bytes and no NUL",
    )


def _cut(text: str) -> str:
    return text if len(text) <= NAME_SHOWN else text[:NAME_SHOWN] + "…"
