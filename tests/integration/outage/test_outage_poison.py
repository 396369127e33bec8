"""What cannot be replayed is set aside alone, with its reason; mended, it goes to its lane."""

import asyncio

import pytest

from spillway.core.errors import SpillwayError

CHOOSY = """
    CREATE FUNCTION choosy() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF array_to_string(NEW.transaction_ids, ' ') LIKE '%poison%' THEN
            RAISE EXCEPTION USING ERRCODE = '23514', MESSAGE = 'no poison here';
        END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER choosy BEFORE INSERT ON spillway.message_batch
    FOR EACH ROW EXECUTE FUNCTION choosy()
"""
"""A rule of somebody's own: PostgreSQL refuses the whole commit for one message in it."""
NO_LONGER_CHOOSY = "DROP TRIGGER choosy ON spillway.message_batch"


@pytest.fixture
def revived(eventually_async, drained):
    """Comes back when everything that was set aside is in the log."""

    async def wait(desk):
        await eventually_async(lambda: not desk.broker.spool.quarantined, 20)
        await drained(desk)
        assert not list((desk.broker.spool.config.folder / "failed").iterdir())

    return wait


async def push(desk, *ids, **item):
    return await desk.told(*ids, **item)


# ---------------------------------------------------------------- the rules of today


async def test_a_queue_that_is_gone_takes_its_own_events_only(
    open_desk, database, drained, failed, revived
):
    """Deleted while they waited, and pushes may not make queues; made again, it gets them."""
    async with open_desk(auto_create_queues=False) as desk:
        await desk.queue("orders")
        await desk.queue("doomed")
        async with database.away():
            for number in range(4):
                await push(desk, f"{number}")
                await push(desk, f"d{number}", queue="doomed")
            assert await push(desk, "stranger", queue="unheard-of") == ["buffered"]
        async with desk.broker.spool.working:
            await database.execute(
                "UPDATE spillway.queue SET deleted_at = now() WHERE name = 'doomed'"
            )
            desk.broker.facts.forget(desk.broker.facts.cached_queue("default", "doomed"))
        await drained(desk, failed=5)
        assert await database.log() == ["0", "1", "2", "3"]
        assert failed() == [
            *((f"d{number}", "queue_not_found") for number in range(4)),
            ("stranger", "queue_not_found"),
        ]
        assert await push(desk, "4") == ["stored"]
        await desk.queue("doomed")
        await desk.queue("unheard-of")
        await revived(desk)
        assert await database.log("doomed") == ["d0", "d1", "d2", "d3"]
        assert await database.log("unheard-of") == ["stranger"]
        assert desk.broker.revival.revived == 5


async def test_a_tenant_over_its_cap(open_desk, database, drained, failed, revived):
    """One queue too many is set aside; when there is room for it, it is made."""
    async with open_desk(queues_per_org_max=2) as desk:
        await desk.queue("orders")
        await desk.queue("old")
        async with database.away():
            assert await push(desk, "1") + await push(desk, "2", queue="new") == ["buffered"] * 2
            assert await push(desk, "3") == ["buffered"]
        await drained(desk, failed=1)
        assert failed() == [("2", "quota_exceeded")]
        await desk.operations.delete_queue("default", "old", "ann", None)
        await revived(desk)
        assert await database.log() == ["1", "3"]
        assert await database.log("new") == ["2"]


async def test_a_limit_that_was_lowered(open_desk, database, drained, failed, revived):
    """A message that is too long today is set aside; with the old limit back it goes in."""
    long = "x" * 200
    async with open_desk() as desk:
        await desk.queue()
        async with database.away():
            for one in ("1", long, "3"):
                assert await push(desk, one) == ["buffered"]
            await desk.broker.stop()
    async with open_desk(message_bytes_max=100) as desk:
        await drained(desk, failed=1)
        assert failed() == [(long, "invalid_item")]
        assert await database.log() == ["1", "3"]
    async with open_desk() as desk:
        assert (await desk.broker.health()).spool.failed == 1
        await revived(desk)
        assert await database.log() == ["1", "3", long]


# ---------------------------------------------------------------- PostgreSQL itself refuses


