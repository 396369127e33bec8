"""`failed/`: what could not be replayed, each event with its reason; nothing leaves it unnamed.

A file here has the name of the file its events came from. Plain blocking file work.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

from spillway.core.errors import SpoolFileNotFoundError
from spillway.spool import event, names
from spillway.spool import folder as disk
from spillway.spool.event import Failed


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

    def read(self, file: str) -> list[Failed]:
        """Everything in a file."""
        windows = disk.windows(self._path(file))
        return [event.read_failed(text) for texts in windows for text in texts]

    def change(self, file: str, replaced: Callable[[int, Failed], Failed | None]) -> int:
        """Put another record in the place of each, or none; how many left."""
        records = self.read(file)
        kept = [new for i, old in enumerate(records) if (new := replaced(i, old)) is not None]
        path = self._path(file)
        if kept:
            disk.write_whole(path, b"".join(event.lines(kept)))
        else:
            path.unlink()
            disk.sync_folder(self._folder)
        return len(records) - len(kept)

    def _path(self, file: str) -> Path:
        path = self._folder / file
        if names.stream_of(file) is None or not path.exists():
            raise SpoolFileNotFoundError(f"there is no failed file {file!r}")
        return path
