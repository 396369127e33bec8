"""Carries the events of buffer files into the log, several commits side by side."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Container, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime

import structlog

from spillway.broker.append import error_detail
from spillway.broker.facts import LaneFacts
from spillway.broker.handover import Bite, Handover, Refused, Sorted, is_ours
from spillway.broker.runs import Appetite, Run, portion
from spillway.broker.underway import UnderWay
from spillway.core.errors import (
    CommitRefusedError,
    DamagedLineError,
    QueueFullError,
    SpillwayError,
    SpoolFolderError,
    SpoolFullError,
)
from spillway.spool import event
from spillway.spool import folder as disk
from spillway.spool.event import Address, Event, Failed, Trouble
from spillway.spool.folder import BufferFile
from spillway.spool.quarantine import Mark
from spillway.spool.spool import Spool

log = structlog.get_logger(__name__)

POLITE = Appetite(events=300, bytes=64 * 1024, runs=16)
RUNS_MAX = 64
"""Lanes that get something in one turn of the loop, though nobody pushes."""
BYTES_MAX = 1024 * 1024
BREADTH = 16
"""Lanes for each of which another window is read at once, so that each gets more than a line."""
WINDOWS_MAX = 8
PAUSE_S = 0.001
"""The least that the loop can pause: what is shorter it takes for nothing."""


class ReplayInterruptedError(SpillwayError):
    """The replay begins again at the first event that is not in the log."""

    code = "replay_interrupted"
    status = 503
    transient = True


class _UnreadableError(Exception):
    """The disk does not give us a file."""


@dataclass(frozen=True, slots=True)
class Held:
    """A lane that cannot go on now."""

    lane: LaneFacts
    reason: Trouble


@dataclass(slots=True)
class Window:
    """Lines of a file that were read together and are no events for the log."""

    end: int
    """The place of the next line."""
    damaged: list[tuple[int, Address | None, Failed]] = field(default_factory=list)
    aside: list[tuple[int, Address | None]] = field(default_factory=list)
    """A crash came between their way into `failed/` and the end of the file."""


@dataclass(slots=True)
class _Source:
    """A file on its way, and what earlier attempts did of it."""

    file: BufferFile
    marks: dict[int, int]
    """How far it has come, by lane."""
    aside: set[Mark]

    @property
    def name(self) -> str:
        """Under which the log knows it: by itself, so that no other file speaks for it."""
        return self.file.path.stem


class Carrier:
    """Window by window: read, sort by lane, append, wait for the commits, mark as done."""

    def __init__(
        self, spool: Spool, handover: Handover, is_live: Callable[[], bool], pause_share: float
    ) -> None:
        self._spool = spool
        self._handover = handover
        self._is_live = is_live
        self._pause_share = pause_share
        self._suspects: set[int] = set()
        self._under_way = UnderWay()
        self._breadth = 1
        """How many lanes the last window had."""
        self.held: dict[int, Held] = {}
        self.troubles: dict[BufferFile, Trouble] = {}
        """The files of which something cannot go on now, whatever the lanes say."""
        self._shut: set[tuple[str, str]] = set()
        """Queues one of whose events should be set aside and cannot: the mark of a later one would
        say that it is done.
        """
        self.carried = 0

    def holds(self, file: BufferFile) -> bool:
        """Whether what is left of a file has a reason to be left."""
        return bool(self.held or self._shut) or file in self.troubles

    def look_again(self) -> None:
        """What could not go on perhaps can."""
        self.held.clear()
        self.troubles.clear()
        self._shut.clear()

    async def carry(self, files: Iterable[BufferFile]) -> None:
        """All of some files that can go, one behind the other, in one stream of commits."""
        try:
            for file in files:
                await self._file(file)
            while self._under_way:
                await self._reap()
        except asyncio.CancelledError:
            self._under_way = UnderWay()  # the broker stops, and so do the commits
            raise
        except BaseException:
            await self._abandon()
            raise

    async def _file(self, file: BufferFile) -> None:
        if not file.left:
            return
        try:
            aside = await _marks_aside(self._spool, file)
            source = _Source(file, await self._handover.marks(file.path.stem), aside)
            at = 0
            async with aclosing(_windows(file, self._window_bytes)) as windows:
                async for text in windows:
                    at = await self._window(source, text, at)
        except _UnreadableError as error:
            self._unreadable(file, error)

    def _window_bytes(self) -> int:
        return disk.WINDOW_BYTES * min(WINDOWS_MAX, max(1, self._breadth // BREADTH))

    def _unreadable(self, file: BufferFile, error: _UnreadableError) -> None:
        if isinstance(error.__cause__, FileNotFoundError):
            log.critical("spool_file_gone", file=file.name, events=file.left)
            self._spool.lose(file)
            return
        message = f"{file.left} events wait in a file that cannot be read: {error}"
        self.troubles[file] = Trouble(SpoolFolderError.code, message, "mend the disk of the spool")
        log.critical("spool_file_unreadable", file=file.name, events=file.left, error=str(error))

    async def _window(self, source: _Source, text: bytes, at: int) -> int:
        """Lines that begin at this place; returns the place of the next ones."""
        file, window, found = source.file, Window(at), Sorted()
        for part in disk.parts(text):
            started_s = time.monotonic()
            events = _read(file, part, source.aside, window)
            await self._handover.sort(events, found, self._spool.config.max_batch)
            await self._pause(started_s)
        self._spool.finish(file, window.aside)
        await self.set_aside(file, window.damaged)
        await self.refuse(file, found.refused)
        lanes = [runs for runs in found.lanes.values() if runs and not self._waits(runs[0].lane)]
        self._breadth = len(lanes)
        await self._handover.prepare(runs[0].lane for runs in lanes)
        news = [await self._news(source, runs) for runs in lanes]
        await self._append(source, [run for runs in news for run in runs])
        return window.end

    def _waits(self, lane: LaneFacts) -> bool:
        return lane.lane_id in self.held or (lane.queue.org, lane.queue.name) in self._shut

    async def _news(self, source: _Source, runs: list[Run]) -> list[Run]:
        """What the log does not have of the runs of a lane; the rest is done."""
        self._check()
        mark = source.marks.get(runs[0].lane.lane_id, 0)
        wanted, stored = await self._handover.split(runs, mark)
        for run in stored:
            self._finish(source.file, run)
        return wanted

    async def _append(self, source: _Source, runs: list[Run]) -> None:
        """Some lanes at a time, each in its order; a lane under suspicion event by event."""
        suspected = [run for run in runs if run.lane.lane_id in self._suspects]
        plain = (run for run in runs if run.lane.lane_id not in self._suspects)
        waiting = deque(sorted(plain, key=lambda run: run.lane.shard_id))
        hunger = Appetite(self._spool.config.max_batch, BYTES_MAX, RUNS_MAX)
        while waiting:
            polite = self._is_live()
            some = portion(waiting, POLITE if polite else hunger)
            await self._bites(source, some, polite=polite, apart=False)
        for run in suspected:
            for one in run.apart():
                await self._bites(source, [one], polite=True, apart=True)
        self._suspects.difference_update(run.lane.lane_id for run in suspected)

    async def _bites(self, source: _Source, runs: list[Run], *, polite: bool, apart: bool) -> None:
        """One bite but for what the log will not have: that is set aside before the rest goes."""
        while self._under_way and (polite or self._under_way.is_full):
            await self._reap()
        while runs := [run for run in runs if run.indexes and not self._waits(run.lane)]:
            started_s = time.monotonic()
            bite, refused = await self._handover.bite(runs, source.name, self._check, apart=apart)
            if bite is None:
                gone = {index for index, _ in refused}
                if not await self.refuse(source.file, refused):
                    self._shut.update(
                        (run.lane.queue.org, run.lane.queue.name)
                        for run in runs
                        if not gone.isdisjoint(run.indexes)
                    )
                runs = [run.without(gone) for run in runs]
                continue
            runs = runs[len(bite.runs) :]
            self._note(source.file, bite)
            if polite:
                await self._reap()
            await self._pause(started_s)

    async def _pause(self, started_s: float) -> None:
        """The turn of those who push, if anybody does."""
        took_s = time.monotonic() - started_s
        await asyncio.sleep(max(PAUSE_S, took_s * self._pause_share) if self._is_live() else 0)

    def _note(self, file: BufferFile, bite: Bite) -> None:
        """It is under way; a lane that had no room for all of it waits."""
        self._under_way.add(file, bite)
        self._spool.reached("mid_batch")
        full = {index: error for index, error in bite.errors.items() if _is_full(error.code)}
        for run in bite.runs if full else ():
            error = next((full[index] for index in run.indexes if index in full), None)
            if error is not None:
                trouble = Trouble(error.code, error.message, error.hint)
                self.held[run.lane.lane_id] = Held(run.lane, trouble)

    def _check(self) -> None:
        """What follows a commit that failed must not overtake it."""
        if self._under_way.is_interrupted:
            raise ReplayInterruptedError("a commit under way failed")
        if self._spool.hold is not None:
            raise ReplayInterruptedError(f"{self._spool.hold.actor} holds the spool")

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
        await self.refuse(file, [(bite.runs[0].indexes[0], error)])

    async def _abandon(self) -> None:
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

    def _finish(self, file: BufferFile, run: Run) -> None:
        for address, indexes in run.by_address():
            self.carried += self._spool.finish_all(file, indexes, address)

    async def refuse(self, file: BufferFile, refused: list[Refused]) -> bool:
        """Set aside what the log will not have; False: it stays for now."""
        if not refused:
            return True
        errors = dict(refused)
        try:
            texts = await asyncio.to_thread(disk.pick, file.path, errors.keys())
        except OSError as error:
            raise ReplayInterruptedError(f"{file.name} cannot be read again: {error}") from error
        at = datetime.now(UTC)
        return await self.set_aside(
            file, [_failed(index, text, errors[index], at) for index, text in texts.items()]
        )

    async def set_aside(
        self, file: BufferFile, records: list[tuple[int, Address | None, Failed]]
    ) -> bool:
        """Quarantine events of a file, each with its reason; durable before they are done.

        False: the disk does not take them. They stay where they are, and so do their queues.
        """
        if not records:
            return True
        failed = [record for _, _, record in records]
        try:
            await asyncio.to_thread(self._spool.quarantine.add, file.name, failed)
        except OSError as error:
            self._shut.update((home.org, home.queue) for _, home, _ in records if home is not None)
            self._no_room(file, len(records), error)
            return False
        self._spool.reached("mid_quarantine")
        for _, _, record in records[:10]:
            log.warning(
                "spool_event_failed",
                file=file.name,
                code=record.error.code,
                error=record.error.message,
            )
        done = [(index, address) for index, address, _ in records]
        self._spool.quarantined += self._spool.finish(file, done)
        return True

    def _no_room(self, file: BufferFile, count: int, error: OSError) -> None:
        message = f"failed/ takes nothing, and {count} events belong there: {error}"
        self.troubles[file] = Trouble(SpoolFullError.code, message, "make room on that disk")
        log.critical("spool_quarantine_full", file=file.name, events=count, error=str(error))


def _is_refusal(error: SpillwayError) -> bool:
    """Whether PostgreSQL took offence at something in the commit."""
    return isinstance(error, CommitRefusedError) or not is_ours(error)


def _is_full(code: str) -> bool:
    return code == QueueFullError.code


def error_trouble(error: SpillwayError) -> Trouble:
    """An error as it stands in `failed/`."""
    detail = error_detail(error)
    return Trouble(detail.code, detail.message, detail.hint)


# ---------------------------------------------------------------- reading


async def _marks_aside(spool: Spool, file: BufferFile) -> set[Mark]:
    try:
        return await asyncio.to_thread(spool.quarantine.marks, file.name)
    except OSError as error:
        raise _UnreadableError(str(error)) from OSError(str(error))


async def _windows(file: BufferFile, size: Callable[[], int]) -> AsyncGenerator[bytes]:
    """The lines of a file, some at a time.

    Not read ahead: a thread beside the loop cost it more, in turns of the interpreter's lock, than
    the wait for a read that is in the page cache.
    """
    offset = 0
    while True:
        try:
            text = await asyncio.to_thread(disk.read_window, file.path, offset, size())
        except OSError as error:
            raise _UnreadableError(str(error)) from error
        if not text:
            return
        yield text
        offset += len(text)


def _read(
    file: BufferFile, part: bytes, aside: Container[Mark], window: Window
) -> Iterator[tuple[int, Event]]:
    """The events of a part of a window that are not done; what else stands there is noted.

    `aside` marks what is in `failed/` already.
    """
    done = file.done
    index = window.end - 1
    for index, line in enumerate(disk.split(part), window.end):
        if done is not None and done[index]:
            continue
        try:
            one = event.read(line)
        except DamagedLineError as error:
            address = event.address_of(line)
            if line in aside:
                window.aside.append((index, address))
            else:
                record = event.DamagedLine(line, error_trouble(error), datetime.now(UTC))
                window.damaged.append((index, address, record))
            continue
        if one.seq in aside:
            window.aside.append((index, one.address))
        else:
            yield index, one
    window.end = index + 1


def _failed(
    index: int, text: bytes, error: SpillwayError, at: datetime
) -> tuple[int, Address | None, Failed]:
    """A line that the log will not have, as it stands in `failed/`."""
    try:
        one = event.read(text)
    except DamagedLineError as damage:  # since it was read first
        return index, None, event.DamagedLine(text, error_trouble(damage), at)
    return index, one.address, event.failed(one, error_trouble(error), at)
