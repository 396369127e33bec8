"""A broker serves although the PostgreSQL of its own data folder does not start."""

from itertools import count

import pytest

from spillway import Client

pytestmark = [pytest.mark.slow]


@pytest.fixture
def broken(serve):
    """A broker whose cluster was left without its control file; `broken.mend()` brings it back."""
    served = serve()
    served.start()
    with Client(served.url) as client:
        client.push("orders", {"n": 0}, transaction_id="n-0")
    served.signal(15)
    assert served.wait() == 0
    control = served.data / "postgres/global/pg_control"
    control.rename(control.with_name("away"))
    served.mend = lambda: control.with_name("away").rename(control)
    served.start()
    return served


def test_pushes_are_taken_and_replayed_once_it_starts(broken, eventually):
    """What was accepted meanwhile stands behind what was there, once and in order."""
    with Client(broken.url) as client:
        statuses = [
            client.push("orders", {"n": n}, transaction_id=f"n-{n}").status for n in range(1, 6)
        ]
        assert statuses == ["buffered"] * 5
        assert client.health().database == "disconnected"
        broken.mend()
        eventually(lambda: client.health().database == "connected", within_s=30)
        eventually(lambda: client.health().spool.pending == 0, within_s=30)
        numbers = count()
        while messages := client.lease("orders", max=10):
            for message in messages:
                assert message.payload == {"n": next(numbers)}
                message.ack()
        assert next(numbers) == 6


def test_it_says_why_and_can_be_stopped(broken, eventually):
    """The log names what PostgreSQL said, and SIGTERM ends the broker in order."""
    eventually(lambda: "pg_control" in broken.talk())
    broken.signal(15)
    assert broken.wait() == 0
