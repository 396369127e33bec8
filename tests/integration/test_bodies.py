"""Bodies of leased messages: how many are kept, how many fit in a reply, what does not come."""

import asyncio
import time
from contextlib import asynccontextmanager

import psycopg
import pytest

from spillway import wire
from spillway.broker.breaker import PATIENCE_S
from spillway.log.reader import read_batches

SLACK_S = 2.0
"""A machine that is busy with other things gets some grace."""
MANY = 60
KEPT = 10


async def push_many(desk, count: int = MANY) -> None:
    """Each in a batch of its own."""
    for n in range(count):
        await desk.push(n)


def kept(desk) -> int:
    """How many bodies are in memory."""
    (budget,) = desk.broker.budgets.values()
    return budget.used


async def drain(desk, count: int, **more) -> list[int]:
    """The payloads of all that is due; the memory in use is looked at all the time."""
    found: list[int] = []
    while messages := await desk.lease(count, **more):
        found += [int(bytes(message.payload)) for message in messages]
        await desk.ack(*messages)
        assert kept(desk) <= KEPT
    return found


@pytest.mark.parametrize("count", [1, 7, MANY])
async def test_a_group_that_stopped_does_not_make_the_others_keep_their_backlog(desk, count):
    """It leased once and went: what the other reads is bounded as before, and complete."""
    await desk.queue(in_memory_queue_size=KEPT)
    await push_many(desk)
    await desk.lease(group="gone")
    assert await drain(desk, count) == list(range(MANY))
    await push_many(desk, 3)
    assert 3 <= kept(desk) <= KEPT
    assert await drain(desk, count, group="gone") == [*range(1, MANY), 0, 1, 2]


@pytest.mark.parametrize("count", [1, 7, MANY])
async def test_a_queue_that_keeps_no_bodies_keeps_none(desk, count):
    """All is read from the log, handed out, and not kept."""
    await desk.queue(in_memory_queue_size=0)
    await push_many(desk)
    found: list[int] = []
    while messages := await desk.lease(count):
        found += [int(bytes(message.payload)) for message in messages]
        assert kept(desk) == 0
    assert found == list(range(MANY))


async def test_cold_lanes_share_what_the_queue_may_keep(desk):
    """However many lanes are read from, together they keep no more than one would."""
    await desk.queue(in_memory_queue_size=KEPT)
    for partition in range(12):
        await desk.push(*range(5), partition=f"p{partition}")
    desk.forget()
    for _ in range(12):
        await desk.lease()
        assert kept(desk) <= KEPT + 5


@pytest.mark.parametrize("is_warm", [True, False], ids=["warm", "cold"])
async def test_a_lease_brings_no_more_bytes_than_a_request_may_have(open_desk, is_warm):
    """The rest stays ready, no attempt is spent; a message that is larger comes alone."""
    async with open_desk(request_bytes_max=50_000, message_bytes_max=40_000) as desk:
        await desk.queue()
        await desk.push(*(b"x" * 20_000 for _ in range(5)), b"y" * 40_000)
        if not is_warm:
            desk.forget()
        found = [await desk.lease(100) for _ in range(4)]
        assert [[m.version for m in some] for some in found] == [[1, 2], [3, 4], [5], [6]]
        assert {message.attempt for some in found for message in some} == {1}
        assert await desk.counts() == {"leased": 6}


# ---------------------------------------------------------------- PostgreSQL is slow to answer


@asynccontextmanager
async def silent(desk, table: str):
    """Whoever reads this table waits."""
    async with await psycopg.AsyncConnection.connect(desk.url) as conn:
        await conn.execute(f"LOCK TABLE spillway.{table} IN ACCESS EXCLUSIVE MODE")
        yield


async def answer(desk) -> tuple[int, str | None]:
    """What a lease says, and that it says it in time."""
    began_s = time.monotonic()
    reply = await desk.broker.lease("default", "orders", wire.LeaseRequest(wait_ms=20_000))
    assert time.monotonic() - began_s < PATIENCE_S + SLACK_S
    return len(reply.messages), reply.reason


async def test_a_lease_does_not_wait_for_a_body_that_does_not_come(desk, monkeypatch):
    """It is told so in time; nobody holds the message, and no attempt was spent."""
    goes_on = asyncio.Event()

    async def read_late(*arguments):
        await goes_on.wait()
        return await read_batches(*arguments)

    monkeypatch.setattr("spillway.broker.bodies.read_batches", read_late)
    await desk.queue(in_memory_queue_size=0)
    await desk.push(1)
    assert await answer(desk) == (0, "database_unavailable")
    assert not desk.broker.breaker.is_open
    assert await desk.counts() == {"ready": 1}
    goes_on.set()
    (message,) = await desk.lease()
    assert message.attempt == 1


async def test_a_lease_does_not_wait_for_a_lane_that_does_not_come(desk, eventually_async):
    """The reading goes on without it: the next one finds the lane in memory."""
    await desk.queue()
    await desk.push(1)
    desk.forget()
    async with silent(desk, "checkpoint"):
        assert await answer(desk) == (0, "database_unavailable")
    await eventually_async(lambda: any(shard.entries for shard in desk.broker.shards))
    assert len(await desk.lease()) == 1


async def test_a_settlement_does_not_wait_for_a_lane_that_does_not_come(desk):
    """The caller hears it in time, and may repeat it."""
    await desk.queue()
    await desk.push(1)
    (message,) = await desk.lease()
    desk.forget()
    async with silent(desk, "checkpoint"):
        with pytest.raises(Exception, match="takes long") as failure:
            await asyncio.wait_for(desk.ack(message), PATIENCE_S + SLACK_S)
        assert failure.value.code == "database_unavailable"
    assert await desk.ack(message) == ["acked"]
