"""Producers: what is gathered, when it leaves, and what a failure leaves behind."""

import asyncio
from datetime import datetime

import pytest

from spillway.client.errors import (
    BrokerUnreachableError,
    BufferFullError,
    ClientClosedError,
    ClientUsageError,
    PushFailedError,
)
from spillway.client.payload import decode_payload
from spillway.client.producer import AsyncProducer, Producer
from spillway.core.errors import InvalidItemError
from spillway.wire import ErrorDetail, PushResult

BAD = ErrorDetail(code="invalid_item", message="bad", hint="")


class Pusher:
    """Keeps the batches; fails as told."""

    def __init__(self, *, away=0, bad=()):
        self.batches = []
        self.away = away
        self.bad = list(bad)

    def push_many(self, items, *, raise_on_failure=True):
        self.batches.append(list(items))
        if self.away:
            self.away -= 1
            raise BrokerUnreachableError("gone")
        return [self.result(at, item) for at, item in enumerate(items)]

    def result(self, at, item):
        if decode_payload(item.payload) in self.bad:
            return PushResult(index=at, status="failed", error=BAD)
        return PushResult(index=at, status="stored", version=at + 1)

    @property
    def payloads(self):
        return [[decode_payload(item.payload) for item in batch] for batch in self.batches]


class AsyncPusher(Pusher):
    gate = None

    async def push_many(self, items, *, raise_on_failure=True):
        if self.gate is not None:
            await self.gate.wait()
        return Pusher.push_many(self, items, raise_on_failure=raise_on_failure)


def test_sends_full_batches_and_the_rest_on_close():
    """A full batch leaves at once, the rest with close(), in order."""
    pusher = Pusher()
    with Producer(pusher, batch=3, linger_ms=10_000) as producer:
        for number in range(7):
            producer.push("q", number)
    assert pusher.payloads == [[0, 1, 2], [3, 4, 5], [6]]


def test_lingers_no_longer_than_told():
    """A push after the linger takes the older ones along."""
    now = [0.0]
    pusher = Pusher()
    producer = Producer(pusher, linger_ms=50, clock=lambda: now[0])
    producer.push("q", 1)
    now[0] = 0.06
    producer.push("q", 2)
    assert pusher.payloads == [[1, 2]]


def test_a_failed_flush_keeps_messages_and_their_ids():
    """What could not be sent is sent by the next flush, under the same transaction ids."""
    pusher = Pusher(away=1)
    producer = Producer(pusher, linger_ms=10_000)
    producer.push("q", 1)
    with pytest.raises(BrokerUnreachableError):
        producer.flush()
    assert len(producer.flush()) == 1
    first, second = pusher.batches
    assert first[0].transaction_id == second[0].transaction_id


def test_memory_is_bounded():
    """A full buffer refuses instead of growing."""
    pusher = Pusher(away=10)
    producer = Producer(pusher, batch=2, buffer_max=2, linger_ms=10_000)
    producer.push("q", 1)
    with pytest.raises(BrokerUnreachableError):
        producer.push("q", 2)
    with pytest.raises(BufferFullError):
        producer.push("q", 3)


def test_refused_items_are_told_and_dropped():
    """An item that is wrong is reported once and does not clog the buffer."""
    pusher = Pusher(bad=[2])
    producer = Producer(pusher, linger_ms=10_000)
    producer.push("q", 1)
    producer.push("q", 2)
    with pytest.raises(PushFailedError):
        producer.flush()
    assert producer.flush() == []


def test_misuse_is_told():
    """Unknown options and pushes after close are refused."""
    producer = Producer(Pusher())
    with pytest.raises(ClientUsageError, match="colour"):
        producer.push("q", 1, colour="red")
    producer.close()
    producer.close()
    with pytest.raises(ClientClosedError):
        producer.push("q", 1)


async def test_concurrent_pushes_share_requests():
    """While a batch is in flight the next one gathers; order is kept."""
    pusher = AsyncPusher()
    async with AsyncProducer(pusher, batch=40) as producer:
        results = await asyncio.gather(*[producer.push("q", number) for number in range(100)])
    assert [len(batch) for batch in pusher.batches] == [40, 40, 20]
    assert [number for batch in pusher.payloads for number in batch] == list(range(100))
    assert all(result.status == "stored" for result in results)


async def test_each_push_gets_its_own_failure():
    """One bad item fails its own push alone."""
    async with AsyncProducer(AsyncPusher(bad=[1])) as producer:
        told = await asyncio.gather(
            *[producer.push("q", number) for number in range(3)], return_exceptions=True
        )
    assert isinstance(told[1], InvalidItemError)
    assert (told[0].status, told[2].status) == ("stored", "stored")


async def test_a_dead_broker_fails_every_push():
    """When the request fails, each of its pushes raises."""
    async with AsyncProducer(AsyncPusher(away=1)) as producer:
        told = await asyncio.gather(*[producer.push("q", 1)] * 1, return_exceptions=True)
    assert isinstance(told[0], BrokerUnreachableError)
    with pytest.raises(ClientClosedError):
        await producer.push("q", 1)


async def test_a_cancelled_push_does_not_disturb_the_others():
    """A caller that gives up leaves the batch as it is."""
    pusher = AsyncPusher()
    pusher.gate = asyncio.Event()
    async with AsyncProducer(pusher) as producer:
        one = asyncio.create_task(producer.push("q", 1))
        two = asyncio.create_task(producer.push("q", 2))
        await asyncio.sleep(0)
        one.cancel()
        pusher.gate.set()
        assert (await two).status == "stored"
    assert one.cancelled()


@pytest.mark.parametrize(
    ("payload", "options"),
    [(object(), {}), (float("nan"), {}), (1, {"deliver_at": datetime(2030, 1, 1)})],  # noqa: DTZ001
)
def test_what_cannot_be_sent_is_refused_at_once(payload, options):
    """It never gets into a batch, which it would spoil for ever."""
    pusher = Pusher()
    with Producer(pusher) as producer:
        producer.push("q", 1)
        with pytest.raises(InvalidItemError):
            producer.push("q", payload, **options)
        producer.push("q", 2)
    assert pusher.payloads == [[1, 2]]


def test_a_payload_is_taken_as_it_is_when_pushed():
    """What its owner does to it afterwards is not seen."""
    pusher, order = Pusher(), {"n": 1}
    with Producer(pusher) as producer:
        producer.push("q", order)
        order["n"] = 2
    assert pusher.payloads == [[{"n": 1}]]
