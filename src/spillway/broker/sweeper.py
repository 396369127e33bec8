"""The sweeper: what the clock does to messages. Leases end, retries fall due, lives run out.

It sleeps until the earliest alarm of any lane, a second at the most, so a waiting consumer is
woken when a retry falls due and dead letters appear though nobody leases. Lanes that left memory
with something ahead of them are called back when its time comes.
"""

from collections.abc import Callable
from heapq import heappop, heappush

from spillway.broker.clock import Clock
from spillway.broker.duty import Duty
from spillway.broker.lanes import LaneEntry
from spillway.broker.shard import Shard
from spillway.core.errors import SpillwayError

SWEPT_A_ROUND_MAX = 2_000
POSTPONED_MS = 1_000


class Sweeper(Duty):
    """Sweeps lanes when their alarms ring."""

    name = "sweeper"

    def __init__(self, shards: list[Shard], clock: Clock) -> None:
        super().__init__(interval_s=1.0)
        self._shards = shards
        self._clock = clock
        # By number: an alarm that is out of date must not keep a lane in memory.
        self._alarms: list[tuple[int, int, int, int]] = []
        self._away: dict[int, int] = {}
        """The alarm of each lane that left memory with one."""
        self.on_away_due: Callable[[int, int], None] = lambda _shard_id, _lane_id: None
        self._order = 0
        self._wakes_ms = 0

    def set_alarm(self, entry: LaneEntry, at_ms: int) -> None:
        """Look at this lane then."""
        # One that was away may come back with the alarm that it left with, and it is there still.
        if self._away.pop(entry.facts.lane_id, None) != at_ms:
            self._set(entry, at_ms)

    def let_go(self, entry: LaneEntry, at_ms: int | None) -> None:
        """A lane leaves memory: call it back then."""
        self._away.pop(entry.facts.lane_id, None)
        if at_ms is None:
            return
        self._away[entry.facts.lane_id] = at_ms
        if entry.alarm_ms != at_ms:
            self._set(entry, at_ms)

    def _set(self, entry: LaneEntry, at_ms: int) -> None:
        self._order += 1
        where = entry.facts.shard_id, entry.facts.lane_id
        heappush(self._alarms, (at_ms, self._order, *where))
        if at_ms < self._wakes_ms:
            self.nudge()

    async def run_once(self) -> int:
        """Returns how many lanes were swept, or called back to be."""
        now_ms = self._clock.now_ms()
        rung = 0
        while self._alarms and self._alarms[0][0] <= now_ms and rung < SWEPT_A_ROUND_MAX:
            at_ms, _, shard_id, lane_id = heappop(self._alarms)
            entry = self._shards[shard_id].entries.get(lane_id)
            # An alarm may be out of date: the lane was swept or forgotten, or has an earlier one.
            if entry is not None and entry.alarm_ms == at_ms:
                self._sweep(entry)
                rung += 1
            elif entry is None and self._away.get(lane_id) == at_ms:
                del self._away[lane_id]
                self.on_away_due(shard_id, lane_id)
                rung += 1
        return rung

    def _sweep(self, entry: LaneEntry) -> None:
        shard = self._shards[entry.facts.shard_id]
        try:
            shard.sweep(entry)
        except SpillwayError:
            # Overloaded or just lost: it is swept a second later, or by the next owner.
            if not entry.dead:
                shard.postpone(entry, self._clock.now_ms() + POSTPONED_MS)

    def wait_s(self) -> float:
        """Until the earliest alarm."""
        now_ms = self._clock.now_ms()
        earliest = self._alarms[0][0] if self._alarms else now_ms + 1000
        wait_ms = min(max(earliest - now_ms, 1), 1000)
        self._wakes_ms = now_ms + wait_ms
        return wait_ms / 1000
