"""The broker's clock, with a machine's clocks that the test sets."""

from types import SimpleNamespace

import pytest

from spillway.broker import clock
from spillway.broker.clock import Clock


@pytest.fixture
def machine(monkeypatch):
    """The clocks of the machine: `wall` may jump, `ticks` only goes on."""
    state = SimpleNamespace(wall=1_700_000_000.0, ticks=50.0)
    readings = SimpleNamespace(time=lambda: state.wall, monotonic=lambda: state.ticks)
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
