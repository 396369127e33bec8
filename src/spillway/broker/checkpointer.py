"""The checkpointer: folds that moved are saved, and the control log is trimmed."""

import asyncio

import structlog

from spillway.broker.duty import Duty
from spillway.broker.lanes import LaneEntry
from spillway.broker.shard import Shard
from spillway.log import checkpoints
from spillway.log.database import Database
from spillway.log.stored import PART_BYTES_MAX

log = structlog.get_logger(__name__)

GROUPS_A_WRITE = 200
LANES_A_TURN = 1_000


class Checkpointer(Duty):
    """Saves (lane, group) states."""

    name = "checkpointer"

    def __init__(
        self,
        shards: list[Shard],
        database: Database,
        *,
        interval_s: float,
        events_min: int,
    ) -> None:
        super().__init__(interval_s)
        self._shards = shards
        self._database = database
        self._events_min = events_min
        self._writing = asyncio.Lock()
        self.written = 0
        self.split = 0

    async def run_once(self) -> int:
        """Returns how many checkpoints were written."""
        before = self.written
        for shard in self._shards:
            if shard.owned:
                await self.save(shard, self._events_min)
        return self.written - before

    async def save(self, shard: Shard, events_min: int) -> None:
        """Save every state of a shard that has moved this much."""
        entries = list(shard.entries.values())
        moved: list[tuple[LaneEntry, str]] = []
        for at in range(0, len(entries), LANES_A_TURN):
            moved += [
                (entry, name)
                for entry in entries[at : at + LANES_A_TURN]
                for name, group in entry.groups.items()
                if group.unsaved_events >= events_min
            ]
            await asyncio.sleep(0)
        await self.keep(shard, moved)

    async def keep(self, shard: Shard, moved: list[tuple[LaneEntry, str]]) -> None:
        """Save the states of these groups."""
        for at in range(0, len(moved), GROUPS_A_WRITE):
            # One at a time: what another has just saved is not to be counted off twice.
            async with self._writing:
                await self._save_some(shard, moved[at : at + GROUPS_A_WRITE])

    async def _save_some(self, shard: Shard, moved: list[tuple[LaneEntry, str]]) -> None:
        saved = [
            (entry, name, entry.groups[name].unsaved_events)
            for entry, name in moved
            if not entry.dead and name in entry.groups and entry.groups[name].unsaved_events
        ]
        if not saved:
            return
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
