"""The stored form of events."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.core import events as ev
from spillway.core.events import UnknownEventError
from spillway.log import events as codec
from spillway.log.events import EventsDamagedError

RANGES = ((1, 3), (7, 7))
RUNS = ((1, 3, 1_700_000_000_500), (7, 7, 9))
EVENTS: list[ev.Event] = [
    ev.GroupCreated(5, "offset", "ann"),
    ev.Deferred(RUNS),
    ev.Leased(4, RANGES, 1_700_000_030_000, "worker-1"),
    ev.Extended(4, 1_700_000_060_000),
    ev.Acked(4, RANGES),
    ev.Nacked(4, RUNS, "né \N{SNOWMAN}", returned=True),
    ev.Expired(4, RUNS),
    ev.Parked(RANGES, "exhausted", "boom", "ann", "why"),
    ev.Blocked(RANGES, "exhausted"),
    ev.Unblocked(RANGES, "retry", "ann"),
    ev.Dropped(RANGES, "ttl"),
    ev.Sought(12, "ann", "again"),
    ev.Purged(RANGES, dead=True),
    ev.Redriven(RANGES, "ann"),
    ev.ConfigChanged((("max_attempts", 7),), "ann"),
    ev.Deleted("ann", "gone"),
]


def test_every_kind_of_event_is_tried():
    """The list above leaves no kind out."""
    assert {type(event) for event in EVENTS} == {cls for cls, _ in ev.TAGS.values()}


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_event_comes_back_with_its_moment(event):
    """Each event is read as it was written, and so is the moment of its decision."""
    assert codec.decode(codec.encode([(1_700_000_000_000, event)])) == [(1_700_000_000_000, event)]


@given(
    st.lists(st.tuples(st.integers(0, 2**53), st.sampled_from(EVENTS)), max_size=20),
)
def test_rows_keep_their_order(rows):
    """A commit's events come back in the order of their decisions."""
    assert codec.decode(codec.encode(rows)) == rows


@given(st.integers(0), st.sampled_from(EVENTS))
def test_any_flipped_bit_is_noticed(bit, event):
    """No flip turns an event into another one."""
    data = bytearray(codec.encode([(1_700_000_000_000, event)]))
    data[bit // 8 % len(data)] ^= 1 << bit % 8
    with pytest.raises(EventsDamagedError):
        codec.decode(bytes(data))


@pytest.mark.parametrize("length", [0, 1, 3, 4, 10])
def test_cut_events_are_noticed(length):
    """A stored form that lost its end is refused."""
    with pytest.raises(EventsDamagedError):
        codec.decode(codec.encode([(1, EVENTS[2])])[:length])


def test_event_of_a_newer_release_is_named(monkeypatch):
    """What this release cannot know is an error that says so, not damage."""
    monkeypatch.setitem(ev._TAG_OF, ev.Acked, ("A", 99))
    data = codec.encode([(1, ev.Acked(1, RANGES))])
    with pytest.raises(UnknownEventError, match="version 99"):
        codec.decode(data)
