"""The broker's clock, with a machine's clocks that the test sets."""

from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from spillway.broker import clock
from spillway.broker.clock import Clock


@pytest.fixture
def machine(monkeypatch):
    """The clocks of the machine: `wall` may jump, `ticks` only goes on."""
    state = SimpleNamespace(wall=1_700_000_000.0, ticks=50.0)
    readings = SimpleNamespace(time=lambda: state.wall, clock_gettime=lambda _: state.ticks)
    monkeypatch.setattr(clock, "time", readings)
    return state


def test_before_postgresql_speaks_the_wall_clock_says_the_time(machine):
    """A broker that has not reached its database yet has a time nevertheless."""
    assert Clock().now_ms() == 1_700_000_000_000


def test_the_database_says_what_time_it_is(machine):
    """From the first answer on the time is PostgreSQL's, carried on by the monotonic clock."""
    broker_clock = Clock()
    broker_clock.anchor(1_800_000_000.25)
    machine.ticks += 1.5
    assert broker_clock.now_ms() == 1_800_000_001_750


@pytest.mark.parametrize("jump_s", [-86_400.0, 86_400.0])
def test_a_jump_of_the_wall_clock_moves_nothing(machine, jump_s):
    """Somebody sets the machine's clock: no lease ends early, no retry comes late."""
    broker_clock = Clock()
    machine.wall += jump_s
    machine.ticks += 1.0
    assert broker_clock.now_ms() == 1_700_000_001_000


def test_time_never_goes_back_and_never_stands_still(machine):
    """PostgreSQL's clock is set back: ours goes half as fast until it has been caught up."""
    broker_clock = Clock()
    broker_clock.anchor(2_000.0)
    assert broker_clock.now_ms() == 2_000_000
    broker_clock.anchor(1_990.0)
    machine.ticks += 4.0
    assert broker_clock.now_ms() == 2_002_000
    machine.ticks += 16.0
    assert broker_clock.now_ms() == 2_010_000
    machine.ticks += 1.0
    assert broker_clock.now_ms() == 2_011_000


def test_a_jump_of_postgresqls_clock_is_caught_up_with_slowly(machine):
    """Its clock is set an hour ahead: ours goes 5 % faster, and no lease ends before its time."""
    broker_clock = Clock()
    broker_clock.anchor(10_000.0)
    assert broker_clock.now_ms() == 10_000_000
    for _ in range(10):
        machine.ticks += 10.0
        broker_clock.anchor(10_000.0 + machine.ticks - 50.0 + 3_600.0)
        assert broker_clock.now_ms() <= 10_000_000 + (machine.ticks - 50.0) * 1_050 + 1
    assert broker_clock.now_ms() == 10_104_500  # the first ten seconds were as long as ever
    machine.ticks += 100_000.0
    assert broker_clock.now_ms() == 10_000_000 + 100_100_000 + 3_600_000


def test_what_another_broker_dated_counts_at_once(machine):
    """Whoever takes over goes by PostgreSQL's clock as it is: the one before did, too."""
    broker_clock = Clock()
    broker_clock.anchor(10_000.0)
    broker_clock.set(13_600.0)
    assert broker_clock.now_ms() == 13_600_000
    broker_clock.set(1_000.0)
    assert broker_clock.now_ms() == 13_600_000


def test_a_jump_is_told_once(machine):
    """The log names the difference when it appears, and not at every look."""
    broker_clock = Clock()
    with capture_logs() as logs:
        for second in range(5):
            broker_clock.anchor(10_000.0 + second)
            machine.ticks += 1.0
        for second in range(5, 10):
            broker_clock.anchor(13_600.0 + second)
            machine.ticks += 1.0
    assert [(entry["event"], entry["ahead_s"]) for entry in logs] == [("clock_jumped", 3_600.0)]
