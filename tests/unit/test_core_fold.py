"""The transition table against `evolve`: what it lists happens, the rest is refused."""

from collections.abc import Callable
from itertools import chain

import pytest

from spillway.core import checkpoint
from spillway.core import commands as cmd
from spillway.core import events as ev
from spillway.core.group import TRANSITIONS, evolve
from spillway.core.state import STATES, GroupState, IllegalTransitionError
from spillway.testing.rig import START_MS, Rig

ONE = ((1, 1),)
SOON, LATER = START_MS, START_MS + 100


def nacked(delay_ms: int) -> Rig:
    rig = Rig(2)
    rig.nack(rig.lease().lease_id, *ONE, delay_ms=delay_ms)
    return rig


def scheduled() -> Rig:
    rig = Rig()
    rig.push(2, delay_ms=100)
    return rig


def leased() -> Rig:
    rig = Rig(2)
    rig.lease()
    return rig


def settled() -> Rig:
    rig = leased()
    rig.ack(1, *ONE)
    return rig


def purged_before_its_time() -> Rig:
    rig = scheduled()
    rig.do(cmd.Purge(ONE))
    return rig


def parked() -> Rig:
    rig = leased()
    rig.nack(1, *ONE, park=True)
    return rig


def exhausted(on_exhausted: str) -> Rig:
    rig = Rig(2, max_attempts=1, on_exhausted=on_exhausted)
    rig.nack(rig.lease().lease_id, *ONE)
    return rig


def dropped_before_its_time() -> Rig:
    rig = Rig()
    rig.push(2, delay_ms=100, ttl_ms=0)
    rig.wait(0)
    return rig


WAYS: dict[str, list[Callable[[], Rig]]] = {
    "ready": [lambda: Rig(2), lambda: nacked(0)],
    "deferred": [lambda: nacked(100), scheduled],
    "leased": [leased],
    "settled": [settled, purged_before_its_time],
    "parked": [parked],
    "blocked": [lambda: exhausted("block")],
    "dropped": [lambda: exhausted("drop"), dropped_before_its_time],
}
EVENTS: dict[str, list[ev.Event]] = {
    "Deferred": [ev.Deferred(((1, 1, LATER),))],
    "Leased": [ev.Leased(9, ONE, LATER, None, SOON)],
    "Extended": [ev.Extended(1, LATER)],
    "Acked": [ev.Acked(1, ONE)],
    "Nacked": [ev.Nacked(1, ((1, 1, due),)) for due in (SOON, LATER)],
    "Expired": [ev.Expired(1, ((1, 1, due),)) for due in (SOON, LATER)],
    "Parked": [ev.Parked(ONE, "operator"), ev.Parked(ONE, "nack", lease_id=1)],
    "Blocked": [ev.Blocked(ONE, "exhausted", None, SOON, 1)],
    "Unblocked": [ev.Unblocked(ONE, action, at_ms=SOON) for action in ("retry", "skip")],
    "Dropped": [ev.Dropped(ONE, "ttl"), ev.Dropped(ONE, "exhausted", 1)],
    "Purged": [ev.Purged(ONE), ev.Purged(ONE, dead=True)],
    "Redriven": [ev.Redriven(ONE)],
    "Sought": [ev.Sought(0), ev.Sought(1)],
}
PAIRS = [(name, before) for name in TRANSITIONS for before in STATES]
LEGAL = [(name, before) for name, before in PAIRS if before in TRANSITIONS[name]]
ILLEGAL = [(name, before) for name, before in PAIRS if before not in TRANSITIONS[name]]
# Whether a fresh message is due is written in the lane's schedule, which a fold does not see.
UNSEEN = {("Leased", scheduled)}


@pytest.mark.parametrize("state", STATES)
def test_each_state_is_reached_each_way(state):
    """The ways into a state that the other tests start from lead there."""
    assert [way().where(1) for way in WAYS[state]] == [state] * len(WAYS[state])


@pytest.mark.parametrize(("name", "before"), LEGAL)
def test_a_listed_transition_leads_where_the_table_says(name, before):
    """Each listed event moves the message to one of the listed states, and to each of them."""
    after = set()
    for way in WAYS[before]:
        for event in EVENTS[name]:
            after |= outcome(way(), event)
    assert after == set(TRANSITIONS[name][before])


def outcome(rig: Rig, event: ev.Event) -> set[str]:
    try:
        evolve(rig.state, event)
    except IllegalTransitionError:
        return set()
    return {rig.where(1)}


@pytest.mark.parametrize(("name", "before"), ILLEGAL)
def test_an_unlisted_transition_is_refused(name, before):
    """An event that the table does not list raises, and the state stays as it was."""
    for way in WAYS[before]:
        for event in EVENTS[name]:
            if (name, way) not in UNSEEN:
                assert_refused(way().state, event)


def assert_refused(state: GroupState, event: ev.Event) -> None:
    before = checkpoint.to_record(state)
    with pytest.raises(IllegalTransitionError):
        evolve(state, event)
    assert checkpoint.to_record(state) == before


def test_the_table_lists_every_event_that_moves_messages():
    """Only events that touch no message by name are missing from the table."""
    silent = {"GroupCreated", "ConfigChanged", "Deleted"}
    assert set(TRANSITIONS) | silent == {kind.__name__ for kind, _ in ev.TAGS.values()}
    named = chain.from_iterable((*moves, *chain(*moves.values())) for moves in TRANSITIONS.values())
    assert set(named) == set(STATES)


@pytest.mark.parametrize(
    "event",
    [
        ev.Acked(1, ((1, 1), (1, 1))),
        ev.Acked(1, ((2, 2), (1, 1))),
        ev.Acked(1, ()),
        ev.Acked(1, ((1, 3),)),
        ev.Acked(2, ((1, 1),)),
        ev.Leased(2, (), LATER, None, SOON),
        ev.Leased(1, ((3, 3),), LATER, None, SOON),
        ev.Leased(2, ((2, 3),), LATER, None, SOON),
        ev.Deferred(((3, 4, LATER), (4, 5, LATER))),
        ev.Deferred(((2, 3, LATER),)),
        ev.Parked(((2, 3), (3, 4)), "operator"),
        ev.Parked(((1, 3),), "nack", lease_id=1),
        ev.Blocked(((1, 3),), "exhausted", None, SOON, 1),
        ev.GroupCreated(0),
        ev.Extended(7, LATER),
    ],
    ids=str,
)
def test_an_event_is_refused_whole(event):
    """An event that is wrong in part changes nothing at all."""
    rig = Rig(6)
    rig.lease(2)
    assert_refused(rig.state, event)


def test_events_of_a_missing_group_are_refused():
    """Before a group is created, and after it was deleted, only its creation is possible."""
    state = GroupState()
    assert_refused(state, ev.Leased(1, ONE, LATER, None, SOON))
    evolve(state, ev.ConfigChanged((("order", "none"),)))
    evolve(state, ev.Deleted())
    evolve(state, ev.GroupCreated(0))
    assert state.exists


def test_a_fold_asks_no_clock():
    """The same events give the same state whenever they are folded."""
    rig = Rig(4, max_attempts=1, on_exhausted="block")
    rig.wait(1_234)
    rig.nack(rig.lease(2).lease_id, (1, 1))
    rig.do(cmd.Unblock(ONE))
    again = GroupState()
    for event in rig.events:
        evolve(again, event)
    assert checkpoint.to_record(again) == rig.record()
