"""A keep-alive HTTP/1.1 connection: one request in flight, no more parsing than that needs."""

import asyncio
import re
from collections.abc import Callable
from typing import Protocol, cast

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_HEAD_BYTES_MAX = 65_536


class Caller(Protocol):
    """Who sends requests over a connection."""

    def replied(self, status: int, body: bytes) -> None: ...


class ConnectionBrokenError(Exception):
    """The broker closed a connection or answered something that is not HTTP."""


class Connection(asyncio.Protocol):
    """Sends encoded requests; hands each reply to its caller."""

    def __init__(self, broken: Callable[[Exception], None]) -> None:
        self.caller: Caller
        self._broken = broken
        self._transport: asyncio.Transport
        self._chunks: list[bytes] = []
        self._missing = 0
        self._status = 0
        self._closing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's inherits nothing

    def send(self, request: bytes | bytearray) -> None:
        self._transport.write(request)

    def close(self) -> None:
        self._closing = True
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closing:
            self._broken(exc or ConnectionBrokenError("the broker closed a connection"))

    def data_received(self, data: bytes) -> None:
        if self._missing:
            self._body_part(data)
        else:
            self._head(b"".join([*self._chunks, data]) if self._chunks else data)

    def _head(self, data: bytes) -> None:
        end = data.find(b"\r\n\r\n")
        if end < 0:
            self._chunks = [data]
            if len(data) > _HEAD_BYTES_MAX:
                self._fail("a reply without an end of headers")
            return
        length = _LENGTH.search(data, 0, end)
        if length is None:
            self._fail("a reply without Content-Length")
            return
        self._chunks = []
        self._status = int(data[9:12])
        self._missing = int(length[1])
        self._body_part(data[end + 4 :])

    def _body_part(self, data: bytes) -> None:
        self._missing -= len(data)
        if self._missing > 0:
            self._chunks.append(data)
            return
        if self._missing < 0:
            self._fail("more bytes than Content-Length says")
            return
        body = b"".join([*self._chunks, data]) if self._chunks else data
        self._chunks = []
        self.caller.replied(self._status, body)

    def _fail(self, what: str) -> None:
        self._closing = True
        self._transport.abort()
        self._broken(ConnectionBrokenError(f"the broker sent {what}"))
