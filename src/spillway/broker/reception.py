"""The reception: the owner of the shards takes in what other brokers have in their spools.

While PostgreSQL is away every broker takes pushes into files of its own. Those that stand by when
it is back hand them over here. A request may come twice, for its answer may have been lost: the
marks that its commits left, as for files of our own, say what is done already.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from hmac import compare_digest
from weakref import WeakValueDictionary

from spillway.broker.docket import is_full
from spillway.broker.handover import Handover, Outcomes, Sorted, as_trouble
from spillway.broker.runs import Run
from spillway.core.errors import (
    BadRequestError,
    DamagedLineError,
    NotOwnerError,
    SpillwayError,
    SpoolHeldError,
)
from spillway.spool import event, names
from spillway.spool import folder as disk
from spillway.spool.event import Event, Trouble
from spillway.spool.spool import Spool
from spillway.wire import ErrorDetail, SpoolLane, SpoolRefusal, SpoolTaken

TOGETHER = 500
"""Events that are looked at in one turn of the loop."""
TAKE_S = 10.0
"""How long a request may take; what is not in the log by then is left, and comes again."""


@dataclass(slots=True)
class _Guest:
    """A request: whose events, and what has become of them."""

    source: str | None
    """The file that they come from; None: they were set aside, and each stands for itself."""
    marks: dict[int, int]
    check: Callable[[], None]
    outcomes: Outcomes
    held: list[SpoolLane]


class Reception:
    """Takes events of other brokers into the log."""

    def __init__(self, spool: Spool, handover: Handover, secret: str) -> None:
        self._spool = spool
        self._handover = handover
        self._secret = secret.encode()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def admits(self, secret: bytes) -> bool:
        """Whether somebody knows what only brokers of this database can know."""
        return compare_digest(secret, self._secret)

    async def take(self, source: str, body: bytes, *, aside: bool) -> SpoolTaken:
        """Store events of a file, the lines of it. `aside`: they were set aside, and have lost
        their place in the order.

        Nothing behind an event that is refused is stored, in its lane: what is neither stored nor
        refused is to come again once that one is set aside.
        """
        if names.stream_of(source + names.COMPLETE) is None:
            raise BadRequestError(f"{source!r} is no name of a buffer file")
        # An earlier attempt, whose answer was lost, comes to its end first.
        turn = self._turns.setdefault(source, asyncio.Lock())
        async with turn:
            return await self._take(source, _read(body), aside=aside)

    async def _take(self, source: str, events: list[Event], *, aside: bool) -> SpoolTaken:
        if not self._handover.is_owner:
            raise NotOwnerError("this broker does not own the shards")
        if self._spool.hold is not None:
            raise SpoolHeldError(f"{self._spool.hold.actor} holds the spool of the owner")
        check = self._handover.tenure()
        found = await self._sort(events)
        outcomes: Outcomes = {index: as_trouble(error) for index, error in found.refused}
        guest = _Guest(None if aside else source, {}, check, outcomes, [])
        if aside or not outcomes:
            await self._give(source, guest, [runs for runs in found.lanes.values() if runs])
        return _told(guest)

    async def _sort(self, events: list[Event]) -> Sorted:
        found, places = Sorted(), list(enumerate(events))
        for at in range(0, len(places), TOGETHER):
            some = places[at : at + TOGETHER]
            await self._handover.sort(some, found, self._spool.config.max_batch)
            await asyncio.sleep(0)
        return found

    async def _give(self, source: str, guest: _Guest, lanes: list[list[Run]]) -> None:
        await self._handover.prepare(runs[0].lane for runs in lanes)
        # What an earlier attempt decided is in the log then, or never will be.
        await self._handover.settle()
        if guest.source is not None:
            guest.marks = await self._handover.marks(source)
        gifts = asyncio.gather(*(self._lane(runs, guest) for runs in lanes), return_exceptions=True)
        try:
            async with asyncio.timeout(TAKE_S):
                errors = [error for error in await gifts if error is not None]
        except TimeoutError:
            return
        for error in errors:
            # A lane that broke off is left; where that is all there is to tell, it is told.
            if not isinstance(error, SpillwayError) or not guest.outcomes:
                raise error

    async def _lane(self, runs: list[Run], guest: _Guest) -> None:
        """The events of a lane, in their order, up to the first that cannot be stored."""
        outcomes = guest.outcomes
        mark = guest.marks.get(runs[0].lane.lane_id, 0)
        wanted, stored = await self._handover.split(runs, mark)
        outcomes |= dict.fromkeys(index for run in stored for index in run.indexes)
        for run in wanted:
            found = await self._handover.give(run, guest.source, guest.check)
            if guest.source is not None:
                found = _without_room(found, run, guest.held)
            outcomes |= found
            is_whole = len(found) == len(run.indexes) and not any(found.values())
            if guest.source is not None and not is_whole:
                return


def _without_room(found: Outcomes, run: Run, held: list[SpoolLane]) -> Outcomes:
    """The outcomes without those for which the lane had no room: they are left, and it is told."""
    full = {at: one for at, one in found.items() if one is not None and is_full(one.code)}
    if full:
        home, why = run.lane.address, next(iter(full.values()))
        lane = SpoolLane(home.org, home.queue, run.lane.partition, why.code, why.message, why.hint)
        held.append(lane)
    return {at: one for at, one in found.items() if at not in full}


def _read(body: bytes) -> list[Event]:
    try:
        return [event.read(line) for line in disk.split(body)]
    except DamagedLineError as error:
        raise BadRequestError(
            f"a line was damaged on its way: {error.message}", hint="send the lines again"
        ) from error


def _told(guest: _Guest) -> SpoolTaken:
    outcomes = guest.outcomes
    return SpoolTaken(
        stored=[at for at, trouble in outcomes.items() if trouble is None],
        refused=[
            SpoolRefusal(at, _detail(trouble))
            for at, trouble in outcomes.items()
            if trouble is not None
        ],
        held=guest.held,
    )


def _detail(trouble: Trouble) -> ErrorDetail:
    return ErrorDetail(code=trouble.code, message=trouble.message, hint=trouble.hint)
