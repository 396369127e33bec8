"""The bodies of leased messages: from the window of the lane, else from the log, reading ahead.

A draining lane is read once, a stretch at a time, by one reader for all who wait; the next stretch
is fetched while the last one goes out. A message that came back is read by itself.
"""

import asyncio
from bisect import bisect_right

from spillway.broker.lanes import LaneEntry
from spillway.core.errors import SpillwayError
from spillway.core.message import RecordBatch
from spillway.log.database import Database
from spillway.log.reader import read_batches

READ_BYTES_MAX = 4 * 1024 * 1024
"""How much of a lane (compressed) one read brings, however many messages that is."""

STRETCH_MIN = 256

Run = tuple[int, int, int]
"""(first version, last version, attempt)"""
Slice = tuple[RecordBatch, int, int, int]
"""(batch, first version, last version, attempt)"""


class MissingBodyError(SpillwayError):
    """A leased message has no body in the log."""

    code = "missing_body"
    hint = "`spillway audit` lists what is missing; the message stays and is not acknowledged"


class Bodies:
    """Finds bodies."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def at_hand(self, entry: LaneEntry, runs: tuple[Run, ...]) -> list[Slice] | None:
        """The bodies of these runs, if the window has all of them."""
        slices: list[Slice] = []
        for start, end, attempt in runs:
            at = start
            while at <= end:
                batch = entry.window.find(at)
                if batch is None:
                    return None
                last = min(end, batch.last_version)
                slices.append((batch, at, last, attempt))
                at = last + 1
        return slices

    async def find(self, entry: LaneEntry, runs: tuple[Run, ...]) -> list[Slice]:
        """The bodies of these runs, from the log where need be."""
        slices: list[Slice] = []
        for start, end, attempt in runs:
            at = start
            while at <= end:
                batch = entry.window.find(at) or await self._read(entry, at, end)
                last = min(end, batch.last_version)
                slices.append((batch, at, last, attempt))
                at = last + 1
        return slices

    def let_go(self, entry: LaneEntry) -> None:
        """Drop what every group has taken, and fetch what comes next before it is asked for."""
        frontier = entry.frontier()
        entry.window.forget(frontier)
        last = entry.window.last_version
        low = last - frontier < _stretch(entry) // 2
        if low and frontier < last < entry.durable_tail and entry.reading is None:
            self._begin_reading(entry, last + 1)

    async def _read(self, entry: LaneEntry, start: int, end: int) -> RecordBatch:
        if end + _stretch(entry) <= entry.frontier():
            return _holder(await self._fetch(entry, start, end - start + 1), entry, start)
        while entry.reading is not None:
            batches = await asyncio.shield(entry.reading)
            found = _find(batches, start) or entry.window.find(start)
            if found is not None:
                return found
        batches = await asyncio.shield(self._begin_reading(entry, start))
        return _holder(batches, entry, start)

    def _begin_reading(self, entry: LaneEntry, start: int) -> "asyncio.Task[list[RecordBatch]]":
        entry.reading = asyncio.get_running_loop().create_task(self._fill(entry, start))
        entry.reading.add_done_callback(_look_at)
        return entry.reading

    async def _fill(self, entry: LaneEntry, start: int) -> list[RecordBatch]:
        try:
            batches = await self._fetch(entry, start, _stretch(entry))
            if not entry.dead:
                entry.window.fill(batches)
            return batches
        finally:
            entry.reading = None

    async def _fetch(self, entry: LaneEntry, start: int, count: int) -> list[RecordBatch]:
        async with self._database.connection() as conn:
            return await read_batches(conn, entry.facts.lane_id, start, count, READ_BYTES_MAX)


def _stretch(entry: LaneEntry) -> int:
    """How many messages one read-ahead brings: half of what the queue may keep at hand."""
    half = entry.facts.queue.options.in_memory_queue_size // 2
    return max(min(half, entry.window.room), STRETCH_MIN)


def _find(batches: list[RecordBatch], version: int) -> RecordBatch | None:
    i = bisect_right([batch.base_version for batch in batches], version) - 1
    return batches[i] if i >= 0 and batches[i].last_version >= version else None


def _holder(batches: list[RecordBatch], entry: LaneEntry, version: int) -> RecordBatch:
    found = _find(batches, version)
    if found is None:
        raise MissingBodyError(f"version {version} of lane {entry.facts.lane_id} has no body")
    return found


def _look_at(task: "asyncio.Task[list[RecordBatch]]") -> None:
    """A read-ahead that failed is tried again by whoever needs it; no warning about the task."""
    if not task.cancelled():
        task.exception()
