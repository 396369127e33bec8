"""The pruner: messages that every group has settled go when their queue's retention is over.

It walks over all lanes of its shards, in memory or not, since a queue that went quiet is to be
emptied too. Each lane is pruned by itself, so a slow queue holds back no space but its own.
"""

import time
from dataclasses import dataclass

from spillway.broker.clock import Clock
from spillway.broker.duty import Duty
from spillway.broker.facts import Facts, QueueFacts
from spillway.broker.lanes import LaneEntry
from spillway.broker.shard import Shard
from spillway.core import commands as cmd
from spillway.log.database import Database
from spillway.spool.spool import Spool

BATCHES_A_ROUND = 500
"""While they are deleted the fence is locked, and commits of the shard wait."""
LANES_A_LOOK = 500
LANES_A_LOAD = 16
"""A request for one of these lanes waits for all of them."""
SPOOLED_LATE_MS = 10_000
"""A push may have waited for the log before it came to the file: its first copy is older."""
WALK_SHARE = 0.1
"""How much of the time it may spend looking, however many lanes there are."""


@dataclass(frozen=True, slots=True)
class Oldest:
    """Where the oldest batch of a lane ends, and when it was appended; 0 where there is none."""

    lane_id: int
    queue_id: int
    shard_id: int
    last: int
    appended_ms: int


