"""A broker starts whatever it finds: no PostgreSQL, the files of a crash, a full disk."""

import signal
import threading
import time

import pytest

from spillway import Client, Item
from spillway.core.errors import SpoolFullError

START_S = 6.0
"""A patience of 2.5 s, and the start of Python on a busy machine."""
EVENTS = 25
PAYLOAD = "x" * 500_000

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def push(client, *numbers, queue="orders"):
    """Each is answered `buffered`."""
    for n in numbers:
        assert client.push(queue, n, transaction_id=f"tx-{n}").status == "buffered"


def everything(client, eventually, queue="orders"):
    """The payloads in the log, once nothing waits in files any more."""
    eventually(lambda: client.health().database == "connected", within_s=30)
    eventually(lambda: client.health().spool.pending == 0, within_s=30)
    assert client.health().spool.failed == 0
    return [message.payload for message in client.lease(queue, max=1000)]


# ---------------------------------------------------------------- no database


@pytest.mark.parametrize("outage", ["stopped", "frozen"])
def test_it_listens_and_accepts_without_its_database(serve, fragile, eventually, outage):
    """It has never seen it. When it comes, its tables are made and everything goes into them."""
    fragile.begin(outage)
    served = serve("--database-url", fragile.url, num_shards=2)
    began_s = time.monotonic()
    served.start()
    assert time.monotonic() - began_s < START_S
    with Client(served.url, retries=0) as client:
        push(client, *range(EVENTS))
        assert client.lease("orders", wait_ms=60_000).reason == "database_unavailable"
        health = client.health()
        assert (health.database, health.ready, health.spool.pending) == (
            "disconnected",
            True,
            EVENTS,
        )
        fragile.end(outage)
        assert everything(client, eventually) == list(range(EVENTS))
        assert client.push("orders", EVENTS).version == EVENTS + 1
        assert client.audit().balanced


def test_it_listens_soon_beside_a_frozen_postgresql_of_its_own(serve, eventually):
    """The broker was killed, its PostgreSQL hangs: the next one waits for it once, not twice."""
    served = serve(num_shards=2)
    served.start()
    with Client(served.url, retries=0) as client:
        assert client.push("orders", "before").status == "stored"
        served.kill()
        served.freeze_postgres()
        began_s = time.monotonic()
        served.start()
        assert time.monotonic() - began_s < START_S
        push(client, *range(EVENTS))
        served.thaw_postgres()
        assert everything(client, eventually) == ["before", *range(EVENTS)]


def test_what_a_crash_left_is_taken_in_without_the_database(serve, fragile, eventually):
    """A torn line is cut off, an empty file is none, a stranger's stays; the rest goes on."""
    served = serve("--database-url", fragile.url, num_shards=2)
    served.start()
    with Client(served.url, retries=0) as client:
        client.push("orders", -1)
        fragile.stop()
        push(client, *range(EVENTS))
        served.kill()
        (left,) = served.spool.glob("*.tmp")
        with left.open("ab") as torn:
            torn.write(left.read_bytes()[:100])
        twin = left.with_name(left.name.replace("failover", "qos0"))
        twin.touch()
        (served.spool / "notes.txt").write_text("mine")
        served.start()
        assert client.health().spool.pending == EVENTS
        assert "spool_torn_tail" in served.talk()
        push(client, *range(EVENTS, 2 * EVENTS))
        served.kill()
        served.start()
        assert client.health().spool.pending == 2 * EVENTS
        fragile.start()
        assert everything(client, eventually) == list(range(-1, 2 * EVENTS))
        assert (served.spool / "notes.txt").read_text() == "mine"
        assert not list(served.spool.glob("*.buf*"))


# ---------------------------------------------------------------- folders


def end_of(served):
    """Start something that ends by itself: its exit code and its last words."""
    served.launch()
    return served.wait(30), served.talk()


def test_two_brokers_on_one_folder(serve, fragile):
    """The second is refused with what to do; the first goes on undisturbed."""
    first = serve("--database-url", fragile.url)
    first.start()
    second = serve("--database-url", fragile.url, file_buffer_dir=first.spool)
    code, talk = end_of(second)
    assert code == 3
    assert f"another broker uses the spool folder {first.spool}" in talk
    assert "hint: give each broker a FILE_BUFFER_DIR of its own" in talk
    assert "Traceback" not in talk
    fragile.stop()
    with Client(first.url, retries=0) as client:
        push(client, 1)


