"""Leases whose holder never heard of them go back at once, and no attempt is spent."""

import asyncio
from types import SimpleNamespace

import pytest

from spillway import wire
from spillway.broker.settlement import Settled
from spillway.core.errors import DatabaseUnavailableError
from spillway.log.writer import Writer


async def test_a_lease_whose_bodies_cannot_be_read_is_given_back(
    desk, monkeypatch, eventually_async
):
    """Two reads fail, and a message with two attempts is not parked for it."""
    await desk.queue(in_memory_queue_size=0, max_attempts=2)
    await desk.push(1)
    desk.forget()

    async def fails(*_):
        raise DatabaseUnavailableError

    with monkeypatch.context() as broken:
        broken.setattr(desk.broker.delivery._bodies, "find", fails)
        for _ in range(2):
            assert await desk.lease() == []
            await eventually_async(lambda: not desk.broker.breaker.is_open)
    assert await desk.counts() == {"ready": 1}
    (message,) = await desk.lease()
    assert message.attempt == 1


async def leased(desk):
    return (await desk.counts()).get("leased")


@pytest.mark.parametrize("end", ["fails", "is cancelled"])
async def test_a_lease_beside_a_settlement_that_fails_is_given_back(
    desk, monkeypatch, eventually_async, end
):
    """Settle and lease are one answer: without it nobody holds what was leased."""
    await desk.queue(max_attempts=1)
    await desk.push(1)
    ticket = asyncio.get_running_loop().create_future()

    async def settle(*_):
        return Settled(tickets=[ticket])

    monkeypatch.setattr(desk.broker, "settlement", SimpleNamespace(settle=settle))
    request = wire.SettleRequest(lease=wire.SettleLease(queue="orders"))
    asking = asyncio.create_task(desk.broker.settle("default", request))
    await eventually_async(lambda: leased(desk))
    if end == "fails":
        ticket.set_exception(DatabaseUnavailableError())
    else:
        asking.cancel()
    with pytest.raises((DatabaseUnavailableError, asyncio.CancelledError)):
        await asking
    assert await desk.counts() == {"ready": 1}
    (message,) = await desk.lease()
    assert message.attempt == 1


async def test_a_lease_asked_of_a_frozen_database_holds_nothing_later(
    desk, monkeypatch, eventually_async
):
    """Its commit lands when PostgreSQL wakes up, and nobody has the message by then."""
    await desk.queue(max_attempts=1)
    await desk.push(1)
    awake = asyncio.Event()
    write = Writer.write

    async def frozen(self, *arguments):
        await awake.wait()
        return await write(self, *arguments)

    monkeypatch.setattr(Writer, "write", frozen)
    assert await desk.lease() == []
    assert desk.broker.breaker.is_open
    awake.set()
    await eventually_async(lambda: not desk.broker.breaker.is_open, 20)

    async def is_free():
        return await desk.counts() == {"ready": 1}

    await eventually_async(is_free, 20)
    (message,) = await desk.lease()
    assert message.attempt == 1
