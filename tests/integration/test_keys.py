"""API keys in the tables, and how a broker looks at them."""

import asyncio
from itertools import pairwise

import pytest

from spillway.broker import keys as known
from spillway.core.errors import UnauthorizedError
from spillway.log import keys


async def test_a_revoked_key_is_refused_when_the_broker_has_forgotten_it(desk, monkeypatch):
    """A key is remembered for a while and no longer; one that nobody asked for, not at all."""
    busy = await keys.create(desk.url, "acme", "busy")
    idle = await keys.create(desk.url, "acme", "idle")
    assert await desk.broker.keys.authenticate(busy) == ("acme", "busy")
    await keys.revoke(desk.url, "acme", "busy")
    await keys.revoke(desk.url, "acme", "idle")
    with pytest.raises(UnauthorizedError):
        await desk.broker.keys.authenticate(idle)
    assert await desk.broker.keys.authenticate(busy) == ("acme", "busy")
    monkeypatch.setattr(known, "REMEMBERED_S", 0.0)
    with pytest.raises(UnauthorizedError):
        await desk.broker.keys.authenticate(busy)


async def test_of_two_creators_of_one_name_one_wins(database_url):
    """The other is told that the name is taken; two live keys of one name never exist."""
    made = await asyncio.gather(
        *(keys.create(database_url, "acme", "ci") for _ in range(4)), return_exceptions=True
    )
    assert sorted(type(one).__name__ for one in made) == ["KeyExistsError"] * 3 + ["str"]
    assert len(await keys.list_keys(database_url, None, revoked=True)) == 1


async def test_keys_are_listed_by_org_and_age(database_url):
    """Every org, or one; those that are revoked on request."""
    for org, name in (("b", "late"), ("a", "one"), ("a", "two")):
        await keys.create(database_url, org, name)
    await keys.revoke(database_url, "a", "one")
    everything = await keys.list_keys(database_url, None, revoked=True)
    assert [(one.org, one.name) for one in everything] == [
        ("a", "one"),
        ("a", "two"),
        ("b", "late"),
    ]
    assert all(older.created_at <= newer.created_at for older, newer in pairwise(everything[:2]))
    assert [one.name for one in await keys.list_keys(database_url, "a", revoked=False)] == ["two"]
