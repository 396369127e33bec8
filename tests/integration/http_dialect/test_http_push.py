"""Pushes over HTTP: a result for each item, in order; what is accepted is in force."""

import base64
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from spillway.settings import Settings

pytestmark = pytest.mark.asyncio(loop_scope="module")

JSON = "application/json"
MSGPACK = "application/msgpack"
MIB = 1024 * 1024


def statuses(results):
    return [(result["status"], result.get("version")) for result in results]


async def test_results_come_in_the_order_of_the_request(site, queue):
    """Items of many queues and partitions: each result stands where its item stood."""
    items = [
        {"queue": f"{queue}-{n % 3}", "partition": f"p{n % 2}", "payload": n} for n in range(12)
    ]
    reply = await site.ask("POST", "/v1/messages", {"items": items})
    assert [result["index"] for result in reply["results"]] == list(range(12))
    assert [result["partition"] for result in reply["results"]] == ["p0", "p1"] * 6
    assert [result["version"] for result in reply["results"]] == [1] * 6 + [2] * 6
    assert await site.payloads(f"{queue}-0") == [0, 6, 3, 9]


async def test_a_repeat_is_answered_with_the_first_version(site, queue):
    """The same transaction id twice is stored once, in one request and over many."""
    first = await site.results(queue, "a", "a", transaction_id="t")
    assert statuses(first) == [("stored", 1), ("duplicate", 1)]
    await site.push(queue, "b")
    assert statuses(await site.results(queue, "a", transaction_id="t")) == [("duplicate", 1)]
    assert await site.payloads(queue) == ["a", "b"]


async def test_the_same_id_with_another_payload_is_a_conflict(site, queue):
    """Alone it is 409; in company it is an error of its item."""
    await site.push(queue, "a", transaction_id="t")
    item = {"queue": queue, "payload": "b", "transaction_id": "t"}
    alone = await site("POST", "/v1/messages", {"items": [item]})
    assert (alone.status, alone.error) == (409, "transaction_conflict")
    company = {"items": [item, {"queue": queue, "payload": "c"}]}
    reply = await site.ask("POST", "/v1/messages", company)
    assert [result["status"] for result in reply["results"]] == ["failed", "stored"]
    assert await site.payloads(queue) == ["a", "c"]


async def test_the_dedupe_window_ends(site, queue, eventually_async):
    """Past the window the id is free again, though nothing was pushed in between."""
    await site.make(queue, dedupe_window_ms=300)
    await site.push(queue, "a", transaction_id="t")
    now_ms = site.broker.clock.now_ms
    over_ms = now_ms() + 300
    await eventually_async(lambda: now_ms() > over_ms)
    assert statuses(await site.results(queue, "b", transaction_id="t")) == [("stored", 2)]


async def test_without_a_dedupe_window_nothing_is_a_repeat(site, queue):
    """dedupe_window_ms 0 and dedupe_count 0 both switch dedupe off."""
    for option in ("dedupe_window_ms", "dedupe_count"):
        await site.make(f"{queue}-{option}", **{option: 0})
        for version in (1, 2):
            results = await site.results(f"{queue}-{option}", "a", transaction_id="t")
            assert statuses(results) == [("stored", version)]


async def test_max_depth_refuses_what_has_no_room(site, queue):
    """What fits is stored; the rest is 429 and worth a retry, and room comes back with acks."""
    await site.make(queue, max_depth=2)
    results = await site.results(queue, 1, 2, 3)
    assert [result["status"] for result in results] == ["stored", "stored", "failed"]
    alone = await site("POST", "/v1/messages", {"items": [{"queue": queue, "payload": 4}]})
    assert (alone.status, alone.error, alone.headers["retry-after"]) == (429, "queue_full", "1")
    await site.ack(*await site.lease(queue))
    assert await site.push(queue, 5) == [3]


async def test_a_repeat_of_what_had_no_room_is_no_duplicate(site, queue):
    """Whoever hears `duplicate` may forget the message: so it must be stored."""
    await site.make(queue, max_depth=1)
    items = [{"queue": queue, "payload": n, "transaction_id": f"t{n}"} for n in (1, 2, 2, 1)]
    reply = await site.ask("POST", "/v1/messages", {"items": items})
    assert [r["status"] for r in reply["results"]] == ["stored", "failed", "failed", "duplicate"]
    assert await site.payloads(queue) == [1]


