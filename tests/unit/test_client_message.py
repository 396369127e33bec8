"""Messages and their payloads, as applications see them."""

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

import msgspec
import pytest

import spillway
from spillway.client.async_client import AsyncClient
from spillway.client.message import error_text
from spillway.client.payload import decode_payload, payload_bytes
from spillway.client.scripted import AsyncScript, Script, reply
from spillway.client.sync_client import Client
from spillway.core.errors import StaleReceiptError

STALE = {"code": "stale_receipt", "message": "over", "hint": "h"}
REFUSED = reply({"results": [{"receipt": "r", "status": "refused", "error": STALE}]})
DONE = reply({"results": [{"receipt": "r", "status": "acked"}]})


def leased(payload, **fields):
    return reply({"messages": [{
        "receipt": "r", "queue": "orders", "partition": "p1", "version": 7, "key": "k",
        "payload": payload, "headers": None, "attempt": 2, "transaction_id": "t",
        "enqueued_at": "2026-01-01T00:00:00Z", "priority": 2, **fields,
    }]})  # fmt: skip


def one(payload, *answers):
    script = Script(leased(payload), *answers)
    return Client(transport=script, retries=0).lease("orders")[0], script


@dataclass
class Order:
    n: int


def test_payload_is_the_value_that_was_pushed():
    """JSON values come back as values, and typed when asked."""
    message, _ = one({"n": 1})
    assert message.payload == {"n": 1}
    assert message.json(Order) == Order(1)
    assert message.bytes == b'{"n":1}'
    with pytest.raises(msgspec.ValidationError):
        message.json(list[int])


def test_bytes_come_back_as_bytes():
    """What was pushed as bytes is bytes again."""
    message, _ = one({"payload_base64": "AP8="})
    assert message.payload == b"\x00\xff"
    assert message.bytes == b"\x00\xff"


@pytest.mark.parametrize(
    "raw", [b'{"payload_base64":"AP8=","more":1}', b'{"payload_base64":"?"}', b'{"a":1}', b'"x"']
)
def test_only_the_wrapper_is_bytes(raw):
    """An object that merely resembles the wrapper stays JSON."""
    assert payload_bytes(raw) is None
    assert decode_payload(raw) == msgspec.json.decode(raw)


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b"1e999", Decimal("1e999")),
        (b'{"a":[-1e999,1.5,7,"x",null]}', {"a": [Decimal("-1e999"), 1.5, 7, "x", None]}),
        (b"9" * 400, 10**400 - 1),
        (b"[" + b"9" * 5000 + b"]", [Decimal("9" * 5000)]),
        (b"1e9999999999999999999", float("inf")),
    ],
)
def test_a_number_of_any_size_can_be_read(raw, value):
    """A consumer does not give a message up because its producer counts further than a float."""
    assert decode_payload(raw) == value


def test_facts_of_a_message():
    """Address, attempt and times are there as attributes."""
    message, _ = one(1)
    assert (message.queue, message.partition, message.version) == ("orders", "p1", 7)
    assert (message.key, message.attempt, message.headers) == ("k", 2, {})
    assert message.enqueued_at == datetime(2026, 1, 1, tzinfo=UTC)
    assert (message.transaction_id, message.priority, message.trace_id) == ("t", 2, None)
    assert repr(message) == "<Message orders/p1/7 attempt 2>"


def test_settling_by_hand():
    """ack, nack and extend name the receipt."""
    message, script = one(1, DONE, DONE, DONE)
    message.extend(500)
    message.nack("why", delay_ms=5)
    message.ack()
    bodies = [sent.body for sent in script.sent[1:]]
    assert bodies[0]["extend"] == [{"receipt": "r", "visibility_ms": 500}]
    assert bodies[1]["nack"] == [{"receipt": "r", "error": "why", "delay_ms": 5}]
    assert bodies[2]["ack"] == ["r"]


def test_a_lease_that_is_over_is_told():
    """A stale receipt raises: the message is somebody else's by now."""
    message, _ = one(1, REFUSED)
    with pytest.raises(StaleReceiptError, match="over"):
        message.ack()


def test_why_nothing_was_leased():
    """An empty lease says why."""
    client = Client(transport=Script(reply({"messages": [], "reason": "paused"})))
    assert client.lease("orders").reason == "paused"


async def test_async_messages_settle_alike():
    """The asynchronous message awaits the same calls."""
    client = AsyncClient(transport=AsyncScript(Script(leased(1), DONE, DONE, REFUSED)), retries=0)
    message = (await client.lease("orders"))[0]
    await message.extend(5)
    await message.ack()
    with pytest.raises(StaleReceiptError):
        await message.nack("late")


def test_error_text_is_bounded():
    """However long an error is, its text fits beside the message."""
    assert error_text(ValueError("x")) == "ValueError: x"
    assert len(error_text(ValueError("x" * 100_000))) == 4000


def test_names_of_the_package():
    """Everything promised is there, and nothing else is invented."""
    assert all(getattr(spillway, name) is not None for name in spillway.__all__)
    assert set(spillway.__all__) <= set(dir(spillway))
    with pytest.raises(AttributeError):
        _ = spillway.Nothing