async def test_what_postgresql_refuses_is_set_aside_alone(
    open_desk, database, drained, failed, revived
):
    """One message in each of two lanes; what shares its commit is not blamed for it."""
    async with open_desk(num_shards=1) as desk:
        await desk.queue()
        await database.execute(CHOOSY)
        async with database.away():
            for one in ("1", "poison 1", "2", "3"):
                await push(desk, one)
            for lane in range(5):
                await push(desk, f"lone {lane}", partition=f"lane-{lane}")
            await push(desk, "4", "poison 2", "5", partition="worse")
        await drained(desk, failed=2)
        assert failed() == [("poison 1", "internal"), ("poison 2", "internal")]
        assert await database.log() == ["1", "2", "3"]
        assert await database.log(partition="worse") == ["4", "5"]
        for lane in range(5):
            assert await database.log(partition=f"lane-{lane}") == [f"lone {lane}"]
        await database.execute(NO_LONGER_CHOOSY)
        await revived(desk)
        assert await database.log() == ["1", "2", "3", "poison 1"]
        assert await database.log(partition="worse") == ["4", "5", "poison 2"]


async def test_poison_does_not_spoil_what_shares_its_commit(
    open_desk, database, drained, failed, eventually_async
):
    """Pushed together with others: alone it is refused, among them the replay finds it out."""
    async with open_desk(num_shards=1) as desk:
        await desk.queue()
        for at in range(20):
            await push(desk, f"first of {at}", partition=f"p{at}")
        await push(desk, "0")
        await database.execute(CHOOSY)
        with pytest.raises(SpillwayError, match="no poison here"):
            await push(desk, "poison alone")
        assert await push(desk, "1") == ["stored"]
        pushes = [push(desk, f"{at}", partition=f"p{at}") for at in range(20)]
        pushes.insert(10, push(desk, "poison among others"))
        told = [status for one in await asyncio.gather(*pushes) for status in one]
        assert set(told) == {"buffered"}
        await drained(desk, failed=1)
        assert failed() == [("poison among others", "internal")]
        for at in range(20):
            assert await database.log(partition=f"p{at}") == [f"first of {at}", f"{at}"]
        assert desk.broker.breaker.trips == 0
        assert desk.broker.shards[0].epoch == 1


async def test_many_poisonous_messages_do_not_stall_the_others(
    open_desk, database, drained, failed
):
    """They are found out one after the other, without a pause, and live pushes go on."""
    # Not tried again meanwhile: whatever is pushed beside such a refusal is buffered.
    async with open_desk(num_shards=1, file_buffer_retry_interval=3600) as desk:
        await desk.queue()
        await database.execute(CHOOSY)
        async with database.away():
            for at in range(100):
                await push(desk, f"{at}", f"poison {at}")
            assert await push(desk, "free", partition="free") == ["buffered"]
        await drained(desk, failed=100)
        assert await database.log() == [f"{at}" for at in range(100)]
        assert await push(desk, "free 2", partition="free") == ["stored"]
        assert failed() == [(f"poison {at}", "internal") for at in range(100)]


async def test_poison_that_stays_disturbs_once_a_round(open_desk, database, drained, failed):
    """Of what PostgreSQL refused before only one is tried, until it goes in; then all."""
    async with open_desk(num_shards=1, file_buffer_retry_interval=3600) as desk:
        await desk.queue()
        await database.execute(CHOOSY)
        async with database.away():
            await push(desk, "poison 1", "poison 2", "poison 3")
            await push(desk, "elsewhere", queue="other")
        await drained(desk, failed=3)
        refused = 0

        undo = desk.broker.shards[0]._undo

        def count_refusals(*arguments):
            nonlocal refused
            refused += 1
            undo(*arguments)

        desk.broker.shards[0]._undo = count_refusals
        for round_ in range(1, 4):
            assert await desk.broker.revival.run_once() == 0
            assert refused == round_
        await database.execute(NO_LONGER_CHOOSY)
        assert await desk.broker.revival.run_once() == 3
        assert sorted(await database.log()) == ["poison 1", "poison 2", "poison 3"]
