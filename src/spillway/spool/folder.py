"""The spool's folder on disk: its lock, its files, what a crash left in it.

Everything here is plain blocking file work; `Spool` calls it in threads.
"""

import errno
import fcntl
import os
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path

import structlog

from spillway.core.errors import SpillwayError, SpoolFolderError
from spillway.spool import event, names
from spillway.spool.faultpoints import Reached, nobody

log = structlog.get_logger(__name__)

LOCK, HOLD, ACTIONS, FAILED = "spool.lock", "hold.json", "actions.jsonl", "failed"
FULL = (errno.ENOSPC, errno.EDQUOT)
WINDOW_BYTES = 1024 * 1024
BLANK = b" "
"""Stands where an event was that was taken out: the lines behind it keep their numbers."""


@dataclass(slots=True, eq=False)
class BufferFile:
    """A complete buffer file, as far as it is known."""

    path: Path
    events: int
    bytes: int
    oldest_ms: int
    is_counted: bool = False
    """Whether the gate knows what waits in it."""
    done: bytearray | None = None
    """One byte an event: whether it needs no replay any more; None: nothing is done."""
    left: int = field(init=False)
    stream: str = field(init=False)

    def __post_init__(self) -> None:
        self.left = self.events
        self.stream = names.stream_of(self.name) or ""

    @property
    def name(self) -> str:
        """Its name."""
        return self.path.name

    def is_done(self, index: int) -> bool:
        """Whether the event at this place needs no replay any more."""
        return self.done is not None and self.done[index] == 1

    def finish(self, index: int) -> bool:
        """The event at this place is in the log or set aside. False: it was so already."""
        return self.finish_all([index]) == 1

    def finish_all(self, indexes: Sequence[int]) -> int:
        """Events at these places, which ascend, are in the log or set aside; how many were not."""
        if not indexes:
            return 0
        if self.done is None:
            self.done = bytearray(self.events)
        start, end = indexes[0], indexes[-1] + 1
        if end - start == len(indexes):
            gone = self.done.count(0, start, end)
            self.done[start:end] = b"\x01" * len(indexes)
        else:
            fresh = [index for index in indexes if not self.done[index]]
            gone = len(fresh)
            for index in fresh:
                self.done[index] = 1
        self.left -= gone
        return gone


@dataclass(slots=True)
class Found:
    """What was in the folder at the start."""

    files: list[BufferFile] = field(default_factory=list)
    failed: int = 0
    foreign: list[str] = field(default_factory=list)


