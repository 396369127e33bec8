"""`spillway serve` from outside: how it drains, stops, starts again, and says what is wrong."""

import json
import select
import signal
import socket
import threading
import time

import psycopg
import pytest

from spillway import BrokerUnreachableError, Client, SpillwayError
from spillway.log.embedded import EmbeddedPostgres

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def send(served, path, body):
    """Send a request and come back with the open connection."""
    data = json.dumps(body).encode()
    connection = socket.create_connection(("127.0.0.1", served.port), 30)
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json"]
    lines += [f"Content-Length: {len(data)}"]
    connection.sendall("\r\n".join([*lines, "", ""]).encode() + data)
    return connection


def status_and_body(connection):
    """What came back until the broker closed the connection, or the body was whole."""
    received = b""
    with connection:
        while b"\r\n\r\n" not in received or not is_whole(received):
            piece = connection.recv(65536)
            if not piece:
                break
            received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


def is_whole(received):
    try:
        json.loads(received.partition(b"\r\n\r\n")[2])
    except ValueError:
        return False
    return True


def messages_before_the_end(connection):
    """What a lease brought before the broker closed the connection."""
    received = b""
    with connection:
        while piece := connection.recv(65536):
            received += piece
    return json.loads(received.partition(b"\r\n\r\n")[2])["messages"] if received else []


@pytest.fixture
def served(serve):
    """A broker on a folder of its own."""
    broker = serve(num_shards=1)
    broker.start()
    return broker


# ---------------------------------------------------------------- draining


def test_the_first_sigterm_drains(served, eventually):
    """Long polls end empty, requests under way are answered, new ones are turned away."""
    with Client(served.url, retries=0) as client:
        client.push("orders", 1)
        polling = send(served, "/v1/queues/orders/lease", {"group": "idle", "wait_ms": 60_000})
        assert status_and_body(polling)[1]["messages"]
        polling = send(served, "/v1/queues/orders/lease", {"group": "idle", "wait_ms": 60_000})
        eventually(lambda: "idle" in [one.group for one in client.groups("orders")])
        with holding(served) as held:
            pushing = send(served, "/v1/messages", {"items": [{"queue": "other", "payload": 2}]})
            held.wait_for_waiter()
            began = time.monotonic()
            served.signal(signal.SIGTERM)
            assert status_and_body(polling) == (200, {"messages": [], "reason": "empty"})
            with pytest.raises(SpillwayError) as caught:
                client.push("orders", 3)
            assert caught.value.status in {None, 503}
        status, body = status_and_body(pushing)
    assert (status, body["results"][0]["status"]) == (201, "stored")
    assert served.wait(30) == 0
    assert time.monotonic() - began < 20
    with EmbeddedPostgres(served.data) as postgres, psycopg.connect(postgres.url) as conn:
        assert conn.execute("SELECT version FROM spillway.message").fetchall() == [(1,), (1,)]
        assert conn.execute("SELECT owner FROM spillway.shard").fetchall() == [(None,)]
        # What moved is saved: the next start has nothing to fold.
        assert conn.execute("SELECT count(*) FROM spillway.checkpoint").fetchone()[0] > 0


class holding:  # noqa: N801 (reads as a verb)
    """Hold up commits by a lock on the message log; let go at the end of the block."""

    def __init__(self, served):
        self._served = served

    def __enter__(self):
        self._conn = psycopg.connect(self._served.database_url)
        self._conn.execute("LOCK TABLE spillway.message_batch IN EXCLUSIVE MODE")
        return self

    def wait_for_waiter(self):
        """Wait until a commit is held up."""
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        deadline = time.monotonic() + 30
        with psycopg.connect(self._served.database_url, autocommit=True) as watch:
            while not watch.execute(query).fetchone()[0]:
                assert time.monotonic() < deadline
                threading.Event().wait(0.01)

    def __exit__(self, *_):
        self._conn.close()


def test_a_short_drain_lets_what_is_under_way_finish_too(serve, eventually):
    """Less than a second is not none."""
    served = serve(num_shards=1, drain_timeout_s=0.9, commit_timeout_s=60)
    served.start()
    with holding(served) as held:
        pushing = send(served, "/v1/messages", {"items": [{"queue": "orders", "payload": 1}]})
        held.wait_for_waiter()
        served.signal(signal.SIGTERM)
        eventually(lambda: not is_listening(served))
        assert select.select([pushing], [], [], 0.4) == ([], [], [])  # it is not let down
    status, body = status_and_body(pushing)
    assert (status, body["results"][0]["status"]) == (201, "stored")
    assert served.wait(30) == 0


def is_listening(served):
    try:
        socket.create_connection(("127.0.0.1", served.port), 5).close()
    except OSError:
        return False
    return True


def test_the_second_sigterm_stops_at_once(serve):
    """Whoever is under way is let down, but nothing that was answered is lost."""
    served = serve(num_shards=1, drain_timeout_s=60, commit_timeout_s=60)
    served.start()
    with Client(served.url) as client:
        client.push("orders", 1)
    with holding(served) as held:
        pushing = send(served, "/v1/messages", {"items": [{"queue": "orders", "payload": 2}]})
        held.wait_for_waiter()
        served.signal(signal.SIGTERM)
        wait_for_talk(served, "draining")
        began = time.monotonic()
        served.signal(signal.SIGTERM)
        served.wait(20)
    assert time.monotonic() - began < 10
    pushing.close()
    assert "stopping now" in served.talk()
    served.start()
    with Client(served.url) as client:
        assert client.lease("orders")[0].version == 1


