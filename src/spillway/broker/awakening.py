"""The awakening: lanes come back into memory because the clock has something to do on them.

Leases end, retries fall due and lives run out though nobody asks for their lanes. So the lanes of a
shard that was just taken are looked through for that, in the background and a few at a time; their
alarms do the rest. And a lane that left memory with an alarm comes back when it rings.
"""

from dataclasses import dataclass

from spillway.broker.dispatch import Dispatch
from spillway.broker.duty import Duty
from spillway.broker.facts import Facts
from spillway.broker.lanes import LaneEntry
from spillway.broker.shard import Shard
from spillway.core.errors import SpillwayError
from spillway.log import checkpoints
from spillway.log.database import Database

LANES_A_LOOK = 500
LANES_A_LOAD = 16
"""A request for one of these lanes waits for all of them."""


@dataclass(slots=True)
class Round:
    """How far a shard has been looked through, since which epoch."""

    epoch: int
    after: int = 0


class Awakening(Duty):
    """Reads the lanes of new shards on which the clock has something to do."""

    name = "awakening"

    def __init__(
        self, shards: list[Shard], facts: Facts, dispatch: Dispatch, database: Database
    ) -> None:
        super().__init__(interval_s=1.0)
        self._shards = shards
        self._facts = facts
        self._dispatch = dispatch
        self._database = database
        self._rounds: dict[int, Round] = {}
        self._rung: dict[int, set[int]] = {}
        """By shard: the lanes whose alarm rang while they were away."""

    def note(self, shard_id: int) -> None:
        """A shard was taken. What was handed out of it without a commit can be leased again."""
        self._rounds[shard_id] = Round(self._shards[shard_id].epoch)
        self._dispatch.look_again()
        self.nudge()

    def ring(self, shard_id: int, lane_id: int) -> None:
        """A lane that is not in memory has something to do now."""
        self._rung.setdefault(shard_id, set()).add(lane_id)
        self.nudge()

    async def run_once(self) -> int:
        """Returns how many lanes were woken."""
        woken = await self._answer()
        while self._rounds:
            shard_id, this = next(iter(self._rounds.items()))
            shard = self._shards[shard_id]
            lanes = await self._page(shard, this)
            if not lanes or not shard.owned or shard.epoch != this.epoch:
                if self._rounds.get(shard_id) is this:
                    del self._rounds[shard_id]
                continue
            woken += await self._wake(shard, [lane_id for lane_id, moved in lanes if moved])
            woken += await self._wake(shard, await self._saved_alive(lanes))
            this.after = lanes[-1][0]
            woken += await self._answer()
        return woken

    async def _answer(self) -> int:
        """Bring the lanes back whose alarm rang; those that cannot be read now are tried again."""
        answered = 0
        for shard_id, rung in list(self._rung.items()):
            shard = self._shards[shard_id]
            while rung and shard.owned:
                some = [rung.pop() for _ in range(min(len(rung), LANES_A_LOAD))]
                try:
                    entries = await self._load(shard, some)
                except SpillwayError:
                    rung.update(some)
                    raise
                for entry in entries:
                    # Swept whatever it was: who waits for what is due by now is to hear of it.
                    shard.postpone(entry, 0)
                answered += len(some)
            rung.clear()
        return answered

    # ---------------------------------------------------------------- lanes

    async def _page(self, shard: Shard, this: Round) -> list[tuple[int, bool]]:
        """The next lanes, each with whether it moved since its checkpoints."""
        rows = await self._database.rows(
            "lanes_of_shard", shard_id=shard.shard_id, after=this.after, limit=LANES_A_LOOK
        )
        return [(lane_id, moved) for lane_id, moved in rows]

    async def _saved_alive(self, lanes: list[tuple[int, bool]]) -> list[int]:
        """Of the lanes that did not move: those whose checkpoint holds leases or retries."""
        still = [lane_id for lane_id, moved in lanes if not moved]
        async with self._database.connection() as conn:
            loaded = await checkpoints.load(conn, still)
        alive = (
            key[0] for key, one in loaded.items() if one.state.leases or one.state.waiting.total
        )
        return sorted(set(alive))

    async def _wake(self, shard: Shard, lane_ids: list[int]) -> int:
        for at in range(0, len(lane_ids), LANES_A_LOAD):
            if not shard.owned:
                break
            await self._load(shard, lane_ids[at : at + LANES_A_LOAD])
        return len(lane_ids)

    async def _load(self, shard: Shard, lane_ids: list[int]) -> list[LaneEntry]:
        found = [await self._facts.lane_by_id(one) for one in lane_ids]
        return await shard.lanes([lane for lane in found if lane is not None])
