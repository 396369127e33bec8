"""How many messages are where, for each lane and group.

Lanes in memory are counted when somebody asks. Lanes that are not cannot change: they are folded
once, by the survey, and their counts are kept until they are seen in memory again. So a scrape
reads nothing but memory. Its error: a lane counts from the first survey on that finds it (every
5 s), and while it is out of memory a deferred message that falls due still counts as deferred.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field

from spillway.broker.duty import Duty
from spillway.broker.facts import GROUP_DEFAULT, Facts, LaneFacts, QueueFacts
from spillway.broker.glance import LANES_AT_ONCE, Glance
from spillway.broker.lanes import LaneEntry
from spillway.broker.places import state_on
from spillway.broker.shard import Shard
from spillway.core.state import BLOCKED, DEFERRED, LEASED, READY, counts, ready_heads
from spillway.log.database import Database

SURVEY_INTERVAL_S = 5.0
LANES_A_TURN = 50
"""How many lanes are counted in one turn of the loop: some ms, which pushes may have to wait."""
LANES_DATED_AT_ONCE = 500


Place = tuple[int, int]
"""(lane_id, version)"""


@dataclass(slots=True)
class Tally:
    """Where the messages of some lanes are, for one group."""

    counts: Counter[str] = field(default_factory=Counter)
    holes: int = 0
    heads: list[tuple[int, int]] = field(default_factory=list)
    """What could be leased first: (version, due time). One of them is due for longest."""
    oldest_ready_ms: int | None = None

    def add(self, other: "Tally") -> None:
        """Another lane."""
        for name, count in other.counts.items():
            self.counts[name] += count
        self.holes += other.holes
        if other.oldest_ready_ms is not None:
            mine = self.oldest_ready_ms
            oldest = other.oldest_ready_ms
            self.oldest_ready_ms = oldest if mine is None else min(mine, oldest)

    @property
    def waiting(self) -> int:
        """What is still to be handed out."""
        return self.counts[READY] + self.counts[DEFERRED]

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
        """The most that a group has still to be handed."""
        return max((tally.waiting for tally in self.groups.values()), default=0)


@dataclass(frozen=True, slots=True)
class _Kept:
    epoch: int
    count: LaneCount


def groups_of(queue: QueueFacts) -> list[str]:
    """The groups of a queue; before the first one was made, the one that would be."""
    return sorted(queue.groups) or [GROUP_DEFAULT]


def _oldest(heads: Iterable[tuple[int | None, int]]) -> int | None:
    """Since when one of them could be leased: (appended, due). None where not all are dated."""
    since: list[int] = []
    for appended_ms, due_ms in heads:
        if appended_ms is None:
            return None
        since.append(max(appended_ms, due_ms))
    return min(since, default=None)


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
        self._appended: dict[Place, int] = {}
        self.uncounted = 0

    # ------------------------------------------------------------ one lane

    def count(self, entry: LaneEntry) -> LaneCount:
        """A lane as it is now."""
        now = self.glance.moment(entry)
        groups: dict[str, Tally] = {}
        for group in groups_of(entry.facts.queue):
            state = state_on(entry, group)
            heads = ready_heads(state, now)
            groups[group] = Tally(
                Counter({name: n for name, n in counts(state, now).items() if n}),
                state.settled.holes,
                heads,
                _oldest((self._appended_ms(entry, version), due_ms) for version, due_ms in heads),
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
            if tally.heads and tally.oldest_ready_ms is None
        ]
        await self._look_up({(lane_id, v) for lane_id, tally in missing for v, _ in tally.heads})
        for lane_id, tally in missing:
            dated = ((self._appended.get((lane_id, v)), due_ms) for v, due_ms in tally.heads)
            tally.oldest_ready_ms = _oldest(dated)

    async def _look_up(self, wanted: set[Place]) -> None:
        """Know when these messages were appended; that never changes."""
        places = sorted(wanted - self._appended.keys())
        if places:
            rows = await self._database.rows(
                "appended_at", lane_ids=[p[0] for p in places], versions=[p[1] for p in places]
            )
            dated = {(lane_id, version): at_ms for lane_id, version, at_ms in rows}
            self._appended.update((at, ms) for at, ms in dated.items() if ms is not None)

    # ------------------------------------------------------------ for a scrape: from memory

    async def counted(self) -> AsyncIterator[list[LaneCount]]:
        """Every lane of this broker's shards whose counts are known, a few in a turn of the loop.

        There may be a million, and nobody's push is to wait for all of them.
        """
        uncounted = 0
        lanes = self._facts.cached_lanes()
        for at in range(0, len(lanes), LANES_A_TURN):
            here = [o for o in lanes[at : at + LANES_A_TURN] if self._shards[o.shard_id].owned]
            found = [count for lane in here if (count := self._known(lane)) is not None]
            uncounted += len(here) - len(found)
            yield found
            await asyncio.sleep(0)
        self.uncounted = uncounted

    def _known(self, lane: LaneFacts) -> LaneCount | None:
        entry = self.glance.known(lane)
        if entry is not None:
            return self.count(entry)
        kept = self._kept.get(lane.lane_id)
        shard = self._shards[lane.shard_id]
        return kept.count if kept is not None and kept.epoch == shard.epoch else None

    def keep(self, entry: LaneEntry) -> None:
        """A lane is about to leave memory: what it counts now holds until it comes back."""
        lane_id, count = entry.facts.lane_id, self.count(entry)
        tallies = count.groups.values()
        if all(not t.heads or t.oldest_ready_ms is not None for t in tallies):
            self._kept[lane_id] = _Kept(self._shards[entry.facts.shard_id].epoch, count)
        else:
            # Left to the survey, which looks up when the first ready message was appended.
            self._kept.pop(lane_id, None)

    async def run_once(self) -> int:
        """The survey; returns how many lanes were folded."""
        folded = 0
        ready: set[Place] = set()
        await self._forget_deleted()
        for queue in self._facts.cached_queues():
            lanes = await self._facts.lanes(queue)
            for at in range(0, len(lanes), LANES_DATED_AT_ONCE):
                some = lanes[at : at + LANES_DATED_AT_ONCE]
                folded += await self._survey(some)
                ready |= await self._date_ready(some)
        for place in [place for place in self._appended if place not in ready]:
            del self._appended[place]
        return folded

    async def _forget_deleted(self) -> None:
        kept = list(self._kept)
        for at in range(0, len(kept), LANES_DATED_AT_ONCE):
            for lane_id in kept[at : at + LANES_DATED_AT_ONCE]:
                if self._facts.cached_lane(lane_id) is None:
                    self._kept.pop(lane_id, None)
            await asyncio.sleep(0)

    async def _survey(self, lanes: list[LaneFacts]) -> int:
        """Fold what is neither in memory nor kept."""
        for lane in lanes:
            if self.glance.known(lane) is not None:
                self._kept.pop(lane.lane_id, None)
        owned = (lane for lane in lanes if self._shards[lane.shard_id].owned)
        strange = [lane for lane in owned if self._is_strange(lane)]
        for at in range(0, len(strange), LANES_AT_ONCE):
            await self._fold(strange[at : at + LANES_AT_ONCE])
        return len(strange)

    async def _date_ready(self, lanes: list[LaneFacts]) -> set[Place]:
        """Date the first ready messages of lanes in memory that have no body of them at hand."""
        ready: set[Place] = set()
        for at in range(0, len(lanes), LANES_A_TURN):
            for lane in lanes[at : at + LANES_A_TURN]:
                if (entry := self.glance.known(lane)) is not None:
                    ready.update(self._undated(entry))
            await asyncio.sleep(0)
        await self._look_up(ready)
        return ready

    def _undated(self, entry: LaneEntry) -> Iterator[Place]:
        now = self.glance.moment(entry)
        for group in groups_of(entry.facts.queue):
            for version, _ in ready_heads(state_on(entry, group), now):
                if entry.window.find(version) is None:
                    yield entry.facts.lane_id, version

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
