"""Garbage at the door: refused with a code, a message and a hint, and nothing of it is stored."""

import json

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

JSON = "application/json"
MSGPACK = "application/msgpack"
MIB = 1024 * 1024
BODIES = [
    *(("POST", f"/v1/spool/{verb}") for verb in ("repair", "discard", "retry", "verify")),
    ("POST", "/v1/messages"),
    ("POST", "/v1/settle"),
    ("PUT", "/v1/queues/garbage"),
    ("PATCH", "/v1/queues/kept"),
    ("PUT", "/v1/queues/kept/groups/g"),
] + [
    ("POST", f"/v1/queues/kept/{verb}")
    for verb in ("lease", "redrive", "unblock", "park", "purge", "seek", "pause", "resume")
]
bounded = settings(
    max_examples=40,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def code_of(response):
    """The code of a refusal, whose shape is checked."""
    assert 400 <= response.status_code < 500, (response.status_code, response.content)
    decode = msgspec.msgpack.decode if MSGPACK in response.headers["content-type"] else json.loads
    detail = decode(response.content)["error"]
    assert all(detail[name] and isinstance(detail[name], str) for name in ("code", "hint"))
    assert detail["message"]
    return detail["code"]


@pytest.fixture
def store(stage):
    """A client, one queue with one message, and proof afterwards that nothing else was stored."""
    if stage.get("/v1/queues/kept").status_code == 404:
        item = {"queue": "kept", "payload": "kept"}
        assert stage.post("/v1/messages", json={"items": [item]}).status_code == 201
    yield stage
    queues = stage.get("/v1/queues").json()["queues"]
    assert [(queue["queue"], queue["tail"]) for queue in queues] == [("kept", 1)]


@pytest.mark.parametrize("media", [JSON, MSGPACK])
@bounded
@given(where=st.sampled_from(BODIES), body=st.binary(min_size=1, max_size=200))
def test_random_bytes_are_refused(store, media, where, body):
    """No body of noise is taken for a request (but `{}`, which hypothesis may well find)."""
    answer = store.request(*where, content=body, headers={"content-type": media})
    if answer.status_code >= 300:
        code_of(answer)
    elif where[1] == "/v1/queues/garbage":
        store.delete("/v1/queues/garbage")


@pytest.mark.parametrize(
    "body",
    [
        b'{"x": "\xff\xfe"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b"9" * 100_000,
        b"NaN",
        b"\0",
        b"\xef\xbb\xbf{}",
        b"{}{}",
        b'{"reason": "\\ud800"}',
        b'{"\\ud800": 1}',
        b"[]",
        b"null",
        b'{"unknown": 1}',
    ],
    ids=lambda body: f"{body[:12]!r}",
)
def test_broken_json_is_refused_everywhere(store, body):
    """Broken UTF-8, endless depth, endless numbers, lone surrogates, more than one value."""
    for where in BODIES:
        code_of(store.request(*where, content=body, headers={"content-type": JSON}))


@pytest.mark.parametrize(
    "body",
    [
        b"\xc1",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x01",
        b"\xd4\x05\x00",
        b"\xd6\xff\0\0\0\0",
        b"\x91" * 100_000 + b"\x01",
        b"\x81\x01\x02",
        b"\x81\xa1\xff\x01",
        b"\x80\x80",
    ],
    ids=lambda body: body[:6].hex(),
)
def test_broken_msgpack_is_refused_everywhere(store, body):
    """Ext types, lengths that promise gigabytes, endless depth, trailing bytes."""
    for where in BODIES:
        code_of(store.request(*where, content=body, headers={"content-type": MSGPACK}))


NUL_BODIES = [
    ("lease", {"group": "a\0"}),
    ("lease", {"partitions": ["a\0"]}),
    ("pause", {"group": "a\0"}),
    ("seek", {"to": "a\0"}),
    ("seek", {"to": 1, "partition": "a\0"}),
    *[
        (verb, {"what": "dead"} | {field: value} if verb == "purge" else {field: value})
        for verb in ("redrive", "unblock", "park", "purge")
        for field, value in {
            "group": "a\0",
            "partition": "a\0",
            "key": "a\0",
            "error_contains": "a\0",
            "messages": [{"partition": "a\0", "version": 1}],
        }.items()
    ],
    ("redrive", {"ids": [2**63]}),
    ("redrive", {"ids": [-1]}),
    ("purge", {"what": "dead", "ids": [10**400]}),
    ("park", {"messages": [{"partition": "p", "version": 2**63}]}),
]


@pytest.mark.parametrize(("verb", "body"), NUL_BODIES, ids=lambda value: str(value)[:50])
def test_no_nul_and_no_giant_reaches_the_database(store, verb, body):
    """A NUL in a name or a filter, or a number beyond bigint, is the caller's fault: 400."""
    answer = store.post(f"/v1/queues/kept/{verb}", json=body)
    assert code_of(answer) in {"bad_request", "invalid_name"}


@pytest.mark.parametrize(
    "query",
    [
        "/v1/queues?after=%00",
        "/v1/queues?after=%ff",
        "/v1/queues?limit=0",
        "/v1/queues?limit=99999999999999999999",
        "/v1/queues?limit=1&limit=2",
        "/v1/queues?colour=red",
        "/v1/queues/kept?colour=red",
        "/v1/queues/kept%0a",
        "/v1/queues/%00",
        "/v1/queues/" + "q" * 129,
        "/v1/queues/kept/groups/%ff",
        "/v1/queues/kept/messages?partition=%00",
        "/v1/queues/kept/messages?from_version=9223372036854775808",
        "/v1/queues/kept/messages?next=%00",
        "/v1/queues/kept/messages?next=WzFd",
        "/v1/queues/kept/messages?state=lost",
        "/v1/queues/kept/messages?group=%00",
        "/v1/queues/kept/messages/Default/0",
        "/v1/queues/kept/messages/Default/9223372036854775808",
        "/v1/queues/kept/messages/%ff/1",
        "/v1/queues/kept/dead?partition=%00",
        "/v1/queues/kept/dead?key=%00",
        "/v1/queues/kept/dead?error_contains=%00",
        "/v1/queues/kept/dead?before=noon",
        "/v1/queues/kept/dead?after=-1",
    ],
)
def test_bad_queries_and_paths_are_refused(store, query):
    """NUL, broken UTF-8, numbers out of range, unknown and doubled parameters."""
    assert code_of(store.get(query)) in {"bad_request", "invalid_name", "unknown_option"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "text/plain"}, 415),
        ({"content-type": ""}, 415),
        ({"content-type": "application/json; charset=latin-1"}, 415),
        ({"content-encoding": "gzip"}, 415),
        ({"x-spillway-org": "a b"}, 400),
        ({"x-spillway-org": ""}, 400),
        ({"authorization": "Basic x"}, 401),
        ({"authorization": "Bearer \xff"}, 401),
    ],
)
def test_bad_headers_are_refused(store, headers, status):
    """Media, charsets and encodings that we do not speak; orgs and keys that cannot be."""
    raw = {name: value.encode("latin-1") for name, value in headers.items()}
    answer = store.put("/v1/queues/garbage", content=b"{}", headers=raw)
    assert (answer.status_code, bool(code_of(answer))) == (status, True)


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_a_wrong_method_is_told_the_right_ones(store, method):
    """405 with Allow, as RFC 9110 wants it."""
    answer = store.request(method, "/v1/messages")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert code_of(answer) == "method_not_allowed"
