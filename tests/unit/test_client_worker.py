"""Worker: handlers side by side, each message settled once, leases kept while they run."""

import asyncio
import threading

import pytest

from spillway import wire
from spillway.client.errors import BrokerUnreachableError
from spillway.client.message import AsyncMessage, Messages
from spillway.client.worker import PAUSE_S, Worker
from spillway.core.errors import DatabaseUnavailableError, QueueNotFoundError
from spillway.wire import SettleReply, SettleResult


class FakeClient:
    """Hands out `supply`; keeps what is settled; `settled` is set when `expected` are."""

    def __init__(self, supply, expected):
        self.supply = list(supply)
        self.expected = expected
        self.acks, self.nacks, self.extends = [], [], []
        self.largest_lease = 0
        self.settled = asyncio.Event()
        self.extended = asyncio.Event()
        self.away = 0
        self.lease_unavailable = 0

    async def lease(self, queue, group="default", **options):
        await asyncio.sleep(0)
        if self.lease_unavailable:
            self.lease_unavailable -= 1
            return Messages([], DatabaseUnavailableError.code)
        count = options["max"]
        self.largest_lease = max(self.largest_lease, count)
        given, self.supply = self.supply[:count], self.supply[count:]
        return Messages(AsyncMessage(message(one), self) for one in given)

    async def settle(self, ack=(), *, nack=(), extend=()):
        if self.away:
            self.away -= 1
            raise BrokerUnreachableError("gone", sent=True)
        self.acks += ack
        self.nacks += nack
        self.extends += extend
        if extend:
            self.extended.set()
        if len(self.acks) + len(self.nacks) >= self.expected:
            self.settled.set()
        told = [*ack, *(one.receipt for one in nack), *(one.receipt for one in extend)]
        results = [SettleResult(receipt=one, status="acked") for one in told]
        return SettleReply(results=results), Messages([])


def message(number):
    return wire.Message(
        receipt=f"r{number}",
        queue="q",
        partition="Default",
        version=number + 1,
        key=None,
        payload=b"%d" % number,
        headers=None,
        attempt=1,
        transaction_id=f"t{number}",
        enqueued_at="2026-01-01T00:00:00Z",
        priority=2,
    )


async def run_until(worker, event):
    """Run the worker, stop it once the event is set."""
    running = asyncio.create_task(worker.run())
    waiting = asyncio.create_task(event.wait())
    await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED, timeout=10)
    waiting.cancel()
    worker.stop()
    await running


async def test_every_message_is_handled_and_acked_once():
    """A hundred messages, at most seven at a time."""
    client = FakeClient(range(100), 100)
    at_once = peak = 0

    async def handle(_):
        nonlocal at_once, peak
        at_once += 1
        peak = max(peak, at_once)
        await asyncio.sleep(0)
        at_once -= 1

    await run_until(Worker(client, "q", handle, concurrency=7), client.settled)
    assert sorted(client.acks) == sorted(f"r{one}" for one in range(100))
    assert client.nacks == []
    assert peak <= 7
    assert client.largest_lease == 7


async def test_a_failing_handler_gives_its_message_back():
    """The error's text goes with it; the others are acked."""
    client = FakeClient(range(3), 3)

    async def handle(one):
        if one.version == 2:
            raise ValueError("no stock")

    await run_until(Worker(client, "q", handle), client.settled)
    assert sorted(client.acks) == ["r0", "r2"]
    assert [(one.receipt, one.error) for one in client.nacks] == [("r1", "ValueError: no stock")]


async def test_a_failing_handler_is_logged_with_its_traceback(caplog):
    """The application's own log names the message, its attempt and the line that raised."""
    client = FakeClient(range(1), 1)

    async def handle(_):
        raise ValueError("no stock")

    await run_until(Worker(client, "q", handle), client.settled)
    [told] = [one for one in caplog.records if one.name == "spillway.worker"]
    assert told.levelname == "WARNING"
    assert told.getMessage() == "the handler failed on <AsyncMessage q/Default/1 attempt 1>"
    assert told.exc_info[0] is ValueError


