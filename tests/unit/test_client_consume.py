"""`consume()`: what is settled when, and what happens to messages when the loop is left."""

import gc
import threading

import pytest

from spillway.client.async_client import AsyncClient
from spillway.client.errors import BrokerUnreachableError
from spillway.client.scripted import AsyncScript, Script, reply
from spillway.client.sync_client import Client

LOST = BrokerUnreachableError("gone", sent=True)


def message(number):
    return {
        "receipt": f"r{number}", "queue": "orders", "partition": "Default", "version": number,
        "key": None, "payload": {"n": number}, "headers": None, "attempt": 1,
        "transaction_id": f"t{number}", "enqueued_at": "2026-01-01T00:00:00Z", "priority": 2,
    }  # fmt: skip


class Broker:
    """Answers settlements, hands out `supply` in leases, and keeps what it was told."""

    def __init__(self, supply, *, refuse=()):
        self.supply = list(supply)
        self.refuse = set(refuse)
        self.acks, self.nacks, self.extends, self.leases = [], [], [], []
        self.script = Script(self.answer, repeat_last=True)

    def answer(self, sent):
        if sent.method == "GET":
            return reply(QUEUE)
        asked = sent.body
        self.acks += asked.get("ack", [])
        self.nacks += asked.get("nack", [])
        self.extends += asked.get("extend", [])
        told = asked.get("ack", []) + [one["receipt"] for one in asked.get("nack", [])]
        told += [one["receipt"] for one in asked.get("extend", [])]
        results = [{"receipt": one, "status": self.status(one)} for one in told]
        lease = asked.get("lease")
        if lease is None:
            return reply({"results": results})
        self.leases.append(lease)
        count = lease.get("max", 1)
        given, self.supply = self.supply[:count], self.supply[count:]
        return reply({"results": results, "messages": [message(one) for one in given]})

    def status(self, receipt):
        return "refused" if receipt in self.refuse else "acked"

    @property
    def requests(self):
        return len(self.script.sent)


QUEUE = {
    "queue": "orders", "org": "default", "created_at": "2026-01-01T00:00:00Z", "paused": False,
    "options": {"visibility_ms": 8000}, "lanes": 1, "tail": 9, "groups": [],
}  # fmt: skip


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def client_of(broker, clock=None):
    return Client(transport=broker.script, retries=0, clock=clock or Clock())


def numbers(messages):
    return [one.payload["n"] for one in messages]


def test_settle_and_lease_share_a_round_trip():
    """Ten messages in batches of five cost three requests, all acked."""
    broker = Broker(range(10))
    found = numbers(client_of(broker).consume("orders", batch=5, max_messages=10))
    assert found == list(range(10))
    assert broker.acks == [f"r{one}" for one in range(10)]
    assert [len(sent.body.get("ack", [])) for sent in broker.script.sent] == [0, 5, 5]


def test_lease_options_reach_the_broker():
    """Group, visibility, wait, partitions and consumer travel with each lease."""
    broker = Broker(range(1))
    options = {"visibility_ms": 5000, "wait_ms": 70, "partitions": ["p1"], "consumer": "me"}
    list(client_of(broker).consume("orders", "g", max_messages=1, **options))
    lease = broker.leases[0]
    assert (lease["queue"], lease["group"]) == ("orders", "g")
    assert "max" not in lease  # one is the default
    assert (lease["visibility_ms"], lease["wait_ms"]) == (5000, 70)
    assert (lease["partitions"], lease["consumer"]) == (["p1"], {"name": "me"})


def test_never_leases_more_than_it_will_hand_out():
    """The last lease asks only for what is left of max_messages."""
    broker = Broker(range(10))
    assert len(list(client_of(broker).consume("orders", batch=4, max_messages=6))) == 6
    assert [lease["max"] for lease in broker.leases] == [4, 2]


