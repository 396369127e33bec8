"""The sweeper: what the clock does to messages. Leases end, retries fall due, lives run out.

It sleeps until the earliest alarm of any lane, a second at the most, so a waiting consumer is
woken when a retry falls due and dead letters appear though nobody leases.
"""

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
        self._order = 0
        self._wakes_ms = 0

    def set_alarm(self, entry: LaneEntry, at_ms: int) -> None:
        """Look at this lane then."""
        self._order += 1
        where = entry.facts.shard_id, entry.facts.lane_id
        heappush(self._alarms, (at_ms, self._order, *where))
        if at_ms < self._wakes_ms:
            self.nudge()

    async def run_once(self) -> int:
        """Returns how many lanes were swept."""
        now_ms = self._clock.now_ms()
        swept = 0
        while self._alarms and self._alarms[0][0] <= now_ms and swept < SWEPT_A_ROUND_MAX:
            at_ms, _, shard_id, lane_id = heappop(self._alarms)
            entry = self._shards[shard_id].entries.get(lane_id)
            # An alarm may be out of date: the lane was swept or forgotten, or has an earlier one.
            if entry is not None and entry.alarm_ms == at_ms:
                self._sweep(entry)
                swept += 1
        return swept

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
