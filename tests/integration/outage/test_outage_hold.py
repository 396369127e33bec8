"""A hold is answered when nothing is on its way to PostgreSQL any more."""

import asyncio

import pytest

from spillway import wire
from spillway.broker import spoolkeeping, underway
from spillway.core.errors import OverloadedError


def hold(desk):
    request = wire.SpoolHoldRequest()
    return asyncio.ensure_future(desk.broker.spoolkeeping.hold(request, "ann"))


async def test_a_push_under_way_is_the_last(open_desk, database, valve, eventually_async):
    """Its commit had begun: the hold waits for it."""
    async with open_desk(num_shards=1) as desk:
        await desk.push("0")
        open_, begun = valve()
        pushing = asyncio.ensure_future(desk.told("1"))
        await begun.wait()
        holding = hold(desk)
        await eventually_async(lambda: desk.broker.spool.hold is not None)
        assert await desk.told("2") == ["buffered"]
        assert not holding.done()
        open_.set()
        await holding
        assert await database.log() == ["0", "1"]
        assert await pushing == ["stored"]


async def test_a_replay_ends_with_the_commits_under_way(
    open_desk, database, valve, monkeypatch, eventually_async
):
    """It does not go on with the rest of the file."""
    monkeypatch.setattr(underway, "EVENTS_MAX", 8)
    async with open_desk(num_shards=1, file_buffer_max_batch=1) as desk:
        await desk.queue()
        async with database.away():
            for number in range(50):
                await desk.told(f"{number}")
            await desk.broker.spool.working.acquire()
        await eventually_async(lambda: not desk.broker.breaker.is_open, 20)
        open_, begun = valve()
        desk.broker.spool.working.release()
        await begun.wait()
        holding = hold(desk)
        await eventually_async(lambda: desk.broker.spool.hold is not None)
        open_.set()
        await holding
        stored = await database.log()
        assert 0 < len(stored) < 50
        assert desk.broker.spool.pending == 50 - len(stored)
        await desk.broker.spoolkeeping.release(wire.SpoolHoldRequest(), "ann")
        await eventually_async(lambda: not desk.broker.spool.pending, 20)
        assert await database.log() == [f"{number}" for number in range(50)]


async def test_a_commit_that_does_not_end_is_told(
    open_desk, database, valve, monkeypatch, eventually_async
):
    """The hold has begun, but nobody is to believe that PostgreSQL is left alone."""
    monkeypatch.setattr(spoolkeeping, "BUSY_S", 0.1)
    async with open_desk(num_shards=1) as desk:
        await desk.push("0")
        open_, begun = valve()
        pushing = asyncio.ensure_future(desk.told("1"))
        await begun.wait()
        with pytest.raises(OverloadedError, match="the hold has begun"):
            await hold(desk)
        open_.set()
        await pushing
        await hold(desk)
        assert await database.log() == ["0", "1"]