def test_exception_in_with_gives_the_message_back_with_its_text():
    """The failed message carries the error, the rest goes back without blame, both at once."""
    broker = Broker(range(4))

    def work():
        with client_of(broker).consume("orders", batch=4) as messages:
            for one in messages:
                if one.version == 1:
                    raise ValueError("no stock")

    with pytest.raises(ValueError, match="no stock"):
        work()
    assert broker.acks == ["r0"]
    failed, *rest = broker.nacks
    assert failed == {"receipt": "r1", "error": "ValueError: no stock"}
    assert rest == [{"receipt": "r2", "release": True}, {"receipt": "r3", "release": True}]


def test_break_in_with_counts_as_handled():
    """Inside `with` a break is known to be none of the message's fault."""
    broker = Broker(range(3))
    with client_of(broker).consume("orders", batch=3) as messages:
        for _ in messages:
            break
    assert broker.acks == ["r0"]
    assert [one["receipt"] for one in broker.nacks] == ["r1", "r2"]


def test_leaving_a_bare_loop_gives_the_message_back():
    """A bare `for` cannot tell break from exception: the message in hand is delivered again."""
    broker = Broker(range(3))
    for one in client_of(broker).consume("orders", batch=3):
        if one.version == 1:
            break
    gc.collect()
    assert broker.acks == ["r0"]
    assert [one["receipt"] for one in broker.nacks] == ["r1", "r2"]
    assert "delay_ms" not in broker.nacks[0]


def test_acked_by_hand_is_not_settled_again():
    """message.ack() before a break settles it for good."""
    broker = Broker(range(2))
    for one in client_of(broker).consume("orders", batch=2):
        one.ack()
        break
    gc.collect()
    assert broker.acks == ["r0"]
    assert [one["receipt"] for one in broker.nacks] == ["r1"]


def test_nacked_by_hand_is_not_acked():
    """A message given back by hand stays given back when the loop goes on."""
    broker = Broker(range(2))
    for one in client_of(broker).consume("orders", max_messages=2):
        if one.version == 0:
            one.nack("later", delay_ms=50)
    assert broker.acks == ["r1"]
    assert broker.nacks == [{"receipt": "r0", "error": "later", "delay_ms": 50}]


def test_idle_timeout_ends_the_loop():
    """Without a message for that long the loop ends; the last wait is cut to fit."""
    clock = Clock()
    broker = Broker([0])

    def slow(sent):
        if not broker.supply:
            clock.now += sent.body["lease"]["wait_ms"] / 1000
        return broker.answer(sent)

    client = Client(transport=Script(slow, repeat_last=True), clock=clock)
    assert numbers(client.consume("orders", wait_ms=2000, idle_timeout_s=5)) == [0]
    assert [lease["wait_ms"] for lease in broker.leases] == [2000, 2000, 2000, 1000]
    assert broker.acks == ["r0"]


def test_a_slow_body_is_not_idleness():
    """Time spent in the loop's body does not count as idle."""
    clock, broker = Clock(), Broker(range(2))
    found = []
    for one in client_of(broker, clock).consume(
        "orders", batch=1, idle_timeout_s=5, visibility_ms=60_000, max_messages=2
    ):
        clock.now += 50
        found.append(one.version)
    assert found == [0, 1]


def test_stop_ends_after_the_message_in_hand():
    """When the event is set the message in hand is acked and the rest goes back."""
    broker, stop = Broker(range(3)), threading.Event()
    for _ in client_of(broker).consume("orders", batch=3, stop=stop):
        stop.set()
    assert broker.acks == ["r0"]
    assert [one["receipt"] for one in broker.nacks] == ["r1", "r2"]


def test_held_back_messages_are_kept_alive():
    """A slow loop extends what it leased but did not hand out yet."""
    clock, broker = Clock(), Broker(range(3))
    for _ in client_of(broker, clock).consume(
        "orders", batch=3, visibility_ms=10_000, max_messages=3
    ):
        clock.now += 6
    extended = [one["receipt"] for one in broker.extends]
    assert extended == ["r1", "r2", "r2"]
    assert broker.acks == ["r0", "r1", "r2"]


