"""The evictor: lanes that nobody uses leave memory, and so do the idlest when there are too many.

A million partitions are a million small rows, not a million objects. A lane goes when all of it is
in the log and saved, and the clock has nothing to do on it for a while; its first use brings it
back, or its alarm.
"""

import asyncio
import time

from spillway.broker.census import Census
from spillway.broker.checkpointer import GROUPS_A_WRITE, Checkpointer
from spillway.broker.clock import Clock
from spillway.broker.duty import Duty
from spillway.broker.lanes import LaneEntry
from spillway.broker.shard import Shard
from spillway.broker.sweeper import Sweeper

INTERVAL_S = 1.0
LANES_A_TURN = 500
YOUNG_MS = 2_000
"""Whoever has just asked for a lane is perhaps not through with it."""
SOON_MS = 60_000
"""A lane on which the clock has something to do by then stays: it would come right back."""
WALK_SHARE = 0.1
"""How much of the time it may spend looking, however many lanes there are that cannot leave."""


class Evictor(Duty):
    """Lets lanes go."""

    name = "evictor"

    def __init__(
        self,
        shards: list[Shard],
        clock: Clock,
        checkpointer: Checkpointer,
        census: Census,
        sweeper: Sweeper,
        *,
        lane_idle_s: float,
        lanes_max: int,
    ) -> None:
        super().__init__(min(INTERVAL_S, lane_idle_s))
        self._shards = shards
        self._clock = clock
        self._checkpointer = checkpointer
        self._census = census
        self._sweeper = sweeper
        self._idle_ms = int(lane_idle_s * 1000)
        self._lanes_max = lanes_max
        self._looked_ms = 0
        self._took_s = 0.0

    async def run_once(self) -> int:
        """Returns how many lanes left memory."""
        began_s, now_ms = time.monotonic(), self._clock.now_ms()
        lanes = sum(len(shard.entries) for shard in self._shards)
        evicted = 0
        if lanes > self._lanes_max or now_ms - self._looked_ms >= self._idle_ms / 10:
            self._looked_ms = now_ms
            before_ms = now_ms - self._idle_ms
            if lanes > self._lanes_max:
                # A tenth more than needed, or the next lane would be one too many again.
                excess = lanes - self._lanes_max + self._lanes_max // 10
                idlest_ms = await self._idlest_ms(excess)
                before_ms = max(before_ms, min(idlest_ms, now_ms - YOUNG_MS))
            for shard in self._shards:
                evicted += await self._evict(shard, before_ms)
        self._took_s = time.monotonic() - began_s
        return evicted

    def wait_s(self) -> float:
        """A second, or longer after a long walk."""
        return max(self.interval_s, self._took_s / WALK_SHARE)

    async def _idlest_ms(self, count: int) -> int:
        """When the last of the so many that were used longest ago, and may go, was used."""
        used_ms = []
        for shard in self._shards:
            entries = list(shard.entries.values())
            for at in range(0, len(entries), LANES_A_TURN):
                some = entries[at : at + LANES_A_TURN]
                used_ms += [entry.used_ms for entry in some if self._is_still(entry)]
                await asyncio.sleep(0)
        used_ms.sort()
        return used_ms[min(count, len(used_ms)) - 1] if used_ms else 0

    async def _evict(self, shard: Shard, before_ms: int) -> int:
        """Save and forget the lanes that were not used since then."""
        evicted = 0
        entries = list(shard.entries.values())
        for at in range(0, len(entries), GROUPS_A_WRITE):
            some = entries[at : at + GROUPS_A_WRITE]
            idle = [entry for entry in some if self._may_go(entry, before_ms)]
            unsaved = [
                (entry, name)
                for entry in idle
                for name, group in entry.groups.items()
                if group.unsaved_events
            ]
            if unsaved:
                await self._checkpointer.keep(shard, unsaved)
            # It may have been asked for meanwhile, or the shard may be gone.
            left = [e for e in idle if self._may_go(e, before_ms) and e.is_saved]
            for entry in left:
                self._census.keep(entry)
                self._sweeper.let_go(entry, entry.wakes_ms(shard.moment(entry)))
                shard.evict(entry)
            evicted += len(left)
            await asyncio.sleep(0)
        return evicted

    def _may_go(self, entry: LaneEntry, before_ms: int) -> bool:
        return entry.used_ms <= before_ms and not entry.dead and self._is_still(entry)

    def _is_still(self, entry: LaneEntry) -> bool:
        """Whether nothing is under way on a lane, and nothing for the clock to do soon."""
        if not entry.is_written:
            return False
        if entry.alarm_ms is None:
            return True
        now_ms = self._clock.now_ms()
        if entry.alarm_ms <= now_ms:
            return False
        # An alarm outlives what it was set for: a lease that was settled long before its end.
        wakes_ms = entry.wakes_ms(self._shards[entry.facts.shard_id].moment(entry))
        return wakes_ms is None or wakes_ms > now_ms + SOON_MS
