"""Takes the events of buffer files into the log: this broker owns the shards."""

import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable

from spillway.broker.docket import Docket, is_full
from spillway.broker.facts import LaneFacts
from spillway.broker.handover import Bite, Handover, Sorted, is_ours
from spillway.broker.runs import Appetite, Run, portion
from spillway.broker.underway import UnderWay
from spillway.core.errors import CommitRefusedError, ReplayInterruptedError, SpillwayError
from spillway.spool.event import Event, Trouble
from spillway.spool.folder import BufferFile
from spillway.spool.spool import Spool

POLITE = Appetite(events=300, bytes=64 * 1024, runs=16)
RUNS_MAX = 64
"""Lanes that get something in one turn of the loop, though nobody pushes."""
BYTES_MAX = 1024 * 1024


class Appender:
    """Sorts events by lane, appends them, waits for the commits."""

    def __init__(
        self,
        spool: Spool,
        handover: Handover,
        docket: Docket,
        is_live: Callable[[], bool],
        pause: Callable[[float], Awaitable[None]],
    ) -> None:
        self._spool = spool
        self._handover = handover
        self._docket = docket
        self._is_live = is_live
        self._pause = pause
        self._marks: dict[int, int] = {}
        """How far earlier attempts have come with the file, by lane."""
        self._tenure: Callable[[], None] = lambda: None
        self._found = Sorted()
        self._suspects: set[int] = set()
        self._under_way = UnderWay()
        self.breadth = 1

    async def begin(self, file: BufferFile) -> None:
        """What comes now is of this file. The log knows it by its own name, so that no other file
        speaks for it.
        """
        self._found = Sorted()
        self._tenure = self._handover.tenure()
        self._marks = await self._handover.marks(file.path.stem)

    async def add(self, events: Iterable[tuple[int, Event]]) -> None:
        """Find their lanes."""
        await self._handover.sort(events, self._found, self._spool.config.max_batch)

    async def send(self, file: BufferFile) -> None:
        """Append what the log does not have, once what it will not have is set aside."""
        found, self._found = self._found, Sorted()
        await self._docket.refuse(file, found.refused)
        lanes = [runs for runs in found.lanes.values() if runs and not self._waits(runs[0].lane)]
        self.breadth = len(lanes)
        await self._handover.prepare(runs[0].lane for runs in lanes)
        news = [await self._news(file, runs) for runs in lanes]
        await self._append(file, [run for runs in news for run in runs])

    async def settle(self) -> None:
        """Wait for all commits under way."""
        while self._under_way:
            await self._reap()

    async def abandon(self) -> None:
        """Whatever landed is done; the rest is looked at again."""
        while self._under_way:
            file, bite = self._under_way.take()
            try:
                await bite.ticket
            except SpillwayError as error:
                if _is_refusal(error):
                    self._suspects.update(run.lane.lane_id for run in bite.runs)
            else:
                self._landed(file, bite)

    def drop(self) -> None:
        """The broker stops, and so do the commits."""
        self._under_way = UnderWay()

    # ------------------------------------------------------------ appending

    def _waits(self, lane: LaneFacts) -> bool:
        return self._docket.waits(lane.address)

    async def _news(self, file: BufferFile, runs: list[Run]) -> list[Run]:
        """What the log does not have of the runs of a lane; the rest is done."""
        self._check()
        mark = self._marks.get(runs[0].lane.lane_id, 0)
        wanted, stored = await self._handover.split(runs, mark)
        for run in stored:
            self._finish(file, run)
        return wanted

    def _finish(self, file: BufferFile, run: Run) -> None:
        for address, indexes in run.by_address():
            self._docket.finish(file, indexes, address)

    async def _append(self, file: BufferFile, runs: list[Run]) -> None:
        """Some lanes at a time, each in its order; a lane under suspicion event by event."""
        suspected = [run for run in runs if run.lane.lane_id in self._suspects]
        plain = (run for run in runs if run.lane.lane_id not in self._suspects)
        waiting = deque(sorted(plain, key=lambda run: run.lane.shard_id))
        hunger = Appetite(self._spool.config.max_batch, BYTES_MAX, RUNS_MAX)
        while waiting:
            polite = self._is_live()
            some = portion(waiting, POLITE if polite else hunger)
            await self._bites(file, some, polite=polite, apart=False)
        for run in suspected:
            for one in run.apart():
                await self._bites(file, [one], polite=True, apart=True)
        self._suspects.difference_update(run.lane.lane_id for run in suspected)

    async def _bites(self, file: BufferFile, runs: list[Run], *, polite: bool, apart: bool) -> None:
        """One bite but for what the log will not have: that is set aside before the rest goes."""
        while self._under_way and (polite or self._under_way.is_full):
            await self._reap()
        while runs := [run for run in runs if run.indexes and not self._waits(run.lane)]:
            started_s = time.monotonic()
            bite, refused = await self._handover.bite(
                runs, file.path.stem, self._check, apart=apart
            )
            if bite is None:
                gone = {index for index, _ in refused}
                if not await self._docket.refuse(file, refused):
                    self._docket.shut(
                        run.lane.address for run in runs if not gone.isdisjoint(run.indexes)
                    )
                runs = [run.without(gone) for run in runs]
                continue
            runs = runs[len(bite.runs) :]
            self._note(file, bite)
            if polite:
                await self._reap()
            await self._pause(started_s)

    def _note(self, file: BufferFile, bite: Bite) -> None:
        """It is under way; a lane that had no room for all of it waits."""
        self._under_way.add(file, bite)
        self._spool.reached("mid_batch")
        full = {index: error for index, error in bite.errors.items() if is_full(error.code)}
        for run in bite.runs if full else ():
            error = next((full[index] for index in run.indexes if index in full), None)
            if error is not None:
                trouble = Trouble(error.code, error.message, error.hint)
                self._docket.hold(run.lane.address, trouble)

    def _check(self) -> None:
        """What follows a commit that failed must not overtake it."""
        if self._under_way.is_interrupted:
            raise ReplayInterruptedError("a commit under way failed")
        self._tenure()
        if self._spool.hold is not None:
            raise ReplayInterruptedError(f"{self._spool.hold.actor} holds the spool")

    # ------------------------------------------------------------ commits under way

    async def _reap(self) -> None:
        """Wait for the oldest commit."""
        file, bite = self._under_way.take()
        try:
            await bite.ticket
        except SpillwayError as error:
            if not _is_refusal(error):
                raise
            await self._blame(file, bite, error)
            return
        self._spool.reached("after_commit_before_delete")
        self._landed(file, bite)

    def _landed(self, file: BufferFile, bite: Bite) -> None:
        """All but those for which there was no room."""
        errors = bite.errors
        for run in bite.runs:
            self._finish(file, run.without(errors) if errors else run)

    async def _blame(self, file: BufferFile, bite: Bite, error: SpillwayError) -> None:
        """PostgreSQL refuses something in it for good: find out which event it is."""
        if not bite.apart or error.transient:
            self._suspects.update(run.lane.lane_id for run in bite.runs)
            raise ReplayInterruptedError(f"one event of a commit: {error.message}")
        await self._docket.refuse(file, [(bite.runs[0].indexes[0], error)])


def _is_refusal(error: SpillwayError) -> bool:
    """Whether PostgreSQL took offence at something in the commit."""
    return isinstance(error, CommitRefusedError) or not is_ours(error)