def wait_for_talk(served, text):
    deadline = time.monotonic() + 30
    while text not in served.talk():
        assert time.monotonic() < deadline, served.talk()
        threading.Event().wait(0.01)


def test_after_kill_9_serve_just_starts(served):
    """The PostgreSQL that the dead broker left is taken over; leases and messages are there."""
    with Client(served.url) as client:
        client.push_many([{"queue": "orders", "payload": n} for n in range(3)])
        (held,) = client.lease("orders", visibility_ms=600_000)
    postmaster = served.postmaster
    served.kill()
    served.start()
    assert served.postmaster == postmaster
    with Client(served.url) as client:
        assert client.ack(held.receipt).results[0].status == "acked"
        assert [m.version for m in client.lease("orders", max=9)] == [2, 3]
        assert client.audit().balanced


# ---------------------------------------------------------------- a caller that leaves


def test_a_caller_that_leaves_a_long_poll_leaves_no_lease(served, eventually):
    """Its poll ends with it: the next message goes to who is there, as its first attempt."""
    with Client(served.url) as client:
        client.create_queue("orders", max_attempts=1)
        gone = [
            send(served, "/v1/queues/orders/lease", {"wait_ms": 60_000, "visibility_ms": 600_000})
            for _ in range(20)
        ]
        eventually(lambda: "default" in [one.group for one in client.groups("orders")])
        for connection in gone:
            connection.close()
        client.push("orders", 1)
        (message,) = client.lease("orders", wait_ms=10_000)
        assert (message.version, message.attempt) == (1, 1)


def test_a_message_on_its_way_to_a_caller_that_left_is_given_back(served):
    """Push and hang-up race: whoever wins, the message is leasable at once or was never leased."""
    with Client(served.url) as client:
        client.create_queue("orders", max_attempts=100, visibility_ms=600_000, backoff_base_ms=0)
        for number in range(1, 21):
            polling = send(served, "/v1/queues/orders/lease", {"wait_ms": 60_000})
            pushing = threading.Thread(target=client.push, args=("orders", number))
            pushing.start()
            # Hung up as by `close`, but what was sent before that can still be seen.
            polling.shutdown(socket.SHUT_WR)
            pushing.join()
            leased = messages_before_the_end(polling)
            if not leased:
                (message,) = client.lease("orders", wait_ms=10_000)
                assert message.version == number
                message.ack()
            else:
                settled, _ = client.settle([message["receipt"] for message in leased])
                assert [message["version"] for message in leased] == [number]
                assert [result.status for result in settled.results] == ["acked"]


# ---------------------------------------------------------------- what is in the way


def end_of(served):
    """Start something that ends by itself: its exit code and its last words."""
    served.launch()
    return served.wait(60), served.talk()


def test_a_port_in_use_is_said(served, serve):
    """The error names the port and what to do; the PostgreSQL of that start is stopped again."""
    second = serve(port=served.port, num_shards=1)
    code, talk = end_of(second)
    assert code == 2
    assert f"cannot listen on 127.0.0.1:{served.port}" in talk
    assert "hint:" in talk
    assert "Traceback" not in talk
    assert not (second.data / "postgres/postmaster.pid").exists()


def test_an_unreachable_database_is_said_without_its_password(serve):
    """It serves all the same; where it looked is told, the hint leads on, the password is not."""
    url = "postgresql://ann:s3cr3t-w0rd@127.0.0.1:1/orders"
    served = serve("--database-url", url)
    served.start()
    with Client(served.url) as client:
        assert client.push("orders", 1).status == "buffered"
    served.signal(signal.SIGTERM)
    assert served.wait(30) == 0
    talk = served.talk()
    assert "127.0.0.1:1" in talk
    assert "warning: PostgreSQL at 127.0.0.1:1, database orders does not answer" in talk
    assert "hint: is PostgreSQL running" in talk
    assert "s3cr3t" not in talk
    assert "Traceback" not in talk


def test_a_url_that_is_none_is_said_without_its_password(serve):
    """What cannot be parsed is not repeated."""
    code, talk = end_of(serve("--database-url", "postgresql://ann:s3cr3t-w0rd@host:port:5/x?y"))
    assert code == 2
    assert "hint:" in talk
    assert "s3cr3t" not in talk
    assert "Traceback" not in talk


def test_a_data_folder_of_another_broker_is_said(served, serve):
    """The one that runs is named, and goes on undisturbed."""
    code, talk = end_of(serve(folder=served.folder))
    assert code == 1
    assert f"process {served.process.pid} already runs" in talk
    assert "hint:" in talk
    assert "Traceback" not in talk
    with Client(served.url) as client:
        assert client.push("orders", 1).version == 1


def test_nobody_listens_after_the_end(served):
    """A clean stop leaves no process, no socket, no lock."""
    postmaster = served.postmaster
    served.signal(signal.SIGINT)
    assert served.wait(30) == 0
    with Client(served.url, retries=0) as client, pytest.raises(BrokerUnreachableError):
        client.live()
    with pytest.raises((FileNotFoundError, ValueError)):
        assert served.postmaster != postmaster
    served.start()
    with Client(served.url) as client:
        assert client.health().status == "ok"
