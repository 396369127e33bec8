"""Push: in one go, item by item, and what the answer says."""

import msgspec
import pytest

from spillway.wire import ErrorDetail

GOOD = {"queue": "q", "payload": {"n": 1}}
BAD = {"queue": "q"}
PACK = {"content_type": "application/msgpack"}


def body_of(*items, **more):
    return msgspec.json.encode({"items": items, **more})


def payloads(broker):
    return [
        bytes(item.payload) if isinstance(item.payload, msgspec.Raw) else item.payload
        for item in broker.pushed
    ]


async def test_good_items_are_stored_in_order(skin, broker):
    """One result an item, in the order of the request."""
    answer = await skin("POST", "/v1/messages", body_of(GOOD, GOOD, qos=0))
    assert answer.status == 201
    assert [result["index"] for result in answer.json["results"]] == [0, 1]
    (_, (org, items, qos)) = broker.calls[0]
    assert (org, len(items), qos) == ("default", 2, 0)


async def test_qos_0_says_that_nothing_is_durable_yet(skin):
    """Once for all of them; an ordinary answer does not grow."""
    answer = await skin("POST", "/v1/messages", body_of(GOOD, qos=0))
    assert answer.json["durable"] is False
    answer = await skin("POST", "/v1/messages", body_of(GOOD))
    assert answer.json.keys() == {"results"}


async def test_a_payload_is_kept_byte_for_byte(skin, broker):
    """JSON text is not decoded and written anew."""
    text = b'{ "b": 1.0, "a": 1e5, "big": 123456789012345678901234567890, "b": 2 }'
    await skin("POST", "/v1/messages", b'{"items":[{"queue":"q","payload":%b}]}' % text)
    assert payloads(broker) == [text]


@pytest.mark.parametrize(
    "bad",
    [
        BAD,
        {"queue": 5, "payload": 1},
        GOOD | {"surprise": 1},
        GOOD | {"deliver_at": "tomorrow"},
        GOOD | {"deliver_at": "2026-01-01T00:00:00"},
        GOOD | {"headers": {"a": 1}},
        GOOD | {"payload": {"payload_base64": "no base64!"}},
        GOOD | {"payload": {"payload_base64": 5}},
        5,
        None,
        [],
    ],
)
@pytest.mark.parametrize("media", ["json", "msgpack"])
async def test_a_bad_item_fails_alone(skin, broker, bad, media):
    """The good ones around it are stored, and results stay in the order of the request."""
    codec = getattr(msgspec, media)
    body = codec.encode({"items": [GOOD, bad, GOOD | {"payload": 3}]})
    headers = {"content_type": f"application/{media}"}
    answer = await skin("POST", "/v1/messages", body, **headers)
    results = codec.decode(answer.body)["results"]
    assert answer.status == 201
    assert [r["status"] for r in results] == ["stored", "failed", "stored"]
    assert [r["index"] for r in results] == [0, 1, 2]
    assert results[1]["error"]["code"] == "invalid_item"
    assert payloads(broker) == [b'{"n":1}', b"3"]


async def test_a_failed_item_keeps_its_transaction_id(skin):
    """So that the caller can tell which one it was."""
    bad = BAD | {"transaction_id": "t-1"}
    answer = await skin("POST", "/v1/messages", body_of(GOOD, bad))
    assert answer.json["results"][1]["transaction_id"] == "t-1"


HALVES = [rb"\ud800", rb"\uDfFf", rb"\ud83d and more", rb"\ud83d\ud83d\ude00", rb"\\\ude00"]


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize(
    "bad",
    [
        b'{"queue":"q","payload":"%b"}',
        b'{"queue":"q","payload":{"%b":[1]}}',
        b'{"queue":"q","payload":1,"headers":{"h":"%b"}}',
        b'{"queue":"%b","payload":1}',
    ],
)
async def test_half_a_surrogate_pair_spoils_its_item_alone(skin, broker, bad, half):
    """No text has it; whole pairs and escaped backslashes around it stay as they came."""
    good = [rb'"\ud83d\ude00"', rb'"\\ud800"', b'"text"']
    items = [b'{"queue":"q","payload":%b}' % payload for payload in good]
    items[1:1] = [bad % half, b'{"queue":5,"payload":1}']
    answer = await skin("POST", "/v1/messages", b'{"items":[%b]}' % b",".join(items))
    assert answer.status == 201
    results = answer.json["results"]
    assert [r["status"] for r in results] == ["stored", "failed", "failed", "stored", "stored"]
    assert "surrogate" in results[1]["error"]["message"]
    assert {r["error"]["code"] for r in results[1:3]} == {"invalid_item"}
    assert payloads(broker) == good


@pytest.mark.parametrize(("given", "told"), [(b"t-1", "t-1"), (rb"t-\ud800", None)])
async def test_an_id_with_half_a_pair_is_not_told(skin, given, told):
    """What cannot be written is left out; a whole id is there as ever."""
    body = rb'{"items":[{"queue":"q","payload":"\ud800","transaction_id":"%b"}]}' % given
    answer = await skin("POST", "/v1/messages", body)
    assert (answer.status, answer.code) == (400, "invalid_item")
    assert answer.json["results"][0].get("transaction_id") == told


