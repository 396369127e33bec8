"""Bytes as a payload: in JSON they are `{"payload_base64": "…"}`."""

from base64 import b64encode

from msgspec import Raw
from msgspec.json import Decoder

from spillway.wire.shapes import Request


class _Bytes(Request):
    payload_base64: bytes


_bytes = Decoder(_Bytes)


def wrapped(payload: bytes) -> Raw:
    """Bytes as they stand in JSON."""
    return Raw(b'{"payload_base64":"%b"}' % b64encode(payload))


def unwrapped(text: Raw | bytes) -> bytes:
    """The bytes that stand in this JSON; raises a ValidationError where it is other JSON."""
    return _bytes.decode(text).payload_base64
