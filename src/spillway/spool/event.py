"""A spooled push: a JSON object a line, the last field a checksum of all that stands before it."""

from collections.abc import Iterable
from datetime import UTC, datetime
from zlib import crc32

import msgspec
from msgspec import UNSET, Raw, UnsetType

from spillway.core.errors import DamagedLineError

CRC = b',"crc":'
_DAMAGED = b'{"damaged":'


class Address(msgspec.Struct, frozen=True, gc=False):
    """Whose order a push belongs to. Without a partition its queue was unknown: any lane of it."""

    org: str
    queue: str
    partition: str | None


class Event(msgspec.Struct, gc=False):
    """A push as it waits; every choice that was made for it at the door is in it."""

    queue: str
    partition: str | None
    payload: Raw
    transaction_id: str
    trace_id: str | None
    namespace: str
    task: str
    org: str
    key: str | None
    headers: dict[str, str] | None
    priority: int
    deliver_at: datetime | None
    expires_at: datetime | None
    accepted_at: datetime
    seq: int
    doubt: bool | UnsetType = UNSET
    """A commit was tried and its outcome is unknown: look in the log before it is replayed."""

    @property
    def address(self) -> Address:
        """Whose order it belongs to."""
        return Address(self.org, self.queue, self.partition)


class Trouble(msgspec.Struct, gc=False):
    """Why a line was set aside."""

    code: str
    message: str
    hint: str


class FailedEvent(Event, kw_only=True, gc=False):
    """An event that could not be replayed, with the reason."""

    error: Trouble
    failed_at: datetime
    tried_at: datetime | UnsetType = UNSET
    """A retry began then, and how it ended is unknown: look in the log, from then on."""


class DamagedLine(msgspec.Struct, gc=False):
    """A line that could not be read as an event: its bytes, and what is wrong with them."""

    damaged: bytes
    error: Trouble
    failed_at: datetime


Failed = FailedEvent | DamagedLine

_encoder = msgspec.json.Encoder()
_events = msgspec.json.Decoder(Event)
_failed = msgspec.json.Decoder(FailedEvent)
_damaged = msgspec.json.Decoder(DamagedLine)
_addresses = msgspec.json.Decoder(Address)


# ---------------------------------------------------------------- writing


def lines(records: Iterable[Event | DamagedLine]) -> list[bytes]:
    """The records as lines of a file."""
    encode = _encoder.encode
    # A payload stands as it came, and its line feeds would end the line: blanks mean the same.
    texts = [encode(record).replace(b"\n", b" ").replace(b"\r", b" ") for record in records]
    heads = [text[:-1] for text in texts]
    return [b'%b,"crc":%d}\n' % (head, crc32(head)) for head in heads]


def moment(ms: int) -> datetime:
    """Milliseconds since 1970 as they stand in a line."""
    return datetime.fromtimestamp(ms / 1000, UTC)


def failed(event: Event, error: Trouble, at: datetime) -> FailedEvent:
    """The event with the reason for which it is set aside."""
    values = [getattr(event, name) for name in Event.__struct_fields__]
    return FailedEvent(*values, error=error, failed_at=at)


# ---------------------------------------------------------------- reading


def is_whole(text: bytes) -> bool:
    """Whether the checksum of a line holds."""
    head, _, tail = text.rpartition(CRC)
    return head != b"" and tail.rstrip(b"\r\n") == b"%d}" % crc32(head)


def read(text: bytes) -> Event:
    """The event of a line."""
    if not is_whole(text):
        raise DamagedLineError("the checksum of the line does not hold")
    return read_unchecked(text)


def read_unchecked(text: bytes) -> Event:
    """The event of a line that a person mended: its checksum is not asked for."""
    try:
        return _events.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DamagedLineError(f"the line is no event: {error}") from error


def read_failed(text: bytes) -> Failed:
    """A line of `failed/`; one that was damaged there is a damaged line too."""
    try:
        if is_whole(text):
            return _damaged.decode(text) if text.startswith(_DAMAGED) else _failed.decode(text)
        problem = "the checksum of the line does not hold"
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        problem = str(error)
    return DamagedLine(text.rstrip(b"\n"), trouble(DamagedLineError(problem)), datetime.now(UTC))


def trouble(error: Exception) -> Trouble:
    """An error as it stands in a line."""
    code, hint = getattr(error, "code", "internal"), getattr(error, "hint", "")
    return Trouble(code, str(error), hint)


def address_of(text: bytes) -> Address | None:
    """Where a line belongs; None if it is damaged, for then it may say anything."""
    try:
        return _addresses.decode(text) if is_whole(text) else None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