@pytest.mark.parametrize(
    "body",
    [
        rb'{"items":[{"queue":"q","payload":"\ud800"}],"\ud800":1}',
        rb'{"items":[{"queue":"q","payload":"\ud800"},]}',
        rb'{"items":[{"queue":"q","payload":\ud800}]}',
        b'{"items":[{"queue":"q","payload":"\\ud800 \0"}]}',
        b'{"items":[{"queue":"q","payload":"\\ud800 \xff"}]}',
    ],
)
async def test_half_a_pair_excuses_no_other_fault(skin, broker, body):
    """What is no JSON without it is none with it."""
    answer = await skin("POST", "/v1/messages", body)
    assert (answer.status, "results" in answer.json) == (400, False)
    assert broker.calls == []


async def test_all_failed_is_400_with_results_and_an_error(skin, broker):
    """The same body as ever, and beside it what is wrong."""
    answer = await skin("POST", "/v1/messages", body_of(BAD, BAD))
    assert answer.status == 400
    assert [r["status"] for r in answer.json["results"]] == ["failed", "failed"]
    assert answer.code == "invalid_item"
    assert broker.calls == []


@pytest.mark.parametrize(
    ("codes", "status", "retry"),
    [
        (["invalid_item", "invalid_item"], 400, None),
        (["transaction_conflict", "transaction_conflict"], 409, None),
        (["queue_full", "queue_full"], 429, "1"),
        (["spool_full", "spool_full"], 507, "1"),
        (["spool_full", "database_unavailable"], 503, "1"),
        (["queue_full", "spool_full", "not_owner"], 503, "1"),
        (["spool_full", "never_heard_of"], 400, None),
        (["queue_full", "transaction_conflict"], 400, None),
        (["queue_not_found", "queue_not_found"], 400, None),
        (["never_heard_of", "never_heard_of"], 400, None),
    ],
)
async def test_one_shared_cause_decides_the_status(skin, broker, codes, status, retry):
    """A conflict is 409 and what is worth a retry says so, also in a mixture; any other is 400."""
    broker.push_errors = {
        index: ErrorDetail(code=code, message="", hint="") for index, code in enumerate(codes)
    }
    answer = await skin("POST", "/v1/messages", body_of(*[GOOD] * len(codes)))
    assert (answer.status, answer.headers.get("retry-after")) == (status, retry)


async def test_one_stored_is_201(skin, broker):
    """At least one is safe: the caller must look at the results."""
    broker.push_errors = {0: ErrorDetail(code="queue_full", message="", hint="")}
    answer = await skin("POST", "/v1/messages", body_of(GOOD, BAD, GOOD))
    assert answer.status == 201
    assert [r["status"] for r in answer.json["results"]] == ["failed", "failed", "stored"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (body_of(GOOD, surprise=1), "unknown_option"),
        (body_of(GOOD, qos=2), "bad_request"),
        (b"{}", "bad_request"),
        (b'{"items":null}', "bad_request"),
        (b'{"items":{}}', "bad_request"),
        (body_of(), "bad_request"),
        (body_of(*[GOOD] * 21), "bad_request"),
        (body_of(*[BAD] * 21), "bad_request"),
    ],
)
async def test_a_mistake_at_the_top_refuses_the_whole(skin, broker, body, code):
    """Nothing is stored, and no results are made up."""
    answer = await skin("POST", "/v1/messages", body)
    assert (answer.status, answer.code) == (400, code)
    assert "results" not in answer.json
    assert broker.calls == []


@pytest.mark.parametrize(
    ("payload", "stored"),
    [
        (b'{"payload_base64":"AP8="}', b"\x00\xff"),
        (b'{ "payload_base64" : "" }', b""),
        (b'{"payload\\u005fbase64":"AP8="}', b"\x00\xff"),
    ],
)
async def test_base64_means_bytes(skin, broker, payload, stored):
    """However it is spelled."""
    await skin("POST", "/v1/messages", b'{"items":[{"queue":"q","payload":%b}]}' % payload)
    assert [item.payload for item in broker.pushed] == [stored]


async def test_an_object_with_more_in_it_is_json(skin, broker):
    """Only the one key alone means bytes."""
    text = b'{"payload_base64":"AP8=","more":1}'
    await skin("POST", "/v1/messages", b'{"items":[{"queue":"q","payload":%b}]}' % text)
    assert payloads(broker) == [text]


async def test_a_bin_payload_means_bytes(skin, broker):
    """MessagePack has bytes of its own; base64 is understood too."""
    items = [GOOD | {"payload": b"\x00\xff"}, GOOD | {"payload": {"payload_base64": "AP8="}}]
    body = msgspec.msgpack.encode({"items": items})
    assert (await skin("POST", "/v1/messages", body, **PACK)).status == 201
    assert [item.payload for item in broker.pushed] == [b"\x00\xff", b"\x00\xff"]


async def test_deep_payloads_fail_alone(skin, broker):
    """What no consumer's parser could follow is not let in; brackets in strings do not count."""
    deep, flat = b"[" * 257 + b"]" * 257, b'"' + b"[{" * 400 + b'"'
    wide = b"[" + b"[]," * 400 + b"[]]"
    edge = b"[" * 256 + b"]" * 256
    items = b",".join(b'{"queue":"q","payload":%b}' % text for text in (deep, flat, wide, edge))
    answer = await skin("POST", "/v1/messages", b'{"items":[%b]}' % items)
    results = answer.json["results"]
    assert [r["status"] for r in results] == ["failed", "stored", "stored", "stored"]
    assert payloads(broker) == [flat, wide, edge]
