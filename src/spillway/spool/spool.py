"""The spool: what was accepted while PostgreSQL could not take it, and what is known about it."""

import asyncio
import shutil
import time
from bisect import insort
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import structlog

from spillway.core.errors import SpoolFileNotFoundError, SpoolFullError
from spillway.spool import event, names
from spillway.spool import folder as disk
from spillway.spool.behind import Behind
from spillway.spool.event import Address, Event
from spillway.spool.faultpoints import Reached, nobody
from spillway.spool.folder import BufferFile, Folder, Found
from spillway.spool.gate import Gate
from spillway.spool.journal import FileWriter, Journal
from spillway.spool.quarantine import Mark, Quarantine, mark_of

log = structlog.get_logger(__name__)

DISK_PATIENCE_S = 1.0
SMALL_BYTES = 64 * 1024
"""A spool that has no room for so little is full; one that has none for a huge push is not."""
HELD_FULL = (
    "`spillway spool release` ends the hold, and what waits is replayed; nothing of it was accepted"
)

Parts = list[tuple[Address, list[Event]]]
"""Events by whose order they belong to."""


@dataclass(frozen=True, slots=True)
class SpoolConfig:
    """What a spool is told at its start."""

    folder: Path
    flush_ms: int = 100
    max_batch: int = 1000
    events_per_file: int = 10_000
    retry_interval_s: float = 5.0
    startup_recovery_timeout_s: float = 3600.0
    bytes_max: int = 10 * 1024**3
    age_max_s: float = 7 * 86_400.0


class Hold(msgspec.Struct):
    """Somebody routes pushes to files on purpose."""

    actor: str
    reason: str | None
    since: str


@dataclass(slots=True)
class _Open:
    """What the files that are being written hold."""

    events: int = 0
    oldest_ms: int = 0


