"""The stored form of events."""

from dataclasses import fields

import pytest

from spillway.core import events as ev
from spillway.testing.rig import through_storage

ONE_OF_EACH = [
    ev.GroupCreated(7, "offset", "ann"),
    ev.Deferred(((1, 2, 50), (5, 5, 60))),
    ev.Leased(3, ((1, 2), (4, 4)), 99, "worker-1", 40),
    ev.Extended(3, 120),
    ev.Acked(3, ((1, 1),)),
    ev.Nacked(3, ((2, 2, 70),), "boom", returned=False),
    ev.Expired(3, ((4, 4, 80),)),
    ev.Parked(((2, 2),), "exhausted", "boom", None, None, 3),
    ev.Blocked(((4, 4),), "expired", None, 90, 3),
    ev.Unblocked(((4, 4),), "retry", "ann", "fixed", 95),
    ev.Dropped(((8, 9),), "ttl"),
    ev.Sought(0, "ann", "again"),
    ev.Purged(((1, 9),), True, "ann", "old"),
    ev.Redriven(((2, 2),), "ann", "fixed"),
    ev.ConfigChanged((("max_attempts", 3), ("order", "none")), "ann", "slow"),
    ev.Deleted("ann", "done"),
]


@pytest.mark.parametrize("event", ONE_OF_EACH, ids=lambda event: type(event).__name__)
def test_events_survive_storage(event):
    """What comes back from the control log equals what was decided."""
    assert ev.from_record(through_storage(ev.to_record(event))) == event


def test_there_is_a_stored_form_for_every_event():
    """Each event of the union has one tag, and each tag one event."""
    assert [type(event) for event in ONE_OF_EACH] == [kind for kind, _ in ev.TAGS.values()]
    assert set(ev.Event.__args__) == {kind for kind, _ in ev.TAGS.values()}


@pytest.mark.parametrize("record", [("?", 1), ("A", 2, 3, [[1, 1]])], ids=["tag", "version"])
def test_newer_events_are_refused(record):
    """An event of a newer release stops the fold: guessing would lose messages."""
    with pytest.raises(ev.UnknownEventError):
        ev.from_record(record)


def test_an_old_form_is_lifted_step_by_step(monkeypatch):
    """An event of two versions ago passes both upcasters on its way in."""
    monkeypatch.setitem(ev.TAGS, "A", (ev.Acked, 3))
    monkeypatch.setitem(ev.UPCASTERS, ("A", 1), lambda old: (old[0], [[v, v] for v in old[1]]))
    monkeypatch.setitem(ev.UPCASTERS, ("A", 2), lambda old: (old[0] + 1000, old[1]))
    assert ev.from_record(("A", 1, 3, [5, 7])) == ev.Acked(1003, ((5, 5), (7, 7)))
    assert ev.from_record(("A", 2, 3, [[5, 6]])) == ev.Acked(1003, ((5, 6),))
    assert ev.from_record(("A", 3, 3, [[5, 6]])) == ev.Acked(3, ((5, 6),))


def test_an_old_form_without_upcaster_is_refused(monkeypatch):
    """A forgotten upcaster is said clearly, not met as a wrong state later."""
    monkeypatch.setitem(ev.TAGS, "A", (ev.Acked, 2))
    with pytest.raises(ev.UnknownEventError):
        ev.from_record(("A", 1, 3, [[5, 5]]))


def test_a_form_with_fewer_fields_gets_the_defaults():
    """A field added at the end with a default needs no new version."""
    assert ev.from_record(("L", 1, 3, [[1, 2]], 99)) == ev.Leased(3, ((1, 2),), 99)


def test_details_name_every_field():
    """The story of a message shows the fields of its events by name."""
    for event in ONE_OF_EACH:
        assert list(ev.detail(event)) == [field.name for field in fields(event)]
