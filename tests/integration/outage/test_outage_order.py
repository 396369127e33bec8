"""Before, during and after an outage: everything that was answered is there once, in order."""

import asyncio

import psycopg
import pytest

from spillway.broker import draft
from spillway.log.writer import Writer

BUFFERED, STORED = ["buffered"], ["stored"]


async def told(desk, *numbers, **item):
    """Push numbers one after the other; what was said to each."""
    return [status for number in numbers for status in await desk.told(number, **item)]


async def test_a_lane_keeps_its_order_through_an_outage(open_desk, database, drained, spooled):
    """What was pushed before, during and after it stands in the log as it was pushed."""
    async with open_desk() as desk:
        assert await told(desk, 1, 2) == STORED * 2
        async with database.away():
            assert await told(desk, 3, 4, 5) == BUFFERED * 3
            assert spooled() == [3, 4, 5]
        await told(desk, 6)
        await drained(desk)
        assert await told(desk, 7) == STORED
        assert await database.log() == [1, 2, 3, 4, 5, 6, 7]


async def test_what_comes_to_a_backlog_stands_behind_it(open_desk, database, drained, recovered):
    """PostgreSQL is back, the backlog is not replayed yet: whoever pushes now joins the files."""
    async with open_desk() as desk:
        assert await told(desk, 0) == STORED
        async with database.away():
            assert await told(desk, 1) == BUFFERED
        async with desk.broker.spool.working:  # nothing is replayed inside
            await recovered(desk)
            assert await told(desk, 2) == BUFFERED
            assert await told(desk, 3, partition="free") == STORED
        await drained(desk)
        assert await told(desk, 4) == STORED
        assert await database.log() == [0, 1, 2, 4]
        assert await database.log(partition="free") == [3]


async def test_an_unknown_partition_holds_its_whole_queue(open_desk, database, drained, recovered):
    """A queue first seen in an outage: a keyed push may belong to any lane of it."""
    async with open_desk() as desk:
        async with database.away():
            assert await told(desk, 1, 2, key="k") == BUFFERED * 2
        async with desk.broker.spool.working:
            await recovered(desk)
            await desk.queue("orders")
            assert await told(desk, 3, partition="Default") == BUFFERED
            assert await told(desk, 4, key="k") == BUFFERED
        await drained(desk)
        assert await database.log() == [1, 2, 3, 4]


async def test_items_without_a_partition_are_spread_as_ever(open_desk, database, drained):
    """In an outage too each goes where its id says, so a repeat meets its first copy."""
    async with open_desk() as desk:
        await desk.queue(partitions=4)
        ids = [f"tx-{number}" for number in range(40)]

        async def push():
            return [
                (result.status, result.partition)
                for result in await desk.broker.push("default", desk.items(*ids))
            ]

        async with database.away():
            before = await push()
        await drained(desk)
        after = await push()
    assert {status for status, _ in before} == {"buffered"}
    assert {status for status, _ in after} == {"duplicate"}
    assert [partition for _, partition in before] == [partition for _, partition in after]
    assert len({partition for _, partition in before}) == 4


async def test_a_request_over_many_lanes_is_kept_whole(open_desk, database, drained):
    """Ten thousand items over a hundred partitions: every lane has its own in order."""
    async with open_desk(num_shards=3) as desk:
        await desk.queue()

        async def push(start):
            numbers = range(start, start + 10_000)
            items = desk.items(*map(str, numbers))
            for number, item in zip(numbers, items, strict=True):
                item.partition = f"p-{number % 100}"
            results = await desk.broker.push("default", items)
            return {result.status for result in results}

        async with database.away():
            assert await push(0) == {"buffered"}
        await push(10_000)
        await drained(desk)
        for lane in range(100):
            log = await database.log(partition=f"p-{lane}")
            assert [int(number) for number in log] == list(range(lane, 20_000, 100))


async def test_a_bad_item_fails_alone_while_others_are_buffered(open_desk, database, drained):
    """What would be refused in good times is refused in an outage too."""
    async with open_desk(message_bytes_max=100) as desk:
        async with database.away():
            assert await desk.told(1, "x" * 200, 3) == ["buffered", "invalid_item", "buffered"]
            assert await desk.told(4, queue="..no") == ["invalid_name"]
            assert await desk.told(5, partition="\0") == ["invalid_name"]
        await drained(desk)
        assert await database.log() == [1, 3]


async def test_producers_keep_their_order_through_outages(
    open_desk, database, drained, eventually_async
):
    """Producers push on while the database goes and comes back three times."""
    counts = dict.fromkeys("abcd", 0)
    done = asyncio.Event()

    async with open_desk() as desk:

        async def produce(name):
            while not done.is_set():
                statuses = await desk.told(counts[name], partition=name)
                assert statuses[0] in {"stored", "buffered"}
                counts[name] += 1

        async def disturb():
            for _ in range(3):
                async with database.away():
                    await twenty_more()
                await twenty_more()
            done.set()

        async def twenty_more():
            enough = {name: count + 20 for name, count in counts.items()}
            await eventually_async(lambda: all(counts[name] >= enough[name] for name in counts))

        await asyncio.gather(disturb(), *map(produce, counts))
        await drained(desk)
        for name, count in counts.items():
            assert await database.log(partition=name) == list(range(count))


@pytest.mark.parametrize("outage", [False, True])
async def test_qos_0_is_kept_in_its_own_order(open_desk, database, drained, outage):
    """Pushes of qos 0 are answered at once, also without a database, and come in their order."""
    async with open_desk(num_shards=1) as desk:
        await desk.queue()

        async def push(start):
            for number in range(start, start + 50):
                (result,) = await desk.broker.push("default", desk.items(number), qos=0)
                assert result.status == "buffered"

        await push(0)
        if outage:
            async with database.away():
                await push(50)
        else:
            await push(50)
        await drained(desk)
        assert await database.log() == list(range(100))


async def test_what_no_draft_has_room_for_goes_to_files_behind_what_waits_in_it(
    open_desk, database, drained, monkeypatch
):
    """PostgreSQL falls silent, and more comes than may wait for a commit: nothing is refused."""
    silent, gone = asyncio.Event(), asyncio.Event()

    async def hang(self, *arguments):
        silent.set()
        await gone.wait()
        raise psycopg.OperationalError("the connection broke")

    async with open_desk(num_shards=1, draft_messages_max=1000) as desk:
        await desk.told("0")
        monkeypatch.setattr(Writer, "write", hang)
        monkeypatch.setattr(draft, "LATE_S", 0.0)
        pushes = [asyncio.ensure_future(desk.told("1"))]
        await silent.wait()
        for number in range(2, 6):
            batch = [f"{number}-{n:03}" for n in range(400)]
            pushes.append(asyncio.ensure_future(desk.told(*batch)))
        told = await asyncio.gather(*pushes)
        assert {status for statuses in told for status in statuses} == {"buffered"}
        assert desk.broker.breaker.trips == 1
        monkeypatch.undo()
        gone.set()
        await drained(desk)
        log = await database.log()
        assert log == sorted(log)
        assert len(log) == 2 + 4 * 400
