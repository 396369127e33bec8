"""Lease and settle, and a caller that goes away in the middle."""

import asyncio

import msgspec
import pytest
from msgspec import Raw

from spillway.api import attendance
from spillway.core.errors import DatabaseUnavailableError

LEASE = "/v1/queues/q/lease"
LONG = b'{"wait_ms":60000}'
SETTLE_AND_WAIT = b'{"ack":["r9"],"lease":{"queue":"q","wait_ms":60000}}'


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """The watcher starts at once."""
    monkeypatch.setattr(attendance, "PATIENCE_S", 0)


async def test_payloads_are_spliced_as_they_are(skin, broker, make_message):
    """JSON as its own text, bytes under their name."""
    broker.waiting = [make_message(Raw(b'{ "a" : 1.0 }')), make_message(b"\x00\xff", 2)]
    answer = await skin("POST", LEASE, b'{"max":2}')
    assert b'"payload":{ "a" : 1.0 }' in answer.body
    assert answer.json["messages"][1]["payload"] == {"payload_base64": "AP8="}


async def test_messagepack_replies_carry_values(skin, broker, make_message):
    """Decoded JSON and bin, not text in text."""
    broker.waiting = [make_message(Raw(b'{"a":1.0}')), make_message(b"\x00\xff", 2)]
    answer = await skin("POST", LEASE, b"\x81\xa3max\x02", content_type="application/msgpack")
    assert [m["payload"] for m in answer.msgpack["messages"]] == [{"a": 1.0}, b"\x00\xff"]


async def test_an_empty_lease_says_why(skin):
    """Nothing due is no error."""
    answer = await skin("POST", LEASE)
    assert answer.json == {"messages": [], "reason": "empty"}
    assert "retry-after" not in answer.headers


async def test_a_lease_without_a_database_says_when_to_come_back(skin, broker):
    """It is answered at once, whatever the caller would have waited."""
    broker.reason = "database_unavailable"
    answer = await skin("POST", LEASE, LONG)
    assert (answer.status, answer.json["reason"]) == (200, "database_unavailable")
    assert answer.headers["retry-after"] == "1"


@pytest.mark.parametrize("count", [20, 21])
async def test_a_settlement_has_a_limit(skin, count):
    """Ack, nack and extend count together, against the limit of a push."""
    request = {
        "ack": ["r1"] * (count - 2),
        "nack": [{"receipt": "r2"}],
        "extend": [{"receipt": "r3", "visibility_ms": 1000}],
    }
    answer = await skin("POST", "/v1/settle", msgspec.json.encode(request))
    assert answer.status == (200 if count == 20 else 400)
    assert count == 20 or "21 items, but a request may carry 20" in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("url", "body"), [(LEASE, LONG), (LEASE, b"{}"), ("/v1/settle", SETTLE_AND_WAIT)]
)
async def test_a_disconnect_cancels_the_wait(skin, broker, url, body):
    """The broker hears of it while it waits, not when the wait is over."""
    broker.hold = asyncio.Event()
    exchange = skin.open("POST", url, body)
    request = asyncio.create_task(skin.app(exchange.scope, exchange.receive, exchange.send))
    await broker.holding.wait()
    assert not request.done()
    exchange.gone.set()
    await request
    assert broker.cancelled
    assert exchange.sent == []


@pytest.mark.parametrize("url", [LEASE, "/v1/settle"])
async def test_messages_for_nobody_are_given_back(skin, broker, make_message, url):
    """The caller left between the lease and the reply: no need to let the lease run out."""
    broker.waiting = [make_message(Raw(b"1"), version) for version in (1, 2)]
    exchange = skin.open("POST", url, SETTLE_AND_WAIT if url != LEASE else b"{}")
    read = exchange.receive

    async def read_and_go():
        event = await read()
        exchange.gone.set()
        return event

    await skin.app(exchange.scope, read_and_go, exchange.send)
    what, (messages,) = broker.calls[-1]
    assert what == "give_back"
    assert [message.receipt for message in messages] == ["r1", "r2"]
    assert exchange.sent == []


async def test_a_push_is_not_cancelled_by_a_disconnect(skin, broker):
    """What was sent whole is stored, whoever stays to hear it."""
    broker.hold = asyncio.Event()
    body = b'{"items":[{"queue":"q","payload":1}]}'
    exchange = skin.open("POST", "/v1/messages", body)
    request = asyncio.create_task(skin.app(exchange.scope, exchange.receive, exchange.send))
    await broker.holding.wait()
    exchange.gone.set()
    await asyncio.sleep(0)
    broker.hold.set()
    await request
    assert len(broker.pushed) == 1


async def test_a_cancelled_server_says_so(skin, broker):
    """A request that outlives the grace period is answered, not dropped."""
    broker.hold = asyncio.Event()
    exchange = skin.open("POST", LEASE, LONG)
    request = asyncio.create_task(skin.app(exchange.scope, exchange.receive, exchange.send))
    await broker.holding.wait()
    request.cancel()
    await request
    assert broker.cancelled
    assert (exchange.answer.status, exchange.answer.code) == (503, "shutting_down")


async def test_transient_errors_say_when_to_come_back(skin, broker):
    """Retry-After goes with what is worth a retry."""
    broker.error = DatabaseUnavailableError()
    answer = await skin("POST", LEASE)
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert answer.code == "database_unavailable"


async def test_a_surprise_is_logged_and_not_shown(skin, broker, capsys):
    """The stack is for the operator; the caller gets a code."""
    broker.error = ZeroDivisionError("secret 42")
    answer = await skin("POST", LEASE)
    assert (answer.status, answer.code) == (500, "internal")
    assert b"secret" not in answer.body
    assert b"Traceback" not in answer.body
    assert "secret 42" in capsys.readouterr().out


async def test_settle_needs_receipts_of_text(skin, broker):
    """Results come in the order ack, nack, extend; a wrong shape is 400."""
    answer = await skin("POST", "/v1/settle", b'{"ack":["r1","r2"]}')
    assert [r["receipt"] for r in answer.json["results"]] == ["r1", "r2"]
    assert "messages" not in answer.json
    assert (await skin("POST", "/v1/settle", b'{"ack":[1]}')).status == 400


async def test_browsed_payloads_are_dressed_too(skin, broker):
    """Looking shows the same forms as leasing."""
    body = msgspec.msgpack.encode({"items": [{"queue": "q", "payload": b"\x01"}]})
    await skin("POST", "/v1/messages", body, content_type="application/msgpack")
    answer = await skin("GET", "/v1/queues/q/messages")
    assert answer.json["messages"][0]["payload"] == {"payload_base64": "AQ=="}
