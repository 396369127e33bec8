"""Payloads: any JSON value as it is, bytes as `{"payload_base64": …}`; decoded when looked at."""

import json
import math
from base64 import b64decode, b64encode
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")

_BYTES_MARK = b"payload_base64"


class _Bytes(msgspec.Struct, forbid_unknown_fields=True):
    payload_base64: str


_bytes_decoder = msgspec.json.Decoder(_Bytes)


def shape(value: object) -> object:
    """What to encode for a payload; `msgspec.Raw` is taken to be JSON already."""
    if isinstance(value, bytes | bytearray | memoryview):
        return {"payload_base64": b64encode(value).decode()}
    return value


def unknown_number(value: object) -> float | None:
    """A NaN or an infinity in a payload: the encoder would write null in its place."""
    match value:
        case float():
            return None if math.isfinite(value) else value
        case dict():
            inner: Iterable[object] = value.values()
        case list() | tuple() | set() | frozenset():
            inner = value
        case _:
            return None
    return next((found for one in inner if (found := unknown_number(one)) is not None), None)


def payload_bytes(raw: msgspec.Raw | bytes) -> bytes | None:
    """The bytes of a payload that was pushed as bytes; None for any other."""
    data = bytes(raw)
    if not data.startswith(b"{") or _BYTES_MARK not in data[:40]:
        return None
    try:
        return b64decode(_bytes_decoder.decode(data).payload_base64, validate=True)
    except (msgspec.MsgspecError, ValueError):
        return None


@overload
def decode_payload(raw: msgspec.Raw | bytes) -> Any: ...  # noqa: ANN401 (any JSON value)
@overload
def decode_payload(raw: msgspec.Raw | bytes, kind: type[T]) -> T: ...
def decode_payload(raw: msgspec.Raw | bytes, kind: Any = Any) -> Any:
    """The value of a payload as it was pushed; with `kind` checked and converted to that type.

    A number that neither int nor float can hold, such as 1e999, is a Decimal.
    """
    if kind is Any:
        data = payload_bytes(raw)
        return _value(raw) if data is None else data
    return msgspec.json.decode(raw, type=kind)


def _value(raw: msgspec.Raw | bytes) -> object:
    try:
        return msgspec.json.decode(raw)
    except msgspec.ValidationError:  # a number: JSON has no end of them, Python's usual types do
        value: object = json.loads(bytes(raw), parse_int=_integer, parse_float=_fraction)
        return value


def _integer(digits: str) -> int | Decimal:
    try:
        return int(digits)
    except ValueError:  # more digits than Python turns into an int
        return Decimal(digits)


def _fraction(digits: str) -> float | Decimal:
    value = float(digits)
    if math.isfinite(value):
        return value
    try:
        return Decimal(digits)
    except InvalidOperation:  # an exponent of nineteen digits
        return value
