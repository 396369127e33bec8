"""Payloads at the door: JSON text is kept as it came, bytes are told apart, both ways.

Inside the broker a payload is JSON text (`Raw`) or `bytes`. In JSON, bytes are written as
`{"payload_base64": "…"}`; in MessagePack they are a bin.
"""

import json
import re
import secrets
from collections.abc import Sequence
from itertools import accumulate
from typing import cast

import msgspec
from msgspec import Raw

from spillway.api.media import JSON, UNDECODABLE, Media
from spillway.api.ports import Messages
from spillway.core.errors import InvalidItemError
from spillway.wire.payload import unwrapped, wrapped

# Deeper ones would pass here and then break the recursive parsers of consumers.
NESTING_MAX = 256
NEVER_DEEP_BYTES = 2 * NESTING_MAX
"""Whatever is nested too deeply is longer, by its brackets alone."""
MARK = b"payload_base64"

_string = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_not_brackets = bytes(set(range(256)) - set(b"[]{}"))
_depth_steps = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_half_pair = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)


_json_fields = msgspec.json.Decoder(dict[str, Raw])


# ---------------------------------------------------------------- in


def may_hold_bytes(media: Media, body: bytes) -> bool:
    """Whether some payload in it may mean bytes; their mark may also be spelled with escapes."""
    # One byte is found a hundred times faster than two: most bodies have no escape at all.
    return media is not JSON or MARK in body or (b"\\" in body and b"\\u" in body)


def mark_half_pairs(body: bytes) -> tuple[bytes, bytes]:
    """JSON with a mark in the place of every escape of half a surrogate pair, and that mark: empty
    where there is none. Such an escape is no text, but it need not spoil the items around it.
    """
    # NUL stands for the escaped backslashes meanwhile, so that each one left begins an escape.
    if b"\0" in body:
        return body, b""
    mark = secrets.token_hex(8).encode()
    text, halves = _half_pair.subn(mark, body.replace(rb"\\", b"\0"))
    return text.replace(b"\0", rb"\\"), mark if halves else b""


def shallow(body: bytes, payloads: Sequence[Raw]) -> bool:
    """Whether none of the payloads in this JSON body can be nested too deeply."""
    longest = max(map(len, payloads), default=0)
    return longest <= NEVER_DEEP_BYTES or body.count(b"[") + body.count(b"{") <= NESTING_MAX


def received(media: Media, payload: Raw, *, marked: bool = True) -> Raw:
    """A payload as the broker takes it; the type says Raw, but bytes are plain `bytes`."""
    if media is not JSON:
        value = _from_msgpack(payload)
        if isinstance(value, bytes):
            return cast("Raw", value)
        payload = _as_json(value)
    if len(payload) > NEVER_DEEP_BYTES:
        _check_depth(bytes(payload))
    return _unwrapped(payload) if marked else payload


def _unwrapped(payload: Raw) -> Raw:
    text = bytes(payload)
    if not (text.startswith(b"{") and may_hold_bytes(JSON, text)):
        return payload
    if _json_fields.decode(text).keys() != {"payload_base64"}:
        return payload
    try:
        return cast("Raw", unwrapped(text))
    except msgspec.ValidationError as error:
        raise InvalidItemError("payload_base64 is not a base64 string") from error


def _from_msgpack(payload: Raw) -> object:
    try:
        return msgspec.msgpack.decode(payload)
    except UNDECODABLE as error:
        raise InvalidItemError(f"the payload cannot be read: {error}") from error


def _as_json(value: object) -> Raw:
    """JSON text of the same value: bytes inside, ext types, NaN or number keys have none."""
    try:
        text = msgspec.json.encode(value)
        same = msgspec.json.decode(text) == value
    except (*UNDECODABLE, TypeError):
        same = False
    if not same:
        raise InvalidItemError(
            "the payload has no JSON form",
            hint="send the whole payload as bin, or use only what JSON knows",
        )
    return Raw(text)


def _check_depth(text: bytes) -> None:
    if text.count(b"[") + text.count(b"{") <= NESTING_MAX:
        return
    brackets = _string.sub(b"", text).translate(_depth_steps, _not_brackets)
    if max(accumulate(memoryview(brackets).cast("b")), default=0) > NESTING_MAX:
        raise InvalidItemError(f"the payload is nested deeper than {NESTING_MAX} levels")


# ---------------------------------------------------------------- out


def dress(messages: Messages, media: Media) -> None:
    """Give every payload the form that it has in the reply's medium."""
    for message in messages:
        payload = cast("Raw | bytes", message.payload)
        if media is not JSON:
            message.payload = Raw(_to_msgpack(payload))
        elif not isinstance(payload, Raw):
            message.payload = wrapped(payload)


def _to_msgpack(payload: Raw | bytes) -> bytes:
    if not isinstance(payload, Raw):
        return msgspec.msgpack.encode(payload)
    try:
        return msgspec.msgpack.encode(msgspec.json.decode(payload))
    except (msgspec.MsgspecError, OverflowError):
        return msgspec.msgpack.encode(_with_odd_numbers(bytes(payload)))


def _with_odd_numbers(text: bytes) -> object:
    """MessagePack ends at 64 bits: what is larger keeps its digits, as a string."""
    value: object = json.loads(text, parse_int=_int_or_text, parse_float=_float_or_text)
    return value


def _int_or_text(digits: str) -> int | str:
    value = int(digits) if len(digits) <= 20 else 2**64
    return value if -(2**63) <= value < 2**64 else digits


def _float_or_text(digits: str) -> float | str:
    value = float(digits)
    return value if abs(value) < float("inf") else digits
