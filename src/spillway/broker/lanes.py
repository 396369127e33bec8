"""Lanes in memory: what a shard keeps of each, and how it comes back from the log."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import psycopg
import structlog

from spillway.broker.facts import LaneFacts
from spillway.core.errors import SpillwayError
from spillway.core.lane import DedupeWindow, Lane
from spillway.core.message import RecordBatch
from spillway.core.state import GroupState, Moment, next_wake_ms
from spillway.log import checkpoints, reader
from spillway.log.database import Database
from spillway.log.queries import QUERIES
from spillway.log.writer import ControlRow
from spillway.warm.memory import Budget, Window

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class GroupEntry:
    """A group on a lane: its state, and where its control log is."""

    state: GroupState = field(default_factory=GroupState)
    seq: int = 0
    unsaved_events: int = 0
    error: SpillwayError | None = None
    """Its control log is damaged: it answers nothing, and nothing of its lane is pruned."""
    open_row: ControlRow | None = None
    held_back: bool = False
    """The last lease got nothing though something waits (cap, order): look again on any change."""


@dataclass(slots=True)
class LaneEntry:
    """A lane in memory."""

    facts: LaneFacts
    lane: Lane
    window: Window
    durable_tail: int
    groups: dict[str, GroupEntry] = field(default_factory=dict)
    open_batch: RecordBatch | None = None
    alarm_ms: int | None = None
    used_ms: int = 0
    reading: asyncio.Task[list[RecordBatch]] | None = None
    """A read-ahead that fills the window."""
    fallbacks: int = 0
    """How many checkpoints could not be used when it was loaded."""
    dead: bool = False

    def group(self, name: str) -> GroupEntry:
        """The entry of a group; its state does not exist before its first command."""
        entry = self.groups.get(name)
        if entry is None:
            entry = self.groups[name] = GroupEntry()
        if entry.error is not None:
            raise entry.error
        return entry

    def trim(self) -> int:
        """Everything up to here is settled for every group; 0 where there is none.

        A group of the queue that has not come to this lane yet will begin behind what is pruned.
        """
        if any(g.error for g in self.groups.values()):
            return 0
        begun = {name: g.state.trim for name, g in self.groups.items() if g.state.exists}
        trims = [*begun.values()]
        if not self.facts.queue.groups.keys() <= begun.keys():
            trims.append(self.lane.pruned_to)
        return min(trims, default=0)

    def depth(self) -> int:
        """The most that a group has not settled yet, wherever it is: blocked messages too."""
        begun = {name: g.state for name, g in self.groups.items() if g.state.exists}
        depths = [self.lane.tail - state.settled.total for state in begun.values()]
        if not depths or not self.facts.queue.groups.keys() <= begun.keys():
            depths.append(self.lane.tail - self.lane.pruned_to)
        return max(depths)

    def strays(self) -> list[str]:
        """Groups that have positions here but no row: their making or their deletion broke off."""
        queue = self.facts.queue
        if self.groups.keys() <= queue.groups.keys():
            return []
        living = queue.groups.keys() | queue.changing
        return [n for n, g in self.groups.items() if n not in living and g.state.exists]

    @property
    def is_written(self) -> bool:
        """Whether every message is in the log, and nobody is reading into the window."""
        return self.durable_tail == self.lane.tail and self.reading is None

    @property
    def is_saved(self) -> bool:
        """Whether every event is in a checkpoint, and so in the log."""
        return not any(group.unsaved_events for group in self.groups.values())

    def wakes_ms(self, moment: Moment) -> int | None:
        """When the clock alone will change something on this lane."""
        times = [next_wake_ms(group.state, moment) for group in self.groups.values()]
        times += [self.lane.schedule.next_expiry_ms()]
        times += [self.lane.schedule.next_delivery_ms(moment.now_ms)]
        return min((t for t in times if t is not None), default=None)

    def frontier(self) -> int:
        """Everything up to here was handed out to every group."""
        return min((g.state.frontier for g in self.groups.values() if g.state.exists), default=0)

    def lead(self) -> int:
        """Nothing behind this was handed out to any group yet."""
        return max((g.state.frontier for g in self.groups.values() if g.state.exists), default=0)


class Loader:
    """Reads lanes, each of them once, however many ask for it at a time."""

    def __init__(self, database: Database, budgets: dict[int, Budget]) -> None:
        self._database = database
        self._budgets = budgets
        self._loading: dict[int, asyncio.Future[None]] = {}

    async def load(
        self,
        lanes: list[LaneFacts],
        known: Mapping[int, LaneEntry],
        admit: Callable[[list[LaneEntry]], None],
    ) -> None:
        """Have those read that are not known, and admitted."""
        # Whoever is reading some of them may fail or be cancelled: what is missing then is ours.
        while others := {self._loading[f.lane_id] for f in lanes if f.lane_id in self._loading}:
            await asyncio.wait(others)
        missing = [lane for lane in lanes if lane.lane_id not in known]
        if not missing:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loading.update((lane.lane_id, done) for lane in missing)
        try:
            admit(await load_lanes(self._database, missing, self._budgets))
        finally:
            for lane in missing:
                self._loading.pop(lane.lane_id, None)
            done.set_result(None)


async def load_lanes(
    database: Database, lanes: list[LaneFacts], budgets: dict[int, Budget]
) -> list[LaneEntry]:
    """Bring lanes back: tail, group states (checkpoint and fold), and what waits for a time."""
    lane_ids = [lane.lane_id for lane in lanes]
    async with database.connection() as conn:
        cursor = await conn.execute(QUERIES["lane_tails"].sql, {"lane_ids": lane_ids})
        tails = {row[0]: row for row in await cursor.fetchall()}
        lane_ids = list(tails)
        loaded = await checkpoints.load(conn, lane_ids)
        folded = await checkpoints.fold(conn, lane_ids, loaded)
        entries = {
            lane.lane_id: _entry(lane, tails[lane.lane_id], budgets)
            for lane in lanes
            if lane.lane_id in tails
        }
        for (lane_id, group), restored in folded.items():
            entry = entries[lane_id]
            entry.groups[group] = _group_entry(restored)
            entry.fallbacks += len(restored.problems)
        for entry in entries.values():
            if entry.lane.tail > entry.lane.pruned_to:
                await _load_times(conn, entry)
    return list(entries.values())


def _group_entry(restored: checkpoints.Folded) -> GroupEntry:
    for problem in restored.problems:
        lane_id, group = restored.key
        log.warning("checkpoint_fallback", lane=lane_id, group=group, problem=problem)
    if restored.error is not None:
        return GroupEntry(seq=restored.seq, error=restored.error)
    # What the last lease got is not in the log: whoever waits looks again on the first change.
    return GroupEntry(restored.state, restored.seq, restored.events, held_back=True)


def _entry(facts: LaneFacts, row: tuple[int, int, int], budgets: dict[int, Budget]) -> LaneEntry:
    _, pruned_to, tail = row
    queue = facts.queue
    budget = budgets.setdefault(queue.queue_id, Budget(queue.options.in_memory_queue_size))
    return LaneEntry(facts, Lane(tail, pruned_to), Window(budget), tail)


async def _load_times(conn: psycopg.AsyncConnection, entry: LaneEntry) -> None:
    """Fill the lane's schedule. A seek may go back as far as the log: so do the times."""
    schedule, after = entry.lane.schedule, entry.lane.pruned_to
    while page := await reader.read_times(conn, entry.facts.lane_id, after):
        for base, deliver_ms, expires_ms in page:
            for note, times in ((schedule.defer, deliver_ms), (schedule.expire, expires_ms)):
                for version, at_ms in enumerate(times or (), base):
                    if at_ms is not None:
                        note(version, at_ms)
        after = page[-1][0]


