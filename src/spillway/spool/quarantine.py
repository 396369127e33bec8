"""`failed/`: what could not be replayed, each event with its reason; nothing leaves it unnamed.

A file here has the name of the file its events came from. Plain blocking file work.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

from spillway.core.errors import DamagedLineError, SpoolFileNotFoundError
from spillway.spool import event
from spillway.spool import folder as disk
from spillway.spool.event import DamagedLine, Failed

Mark = int | bytes
"""What tells a record from the others of its file: its number or, if damaged, its bytes."""

Stamp = tuple[int, int]
"""What a file has when nobody has changed it: the time of its last change, and its size."""


def mark(record: Failed) -> Mark:
    """The mark of a record."""
    return record.damaged if isinstance(record, DamagedLine) else record.seq


def mark_of(text: bytes) -> Mark:
    """The mark that a line of the file it came from will have."""
    try:
        return event.read(text).seq
    except DamagedLineError:
        return text


class Quarantine:
    """The folder of failed events."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, file: str, records: Iterable[Failed]) -> None:
        """Set events of a file aside, durably."""
        disk.append(self._folder / file, b"".join(event.lines(records)))

    def files(self) -> list[str]:
        """Its files, oldest first."""
        return [path.name for path in disk.entries(self._folder)[0]]

    def stamp(self, file: str) -> Stamp | None:
        """Of a file; None: there is none of that name."""
        try:
            found = (self._folder / file).stat()
        except FileNotFoundError:
            return None
        return found.st_mtime_ns, found.st_size

    def read(self, file: str) -> list[Failed | None]:
        """Everything in a file, by its place; None where something was and is no more."""
        windows = disk.windows(self._path(file))
        return [_record(text) for texts in windows for text in texts]

    def marks(self, file: str) -> set[Mark]:
        """What tells the records of a file from each other; none if there is no such file.

        A crash may have come between setting an event aside and the end of its own file.
        """
        found = self.read(file) if disk.named(self._folder, file) else ()
        return {mark(record) for record in found if record is not None}

    def change(self, file: str, replaced: Callable[[int, Failed], Failed | None]) -> int:
        """Put another record in the place of each, or none; how many left."""
        before = self.read(file)
        after = [None if old is None else replaced(at, old) for at, old in enumerate(before)]
        path = self._path(file)
        if any(after):
            texts = iter(event.lines(filter(None, after)))
            blank = disk.BLANK + b"\n"
            text = b"".join(blank if new is None else next(texts) for new in after)
            disk.write_whole(path, text)
        else:
            disk.remove(path)
        return after.count(None) - before.count(None)

    def erase(self, file: str, index: int) -> None:
        """Throw a record away; there must be one at this place."""
        path = self._path(file)
        if disk.count_events(path) == 1:
            disk.remove(path)
        else:
            disk.erase(path, {index})

    def remove(self, file: str) -> None:
        """Throw all records of a file away."""
        disk.remove(self._path(file))

    def _path(self, file: str) -> Path:
        path = disk.named(self._folder, file)
        if path is None:
            raise SpoolFileNotFoundError(f"there is no failed file {file!r}")
        return path


def _record(text: bytes) -> Failed | None:
    return None if disk.is_blank(text) else event.read_failed(text)
