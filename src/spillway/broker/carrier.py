"""Carries the events of one buffer file into the log, several commits side by side."""

import asyncio
from collections import deque
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import structlog

from spillway.broker.append import error_detail
from spillway.broker.facts import LaneFacts
from spillway.broker.handover import Bite, Handover, Spooled, bites, is_ours
from spillway.core.errors import (
    CommitRefusedError,
    DamagedLineError,
    QueueFullError,
    SpillwayError,
)
from spillway.spool import event, names
from spillway.spool import folder as disk
from spillway.spool.event import Address, Event, Failed, Trouble
from spillway.spool.folder import BufferFile
from spillway.spool.spool import Spool

log = structlog.get_logger(__name__)

UNDER_WAY_MAX = 8
"""Bites whose commits are not awaited yet."""
POLITE_BYTES = 64 * 1024


class ReplayInterruptedError(SpillwayError):
    """The replay begins again at the first event that is not in the log."""

    code = "replay_interrupted"
    status = 503
    transient = True


@dataclass(frozen=True, slots=True)
class Held:
    """A lane that cannot go on now."""

    lane: LaneFacts
    reason: Trouble


@dataclass(slots=True)
class Window:
    """Lines of a file, read together, by what is to become of them."""

    found: list[tuple[int, Event]] = field(default_factory=list)
    damaged: list[tuple[int, Address | None, Failed]] = field(default_factory=list)
    aside: list[tuple[int, Address | None]] = field(default_factory=list)
    """A crash came between their way into `failed/` and the end of the file."""


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
        self._under_way: deque[Bite] = deque()
        self.held: dict[int, Held] = {}
        self.carried = 0

    async def carry(self, file: BufferFile) -> None:
        """All of a file that can go; what is left belongs to lanes that are held."""
        offset, at = 0, 0
        aside = await asyncio.to_thread(self._spool.quarantine.marks, file.name)
        try:
            while True:
                size = POLITE_BYTES if self._is_live() else disk.WINDOW_BYTES
                texts, offset = await asyncio.to_thread(disk.read_window, file.path, offset, size)
                if not texts:
                    break
                await self._window(file, _read(file, texts, at, aside))
                at += len(texts)
            while self._under_way:
                await self._reap(file)
        except asyncio.CancelledError:
            self._under_way.clear()  # the broker stops, and so do the commits
            raise
        except BaseException:
            await self._abandon(file)
            raise

    async def _window(self, file: BufferFile, window: Window) -> None:
        self._spool.finish(file, window.aside)
        await self.set_aside(file, window.damaged)
        by_lane = await self._handover.sort(window.found)
        await self.set_aside(file, [_failed(s, error_trouble(e)) for s, e in by_lane.refused])
        source = names.source_of(file.name)
        for lane, spooled in by_lane.lanes.values():
            if lane.lane_id not in self.held:
                await self._lane(file, lane, spooled, source)

    async def _lane(
        self, file: BufferFile, lane: LaneFacts, spooled: list[Spooled], source: str
    ) -> None:
        self._check(lane)
        wanted, stored = await self._handover.split(lane, spooled, source)
        self._finish(file, stored)
        suspect = lane.lane_id in self._suspects
        for some in bites(wanted, 1 if suspect else self._spool.config.max_batch):
            polite = suspect or self._is_live()
            while len(self._under_way) >= (1 if polite else UNDER_WAY_MAX):
                await self._reap(file)
            if lane.lane_id in self.held:
                return
            await self._bite(file, lane, some, source, polite=polite, apart=suspect)
        self._suspects.discard(lane.lane_id)

    async def _bite(
        self,
        file: BufferFile,
        lane: LaneFacts,
        some: list[Spooled],
        source: str,
        *,
        polite: bool,
        apart: bool,
    ) -> None:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        some = await self._without_conflicts(file, lane, some)
        if not some:
            return
        bite = await self._handover.bite(lane, some, source, lambda: self._check(lane), apart=apart)
        self._under_way.append(bite)
        self._spool.reached("mid_batch")
        full = next((r for r in bite.results if r and r.error and _is_full(r.error.code)), None)
        if full is not None and full.error is not None:
            error = full.error
            self.held[lane.lane_id] = Held(lane, Trouble(error.code, error.message, error.hint))
        if polite:
            await self._reap(file)
            share = self._pause_share if self._is_live() else 0
            await asyncio.sleep((loop.time() - started_s) * share)
        else:
            await asyncio.sleep(0)

    async def _without_conflicts(
        self, file: BufferFile, lane: LaneFacts, some: list[Spooled]
    ) -> list[Spooled]:
        """Set those aside first: the commit of the others says that all before them is done."""
        refused = await self._handover.conflicts(lane, some)
        if not refused:
            return some
        await self.set_aside(file, [_failed(s, error_trouble(e)) for s, e in refused])
        gone = {spooled.index for spooled, _ in refused}
        return [spooled for spooled in some if spooled.index not in gone]

    def _check(self, lane: LaneFacts) -> None:
        """What follows a commit that failed must not overtake it."""
        if any(bite.is_interrupted for bite in self._under_way):
            raise ReplayInterruptedError("a commit under way failed")
        self._handover.check_owned(lane)

    async def _reap(self, file: BufferFile) -> None:
        """Wait for the oldest commit."""
        bite = self._under_way.popleft()
        try:
            await bite.ticket
        except SpillwayError as error:
            self._handover.forget_mark(bite.lane)
            if not _is_refusal(error):
                raise
            await self._blame(file, bite, error)
            return
        self._spool.reached("after_commit_before_delete")
        await self._landed(file, bite)

    async def _landed(self, file: BufferFile, bite: Bite) -> None:
        if not any(bite.results):
            self._finish(file, bite.events)
            return
        stored: list[Spooled] = []
        refused: list[tuple[Spooled, Trouble]] = []
        for spooled, result in zip(bite.events, bite.results, strict=True):
            error = None if result is None else result.error
            if error is None:
                stored.append(spooled)
            elif not _is_full(error.code):
                refused.append((spooled, Trouble(error.code, error.message, error.hint)))
        self._finish(file, stored)
        await self.set_aside(file, [_failed(s, trouble) for s, trouble in refused])

    async def _blame(self, file: BufferFile, bite: Bite, error: SpillwayError) -> None:
        """PostgreSQL refuses something in it for good: find out which event it is."""
        if not bite.apart or error.transient:
            self._suspects.add(bite.lane.lane_id)
            raise ReplayInterruptedError(f"one event of a commit: {error.message}")
        await self.set_aside(file, [_failed(bite.events[0], error_trouble(error))])

    async def _abandon(self, file: BufferFile) -> None:
        """Whatever landed is done; the rest is looked at again."""
        while self._under_way:
            bite = self._under_way.popleft()
            try:
                await bite.ticket
            except SpillwayError as error:
                self._handover.forget_mark(bite.lane)
                if _is_refusal(error):
                    self._suspects.add(bite.lane.lane_id)
            else:
                await self._landed(file, bite)

    def _finish(self, file: BufferFile, stored: Iterable[Spooled]) -> None:
        self.carried += self._spool.finish(file, [(s.index, s.address) for s in stored])

    async def set_aside(
        self, file: BufferFile, records: list[tuple[int, Address | None, Failed]]
    ) -> None:
        """Quarantine events of a file, each with its reason; durable before they are done."""
        if not records:
            return
        failed = [record for _, _, record in records]
        await asyncio.to_thread(self._spool.quarantine.add, file.name, failed)
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


