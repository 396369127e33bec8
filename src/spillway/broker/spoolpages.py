"""The files of a spool as people read them: their list, their events, whether they are sound.

Plain blocking file work that changes nothing and needs no broker: a folder is enough.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from spillway.broker.delivery import rfc3339
from spillway.core.errors import DamagedLineError, SpoolFileNotFoundError
from spillway.spool import event, names
from spillway.spool import folder as disk
from spillway.spool.event import DamagedLine, Event, FailedEvent, Trouble
from spillway.spool.folder import BufferFile
from spillway.spool.verify import check_file
from spillway.wire import (
    ErrorDetail,
    SpoolEvent,
    SpoolEventsReply,
    SpoolFile,
    SpoolFileCheck,
    SpoolFilesReply,
    SpoolFileState,
    SpoolPlace,
    SpoolVerifyReply,
)

PAGE_BYTES = 8 * 1024 * 1024
Known = Mapping[str, BufferFile]
"""What a broker knows of the files that wait, by their names."""


class SpoolPages:
    """A spool's folder, to be looked at."""

    def __init__(self, folder: Path, known: Callable[[], Known] = dict) -> None:
        self._folder = folder
        self._known = known

    # ------------------------------------------------------------ files

    def files(self, place: SpoolPlace, *, after: str | None, limit: int) -> SpoolFilesReply:
        """A page of files, oldest first."""
        known = self._known()
        first = disk.age(after) if after is not None else ("", "")
        later = [path for path in self._paths(place) if disk.age(path.name) > first]
        shown = [file for path in later[:limit] if (file := _file(path, known)) is not None]
        rest = len(later) > limit
        return SpoolFilesReply(files=shown, next=later[limit - 1].name if rest else None)

    def _paths(self, place: SpoolPlace) -> list[Path]:
        return disk.entries(self._place(place))[0]

    def _place(self, place: SpoolPlace) -> Path:
        return self._folder / disk.FAILED if place == "failed" else self._folder

    def path(self, file: str, place: SpoolPlace) -> Path:
        """A file by its name, which comes from outside."""
        path = disk.named(self._place(place), file)
        if path is None:
            raise _not_found(file, place)
        return path

    def waits(self, file: str) -> bool:
        """Whether a file of this name waits, or is being written."""
        return disk.named(self._folder, file) is not None

    # ------------------------------------------------------------ events

    def events(
        self, file: str, place: SpoolPlace, *, from_line: int, limit: int
    ) -> SpoolEventsReply:
        """A page of the events of a file."""
        path = self.path(file, place)
        known = self._known().get(file) if place == "waiting" else None
        reply = SpoolEventsReply(file=file, state=_state(path), events=[])
        size = 0
        try:
            for line, text in disk.numbered(path):
                if line < from_line:
                    continue
                if len(reply.events) == limit or size > PAGE_BYTES:
                    reply.next = line
                    break
                size += len(text)
                shown = _event(line, text, place)
                shown.done = known is not None and known.is_done(line - 1)
                reply.events.append(shown)
        except FileNotFoundError:
            raise _not_found(file, place) from None
        return reply

    # ------------------------------------------------------------ soundness

    def verify(self, file: str | None = None) -> SpoolVerifyReply:
        """Check files; one that goes meanwhile was replayed."""
        paths = self._all() if file is None else [self._either(file)]
        last: dict[str, int] = {}
        checks: list[SpoolFileCheck] = []
        for path in paths:
            with suppress(FileNotFoundError):
                checks.append(_check(path, last))
        sound = not any(check.damaged or check.out_of_order for check in checks)
        return SpoolVerifyReply(sound=sound, files=checks)

    def _all(self) -> Iterator[Path]:
        yield from self._paths("waiting")
        yield from self._paths("failed")

    def _either(self, file: str) -> Path:
        try:
            return self.path(file, "waiting")
        except SpoolFileNotFoundError:
            with suppress(SpoolFileNotFoundError):
                return self.path(file, "failed")
        raise SpoolFileNotFoundError(f"the spool has no file {file!r}")


def _not_found(file: str, place: SpoolPlace) -> SpoolFileNotFoundError:
    what = "failed" if place == "failed" else "waiting"
    return SpoolFileNotFoundError(f"the spool has no {what} file {file!r}")


# ---------------------------------------------------------------- files into shapes


def _state(path: Path) -> SpoolFileState:
    if path.parent.name == disk.FAILED:
        return "failed"
    return "open" if names.is_open(path.name) else "waiting"


def _file(path: Path, known: Known) -> SpoolFile | None:
    """None: it went while we looked."""
    state = _state(path)
    with suppress(FileNotFoundError):
        file = known.get(path.name) if state == "waiting" else None
        if file is None:
            events = left = sum(1 for _ in disk.numbered(path))
            size, oldest_ms = path.stat().st_size, disk.oldest_ms(path)
        else:
            events, left, size, oldest_ms = file.events, file.left, file.bytes, file.oldest_ms
        return SpoolFile(
            file=path.name,
            stream="qos0" if names.stream_of(path.name) == names.QOS0 else "failover",
            state=state,
            events=events,
            left=left,
            bytes=size,
            oldest_at=rfc3339(oldest_ms),
        )
    return None


def _check(path: Path, last: dict[str, int]) -> SpoolFileCheck:
    state = _state(path)
    # What failed was set aside as it came, and what is mended goes to the end of its lane anyway.
    found = check_file(path, {} if state == "failed" else last)
    return SpoolFileCheck(
        file=found.file,
        state=state,
        events=found.events,
        damaged=found.damaged,
        out_of_order=0 if state == "failed" else found.out_of_order,
        problems=found.problems,
    )


# ---------------------------------------------------------------- events into shapes


def _event(line: int, text: bytes, place: SpoolPlace) -> SpoolEvent:
    try:
        record = event.read_failed(text) if place == "failed" else event.read(text)
    except DamagedLineError as error:
        return _damaged(line, text, event.trouble(error))
    if isinstance(record, DamagedLine):
        shown = _damaged(line, record.damaged, record.error)
        shown.failed_at = _moment(record.failed_at)
        return shown
    shown = _shown(line, record)
    if isinstance(record, FailedEvent):
        shown.error, shown.failed_at = _detail(record.error), _moment(record.failed_at)
    return shown


def _damaged(line: int, text: bytes, trouble: Trouble) -> SpoolEvent:
    """What can be told of a broken line: its text, and its fields if it reads as an event."""
    try:
        shown = _shown(line, event.read_unchecked(text))
    except DamagedLineError:
        shown = SpoolEvent(line=line)
    shown.damaged = text.decode("utf-8", "backslashreplace")
    shown.error = _detail(trouble)
    return shown


def _shown(line: int, one: Event) -> SpoolEvent:
    return SpoolEvent(
        line=line,
        org=one.org,
        queue=one.queue,
        partition=one.partition,
        key=one.key,
        payload=one.payload,
        headers=one.headers,
        transaction_id=one.transaction_id,
        trace_id=one.trace_id,
        priority=one.priority,
        deliver_at=_moment(one.deliver_at),
        expires_at=_moment(one.expires_at),
        accepted_at=_moment(one.accepted_at),
        seq=one.seq,
    )


def _detail(trouble: Trouble) -> ErrorDetail:
    return ErrorDetail(code=trouble.code, message=trouble.message, hint=trouble.hint)


def _moment(at: datetime | None) -> str | None:
    return None if at is None else rfc3339(int(at.timestamp() * 1000))
