"""Where groups begin, move to and end, on every lane of a queue."""

import asyncio
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from spillway.broker.actions import Deed
from spillway.broker.deadletters import DeadLetters
from spillway.broker.facts import Facts, LaneFacts, QueueFacts
from spillway.broker.lanes import LaneEntry
from spillway.broker.selection import lane_order
from spillway.broker.shard import Shard
from spillway.core import commands as cmd
from spillway.core.errors import BadRequestError, OverloadedError
from spillway.log.database import Database
from spillway.wire import moment_of

LANES_AT_ONCE = 256
TRIES_MAX = 20


class Positions:
    """Moves groups."""

    def __init__(
        self, facts: Facts, shards: list[Shard], database: Database, dead: DeadLetters
    ) -> None:
        self._facts = facts
        self._shards = shards
        self._database = database
        self._dead = dead

    async def begin(self, queue: QueueFacts, group: str, start: str, actor: str) -> None:
        """Begin behind `start` on every lane there is; later lanes are later than any start.

        A lane where the group began before (a creation that broke off) is moved instead.
        """
        for shard, lanes in self._chunks(await self._facts.lanes(queue)):
            entries = await self._settled_lanes(shard, lanes)
            afters = await self._afters(entries, start)
            _check_present(entries)
            for entry in entries:
                _begin(shard, entry, group, afters[entry.facts.lane_id], actor)
            await shard.ticket()

    async def seek(
        self,
        queue: QueueFacts,
        group: str,
        to: str | int,
        *,
        partition: str | None,
        by: tuple[str, str | None],
        deed: Deed,
    ) -> None:
        """Move behind a place on every lane, or on those of one partition."""
        lanes = await self._reached(queue, to, partition)
        for shard, some in self._chunks(lanes):
            entries = await self._settled_lanes(shard, some)
            afters = await self._afters(entries, to)
            _check_present(entries)
            for entry in entries:
                _seek(shard, entry, group, afters[entry.facts.lane_id], by)
            await shard.ticket()
            deed.affected += len(entries)

    async def _reached(
        self, queue: QueueFacts, to: str | int, partition: str | None
    ) -> list[LaneFacts]:
        lanes = await self._facts.lanes(queue)
        if partition is not None:
            lanes = [lane for lane in lanes if lane.partition == partition]
        elif isinstance(to, int) and len(lanes) > 1:
            raise BadRequestError(
                f"a version is meant for one partition, and {queue.name!r} has {len(lanes)} lanes",
                hint="name the partition",
            )
        return lanes

    async def end(self, queue: QueueFacts, group: str, actor: str, deed: Deed) -> None:
        """Forget the group on every lane, its dead letters first.

        They must not outlive it: a group of the same name may give up on the same versions again.
        """
        for _ in range(TRIES_MAX):
            await self._purge_dead(queue, group, actor)
            left = 0
            for shard, lanes in self._chunks(await self._facts.lanes(queue)):
                left += await self._end_on(shard, lanes, group, actor, deed)
            if not left:
                return
        raise OverloadedError(f"group {group!r} gives up on messages faster than it is deleted")

    async def _purge_dead(self, queue: QueueFacts, group: str, actor: str) -> None:
        chosen = dict.fromkeys(("partition", "key", "error", "before", "ids", "partitions"))
        everything = {"queue_id": queue.queue_id, "group": group, **chosen, "versions": None}
        count = await self._dead.count(everything)
        await self._dead.purge(everything, count, Deed(), actor, "the group is deleted")

    async def _end_on(
        self, shard: Shard, lanes: list[LaneFacts], group: str, actor: str, deed: Deed
    ) -> int:
        """On how many of these lanes dead letters came in between."""
        left = 0
        for entry in await self._settled_lanes(shard, lanes):
            known = entry.groups.get(group)
            if known is None or not known.state.exists:
                continue
            if known.state.parked.total:
                left += 1
                continue
            shard.handle(entry, group, cmd.DeleteGroup(actor))
            deed.affected += 1
        await shard.ticket()
        return left

    # ------------------------------------------------------------ lanes in chunks

    def _chunks(self, lanes: Sequence[LaneFacts]) -> Iterator[tuple[Shard, list[LaneFacts]]]:
        by_shard: dict[int, list[LaneFacts]] = {}
        for lane in sorted(lanes, key=lane_order):
            by_shard.setdefault(lane.shard_id, []).append(lane)
        for shard_id, found in by_shard.items():
            for at in range(0, len(found), LANES_AT_ONCE):
                yield self._shards[shard_id], found[at : at + LANES_AT_ONCE]

    async def _settled_lanes(self, shard: Shard, lanes: list[LaneFacts]) -> list[LaneEntry]:
        """Lanes in memory with nothing of them outside the log."""
        await shard.lanes(lanes)
        await shard.flush()
        # One turn behind the flush, so that other requests are not held up by many chunks.
        await asyncio.sleep(0)
        return await shard.lanes(lanes)

    async def _afters(self, entries: list[LaneEntry], to: str | int) -> dict[int, int]:
        """Behind which version each lane is meant to go on."""
        if isinstance(to, int):
            tail = max((entry.lane.tail for entry in entries), default=0)
            if to > tail + 1:
                raise BadRequestError(
                    f"version {to} is beyond the end: the next one pushed is {tail + 1}",
                    hint="`latest` moves to the end",
                )
            return {entry.facts.lane_id: to - 1 for entry in entries}
        if to == "earliest":
            return {entry.facts.lane_id: entry.lane.pruned_to for entry in entries}
        if to == "latest":
            return {entry.facts.lane_id: entry.lane.tail for entry in entries}
        lane_ids = [entry.facts.lane_id for entry in entries]
        rows = await self._database.rows("versions_at", lane_ids=lane_ids, at=moment_of(to))
        return dict.fromkeys(lane_ids, 0) | dict(rows)


def _check_present(entries: list[LaneEntry]) -> None:
    """None left memory while the database was asked: a position is set on all lanes or none."""
    if any(entry.dead for entry in entries):
        raise OverloadedError("a lane left memory while the group was moved", hint="try again")


def _begin(shard: Shard, entry: LaneEntry, group: str, after: int, actor: str) -> None:
    if entry.group(group).state.exists:
        shard.handle(entry, group, cmd.Seek(after, actor, "the group begins anew"))
    else:
        shard.handle(entry, group, cmd.CreateGroup(after, actor=actor))


def _seek(
    shard: Shard, entry: LaneEntry, group: str, after: int, by: tuple[str, str | None]
) -> None:
    if not entry.group(group).state.exists:
        shard.handle(entry, group, cmd.CreateGroup(after=entry.lane.pruned_to, actor=by[0]))
    shard.handle(entry, group, cmd.Seek(after, by[0], by[1]))


def normal_start(start: str) -> str:
    """One spelling for each start, so that two can be compared."""
    moment = moment_of(start)
    return start if moment is None else spelled(moment)


def spelled(moment: datetime) -> str:
    """A moment in UTC."""
    return moment.astimezone(UTC).isoformat()
