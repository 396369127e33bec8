"""The awakening: what a broker does about a shard that it has just taken.

Leases end, retries fall due and lives run out though nobody has asked for their lanes since. So the
lanes with something of that kind are read, in the background and a few at a time; their alarms do
the rest.
"""

from dataclasses import dataclass

from spillway.broker.dispatch import Dispatch
from spillway.broker.duty import Duty
from spillway.broker.facts import Facts, LaneFacts
from spillway.broker.shard import Shard
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

    def note(self, shard_id: int) -> None:
        """A shard was taken. What was handed out of it without a commit can be leased again."""
        self._rounds[shard_id] = Round(self._shards[shard_id].epoch)
        self._dispatch.look_again()
        self.nudge()

    async def run_once(self) -> int:
        """Returns how many lanes were woken."""
        woken = 0
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
        return woken

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
            found = [await self._lane(one) for one in lane_ids[at : at + LANES_A_LOAD]]
            if not shard.owned:
                break
            await shard.lanes([lane for lane in found if lane is not None])
        return len(lane_ids)

    async def _lane(self, lane_id: int) -> LaneFacts | None:
        return self._facts.cached_lane(lane_id) or await self._facts.lane_by_id(lane_id)
