"""The broker's doors to PostgreSQL: a small pool for questions, own connections for commits."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout

from spillway.core.errors import DatabaseUnavailableError
from spillway.log.connect import classify, connect
from spillway.log.queries import QUERIES

POOL_SIZE_MAX = 6
POOL_WAIT_S = 2.0
STATEMENT_TIMEOUT_S = 30


class Database:
    """PostgreSQL, as the broker uses it. Every failure comes out as a SpillwayError."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._pool = AsyncConnectionPool(
            url,
            min_size=1,
            max_size=POOL_SIZE_MAX,
            timeout=POOL_WAIT_S,
            reconnect_timeout=2.0,
            kwargs={
                "autocommit": True,
                "application_name": "spillway",
                "options": f"-c statement_timeout={STATEMENT_TIMEOUT_S}s",
            },
            configure=_begin_session,
            check=AsyncConnectionPool.check_connection,
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


async def _begin_session(conn: psycopg.AsyncConnection) -> None:
    """Whatever the role's defaults are, ours hold."""
    await conn.execute(QUERIES["session"].sql)