class Spool:
    """One broker's spool."""

    def __init__(
        self,
        config: SpoolConfig,
        now_ms: Callable[[], int],
        reached: Reached = nobody,
    ) -> None:
        self.config = config
        self.folder = Folder(config.folder, reached)
        self.quarantine = Quarantine(self.folder.failed)
        self.gate = Gate()
        self.files: list[BufferFile] = []
        self.by_queue: Counter[tuple[str, str]] = Counter()
        self.pending = 0
        self.bytes = 0
        self.quarantined = 0
        self.foreign: list[str] = []
        self.gone: list[str] = []
        """Files that are no more, and whose marks the log may forget."""
        self.accepted = 0
        self.refused = 0
        self.hold: Hold | None = None
        self.opened_s = float("-inf")
        self.working = asyncio.Lock()
        """Held by whoever replays or changes files."""
        self.reached = reached
        self._now_ms = now_ms
        self._seq = 0
        self._too_large_bytes = 1
        """What there was no room for when it was last asked for, if that was small."""
        self._found = Found()
        """What is still to be counted."""
        self._open = {stream: _Open() for stream in (names.FAILOVER, names.QOS0)}
        self._journal = self._new_journal(names.FAILOVER)
        self._qos0_journal = self._new_journal(names.QOS0)
        self._behind = Behind(self._qos0_journal.write, config.flush_ms, config.max_batch)
        self._door: asyncio.Event | None = None

    def _new_journal(self, stream: str) -> Journal:
        writer = FileWriter(self.folder, stream, self.config.events_per_file, self.reached)
        return Journal(writer, partial(self._completed, self._open[stream]))

    # ------------------------------------------------------------ life

    async def open(self) -> None:
        """Make the folder ours and see what is there; raises SpoolFolderError."""
        await asyncio.to_thread(self.folder.lock)
        self._found = found = await asyncio.to_thread(self.folder.recover)
        # Something is in each of them: nobody is to think that the spool is empty.
        self.pending, self.quarantined = len(found.files), len(found.failed)
        self.bytes, self.foreign = found.bytes, found.foreign
        self.gate.is_known = not found
        self._seq = int(self._now_ms()) * 1000
        self.hold = await asyncio.to_thread(_read_hold, self.config.folder / disk.HOLD)
        self.opened_s = time.monotonic()
        if found:
            log.info("spool_found", files=len(found.files), bytes=self.bytes)

    async def index(self) -> None:
        """Count what earlier runs left, and whose order it is; until then all lanes are held back
        and nobody may change a file. A spool of gigabytes takes its time, and pushes do not wait.
        """
        found = self._found
        while found.files:
            file, waiting = await asyncio.to_thread(_counted, found.files[0])
            del found.files[0]
            insort(self.files, file, key=lambda one: disk.age(one.name))
            self.pending += file.left - 1
            for address, count in waiting.items():
                self._count(file.stream, address, count)
        if found.failed:
            self.quarantined = await asyncio.to_thread(_count_all, found.failed)
            found.failed.clear()
        if not self.gate.is_known:
            self.gate.is_known = True
            log.info("spool_counted", events=self.pending, failed=self.quarantined)

    async def close(self) -> None:
        """Write what is pending, end the open files, give the folder free; twice is fine."""
        if self.opened_s > float("-inf"):
            self.opened_s = float("-inf")
            await self._behind.close()
            await self._journal.close()
            await self._qos0_journal.close()
            for file in self.files:
                if 0 < file.left < file.kept:  # or the next start would count what is done
                    await self._shorten(file)
        self.folder.release()

    # ------------------------------------------------------------ pushes

    async def append(self, parts: Parts) -> None:
        """Returns once all of it is durable; SpoolFullError: nothing was accepted."""
        lines, size = self._lines(parts)
        self._take_in(names.FAILOVER, parts, size, 1)
        waiter = self._journal.write(lines)
        waiter.add_done_callback(partial(self._written, parts, size))
        # Whoever stops waiting changes nothing: the lines are written all the same.
        await asyncio.shield(waiter)

    def _written(self, parts: Parts, size: int, waiter: asyncio.Future[None]) -> None:
        total = sum(len(part) for _, part in parts)
        if waiter.exception() is None:
            self.accepted += total
        else:
            self._take_in(names.FAILOVER, parts, -size, -1)
            self.refused += total

    def accept(self, parts: Parts) -> None:
        """Take pushes of qos 0; they are written a moment later, and hold nobody back."""
        lines, size = self._lines(parts)
        try:
            self._behind.accept(lines)
        except SpoolFullError:
            self.refused += len(lines)
            raise
        self._take_in(names.QOS0, parts, size, 1)
        self.accepted += len(lines)

    def _lines(self, parts: Parts) -> tuple[list[bytes], int]:
        seq = self._seq
        for _, part in parts:
            for one in part:
                seq += 1
                one.seq = seq
        lines = event.lines([one for _, part in parts for one in part])
        size = sum(map(len, lines))
        try:
            self._check_room(size)
        except SpoolFullError:
            self.refused += len(lines)
            raise
        self._seq = seq
        return lines, size

    def _check_room(self, size: int) -> None:
        config, hint = self.config, None if self.hold is None else HELD_FULL
        if self.bytes + size > config.bytes_max:
            self._too_large_bytes = min(size, SMALL_BYTES)
            raise SpoolFullError(
                f"the spool holds {self.bytes} bytes, {size} more would pass {config.bytes_max}",
                hint=hint,
            )
        if self.oldest_s > config.age_max_s:
            raise SpoolFullError(
                f"the oldest event waits for {self.oldest_s:.0f} s, the limit is "
                f"{config.age_max_s:.0f} s",
                hint=hint,
            )
        self._too_large_bytes = 1

    @property
    def is_full(self) -> bool:
        """Whether it takes no push, by its bytes or by its age."""
        config = self.config
        no_room = self.bytes + self._too_large_bytes > config.bytes_max
        return no_room or self.oldest_s > config.age_max_s

    def _take_in(self, stream: str, parts: Parts, size: int, sign: int) -> None:
        opened = self._open[stream]
        total = 0
        for address, part in parts:
            total += len(part)
            self._count(stream, address, sign * len(part))
        if not opened.events:
            opened.oldest_ms = self._now_ms()
        opened.events += sign * total
        self.pending += sign * total
        self.bytes += size

    def _count(self, stream: str, address: Address, count: int) -> None:
        if stream == names.FAILOVER:  # whoever pushes with qos 0 asks for no place in the order
            self.gate.add(address, count)
        self.by_queue[address.org, address.queue] += count

    def _completed(self, opened: _Open, files: list[BufferFile]) -> None:
        for file in files:
            insort(self.files, file, key=lambda one: disk.age(one.name))
            opened.events -= file.events
            opened.oldest_ms = self._now_ms()
            log.info("spool_buffered", events=file.events, file=file.name)

    # ------------------------------------------------------------ replay

    async def rotate(self) -> None:
        """End the open files: only complete ones are replayed."""
        if self._open[names.FAILOVER].events:
            await self._journal.rotate()
        if self._open[names.QOS0].events:
            await self._qos0_journal.rotate()

    def finish(self, file: BufferFile, done: Iterable[tuple[int, Address | None]]) -> int:
        """These events of a file are in the log or set aside; how many were not so before."""
        return sum(self.finish_all(file, [index], address) for index, address in done)

    def finish_all(self, file: BufferFile, indexes: Sequence[int], address: Address | None) -> int:
        """As `finish`, for events of one address, in their order."""
        gone = file.finish_all(indexes)
        if gone and address is not None:
            self._count(file.stream, address, -gone)
        self.pending -= gone
        return gone

    async def pass_over(self, file: BufferFile) -> None:
        """What is left of a file stays for now; the rest goes as soon as it is half of it."""
        if file.left * 2 <= file.kept:
            await self._shorten(file)
        else:
            file.oldest_ms = await asyncio.to_thread(disk.oldest_ms, file.path, file.is_done)

    async def _shorten(self, file: BufferFile) -> None:
        left = file.left
        try:
            size, oldest_ms = await asyncio.to_thread(self.folder.shorten, file)
        except OSError as error:
            # It takes its room and is counted whole at the next start, but nothing is lost.
            log.warning("spool_file_stays_long", file=file.name, error=str(error))
        else:
            self.bytes += size - file.bytes
            file.bytes, file.oldest_ms, file.kept = size, oldest_ms, left

    async def remove(self, file: BufferFile) -> None:
        """A file all of whose events are done."""
        await asyncio.to_thread(file.path.unlink, missing_ok=True)
        self.reached("after_delete")
        self._forget(file)

    def lose(self, file: BufferFile) -> None:
        """Somebody took it away. Whose order it held nobody knows until the spool is empty."""
        self.pending -= file.left
        file.left = 0
        self._forget(file)

    def _forget(self, file: BufferFile) -> None:
        self.files.remove(file)
        self.gone.append(file.path.stem)
        self.bytes -= file.bytes
        if not self.pending:
            # A line that was damaged while it waited was counted and never counted back.
            self.gate.clear()
            self.by_queue.clear()

    async def sync(self) -> None:
        """Make it last that files are gone: a power cut must not bring them back."""
        await asyncio.to_thread(disk.sync_folder, self.config.folder)

    def close_door(self) -> None:
        """Little is left: who comes to a lane with a backlog now waits instead of adding to it."""
        if self._door is None:
            self._door = asyncio.Event()

    def open_door(self) -> None:
        """Let those who wait look again."""
        if self._door is not None:
            self._door.set()
            self._door = None

    async def at_door(self, timeout_s: float) -> bool:
        """Wait while the last of the backlog goes; False: it is not about to, do not wait."""
        if self._door is None:
            return False
        try:
            async with asyncio.timeout(timeout_s):
                await self._door.wait()
        except TimeoutError:
            return False
        return True

    # ------------------------------------------------------------ facts

    @property
    def oldest_ms(self) -> int | None:
        """Since when the oldest event has been waiting."""
        since = [opened.oldest_ms for opened in self._open.values() if opened.events]
        since += [self.files[0].oldest_ms] if self.files else []
        return min(since, default=None)

    @property
    def oldest_s(self) -> float:
        """How long the oldest event has been waiting."""
        since_ms = self.oldest_ms
        return 0.0 if since_ms is None else max(0.0, (self._now_ms() - since_ms) / 1000)

    @property
    def unwritten(self) -> int:
        """Events of qos 0 that are not durable yet."""
        return self._behind.pending

    @property
    def lost(self) -> int:
        """Events of qos 0 that could not be written in time."""
        return self._behind.lost

    @property
    def file_count(self) -> int:
        """How many files hold events, those that are being written too."""
        complete = len(self.files) + len(self._found.files)
        return complete + sum(opened.events > 0 for opened in self._open.values())

    async def disk_free(self) -> int:
        """Bytes left on the disk of the folder; a disk that does not answer has none."""
        try:
            async with asyncio.timeout(DISK_PATIENCE_S):
                return (await asyncio.to_thread(shutil.disk_usage, self.config.folder)).free
        except OSError:
            return 0

    def file(self, name: str) -> BufferFile:
        """A complete file by its name."""
        found = next((file for file in self.files if file.name == name), None)
        if found is None:
            raise SpoolFileNotFoundError(f"the spool has no complete file {name!r}")
        return found

    # ------------------------------------------------------------ maintenance

    async def begin_hold(self, hold: Hold) -> None:
        """Pushes go to files, nothing is replayed, until `end_hold`; a restart changes nothing."""
        path = self.config.folder / disk.HOLD
        await asyncio.to_thread(disk.write_whole, path, msgspec.json.encode(hold) + b"\n")
        self.hold = hold

    async def end_hold(self) -> None:
        """Replay, and let pushes through again."""
        await asyncio.to_thread(disk.remove, self.config.folder / disk.HOLD)
        self.hold = None

    async def discard(self, file: BufferFile) -> int:
        """Throw away what still waits in a file; the caller holds `working`."""
        waiting = await asyncio.to_thread(_waiting_in, file)
        await asyncio.to_thread(disk.remove, file.path)
        gone, file.left = file.left, 0
        for address, count in waiting.items():
            self._count(file.stream, address, -count)
        self.pending -= gone
        self._forget(file)
        return gone

    async def discard_line(self, file: BufferFile, line: int, text: bytes) -> None:
        """Throw away one event that waits, and what stands there; the caller holds `working`."""
        await asyncio.to_thread(disk.erase, file.path, {line - 1})
        self.finish(file, [(line - 1, event.address_of(text))])
        if not file.left:
            await self.remove(file)

    async def forget_origin(self, name: str, marks: Container[Mark]) -> None:
        """Records leave `failed/`: a replay that a crash makes begin anew must not find them in
        the file they came from, if it is still there; the caller holds `working`.
        """
        for file in self.files:
            if file.name == name:
                places = await asyncio.to_thread(_set_aside_in, file, marks)
                await asyncio.to_thread(disk.erase, file.path, places)


def _set_aside_in(file: BufferFile, marks: Container[Mark]) -> set[int]:
    """The places of events that are done with and have one of these marks."""
    lines = ((n - 1, text) for n, text in disk.numbered(file.path) if file.is_done(n - 1))
    return {place for place, text in lines if mark_of(text) in marks}


def _counted(path: Path) -> tuple[BufferFile, Counter[Address]]:
    file = disk.describe(path)
    return file, _waiting_in(file)


def _count_all(paths: list[Path]) -> int:
    return sum(disk.count_events(path) for path in paths)


def _waiting_in(file: BufferFile) -> Counter[Address]:
    """Whose order the events belong to that still wait in a file."""
    texts = (text for line, text in disk.numbered(file.path) if not file.is_done(line - 1))
    return Counter(address for address in map(event.address_of, texts) if address is not None)


def _read_hold(path: Path) -> Hold | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Hold)
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        # It was there: what it said is lost, what it meant is not.
        return Hold("unknown", "hold.json cannot be read", "")
