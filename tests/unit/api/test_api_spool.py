"""The routes of the spool: who may, what reaches the broker, what comes back."""

import msgspec
import pytest

from spillway import wire
from spillway.api.limits import Limits
from spillway.api.native import ROUTES

ACME = "Bearer k-acme"
SPOOL = [r for r in ROUTES if r.path.startswith("/v1/spool") and not r.is_open]
BODIES = {
    "/v1/spool/repair": b'{"file":"f","line":1,"accept":true}',
    "/v1/spool/discard": b'{"file":"f"}',
}


@pytest.mark.parametrize("route", SPOOL, ids=lambda route: f"{route.method} {route.path}")
async def test_a_key_of_another_org_is_refused(skin, broker, route):
    """Before the body is looked at, and before the broker hears of it."""
    url = route.path.replace("{file}", "f")
    body = BODIES.get(route.path, b"{}" if route.body else b"")
    answer = await skin(route.method, url, body, authorization=ACME)
    assert (answer.status, answer.code) == (403, "forbidden")
    assert "'default'" in answer.json["error"]["hint"]
    assert broker.calls == []
    assert (await skin(route.method, url, b"}", authorization=ACME)).status == 403


@pytest.mark.parametrize("require_api_key", [False, True])
async def test_events_are_taken_from_brokers_alone(skin, broker, require_api_key):
    """Whoever has not the secret is refused unread, with or without a key; a broker needs none."""
    skin = type(skin)(broker, Limits(request_bytes_max=100, require_api_key=require_api_key))
    url, lines = "/v1/spool/events?source=failover_x", b"line\n"
    for headers in ({}, {"x_spillway_secret": ""}, {"x_spillway_secret": "no"}):
        for key in ({}, {"authorization": ACME}, {"authorization": "Bearer k-default"}):
            answer = await skin("POST", url, lines, **headers, **key)
            assert (answer.status, answer.code) == (403, "forbidden")
    assert broker.calls == []
    secret = {"x_spillway_secret": "among brokers"}
    assert (await skin("POST", url, lines, **secret)).json["stored"] == [0]
    await skin("POST", url + "&aside=true", lines, **secret)
    assert [call for call in broker.calls if call[0] == "take"] == [
        ("take", ("failover_x", lines, False)),
        ("take", ("failover_x", lines, True)),
    ]
    assert (await skin("POST", url, b"x" * 101, **secret)).status == 413
    assert (await skin("POST", "/v1/spool/events", lines, **secret)).status == 400


async def test_a_name_of_an_org_is_no_key(skin, broker):
    """Where no keys are asked for, whoever speaks for another org is nobody in particular."""
    assert (await skin("GET", "/v1/spool", x_spillway_org="acme")).status == 200
    guarded = type(skin)(broker, Limits(require_api_key=True))
    assert (await guarded("GET", "/v1/spool")).status == 401


async def test_who_asks_and_what_for_reach_the_broker(skin, broker):
    """Typed, with the actor; what is left out has its default."""
    await skin("GET", "/v1/spool/files?state=failed&limit=7&after=x")
    await skin("GET", "/v1/spool/files")
    await skin("GET", "/v1/spool/files/f?state=failed&from_line=3&limit=2")
    await skin("POST", "/v1/spool/verify")
    await skin("POST", "/v1/spool/retry", b'{"file":"f","line":2}', x_spillway_actor="ann")
    await skin("POST", "/v1/spool/discard", b'{"file":"f","dry_run":true}', x_spillway_actor="ann")
    await skin("POST", "/v1/spool/hold", b'{"reason":"r"}', x_spillway_actor="ann")
    await skin("POST", "/v1/spool/release", x_spillway_actor="bob")
    assert broker.calls == [
        ("files", ("failed", "x", 7)),
        ("files", ("waiting", None, 100)),
        ("events", ("f", "failed", 3, 2)),
        ("verify", (wire.SpoolVerifyRequest(),)),
        ("retry", (wire.SpoolRetryRequest(file="f", line=2), "ann")),
        ("discard", (wire.SpoolDiscardRequest(file="f", dry_run=True), "ann")),
        ("hold", (wire.SpoolHoldRequest(reason="r"), "ann")),
        ("release", (wire.SpoolHoldRequest(), "bob")),
    ]


