"""The spool's folder on disk: its lock, its files, what a crash left in it.

Everything here is plain blocking file work; `Spool` calls it in threads.
"""

import errno
import fcntl
import os
import threading
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from dataclasses import dataclass, field
from io import FileIO
from itertools import islice
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO

import structlog

from spillway.core.errors import SpillwayError, SpoolFolderError
from spillway.spool import event, names
from spillway.spool.faultpoints import Reached, nobody

log = structlog.get_logger(__name__)

LOCK, HOLD, ACTIONS, FAILED = "spool.lock", "hold.json", "actions.jsonl", "failed"
KEYS = "keys.json"
FRESH, PROBE = ".new", ".probe-"
"""Files that are there for a moment, unless a crash comes."""
FULL = (errno.ENOSPC, errno.EDQUOT)
OURS_ALONE = 0o600
"""What a file may be made with: it holds what producers pushed."""
WINDOW_BYTES = 1024 * 1024
SPLIT_BYTES = 64 * 1024
"""Lines are split off so much at a time: the next ones find the processor's cache warm, and whoever
pushes meanwhile has a turn.
"""
BLANK = b" "
"""Stands where an event was that was taken out: the lines behind it keep their numbers."""


@dataclass(slots=True, eq=False)
class BufferFile:
    """A complete buffer file, as far as it is known."""

    path: Path
    events: int
    bytes: int
    oldest_ms: int
    done: bytearray | None = None
    """One byte an event: whether it needs no replay any more; None: nothing is done."""
    left: int = field(init=False)
    kept: int = field(init=False)
    """Events that still stand in it, done or not."""
    stream: str = field(init=False)

    def __post_init__(self) -> None:
        self.left = self.kept = self.events
        self.stream = names.stream_of(self.name) or ""

    @property
    def name(self) -> str:
        """Its name."""
        return self.path.name

    def is_done(self, index: int) -> bool:
        """Whether the event at this place needs no replay any more."""
        return self.done is not None and self.done[index] == 1

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
    """What was in the folder at the start; nobody has looked into it yet."""

    files: list[Path] = field(default_factory=list)
    failed: list[Path] = field(default_factory=list)
    bytes: int = 0
    """Of those that wait."""
    foreign: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.files or self.failed)


class Folder:
    """The folder, ours alone from `lock` to `release`."""

    def __init__(self, path: Path, reached: Reached = nobody) -> None:
        self.path = path
        self._reached = reached
        self.failed = path / FAILED
        self.names = names.Names()
        self._lock: int | None = None
        self._shortening = threading.Lock()
        """A thread goes on when nobody waits for it any more, and the next one waits for it."""

    def lock(self) -> None:
        """Make it ours, or say why it cannot be."""
        try:
            make(self.failed)
            self._lock = os.open(
                self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OURS_ALONE
            )
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
        probe = self.path / f"{PROBE}{os.getpid()}"
        try:
            probe.touch(OURS_ALONE)
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
        clear_up(self.path)
        clear_up(self.failed)
        paths, found.foreign = entries(self.path)
        for path in paths:
            self.names.note(path.name)
            whole = _close(path, self._reached) if names.is_open(path.name) else path
            if whole is not None:
                found.files.append(whole)
                found.bytes += whole.stat().st_size
        found.failed, _ = entries(self.failed)
        for path in found.failed:
            self.names.note(path.name)
        sync_folder(self.path)
        if found.foreign:
            log.warning("spool_foreign_files", files=found.foreign[:10], count=len(found.foreign))
        return found

    def shorten(self, file: BufferFile) -> tuple[int, int]:
        """Put in its place, under its name, a file without what is done; its size, its oldest.

        Blanks stand where that was. Whatever a crash leaves, one of both files is there.
        """
        with self._shortening:
            texts = [text for some in windows(file.path) for text in some]
            lines = [BLANK if file.is_done(at) else text for at, text in enumerate(texts)]
            text = b"".join(line + b"\n" for line in lines)
            write_whole(file.path, text, lambda: self._reached("mid_shortening"))
            self._reached("after_shortening")
            return len(text), oldest_ms(file.path)


