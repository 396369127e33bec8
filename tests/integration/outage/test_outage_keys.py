"""API keys while PostgreSQL is away: whoever was known stays known."""

import asyncio

import msgspec
import pytest

from spillway.broker import breaker, keys
from spillway.core.errors import DatabaseUnavailableError, UnauthorizedError
from spillway.log import keys as table


@pytest.fixture(autouse=True)
def forgetful(monkeypatch):
    """A key is looked up for each request."""
    monkeypatch.setattr(keys, "REMEMBERED_S", 0.0)


async def test_a_known_key_outlives_its_memory_in_an_outage(
    open_desk, database, eventually_async, recovered
):
    """A producer does not lose service because its key cannot be looked up; a stranger hears at
    once why it cannot be served.
    """
    key, other = [await table.create(database.url, "acme", name) for name in ("ci", "other")]
    async with open_desk() as desk:
        authenticate = desk.broker.keys.authenticate
        assert await authenticate(key) == ("acme", "ci")
        async with database.away():
            await eventually_async(lambda: desk.broker.breaker.is_open)
            assert await authenticate(key) == ("acme", "ci")
            async with asyncio.timeout(1.0):
                with pytest.raises(DatabaseUnavailableError):
                    await authenticate(other)
        await recovered(desk)
        assert await authenticate(other) == ("acme", "other")


async def test_a_frozen_database_costs_a_known_key_one_patience(open_desk, database, monkeypatch):
    """The first request waits, and trips the breaker for the others."""
    key = await table.create(database.url, "acme", "ci")
    async with open_desk() as desk:
        assert await desk.broker.keys.authenticate(key) == ("acme", "ci")

        async def never(*_, **__):
            await asyncio.Event().wait()

        with monkeypatch.context() as frozen:
            frozen.setattr(breaker, "PATIENCE_S", 0.05)
            frozen.setattr(desk.broker.database, "row", never)
            frozen.setattr(desk.broker.breaker, "reset", lambda: None)
            with pytest.raises(DatabaseUnavailableError):
                await desk.broker.keys.authenticate("a stranger")
            assert not desk.broker.breaker.is_open
            assert await desk.broker.keys.authenticate(key) == ("acme", "ci")
            assert desk.broker.breaker.is_open


async def test_a_broker_that_starts_in_an_outage_knows_the_keys(
    open_desk, database, folder, eventually_async, recovered
):
    """From a file that is for nobody else, and holds digests: no key can be read from it."""
    key = await table.create(database.url, "acme", "ci")
    path = folder / "keys.json"
    async with open_desk() as desk:
        assert await desk.broker.keys.authenticate(key) == ("acme", "ci")
    digest = table.digest_of(key).hex()
    assert msgspec.json.decode(path.read_bytes()) == {digest: ["acme", "ci"]}
    assert path.stat().st_mode & 0o777 == 0o600
    await database.go()
    async with open_desk() as desk:
        assert await desk.broker.keys.authenticate(key) == ("acme", "ci")
        assert await desk.broker.push("acme", desk.items("one"))
        await database.come()
        await recovered(desk)
        await table.revoke(database.url, "acme", "ci")
        with pytest.raises(UnauthorizedError):
            await desk.broker.keys.authenticate(key)
        await eventually_async(lambda: msgspec.json.decode(path.read_bytes()) == {})
        await eventually_async(lambda: not desk.broker.spool.pending)


async def test_a_damaged_file_of_keys_is_no_reason_not_to_start(open_desk, database, folder):
    """What it held is asked for again."""
    key = await table.create(database.url, "acme", "ci")
    folder.mkdir()
    (folder / "keys.json").write_text("{")
    async with open_desk() as desk:
        assert await desk.broker.keys.authenticate(key) == ("acme", "ci")
        assert desk.broker.spool.foreign == []
