"""The broker's doors to PostgreSQL: a small pool for questions, own connections for commits."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import psycopg
from psycopg import waiting
from psycopg.abc import PQGen
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout

from spillway.core.errors import DatabaseUnavailableError
from spillway.log.connect import classify, connect
from spillway.log.queries import QUERIES

POOL_SIZE_MAX = 6
POOL_WAIT_S = 2.0
RECONNECT_S = 0.2
"""Left alone, the pool waits longer and longer: whoever asks next is to find it awake."""
STATEMENT_TIMEOUT_S = 12
ANSWER_TIMEOUT_S = 15.0
"""PostgreSQL ends a statement before this; a backend that does not is frozen."""
CHECK_TIMEOUT_S = 1.0
WAIT_INTERVAL_S = 1.0

RV = TypeVar("RV")


class PromptConnection(psycopg.AsyncConnection):
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

    def __init__(self, url: str) -> None:
        self.url = url
        self._pool = AsyncConnectionPool(
            url,
            connection_class=PromptConnection,
            min_size=1,
            max_size=POOL_SIZE_MAX,
            timeout=POOL_WAIT_S,
            reconnect_timeout=RECONNECT_S,
            kwargs={
                "autocommit": True,
                "application_name": "spillway",
                "options": f"-c statement_timeout={STATEMENT_TIMEOUT_S}s",
            },
            configure=_begin_session,
            check=_check,
            open=False,
        )

    async def open(self) -> None:
        """Begin to connect; does not wait for PostgreSQL to answer."""
        await self._pool.open(wait=False)

    async def close(self) -> None:
        """Close the pool."""
        await self._pool.close(timeout=2.0)

    async def dedicated(self, name: str, timeout_s: float = 2.0) -> psycopg.AsyncConnection:
        """A connection of one's own, for a writer."""
        return await connect(self.url, timeout_s=timeout_s, application_name=f"spillway {name}")

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[psycopg.AsyncConnection]:
        """A connection out of the pool."""
        try:
            async with self._pool.connection() as conn:
                yield conn
        except (PoolTimeout, PoolClosed) as exc:
            raise DatabaseUnavailableError(f"no connection within {POOL_WAIT_S} s") from exc
        except psycopg.Error as exc:
            raise classify(exc) from exc

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
