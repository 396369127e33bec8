"""The bodies of leased messages: from the window of the lane, else from the log, reading ahead."""

from dataclasses import dataclass

from spillway.broker.lanes import LaneEntry
from spillway.core.errors import invariant
from spillway.core.message import RecordBatch
from spillway.log.database import Database
from spillway.log.reader import read_batches

READ_AHEAD_BYTES = 4 * 1024 * 1024
"""How much of a lane (compressed) one read brings, however many messages that is."""

Slice = tuple[RecordBatch, int, int, int]
"""(batch, first version, last version, attempt)"""


@dataclass(frozen=True, slots=True)
class Bodies:
    """Finds bodies."""

    database: Database

    async def find(self, entry: LaneEntry, runs: tuple[tuple[int, int, int], ...]) -> list[Slice]:
        """The batches that hold these runs of (first, last, attempt)."""
        slices: list[Slice] = []
        for start, end, attempt in runs:
            at = start
            while at <= end:
                batch = entry.window.find(at) or await self._read(entry, at, end)
                last = min(end, batch.last_version)
                slices.append((batch, at, last, attempt))
                at = last + 1
        return slices

    async def _read(self, entry: LaneEntry, start: int, end: int) -> RecordBatch:
        """From the log; fresh messages with what follows them, retries alone."""
        fresh = end >= entry.frontier()
        ahead = max(entry.facts.queue.options.in_memory_queue_size, 1) if fresh else end - start + 1
        async with self.database.connection() as conn:
            batches = await read_batches(conn, entry.facts.lane_id, start, ahead, READ_AHEAD_BYTES)
        found = next((b for b in batches if b.base_version <= start <= b.last_version), None)
        invariant(found is not None, f"version {start} of lane {entry.facts.lane_id} has no body")
        if fresh and not entry.dead:
            entry.window.fill(batches)
        assert found is not None
        return found

    def forget_handed_out(self, entry: LaneEntry) -> None:
        """Bodies that every group has taken are read again only if one of them comes back."""
        entry.window.forget(entry.frontier())
