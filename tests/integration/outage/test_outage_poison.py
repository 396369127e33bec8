"""What cannot be replayed is set aside alone, with its reason; mended, it goes to its lane."""

import asyncio
import os

import pytest

from spillway import wire
from spillway.broker import revival
from spillway.core.errors import SpillwayError
from spillway.log.database import Database


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
        await database.refuse_poison()
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
        await database.take_poison()
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
        await database.refuse_poison()
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
        await database.refuse_poison()
        async with database.away():
            for at in range(100):
                await push(desk, f"{at}", f"poison {at}")
            assert await push(desk, "free", partition="free") == ["buffered"]
        await drained(desk, failed=100)
        assert await database.log() == [f"{at}" for at in range(100)]
        assert await push(desk, "free 2", partition="free") == ["stored"]
        assert failed() == [(f"poison {at}", "internal") for at in range(100)]


@pytest.mark.parametrize("max_batch", [1000, 5000])
async def test_poison_at_the_head_of_many_lanes(open_desk, database, drained, failed, max_batch):
    """However much goes in together, it is more than a commit takes: the culprit is found."""
    options = {"file_buffer_max_batch": max_batch, "file_buffer_retry_interval": 3600}
    async with open_desk(num_shards=1, **options) as desk:
        await desk.queue()
        await database.refuse_poison()
        async with database.away():
            for lane in range(60):
                numbers = [f"{lane}-{number}" for number in range(60)]
                await push(desk, *numbers, *(["poison"] if lane == 0 else []), partition=f"p{lane}")
        await drained(desk, failed=1)
        assert failed() == [("poison", "internal")]
        for lane in range(60):
            log = await database.log(partition=f"p{lane}")
            assert log == [f"{lane}-{number}" for number in range(60)]


async def test_whoever_pushes_beside_poison_is_not_to_blame(
    open_desk, database, drained, valve, eventually_async
):
    """What it shares a commit with is refused: its own is buffered, and goes in."""
    async with open_desk(num_shards=1, file_buffer_retry_interval=3600) as desk:
        await desk.queue()
        for lane in range(20):
            await push(desk, "first", partition=f"p{lane}")
        await push(desk, "first", partition="live")
        await database.refuse_poison()
        async with database.away():
            await eventually_async(lambda: desk.broker.breaker.is_open, 20)
            await push(desk, "poison", partition="p0")
            for lane in range(20):
                await push(
                    desk, *(f"{lane}-{number}" for number in range(14)), partition=f"p{lane}"
                )
            await desk.broker.spool.working.acquire()
        await eventually_async(lambda: desk.broker.breaker.is_steady, 20)
        shard = desk.broker.shards[0]
        await shard.lanes(list(desk.broker.facts.cached_lanes()))
        open_, begun = valve()
        under_way = asyncio.ensure_future(push(desk, "under way", partition="live"))
        await begun.wait()
        pushing = asyncio.ensure_future(
            push(desk, *(f"live {number}" for number in range(1950)), partition="live")
        )
        await eventually_async(lambda: shard.draft_messages >= 1950)
        desk.broker.spool.working.release()
        await eventually_async(lambda: shard.draft_messages > 1950)
        open_.set()
        assert await under_way == ["stored"]
        assert set(await pushing) == {"buffered"}
        await drained(desk, failed=1)
        log = await database.log(partition="live")
        assert log == ["first", "under way", *(f"live {number}" for number in range(1950))]


async def test_poison_that_stays_disturbs_once_a_round(open_desk, database, drained, monkeypatch):
    """Of what PostgreSQL refused before only one is tried, until it goes in; then all."""
    monkeypatch.setattr(revival, "ROUNDS_MAX", 0)
    async with open_desk(num_shards=1, file_buffer_retry_interval=3600) as desk:
        await desk.queue()
        await database.refuse_poison()
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
        await database.take_poison()
        assert await desk.broker.revival.run_once() == 3
        assert sorted(await database.log()) == ["poison 1", "poison 2", "poison 3"]


# ---------------------------------------------------------------- tried again, but not too often


@pytest.fixture
def looks(monkeypatch):
    """Counts how often the log is searched for transaction ids."""
    found = []
    rows = Database.rows

    async def counted(self, query, **params):
        if query == "ids_since":
            found.append(params["since_ms"])
        return await rows(self, query, **params)

    monkeypatch.setattr(Database, "rows", counted)
    return found


