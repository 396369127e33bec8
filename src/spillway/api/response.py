"""What goes back to the caller: a status, a body, and how an error is told."""

import asyncio

import msgspec
import structlog

from spillway.api.asgi import ASGISend
from spillway.api.media import JSON, Media
from spillway.core.errors import (
    MethodNotAllowedError,
    RequestTooLargeError,
    ShuttingDownError,
    SpillwayError,
    UnauthorizedError,
)
from spillway.wire import ErrorDetail, ErrorReply

Headers = tuple[tuple[bytes, bytes], ...]

RETRY_AFTER: Headers = ((b"retry-after", b"1"),)
CLOSE: Headers = ((b"connection", b"close"),)

log = structlog.get_logger(__name__)


class Response(msgspec.Struct, frozen=True):
    """An answer, ready to be sent."""

    status: int
    body: bytes
    content_type: str = JSON.content_type
    headers: Headers = ()


class WrongMethodError(MethodNotAllowedError):
    """The address exists, but not for this method."""

    def __init__(self, method: str, allow: str) -> None:
        super().__init__(f"{method} is not possible here", hint=f"possible are: {allow}")
        self.allow = allow


def answer(media: Media, status: int, reply: object, headers: Headers = ()) -> Response:
    """A reply struct in the caller's medium."""
    return Response(status, media.encode(reply), media.content_type, headers)


async def send_response(send: ASGISend, response: Response, *, more: bool = False) -> None:
    """Send it; `more` leaves the exchange open."""
    body = response.body
    headers = [
        (b"content-type", response.content_type.encode()),
        (b"content-length", b"%d" % len(body)),
        *response.headers,
    ]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": more})


def detail_of(error: SpillwayError) -> ErrorDetail:
    return ErrorDetail(code=error.code, message=error.message, hint=error.hint)


def failure(error: BaseException, media: Media, where: str) -> Response:
    """The answer to an error. A surprise is logged with its stack; the caller never sees that."""
    known = _known(error)
    if known.status >= 500 and not known.transient:
        log.error("request_failed", where=where, code=known.code, exc_info=error)
    return answer(media, known.status, ErrorReply(error=detail_of(known)), _headers_of(known))


def _known(error: BaseException) -> SpillwayError:
    if isinstance(error, SpillwayError):
        return error
    if isinstance(error, asyncio.CancelledError):
        return ShuttingDownError()
    return SpillwayError()


def _headers_of(error: SpillwayError) -> Headers:
    match error:
        case WrongMethodError():
            return ((b"allow", error.allow.encode()),)
        case UnauthorizedError():
            return ((b"www-authenticate", b"Bearer"),)
        case RequestTooLargeError():
            return CLOSE
        case _:
            return RETRY_AFTER if error.transient else ()
