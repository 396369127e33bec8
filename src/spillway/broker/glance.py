"""Lanes as they are, for those who only look: from memory, else folded from the log for once.

What is folded here is not kept: a question about a million idle lanes must not bring them back.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from spillway.broker.facts import LaneFacts
from spillway.broker.lanes import LaneEntry, load_lanes
from spillway.broker.shard import Shard
from spillway.core.state import Moment
from spillway.log.database import Database

LANES_AT_ONCE = 64
"""What is folded of them comes back in one turn of the loop: some ms."""


@dataclass(frozen=True, slots=True)
class Glance:
    """Looks at lanes."""

    shards: list[Shard]
    database: Database

    async def chunks(self, lanes: Sequence[LaneFacts]) -> AsyncIterator[list[LaneEntry]]:
        """These lanes, some at a time, in their order. A deleted one is left out."""
        for at in range(0, len(lanes), LANES_AT_ONCE):
            yield await self.at(lanes[at : at + LANES_AT_ONCE])
            await asyncio.sleep(0)

    async def at(self, lanes: Sequence[LaneFacts]) -> list[LaneEntry]:
        """These lanes at one moment: what is in memory is looked at last."""
        absent = [lane for lane in lanes if self.known(lane) is None]
        folded: dict[int, LaneEntry] = {}
        if absent:
            found = await load_lanes(self.database, absent, {})
            folded = {entry.facts.lane_id: entry for entry in found}
        entries = [self.known(lane) or folded.get(lane.lane_id) for lane in lanes]
        return [entry for entry in entries if entry is not None]

    async def one(self, lane: LaneFacts) -> LaneEntry | None:
        """One lane."""
        return next(iter(await self.at([lane])), None)

    def known(self, lane: LaneFacts) -> LaneEntry | None:
        """A lane, if it is in memory."""
        return self.shards[lane.shard_id].entries.get(lane.lane_id)

    def moment(self, entry: LaneEntry) -> Moment:
        """Now, for a lane."""
        return self.shards[entry.facts.shard_id].moment(entry)

    async def durable(self, entries: Sequence[LaneEntry]) -> None:
        """What was just read holds once this returns: memory may be ahead of the log.

        Call it in the turn of the reading, before anything else is awaited.
        """
        shard_ids = {entry.facts.shard_id for entry in entries}
        tickets = [self.shards[shard_id].ticket() for shard_id in shard_ids]
        for ticket in tickets:
            await ticket
