"""The pruner: messages that every group has settled go when their queue's retention is over.

Each lane is pruned by itself, so a slow queue holds back no space but its own.
"""

import structlog

from spillway.broker.clock import Clock
from spillway.broker.duty import Duty
from spillway.broker.facts import Facts
from spillway.broker.lanes import LaneEntry
from spillway.broker.shard import Shard
from spillway.core import commands as cmd
from spillway.log.database import Database

log = structlog.get_logger(__name__)

BATCHES_A_ROUND = 500
"""While they are deleted the fence is locked, and commits of the shard wait."""
LANES_A_ROUND = 500


class Pruner(Duty):
    """Removes what nobody needs any more."""

    name = "pruner"

    def __init__(
        self,
        facts: Facts,
        shards: list[Shard],
        database: Database,
        clock: Clock,
        interval_s: float,
    ) -> None:
        super().__init__(interval_s)
        self._facts = facts
        self._shards = shards
        self._database = database
        self._clock = clock
        self.pruned_messages = 0

    async def run_once(self) -> int:
        """Returns how many messages were removed."""
        before = self.pruned_messages
        for shard in self._shards:
            if shard.owned:
                await self._end_strays(shard)
                await self._prune_shard(shard)
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

    async def _prune_shard(self, shard: Shard) -> None:
        entries = [e for e in shard.entries.values() if e.trim() > e.lane.pruned_to]
        queues = {entry.facts.queue.queue_id: entry.facts.queue for entry in entries}
        if queues:
            # Another broker may have made groups that have not come here yet.
            await self._facts.learn_groups(list(queues.values()))
        settled = [(e, e.trim()) for e in entries if e.trim() > e.lane.pruned_to]
        if settled:
            # What is decided but not committed may still be thrown away: prune behind the log.
            await shard.flush()
        for entry, through in settled:
            if not entry.dead:
                await self._prune(shard, entry, through)

    async def _prune(self, shard: Shard, entry: LaneEntry, through: int) -> None:
        """A chunk at a time, until the lane has nothing more to give."""
        before_ms = self._clock.now_ms() - entry.facts.queue.keep_ms
        while through > entry.lane.pruned_to:
            row = await self._database.row(
                "prune",
                shard_id=shard.shard_id,
                epoch=shard.epoch,
                lane_id=entry.facts.lane_id,
                through=through,
                groups=list(entry.facts.queue.groups),
                before_ms=before_ms,
                batches=BATCHES_A_ROUND,
            )
            if row is None or not row[0]:
                return
            self.pruned_messages += row[0]
            entry.lane.pruned_to = max(entry.lane.pruned_to, row[1])
            entry.lane.schedule.forget(entry.lane.pruned_to)

    async def _bury_deleted(self, shard: Shard) -> None:
        """Remove the rows of deleted queues, a chunk at a time.

        Only the owner does: another broker may still believe that the queue lives.
        """
        dead = await self._database.rows(
            "lanes_deleted", shard_id=shard.shard_id, limit=LANES_A_ROUND
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