class Folder:
    """The folder, ours alone from `lock` to `release`."""

    def __init__(self, path: Path, reached: Reached = nobody) -> None:
        self.path = path
        self._reached = reached
        self.failed = path / FAILED
        self.names = names.Names()
        self._lock: int | None = None

    def lock(self) -> None:
        """Make it ours, or say why it cannot be."""
        try:
            self.failed.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._probe()
        except BlockingIOError as error:
            self.release()
            raise SpoolFolderError(
                f"another broker uses the spool folder {self.path}",
                hint="give each broker a FILE_BUFFER_DIR of its own",
            ) from error
        except OSError as error:
            self.release()
            raise SpoolFolderError(f"the spool folder {self.path}: {error}") from error

    def _probe(self) -> None:
        """Whether files can be made there. A full disk is no reason not to start: it gets emptier
        by what is replayed.
        """
        probe = self.path / f".probe-{os.getpid()}"
        try:
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            if error.errno not in FULL:
                raise

    def release(self) -> None:
        """Give it free."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def recover(self) -> Found:
        """Take in what a crash left: torn tails are cut off, the rest stays to be replayed."""
        found = Found()
        paths, found.foreign = entries(self.path)
        for path in paths:
            self.names.note(path.name)
            whole = _close(path, self._reached) if names.is_open(path.name) else path
            file = None if whole is None else describe(whole)
            if file is not None:
                found.files.append(file)
        for path in entries(self.failed)[0]:
            self.names.note(path.name)
            found.failed += count_events(path)
        sync_folder(self.path)
        if found.foreign:
            log.warning("spool_foreign_files", files=found.foreign[:10], count=len(found.foreign))
        return found


def entries(folder: Path) -> tuple[list[Path], list[str]]:
    """Buffer files in the order in which they were begun, and the names of what is not ours."""
    ours: list[Path] = []
    foreign: list[str] = []
    for path in folder.iterdir() if folder.is_dir() else ():
        if names.stream_of(path.name) is not None and path.is_file():
            ours.append(path)
        elif path.name not in {LOCK, HOLD, ACTIONS, FAILED}:
            foreign.append(path.name)
    return sorted(ours, key=lambda path: age(path.name)), sorted(foreign)


def age(name: str) -> tuple[str, str]:
    """Sorts files by when they were begun, whatever their stream."""
    stream, _, rest = name.partition("_")
    return rest, stream


def sync_folder(path: Path) -> None:
    """Fsync a folder: a file whose name is lost is lost."""
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _close(path: Path, reached: Reached) -> Path | None:
    """End a file that was open when its writer died; None: nothing whole was in it."""
    good, at = 0, 0
    with path.open("rb") as source:
        for text in source:
            at += len(text)
            if text.endswith(b"\n") and event.is_whole(text):
                good = at
    if not good:
        log.warning("spool_torn_file", file=path.name, bytes=at)
        path.unlink()
        return None
    if good < at:
        log.warning("spool_torn_tail", file=path.name, cut_bytes=at - good)
    with path.open("r+b") as out:
        out.truncate(good)
        os.fsync(out.fileno())
    reached("mid_recovery")
    return path.rename(path.with_name(path.name.removesuffix(names.OPEN) + names.COMPLETE))


def describe(path: Path) -> BufferFile | None:
    """What can be told of a complete file at a glance; None: it is empty, and gone now."""
    lines, blank = survey(path)
    if lines == len(blank):
        log.warning("spool_empty_file", file=path.name)
        path.unlink()
        return None
    file = BufferFile(path, lines, path.stat().st_size, oldest_ms(path))
    for index in blank:
        file.finish(index)
    return file


def survey(path: Path) -> tuple[int, list[int]]:
    """How many lines a file has, one that was torn off too, and the places of the blank ones."""
    blank: list[int] = []
    count = 0
    for text in _texts(path):
        if b" \n" in text or b"\n\n" in text or text.startswith(b"\n"):
            lines = _split(text)
            blank += [at for at, line in enumerate(lines, count) if is_blank(line)]
        count += text.count(b"\n") + (not text.endswith(b"\n"))
    return count, blank


def count_events(path: Path) -> int:
    """Lines of a file that hold something."""
    lines, blank = survey(path)
    return lines - len(blank)


def is_blank(line: bytes) -> bool:
    """Whether nothing stands in a line any more."""
    return not line.strip()


def oldest_ms(path: Path) -> int:
    """When the first event of a file was accepted."""
    with path.open("rb") as source:
        first = next((line for line in source if not is_blank(line)), b"")
    try:
        return int(event.read_unchecked(first).accepted_at.timestamp() * 1000)
    except SpillwayError:
        return int(path.stat().st_mtime * 1000)


def _read(path: Path, offset: int, size: int) -> tuple[bytes, int]:
    with path.open("rb") as source:
        source.seek(offset)
        text = source.read(size)
        if len(text) == size:
            text += source.readline()
    return text, offset + len(text)


def _split(text: bytes) -> list[bytes]:
    """At line feeds alone: a damaged line may hold any byte."""
    return text.removesuffix(b"\n").split(b"\n") if text else []


def read_window(path: Path, offset: int, size: int = WINDOW_BYTES) -> tuple[list[bytes], int]:
    """Whole lines from `offset` on, about `size` bytes, and where the next ones begin."""
    text, end = _read(path, offset, size)
    return _split(text), end


def _texts(path: Path) -> Iterator[bytes]:
    offset = 0
    while True:
        text, offset = _read(path, offset, WINDOW_BYTES)
        if not text:
            return
        yield text


def windows(path: Path) -> Iterator[list[bytes]]:
    """All lines of a file, a window at a time."""
    return map(_split, _texts(path))


def numbered(path: Path) -> Iterator[tuple[int, bytes]]:
    """Every line that holds something, with its number, which is that of an editor.

    In an open file a line without its end is not there yet, or was torn and will be cut off.
    """
    before = 0
    for text in _texts(path):
        whole = text[: text.rfind(b"\n") + 1] if names.is_open(path.name) else text
        lines = _split(whole)
        yield from ((n, line) for n, line in enumerate(lines, before + 1) if not is_blank(line))
        before += len(lines)


def erase(path: Path, places: Container[int]) -> None:
    """Take lines out, durably: blanks in their place, for which even a full disk has room.

    A crash in the middle leaves a line whose checksum does not hold, never half an event.
    """
    at = 0
    with path.open("r+b", buffering=0) as out, path.open("rb") as source:
        for place, line in enumerate(source):
            if place in places:
                out.seek(at)
                write_all(out.fileno(), BLANK * len(line.rstrip(b"\n")))
            at += len(line)
        os.fdatasync(out.fileno())


def remove(path: Path) -> None:
    """Take a file away, durably: after a crash it is not there again."""
    path.unlink()
    sync_folder(path.parent)


def write_all(number: int, text: bytes) -> None:
    """All of it; a write may take less than it was given."""
    rest = memoryview(text)
    while rest:
        rest = rest[os.write(number, rest) :]


def append(path: Path, text: bytes) -> None:
    """Whole lines at the end of a file, durably: all of them, or none."""
    is_new = not path.exists()
    with path.open("a+b", buffering=0) as out:
        size = out.seek(0, os.SEEK_END)
        # A line that a crash tore, or a person wrote without its end, must not take ours in.
        start = b"" if _ends_line(out, size) else b"\n"
        try:
            write_all(out.fileno(), start + text)
            os.fsync(out.fileno())
        except OSError:
            out.truncate(size)
            raise
    if is_new:
        sync_folder(path.parent)


def _ends_line(file: FileIO, size: int) -> bool:
    return not size or os.pread(file.fileno(), 1, size - 1) == b"\n"


def write_whole(path: Path, text: bytes) -> None:
    """A file with this content or, after a crash, the one that was there before."""
    fresh = path.with_name(f"{path.name}.new")
    with fresh.open("wb") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    fresh.replace(path)
    sync_folder(path.parent)
