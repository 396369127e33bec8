"""The blocking way to carry a request: kept-alive sockets, safe to share between threads."""

import os
import select
import socket
import ssl
import time
from collections import deque

from spillway.client.errors import BrokerUnreachableError, ClientClosedError, RequestTimeoutError
from spillway.client.http1 import Exchange, Origin, Response

RECEIVE_BYTES = 256 * 1024
IDLE_MAX = 32


class SocketTransport:
    """Carries requests to one origin; one connection per request in flight, reused after."""

    def __init__(self, origin: Origin, *, tls: ssl.SSLContext | None = None) -> None:
        self._origin = origin
        self._tls = tls or (ssl.create_default_context() if origin.tls else None)
        self._idle: deque[socket.socket] = deque()
        self._pid = os.getpid()
        self._closed = False

    def send(self, data: bytes, timeout_s: float) -> Response:
        """The answer to these bytes; raises BrokerUnreachableError, never an OSError."""
        if self._closed:
            raise ClientClosedError
        deadline = time.monotonic() + timeout_s
        connection = self._take() or self._connect(deadline)
        reusable = False
        try:
            exchange = _carry(connection, data, deadline)
            reusable = exchange.reusable
        except TimeoutError as error:
            raise RequestTimeoutError(
                f"no answer from {self._origin.url} within {round(timeout_s, 2):g} s", sent=True
            ) from error
        except OSError as error:
            raise BrokerUnreachableError(
                f"the connection to {self._origin.url} broke: {error}", sent=True
            ) from error
        finally:
            self._give_back(connection, reusable=reusable)
        assert exchange.response is not None
        return exchange.response

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def _take(self) -> socket.socket | None:
        if self._pid != os.getpid():  # sockets inherited by a fork belong to the parent
            self._idle, self._pid = deque(), os.getpid()
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread was faster
                return None
            if not _has_news(connection):
                return connection
            connection.close()
        return None

    def _give_back(self, connection: socket.socket, *, reusable: bool) -> None:
        if reusable and not self._closed and len(self._idle) < IDLE_MAX:
            self._idle.append(connection)
        else:
            connection.close()

    def _connect(self, deadline: float) -> socket.socket:
        address = (self._origin.host, self._origin.port)
        connection: socket.socket | None = None
        try:
            connection = socket.create_connection(address, _left_s(deadline))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                connection.settimeout(_left_s(deadline))
                connection = self._tls.wrap_socket(connection, server_hostname=self._origin.host)
        except OSError as error:
            if connection is not None:
                connection.close()
            raise BrokerUnreachableError(
                f"no connection to {self._origin.url}: {error}", sent=False
            ) from error
        return connection


def _has_news(connection: socket.socket) -> bool:
    """An idle connection with something to read was closed by the broker."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


def _carry(connection: socket.socket, data: bytes, deadline: float) -> Exchange:
    exchange = Exchange()
    connection.settimeout(_left_s(deadline))
    broken: OSError | None = None
    try:
        connection.sendall(data)
    except (BrokenPipeError, ConnectionResetError) as error:
        broken = error  # the broker may have refused early: its answer can still be there
    while exchange.response is None:
        connection.settimeout(_left_s(deadline))
        received = connection.recv(RECEIVE_BYTES)
        if received:
            exchange.feed(received)
            continue
        exchange.feed_eof()
        if exchange.response is None:
            raise broken or ConnectionResetError("closed before the answer was complete")
    exchange.reusable = exchange.reusable and broken is None
    return exchange


def _left_s(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