async def test_plain_functions_run_in_threads():
    """A handler that blocks does not hold the loop."""
    client, threads = FakeClient(range(3), 3), set()
    await run_until(
        Worker(client, "q", lambda _: threads.add(threading.current_thread().name)), client.settled
    )
    assert len(client.acks) == 3
    assert threading.current_thread().name not in threads


async def test_leases_are_kept_while_a_handler_runs():
    """A handler that takes longer than its lease keeps it."""
    client = FakeClient(range(1), 1)

    async def handle(_):
        await client.extended.wait()

    await run_until(Worker(client, "q", handle, visibility_ms=30), client.settled)
    assert client.extends[0].receipt == "r0"
    assert client.extends[0].visibility_ms == 30
    assert client.acks == ["r0"]


async def test_stop_waits_for_running_handlers():
    """What runs at stop() is finished and acked."""
    client = FakeClient(range(1), 1)
    started, release = asyncio.Event(), asyncio.Event()

    async def handle(_):
        started.set()
        await release.wait()

    worker = Worker(client, "q", handle)
    running = asyncio.create_task(worker.run())
    await started.wait()
    worker.stop()
    release.set()
    await running
    assert client.acks == ["r0"]


async def test_handlers_that_overrun_the_drain_are_given_back():
    """After drain_s what still runs is cancelled and its message returned, once."""
    client = FakeClient(range(1), 1)
    started = asyncio.Event()

    async def handle(_):
        started.set()
        await asyncio.Event().wait()

    worker = Worker(client, "q", handle, drain_s=0.01)
    running = asyncio.create_task(worker.run())
    await started.wait()
    worker.stop()
    await running
    assert [one.receipt for one in client.nacks] == ["r0"]
    assert client.acks == []


async def test_settlements_survive_a_lost_broker():
    """Acks that could not be sent are sent again."""
    client = FakeClient(range(2), 2)
    client.away = 2

    async def handle(_):
        pass

    await run_until(Worker(client, "q", handle), client.settled)
    assert sorted(client.acks) == ["r0", "r1"]


async def test_a_broker_without_its_database_is_not_asked_again_at_once(monkeypatch):
    """It answers empty whatever `wait_ms` says: asked in a loop it would be asked without end."""
    pauses = []
    client = FakeClient(range(1), 1)
    client.lease_unavailable = 3
    sleep = asyncio.sleep

    async def pause(seconds):
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr("spillway.client.worker.asyncio.sleep", pause)
    await run_until(Worker(client, "q", lambda _: None), client.settled)
    assert pauses.count(PAUSE_S) == 3


async def test_permanent_errors_end_the_worker():
    """A queue that is not there is no reason to spin."""

    class NoQueue(FakeClient):
        async def lease(self, queue, group="default", **options):
            raise QueueNotFoundError

    with pytest.raises(ExceptionGroup) as told:
        await Worker(NoQueue([], 1), "q", lambda _: None).run()
    assert told.group_contains(QueueNotFoundError)


async def test_a_settlement_under_way_at_stop_is_not_lost():
    """Whether the broker got it is unknown then, so it is sent again."""

    class Slow(FakeClient):
        began = asyncio.Event()

        async def settle(self, ack=(), *, nack=(), extend=()):
            if not self.began.is_set():
                self.began.set()
                await asyncio.Event().wait()  # no answer comes
            return await super().settle(ack, nack=nack, extend=extend)

    client = Slow(range(1), 1)
    await run_until(Worker(client, "q", lambda _: None), client.began)
    assert client.acks == ["r0"]


async def test_a_broker_that_cannot_settle_now_does_not_end_the_worker():
    """503 is told and tried again, as a lost connection is."""

    class Busy(FakeClient):
        refusals = 2

        async def settle(self, ack=(), *, nack=(), extend=()):
            if self.refusals:
                self.refusals -= 1
                raise DatabaseUnavailableError
            return await super().settle(ack, nack=nack, extend=extend)

    client = Busy(range(2), 2)
    await run_until(Worker(client, "q", lambda _: None), client.settled)
    assert sorted(client.acks) == ["r0", "r1"]
