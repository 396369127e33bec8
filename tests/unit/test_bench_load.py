"""The load against a small stand-in broker in the same loop."""

import asyncio
import re

import msgspec
import pytest

from spillway.bench.course import LoadFailedError
from spillway.bench.load import drive
from spillway.bench.plan import LoadPlan

LENGTH = re.compile(rb"content-length: (\d+)")


class StandIn:
    """Stores and leases in memory, and misbehaves where it is told to."""

    def __init__(self, *, repeat_first=False, drop_first=False, refuse=0):
        self.messages = []
        self.repeat_first, self.drop_first, self.refuse = repeat_first, drop_first, refuse

    def push(self, body):
        if self.refuse:
            self.refuse -= 1
            return 503, {"error": {"code": "unavailable"}}
        items = msgspec.json.decode(body)["items"]
        stored = [item["payload"] for item in items]
        if self.drop_first:
            self.drop_first = False
            stored = stored[1:]
        if self.repeat_first:
            self.repeat_first = False
            stored = [stored[0], *stored]
        self.messages += stored
        return 201, {"results": [{"index": i, "status": "stored"} for i in range(len(items))]}

    def lease(self, ask):
        taken, self.messages = self.messages[: ask["max"]], self.messages[ask["max"] :]
        return [{"receipt": f"r{body['order_id']}", "payload": body} for body in taken]

    def settle(self, body):
        ask = msgspec.json.decode(body)
        results = [{"receipt": receipt, "status": "acked"} for receipt in ask["ack"]]
        reply = {"results": results}
        if "lease" in ask:
            reply["messages"] = self.lease(ask["lease"])
        return 200, reply

    def answer(self, path, body):
        if path == b"/v1/messages":
            return self.push(body)
        if path == b"/v1/settle":
            return self.settle(body)
        return 200, {"messages": self.lease(msgspec.json.decode(body))}


class Wire(asyncio.Protocol):
    """One connection to the stand-in."""

    def __init__(self, stand_in):
        self.stand_in = stand_in
        self.received = b""

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.received += data
        head, end, body = self.received.partition(b"\r\n\r\n")
        if end and len(body) == int(LENGTH.search(head)[1]):
            self.received = b""
            self.answer(head.split(b" ")[1], body)

    def answer(self, path, body):
        status, reply = self.stand_in.answer(path, body)
        encoded = msgspec.json.encode(reply)
        head = b"HTTP/1.1 %d x\r\ncontent-length: %d\r\n\r\n" % (status, len(encoded))
        self.transport.write(head + encoded)


async def run(stand_in, **plan):
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Wire(stand_in), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    defaults = {"host": "127.0.0.1", "port": port, "queue": "q", "stall_s": 0.3}
    async with server:
        return await drive(msgspec.convert({**defaults, **plan}, LoadPlan))


async def test_pushes_are_counted_by_what_the_broker_stored():
    """The count comes from the replies and ends the load by itself."""
    found = await run(StandIn(), producers=3, batch=10, messages=200)
    assert (found.stored, found.complete, found.errors) == (200, True, {})
    assert found.push.samples > 0


async def test_a_full_round_loses_and_repeats_nothing():
    """Producers and consumers together see each message once and in order."""
    found = await run(StandIn(), producers=2, consumers=2, batch=10, messages=400, lease_max=10)
    assert (found.stored, found.acked, found.complete) == (400, 400, True)
    assert (found.lost, found.duplicated, found.out_of_order) == (0, 0, 0)


async def test_a_queue_that_was_filled_before_is_drained():
    """Consumers alone know from the plan which messages there must be."""
    broker = StandIn()
    await run(broker, producers=1, batch=10, messages=100)
    waiting = [{"batches": 10, "batch": 10}]
    found = await run(broker, consumers=2, batch=10, waiting=waiting, lease_max=7)
    assert (found.acked, found.lost, found.duplicated) == (100, 0, 0)


async def test_a_lost_message_is_found_when_the_broker_has_no_more():
    """A broker that stalls short of the count has lost something."""
    found = await run(
        StandIn(drop_first=True), producers=1, consumers=1, batch=10, messages=20, lease_max=10
    )
    assert (found.complete, found.lost) == (False, 1)


async def test_a_repeated_message_is_counted():
    """Two deliveries of one message are one too many."""
    found = await run(
        StandIn(repeat_first=True), producers=1, consumers=1, batch=10, messages=20, lease_max=10
    )
    assert found.duplicated == 1


async def test_an_open_loop_keeps_its_rate_and_measures_delivery():
    """Pushes follow the schedule; delivery counts from the intended time."""
    found = await run(
        StandIn(), producers=4, consumers=1, rate=500.0, messages=100, lease_wait_ms=5, warmup_s=0
    )
    assert (found.stored, found.acked, found.lost) == (100, 100, 0)
    assert found.delivery.samples == 100
    assert found.seconds >= 99 / 500


async def test_refused_requests_are_sent_again_and_named():
    """A broker that was away for a moment costs errors, not messages."""
    found = await run(StandIn(refuse=2), producers=1, batch=10, messages=20)
    assert (found.stored, found.complete) == (20, True)
    assert sum(found.errors.values()) == 2


async def test_a_broker_that_only_refuses_ends_the_load(monkeypatch):
    """Nothing can be measured, and the reason is the broker's own words."""
    monkeypatch.setattr("spillway.bench.course._ERRORS_MAX", 3)
    with pytest.raises(LoadFailedError, match="unavailable"):
        await run(StandIn(refuse=1000), producers=1, batch=10, messages=20, stall_s=5)
