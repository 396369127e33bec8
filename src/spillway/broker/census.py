"""How many messages are where, for each lane and group.

Lanes in memory are counted when somebody asks. Lanes that are not cannot change: they are folded
once, by the survey, and their counts are kept until they are seen in memory again. So a scrape
reads nothing but memory. Its error: a lane counts from the first survey on that finds it (every
5 s), and while it is out of memory a deferred message that falls due still counts as deferred.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from spillway.broker.duty import Duty
from spillway.broker.facts import GROUP_DEFAULT, Facts, LaneFacts, QueueFacts
from spillway.broker.glance import LANES_AT_ONCE, Glance
from spillway.broker.lanes import LaneEntry
from spillway.broker.places import state_on
from spillway.broker.shard import Shard
from spillway.core.state import BLOCKED, DEFERRED, LEASED, READY, counts, first_ready
from spillway.log.database import Database

SURVEY_INTERVAL_S = 5.0
LANES_A_TURN = 500


@dataclass(slots=True)
class Tally:
    """Where the messages of some lanes are, for one group."""

    counts: Counter[str] = field(default_factory=Counter)
    holes: int = 0
    trim: int = 0
    first_ready: int | None = None
    oldest_ready_ms: int | None = None

    def add(self, other: "Tally") -> None:
        """Another lane."""
        self.counts.update(other.counts)
        self.holes += other.holes
        self.trim += other.trim
        if other.oldest_ready_ms is not None:
            mine = self.oldest_ready_ms
            oldest = other.oldest_ready_ms
            self.oldest_ready_ms = oldest if mine is None else min(mine, oldest)

    @property
    def depth(self) -> int:
        """What is still to be handled."""
        return sum(self.counts[name] for name in (READY, DEFERRED, LEASED, BLOCKED))


@dataclass(frozen=True, slots=True)
class LaneCount:
    """A lane and its groups."""

    lane: LaneFacts
    tail: int
    groups: dict[str, Tally]

    @property
    def backlog(self) -> int:
        """What some group has not settled up to."""
        return self.tail - min((t.trim for t in self.groups.values()), default=0)


@dataclass(frozen=True, slots=True)
class _Kept:
    epoch: int
    count: LaneCount


def groups_of(queue: QueueFacts) -> list[str]:
    """The groups of a queue; before the first one was made, the one that would be."""
    return sorted(queue.groups) or [GROUP_DEFAULT]


class Census(Duty):
    """Counts, and keeps the counts of lanes that are not in memory."""

    name = "census"

    def __init__(self, facts: Facts, shards: list[Shard], database: Database) -> None:
        super().__init__(SURVEY_INTERVAL_S)
        self._facts = facts
        self._shards = shards
        self._database = database
        self.glance = Glance(shards, database)
        self._kept: dict[int, _Kept] = {}
        self._appended: dict[tuple[int, int], int] = {}
        self.uncounted = 0

    # ------------------------------------------------------------ one lane

    def count(self, entry: LaneEntry) -> LaneCount:
        """A lane as it is now."""
        now = self.glance.moment(entry)
        groups: dict[str, Tally] = {}
        for group in groups_of(entry.facts.queue):
            state = state_on(entry, group)
            first = first_ready(state, now)
            groups[group] = Tally(
                Counter(counts(state, now)),
                state.settled.holes,
                state.trim,
                first,
                None if first is None else self._appended_ms(entry, first),
            )
        return LaneCount(entry.facts, entry.lane.tail, groups)

    def _appended_ms(self, entry: LaneEntry, version: int) -> int | None:
        batch = entry.window.find(version)
        if batch is not None:
            return batch.appended_ms
        return self._appended.get((entry.facts.lane_id, version))

    # ------------------------------------------------------------ for a question: exact

    async def of_lanes(self, lanes: list[LaneFacts]) -> list[LaneCount]:
        """Counts that are in the log; lanes out of memory are folded for it."""
        found: list[LaneCount] = []
        async for entries in self.glance.chunks(lanes):
            some = [self.count(entry) for entry in entries]
            await self.glance.durable(entries)
            await self._date(some)
            found += some
        return found

    async def _date(self, some: list[LaneCount]) -> None:
        """Look up when the first ready messages were appended, where no body at hand says it."""
        missing = [
            (count.lane.lane_id, tally)
            for count in some
            for tally in count.groups.values()
            if tally.first_ready is not None and tally.oldest_ready_ms is None
        ]
        if not missing:
            return
        wanted = sorted({(lane_id, tally.first_ready) for lane_id, tally in missing})
        rows = await self._database.rows(
            "appended_at", lane_ids=[w[0] for w in wanted], versions=[w[1] for w in wanted]
        )
        dated = {(lane_id, version): at_ms for lane_id, version, at_ms in rows}
        for lane_id, tally in missing:
            tally.oldest_ready_ms = dated.get((lane_id, tally.first_ready or 0))
        self._appended.update((key, at_ms) for key, at_ms in dated.items() if at_ms is not None)

    # ------------------------------------------------------------ for a scrape: from memory

    def counted(self) -> Iterator[LaneCount]:
        """Every lane of this broker's shards whose counts are known."""
        self.uncounted = 0
        for queue in self._facts.cached_queues():
            for lane in queue.lanes.values():
                shard = self._shards[lane.shard_id]
                if not shard.owned:
                    continue
                entry = shard.entries.get(lane.lane_id)
                kept = self._kept.get(lane.lane_id)
                if entry is not None:
                    yield self.count(entry)
                elif kept is not None and kept.epoch == shard.epoch:
                    yield kept.count
                else:
                    self.uncounted += 1

    def forget(self, lane_id: int) -> None:
        """A lane is in memory, or gone: what was kept of it is out of date."""
        self._kept.pop(lane_id, None)

    async def run_once(self) -> int:
        """The survey; returns how many lanes were folded."""
        self._forget_what_moved()
        folded = 0
        for queue in self._facts.cached_queues():
            lanes = await self._facts.lanes(queue)
            for at in range(0, len(lanes), LANES_A_TURN):
                folded += await self._survey(lanes[at : at + LANES_A_TURN])
                await asyncio.sleep(0)
        return folded

    def _forget_what_moved(self) -> None:
        for shard in self._shards:
            for lane_id in shard.entries:
                self._kept.pop(lane_id, None)
        for lane_id in [i for i in self._kept if self._facts.cached_lane(i) is None]:
            self._kept.pop(lane_id)
        self._appended.clear()

    async def _survey(self, lanes: list[LaneFacts]) -> int:
        """Fold what is neither in memory nor kept; date the first ready message of the rest."""
        owned = [lane for lane in lanes if self._shards[lane.shard_id].owned]
        present = [entry for lane in owned if (entry := self.glance.known(lane)) is not None]
        await self._date([self.count(entry) for entry in present])
        strange = [lane for lane in owned if self._is_strange(lane)]
        for at in range(0, len(strange), LANES_AT_ONCE):
            await self._fold(strange[at : at + LANES_AT_ONCE])
        return len(strange)

    def _is_strange(self, lane: LaneFacts) -> bool:
        if self.glance.known(lane) is not None:
            return False
        kept = self._kept.get(lane.lane_id)
        return kept is None or kept.epoch != self._shards[lane.shard_id].epoch

    async def _fold(self, lanes: list[LaneFacts]) -> None:
        epochs = {lane.lane_id: self._shards[lane.shard_id].epoch for lane in lanes}
        counted = [self.count(entry) for entry in await self.glance.at(lanes)]
        await self._date(counted)
        for count in counted:
            lane_id = count.lane.lane_id
            # In memory by now: it may have moved since it was folded.
            if self.glance.known(count.lane) is None:
                self._kept[lane_id] = _Kept(epochs[lane_id], count)
