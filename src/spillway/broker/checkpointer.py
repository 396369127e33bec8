"""The checkpointer: folds that moved are saved, the control log is trimmed, idle lanes leave."""

import structlog

from spillway.broker.clock import Clock
from spillway.broker.duty import Duty
from spillway.broker.lanes import LaneEntry
from spillway.broker.shard import Shard
from spillway.log import checkpoints
from spillway.log.database import Database
from spillway.log.stored import PART_BYTES_MAX

log = structlog.get_logger(__name__)

GROUPS_A_WRITE = 200


class Checkpointer(Duty):
    """Saves (lane, group) states."""

    name = "checkpointer"

    def __init__(
        self,
        shards: list[Shard],
        database: Database,
        clock: Clock,
        *,
        interval_s: float,
        events_min: int,
        lane_idle_s: float,
    ) -> None:
        super().__init__(interval_s)
        self._shards = shards
        self._database = database
        self._clock = clock
        self._events_min = events_min
        self._lane_idle_ms = int(lane_idle_s * 1000)
        self.written = 0
        self.split = 0

    async def run_once(self) -> int:
        """Returns how many checkpoints were written."""
        before = self.written
        for shard in self._shards:
            if shard.owned:
                await self.save(shard, self._events_min)
                await self._evict_idle(shard)
        return self.written - before

    async def save(self, shard: Shard, events_min: int) -> None:
        """Save every state of a shard that has moved this much."""
        moved = [
            (entry, name)
            for entry in list(shard.entries.values())
            for name, group in entry.groups.items()
            if group.unsaved_events >= events_min
        ]
        for at in range(0, len(moved), GROUPS_A_WRITE):
            await self._save_some(shard, moved[at : at + GROUPS_A_WRITE])

    async def _save_some(self, shard: Shard, moved: list[tuple[LaneEntry, str]]) -> None:
        saved = [
            (entry, name, entry.groups[name].unsaved_events)
            for entry, name in moved
            if not entry.dead
        ]
        epoch = shard.epoch
        items = [shard.snapshot(entry, name) for entry, name, _ in saved]
        # The snapshot may hold what is decided but not committed: it must not get ahead of the log.
        await shard.flush()
        async with self._database.connection() as conn:
            written = await checkpoints.write(conn, shard.shard_id, epoch, items)
        if not written:
            if shard.epoch == epoch:
                shard.depose("the fence refused a checkpoint")
            return
        self.written += len(items)
        self.split += sum(len(item.data) > PART_BYTES_MAX for item in items)
        for entry, name, events in saved:
            if name in entry.groups:
                entry.groups[name].unsaved_events -= events

    async def _evict_idle(self, shard: Shard) -> None:
        before_ms = self._clock.now_ms() - self._lane_idle_ms
        idle = [
            entry
            for entry in list(shard.entries.values())
            if entry.used_ms < before_ms and entry.alarm_ms is None
        ]
        for entry in idle:
            unsaved = [(entry, name) for name, g in entry.groups.items() if g.unsaved_events]
            if unsaved:
                await self._save_some(shard, unsaved)
            if entry.used_ms < before_ms and entry.is_quiet and not entry.dead:
                shard.evict(entry)
