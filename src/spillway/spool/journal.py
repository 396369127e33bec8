"""The writing side of a stream: lines become durable together, then whoever waits is told."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from spillway.core.errors import SpoolFullError
from spillway.spool import folder as disk
from spillway.spool import names
from spillway.spool.faultpoints import Reached
from spillway.spool.folder import BufferFile, Folder

log = structlog.get_logger(__name__)

FILE_BYTES_MAX = 64 * 1024 * 1024


class _OpenFile:
    """The file that is being written."""

    def __init__(self, folder: Folder, stream: str) -> None:
        self.path = folder.path / folder.names.next(stream)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self.number = os.open(self.path, flags, 0o600)
        self.events = 0
        self.bytes = 0
        self._is_cut = True
        """False: behind its bytes may stand what was refused."""

    def write(self, lines: list[bytes]) -> None:
        """Append; not durable yet."""
        disk.write_all(self.number, b"".join(lines))
        self.events += len(lines)
        self.bytes += sum(map(len, lines))

    def cut(self, events: int, size: int) -> None:
        """Go back to what it was, durably."""
        self.events, self.bytes, self._is_cut = events, size, False
        os.ftruncate(self.number, size)
        os.lseek(self.number, size, os.SEEK_SET)
        os.fdatasync(self.number)
        self._is_cut = True

    def put_back(self) -> None:
        """If somebody took it away, or put another in its place: we still hold it, and what is in
        it was promised.
        """
        with suppress(FileNotFoundError):
            if os.path.samestat(self.path.stat(), os.fstat(self.number)):
                return
        disk.write_whole(self.path, os.pread(self.number, self.bytes, 0))
        number = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        os.lseek(number, 0, os.SEEK_END)
        os.close(self.number)
        self.number = number
        log.critical("spool_file_put_back", file=self.path.name, events=self.events)

    def drop(self) -> None:
        """It was never there."""
        os.close(self.number)
        disk.remove(self.path)

    def complete(self) -> BufferFile:
        """Its last name says that nothing more comes, and that all of it was accepted."""
        if not self._is_cut:
            self.cut(self.events, self.bytes)
        self.put_back()
        oldest_ms = disk.oldest_ms(self.path)
        name = self.path.name.removesuffix(names.OPEN) + names.COMPLETE
        path = self.path.rename(self.path.with_name(name))
        os.close(self.number)
        return BufferFile(path, self.events, self.bytes, oldest_ms)


class FileWriter:
    """Writes the files of a stream, in one thread: all lines of a call become durable, or none."""

    def __init__(self, folder: Folder, stream: str, events_per_file: int, reached: Reached) -> None:
        self._folder = folder
        self._stream = stream
        self._events_per_file = events_per_file
        self._reached = reached
        self._file: _OpenFile | None = None
        self._ended: list[_OpenFile] = []
        """Nothing more comes to them, but their names do not say so yet."""
        self._why = ""

    def write(self, lines: list[bytes]) -> list[BufferFile]:
        """Returns the files that are full now."""
        open_file = self._file
        before = (0, 0) if open_file is None else (open_file.events, open_file.bytes)
        files: list[_OpenFile] = [] if open_file is None else [open_file]
        self._reached("before_write")
        try:
            if open_file is not None:
                open_file.put_back()
            self._spread(files, lines)
            self._reached("before_fsync")
            self._sync(files, is_new=len(files) > 1 or open_file is None)
        except OSError as error:
            self._undo(files, before)
            raise SpoolFullError(
                f"the spool cannot write to {self._folder.path}: {error}"
            ) from error
        self._reached("after_fsync_before_reply")
        self._file = files.pop()
        self._ended += files
        return self.complete() if self._is_full(self._file) else self._rename()

    def _spread(self, files: list[_OpenFile], lines: list[bytes]) -> None:
        at = 0
        while at < len(lines):
            if not files or self._is_full(files[-1]):
                files.append(_OpenFile(self._folder, self._stream))
            room = self._events_per_file - files[-1].events
            part = lines[at : at + room]
            files[-1].write(part)
            at += len(part)

    def _sync(self, files: list[_OpenFile], *, is_new: bool) -> None:
        for file in files:
            os.fdatasync(file.number)
        if is_new:
            self._reached("before_directory_fsync")
            disk.sync_folder(self._folder.path)

    def _undo(self, files: list[_OpenFile], before: tuple[int, int]) -> None:
        """Nobody was told yes, so nothing of it may stay."""
        kept = self._file
        for file in files:
            try:
                if file is kept:
                    file.cut(*before)
                else:
                    file.drop()
            except OSError as error:
                log.critical("spool_undo_failed", file=str(file.path), error=str(error))
                if file is kept:
                    # The next line must not be glued to a torn one: this file ends here.
                    self._ended.append(file)
                    self._file = None

    def _is_full(self, file: _OpenFile) -> bool:
        return file.events >= self._events_per_file or file.bytes >= FILE_BYTES_MAX

    def complete(self) -> list[BufferFile]:
        """End the open file, if there is one; returns the files that are complete now."""
        if self._file is not None:
            self._ended.append(self._file)
            self._file = None
        return self._rename()

    def _rename(self) -> list[BufferFile]:
        """What they hold was accepted: a file that keeps its name for now is tried again."""
        complete: list[BufferFile] = []
        try:
            while self._ended:
                complete.append(self._ended[0].complete())
                del self._ended[0]
                self._reached("after_rename")
            self._why = ""
        except OSError as error:
            if str(error) != self._why:  # told once, however often it is tried again
                log.warning("spool_rename_failed", file=str(self._ended[0].path), error=str(error))
            self._why = str(error)
        return complete


@dataclass(slots=True)
class _Batch:
    """What becomes durable together."""

    lines: list[bytes] = field(default_factory=list)
    waiters: list[asyncio.Future[None]] = field(default_factory=list)


class Journal:
    """Group commit: while one batch is being fsynced, the next one gathers."""

    def __init__(self, writer: FileWriter, on_complete: Callable[[list[BufferFile]], None]) -> None:
        self._writer = writer
        self._on_complete = on_complete
        self._gathering = _Batch()
        self._thread = ThreadPoolExecutor(1, "spool-writer")
        self._task: asyncio.Task[None] | None = None

    def write(self, lines: list[bytes]) -> asyncio.Future[None]:
        """Done once the lines are durable; SpoolFullError: none of them is."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not lines:
            waiter.set_result(None)
            return waiter
        self._gathering.lines.extend(lines)
        self._gathering.waiters.append(waiter)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._drain(), name="spool-journal")
        return waiter

    async def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        while self._gathering.lines:
            await asyncio.sleep(0)  # what arrived in the same turn goes with it
            batch, self._gathering = self._gathering, _Batch()
            try:
                full = await loop.run_in_executor(self._thread, self._writer.write, batch.lines)
            except Exception as error:  # noqa: BLE001 (whoever waits is told, whatever it is)
                _tell(batch, error)
                continue
            self._on_complete(full)
            _tell(batch, None)
        self._task = None

    async def rotate(self) -> None:
        """End the open file, so that it can be replayed."""
        loop = asyncio.get_running_loop()
        self._on_complete(await loop.run_in_executor(self._thread, self._writer.complete))

    async def close(self) -> None:
        """Write what is pending and end the open file."""
        while self._task is not None:
            await asyncio.wait({self._task})
        await self.rotate()
        self._thread.shutdown()


def _tell(batch: _Batch, error: Exception | None) -> None:
    for waiter in batch.waiters:
        if waiter.done():
            continue
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)
            waiter.exception()