class Pruner(Duty):
    """Removes what nobody needs any more."""

    name = "pruner"

    def __init__(
        self,
        facts: Facts,
        shards: list[Shard],
        database: Database,
        clock: Clock,
        *,
        spool: Spool,
        interval_s: float,
    ) -> None:
        super().__init__(interval_s)
        self._facts = facts
        self._shards = shards
        self._database = database
        self._clock = clock
        self._spool = spool
        self._after = 0
        self._looked_s = 0.0
        self.pruned_messages = 0

    async def run_once(self) -> int:
        """Returns how many messages were removed."""
        before, self._looked_s = self.pruned_messages, 0.0
        for shard in self._shards:
            if shard.owned:
                await self._end_strays(shard)
        while page := await self._page():
            # What fails is not to hold back the lanes behind it: the next round goes on there.
            self._after = page[-1].lane_id
            await self._prune_due([one for one in page if one.last])
        self._after = 0
        for shard in self._shards:
            if shard.owned:
                await self._bury_deleted(shard)
        await self._database.rows("consumers_bury")
        return self.pruned_messages - before

    async def _end_strays(self, shard: Shard) -> None:
        """They would hold back for ever what is settled, and nobody could delete them."""
        found = [(entry, entry.strays()) for entry in shard.entries.values()]
        strays = [(entry, names) for entry, names in found if names]
        if not strays:
            return
        queues = {entry.facts.queue.queue_id: entry.facts.queue for entry, _ in strays}
        await self._facts.learn_groups(list(queues.values()))
        for entry, _ in strays:
            for name in [] if entry.dead else entry.strays():
                shard.handle(entry, name, cmd.DeleteGroup(reason="it has no row"))
        await shard.ticket()

    def wait_s(self) -> float:
        """A minute, or longer after a long walk."""
        return max(self.interval_s, self._looked_s / WALK_SHARE)

    async def _page(self) -> list[Oldest]:
        """The next lanes."""
        began_s = time.monotonic()
        owned = [shard.shard_id for shard in self._shards if shard.owned]
        rows = await self._database.rows(
            "lanes_oldest", shard_ids=owned, after=self._after, limit=LANES_A_LOOK
        )
        self._looked_s += time.monotonic() - began_s
        return [Oldest(*row) for row in rows]

    async def _prune_due(self, some: list[Oldest]) -> None:
        """Prune those of some lanes whose oldest batch is old enough."""
        found = [await self._facts.queue_by_id(one) for one in {one.queue_id for one in some}]
        queues = {queue.queue_id: queue for queue in found if queue is not None}
        before_ms = {queue_id: self._before_ms(queue) for queue_id, queue in queues.items()}
        due = [one for one in some if one.appended_ms < before_ms.get(one.queue_id, 0)]
        # Another broker may have made groups that have not come here yet.
        await self._facts.learn_groups([queues[id_] for id_ in {one.queue_id for one in due}])
        await self._wake(due)
        for shard in self._shards:
            await self._prune_settled(shard, [one for one in due if one.lane_id in shard.entries])

    def _before_ms(self, queue: QueueFacts) -> int:
        """What was appended before goes. The dedupe window is rebuilt from what is there, and what
        waits in files may be a repeat, or a second copy, of what was there when it came.
        """
        now_ms = came_ms = self._clock.now_ms()
        spool, options = self._spool, queue.options
        if spool.oldest_ms and (not spool.gate.is_known or spool.by_queue[queue.org, queue.name]):
            came_ms = spool.oldest_ms - SPOOLED_LATE_MS
        return min(now_ms - options.retention_ms, came_ms - options.dedupe_window_ms)

    async def _wake(self, due: list[Oldest]) -> None:
        """Bring lanes into memory that left it, if their checkpoints say that it pays."""
        absent = [o.lane_id for o in due if o.lane_id not in self._shards[o.shard_id].entries]
        rows = await self._database.rows("trims_saved", lane_ids=absent) if absent else []
        saved = dict(rows)
        for shard in self._shards:
            mine = [o for o in due if o.shard_id == shard.shard_id]
            ripe = [o.lane_id for o in mine if saved.get(o.lane_id, 0) >= o.last]
            for at in range(0, len(ripe), LANES_A_LOAD):
                found = [await self._facts.lane_by_id(one) for one in ripe[at : at + LANES_A_LOAD]]
                await shard.lanes([lane for lane in found if lane is not None])

    async def _prune_settled(self, shard: Shard, due: list[Oldest]) -> None:
        entries = [(shard.entries[one.lane_id], one.last) for one in due]
        settled = [(e, trim) for e, last in entries if (trim := e.trim()) >= last]
        if settled:
            # What is decided but not committed may still be thrown away: prune behind the log.
            await shard.flush()
        for entry, through in settled:
            await self._prune(shard, entry, through)

    async def _prune(self, shard: Shard, entry: LaneEntry, through: int) -> None:
        """A chunk at a time, until the lane has nothing more to give, or somebody wants it back."""
        before_ms = self._before_ms(entry.facts.queue)
        while end := await self._chunk_end(entry, through, before_ms):
            if entry.dead or entry.trim() < end:
                return
            floor = entry.lane.pruned_to
            # Whoever begins or seeks while it is removed does so behind it. Where it is not known
            # whether it was removed, this holds: every group was through with it, and it was old.
            entry.lane.pruned_to = max(floor, end)
            if not await self._remove(shard, entry, end):
                entry.lane.pruned_to = floor
                return
            entry.lane.schedule.forget(end)

    async def _chunk_end(self, entry: LaneEntry, through: int, before_ms: int) -> int | None:
        row = await self._database.row(
            "prune_end",
            lane_id=entry.facts.lane_id,
            through=through,
            before_ms=before_ms,
            batches=BATCHES_A_ROUND,
        )
        return row[0] if row else None

    async def _remove(self, shard: Shard, entry: LaneEntry, end: int) -> int:
        row = await self._database.row(
            "prune",
            shard_id=shard.shard_id,
            epoch=shard.epoch,
            lane_id=entry.facts.lane_id,
            end=end,
            groups=list(entry.facts.queue.groups),
        )
        messages = row[0] if row else 0
        self.pruned_messages += messages
        return messages

    async def _bury_deleted(self, shard: Shard) -> None:
        """Remove the rows of deleted queues, a chunk at a time.

        Only the owner does: another broker may still believe that the queue lives.
        """
        dead = await self._database.rows(
            "lanes_deleted", shard_id=shard.shard_id, limit=LANES_A_LOOK
        )
        for (lane_id,) in dead:
            lane = {"shard_id": shard.shard_id, "epoch": shard.epoch, "lane_id": lane_id}
            entry = shard.entries.get(lane_id)
            if entry is not None:  # its deletion broke off
                shard.evict(entry)
                await shard.flush()
            while await self._empty(lane):
                pass
            await self._database.rows("lane_bury", **lane)

    async def _empty(self, lane: dict[str, int]) -> bool:
        row = await self._database.row("lane_empty", **lane, batches=BATCHES_A_ROUND)
        return row is not None and row[0] > 0
