"""Lanes that go into the log together: each has its own order, and its own trouble."""

import pytest

LANES = 40
EACH = 60
BUFFERED = {"buffered"}


async def fill(desk, *, skip=()) -> None:
    """A few for every lane, then a few more."""
    for half in (range(EACH // 2), range(EACH // 2, EACH)):
        for lane in range(LANES):
            if lane not in skip:
                numbers = [f"{lane}-{number}" for number in half]
                assert set(await desk.told(*numbers, partition=f"p{lane}")) == BUFFERED


async def logged(database, lane):
    return await database.log(partition=f"p{lane}")


def all_of(lane):
    return [f"{lane}-{number}" for number in range(EACH)]


async def test_every_lane_has_its_own_in_order(open_desk, database, drained):
    """Over several shards, and more than a bite takes."""
    async with open_desk(num_shards=3) as desk:
        await desk.queue()
        async with database.away():
            await fill(desk)
        await drained(desk)
        for lane in range(LANES):
            assert await logged(database, lane) == all_of(lane)


async def test_a_draft_that_is_full_in_the_middle_of_a_bite(
    open_desk, database, drained, valve, eventually_async
):
    """What went into it is known to be under way; the rest comes behind it, once."""
    options = {"num_shards": 1, "draft_messages_max": 1000}
    async with open_desk(**options) as desk:
        await desk.queue(dedupe_window_ms=0)
        async with database.away():
            await fill(desk)
            await desk.broker.spool.working.acquire()
        await eventually_async(lambda: not desk.broker.breaker.is_open, 20)
        open_, begun = valve()
        desk.broker.spool.working.release()
        await begun.wait()
        await eventually_async(lambda: desk.broker.shards[0].draft_messages >= 1000)
        open_.set()
        await drained(desk)
        for lane in range(LANES):
            assert await logged(database, lane) == all_of(lane)


async def test_an_id_that_is_taken_is_the_trouble_of_its_lane(open_desk, database, drained, failed):
    """It is set aside before anything behind it goes in; the lanes beside it have theirs."""
    async with open_desk(num_shards=1, file_buffer_retry_interval=3600) as desk:
        await desk.queue()
        assert await desk.told("first", partition="p7", transaction_id="a") == ["stored"]
        async with database.away():
            await desk.told("0-0", partition="p0")
            assert await desk.told("other", partition="p7", transaction_id="a") == ["buffered"]
            await fill(desk, skip={0})
        await drained(desk, failed=1)
        assert failed() == [("other", "transaction_conflict")]
        assert await logged(database, 7) == ["first", *all_of(7)]
        assert await logged(database, 8) == all_of(8)


async def test_an_id_stands_once_though_it_came_in_two_runs(open_desk, database, drained):
    """Pushed again in the outage, from before the queue was known: one message."""
    async with open_desk(num_shards=1) as desk:
        async with database.away():
            for _ in range(2):
                told = await desk.told("once", transaction_id="a")
                told += await desk.told("twice", partition="Default", transaction_id="b")
                assert set(told) == BUFFERED
        await drained(desk)
        assert sorted(await database.log()) == ["once", "twice"]


@pytest.mark.parametrize("depth", [1, 10])
async def test_a_full_lane_waits_alone(open_desk, database, drained, eventually_async, depth):
    """The others are in the log; when there is room the rest of it follows, in order."""
    async with open_desk(num_shards=1) as desk:
        await desk.queue("small", max_depth=depth)
        await desk.queue()
        async with database.away():
            numbers = [f"{number}" for number in range(12)]
            assert set(await desk.told(*numbers, queue="small")) == BUFFERED
            await fill(desk)
        spool = desk.broker.spool
        await eventually_async(lambda: spool.pending == 12 - depth, 20)
        for lane in range(LANES):
            assert await logged(database, lane) == all_of(lane)
        assert await database.log("small") == numbers[:depth]
        await desk.queue("small", max_depth=0)
        await drained(desk)
        assert await database.log("small") == numbers