async def test_what_was_never_tried_is_not_looked_for(open_desk, database, drained, looks):
    """Nothing can have stored it: the log of a large lane is not read for it."""
    async with open_desk(num_shards=1, file_buffer_retry_interval=3600) as desk:
        await desk.queue()
        await database.refuse_poison()
        async with database.away():
            await push(desk, "1", "poison")
        await drained(desk, failed=1)
        looks.clear()  # a commit that broke off as the database went is in doubt by right
        await desk.broker.revival.run_once()
        await database.take_poison()
        await desk.broker.revival.retry(*desk.broker.spool.quarantine.files())
        assert not looks
        assert await database.log() == ["1", "poison"]


async def test_an_attempt_that_was_cut_off_is_looked_for(
    open_desk, database, drained, looks, monkeypatch
):
    """Its commit landed, and then the broker died: what it stored is not stored again."""
    async with open_desk(num_shards=1, file_buffer_retry_interval=3600) as desk:
        await desk.queue()
        await database.refuse_poison()
        async with database.away():
            await push(desk, "1", "poison")
        await drained(desk, failed=1)
        await database.take_poison()
        looks.clear()
        [file] = desk.broker.spool.quarantine.files()

        def die(point):
            if point == "mid_revival":
                raise RuntimeError(point)

        monkeypatch.setattr(desk.broker.spool, "reached", die)
        with pytest.raises(RuntimeError, match="mid_revival"):
            await desk.broker.revival.retry(file)
        monkeypatch.undo()
    async with open_desk(num_shards=1, file_buffer_retry_interval=3600) as desk:
        assert await database.log() == ["1", "poison"]
        await desk.broker.revival.retry(file)
        assert not desk.broker.spool.quarantined
        assert await database.log() == ["1", "poison"]


async def test_what_stays_is_tried_less_and_less_often(open_desk, database, drained, monkeypatch):
    """Twice as many rounds later each time, until somebody changes the file."""
    async with open_desk(
        num_shards=1, file_buffer_retry_interval=3600, auto_create_queues=False
    ) as desk:
        async with database.away():
            await push(desk, "1", queue="unheard-of")
        await drained(desk, failed=1)
        revived, tried, rounds = desk.broker.revival, [], []
        retry = revived._retry_file

        async def counted(*arguments, **options):
            tried.append(len(rounds))
            await retry(*arguments, **options)

        monkeypatch.setattr(revived, "_retry_file", counted)
        while len(rounds) < 20:
            rounds.append(await revived.run_once())
        assert rounds == [0] * 20
        assert tried == [0, 2, 5, 10, 19]
        await desk.queue("unheard-of")
        assert await revived.run_once() == 0
        [file] = (desk.broker.spool.config.folder / "failed").iterdir()
        os.utime(file)
        assert await revived.run_once() == 1


async def test_a_conflict_is_tried_by_hand_alone(open_desk, database, drained, monkeypatch):
    """It does not heal; with another id it is another event."""
    async with open_desk(num_shards=1, file_buffer_retry_interval=3600) as desk:
        await desk.queue()
        assert await push(desk, "1", transaction_id="a") == ["stored"]
        async with database.away():
            await push(desk, "elsewhere", queue="other")
            assert await push(desk, "2", transaction_id="a") == ["buffered"]
        await drained(desk, failed=1)
        bite = desk.broker.revival._handover.bite
        tried = []

        async def counted(*arguments, **options):
            tried.append(arguments)
            return await bite(*arguments, **options)

        monkeypatch.setattr(desk.broker.revival._handover, "bite", counted)
        assert await desk.broker.revival.run_once() == 0
        assert not tried
        [file] = desk.broker.spool.quarantine.files()
        await desk.broker.revival.retry(file)
        assert tried
        fields = wire.SpoolMended(transaction_id="b")
        mend = wire.SpoolRepairRequest(file=file, line=1, event=fields)
        await desk.broker.spoolkeeping.repair(mend, "ann")
        assert await desk.broker.revival.run_once() == 1
        assert await database.log() == ["1", "2"]


async def test_a_look_that_takes_too_long_trips_no_breaker(
    open_desk, database, drained, monkeypatch
):
    """PostgreSQL ended our statement: it is not away."""
    async with open_desk(num_shards=1, file_buffer_retry_interval=3600) as desk:
        await desk.queue()
        await database.refuse_poison()
        async with database.away():
            await push(desk, "poison")
        await drained(desk, failed=1)
        trips = desk.broker.breaker.trips

        async def too_slow(*_arguments):
            async with desk.broker.database.connection() as conn:
                await conn.execute("SET LOCAL statement_timeout = 1; SELECT pg_sleep(10)")

        monkeypatch.setattr(desk.broker.revival._handover, "split", too_slow)
        assert await desk.broker.revival.run_once() == 0
        assert desk.broker.breaker.trips == trips
