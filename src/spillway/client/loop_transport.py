"""The asyncio way to carry a request: kept-alive connections, bounded in number."""

import asyncio
import ssl
from collections import deque
from typing import cast

from spillway.client.errors import BrokerUnreachableError, ClientClosedError, RequestTimeoutError
from spillway.client.http1 import Exchange, Origin, Response
from spillway.core.errors import SpillwayError

CONNECTIONS_MAX = 100


class _Connection(asyncio.Protocol):
    """One connection; at most one exchange at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.open = False
        self._exchange: Exchange | None = None
        self._waiter: asyncio.Future[Response] | None = None

    @property
    def reusable(self) -> bool:
        return self.open and self._exchange is not None and self._exchange.reusable

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport, self.open = cast("asyncio.Transport", transport), True  # also uvloop's

    def data_received(self, data: bytes) -> None:
        if self._exchange is None or self._exchange.response is not None:
            self.close()  # nobody asked: this connection is out of step
            return
        try:
            self._exchange.feed(data)
        except SpillwayError as error:
            self._fail(error)
        self._resolve()

    def eof_received(self) -> None:
        if self._exchange is not None:
            self._exchange.feed_eof()
            self._resolve()

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        why = exc or "closed before the answer was complete"
        self._fail(BrokerUnreachableError(f"the connection to the broker broke: {why}", sent=True))

    async def exchange(self, data: bytes) -> Response:
        assert self.transport is not None
        self._exchange = Exchange()
        self._waiter = asyncio.get_running_loop().create_future()
        self.transport.write(data)
        return await self._waiter

    def close(self) -> None:
        self.open = False
        if self.transport is not None:
            self.transport.abort()

    def _resolve(self) -> None:
        response = None if self._exchange is None else self._exchange.response
        if response is not None and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(response)

    def _fail(self, error: Exception) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)


class LoopTransport:
    """Carries requests to one origin on the running event loop."""

    def __init__(
        self,
        origin: Origin,
        *,
        tls: ssl.SSLContext | None = None,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        self._origin = origin
        self._tls = tls or (ssl.create_default_context() if origin.tls else None)
        self._connections_max = connections_max
        self._idle: deque[_Connection] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._room = asyncio.Semaphore(connections_max)
        self._closed = False

    async def send(self, data: bytes, timeout_s: float) -> Response:
        """The answer to these bytes; waiting for a free connection counts."""
        if self._closed:
            raise ClientClosedError
        self._follow_loop()
        connection: _Connection | None = None
        response: Response | None = None
        try:
            async with asyncio.timeout(timeout_s), self._room:
                connection = self._take() or await self._connect()
                response = await connection.exchange(data)
        except TimeoutError as error:
            what = "no free connection to" if connection is None else "no answer from"
            raise RequestTimeoutError(
                f"{what} {self._origin.url} within {round(timeout_s, 2):g} s",
                sent=connection is not None,
            ) from error
        finally:
            if connection is not None:
                self._give_back(connection, reusable=response is not None)
        return response

    async def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def _take(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.open:
                return connection
        return None

    def _give_back(self, connection: _Connection, *, reusable: bool) -> None:
        if reusable and connection.reusable and not self._closed:
            self._idle.append(connection)
        else:
            connection.close()

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                _Connection, self._origin.host, self._origin.port, ssl=self._tls
            )
        except OSError as error:
            raise BrokerUnreachableError(
                f"no connection to {self._origin.url}: {error}", sent=False
            ) from error
        return connection

    def _follow_loop(self) -> None:
        """A client that moves to another event loop leaves its old connections behind."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._idle = loop, deque()
            self._room = asyncio.Semaphore(self._connections_max)