@pytest.mark.parametrize(
    "query",
    ["state=open", "limit=0", "limit=1001", "from_line=0", "after=x", "from_line=1&from_line=2"],
)
async def test_a_page_that_cannot_be_is_refused(skin, broker, query):
    """Out of range, unknown or doubled."""
    assert (await skin("GET", f"/v1/spool/files/f?{query}")).status == 400
    assert broker.calls == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("retry", b'{"line":1}'),
        ("retry", b'{"file":"f","line":0}'),
        ("retry", b'{"file":""}'),
        ("discard", b'{"line":1}'),
        ("discard", b'{"file":"f","state":"open"}'),
        ("discard", b'{"file":"f","all":true}'),
        ("repair", b'{"file":"f","line":1}'),
        ("repair", b'{"file":"f","line":1,"accept":true,"event":{}}'),
        ("repair", b'{"file":"f","line":1,"event":{"payload":"\\ud800"}}'),
        ("repair", b'{"file":"f","line":1,"event":{"payload":{"payload_base64":"!"}}}'),
        ("repair", b'{"file":"f","line":1,"event":{"payload":%b}}' % (b"[" * 600 + b"]" * 600)),
        ("verify", b'{"files":[]}'),
        ("hold", b'{"reason":5}'),
    ],
)
async def test_what_makes_no_sense_is_refused(skin, broker, path, body):
    """With a code and a hint; nothing is done."""
    answer = await skin("POST", f"/v1/spool/{path}", body)
    assert answer.status == 400
    assert answer.json["error"]["hint"]
    assert broker.calls == []


async def test_a_payload_is_mended_with_what_the_medium_can_say(skin, broker):
    """JSON text as it came, bytes as bytes, in both."""
    event = {"queue": "q", "payload": {"payload_base64": "/w=="}, "key": None}
    asked = {"file": "f", "line": 1, "event": event}
    await skin("POST", "/v1/spool/repair", msgspec.json.encode(asked))
    packed = msgspec.msgpack.encode(asked | {"event": event | {"payload": b"\xff"}})
    await skin("POST", "/v1/spool/repair", packed, content_type="application/msgpack")
    await skin("POST", "/v1/spool/repair", b'{"file":"f","line":1,"event":{"payload": [1, 2]}}')
    first, second, third = (arguments[0].event for _, arguments in broker.calls)
    assert (first.payload, first.key, first.partition) == (b"\xff", None, msgspec.UNSET)
    assert second == first
    assert bytes(third.payload) == b"[1, 2]"


async def test_payloads_are_shown_in_the_words_of_the_medium(skin, broker):
    """In a line all of them are JSON text; a damaged line may have none at all."""
    texts = [b'{"payload_base64":"/w=="}', b"[1, 2]", b'{"payload_base64":5}']
    broker.spoolkeeping.events_shown = [
        *(wire.SpoolEvent(line=n, payload=msgspec.Raw(text)) for n, text in enumerate(texts, 1)),
        wire.SpoolEvent(line=4, damaged="{"),
    ]
    plain = await skin("GET", "/v1/spool/files/f")
    assert b",".join(b'{"line":%d,"payload":%b}' % (n, t) for n, t in enumerate(texts, 1)) in (
        plain.body
    )
    packed = await skin("GET", "/v1/spool/files/f", accept="application/msgpack")
    shown = packed.msgpack["events"]
    assert [one.get("payload") for one in shown] == [b"\xff", [1, 2], {"payload_base64": 5}, None]
    assert shown[3] == {"line": 4, "damaged": "{"}
