"""The broker's doors to PostgreSQL: small pools for questions, own connections for commits."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import psycopg
from psycopg import waiting
from psycopg.abc import PQGen
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout

from spillway.core.errors import DatabaseUnavailableError, OverloadedError, SpillwayError
from spillway.log.connect import Connection, classify, connect
from spillway.log.queries import QUERIES

POOL_SIZE_MAX = 6
POOL_WAIT_S = 1.25
PROBE_TIMEOUT_S = 0.75
"""Together below the patience of a request: it is to hear which of both it is."""
CONNECT_TIMEOUT_S = 5
"""psycopg's own patience is two minutes, for each connection of the pool."""
RECONNECT_S = 0.2
"""Left alone, the pool waits longer and longer: whoever asks next is to find it awake."""
STATEMENT_TIMEOUT_S = 12
ANSWER_TIMEOUT_S = 15.0
"""PostgreSQL ends a statement before this; a backend that does not is frozen."""
CHECK_TIMEOUT_S = 0.5
WAIT_INTERVAL_S = 1.0

RV = TypeVar("RV")


class PromptConnection(Connection):
    """A connection that is given up at once where psycopg's own would wait for a cancel."""

    async def wait(
        self,
        gen: PQGen[RV],
        interval: float = WAIT_INTERVAL_S,
        timeout: float | None = None,  # noqa: ASYNC109 (psycopg's signature)
    ) -> RV:
        """The answer within the timeout, or a closed connection."""
        try:
            async with asyncio.timeout(timeout or ANSWER_TIMEOUT_S):
                return await waiting.wait_async(gen, self.pgconn.socket, interval=interval)
        except TimeoutError as exc:
            self.pgconn.finish()
            raise psycopg.OperationalError("PostgreSQL does not answer a statement") from exc
        except asyncio.CancelledError:
            self.pgconn.finish()
            raise


class Database:
    """PostgreSQL, as the broker uses it. Every failure comes out as a SpillwayError."""

    def __init__(self, url: str, connections_max: int = POOL_SIZE_MAX) -> None:
        self.url = url
        self.on_ask: Callable[[], None] = lambda: None
        """May refuse a question before anybody waits for its answer."""
        self._beside: list[Database] = []
        self._busy = 0
        self._probing = asyncio.Lock()
        self._probed_s = float("-inf")
        self._pool = AsyncConnectionPool(
            url,
            connection_class=PromptConnection,
            min_size=1,
            max_size=connections_max,
            timeout=POOL_WAIT_S,
            reconnect_timeout=RECONNECT_S,
            kwargs={
                "autocommit": True,
                "application_name": "spillway",
                "connect_timeout": CONNECT_TIMEOUT_S,
                "options": f"-c statement_timeout={STATEMENT_TIMEOUT_S}s",
            },
            configure=_begin_session,
            check=_check,
            open=False,
        )

    def beside(self, connections_max: int) -> "Database":
        """Another door, with connections of its own: who waits there keeps nobody waiting here.

        It is opened and closed with this one.
        """
        door = Database(self.url, connections_max)
        self._beside.append(door)
        return door

    async def open(self) -> None:
        """Begin to connect; does not wait for PostgreSQL to answer."""
        await self._pool.open(wait=False)
        for door in self._beside:
            await door.open()

    async def close(self) -> None:
        """Close the pools."""
        await asyncio.gather(self._pool.close(timeout=2.0), *(d.close() for d in self._beside))

    async def dedicated(self, name: str, timeout_s: float = 2.0) -> psycopg.AsyncConnection:
        """A connection of one's own, for a writer."""
        return await connect(self.url, timeout_s=timeout_s, application_name=f"spillway {name}")

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[psycopg.AsyncConnection]:
        """A connection out of the pool."""
        self.on_ask()
        try:
            async with self._pool.connection() as conn:
                self._busy += 1
                try:
                    yield conn
                finally:
                    self._busy -= 1
        except PoolTimeout as exc:
            raise await self._why_late() from exc
        except PoolClosed as exc:
            raise DatabaseUnavailableError("the connections are closed") from exc
        except psycopg.Error as exc:
            raise classify(exc) from exc

    async def _why_late(self) -> SpillwayError:
        """No connection was had: PostgreSQL gave none or does not answer on those that are there,
        or all are busy. Busy with a silent one is away, too, so it is asked over a new one.
        """
        late = f"no connection within {POOL_WAIT_S} s"
        if self._busy < self._pool.max_size:
            return DatabaseUnavailableError(late)
        async with self._probing:
            if time.monotonic() - self._probed_s > PROBE_TIMEOUT_S:
                try:
                    conn = await self.dedicated("probe", PROBE_TIMEOUT_S)
                except SpillwayError as error:
                    return DatabaseUnavailableError(f"{late}: {error.message}")
                self._probed_s = time.monotonic()
                await conn.close()
        return OverloadedError(f"{late}: all are busy")

    async def rows(self, query: str, **params: Any) -> list[tuple[Any, ...]]:
        """Run a named query."""
        async with self.connection() as conn:
            cursor = await conn.execute(QUERIES[query].sql, params)
            return await cursor.fetchall() if cursor.description else []

    async def row(self, query: str, **params: Any) -> tuple[Any, ...] | None:
        """Run a named query for at most one row."""
        found = await self.rows(query, **params)
        return found[0] if found else None


async def _check(conn: psycopg.AsyncConnection) -> None:
    """Whether a connection still answers: its server may have been restarted, or be frozen."""
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            await AsyncConnectionPool.check_connection(conn)
    except TimeoutError as exc:
        raise psycopg.OperationalError("the connection does not answer") from exc


async def _begin_session(conn: psycopg.AsyncConnection) -> None:
    """Whatever the role's defaults are, ours hold."""
    await conn.execute(QUERIES["session"].sql)
