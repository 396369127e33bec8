"""Long polls over HTTP: they wake at once, exactly as many as needed, and leave nothing behind."""

import asyncio
import json
import select

import pytest

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT_S = 0.25
TRIES = 3


async def poll(site, queue, **request):
    path = f"/v1/queues/{queue}/lease"
    return site.later("POST", path, {"wait_ms": 30_000} | request)


async def fastest(measure):
    """The best of some tries: the machine may be busy with something else, but not every time."""
    late = [await measure() for _ in range(TRIES)]
    assert min(late) < PROMPT_S, late


async def test_a_push_wakes_a_long_poll(site, queue):
    """The message is there a moment after its push was answered."""
    await site.make(queue)

    async def measure():
        waiter = await poll(site, queue)
        await site.waiting(queue, 1)
        await site.push(queue, 1)
        pushed_at = asyncio.get_running_loop().time()
        reply, answered_at = await waiter
        assert len(reply["messages"]) == 1
        return answered_at - pushed_at

    await fastest(measure)


@pytest.mark.parametrize("how", ["expiry", "retry", "delay"])
async def test_what_falls_due_wakes_a_long_poll(site, queue, how):
    """A lease that ends, a retry whose backoff is over, a message whose time has come."""
    await site.make(queue, max_attempts=1_000)
    loop = asyncio.get_running_loop()
    span_ms = 300

    async def measure():
        due_at = loop.time() + span_ms / 1000
        if how == "delay":
            await site.push(queue, 1, delay_ms=span_ms)
        else:
            await site.push(queue, 1)
            held = await site.lease(queue, visibility_ms=span_ms)
            due_at = loop.time() + span_ms / 1000
            if how == "retry":
                await site.nack(*held, delay_ms=span_ms)
                due_at = loop.time() + span_ms / 1000
        reply, answered_at = await (await poll(site, queue))
        assert await site.ack(*reply["messages"]) == ["acked"]
        return answered_at - due_at

    await fastest(measure)


@pytest.mark.parametrize("what", ["resume", "unblock", "redrive", "seek"])
async def test_an_operator_wakes_a_long_poll(site, queue, what):
    """Whatever frees a message, those who wait get it."""
    await site.make(queue, max_attempts=1, on_exhausted="block")
    await site.push(queue, 1)
    verb = f"/v1/queues/{queue}/{what}"
    request = {"all": True}
    if what == "resume":
        await site.ask("POST", f"/v1/queues/{queue}/pause", {})
        request = {}
    elif what == "unblock":
        await site.nack(*await site.lease(queue))
    elif what == "redrive":
        await site.nack(*await site.lease(queue), park=True)
    else:
        await site.ack(*await site.lease(queue))
        request = {"to": "earliest"}
    waiter = await poll(site, queue)
    await site.waiting(queue, 1)
    await site.ask("POST", verb, request)
    reply, _ = await waiter
    assert [message["payload"] for message in reply["messages"]] == [1]


async def test_one_push_wakes_one_of_many(site, queue):
    """Twenty wait, one message comes: one gets it, the others go on waiting."""
    await site.make(queue)
    waiters = [await poll(site, queue, wait_ms=60_000) for _ in range(20)]
    await site.waiting(queue, 20)
    await site.push(queue, "one")
    done, pending = await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
    (winner,) = done
    assert [message["payload"] for message in winner.result()[0]["messages"]] == ["one"]
    await site.waiting(queue, 19)
    await site.push(queue, *range(19))
    replies = [(await waiter)[0]["messages"] for waiter in pending]
    assert sorted(message["payload"] for reply in replies for message in reply) == list(range(19))


async def test_nobody_is_woken_for_nothing(site, queue):
    """A poll that finds nothing ends empty when its time is over, with the reason."""
    await site.make(queue)
    reply, _ = await (await poll(site, queue, wait_ms=50))
    assert reply == {"messages": [], "reason": "empty"}
    await site.push(queue, 1)
    await site.ask("POST", f"/v1/queues/{queue}/pause", {})
    reply, _ = await (await poll(site, queue, wait_ms=50))
    assert reply == {"messages": [], "reason": "paused"}


async def test_a_settle_may_wait_for_the_next(site, queue):
    """The lease of a settle is a long poll too; its acks do not wait for it."""
    await site.push(queue, 1)
    (held,) = await site.lease(queue)
    request = {"ack": [held["receipt"]], "lease": {"queue": queue, "wait_ms": 30_000}}
    waiter = site.later("POST", "/v1/settle", request)
    await site.waiting(queue, 1)
    assert await site.counts(queue) == {"settled": 1}
    await site.push(queue, 2)
    reply, _ = await waiter
    assert [message["payload"] for message in reply["messages"]] == [2]


async def connect_and_poll(site, queue, **request):
    """A long poll on a bare socket, which a test can tear."""
    body = json.dumps({"wait_ms": 30_000} | request).encode()
    reader, writer = await asyncio.open_connection(*site.address)
    writer.write(
        b"POST /v1/queues/%b/lease HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b"
        % (queue.encode(), len(body), body)
    )
    await writer.drain()
    return reader, writer


async def test_who_hangs_up_leaves_no_lease(site, queue):
    """A caller that goes away while it waits: the next message is for somebody else, at once."""
    await site.make(queue, max_attempts=1)
    torn = [await connect_and_poll(site, queue, visibility_ms=600_000) for _ in range(5)]
    await site.waiting(queue, 5)
    for _, writer in torn:
        writer.transport.abort()
    await site.waiting(queue, 0)
    await site.push(queue, 1)
    assert await site.counts(queue) == {"ready": 1}
    (message,) = await site.lease(queue)
    assert message["attempt"] == 1


def is_answered(reader, writer):
    """Whether the answer has reached this side of the connection."""
    socket = writer.get_extra_info("socket")
    return bool(reader._buffer or select.select([socket], [], [], 0)[0])


async def test_who_hangs_up_as_the_message_comes_leaves_no_lease(site, queue, eventually_async):
    """Push and hang-up at once: whoever asks next gets the message, no attempt spent."""
    await site.make(queue, max_attempts=1)
    torn = 0
    for n in range(20):
        reader, writer = await connect_and_poll(site, queue, visibility_ms=600_000)
        await site.waiting(queue, 1)
        pushing = asyncio.create_task(site.push(queue, n))
        for _ in range(n % 10):
            await asyncio.sleep(0)
        if is_answered(reader, writer):
            # It came in time to be read: then it is the caller's, who has merely gone since.
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await site.ack(*json.loads(await reader.readexactly(length))["messages"])
            writer.close()
            await pushing
            continue
        torn += 1
        writer.transport.abort()
        await pushing

        async def is_free() -> bool:
            return "leased" not in await site.counts(queue)

        await eventually_async(is_free)
        (message,) = await site.lease(queue, wait_ms=10_000)
        assert (message["payload"], message["attempt"]) == (n, 1)
        await site.ack(message)
    assert torn


async def test_polls_for_different_partitions_do_not_take_each_others_wake(site, queue):
    """Who waits for one partition is woken by its push, whoever waits longer for another."""
    await site.make(queue)
    other = await poll(site, queue, partitions=["a"])
    await site.waiting(queue, 1)
    mine = await poll(site, queue, partitions=["b"])
    await site.waiting(queue, 2)
    await site.push(queue, "for b", partition="b")
    done, _ = await asyncio.wait([other, mine], timeout=5, return_when=asyncio.FIRST_COMPLETED)
    assert done == {mine}
    await site.push(queue, "for a", partition="a")
    assert [message["payload"] for message in (await other)[0]["messages"]] == ["for a"]