def make(folder: Path) -> None:
    """A folder for us alone, durably: what is fsynced in one that is lost is lost with it."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for path in missing:
        sync_folder(path.parent)


def clear_up(folder: Path) -> None:
    """Take away what a crash left half written; what it was to replace is still there."""
    for path in list(folder.iterdir()):
        whole = path.name.removesuffix(FRESH)
        is_fresh = whole != path.name and (whole == HOLD or names.stream_of(whole) is not None)
        if is_fresh or path.name.startswith(PROBE):
            log.info("spool_cleared_up", file=path.name)
            path.unlink()


def entries(folder: Path) -> tuple[list[Path], list[str]]:
    """Buffer files in the order in which they were begun, and the names of what is not ours."""
    ours: list[Path] = []
    foreign: list[str] = []
    for path in folder.iterdir() if folder.is_dir() else ():
        if is_ours(path):
            ours.append(path)
        elif path.name not in {LOCK, HOLD, ACTIONS, FAILED, KEYS}:
            foreign.append(path.name)
    return sorted(ours, key=lambda path: age(path.name)), sorted(foreign)


def is_spool(folder: Path) -> bool:
    """Whether a folder is that of a spool, or what somebody copied of one."""
    return (folder / LOCK).exists() or any(entries(place)[0] for place in (folder, folder / FAILED))


def named(folder: Path, name: str) -> Path | None:
    """A buffer file by its name, which comes from outside and must not lead out of the folder."""
    path = folder / name
    return path if path.name == name and is_ours(path) else None


def is_ours(path: Path) -> bool:
    """Whether a buffer file is there. A link is none: what it leads to is somebody else's."""
    try:
        return names.stream_of(path.name) is not None and S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return False


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
    """End a file that was open when its writer died; None: no line in it was ended.

    A line that was ended may have been answered, so it stays, whatever it says by now.
    """
    with path.open("r+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        ended = _ended(file, size)
        if ended < size:
            log.warning("spool_torn_tail", file=path.name, cut_bytes=size - ended)
            file.truncate(ended)
        os.fsync(file.fileno())
    if not ended:
        path.unlink()
        return None
    reached("mid_recovery")
    return path.rename(path.with_name(path.name.removesuffix(names.OPEN) + names.COMPLETE))


def torn_bytes(path: Path) -> int:
    """What stands behind the last line of an open file: the next start cuts it off."""
    if not names.is_open(path.name):
        return 0
    with path.open("rb", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        return size - _ended(file, size)


def _ended(file: FileIO, size: int) -> int:
    """How many bytes of a file are lines that were ended."""
    while size:
        start = max(0, size - WINDOW_BYTES)
        found = os.pread(file.fileno(), size - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        size = start
    return 0


def describe(path: Path) -> BufferFile:
    """What can be told of a complete file by counting its lines."""
    lines, blank = survey(path)
    file = BufferFile(path, lines, path.stat().st_size, oldest_ms(path))
    file.finish_all(blank)
    file.kept = file.left
    return file


def survey(path: Path) -> tuple[int, list[int]]:
    """How many lines a file has, one that was torn off too, and the places of the blank ones."""
    blank: list[int] = []
    count = 0
    for text in _texts(path):
        if b" \n" in text or b"\n\n" in text or text.startswith(b"\n"):
            lines = split(text)
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


def oldest_ms(path: Path, is_done: Callable[[int], bool] = lambda _: False) -> int:
    """When the first event of a file was accepted that still waits."""
    with path.open("rb") as source:
        lines = (line for at, line in enumerate(source) if not is_done(at))
        first = next((line for line in lines if not is_blank(line)), b"")
    try:
        return int(event.read_unchecked(first).accepted_at.timestamp() * 1000)
    except SpillwayError:
        return int(path.stat().st_mtime * 1000)


def _read(source: BinaryIO, size: int) -> bytes:
    """Whole lines from where it stands on, about `size` bytes."""
    text = source.read(size)
    return text + source.readline() if len(text) == size else text


def split(text: bytes) -> list[bytes]:
    """At line feeds alone: a damaged line may hold any byte."""
    return text.removesuffix(b"\n").split(b"\n") if text else []


def read_window(path: Path, offset: int, size: int = WINDOW_BYTES) -> bytes:
    """Whole lines from `offset` on, about `size` bytes."""
    with path.open("rb") as source:
        source.seek(offset)
        return _read(source, size)


def parts(text: bytes) -> Iterator[bytes]:
    """A window in parts of whole lines."""
    start = 0
    while start < len(text):
        end = text.find(b"\n", start + SPLIT_BYTES) + 1 or len(text)
        yield text[start:end]
        start = end


def pick(path: Path, places: Collection[int]) -> dict[int, bytes]:
    """The lines at these places, by their place; it reads no further than the last of them."""
    with path.open("rb") as source:
        some = enumerate(islice(source, max(places, default=-1) + 1))
        return {place: line.removesuffix(b"\n") for place, line in some if place in places}


def _texts(path: Path) -> Iterator[bytes]:
    with path.open("rb") as source:  # once: a shorter one may take its place meanwhile
        while text := _read(source, WINDOW_BYTES):
            yield text


def windows(path: Path) -> Iterator[list[bytes]]:
    """All lines of a file, a window at a time."""
    return map(split, _texts(path))


def numbered(path: Path) -> Iterator[tuple[int, bytes]]:
    """Every line that holds something, with its number, which is that of an editor.

    In an open file a line without its end is not there yet, or was torn and will be cut off.
    """
    before = 0
    for text in _texts(path):
        whole = text[: text.rfind(b"\n") + 1] if names.is_open(path.name) else text
        lines = split(whole)
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
    """Take a file away, durably: after a crash it is not there again; nor is one that was gone."""
    path.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_all(number: int, text: bytes) -> None:
    """All of it; a write may take less than it was given."""
    rest = memoryview(text)
    while rest:
        rest = rest[os.write(number, rest) :]


def append(path: Path, text: bytes) -> None:
    """Whole lines at the end of a file, durably: all of them, or none."""
    is_new = not path.exists()
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    number = os.open(path, flags, OURS_ALONE)
    with os.fdopen(number, "a+b", buffering=0) as out:
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


def write_whole(path: Path, text: bytes, written: Callable[[], None] = lambda: None) -> None:
    """A file of ours alone with this content or, after a crash, the one that was there before."""
    fresh = path.with_name(path.name + FRESH)
    try:
        number = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, OURS_ALONE)
        with os.fdopen(number, "wb") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        written()
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)  # half of it takes room on a disk that may have none
        raise
    sync_folder(path.parent)