async def test_a_key_has_one_partition(site, queue):
    """With hashed partitions a key always meets the same one, and order holds in it."""
    await site.make(queue, partitions=8)
    pushed = [r["partition"] for n in range(3) for r in await site.results(queue, n, key="k")]
    assert len(set(pushed)) == 1
    spread = {r["partition"] for n in range(40) for r in await site.results(queue, n, key=f"{n}")}
    assert len(spread) > 1
    assert spread | set(pushed) <= {"Default", *(f"p{n}" for n in range(1, 8))}


async def test_extras_travel_with_the_message(site, queue):
    """Key, headers, partition, trace and ids come out as they went in."""
    extras = {
        "key": "k\u00e9y",
        "headers": {"a": "\u2603", "": ""},
        "partition": "north/\u2603",
        "transaction_id": "t",
        "trace_id": "00-abc-def-01",
    }
    await site.push(queue, {"n": 1}, **extras)
    (message,) = await site.lease(queue, partitions=["north/\u2603"])
    assert extras.items() <= message.items()
    assert (message["attempt"], message["version"], message["queue"]) == (1, 1, queue)
    story = f"/v1/queues/{queue}/messages/north%2F%E2%98%83/1"
    assert (await site.ask("GET", story))["message"]["headers"] == extras["headers"]


async def test_bytes_round_trip_in_both_media(site, queue):
    """payload_base64 in JSON and bin in MessagePack are the same bytes."""
    data = bytes(range(256))
    text = base64.b64encode(data).decode()
    await site.push(queue, {"payload_base64": text})
    packed = {"items": [{"queue": queue, "payload": data}]}
    await site.ask("POST", "/v1/messages", packed, media=MSGPACK)
    path = f"/v1/queues/{queue}/messages"
    told = (await site.ask("GET", path))["messages"]
    assert [message["payload"] for message in told] == [{"payload_base64": text}] * 2
    told = (await site.ask("GET", path, media=MSGPACK))["messages"]
    assert [message["payload"] for message in told] == [data, data]


@pytest.mark.parametrize(
    "text",
    ["null", "0", "-0.0", "1e400", "1" * 300, '"\\u0000"', '{"a":[1,{"b":null}]}', '""', "[]"],
)
async def test_any_json_value_is_a_payload(site, queue, text):
    """JSON text comes back as it was sent, byte for byte; MessagePack readers get it too."""
    body = b'{"items":[{"queue":"%b","payload":%b}]}' % (queue.encode(), text.encode())
    assert (await site("POST", "/v1/messages", body, content_type=JSON)).status == 201
    path = f"/v1/queues/{queue}/messages"
    assert b'"payload":%b,' % text.encode() in (await site("GET", path)).content
    assert (await site("GET", path, media=MSGPACK)).status == 200


async def test_delayed_messages_wait_for_their_time(site, queue):
    """delay_ms and deliver_at hold a message back alone; what is due passes it."""
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    await site.push(queue, "late", delay_ms=60_000)
    await site.push(queue, "tomorrow", deliver_at=tomorrow)
    await site.push(queue, "now")
    await site.push(queue, "past", deliver_at="0001-01-01T00:00:00+14:00")
    leased = await site.lease(queue, max=9)
    assert [message["payload"] for message in leased] == ["now", "past"]
    found = (await site.ask("GET", f"/v1/queues/{queue}/messages?state=deferred"))["messages"]
    assert [message["payload"] for message in found] == ["late", "tomorrow"]
    assert all(message["deliver_at"] > message["enqueued_at"] for message in found)


async def test_expired_messages_are_dropped(site, queue, eventually_async):
    """Past its ttl_ms a message is not delivered any more, without anybody asking."""
    await site.push(queue, "first")
    await site.lease(queue)
    await site.push(queue, "short", ttl_ms=1)
    await site.push(queue, "long", ttl_ms=60_000)

    async def dropped() -> bool:
        return await site.counts(queue) == {"leased": 1, "ready": 1, "dropped": 1}

    await eventually_async(dropped)
    assert [message["payload"] for message in await site.lease(queue, max=9)] == ["long"]


