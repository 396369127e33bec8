"""Client and AsyncClient against a broker: push, lease, settle, consume; also over its restart."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from spillway import AsyncClient, Client, Item, PushFailedError, RetryPolicy, errors

PATIENT = RetryPolicy(attempts_max=500, base_s=0.02, cap_s=0.1)


@dataclass
class Order:
    """What an application would push."""

    number: int
    total: float


def counts(client, queue, group="default"):
    """Where the messages are; states without any are left out."""
    states = ("ready", "deferred", "leased", "blocked", "parked", "dropped", "settled")
    found = client.group(queue, group)
    return {name: n for name in states if (n := getattr(found, name))}


# ---------------------------------------------------------------- push, lease, settle


def test_a_message_goes_round(client, queue):
    """Values, dataclasses and bytes come out as they went in."""
    assert client.push(queue, Order(1, 2.5), key="k", headers={"a": "b"}).status == "stored"
    client.push(queue, b"\x00\xff")
    first, second = client.lease(queue, max=10, consumer="test")
    assert first.json(Order) == Order(1, 2.5)
    assert (first.key, first.headers, first.attempt) == ("k", {"a": "b"}, 1)
    assert second.bytes == b"\x00\xff"
    first.ack()
    second.nack("not today", park=True)
    assert counts(client, queue) == {"settled": 1, "parked": 1}


def test_an_error_keeps_its_class_over_the_wire(client, queue):
    """What the broker raises is what the caller catches."""
    with pytest.raises(errors.QueueNotFoundError, match="nosuch"):
        client.lease("nosuch")
    client.push(queue, 1)
    (message,) = client.lease(queue)
    message.ack()
    with pytest.raises(errors.StaleReceiptError):
        message.nack()


def test_bad_items_fail_alone(client, queue):
    """The others of the batch are stored; the exception has both."""
    items = [Item(queue, 1), Item("no name", 2), Item(queue, "x" * 2_000_000), Item(queue, 4)]
    with pytest.raises(PushFailedError, match="2 of 4") as told:
        client.push_many(items)
    assert [one.status for one in told.value.results] == ["stored", "failed", "failed", "stored"]
    assert client.queue(queue).tail == 2


def test_a_batch_over_every_limit_is_cut_and_stays_in_order(client, queue):
    """Twelve thousand items, some of them large: one call, the order of the call."""
    payloads = [n if n % 1000 else "x" * 900_000 for n in range(12_000)]
    results = client.push_many(Item(queue, payload) for payload in payloads)
    assert [one.version for one in results] == list(range(1, 12_001))


def test_threads_share_a_client(client, queue):
    """Nothing gets mixed up."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: client.push(queue, n), range(100)))
        handled = list(pool.map(lambda _: client.lease(queue, max=5), range(20)))
    assert sorted(one.payload for some in handled for one in some) == list(range(100))


# ---------------------------------------------------------------- a broker that comes and goes


def test_a_push_is_repeated_over_a_restart_and_stored_once(stand, database_url):
    """Killed with -9 under pushes: every answer is stored or duplicate, every message is there."""
    broker = stand("--database-url", database_url, num_shards=1, shard_lease_s=1)
    pushed, stop = [], threading.Event()

    def push_on():
        with Client(broker.url, timeout_s=60, retries=PATIENT) as client:
            while not stop.is_set():
                pushed.append(client.push("orders", len(pushed)))

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(push_on)
        with Client(broker.url, timeout_s=60, retries=PATIENT) as watcher:
            for _ in range(2):
                wait_for_more(pushed)
                broker.kill()
                broker.start()
            wait_for_more(pushed)
            stop.set()
            running.result(60)
            assert {one.status for one in pushed} <= {"stored", "duplicate"}
            assert [one.version for one in pushed] == list(range(1, len(pushed) + 1))
            assert watcher.queue("orders").tail == len(pushed)
            assert watcher.audit().balanced
    broker.stop()


