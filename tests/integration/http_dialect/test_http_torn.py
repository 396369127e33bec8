"""Requests that are torn, too large, or good but for one item."""

import json
import socket

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

JSON = "application/json"
MSGPACK = "application/msgpack"
MIB = 1024 * 1024


def exchange(client, *pieces):
    """Write until the other side has had enough; what it answered, and how much it took."""
    with socket.create_connection((client.base_url.host, client.base_url.port), 20) as sock:
        taken = 0
        try:
            for piece in pieces:
                sock.sendall(piece)
                taken += len(piece)
            sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        answer = b""
        try:
            while piece := sock.recv(65_536):
                answer += piece
        except ConnectionResetError:
            pass
        return answer, taken


HEAD = b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
OPENING = b'{"items":[{"queue":"garbage","payload":"'


def test_a_large_body_is_refused_by_its_length(stage):
    """Content-Length says 17 MiB: 413 before any of it is read."""
    answer, _ = exchange(stage, HEAD + b"content-length: %d\r\n\r\n" % (17 * MIB) + OPENING)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"request_too_large"' in answer


def test_a_large_body_is_refused_while_it_streams(stage):
    """Without a length the 413 comes when 16 MiB are over, though the end never comes."""
    chunk = b"%x\r\n%b\r\n" % (MIB, b"x" * MIB)
    head = HEAD + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(OPENING), OPENING)
    answer, taken = exchange(stage, head, *[chunk] * 64)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer
    assert taken > 0


@pytest.fixture(autouse=True)
def _nothing_is_stored(stage):
    """Whatever is done to it, the queue `garbage` never comes into being."""
    yield
    assert stage.get("/v1/queues/garbage").status_code == 404


@pytest.mark.parametrize(
    "rest",
    [
        b"content-length: 1000\r\n\r\n" + OPENING,
        b"transfer-encoding: chunked\r\n\r\n28\r\n" + OPENING,
        b"transfer-encoding: chunked\r\n\r\n28\r\n" + OPENING + b"\r\n",
        b"transfer-encoding: chunked\r\n\r\nxyz\r\n",
        b"content-length: -1\r\n\r\n{}",
        b"content-length: 1\r\ncontent-length: 2\r\n\r\n{}",
        b"content-length: 99999999999999999999999\r\n\r\n{}",
        b"x" * 100_000 + b": y\r\n\r\n",
        b"\0: y\r\n\r\n",
        b"",
    ],
    ids=range(10),
)
def test_a_torn_request_is_never_half_done(stage, rest):
    """The connection ends before the body does, or the framing is nonsense: nothing happens."""
    answer, _ = exchange(stage, HEAD + rest)
    assert not answer or answer.startswith(b"HTTP/1.1 4")
    assert stage.get("/health").json()["status"] == "ok"


# ---------------------------------------------------------------- a bad item among good ones

words = st.text(max_size=300) | st.just("\0") | st.just("")
numbers = st.integers() | st.floats() | st.sampled_from([10**30, -(10**30), 2**63, -1, 0])
faults = st.one_of(
    st.fixed_dictionaries({"priority": numbers.filter(lambda n: n != 2)}),
    st.fixed_dictionaries({"delay_ms": st.integers(max_value=-1) | st.floats(allow_nan=False)}),
    st.fixed_dictionaries({"ttl_ms": st.integers(max_value=0) | st.just(10**18)}),
    st.fixed_dictionaries({"deliver_at": words}),
    st.fixed_dictionaries({"headers": st.dictionaries(words, numbers, min_size=1)}),
    st.fixed_dictionaries({"queue": numbers | words.map("-".__add__) | st.none()}),
    st.fixed_dictionaries({"payload": words.map(lambda word: {"payload_base64": word + "%"})}),
    st.builds(lambda field, word: {field: word + "\0"}, st.sampled_from(
        ["queue", "partition", "key", "transaction_id", "trace_id"]
    ), words),
    st.builds(lambda name: {f"_{name}": 1}, words),
)  # fmt: skip


@pytest.mark.parametrize("media", [JSON, MSGPACK])
@settings(
    max_examples=40,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(batch=st.lists(st.none() | faults, min_size=1, max_size=6))
def test_a_bad_item_fails_alone_whatever_it_is(stage, media, batch):
    """The others of its batch are stored in order, under the next versions; nothing of it is."""
    org = {"x-spillway-org": "batches"}
    found = stage.get("/v1/queues/mixed", headers=org)
    tail = found.json()["tail"] if found.status_code == 200 else 0
    items = [{"queue": "mixed", "payload": n} | (fault or {}) for n, fault in enumerate(batch)]
    encode = msgspec.msgpack.encode if media == MSGPACK else json_of
    try:
        body = encode({"items": items})
    except (OverflowError, ValueError):  # MessagePack ends at 64 bits
        return
    answer = stage.post(
        "/v1/messages", content=body, headers=org | {"content-type": media, "accept": JSON}
    )
    good = [n for n, fault in enumerate(batch) if fault is None]
    assert answer.status_code == (201 if good else 400)
    results = answer.json()["results"]
    assert [r["index"] for r in results if r["status"] == "stored"] == good
    assert [r["version"] for r in results if r["status"] == "stored"] == list(
        range(tail + 1, tail + 1 + len(good))
    )
    assert all(r["error"]["hint"] for r in results if r["status"] == "failed")
    names = [q["queue"] for q in stage.get("/v1/queues", headers=org).json()["queues"]]
    assert names in ([], ["mixed"])
    if good:
        path = f"/v1/queues/mixed/messages?from_version={tail + 1}"
        stored = stage.get(path, headers=org).json()["messages"]
        assert [message["payload"] for message in stored] == good


def json_of(value):
    return json.dumps(value, allow_nan=False).encode()
