"""Ways to look at a group."""

import pytest

from spillway.core import commands as cmd
from spillway.core.errors import InvariantError
from spillway.core.state import (
    IllegalTransitionError,
    attempts_of,
    counts,
    leased_in,
    next_wake_ms,
    ready_heads,
    state_of,
    validate,
)
from spillway.testing.rig import START_MS, Rig


def test_every_message_is_counted_once():
    """The counts of the seven states add up to the tail."""
    rig = Rig(6, max_attempts=1, on_exhausted="block")
    rig.push(1, delay_ms=100)
    lease_id = rig.lease(4).lease_id
    rig.ack(lease_id, (1, 1))
    rig.nack(lease_id, (2, 2))
    rig.nack(lease_id, (3, 3), park=True)
    assert rig.counts() == {
        "settled": 1, "blocked": 1, "parked": 1, "leased": 1, "ready": 2, "deferred": 1,
    }  # fmt: skip
    assert sum(counts(rig.state, rig.moment).values()) == rig.lane.tail


def test_delayed_messages_that_were_purged_in_part_count_right():
    """A run of equal delivery times may have holes: only what is left is deferred."""
    rig = Rig()
    rig.push(6, delay_ms=100)
    rig.do(cmd.Purge(((1, 1), (4, 4))))
    assert rig.counts() == {"settled": 2, "deferred": 4}


def test_what_is_ready_is_told_with_its_due_time():
    """The one that came back and is due for longest, and the first new one that may go now."""
    rig = Rig()
    rig.push(1, delay_ms=100)
    rig.push(2)
    assert ready_heads(rig.state, rig.moment) == [(2, 0)]
    rig.lease(2)
    assert ready_heads(rig.state, rig.moment) == []
    rig.nack(1, (3, 3), delay_ms=0)
    assert ready_heads(rig.state, rig.moment) == [(3, START_MS)]
    rig.wait(100)
    assert rig.where(1) == "ready"
    assert ready_heads(rig.state, rig.moment) == [(3, START_MS)]
    rig.push(1, delay_ms=50)
    assert ready_heads(rig.state, rig.moment) == [(3, START_MS)]
    rig.wait(70)
    assert ready_heads(rig.state, rig.moment) == [(3, START_MS), (4, START_MS + 150)]


def test_the_next_wake_is_the_earliest_of_retry_deadline_and_delivery():
    """A long poll sleeps until the clock alone can have made something leasable."""
    rig = Rig(2)
    assert next_wake_ms(rig.state, rig.moment) is None
    rig.lease(2, visibility_ms=500)
    assert next_wake_ms(rig.state, rig.moment) == START_MS + 500
    rig.push(1, delay_ms=300)
    assert next_wake_ms(rig.state, rig.moment) == START_MS + 300
    rig.nack(1, (1, 1), delay_ms=100)
    assert next_wake_ms(rig.state, rig.moment) == START_MS + 100


def test_attempts_are_known_wherever_a_version_is():
    """A version's attempts are read from its lease, its wait or its block."""
    rig = Rig(3, max_attempts=2, on_exhausted="block")
    rig.nack(rig.lease(2).lease_id, (1, 2), delay_ms=0)
    rig.wait(0)
    rig.nack(rig.lease(1).lease_id, (1, 1))
    rig.lease(1)
    assert [attempts_of(rig.state, version) for version in (1, 2, 3)] == [2, 2, 0]


def test_deadlines_do_not_pile_up():
    """Leases that are acked in time leave no trail of reminders."""
    rig = Rig(2_000)
    for _ in range(2_000):
        grant = rig.lease()
        rig.ack(grant.lease_id, *((s, e) for s, e, _ in grant.runs))
    assert len(rig.state.deadlines) < 200
    assert rig.state.next_deadline_ms() is None


def test_only_overdue_leases_are_looked_at():
    """The leases whose deadline has come, each once, in the order in which they were given."""
    rig = Rig(9)
    for visibility_ms in (30, 10, 50, 20, 10):
        rig.lease(1, visibility_ms)
    rig.state.remind(2, START_MS + 10)
    assert rig.state.overdue_leases(START_MS + 20) == [2, 4, 5]
    assert rig.state.overdue_leases(START_MS) == []


def test_every_lease_is_looked_at_once_for_a_page():
    """What is leased, with its attempts, for all versions of a stretch at once."""
    rig = Rig(6)
    rig.lease(2)
    rig.nack(1, (2, 2), delay_ms=0)
    rig.wait(0)
    rig.lease(2)
    leased = leased_in(rig.state, 1, 6)
    assert list(leased) == [(1, 1, 1), (2, 2, 2), (3, 3, 1)]
    rig.state.leases.clear()
    assert [state_of(rig.state, rig.moment, v, leased) for v in (2, 4)] == ["leased", "ready"]
    assert [attempts_of(rig.state, v, leased) for v in (1, 2, 4)] == [1, 2, 0]


@pytest.mark.parametrize(
    "harm",
    [
        lambda state: state.leases.clear(),
        lambda state: state.settled.add(2, 2),
        lambda state: state.settled.add(99, 99),
        lambda state: state.parked.add(1, 1),
        lambda state: state.leases[1].held.take(1, 2),
        lambda state: setattr(state, "frontier", 50),
        lambda state: (state.settled.add(3, 3), state.parked.add(3, 3), state.dropped.add(3, 3)),
    ],
    ids=[
        "forgotten", "in two places", "beyond the tail", "parked, not settled", "empty lease",
        "frontier", "parked and dropped",
    ],
)  # fmt: skip
def test_a_damaged_state_is_found(harm):
    """Each rule that ties the parts of the state together is really checked."""
    rig = Rig(3)
    rig.lease(2)
    harm(rig.state)
    with pytest.raises((IllegalTransitionError, InvariantError)):
        validate(rig.state, rig.lane.tail)
