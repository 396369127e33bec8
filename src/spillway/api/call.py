"""One request on its way to a handler: who asks, for what, with which body."""

from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec

from spillway.api.asgi import HUNG_UP, ASGIReceive, Scope
from spillway.api.attendance import ClientGoneError
from spillway.api.limits import Limits
from spillway.api.media import UNDECODABLE, Media, decode, refusal, reply_media, request_media
from spillway.api.ports import Broker
from spillway.api.response import Headers, Response, answer
from spillway.core.errors import (
    BadRequestError,
    RequestTooLargeError,
    UnsupportedMediaTypeError,
)

T = TypeVar("T")

ACTOR_CHARS_MAX = 256
PARAMETERS_MAX = 50


class Call:
    """A request. Whatever costs something is only worked out when a handler asks for it."""

    __slots__ = ("_key_name", "broker", "headers", "limits", "org", "params", "receive", "scope")

    def __init__(self, broker: Broker, limits: Limits, scope: Scope, receive: ASGIReceive) -> None:
        self.broker = broker
        self.limits = limits
        self.scope = scope
        self.receive = receive
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.params: Mapping[str, str] = {}
        self.org = "default"
        self._key_name: str | None = None

    # ---------------------------------------------------------------- who

    def authenticated(self, org: str, key_name: str) -> None:
        self.org, self._key_name = org, key_name

    @property
    def has_key(self) -> bool:
        """Whether the caller came with an API key, so that its org is sure."""
        return self._key_name is not None

    @property
    def actor(self) -> str:
        """Who is named in the audit of a change."""
        named = self.headers.get(b"x-spillway-actor")
        if named:
            return named.decode("utf-8", "replace")[:ACTOR_CHARS_MAX]
        client = self.scope.get("client")
        return self._key_name or (str(client[0]) if client else "unknown")

    def is_hung_up(self) -> bool:
        """Whether the caller's connection has ended, as far as anybody can know."""
        asks = self.scope.get(HUNG_UP)
        return asks is not None and asks()

    # ---------------------------------------------------------------- what

    @property
    def where(self) -> str:
        return f"{self.scope['method']} {self.scope['path']}"

    def query(self, kind: type[T]) -> T:
        """The query parameters; an unknown, doubled or unreadable one is refused."""
        try:
            return msgspec.convert(self._parameters(), kind, strict=False)
        except UnicodeDecodeError as error:
            raise BadRequestError("the query is not percent-encoded UTF-8") from error
        except UNDECODABLE as error:
            raise refusal(error) from error

    def _parameters(self) -> dict[str, str]:
        text = self.scope["query_string"].decode("ascii")
        pairs = parse_qsl(
            text, keep_blank_values=True, errors="strict", max_num_fields=PARAMETERS_MAX
        )
        parameters = dict(pairs)
        if len(parameters) != len(pairs):
            raise BadRequestError("a query parameter is given twice")
        return parameters

    # ---------------------------------------------------------------- body

    @property
    def media(self) -> Media:
        """The medium of the request's body."""
        headers = self.headers
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise UnsupportedMediaTypeError(
                "compressed bodies are not supported", hint="send the body without Content-Encoding"
            )
        return request_media(headers.get(b"content-type"))

    async def read(self, kind: type[T]) -> T:
        """The body as `kind`; an empty one is refused."""
        media = self.media
        return decode(media, await self.body(), kind)

    async def read_or_default(self, kind: type[T]) -> T:
        """The body as `kind`; an empty one means the defaults."""
        media = self.media
        body = await self.body()
        return decode(media, body, kind) if body else kind()

    async def body(self) -> bytes:
        """The whole body, refused as soon as it is known to be too large."""
        limit = self.limits.request_bytes_max
        declared = self.headers.get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > limit:
            raise too_large(limit)
        event = await self.receive()
        first = piece_of(event)
        if event.get("more_body", False) or len(first) > limit:
            return await self._rest(first, limit)
        return first

    async def _rest(self, first: bytes, limit: int) -> bytes:
        pieces, size, more = [first], len(first), True
        while more and size <= limit:
            event = await self.receive()
            pieces.append(piece_of(event))
            size += len(pieces[-1])
            more = event.get("more_body", False)
        if size > limit:
            raise too_large(limit)
        return b"".join(pieces)

    # ---------------------------------------------------------------- reply

    @property
    def reply_media(self) -> Media:
        headers = self.headers
        return reply_media(headers.get(b"accept"), headers.get(b"content-type"))

    def reply(self, reply: object, status: int = 200, headers: Headers = ()) -> Response:
        return answer(self.reply_media, status, reply, headers)


def piece_of(event: Mapping[str, Any]) -> bytes:
    if event["type"] == "http.disconnect":
        raise ClientGoneError
    piece: bytes = event.get("body", b"")
    return piece


def too_large(limit: int) -> RequestTooLargeError:
    return RequestTooLargeError(f"the body is over {limit} bytes")
