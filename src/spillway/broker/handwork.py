"""Operator verbs on messages that are still in their lanes: unblock, park, purge.

A verb works through lanes in order and through each of them upwards, in pages. Each page is looked
at and decided anew, so whatever happens between two pages is respected, and each is one commit.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from spillway.broker.actions import Deed
from spillway.broker.facts import Facts, LaneFacts, QueueFacts
from spillway.broker.glance import LANES_AT_ONCE, Glance
from spillway.broker.lanes import LaneEntry
from spillway.broker.places import Run, candidates, state_on
from spillway.broker.selection import lanes_of, ms_of
from spillway.broker.shard import Shard
from spillway.core import commands as cmd
from spillway.core.message import RecordBatch
from spillway.core.ranges import Range, coalesce, total
from spillway.core.state import BLOCKED
from spillway.log.database import Database
from spillway.log.reader import read_batches
from spillway.wire import Selection

PAGE_RUNS = 1_000
"""How many ranges one event may name."""
PAGE_VERSIONS = 1_000
"""How many versions one commit may write dead letters for, or one filter look at the bodies of."""
READ_BYTES = 4 * 1024 * 1024
EVERY_VERSION = 2**62

MakeCommand = Callable[[tuple[Range, ...]], cmd.Command]


@dataclass(frozen=True, slots=True)
class Task:
    """What to do, to which kind of candidates of which selection."""

    queue: QueueFacts
    request: Selection
    what: str
    command: MakeCommand
    page_versions: int = EVERY_VERSION
    begins_group: bool = False

    @property
    def needs_bodies(self) -> bool:
        """Whether a filter asks for what only the message itself knows."""
        by_age = self.request.before is not None and self.what != BLOCKED
        return self.request.key is not None or by_age

    @property
    def window(self) -> int:
        """How many versions a page may hold."""
        return min(self.page_versions, PAGE_VERSIONS) if self.needs_bodies else self.page_versions


@dataclass(slots=True)
class Progress:
    """How far a task is: what is decided, and what of it waits for its commit."""

    deed: Deed
    decided: int = 0
    pending: list[tuple[asyncio.Future[None], int]] = field(default_factory=list)

    def add(self, ticket: asyncio.Future[None], count: int) -> None:
        """Decided, not yet in the log."""
        self.decided += count
        self.pending.append((ticket, count))

    @property
    def is_full(self) -> bool:
        """Whether it is time to wait for the log."""
        return sum(count for _, count in self.pending) >= PAGE_VERSIONS

    async def settle(self) -> None:
        """Wait for the log; only what is in it counts."""
        pending, self.pending = self.pending, []
        for ticket, count in pending:
            await ticket
            self.deed.affected += count


class Handwork:
    """Carries tasks out."""

    def __init__(self, facts: Facts, shards: list[Shard], database: Database) -> None:
        self._facts = facts
        self._shards = shards
        self._database = database
        self._glance = Glance(shards, database)

    async def do(self, task: Task, deed: Deed) -> None:
        """Do it to every message selected, up to the limit; the rest is counted."""
        progress = Progress(deed)
        lanes = lanes_of(await self._facts.lanes(task.queue), task.request)
        for at in range(0, len(lanes), LANES_AT_ONCE):
            some = lanes[at : at + LANES_AT_ONCE]
            concerned = await self._concerned(task, [lane for lane, _ in some])
            for lane, named in some:
                if lane.lane_id in concerned:
                    await self._work_through(task, lane, named, progress)
            await progress.settle()

    async def _concerned(self, task: Task, lanes: list[LaneFacts]) -> set[int]:
        """The lanes that have candidates, brought into memory with everything in the log.

        A dead letter's body is copied out of the log, so a verb works on what is there already.
        """
        by_shard: dict[int, list[LaneFacts]] = {}
        for entry in await self._glance.at(lanes):
            state = state_on(entry, task.request.group)
            if any(True for _ in candidates(state, task.what, 1, entry.lane.tail)):
                by_shard.setdefault(entry.facts.shard_id, []).append(entry.facts)
        for shard_id, found in by_shard.items():
            await self._shards[shard_id].lanes(found)
            await self._shards[shard_id].flush()
        return {lane.lane_id for found in by_shard.values() for lane in found}

    async def _work_through(
        self, task: Task, lane: LaneFacts, named: list[Range] | None, progress: Progress
    ) -> None:
        shard = self._shards[lane.shard_id]
        entry = await self._entry(shard, lane)
        if entry is None:
            return
        tail = entry.durable_tail
        async for ranges in self._pages(task, shard, lane, named or [(1, tail)], tail):
            await self._act(task, shard, lane, ranges, progress)

    async def _entry(self, shard: Shard, lane: LaneFacts) -> LaneEntry | None:
        return next(iter(await shard.lanes([lane])), None)

    async def _act(
        self, task: Task, shard: Shard, lane: LaneFacts, ranges: list[Range], progress: Progress
    ) -> None:
        limit, deed = task.request.limit, progress.deed
        room = EVERY_VERSION if limit is None else limit - progress.decided
        chosen, rest = split(ranges, room)
        deed.remaining += total(rest)
        if task.request.dry_run:
            progress.decided += total(chosen)
            deed.affected = progress.decided
            return
        entry = await self._entry(shard, lane) if chosen else None
        if entry is not None:
            verdict = _handle(task, shard, entry, tuple(chosen))
            progress.add(shard.ticket(), total(verdict.parked or verdict.done))
        if progress.is_full:
            await progress.settle()

    async def _pages(
        self, task: Task, shard: Shard, lane: LaneFacts, spans: list[Range], tail: int
    ) -> AsyncIterator[list[Range]]:
        """What is selected, a page at a time."""
        for low, high in spans:
            at, top = low, min(high, tail)
            while at <= top:
                entry = await self._entry(shard, lane)
                if entry is None:
                    return
                state = state_on(entry, task.request.group)
                page = cut(candidates(state, task.what, at, top), task.window)
                if not page:
                    break
                at = page[-1].end + 1
                ranges = await self._filtered(task, lane, page)
                if ranges:
                    yield ranges

    async def _filtered(self, task: Task, lane: LaneFacts, page: list[Run]) -> list[Range]:
        request = task.request
        page = [run for run in page if has_error(run, request.error_contains)]
        if task.what == BLOCKED and (before_ms := ms_of(request.before)) is not None:
            page = [run for run in page if run.at_ms is not None and run.at_ms < before_ms]
        if not page or not task.needs_bodies:
            return [(run.start, run.end) for run in page]
        return await self._by_body(task, lane, page)

    async def _by_body(self, task: Task, lane: LaneFacts, page: list[Run]) -> list[Range]:
        before_ms = None if task.what == BLOCKED else ms_of(task.request.before)
        found: list[int] = []
        for run in page:
            async for batch in self._batches(lane.lane_id, run.start, run.end):
                found += matching(batch, run, task.request.key, before_ms)
        return coalesce(found)

    async def _batches(self, lane_id: int, start: int, end: int) -> AsyncIterator[RecordBatch]:
        at = start
        while at <= end:
            async with self._database.connection() as conn:
                batches = await read_batches(conn, lane_id, at, end - at + 1, READ_BYTES)
            fresh = [b for b in batches if b.last_version >= at]
            if not fresh:
                return
            for batch in fresh:
                yield batch
            at = fresh[-1].last_version + 1


def _handle(task: Task, shard: Shard, entry: LaneEntry, ranges: tuple[Range, ...]) -> cmd.Verdict:
    group = task.request.group
    if not entry.group(group).state.exists:
        if not task.begins_group:
            return cmd.Verdict(refused=ranges)
        shard.handle(entry, group, cmd.CreateGroup(after=entry.lane.pruned_to))
    verdict: cmd.Verdict = shard.handle(entry, group, task.command(ranges))
    return verdict


def cut(runs: Iterator[Run], versions: int) -> list[Run]:
    """The first runs, up to so many versions (the last one is cut to fit)."""
    page: list[Run] = []
    for run in islice(runs, PAGE_RUNS):
        if versions < 1:
            break
        end = min(run.end, run.start + versions - 1)
        page.append(Run(run.start, end, run.error, run.at_ms))
        versions -= end - run.start + 1
    return page


def split(ranges: list[Range], room: int) -> tuple[list[Range], list[Range]]:
    """The first `room` versions, and the others."""
    chosen: list[Range] = []
    rest: list[Range] = []
    for start, end in ranges:
        last = min(end, start + room - 1)
        if start <= last:
            chosen.append((start, last))
            room -= last - start + 1
        if last < end:
            rest.append((max(start, last + 1), end))
    return chosen, rest


def has_error(run: Run, wanted: str | None) -> bool:
    """Whether the last error of a run says something."""
    return wanted is None or (run.error is not None and wanted in run.error)


def matching(batch: RecordBatch, run: Run, key: str | None, before_ms: int | None) -> list[int]:
    """The versions of a run in a batch that a filter lets through."""
    if before_ms is not None and batch.appended_ms >= before_ms:
        return []
    low = max(run.start, batch.base_version)
    high = min(run.end, batch.last_version)
    if key is None:
        return list(range(low, high + 1))
    keys = batch.keys or []
    base = batch.base_version
    return [v for v in range(low, high + 1) if v - base < len(keys) and keys[v - base] == key]
