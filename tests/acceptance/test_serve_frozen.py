"""`spillway serve` stops while its own PostgreSQL is frozen, and the next start has everything."""

import signal
import time

import pytest

from spillway import Client

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

DRAIN_S = 1
STOP_S = 9.0
"""The drain, and then some seconds in which PostgreSQL is asked, told and killed."""
AT_ONCE_S = 2.5
"""Two seconds, and a machine that is busy with other tests."""


@pytest.fixture
def frozen(serve):
    """Makes a broker with a message in the log, one in a file, and a PostgreSQL that hangs."""

    def make(**settings):
        served = serve(num_shards=2, **settings)
        served.start()
        with Client(served.url, retries=0) as client:
            assert client.push("orders", 0).status == "stored"
            served.freeze_postgres()
            assert client.push("orders", 1).status == "buffered"
        return served

    return make


def everything(served, eventually):
    """What a new start hands out."""
    served.start()
    with Client(served.url) as client:
        eventually(lambda: client.health().status == "ok" and not client.health().spool.pending)
        assert client.audit().balanced
        return [message.payload for message in client.lease("orders", max=9)]


def test_it_stops_while_its_postgresql_is_frozen(frozen, eventually):
    """The drain has a limit and so has what comes after it; nothing is taken for a recovery."""
    served = frozen(drain_timeout_s=DRAIN_S)
    began_s = time.monotonic()
    served.signal(signal.SIGTERM)
    assert served.wait(60) == 0
    assert time.monotonic() - began_s < STOP_S
    talk = served.talk()
    assert "postgres_killed" in talk
    assert "database_recovered" not in talk
    assert "Traceback" not in talk
    assert everything(served, eventually) == [0, 1]


def test_the_second_signal_does_not_wait_for_its_frozen_postgresql(frozen, eventually):
    """In the middle of the drain it stops at once."""
    served = frozen(drain_timeout_s=60)
    served.signal(signal.SIGTERM)
    eventually(lambda: "draining" in served.talk())
    began_s = time.monotonic()
    served.signal(signal.SIGTERM)
    served.wait(60)
    assert time.monotonic() - began_s < AT_ONCE_S
    assert "stopping now" in served.talk()
    assert "Traceback" not in served.talk()
    assert not list(served.spool.glob("*.tmp"))
    assert everything(served, eventually) == [0, 1]


def test_the_second_signal_ends_the_wait_for_postgresql_to_stop(frozen, eventually):
    """The drain is over, and PostgreSQL was asked to stop: it is killed now."""
    served = frozen(drain_timeout_s=0.1)
    served.signal(signal.SIGTERM)
    eventually(lambda: "drain_incomplete" in served.talk())
    began_s = time.monotonic()
    served.signal(signal.SIGINT)
    served.wait(60)
    assert time.monotonic() - began_s < AT_ONCE_S
    assert everything(served, eventually) == [0, 1]
