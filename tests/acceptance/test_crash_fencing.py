"""Two broker processes on one database: killed, paused past the lease, woken again."""

import json
import signal
import socket
import threading
import time

import psycopg
import pytest

from spillway import Client, SpillwayError

LEASE_S = 2.0
PATIENCE_S = 30

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture
def pair(serve, database_url, eventually):
    """Two brokers on one database; the first owns every shard."""
    both = []
    for _ in range(2):
        served = serve("--database-url", database_url, num_shards=2, shard_lease_s=LEASE_S)
        served.start()
        both.append(served)
        with Client(both[0].url) as client:
            eventually(lambda: client.health().shards_owned == 2, PATIENCE_S)
    return both


def owns_all(served):
    """Whether a broker says that it owns every shard; a dead or paused one says nothing."""
    with Client(served.url, retries=0, timeout_s=2) as client:
        try:
            return client.health().shards_owned == 2
        except SpillwayError:
            return False


def epochs(database_url):
    with psycopg.connect(database_url) as conn:
        query = "SELECT epoch FROM spillway.shard ORDER BY shard_id"
        return [epoch for (epoch,) in conn.execute(query)]


def post(served, path, body):
    """Send a request whole and come back with the open connection: nobody may read it yet."""
    data = json.dumps(body).encode()
    connection = socket.create_connection(("127.0.0.1", served.port), PATIENCE_S)
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json"]
    lines += ["Connection: close", f"Content-Length: {len(data)}"]
    connection.sendall("\r\n".join([*lines, "", ""]).encode() + data)
    return connection


def answer(connection):
    """The status, headers and body that a broker sent in the end."""
    with connection:
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), head.lower(), json.loads(body)


def push_body(*ids):
    return {"items": [{"queue": "orders", "payload": 1, "transaction_id": one} for one in ids]}


def stored(database_url):
    with psycopg.connect(database_url) as conn:
        rows = conn.execute("SELECT transaction_id FROM spillway.message ORDER BY version")
        return [transaction_id for (transaction_id,) in rows]


def test_the_second_broker_follows_a_killed_one_at_once(serve, database_url, eventually):
    """The backends of a process that died by -9 are gone: nobody waits for a lease of minutes."""
    first, second = (serve("--database-url", database_url, shard_lease_s=300) for _ in range(2))
    first.start()
    second.start()
    with Client(second.url, retries=0) as client:
        status, head, body = answer(post(second, "/v1/messages", push_body("early")))
        assert (status, body["error"]["code"]) == (503, "not_owner")
        assert b"\r\nretry-after:" in head
        before = epochs(database_url)
        began = time.monotonic()
        first.kill()
        eventually(lambda: client.health().shards_owned == 4, PATIENCE_S)
    assert time.monotonic() - began < 10
    assert all(old < new for old, new in zip(before, epochs(database_url), strict=True))
    with Client(second.url) as client:
        assert client.push("orders", 1, transaction_id="tx").version == 1


def test_a_paused_broker_is_deposed_and_tells_no_lies(pair, database_url, eventually):
    """SIGSTOP past its lease, SIGCONT: what was asked of it fails, and nobody writes twice."""
    first, second = pair
    with Client(first.url) as client:
        client.push("orders", 0, transaction_id="tx-0")
        client.push("orders", 1, transaction_id="tx-1")
        done, held = client.lease("orders", max=2, visibility_ms=600_000)
        done.ack()
    before = epochs(database_url)
    first.signal(signal.SIGSTOP)
    late = {
        "push": post(first, "/v1/messages", push_body("late")),
        "duplicate": post(first, "/v1/messages", push_body("tx-1")),
        "lease": post(first, "/v1/queues/orders/lease", {"max": 5}),
        "ack": post(first, "/v1/settle", {"ack": [held.receipt]}),
        "repeated ack": post(first, "/v1/settle", {"ack": [done.receipt]}),
    }
    eventually(lambda: owns_all(second), PATIENCE_S)
    with Client(second.url) as client:
        assert client.push("orders", 2, transaction_id="tx-2").version == 3
    first.signal(signal.SIGCONT)
    for what, connection in late.items():
        status, head, body = answer(connection)
        assert (status, body["error"]["code"]) == (503, "not_owner"), (what, body)
        assert b"\r\nretry-after:" in head
    assert stored(database_url) == ["tx-0", "tx-1", "tx-2"]
    after = epochs(database_url)
    assert all(old < new for old, new in zip(before, after, strict=True))
    # The receipt of a lease that lives is good at the new owner, and the old one is a spare now.
    with Client(second.url) as client:
        assert client.ack(held.receipt).results[0].status == "acked"
        assert client.push("orders", 1, transaction_id="late").version == 4
        assert client.audit().balanced
    second.kill()
    eventually(lambda: owns_all(first), PATIENCE_S)
    with Client(first.url) as client:
        assert client.push("orders", 1, transaction_id="late").version == 4
        assert [m.version for m in client.lease("orders", max=9)] == [3, 4]
        assert client.audit().balanced
    assert all(old < new for old, new in zip(after, epochs(database_url), strict=True))


def replay_all(pair, eventually):
    """What a broker took while it could not know whose the shards were follows once it has them."""
    for served, other in (pair, pair[::-1]):
        other.kill()
        with Client(served.url) as client:
            eventually(lambda: owns_all(served), PATIENCE_S)  # noqa: B023
            eventually(lambda: client.health().spool.pending == 0, PATIENCE_S)
        other.start()


def test_a_broker_that_is_paused_again_and_again_writes_nothing_twice(
    pair, database_url, eventually
):
    """Ownership goes to and fro under load; each message is stored once, under some epoch."""
    stop = threading.Event()
    told: dict[str, int | None] = {}

    def produce(name):
        number = 0
        while not stop.is_set():
            for served in pair:
                with Client(served.url, retries=0, timeout_s=1) as client:
                    try:
                        result = client.push("orders", number, transaction_id=f"{name}-{number}")
                    except SpillwayError:
                        continue
                before = told.setdefault(result.transaction_id, result.version)
                assert result.version in {None, before}
                number += 1

    producers = [threading.Thread(target=produce, args=(f"p{i}",)) for i in range(3)]
    for producer in producers:
        producer.start()
    taken = [epochs(database_url)]
    try:
        for paused, other in (pair, pair[::-1], pair):
            eventually(lambda: owns_all(paused), PATIENCE_S)  # noqa: B023
            enough = len(told) + 20
            eventually(lambda: len(told) > enough, PATIENCE_S)  # noqa: B023
            paused.signal(signal.SIGSTOP)
            eventually(lambda: owns_all(other), PATIENCE_S)  # noqa: B023
            paused.signal(signal.SIGCONT)
            taken.append(epochs(database_url))
    finally:
        stop.set()
        for producer in producers:
            producer.join()
    replay_all(pair, eventually)
    found = stored(database_url)
    assert len(set(found)) == len(found)
    # A push that nobody answered may be there as well, the last one of each producer.
    assert set(told) <= set(found)
    versions = {tx: version for tx, version in told.items() if version is not None}
    assert {tx: found[version - 1] for tx, version in versions.items()} == {
        tx: tx for tx in versions
    }
    assert len(found) <= len(told) + len(producers)
    assert taken == sorted(taken)
    assert len({tuple(epoch) for epoch in taken}) == len(taken)
