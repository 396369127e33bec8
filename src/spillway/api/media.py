"""The media of bodies: JSON and MessagePack, which one a request speaks, and strict decoding."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Protocol, TypeVar, cast

import msgspec

from spillway.core.errors import (
    BadRequestError,
    InvalidNameError,
    UnknownOptionError,
    UnsupportedMediaTypeError,
)
from spillway.wire import NAME_PATTERN, TEXT_PATTERN

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

UNDECODABLE = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)


class Decoder(Protocol[T_co]):
    """Strict reading of one type."""

    def decode(self, buf: bytes | msgspec.Raw, /) -> T_co: ...


@dataclass(frozen=True, slots=True, eq=False)
class Media:
    """A way to write bodies."""

    content_type: str
    encode: Callable[[Any], bytes]
    decoder: Callable[[Any], Any]


JSON = Media("application/json", msgspec.json.Encoder().encode, msgspec.json.Decoder)
MSGPACK = Media("application/msgpack", msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder)

_MEDIA = {media.content_type: media for media in (JSON, MSGPACK)}
_WILDCARDS = ("*/*", "application/*")

FORM = b"application/x-www-form-urlencoded"
FORM_HINT = (
    "curl -d says so by itself: write curl --json '{…}', or add -H 'content-type: application/json'"
)


@lru_cache(maxsize=256)
def request_media(content_type: bytes | None) -> Media:
    """The medium of a request body; no content type means JSON."""
    if content_type is None:
        return JSON
    essence, *parameters = (part.strip().lower() for part in content_type.split(b";"))
    media = _MEDIA.get(essence.decode("latin-1"))
    if media is None or any(map(_other_charset, parameters)):
        text = f"the content type is {content_type.decode('latin-1')!r}"
        raise UnsupportedMediaTypeError(text, hint=FORM_HINT if essence == FORM else None)
    return media


def _other_charset(parameter: bytes) -> bool:
    name, _, value = parameter.partition(b"=")
    return name == b"charset" and value.strip(b'"') not in (b"utf-8", b"utf8")


@lru_cache(maxsize=256)
def reply_media(accept: bytes | None, content_type: bytes | None) -> Media:
    """What the caller likes best; what it sent itself where it does not say."""
    sent = MSGPACK if _essence(content_type) == MSGPACK.content_type else JSON
    weights = _weights(accept or b"*/*")
    wildcard = max(weights.get(name, 0.0) for name in _WILDCARDS)
    best = max((sent, JSON, MSGPACK), key=lambda m: weights.get(m.content_type, wildcard))
    return best if weights.get(best.content_type, wildcard) > 0 else JSON


def _essence(content_type: bytes | None) -> str:
    return (content_type or b"").partition(b";")[0].strip().lower().decode("latin-1")


def _weights(accept: bytes) -> dict[str, float]:
    return dict(_weight(part) for part in accept.decode("latin-1").lower().split(","))


def _weight(part: str) -> tuple[str, float]:
    name, *parameters = (piece.strip() for piece in part.split(";"))
    quality = next((p[2:] for p in parameters if p.startswith("q=")), "1")
    try:
        return name, float(quality)
    except ValueError:
        return name, 0.0


def decoder_of(media: Media, kind: type[T]) -> Decoder[T]:
    return cast("Decoder[T]", _made_decoder(media, cast("Hashable", kind)))


@cache
def _made_decoder(media: Media, kind: Hashable) -> object:
    return media.decoder(kind)


def decode(media: Media, body: bytes, kind: type[T]) -> T:
    """The body as `kind`, or a refusal that names the fault."""
    if not body:
        raise BadRequestError("the body is empty")
    try:
        check_text(media, body)
        return decoder_of(media, kind).decode(body)
    except UNDECODABLE as error:
        raise refusal(error) from error


def check_text(media: Media, body: bytes) -> None:
    """Refuse broken UTF-8 anywhere in JSON: a Raw field is skipped without a look inside."""
    if media is JSON and not body.isascii():
        body.decode()


def refusal(error: BaseException) -> BadRequestError:
    """What a decoder's complaint means to the caller."""
    text = str(error)
    if isinstance(error, RecursionError):
        return BadRequestError("the body is nested too deeply")
    if isinstance(error, UnicodeDecodeError):
        return BadRequestError(f"the body is not UTF-8: {error.reason} at byte {error.start}")
    if "unknown field" in text:
        return UnknownOptionError(text)
    if "matching regex" in text:
        _, is_text, place = text.partition(repr(TEXT_PATTERN))
        if is_text:
            return BadRequestError(f"the text contains a NUL character{place}")
        return InvalidNameError(f"this is no name{text.partition(repr(NAME_PATTERN))[2]}")
    return BadRequestError(text)
