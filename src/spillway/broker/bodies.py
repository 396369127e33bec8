"""The bodies of leased messages: from the window of the lane, else from the log, reading ahead.

A draining lane is read once, a stretch at a time, by one reader for all who wait; the next stretch
is fetched while the last one goes out. A message that came back is read by itself. What the queue
has no room for is read as far as it is asked for, handed out, and not kept.
"""

import asyncio
from bisect import bisect_right
from itertools import accumulate

from spillway.broker.breaker import Breaker
from spillway.broker.lanes import LaneEntry
from spillway.core.errors import SpillwayError
from spillway.core.message import BATCH_MESSAGES_MAX, RecordBatch
from spillway.log.database import Database
from spillway.log.reader import read_batches

READ_BYTES_MAX = 4 * 1024 * 1024
"""How much of a lane (compressed) one read brings, however many messages that is."""

Run = tuple[int, int, int]
"""(first version, last version, attempt)"""
Slice = tuple[RecordBatch, int, int, int]
"""(batch, first version, last version, attempt)"""


class MissingBodyError(SpillwayError):
    """A leased message has no body in the log."""

    code = "missing_body"
    hint = "`spillway audit` lists what is missing; the message stays and is not acknowledged"

    def __init__(self, lane_id: int, version: int) -> None:
        super().__init__(f"version {version} of lane {lane_id} has no body")
        self.place = lane_id, version


class Bodies:
    """Finds bodies."""

    def __init__(self, database: Database, breaker: Breaker) -> None:
        self._database = database
        self._breaker = breaker

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

    async def find(self, entry: LaneEntry, runs: tuple[Run, ...], bytes_max: int) -> list[Slice]:
        """The bodies of these runs, from the log where need be; no more once it weighs so much."""
        slices: list[Slice] = []
        for start, end, attempt in runs:
            at = start
            while at <= end and bytes_max > 0:
                batch = entry.window.find(at)
                if batch is not None:
                    batches = [batch]
                else:
                    batches = await self._breaker.soon(self._read(entry, at, end))
                for holder in batches:
                    last = min(end, holder.last_version)
                    if holder.base_version <= at <= last:
                        slices.append((holder, at, last, attempt))
                        bytes_max -= weight(slices[-1])
                        at = last + 1
        return slices

    def let_go(self, entry: LaneEntry) -> None:
        """Drop what every group has taken, and fetch what comes next before it is asked for."""
        frontier = entry.frontier()
        entry.window.forget(frontier)
        if not entry.window.room:
            # A group that stays behind reads for itself: it must not hold the memory of the others.
            frontier = entry.lead()
            entry.window.forget(frontier)
        last = entry.window.last_version
        low = last - frontier < _stretch(entry) // 2
        if low and frontier < last < entry.durable_tail and entry.reading is None:
            self._begin_reading(entry, last + 1, _stretch(entry))

    async def _read(self, entry: LaneEntry, start: int, end: int) -> list[RecordBatch]:
        """Batches from the one that holds `start` on."""
        count = end - start + 1
        if end + max(_stretch(entry), BATCH_MESSAGES_MAX) <= entry.frontier():
            return _from(start, await self._fetch(entry, start, count), entry)
        while entry.reading is not None:
            batches = await asyncio.shield(entry.reading)
            found = _find(batches, start) or entry.window.find(start)
            if found is not None:
                return [found]
        reading = self._begin_reading(entry, start, max(count, _stretch(entry)))
        return _from(start, await asyncio.shield(reading), entry)

    def _begin_reading(
        self, entry: LaneEntry, start: int, count: int
    ) -> "asyncio.Task[list[RecordBatch]]":
        entry.reading = asyncio.get_running_loop().create_task(self._fill(entry, start, count))
        entry.reading.add_done_callback(_look_at)
        return entry.reading

    async def _fill(self, entry: LaneEntry, start: int, count: int) -> list[RecordBatch]:
        try:
            batches = await self._fetch(entry, start, count)
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
    return min(half, entry.window.room)


def weight(piece: Slice) -> int:
    """How many bytes of payload a slice has."""
    batch, start, end, _ = piece
    if end - start + 1 == batch.count:
        return batch.payload_bytes
    base = batch.base_version
    return sum(map(len, batch.payloads[start - base : end - base + 1]))


def cut(slices: list[Slice], bytes_max: int) -> list[Slice]:
    """The first of these slices, down to the message, that together weigh no more."""
    for at, piece in enumerate(slices):
        size = weight(piece)
        if size > bytes_max:
            batch, start, _, attempt = piece
            sizes = accumulate(map(len, batch.payloads[start - batch.base_version :]))
            count = bisect_right(list(sizes), bytes_max)
            part = [(batch, start, start + count - 1, attempt)] if count else []
            return [*slices[:at], *part]
        bytes_max -= size
    return slices


def _find(batches: list[RecordBatch], version: int) -> RecordBatch | None:
    i = bisect_right([batch.base_version for batch in batches], version) - 1
    return batches[i] if i >= 0 and batches[i].last_version >= version else None


def _from(version: int, batches: list[RecordBatch], entry: LaneEntry) -> list[RecordBatch]:
    """These batches, if one of them holds the version."""
    if _find(batches, version) is None:
        raise MissingBodyError(entry.facts.lane_id, version)
    return batches


def _look_at(task: "asyncio.Task[list[RecordBatch]]") -> None:
    """A read-ahead that failed is tried again by whoever needs it; no warning about the task."""
    if not task.cancelled():
        task.exception()
