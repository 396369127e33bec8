"""Builders and parsers: each call as a request, each answer as its type or its error."""

from datetime import UTC, datetime

import msgspec
import pytest

from spillway.client import operations, requests
from spillway.client.batch import read_results
from spillway.client.errors import BadReplyError, BrokerError, ClientUsageError, error_of
from spillway.client.http1 import Response
from spillway.client.identity import identity_headers
from spillway.client.protocol import parse
from spillway.client.pushed import Pushed
from spillway.client.scripted import Script, refusal, reply
from spillway.client.sync_client import Client
from spillway.core import errors
from spillway.wire import (
    ErrorDetail,
    Extend,
    LeaseRequest,
    Nack,
    PurgeRequest,
    PushRequest,
    QueueOptions,
    RedriveRequest,
    SeekRequest,
    SettleLease,
    SettleRequest,
)


def body_of(request, kind):
    return msgspec.json.decode(request.body, type=kind)


def test_push_is_a_strict_request():
    """What the client sends is what the broker decodes, field for field."""
    when = datetime(2026, 1, 2, tzinfo=UTC)
    request = requests.push(
        "orders",
        {"n": 1},
        key="k",
        transaction_id="t",
        headers={"a": "b"},
        deliver_at=when,
        ttl_ms=5,
        trace_id="x",
        priority=1,
    )
    item = body_of(request, PushRequest).items[0]
    assert (request.method, request.path, request.safe) == ("POST", "/v1/messages", True)
    assert (item.queue, bytes(item.payload), item.key) == ("orders", b'{"n":1}', "k")
    assert (item.transaction_id, item.headers, item.deliver_at) == ("t", {"a": "b"}, when)
    assert (item.ttl_ms, item.trace_id, item.priority) == (5, "x", 1)


def test_push_without_an_id_gets_one():
    """Every push carries a transaction id: 22 random characters and a number."""
    one = body_of(requests.push("orders", 1), PushRequest).items[0].transaction_id
    two = body_of(requests.push("orders", 1), PushRequest).items[0].transaction_id
    assert one != two
    assert len(one) == 24
    assert one.endswith("-0")


def test_bytes_travel_as_base64():
    """Bytes are wrapped, as the wire format says."""
    item = body_of(requests.push("orders", b"\x00\xff"), PushRequest).items[0]
    assert bytes(item.payload) == b'{"payload_base64":"AP8="}'


def test_unencodable_payload_is_named():
    """A payload that JSON cannot hold fails here, with a hint."""
    with pytest.raises(errors.InvalidItemError, match="cannot be JSON"):
        requests.push("orders", object())


def test_naive_deliver_at_is_refused():
    """A time without a zone is a guess, and refused."""
    with pytest.raises(errors.InvalidItemError, match="timezone"):
        requests.push("orders", 1, deliver_at=datetime(2026, 1, 1))  # noqa: DTZ001


def test_a_push_of_qos_0_is_not_durable_yet():
    """The broker says it once; the client says it of each, but of no failure."""
    taken = {"index": 0, "status": "buffered"}
    failed = {"index": 1, "status": "failed"}
    request = requests.push("orders", 1, qos=0)
    assert request.body.endswith(b'"qos":0}')
    one = parse(request, reply({"results": [taken], "durable": False}, 201))
    assert (one.status, one.durable) == ("buffered", False)
    both = {"results": [taken, failed], "durable": False}
    assert [result.durable for result in read_results(reply(both, 201))] == [False, True]
    assert parse(request, reply({"results": [taken]}, 201)).durable
    assert b"durable" not in msgspec.json.encode(Pushed(index=0, status="stored"))


def test_failed_push_raises_the_brokers_error():
    """A single failed item is raised as the class the broker names."""
    detail = {"code": "transaction_conflict", "message": "used", "hint": "h"}
    result = {"index": 0, "status": "failed", "error": detail}
    with pytest.raises(errors.TransactionConflictError, match="used"):
        parse(requests.push("orders", 1), reply({"results": [result], "error": detail}, 409))


def test_lease_is_not_safe_and_waits_longer():
    """A lease may not be repeated blindly, and the client waits as long as the broker."""
    request = requests.lease("orders", "g", max=5, wait_ms=2000, partitions=["p1"], consumer="me")
    body = body_of(request, LeaseRequest)
    assert (request.path, request.safe, request.wait_s) == ("/v1/queues/orders/lease", False, 2.0)
    assert (body.group, body.max, body.partitions, body.consumer.name) == ("g", 5, ["p1"], "me")


def test_settle_with_a_lease_is_not_safe():
    """Settling is safe to repeat until a lease rides along."""
    nack, extend = Nack(receipt="b", error="e"), Extend(receipt="c", visibility_ms=10)
    request = requests.settle(["a"], nack=[nack], extend=[extend])
    assert request.safe
    body = body_of(request, SettleRequest)
    assert (body.ack, body.nack, body.extend) == (["a"], [nack], [extend])
    assert not requests.settle(["a"], lease=SettleLease(queue="orders")).safe