def test_unknown_visibility_is_asked_once():
    """Without visibility_ms the queue's own option is looked up when it starts to matter."""
    clock, broker = Clock(), Broker(range(4))
    for _ in client_of(broker, clock).consume("orders", batch=4, max_messages=4):
        clock.now += 5
    asked = [sent.call for sent in broker.script.sent if sent.method == "GET"]
    assert asked == ["GET /v1/queues/orders"]
    assert {one["visibility_ms"] for one in broker.extends} == {8000}


def test_lost_leases_are_not_handed_out():
    """A message whose extension is refused belongs to somebody else by now."""
    clock, broker = Clock(), Broker(range(3), refuse=["r1"])
    found = []
    for one in client_of(broker, clock).consume(
        "orders", batch=3, visibility_ms=10_000, max_messages=2
    ):
        clock.now += 6
        found.append(one.version)
    assert found == [0, 2]


def test_a_lost_round_trip_repeats_the_acks_but_not_the_lease():
    """When nobody knows what became of it, the settlement is repeated and the lease is not."""
    broker = Broker(range(2))
    answers = [broker.answer, LOST, *[broker.answer] * 3]
    client = Client(transport=Script(*answers), retries=0, clock=Clock())
    assert numbers(client.consume("orders", batch=1, max_messages=2)) == [0, 1]
    assert broker.acks[0] == "r0"


def test_a_dead_broker_ends_the_loop_with_its_error():
    """Nothing is sent into the void twice: the error comes out, the leases end by themselves."""
    broker = Broker(range(1))
    refused = BrokerUnreachableError("no connection", sent=False)
    script = Script(broker.answer, refused)
    with pytest.raises(BrokerUnreachableError):
        list(Client(transport=script, retries=0).consume("orders", batch=1))
    assert len(script.sent) == 2


def test_a_farewell_that_is_lost_is_told(caplog):
    """The loop ends well all the same; the log says that its messages will come again."""
    broker = Broker(range(2))
    script = Script(broker.answer, BrokerUnreachableError("no connection", sent=False))
    with Client(transport=script, retries=0).consume("orders", batch=2) as messages:
        next(messages)
    assert [(one.name, one.levelname) for one in caplog.records] == [("spillway.client", "WARNING")]
    assert "no connection" in caplog.text


async def test_async_consume_acks_and_ends():
    """The asynchronous twin settles alike."""
    broker = Broker(range(10))
    client = AsyncClient(transport=AsyncScript(broker.script), retries=0)
    found = [one.version async for one in client.consume("orders", batch=5, max_messages=10)]
    assert found == list(range(10))
    assert broker.acks == [f"r{one}" for one in range(10)]
    assert broker.requests == 3


async def test_async_exception_gives_the_message_back_with_its_text():
    """Inside `async with` the error is recorded with its message."""
    broker = Broker(range(2))
    client = AsyncClient(transport=AsyncScript(broker.script), retries=0)

    async def work():
        async with client.consume("orders", batch=2) as messages:
            async for _ in messages:
                raise ValueError("no stock")

    with pytest.raises(ValueError, match="no stock"):
        await work()
    assert broker.acks == []
    assert broker.nacks == [
        {"receipt": "r0", "error": "ValueError: no stock"},
        {"receipt": "r1", "release": True},
    ]


async def test_async_lost_round_trip():
    """The asynchronous twin repeats the acks of a lost round trip."""
    broker = Broker(range(2))
    script = Script(broker.answer, LOST, *[broker.answer] * 3)
    client = AsyncClient(transport=AsyncScript(script), retries=0)
    found = [one.version async for one in client.consume("orders", batch=1, max_messages=2)]
    assert found == [0, 1]