def _is_refusal(error: SpillwayError) -> bool:
    """Whether PostgreSQL took offence at something in the commit."""
    return isinstance(error, CommitRefusedError) or not is_ours(error)


def _is_full(code: str) -> bool:
    return code == QueueFullError.code


def error_trouble(error: SpillwayError) -> Trouble:
    """An error as it stands in `failed/`."""
    detail = error_detail(error)
    return Trouble(detail.code, detail.message, detail.hint)


def _failed(spooled: Spooled, trouble: Trouble) -> tuple[int, Address | None, Failed]:
    record = event.failed(spooled.event, trouble, datetime.now(UTC))
    return spooled.index, spooled.address, record


def _read(file: BufferFile, texts: list[bytes], at: int, aside: Container[int | bytes]) -> Window:
    """What stands in a window and is not done; `aside` marks what is in `failed/` already."""
    window = Window()
    for index, text in enumerate(texts, at):
        if file.is_done(index):
            continue
        try:
            one = event.read(text)
        except DamagedLineError as error:
            address = event.address_of(text)
            if text in aside:
                window.aside.append((index, address))
                continue
            record = event.DamagedLine(text, error_trouble(error), datetime.now(UTC))
            window.damaged.append((index, address, record))
        else:
            if one.seq in aside:
                window.aside.append((index, one.address))
            else:
                window.found.append((index, one))
    return window
