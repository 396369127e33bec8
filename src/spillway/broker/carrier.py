"""Carries the events of buffer files into the log, several commits side by side."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Container, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

import structlog

from spillway.broker.append import error_detail
from spillway.broker.facts import LaneFacts
from spillway.broker.handover import Bite, Handover, Refused, Run, is_ours
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

UNDER_WAY_MAX = 8_000
"""Events whose commits are not awaited yet."""
POLITE_BYTES = 64 * 1024


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
        self._under_way: deque[tuple[BufferFile, Bite]] = deque()
        self._events_under_way = 0
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
            self._under_way.clear()  # the broker stops, and so do the commits
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
        return POLITE_BYTES if self._is_live() else disk.WINDOW_BYTES

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
        file, window = source.file, Window(at)
        events = _read(file, text, source.aside, window)
        by_lane = await self._handover.sort(events, self._spool.config.max_batch)
        self._spool.finish(file, window.aside)
        await self.set_aside(file, window.damaged)
        await self.refuse(file, by_lane.refused)
        waiting = [
            runs for runs in by_lane.lanes.values() if runs and not self._waits(runs[0].lane)
        ]
        await self._handover.prepare(runs[0].lane for runs in waiting)
        for runs in waiting:
            await self._lane(source, runs)
        return window.end

    def _waits(self, lane: LaneFacts) -> bool:
        return lane.lane_id in self.held or (lane.queue.org, lane.queue.name) in self._shut

    async def _lane(self, source: _Source, runs: list[Run]) -> None:
        lane = runs[0].lane
        self._check(lane)
        wanted, stored = await self._handover.split(runs, source.marks.get(lane.lane_id, 0))
        for run in stored:
            self._finish(source.file, run.indexes, run.address)
        suspect = lane.lane_id in self._suspects
        if suspect:
            wanted = [one for run in wanted for one in run.apart()]
        for run in wanted:
            polite = suspect or self._is_live()
            while self._under_way and (polite or self._events_under_way >= UNDER_WAY_MAX):
                await self._reap()
            if self._waits(lane):
                return
            await self._bite(source, run, polite=polite, apart=suspect)
        self._suspects.discard(lane.lane_id)

    async def _bite(self, source: _Source, run: Run, *, polite: bool, apart: bool) -> None:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        bite = await self._appended(source, run, apart=apart)
        if bite is None:
            return
        self._under_way.append((source.file, bite))
        self._events_under_way += len(bite.run.indexes)
        self._spool.reached("mid_batch")
        errors = (result.error for result in bite.results.values())
        full = next((error for error in errors if error and _is_full(error.code)), None)
        if full is not None:
            trouble = Trouble(full.code, full.message, full.hint)
            self.held[run.lane.lane_id] = Held(run.lane, trouble)
        if polite:
            await self._reap()
            share = self._pause_share if self._is_live() else 0
            await asyncio.sleep((loop.time() - started_s) * share)
        else:
            await asyncio.sleep(0)

    async def _appended(self, source: _Source, run: Run, *, apart: bool) -> Bite | None:
        """Those that the log will have; the others are set aside before."""
        check = partial(self._check, run.lane)
        while run.indexes:
            bite, refused = await self._handover.bite(run, source.name, check, apart=apart)
            if bite is not None:
                return bite
            if not await self.refuse(source.file, refused):
                return None
            run = run.without({index for index, _ in refused})
        return None

    def _check(self, lane: LaneFacts) -> None:
        """What follows a commit that failed must not overtake it."""
        if any(bite.is_interrupted for _, bite in self._under_way):
            raise ReplayInterruptedError("a commit under way failed")
        if self._spool.hold is not None:
            raise ReplayInterruptedError(f"{self._spool.hold.actor} holds the spool")
        self._handover.check_owned(lane)

    def _next_under_way(self) -> tuple[BufferFile, Bite]:
        file, bite = self._under_way.popleft()
        self._events_under_way -= len(bite.run.indexes)
        return file, bite

    async def _reap(self) -> None:
        """Wait for the oldest commit."""
        file, bite = self._next_under_way()
        try:
            await bite.ticket
        except SpillwayError as error:
            if not _is_refusal(error):
                raise
            await self._blame(file, bite, error)
            return
        self._spool.reached("after_commit_before_delete")
        self._finish(file, bite.stored, bite.run.address)

    async def _blame(self, file: BufferFile, bite: Bite, error: SpillwayError) -> None:
        """PostgreSQL refuses something in it for good: find out which event it is."""
        if not bite.apart or error.transient:
            self._suspects.add(bite.run.lane.lane_id)
            raise ReplayInterruptedError(f"one event of a commit: {error.message}")
        await self.refuse(file, [(bite.run.indexes[0], error)])

    async def _abandon(self) -> None:
        """Whatever landed is done; the rest is looked at again."""
        while self._under_way:
            file, bite = self._next_under_way()
            try:
                await bite.ticket
            except SpillwayError as error:
                if _is_refusal(error):
                    self._suspects.add(bite.run.lane.lane_id)
            else:
                self._finish(file, bite.stored, bite.run.address)

    def _finish(self, file: BufferFile, indexes: list[int], address: Address) -> None:
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
    file: BufferFile, text: bytes, aside: Container[Mark], window: Window
) -> Iterator[tuple[int, Event]]:
    """The events of a window that are not done; what else stands there is noted in it.

    `aside` marks what is in `failed/` already.
    """
    done = file.done
    index = window.end - 1
    for index, line in enumerate(disk.lines(text), window.end):
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
