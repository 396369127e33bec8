"""The broker's time is PostgreSQL's, carried on by the monotonic clock: a wall clock may jump."""

import time

import pytest

from spillway.broker import clock as clock_module
from spillway.broker.clock import Clock


class Hands:
    """The clocks of a machine, in the hand of a test."""

    def __init__(self) -> None:
        self.wall_s = 1_700_000_000.0
        self.steady_s = 50.0

    def time(self) -> float:
        return self.wall_s

    def clock_gettime(self, _: int) -> float:
        return self.steady_s

    def pass_by(self, seconds: float) -> None:
        self.wall_s += seconds
        self.steady_s += seconds


@pytest.fixture
def hands(monkeypatch) -> Hands:
    made = Hands()
    monkeypatch.setattr(clock_module, "time", made)
    return made


@pytest.mark.parametrize("jump_s", [-86_400, 3_600])
def test_a_jump_of_the_wall_clock_is_not_seen(hands, jump_s):
    """Only what really passed has passed."""
    clock = Clock()
    clock.anchor(2_000_000_000.0)
    assert clock.now_ms() == 2_000_000_000_000
    hands.wall_s += jump_s
    assert clock.now_ms() == 2_000_000_000_000
    hands.pass_by(1.5)
    assert clock.now_ms() == 2_000_000_001_500


def test_time_never_goes_back(hands):
    """PostgreSQL's own clock was set back: time goes half as fast until it has caught up."""
    clock = Clock()
    clock.anchor(2_000_000_000.0)
    assert clock.now_ms() == 2_000_000_000_000
    clock.anchor(1_999_999_999.0)
    assert clock.now_ms() == 2_000_000_000_000
    hands.pass_by(1)
    assert clock.now_ms() == 2_000_000_000_500
    hands.pass_by(2)
    assert clock.now_ms() == 2_000_000_002_000


async def test_a_broker_goes_by_the_clock_of_postgresql(desk):
    """The machine's clock is an hour ahead; messages are dated, and leases end, by PostgreSQL's."""
    (row,) = await desk.rows("SELECT extract(epoch FROM clock_timestamp())::float8")
    assert desk.broker.clock.now_ms() == pytest.approx(row[0] * 1000, abs=1_000)


async def test_no_lease_ends_when_the_wall_clock_jumps(desk, monkeypatch):
    """An hour passes on the wall, nothing on the monotonic clock: the lease lives on."""
    await desk.push(1)
    (held,) = await desk.lease(visibility_ms=30_000)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 3_600)
    await desk.broker.sweeper.run_once()
    assert await desk.lease() == []
    await desk.push(2)
    (row,) = await desk.rows(
        "SELECT max(appended_at) < now() + interval '1 minute' FROM spillway.message"
    )
    assert row == (True,)
    assert await desk.ack(held) == ["acked"]


async def test_no_lease_ends_when_the_clock_of_postgresql_jumps(desk):
    """PostgreSQL says that an hour passed: leases and known transaction ids live on."""
    await desk.push(1, transaction_id="one")
    (held,) = await desk.lease(visibility_ms=30_000)
    desk.broker.clock.anchor(time.time() + 3_600)
    await desk.broker.sweeper.run_once()
    assert await desk.lease() == []
    assert await desk.told(1, transaction_id="one") == ["duplicate"]
    assert await desk.ack(held) == ["acked"]