@pytest.mark.parametrize(
    ("request_", "line"),
    [
        (operations.queues(limit=5, after="a b"), "GET /v1/queues?limit=5&after=a+b"),
        (operations.queue("orders"), "GET /v1/queues/orders"),
        (operations.delete_queue("orders", reason="x"), "DELETE /v1/queues/orders?reason=x"),
        (operations.groups("orders"), "GET /v1/queues/orders/groups"),
        (operations.group("orders", "g"), "GET /v1/queues/orders/groups/g"),
        (operations.delete_group("orders", "g"), "DELETE /v1/queues/orders/groups/g"),
        (
            operations.browse("orders", partition="a/b", from_version=3, state="ready"),
            "GET /v1/queues/orders/messages?partition=a%2Fb&from_version=3&state=ready",
        ),
        (operations.story("orders", "a/b", 7), "GET /v1/queues/orders/messages/a%2Fb/7"),
        (operations.dead("orders", after=9), "GET /v1/queues/orders/dead?after=9"),
        (operations.blocked("orders"), "GET /v1/queues/orders/blocked"),
        (operations.pause("orders"), "POST /v1/queues/orders/pause"),
        (operations.resume("orders", group="g"), "POST /v1/queues/orders/resume"),
        (operations.health(), "GET /health"),
        (operations.topology(), "GET /v1/topology"),
        (operations.metrics(), "GET /metrics"),
        (operations.audit(), "GET /v1/audit"),
    ],
)
def test_addresses(request_, line):
    """Each call has its address; names are escaped as one segment."""
    assert f"{request_.method} {request_.path}" == line


def test_queue_options_are_checked_before_they_travel():
    """An unknown option or a value out of range is refused by the client already."""
    request = operations.create_queue("orders", order="key", partitions=4)
    assert body_of(request, QueueOptions) == QueueOptions(order="key", partitions=4)
    with pytest.raises(errors.UnknownOptionError, match="colour"):
        operations.create_queue("orders", colour="red")
    with pytest.raises(errors.UnknownOptionError, match="partitions"):
        operations.update_queue("orders", partitions=0)


def test_keywords_of_queues_are_the_wires_options():
    """The typed keywords and the wire's options cannot drift apart."""
    assert set(operations.Options.__annotations__) == set(QueueOptions.__struct_fields__)


def test_verbs_carry_their_selection():
    """Filters, ids and the rest reach the body."""
    redrive = operations.redrive("orders", ids=[1], group="g", dry_run=True, reason="why")
    assert body_of(redrive, RedriveRequest) == RedriveRequest(
        ids=[1], group="g", dry_run=True, reason="why"
    )
    purge = operations.purge("orders", what="waiting", all=True)
    assert body_of(purge, PurgeRequest) == PurgeRequest(what="waiting", all=True)
    assert not redrive.safe


def test_seek_takes_words_times_and_versions():
    """A version needs its partition; a time needs its zone."""
    when = datetime(2026, 1, 2, tzinfo=UTC)
    assert body_of(operations.seek("q", "latest"), SeekRequest).to == "latest"
    assert body_of(operations.seek("q", when), SeekRequest).to == when.isoformat()
    assert body_of(operations.seek("q", 7, partition="p1"), SeekRequest).to == 7
    with pytest.raises(ClientUsageError, match="partition"):
        operations.seek("q", 7)
    with pytest.raises(ClientUsageError, match="zone"):
        operations.seek("q", "2026-01-02")


@pytest.mark.parametrize("kind", [errors.StaleReceiptError, errors.QueueFullError])
def test_wire_codes_come_back_as_classes(kind):
    """Same class, same code, the broker's own text and hint."""
    error = error_of(ErrorDetail(code=kind.code, message="m", hint="h"))
    assert type(error) is kind
    assert (error.message, error.hint) == ("m", "h")


def test_unknown_codes_keep_their_code():
    """A code of a newer broker is an error with that code; 503 makes it transient."""
    error = error_of(ErrorDetail(code="brand_new", message="m", hint="h"), 503)
    assert isinstance(error, BrokerError)
    assert (error.code, error.status, error.transient) == ("brand_new", 503, True)


def test_a_strangers_answer_is_named():
    """HTML from a proxy is not mistaken for an answer."""
    with pytest.raises(BadReplyError, match="HTTP 404"):
        parse(operations.queue("q"), Response(404, b"<html>nginx</html>"))
    with pytest.raises(BadReplyError, match="unknown shape"):
        parse(operations.queue("q"), Response(200, b"[]"))


def test_replies_may_gain_fields():
    """A field of a newer broker is ignored."""
    health = {
        "status": "ok", "database": "connected", "version": "9", "uptime_s": 1.0,
        "shards_owned": 1, "shards_total": 1, "mood": "fine", "ready": True,
        "spool": {"pending": 0, "bytes": 0, "oldest_s": 0.0, "failed": 0, "held": False,
                  "breaker": "closed", "disk_free_bytes": 1, "replay_rate": 0.0},
    }  # fmt: skip
    assert parse(operations.health(), reply(health)).version == "9"


def test_identity_travels_in_headers():
    """Org, key and actor are sent with every call, and never with a line break."""
    script = Script(refusal("unauthorized", 401))
    client = Client(transport=script, org="acme", api_key="s3", actor="ana")
    with pytest.raises(errors.UnauthorizedError):
        client.health()
    headers = script.sent[0].headers
    assert headers["x-spillway-org"] == "acme"
    assert headers["authorization"] == "Bearer s3"
    assert headers["x-spillway-actor"] == "ana"
    with pytest.raises(ClientUsageError):
        identity_headers(actor="a\r\nevil: 1")


def test_the_doc_of_a_method_is_the_doc_of_its_call():
    """Client methods keep the text of what they send."""
    assert Client.redrive.__doc__ == operations.redrive.__doc__


@pytest.mark.parametrize("payload", [{"x": float("nan")}, [1.0, float("inf")], float("-inf")])
def test_a_number_that_json_does_not_know_is_refused(payload):
    """It would be stored as null: what was accepted would be lost."""
    with pytest.raises(errors.InvalidItemError, match="JSON does not know"):
        requests.push("orders", payload)


def test_a_null_is_no_such_number():
    """None and nested None are JSON."""
    body = requests.push("orders", {"a": None, "b": [None, 1.5]}).body
    assert b'"payload":{"a":null,"b":[null,1.5]}' in body
