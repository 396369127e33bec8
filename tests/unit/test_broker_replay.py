"""The pace of the replay: polite to those who push, but never so polite that it does not end."""

import pytest

from spillway.broker.replay import LEAD, LOOK_S, Pace


@pytest.fixture
def pace():
    """One that has just looked at counts of nothing."""
    pace = Pace()
    pace.look(0.0, 0, 0)
    return pace


def test_the_first_look_tells_nothing():
    """What came in during the outage does not count against it."""
    pace = Pace()
    pace.look(1_000.0, 1_000_000, 0)
    assert not pace.falls_behind


@pytest.mark.parametrize(("came", "falls_behind"), [(0, False), (50, False), (51, True)])
def test_it_falls_behind_when_too_much_comes(pace, came, falls_behind):
    """More than a share of what goes: the spool would get emptier too slowly, or fuller."""
    pace.look(LOOK_S, came, 50 * LEAD)
    assert pace.falls_behind is falls_behind


def test_a_look_lasts(pace):
    """Until the next one, a second later, which counts from there."""
    pace.look(LOOK_S, 100, 100)
    assert pace.falls_behind
    pace.look(1.5 * LOOK_S, 100, 100_000)
    assert pace.falls_behind
    pace.look(2 * LOOK_S, 110, 1_000)
    assert not pace.falls_behind


def test_after_a_rest_it_looks_afresh(pace):
    """What happened while nothing was replayed says nothing about the pace."""
    pace.look(LOOK_S, 100, 100)
    assert pace.falls_behind
    pace.look(10 * LOOK_S, 1_000_000, 100)
    assert not pace.falls_behind
