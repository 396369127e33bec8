"""A request as a value, and how its answer is read. No IO here: the doors carry it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from spillway.client.errors import BadReplyError, error_of
from spillway.client.http1 import Response
from spillway.core.errors import SpillwayError
from spillway.wire import ErrorReply

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
S = TypeVar("S", bound=msgspec.Struct)

JSON_HEADERS = {"content-type": "application/json", "accept": "application/json"}
GET_HEADERS = {"accept": "application/json"}

_encoder = msgspec.json.Encoder()
_error_decoder = msgspec.json.Decoder(ErrorReply)


@dataclass(frozen=True, slots=True)
class Request(Generic[T_co]):
    """What to send and how to read the answer.

    `safe`: the broker takes a repetition for the same request, so it may be sent again blindly.
    `wait_s`: how long the broker was asked to wait, on top of the client's own timeout.
    """

    method: str
    path: str
    read: Callable[[Response], T_co]
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=lambda: GET_HEADERS)
    safe: bool = False
    wait_s: float = 0.0
    #: Statuses that `read` handles besides 2xx.
    expects: frozenset[int] = frozenset()


def parse(request: Request[T], response: Response) -> T:
    """The answer as its type, or the broker's error as its class."""
    if not 200 <= response.status < 300 and response.status not in request.expects:
        raise error_in(response)
    try:
        return request.read(response)
    except msgspec.MsgspecError as error:
        if response.status >= 300:
            raise error_in(response) from None
        raise BadReplyError(
            f"{request.method} {request.path} was answered with an unknown shape: {error}",
            answered=response.status,
        ) from error


def error_in(response: Response) -> SpillwayError:
    """The error that an answer carries."""
    try:
        detail = _error_decoder.decode(response.body).error
    except msgspec.MsgspecError:
        start = response.body[:200].decode("utf-8", "replace")
        return BadReplyError(
            f"the answer is HTTP {response.status} without a Spillway error: {start!r}",
            answered=response.status,
        )
    return error_of(detail, response.status)


def json_reply(kind: type[T]) -> Callable[[Response], T]:
    """A parser for a JSON body of this type."""
    decoder = msgspec.json.Decoder(kind)

    def read(response: Response) -> T:
        return decoder.decode(response.body)

    return read


def text_reply(response: Response) -> str:
    return response.body.decode()


def at(*parts: str | int) -> str:
    """A path under /v1; each part is one segment, whatever characters it holds."""
    return "/v1/" + "/".join(quote(str(part), safe="") for part in parts)


def query(**fields: object) -> str:
    """A query string of the fields that are set."""
    known = {name: _plain(value) for name, value in fields.items() if value is not None}
    return f"?{urlencode(known)}" if known else ""


def _plain(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value).lower() if isinstance(value, bool) else str(value)


def get(path: str, read: Callable[[Response], T]) -> Request[T]:
    return Request("GET", path, read, safe=True)


def send(
    method: str, path: str, body: object, read: Callable[[Response], T], *, safe: bool = False
) -> Request[T]:
    """A request with a JSON body."""
    return Request(method, path, read, _encoder.encode(body), JSON_HEADERS, safe)
