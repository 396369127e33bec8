"""Slow questions keep others waiting, and are no outage."""

import asyncio
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import psycopg
import pytest

from spillway.core.errors import DatabaseUnavailableError, OverloadedError
from spillway.log import database as database_module
from spillway.log.database import POOL_SIZE_MAX, Database


@pytest.fixture
async def database(database_url, monkeypatch):
    """A door to the database; who waits at it does not wait for long."""
    monkeypatch.setattr(database_module, "POOL_WAIT_S", 0.1)
    database = Database(database_url)
    database._pool.timeout = 0.1
    await database.open()
    yield database
    await database.close()


async def taken(stack, database, count):
    """So many connections that are busy until the stack ends."""
    for _ in range(count):
        await stack.enter_async_context(database.connection())


async def test_a_busy_pool_is_no_outage(database):
    """PostgreSQL answers whoever asks it: there is too much work, and that passes."""
    async with AsyncExitStack() as stack:
        await taken(stack, database, POOL_SIZE_MAX)
        waiting = [database.rows("shards") for _ in range(20)]
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {OverloadedError}
    assert await database.rows("shards") == []


async def test_a_pool_that_cannot_connect_is_one(postgres, database, database_url):
    """Nobody gets a connection, the one who looks why does not either."""
    name = urlsplit(database_url).path[1:]
    async with AsyncExitStack() as stack:
        await taken(stack, database, POOL_SIZE_MAX)
        with psycopg.connect(postgres.url, autocommit=True) as admin:
            admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
            with pytest.raises(DatabaseUnavailableError):
                await database.rows("shards")
            admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")


async def test_slow_questions_of_operators_hold_up_nobody_else(desk):
    """They have connections of their own, and so have the leases on the shards."""
    operators = desk.broker._operators
    async with AsyncExitStack() as stack:
        await taken(stack, operators, 3)
        await taken(stack, desk.broker.database, POOL_SIZE_MAX - 1)
        assert await desk.told("one", queue="new", partition="new") == ["stored"]
        for shard in desk.broker.shards:
            await shard.renew(desk.broker.ownership._database)
        assert all(shard.owned for shard in desk.broker.shards)
        assert desk.broker.breaker.trips == 0


async def test_busy_connections_refuse_a_push_and_open_no_breaker(desk):
    """The one who needs a question answered comes again; all others go on."""
    await desk.push(1)
    async with AsyncExitStack() as stack:
        await taken(stack, desk.broker.database, POOL_SIZE_MAX)
        assert await desk.told("one", partition="new") == ["overloaded"]
        assert await desk.told("two") == ["stored"]
        for shard in desk.broker.shards:
            await shard.renew(desk.broker.ownership._database)
        assert desk.broker.breaker.trips == 0
    assert await desk.told("one", partition="new") == ["stored"]
