"""One-row INSERTs, each committed, by many connections of one process.

libpq without a driver's layers above it, so that the process asking is not what is measured.
"""

import itertools
import select
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import psycopg
from psycopg import pq

_STATEMENT = b"INSERT INTO spillway_bench.message VALUES ($1, $2, $3)"
_NAME = b"store"
_INT8, _TEXT, _BYTEA = 20, 25, 17
_BINARY = pq.Format.BINARY
_WARMUP_S = 1.0
_ANSWER_S = 10.0


def transaction_id(number: int) -> bytes:
    """As long and as alike as those of a real producer."""
    return b"baseline-baseline-base-%d" % number


@dataclass(frozen=True, slots=True)
class InsertRate:
    """Rows a second, and by how many connections."""

    rows_per_s: float
    connections: int


def insert_rate(url: str, wanted: int, bodies: Sequence[bytes], seconds: float) -> InsertRate:
    """Each connection inserts the next row as soon as its last one is committed."""
    with ExitStack() as stack:
        connections = _connect(stack, url, wanted)
        for connection in connections:
            connection.pgconn.prepare(_NAME, _STATEMENT, [_INT8, _TEXT, _BYTEA])
        rows = _Rows([connection.pgconn for connection in connections], bodies)
        rows.keep_inserting(_WARMUP_S)
        counted = rows.keep_inserting(seconds)
        rows.await_last()
    return InsertRate(counted / seconds, len(connections))


def _connect(stack: ExitStack, url: str, wanted: int) -> list[psycopg.Connection]:
    """As many as the server lets us have, if those are fewer."""
    connections: list[psycopg.Connection] = []
    for _ in range(wanted):
        try:
            connection = psycopg.connect(url, autocommit=True)
        except psycopg.OperationalError:
            if not connections:
                raise
            break
        connections.append(stack.enter_context(connection))
    return connections


class _Rows:
    """The rows in flight, one a connection."""

    def __init__(self, connections: Sequence[pq.abc.PGconn], bodies: Sequence[bytes]) -> None:
        self._numbers = itertools.count()
        self._bodies: Iterator[bytes] = itertools.cycle(bodies)
        self._poll = select.epoll()
        self._by_socket = {connection.socket: connection for connection in connections}
        for socket, connection in self._by_socket.items():
            self._poll.register(socket, select.EPOLLIN)
            self._send(connection)

    def keep_inserting(self, seconds: float) -> int:
        """How many rows were committed."""
        until = time.perf_counter() + seconds
        committed = 0
        while time.perf_counter() < until:
            for socket, _ in self._poll.poll(max(0.0, until - time.perf_counter())):
                connection = self._by_socket[socket]
                if self._committed(connection):
                    committed += 1
                    self._send(connection)
        return committed

    def await_last(self) -> None:
        """The connections are closed cleanly once nothing is in flight."""
        left = set(self._by_socket)
        until = time.perf_counter() + _ANSWER_S
        while left and time.perf_counter() < until:
            for socket, _ in self._poll.poll(_ANSWER_S):
                if self._committed(self._by_socket[socket]):
                    left.discard(socket)
        self._poll.close()

    def _send(self, connection: pq.abc.PGconn) -> None:
        number = next(self._numbers)
        row = [number.to_bytes(8, "big"), transaction_id(number), next(self._bodies)]
        connection.send_query_prepared(_NAME, row, [_BINARY] * len(row))
        connection.flush()

    def _committed(self, connection: pq.abc.PGconn) -> bool:
        connection.consume_input()
        if connection.is_busy():
            return False
        while (result := connection.get_result()) is not None:
            if result.status != pq.ExecStatus.COMMAND_OK:
                raise psycopg.OperationalError(result.error_message.decode(errors="replace"))
        return True