def test_consume_goes_on_after_a_restart(stand, database_url):
    """The loop does not notice; every message comes, and what was acked stays so."""
    broker = stand("--database-url", database_url, num_shards=1, shard_lease_s=1)
    with Client(broker.url, timeout_s=60, retries=PATIENT) as client:
        client.create_queue("orders", visibility_ms=1_000, backoff_base_ms=0, max_attempts=100)
        client.push_many(Item("orders", n) for n in range(200))
        seen = set()
        with client.consume("orders", batch=20, wait_ms=200, idle_timeout_s=3) as messages:
            for message in messages:
                seen.add(message.payload)
                if message.payload == 90 and message.attempt == 1:
                    broker.kill()
                    broker.start()
        assert seen == set(range(200))
        assert counts(client, "orders") == {"settled": 200}
        assert client.audit().balanced
    broker.stop()


def wait_for_more(pushed):
    """Poll until another thread has got twenty more answers."""
    seen, pause = len(pushed), threading.Event()
    for _ in range(3000):
        if len(pushed) > seen + 20:
            return
        pause.wait(0.01)
    raise AssertionError(f"{len(pushed)} answers, and no more")


# ---------------------------------------------------------------- consume


def test_consume_settles_as_it_goes(client, queue):
    """Each message is acked when the loop comes back; the rest of the batch is given back."""
    client.push_many(Item(queue, n) for n in range(10))
    with client.consume(queue, max_messages=4) as messages:
        assert [one.payload for one in messages] == [0, 1, 2, 3]
    assert counts(client, queue) == {"ready": 6, "settled": 4}


def test_consume_ends_when_nothing_comes(client, queue):
    """idle_timeout_s: the loop ends by itself, whatever wait_ms says."""
    client.push(queue, 1)
    with client.consume(queue, idle_timeout_s=0.2, wait_ms=30_000) as messages:
        assert [one.payload for one in messages] == [1]
    assert counts(client, queue) == {"settled": 1}


def test_consume_ends_when_it_is_told(client, queue):
    """A stop flag is looked at between messages; what is at hand is given back."""
    client.push_many(Item(queue, n) for n in range(5))
    stop = threading.Event()
    for message in client.consume(queue, stop=stop):
        if message.payload == 2:
            stop.set()
    assert counts(client, queue) == {"ready": 2, "settled": 3}


def test_an_exception_gives_the_message_back_with_its_text(client, queue):
    """It is an attempt of that message alone: those before are acked, those behind untouched."""
    client.push_many(Item(queue, n) for n in range(3))
    for _ in range(2):
        with pytest.raises(ValueError, match="no stock"):
            sell(client, queue)
    (letter,) = client.dead(queue).dead
    assert (letter.version, letter.attempts, letter.error) == (2, 2, "ValueError: no stock")
    (untouched,) = client.lease(queue)
    assert (untouched.payload, untouched.attempt) == (2, 1)


def sell(client, queue):
    with client.consume(queue) as messages:
        for message in messages:
            if message.payload == 1:
                raise ValueError("no stock")


def test_consume_settles_and_leases_in_one_call(client, queue, monkeypatch):
    """A full queue costs one round trip a batch, not two."""
    client.push_many(Item(queue, n) for n in range(100))
    sent = []
    monkeypatch.setattr(client, "send", lambda request: sent.append(request) or send(request))
    send = Client.send.__get__(client)
    with client.consume(queue, batch=10, idle_timeout_s=0.01, wait_ms=10) as messages:
        assert len(list(messages)) == 100
    assert 11 <= len(sent) < 20
    assert counts(client, queue) == {"settled": 100}


# ---------------------------------------------------------------- the async twin


async def test_the_async_client_does_the_same(broker, queue):
    """push, lease, settle, consume, operator verbs: awaited."""
    async with AsyncClient(broker.url, retries=0, actor="test") as client:
        assert (await client.push(queue, Order(1, 2.5))).version == 1
        await client.push_many([Item(queue, n) for n in range(2, 6)])
        (message,) = await client.lease(queue)
        assert message.json(Order) == Order(1, 2.5)
        await message.ack()
        async with client.consume(queue, max_messages=2) as messages:
            assert [one.payload async for one in messages] == [2, 3]
        with pytest.raises(ValueError, match="no"):
            await refuse(client, queue)
        await client.park(queue, all=True)
        assert (await client.redrive(queue, all=True)).affected == 2
        assert (await client.audit()).balanced
        with pytest.raises(errors.QueueNotFoundError):
            await client.queue("nosuch")


async def refuse(client, queue):
    async with client.consume(queue) as messages:
        async for _ in messages:
            raise ValueError("no")
