"""PostgreSQL's binary forms, for whole columns at a time.

A commit carries a thousand messages in a handful of arrays; written as binary they cost one join,
not one conversion a value.
"""

from collections.abc import Iterable, Sequence
from struct import Struct

INT2, INT4, INT8, TEXT, BYTEA, TIMESTAMPTZ, JSONB = 21, 23, 20, 25, 17, 1184, 3802
INT2_ARRAY, INT8_ARRAY, TEXT_ARRAY, BYTEA_ARRAY, TIMESTAMPTZ_ARRAY = 1005, 1016, 1009, 1001, 1185

NULL = b"\xff\xff\xff\xff"
EPOCH_MS = 946_684_800_000
"""PostgreSQL counts microseconds from 2000-01-01."""

_length = Struct(">i").pack
_field = Struct(">Ii").pack
_array = Struct(">iiIii").pack
_read_length = Struct(">i").unpack_from
_read_head = Struct(">iiIii").unpack_from
_LENGTHS = tuple(_length(n) for n in range(4096))

int2 = Struct(">h").pack
int4 = Struct(">i").pack
int8 = Struct(">q").pack


def timestamptz(ms: int) -> bytes:
    """A moment, from milliseconds since 1970."""
    return int8((ms - EPOCH_MS) * 1000)


def ms_of(value: bytes) -> int:
    """Milliseconds since 1970, from a timestamptz."""
    return int.from_bytes(value, "big", signed=True) // 1000 + EPOCH_MS


def jsonb(text: bytes) -> bytes:
    """A jsonb value from JSON text."""
    return b"\x01" + text


def array(element: int, values: Sequence[bytes | None]) -> bytes:
    """A one-dimensional array of already encoded values."""
    if not values:
        return _array(0, 0, element, 0, 1)[:12]
    has_null = 1 if None in values else 0
    parts = [_array(1, has_null, element, len(values), 1)]
    append = parts.append
    for value in values:
        if value is None:
            append(NULL)
            continue
        size = len(value)
        append(_LENGTHS[size] if size < 4096 else _length(size))
        append(value)
    return b"".join(parts)


def texts(values: Iterable[str | None]) -> bytes:
    """A text[]."""
    return array(TEXT, [None if v is None else v.encode() for v in values])


def composite(fields: Sequence[tuple[int, bytes | None]]) -> bytes:
    """A row value: (type, encoded value) for each column."""
    parts = [_length(len(fields))]
    for oid, value in fields:
        if value is None:
            parts.append(_field(oid, -1))
        else:
            parts.append(_field(oid, len(value)))
            parts.append(value)
    return b"".join(parts)


def elements(value: bytes) -> list[bytes | None]:
    """The encoded values of an array."""
    if int.from_bytes(value[:4], "big") == 0:
        return []
    count = _read_head(value)[3]
    found: list[bytes | None] = []
    append = found.append
    at = 20
    for _ in range(count):
        (size,) = _read_length(value, at)
        at += 4
        if size < 0:
            append(None)
        else:
            append(value[at : at + size])
            at += size
    return found
