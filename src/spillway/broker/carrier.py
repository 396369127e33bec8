"""Carries the events of buffer files to whoever takes them, several commits side by side."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Container, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from spillway.broker.docket import Aside, Docket
from spillway.broker.handover import error_trouble
from spillway.core.errors import DamagedLineError
from spillway.spool import event
from spillway.spool import folder as disk
from spillway.spool.event import Address, Event
from spillway.spool.folder import BufferFile
from spillway.spool.quarantine import Mark
from spillway.spool.spool import Spool

BREADTH = 16
"""Lanes for each of which another window is read at once, so that each gets more than a line."""
WINDOWS_MAX = 8


class _UnreadableError(Exception):
    """The disk does not give us a file."""


@dataclass(slots=True)
class Window:
    """Lines of a file that were read together and are no events for the log."""

    end: int
    """The place of the next line."""
    damaged: list[Aside] = field(default_factory=list)
    aside: list[tuple[int, Address | None]] = field(default_factory=list)
    """A crash came between their way into `failed/` and the end of the file."""


class Taker(Protocol):
    """Where events go: into the log, or to the broker that writes it. What becomes of them it notes
    in the docket.
    """

    breadth: int
    """How many lanes the last window had."""

    async def begin(self, file: BufferFile) -> None:
        """What comes now is of this file."""

    async def add(self, events: Iterable[tuple[int, Event]]) -> None:
        """Take a look at events, which are sent together with others; each with its place."""

    async def send(self, file: BufferFile) -> None:
        """Let those go that were added and may go; their outcome may come later."""

    async def settle(self) -> None:
        """Wait until the outcome of all of them is noted."""

    async def abandon(self) -> None:
        """Something failed: note the outcome of those that were sent, and forget the others."""

    def drop(self) -> None:
        """The broker stops."""


class Carrier:
    """Window by window: read, set aside what is damaged, hand over, mark as done."""

    def __init__(
        self, spool: Spool, docket: Docket, pause: Callable[[float], Awaitable[None]]
    ) -> None:
        """`pause` gives others their turn, after work that began at that moment."""
        self._spool = spool
        self._docket = docket
        self._pause = pause

    async def carry(self, files: Iterable[BufferFile], taker: Taker) -> None:
        """All of some files that can go, one behind the other, in one stream."""
        try:
            for file in files:
                await self._file(file, taker)
            await taker.settle()
        except asyncio.CancelledError:
            taker.drop()
            raise
        except BaseException:
            await taker.abandon()
            raise

    async def _file(self, file: BufferFile, taker: Taker) -> None:
        if not file.left:
            return
        try:
            aside = await _marks_aside(self._spool, file)
            await taker.begin(file)
            at = 0
            async with aclosing(_windows(file, lambda: _window_bytes(taker))) as windows:
                async for text in windows:
                    at = await self._window(file, taker, aside, text, at)
        except _UnreadableError as error:
            self._docket.unreadable(file, error)

    async def _window(
        self, file: BufferFile, taker: Taker, aside: set[Mark], text: bytes, at: int
    ) -> int:
        """Lines that begin at this place; returns the place of the next ones."""
        window = Window(at)
        for part in disk.parts(text):
            started_s = time.monotonic()
            await taker.add(_read(file, part, aside, window))
            await self._pause(started_s)
        self._spool.finish(file, window.aside)
        await self._docket.set_aside(file, window.damaged)
        await taker.send(file)
        return window.end


# ---------------------------------------------------------------- reading


def _window_bytes(taker: Taker) -> int:
    return disk.WINDOW_BYTES * min(WINDOWS_MAX, max(1, taker.breadth // BREADTH))


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
