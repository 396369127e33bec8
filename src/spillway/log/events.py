"""Events as they stand in the control log: msgpack, then a crc32 of it.

The rows of one commit are [[at_ms, tag, version, field, …], …]. `at_ms` is the moment of the
decision; a later fold needs the very same one.
"""

from collections.abc import Iterable
from typing import Any
from zlib import crc32

import msgspec

from spillway.core.errors import SpillwayError
from spillway.core.events import Event, from_record, to_record

Row = tuple[int, Event]
CRC_BYTES = 4

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[list[Any]])


class EventsDamagedError(SpillwayError):
    """Stored events are not what was written."""

    code = "events_damaged"
    hint = "`spillway audit` lists every damaged place of the log"


def encode(rows: Iterable[Row]) -> bytes:
    """The stored form of the events of one commit."""
    body = _encoder.encode([(at_ms, *to_record(event)) for at_ms, event in rows])
    return body + crc32(body).to_bytes(CRC_BYTES)


def decode(data: bytes) -> list[Row]:
    """The events behind a stored form, whatever release wrote them."""
    body = memoryview(data)[:-CRC_BYTES]
    if not body or crc32(body) != int.from_bytes(data[-CRC_BYTES:]):
        raise EventsDamagedError(f"crc32 of {len(data)} bytes of events differs")
    return [(row[0], from_record(tuple(row[1:]))) for row in _decoder.decode(body)]
