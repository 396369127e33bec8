"""Bodies: limits while they stream, and text that is no JSON."""

import pytest

ITEM = b'{"items":[{"queue":"q","payload":%b}]}'


async def test_a_declared_body_over_the_limit_is_refused_unread(skin):
    """Content-Length is enough: nothing is read, and the connection closes."""
    exchange = skin.open("POST", "/v1/messages", pieces=[b"x"], content_length="10001")
    exchange.gone.set()
    await skin.app(exchange.scope, exchange.receive, exchange.send)
    answer = exchange.answer
    assert (answer.status, answer.code) == (413, "request_too_large")
    assert answer.headers["connection"] == "close"
    assert exchange.given == 0


async def test_a_streaming_body_is_refused_while_it_streams(skin, broker):
    """A chunked body is cut at the limit, not gathered first."""
    exchange = skin.open("POST", "/v1/messages", pieces=[b"[" * 4000] * 50)
    given_when_answered = []

    async def send(event):
        given_when_answered.append(exchange.given)
        await exchange.send(event)

    await skin.app(exchange.scope, exchange.receive, send)
    assert (exchange.answer.status, exchange.answer.code) == (413, "request_too_large")
    assert given_when_answered[0] == 3
    assert broker.calls == []


async def test_a_refused_caller_is_listened_to_for_a_moment(skin):
    """What still comes is swallowed, so that the answer is not lost in a reset."""
    exchange = skin.open("POST", "/v1/messages", pieces=[b"[" * 4000] * 50)
    await skin.app(exchange.scope, exchange.receive, exchange.send)
    assert exchange.given == 50
    assert [event.get("more_body") for event in exchange.sent] == [None, True, False]


async def test_a_body_at_the_limit_passes(skin):
    """The limit itself is allowed, in one piece or in many."""
    body = ITEM % (b'"' + b"x" * (10_000 - len(ITEM % b'""')) + b'"')
    assert len(body) == 10_000
    assert (await skin("POST", "/v1/messages", body)).status == 201
    pieces = [body[at : at + 999] for at in range(0, len(body), 999)]
    assert (await skin("POST", "/v1/messages", pieces=pieces)).status == 201
    assert (await skin("POST", "/v1/messages", body + b" ")).status == 413


async def test_a_caller_that_leaves_while_it_sends_gets_nothing(skin, broker):
    """Half a request is no request."""
    exchange = skin.open("POST", "/v1/messages", pieces=[b"{", b"}"])
    exchange.pieces, more = [b"{"], exchange.receive

    async def receive():
        event = await more()
        if event["type"] == "http.request":
            exchange.gone.set()
            return event | {"more_body": True}
        return event

    await skin.app(exchange.scope, receive, exchange.send)
    assert (exchange.sent, broker.calls) == ([], [])


@pytest.mark.parametrize(
    "payload",
    [
        b'"\xff"',
        b'{"a":"\xc3"}',
        b'"\xed\xa0\x80"',
        b'"\\x"',
        b"NaN",
        b"-Infinity",
        b"01",
        b"1.",
        b"tru",
        b"{a:1}",
        b"[1,]",
        b"'a'",
        b'"\n"',
        b"",
        b"[" * 100 + b"]" * 99,
        b"[" * 4000 + b"]" * 4000,
    ],
)
@pytest.mark.parametrize("bad_item", [False, True])
async def test_what_is_not_json_is_refused_as_a_whole(skin, broker, payload, bad_item):
    """Also inside a payload, which is otherwise kept as it came, and behind a bad item."""
    body = b'{"items":[%b{"queue":"q","payload":%b}]}' % (b"{}," if bad_item else b"", payload)
    answer = await skin("POST", "/v1/messages", body)
    assert (answer.status, answer.code) == (400, "bad_request")
    assert broker.pushed == []


@pytest.mark.parametrize("body", [b"", b"[]", b"1", b"null", b'"x"', b"{", b"{}x", b"\x00"])
async def test_a_body_of_the_wrong_shape_is_refused(skin, body):
    """Neither a list nor half an object is a request."""
    assert (await skin("POST", "/v1/messages", body)).status == 400


@pytest.mark.parametrize(
    "body", [b"\xc1", b"\xdd\xff\xff\xff\xff", b"\x81\xa5items", b"\x91" * 5000]
)
async def test_broken_messagepack_is_refused(skin, body):
    """Lengths that lie cost nothing."""
    answer = await skin("POST", "/v1/messages", body, content_type="application/msgpack")
    assert answer.status == 400


async def test_the_first_fault_is_named(skin):
    """The message says which field and why."""
    answer = await skin("PUT", "/v1/queues/q", b'{"partitions":0}')
    assert "$.partitions" in answer.json["error"]["message"]
    answer = await skin("PUT", "/v1/queues/q", b'{"partition":1}')
    assert answer.code == "unknown_option"
    answer = await skin("POST", "/v1/queues/q/lease", b'{"group":"a b"}')
    assert answer.code == "invalid_name"