BAD_ITEMS = {
    "priority": {"priority": 1},
    "negative delay": {"delay_ms": -1},
    "delay and date": {"delay_ms": 1, "deliver_at": "2030-01-01T00:00:00Z"},
    "date beyond a year": {"deliver_at": "9999-12-31T23:59:59-14:00"},
    "no zone": {"deliver_at": "2030-01-01T00:00:00"},
    "no life": {"ttl_ms": 0},
    "endless life": {"ttl_ms": 2**63},
    "long key": {"key": "k" * 1025},
    "long key in bytes": {"key": "\u2603" * 342},
    "long id": {"transaction_id": "t" * 257},
    "long trace": {"trace_id": "t" * 257},
    "long partition": {"partition": "p" * 257},
    "big headers": {"headers": {"h": "x" * 16 * 1024}},
    "header of a number": {"headers": {"h": 1}},
    "big payload": {"payload": "x" * MIB},
    "unknown field": {"colour": "red"},
    "bad base64": {"payload": {"payload_base64": "%"}},
    "bad name": {"queue": ".hidden"},
    "long name": {"queue": "q" * 129},
} | {
    f"{what} {field}": {field: value}
    for what, value in {"empty": "", "NUL in": "a\0b"}.items()
    for field in ("queue", "partition", "key", "transaction_id", "trace_id")
}
del BAD_ITEMS["empty trace_id"]


@pytest.mark.parametrize("media", [JSON, MSGPACK])
@pytest.mark.parametrize("fault", BAD_ITEMS.values(), ids=BAD_ITEMS.keys())
async def test_a_bad_item_fails_alone(site, queue, fault, media):
    """Nothing of it is stored, no queue or partition is made for it, its neighbours are stored."""
    good = {"queue": queue, "payload": "good"}
    items = [good, good | {"payload": "bad"} | fault, good]
    reply = await site.ask("POST", "/v1/messages", {"items": items}, media=media)
    assert [r["status"] for r in reply["results"]] == ["stored", "failed", "stored"]
    assert [r.get("version") for r in reply["results"]] == [1, None, 2]
    error = reply["results"][1]["error"]
    assert error["code"] in {"invalid_item", "invalid_name"}
    assert error["message"]
    assert error["hint"]
    assert await site.payloads(queue) == ["good", "good"]
    alone = await site("POST", "/v1/messages", {"items": items[1:2]}, media=media)
    assert (alone.status, alone.error) == (400, error["code"])


async def test_an_item_that_is_no_text_fails_alone(site, queue):
    """Half a surrogate pair, as a text cut in the middle of an emoji has it."""
    item = b'{"queue":"%b","payload":"%%b"}' % queue.encode()
    items = b",".join(item % text for text in (b"a", rb"\ud83d", rb"\ud83d\ude00"))
    reply = await site.ask("POST", "/v1/messages", b'{"items":[%b]}' % items)
    assert [r["status"] for r in reply["results"]] == ["stored", "failed", "stored"]
    assert reply["results"][1]["error"]["code"] == "invalid_item"
    assert await site.payloads(queue) == ["a", "😀"]


async def test_the_limits_are_inclusive(site, queue):
    """The largest payload, key, id and headers that are allowed are allowed."""
    headers = {"h": "x" * (16 * 1024 - 1)}
    edge = {"key": "k" * 1024, "transaction_id": "t" * 256, "headers": headers}
    assert await site.push(queue, "x" * (MIB - 2), **edge) == [1]
    (message,) = await site.lease(queue)
    assert edge.items() <= message.items()
    assert len(message["payload"]) == MIB - 2


async def test_a_request_has_its_limits(site, queue):
    """10,000 items pass, one more is refused as a whole, and none at all too."""
    items = [{"queue": queue, "payload": 1}] * 10_000
    assert len((await site.ask("POST", "/v1/messages", {"items": items}))["results"]) == 10_000
    more = {"items": [*items, items[0]]}
    assert await site.refused("POST", "/v1/messages", more) == (400, "bad_request")
    assert await site.refused("POST", "/v1/messages", {"items": []}) == (400, "bad_request")
    assert (await site.ask("GET", f"/v1/queues/{queue}"))["tail"] == 10_000


async def test_limits_are_settings(open_site, database_url):
    """A site may allow less, and then less is allowed."""
    settings = Settings(
        num_shards=1,
        message_bytes_max=10,
        request_bytes_max=2000,
        items_max=2,
        key_bytes_max=2,
        headers_bytes_max=2,
        transaction_id_bytes_max=16,
    )
    async with open_site(database_url, settings) as site:
        for fault in (
            {"payload": "123456789"},
            {"key": "123"},
            {"headers": {"a": "bc"}},
            {"transaction_id": "1" * 17},
        ):
            item = {"queue": "q", "payload": 1} | fault
            answer = await site("POST", "/v1/messages", {"items": [item]})
            assert (answer.status, answer.error) == (400, "invalid_item")
        items = [{"queue": "q", "payload": 1}] * 3
        assert (await site("POST", "/v1/messages", {"items": items})).status == 400
        large = msgspec.json.encode({"items": items[:2]}) + b" " * 2000
        assert (await site("POST", "/v1/messages", large, content_type=JSON)).status == 413