async def load_dedupe(database: Database, entry: LaneEntry, now_ms: int) -> None:
    """Rebuild the dedupe window of a lane from its newest batches."""
    options = entry.facts.queue.options
    window = DedupeWindow()
    if options.dedupe_window_ms and options.dedupe_count:
        since_ms = now_ms - options.dedupe_window_ms
        for known in reversed(await _known_since(database, entry, since_ms)):
            window.add_batch(*known)
    if entry.lane.dedupe is None:
        entry.lane.dedupe = window


async def _known_since(
    database: Database, entry: LaneEntry, since_ms: int
) -> list[tuple[int, list[str], int, list[int]]]:
    """What the window is to know of each batch, newest first. The payloads, which may be a hundred
    GiB, are let go as soon as their fingerprints are taken.
    """
    found: list[tuple[int, list[str], int, list[int]]] = []
    before, missing = entry.lane.tail + 1, entry.facts.queue.options.dedupe_count
    async with database.connection() as conn:
        while missing > 0 and before > entry.lane.pruned_to + 1:
            batches = await reader.read_ids(conn, entry.facts.lane_id, before, since_ms)
            for batch in batches:
                if missing > 0:
                    prints = list(map(hash, batch.payloads))
                    first = batch.base_version
                    found.append((batch.appended_ms, batch.transaction_ids, first, prints))
                    missing -= batch.count
            if not batches:
                break
            before = batches[-1].base_version
    return found
