"""Takes the events of buffer files to the owner of the shards: this broker stands by."""

from collections.abc import Iterable, Iterator

from spillway.broker.docket import Docket
from spillway.broker.handover import Refused
from spillway.broker.owner import Owner
from spillway.core.errors import ReplayInterruptedError, RequestTooLargeError
from spillway.spool import event
from spillway.spool.event import Address, Event, Trouble
from spillway.spool.folder import BufferFile
from spillway.spool.spool import Spool
from spillway.wire import SpoolTaken

BYTES_MAX = 1024 * 1024
"""Lines in a request; a single one may be longer."""

Placed = tuple[int, Event]


class Courier:
    """Sends events to the owner, in their order, request by request."""

    def __init__(self, spool: Spool, owner: Owner, docket: Docket) -> None:
        self._spool = spool
        self._owner = owner
        self._docket = docket
        self._waiting: list[Placed] = []
        self._bytes_max = BYTES_MAX
        self.breadth = 1

    async def begin(self, _: BufferFile) -> None:
        """What comes now is of this file; the owner knows what earlier attempts did of it."""
        self._waiting = []

    async def add(self, events: Iterable[Placed]) -> None:
        """Gather them."""
        self._waiting += events

    async def send(self, file: BufferFile) -> None:
        """Request by request. What is left of one goes first in the next: no event of a lane is
        to come before one that waits.
        """
        waiting, self._waiting = self._waiting, []
        while waiting := list(self._free(waiting)):
            self._check()
            lines = self._portion(waiting)
            some = waiting[: len(lines)]
            try:
                taken = await self._owner.take(file.path.stem, lines)
            except RequestTooLargeError as error:
                if len(some) > 1:
                    self._bytes_max = sum(map(len, lines)) // 2
                    continue
                await self._refuse(file, [(some[0][0], error)], some)
                waiting = waiting[1:]
                continue
            self._spool.reached("after_answer_of_owner")
            waiting = await self._note(file, some, taken) + waiting[len(some) :]

    async def settle(self) -> None:
        """Nothing is ever under way: each request is waited for."""

    async def abandon(self) -> None:
        """What was gathered is read again."""
        self._waiting = []

    def drop(self) -> None:
        """Whatever the owner does now, it will tell the next time."""
        self._waiting = []

    # ------------------------------------------------------------ requests

    def _check(self) -> None:
        if not self._owner.is_another:
            raise ReplayInterruptedError("this broker stands by no more")
        if self._spool.hold is not None:
            raise ReplayInterruptedError(f"{self._spool.hold.actor} holds the spool")

    def _free(self, waiting: Iterable[Placed]) -> Iterator[Placed]:
        """Those that may go. Behind one of which only the owner knows the lane, its queue waits:
        what comes later may belong to the same lane.
        """
        for one in waiting:
            address = one[1].address
            if not self._docket.waits(address):
                yield one
            elif address.partition is None:
                self._docket.shut([address])

    def _portion(self, waiting: list[Placed]) -> list[bytes]:
        """Lines for a request, at least one."""
        lines: list[bytes] = []
        size = 0
        for _, one in waiting:
            lines += event.lines([one])
            size += len(lines[-1])
            if size > self._bytes_max and len(lines) > 1:
                return lines[:-1]
        return lines

    async def _note(self, file: BufferFile, some: list[Placed], taken: SpoolTaken) -> list[Placed]:
        """What became of those of a request; returns those that are left."""
        stored = set(taken.stored)
        for at in taken.stored:
            index, one = some[at]
            self._docket.finish(file, [index], one.address)
        for lane in taken.held:
            reason = Trouble(lane.code, lane.message, lane.hint)
            self._docket.hold(Address(lane.org, lane.queue, lane.partition), reason)
        errors = {
            one.at: Trouble(one.error.code, one.error.message, one.error.hint)
            for one in taken.refused
        }
        refused: list[Refused] = [(some[at][0], trouble) for at, trouble in errors.items()]
        await self._refuse(file, refused, [some[at] for at in errors])
        if not (stored or refused or taken.held):
            raise ReplayInterruptedError("the owner took nothing in time")
        return [one for at, one in enumerate(some) if at not in stored and at not in errors]

    async def _refuse(self, file: BufferFile, refused: list[Refused], some: list[Placed]) -> None:
        """Durably aside before anything behind them is sent."""
        if not await self._docket.refuse(file, refused):
            self._docket.shut(one.address for _, one in some)
