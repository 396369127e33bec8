"""The docket of the files on their way: what is done, what was set aside, what cannot go on now.

Whoever takes the events of files notes here what became of them; who reads the files looks here.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog

from spillway.broker.handover import Refused, as_trouble, error_trouble
from spillway.core.errors import (
    DamagedLineError,
    QueueFullError,
    ReplayInterruptedError,
    SpillwayError,
    SpoolFolderError,
    SpoolFullError,
)
from spillway.spool import event
from spillway.spool import folder as disk
from spillway.spool.event import Address, Failed, Trouble
from spillway.spool.folder import BufferFile
from spillway.spool.spool import Spool

log = structlog.get_logger(__name__)

Aside = tuple[int, Address | None, Failed]
"""The place of an event, whose order it belonged to, and how it stands in `failed/`."""


@dataclass(frozen=True, slots=True)
class Held:
    """A lane that cannot go on now."""

    lane: Address
    reason: Trouble


class Docket:
    """What became of the events of files."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._held: dict[Address, Held] = {}
        self.troubles: dict[BufferFile, Trouble] = {}
        """The files of which something cannot go on now, whatever the lanes say."""
        self._shut: set[tuple[str, str]] = set()
        """Queues one of whose events should be set aside and cannot: the mark of a later one would
        say that it is done.
        """
        self.carried = 0

    # ------------------------------------------------------------ what waits

    @property
    def held(self) -> list[Held]:
        """The lanes that cannot go on now."""
        return list(self._held.values())

    def holds(self, file: BufferFile) -> bool:
        """Whether what is left of a file has a reason to be left."""
        return bool(self._held or self._shut) or file in self.troubles

    def look_again(self) -> None:
        """What could not go on perhaps can."""
        self._held.clear()
        self.troubles.clear()
        self._shut.clear()

    def hold(self, lane: Address, reason: Trouble) -> None:
        """Nothing more of this lane may go."""
        self._held[lane] = Held(lane, reason)

    def shut(self, events: Iterable[Address]) -> None:
        """Nothing more may go of the queues that these belong to."""
        self._shut.update((one.org, one.queue) for one in events)

    def waits(self, address: Address) -> bool:
        """Whether what belongs there may not go. Without a partition it may be of any lane."""
        if (address.org, address.queue) in self._shut:
            return True
        if address.partition is not None:
            return address in self._held
        return any((one.org, one.queue) == (address.org, address.queue) for one in self._held)

    # ------------------------------------------------------------ what is done

    def finish(self, file: BufferFile, indexes: list[int], address: Address | None) -> None:
        """These are in the log."""
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

    async def set_aside(self, file: BufferFile, records: list[Aside]) -> bool:
        """Quarantine events of a file, each with its reason; durable before they are done.

        False: the disk does not take them. They stay where they are, and so do their queues.
        """
        if not records:
            return True
        failed = [record for _, _, record in records]
        try:
            await asyncio.to_thread(self._spool.quarantine.add, file.name, failed)
        except OSError as error:
            self.shut(home for _, home, _ in records if home is not None)
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

    def unreadable(self, file: BufferFile, error: Exception) -> None:
        """The disk does not give us a file: it is gone, or passed over."""
        if isinstance(error.__cause__, FileNotFoundError):
            log.critical("spool_file_gone", file=file.name, events=file.left)
            self._spool.lose(file)
            return
        message = f"{file.left} events wait in a file that cannot be read: {error}"
        self.troubles[file] = Trouble(SpoolFolderError.code, message, "mend the disk of the spool")
        log.critical("spool_file_unreadable", file=file.name, events=file.left, error=str(error))


def is_full(code: str) -> bool:
    """Whether there was no room in the lane: no fault of the event."""
    return code == QueueFullError.code


def _failed(index: int, text: bytes, error: SpillwayError | Trouble, at: datetime) -> Aside:
    """A line that the log will not have, as it stands in `failed/`."""
    try:
        one = event.read(text)
    except DamagedLineError as damage:  # since it was read first
        return index, None, event.DamagedLine(text, error_trouble(damage), at)
    return index, one.address, event.failed(one, as_trouble(error), at)
