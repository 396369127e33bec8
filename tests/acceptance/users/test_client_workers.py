"""Worker and the producers against a broker: many at once, drained in order, nothing forgotten."""

import asyncio

import pytest

from spillway import AsyncClient, AsyncProducer, Item, Producer, PushFailedError, Worker, errors


@pytest.fixture
async def aclient(broker):
    """An asynchronous client of the shared broker."""
    async with AsyncClient(broker.url, retries=0) as client:
        yield client


async def counts(client, queue):
    """Where the messages are; states without any are left out."""
    states = ("ready", "deferred", "leased", "blocked", "parked", "dropped", "settled")
    found = await client.group(queue, "default")
    return {name: n for name in states if (n := getattr(found, name))}


async def test_a_worker_runs_handlers_side_by_side(aclient, queue):
    """Ten at once and never more; each message is handled and acked."""
    await aclient.push_many([Item(queue, n) for n in range(200)])
    handled, at_once, peak = [], 0, 0

    async def handle(message):
        nonlocal at_once, peak
        at_once += 1
        peak = max(peak, at_once)
        if len(handled) < 10:
            await full.wait() if at_once < 10 else full.set()
        handled.append(message.payload)
        at_once -= 1
        if len(handled) == 200:
            worker.stop()

    full = asyncio.Event()
    worker = Worker(aclient, queue, handle, concurrency=10, wait_ms=100)
    async with asyncio.timeout(30):
        await worker.run()
    assert (sorted(handled), peak) == (list(range(200)), 10)
    assert await counts(aclient, queue) == {"settled": 200}


async def test_a_worker_drains(aclient, queue):
    """stop() leases no more; what runs is finished and acked, what waits is left."""
    await aclient.push_many([Item(queue, n) for n in range(10)])
    started, release = asyncio.Event(), asyncio.Event()

    async def handle(_):
        started.set()
        await release.wait()

    worker = Worker(aclient, queue, handle, concurrency=3, wait_ms=100)
    running = asyncio.create_task(worker.run())
    await started.wait()
    worker.stop()
    assert (await counts(aclient, queue))["leased"] == 3
    release.set()
    await asyncio.wait_for(running, 10)
    assert await counts(aclient, queue) == {"ready": 7, "settled": 3}


async def test_a_cancelled_worker_gives_back_what_it_holds(aclient, queue, eventually_async):
    """At once, not after the visibility; the reason is kept with the message."""
    await aclient.push(queue, 1)
    started = asyncio.Event()

    async def handle(_):
        started.set()
        await asyncio.Event().wait()

    running = asyncio.create_task(Worker(aclient, queue, handle).run())
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    # Its own long poll may catch the message for a moment, before the broker sees it gone.
    await eventually_async(lambda: settled(aclient, queue, {"ready": 1}))
    (again,) = await aclient.lease(queue)
    assert again.attempt == 2


async def test_a_handler_longer_than_its_lease_keeps_it(aclient, queue, eventually_async):
    """The worker extends while the handler runs: nobody else gets the message."""
    await aclient.push(queue, 1)
    release = asyncio.Event()

    async def handle(_):
        await release.wait()

    worker = Worker(aclient, queue, handle, visibility_ms=300, wait_ms=100)
    running = asyncio.create_task(worker.run())
    await eventually_async(lambda: leased(aclient, queue))
    assert await aclient.lease(queue, wait_ms=1_000) == []
    release.set()
    worker.stop()
    await asyncio.wait_for(running, 10)
    assert await counts(aclient, queue) == {"settled": 1}


async def leased(client, queue):
    return (await counts(client, queue)).get("leased")


async def test_a_failing_handler_uses_up_the_attempts(aclient, queue, eventually_async):
    """Two attempts, then a dead letter with the text of the last error."""
    await aclient.push_many([Item(queue, "bad"), Item(queue, "good")])

    def handle(message):  # in a thread
        if message.payload == "bad":
            raise ValueError(f"attempt {message.attempt}")

    worker = Worker(aclient, queue, handle, concurrency=2, wait_ms=100)
    running = asyncio.create_task(worker.run())
    await eventually_async(lambda: settled(aclient, queue, {"parked": 1, "settled": 1}))
    worker.stop()
    await asyncio.wait_for(running, 10)
    (letter,) = (await aclient.dead(queue)).dead
    assert (letter.attempts, letter.error) == (2, "ValueError: attempt 2")


async def settled(client, queue, expected):
    return await counts(client, queue) == expected


# ---------------------------------------------------------------- producers


def test_a_producer_stores_what_was_flushed(client, queue):
    """Batches leave by themselves, the rest with flush() and close(); the order is kept."""
    with Producer(client, batch=10, linger_ms=60_000) as producer:
        for n in range(25):
            producer.push(queue, n)
        assert client.queue(queue).tail == 20
        producer.flush()
        assert client.queue(queue).tail == 25
        producer.push(queue, 25)
    payloads = [one.payload for one in client.lease(queue, max=100)]
    assert payloads == list(range(26))


def test_a_producer_tells_what_was_refused(client, queue):
    """The bad one is named and dropped, the others are stored."""
    producer = Producer(client, linger_ms=60_000)
    producer.push(queue, 1)
    producer.push("no name", 2)
    with pytest.raises(PushFailedError, match="1 of 2"):
        producer.flush()
    producer.close()
    assert client.queue(queue).tail == 1


async def test_concurrent_pushes_share_commits(aclient, queue):
    """A thousand pushes, each awaited, in a few requests; each has its own answer."""
    async with AsyncProducer(aclient) as producer:
        results = await asyncio.gather(*(producer.push(queue, n) for n in range(1000)))
        with pytest.raises(errors.InvalidNameError):
            await producer.push("no name", 1)
    assert [one.version for one in results] == list(range(1, 1001))