@pytest.fixture
def small_disk(small_disk_at, tmp_path):
    """A few MB of disk."""
    with small_disk_at(tmp_path / "disk") as disk:
        yield disk


@pytest.mark.root
def test_a_folder_that_cannot_be_written(serve, fragile, small_disk):
    """Said at the start, not when PostgreSQL goes away and it is too late."""
    small_disk.remount("ro")
    code, talk = end_of(serve("--database-url", fragile.url, file_buffer_dir=small_disk.path))
    assert code == 3
    assert f"the spool folder {small_disk.path}" in talk
    assert "Read-only file system" in talk
    assert "hint:" in talk
    assert "Traceback" not in talk


# ---------------------------------------------------------------- a full disk


def fill(client, first):
    """Push until the disk is full; what was taken, and what was not."""
    for n in range(first, first + 1000):
        try:
            result = client.push("orders", [n, PAYLOAD], transaction_id=f"tx-{n}")
        except SpoolFullError:
            return list(range(first, n)), n
        assert result.status == "buffered"
    raise AssertionError("the disk is never full")


@pytest.mark.root
def test_a_full_disk_refuses_and_heals(serve, fragile, small_disk, eventually):
    """507, and nothing of it is accepted; with room again pushes are taken without a restart."""
    served = serve("--database-url", fragile.url, file_buffer_dir=small_disk.path, num_shards=2)
    fragile.stop()
    served.start()
    with Client(served.url, retries=0) as client:
        taken, refused = fill(client, 0)
        assert len(taken) > 5
        many = [Item(queue, [-1, PAYLOAD]) for queue in ("orders", "others", "orders")]
        with pytest.raises(SpoolFullError):
            client.push_many(many)
        assert client.health().spool.pending == len(taken)
        small_disk.remount("size=16m")
        more, _ = fill(client, refused)
        assert more
        # Full again, and no room is made but by the broker itself, a new one at that.
        served.kill()
        served.start()
        eventually(lambda: client.health().spool.pending == len(taken) + len(more))
        fragile.start()
        found = everything(client, eventually)
        assert [n for n, _ in found] == taken + more
        assert [one.queue for one in client.queues().queues] == ["orders"]
        assert client.push("orders", 1).status == "stored"


# ---------------------------------------------------------------- the end


def test_sigterm_ends_the_files(serve, fragile, eventually):
    """Without a database too it stops in order, soon, and leaves whole files and nothing open."""
    served = serve("--database-url", fragile.url, num_shards=2)
    served.start()
    with Client(served.url, retries=0) as client:
        client.push("orders", -1)
        fragile.stop()
        push(client, *range(EVENTS))
        began_s = time.monotonic()
        served.signal(signal.SIGTERM)
        assert served.wait(30) == 0
        assert time.monotonic() - began_s < START_S
        assert not list(served.spool.glob("*.tmp"))
        (whole,) = served.spool.glob("*.buf")
        assert whole.read_bytes().count(b"\n") == EVENTS
        fragile.start()
        served.start()
        assert everything(client, eventually) == list(range(-1, EVENTS))


def test_the_second_signal_does_not_wait_for_a_frozen_database(serve, fragile, eventually):
    """Whoever waits for an answer is let down; what was answered is in the files."""
    served = serve("--database-url", fragile.url, num_shards=2, drain_timeout_s=60)
    served.start()
    with Client(served.url, retries=0) as client:
        client.push("orders", -1)
        fragile.freeze()
        push(client, *range(EVENTS))
        asking = threading.Thread(target=ask, args=(served.url,))
        asking.start()
        served.signal(signal.SIGTERM)
        eventually(lambda: "draining" in served.talk())
        served.signal(signal.SIGTERM)
        began_s = time.monotonic()
        served.wait(30)
        assert time.monotonic() - began_s < START_S
        asking.join()
        fragile.thaw()
        served.start()
        assert everything(client, eventually) == list(range(-1, EVENTS))


def ask(url):
    """A question that only PostgreSQL can answer."""
    with Client(url, retries=0) as client, pytest.raises(Exception):  # noqa: B017 (any end will do)
        client.audit()
