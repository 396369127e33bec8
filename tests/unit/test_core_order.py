"""Which messages a lease may take."""

import pytest

from spillway.core import commands as cmd
from spillway.core import events as ev
from spillway.core.order import SCAN_RUNS_MAX
from spillway.testing.rig import Rig


def ranges(grant: cmd.Grant) -> list[tuple[int, int]]:
    return [(start, end) for start, end, _ in grant.runs]


def ordered(messages: int = 5, **policy) -> Rig:
    return Rig(messages, order="partition", backoff_base_ms=0, **policy)


def test_unordered_leases_run_in_parallel():
    """Every lease gets the next messages, whoever holds those before."""
    rig = Rig(5)
    assert [ranges(rig.lease(2)) for _ in range(3)] == [[(1, 2)], [(3, 4)], [(5, 5)]]
    assert rig.lease().reason == "empty"


def test_an_unordered_retry_is_overtaken():
    """While a message waits for its retry, those behind it go out."""
    rig = Rig(3)
    rig.nack(rig.lease().lease_id, (1, 1), delay_ms=10)
    assert ranges(rig.lease(5)) == [(2, 3)]
    rig.wait(10)
    assert rig.lease(5).runs == ((1, 1, 2),)


def test_due_retries_go_before_fresh_messages():
    """A lease fills up with what came back first, then with what is new."""
    rig = Rig(4)
    rig.nack(rig.lease(2).lease_id, (1, 2), delay_ms=0)
    rig.wait(0)
    assert rig.lease(3).runs == ((1, 2, 2), (3, 3, 1))


def test_neighbours_that_came_back_apart_go_out_as_one_range():
    """Retries with different due times, all due, are one range in the event."""
    rig = Rig(3)
    lease_id = rig.lease(3).lease_id
    for version in (1, 2, 3):
        rig.nack(lease_id, (version, version), delay_ms=version)
    rig.wait(3)
    rig.lease(3)
    assert rig.events[-1].ranges == ((1, 3),)


def test_a_partition_has_one_lease_at_a_time():
    """The lane is busy until the whole lease is settled."""
    rig = ordered()
    first = rig.lease(2)
    assert rig.lease().reason == "lane_busy"
    rig.ack(first.lease_id, (1, 1))
    assert rig.lease().reason == "lane_busy"
    rig.ack(first.lease_id, (2, 2))
    assert ranges(rig.lease()) == [(3, 3)]


def test_a_retry_holds_its_partition():
    """Nothing behind a message that waits for its retry goes out; it goes first when due."""
    rig = ordered()
    lease_id = rig.lease(3).lease_id
    rig.nack(lease_id, (2, 2), delay_ms=100)
    rig.ack(lease_id, (1, 1), (3, 3))
    assert rig.lease().reason == "retry_pending"
    rig.wait(100)
    assert ranges(rig.lease(9)) == [(2, 2), (4, 5)]


def test_messages_before_a_retry_go_out():
    """What comes before the waiting message is not held by it."""
    rig = ordered()
    lease_id = rig.lease(3).lease_id
    rig.nack(lease_id, (1, 1), delay_ms=0)
    rig.nack(lease_id, (3, 3), delay_ms=100)
    rig.nack(lease_id, (2, 2), delay_ms=0)
    rig.wait(0)
    assert ranges(rig.lease(9)) == [(1, 2)]


def test_an_expiry_holds_its_partition():
    """A lost lease is retried before anything behind it goes out."""
    rig = Rig(5, order="partition", backoff_base_ms=1_000)
    rig.lease(1, visibility_ms=10)
    rig.wait(10)
    assert rig.lease().reason == "retry_pending"
    rig.wait(1_000)
    assert rig.lease(2).runs == ((1, 1, 2), (2, 2, 1))


def test_a_block_holds_its_partition():
    """Behind a blocked message nothing goes out until an operator decides."""
    rig = ordered(max_attempts=1, on_exhausted="block")
    rig.nack(rig.lease().lease_id, (1, 1))
    assert rig.lease().reason == "blocked"
    rig.do(cmd.Unblock(((1, 1),), "skip"))
    assert ranges(rig.lease()) == [(2, 2)]


def test_a_delayed_message_does_not_hold_its_partition():
    """`deliver_at` is the message's own wish: those behind it go on."""
    rig = ordered(0)
    rig.push(1, delay_ms=100)
    rig.push(2)
    grant = rig.lease(9)
    assert ranges(grant) == [(2, 3)]
    rig.ack(grant.lease_id, (2, 3))
    rig.push(1)
    assert ranges(rig.lease()) == [(4, 4)]
    rig.ack(2, (4, 4))
    rig.wait(100)
    assert rig.lease().runs == ((1, 1, 1),)


def test_a_returned_lease_does_not_hold_its_partition():
    """A lease that never reached its holder is simply ready again."""
    rig = ordered()
    rig.do(cmd.Return(rig.lease(2).lease_id))
    rig.wait(0)
    assert rig.lease(3).runs == ((1, 2, 1), (3, 3, 1))


def test_stepping_over_is_noted_with_the_lease():
    """Delayed messages between ready ones wait for their time; those before them are leased."""
    rig = Rig()
    rig.push(1)
    rig.push(1, delay_ms=100)
    rig.push(1)
    assert ranges(rig.lease(3)) == [(1, 1), (3, 3)]
    assert [type(event) for event in rig.events[-2:]] == [ev.Deferred, ev.Leased]
    assert rig.where(2) == "deferred"
    rig.wait(100)
    assert rig.lease(3).runs == ((2, 2, 1),)


def test_looking_at_delayed_messages_writes_nothing():
    """A lease that finds only delayed messages leaves no event."""
    rig = Rig()
    rig.push(10, delay_ms=100)
    events = len(rig.events)
    assert rig.lease(5).reason == "empty"
    assert len(rig.events) == events


def test_many_delayed_messages_are_stepped_over_in_strides():
    """One lease steps over a bounded number of delayed runs, the next goes on behind them."""
    rig = Rig()
    for n in range(SCAN_RUNS_MAX + 10):
        rig.push(1, delay_ms=100 + n)
    rig.push(1)
    assert rig.lease().reason == "scanning"
    assert ranges(rig.lease()) == [(SCAN_RUNS_MAX + 11, SCAN_RUNS_MAX + 11)]


def test_at_the_hole_cap_only_new_versions_wait():
    """Consumers that died at the cap leave a queue that still drains, attempt by attempt."""
    rig = Rig(40, max_ack_holes=3, backoff_base_ms=0)
    for _ in range(5):
        grant = rig.lease(4, visibility_ms=50)
        first = grant.runs[0][0]
        rig.ack(grant.lease_id, (first + 1, first + 1), (first + 3, first + 3))
        if rig.state.settled.holes > 3:
            break
    assert rig.lease().reason == "ack_hole_cap"
    while rig.counts() != {"settled": 40}:
        rig.wait(50)
        grant = rig.lease(4)
        assert grant.runs, grant.reason
        rig.ack(grant.lease_id, *ranges(grant))


def test_delayed_messages_do_not_use_up_the_hole_cap():
    """A hole that no consumer can close does not stop the queue."""
    rig = Rig(max_ack_holes=2)
    for _ in range(10):
        rig.push(1, delay_ms=10_000)
        rig.push(1)
    for _ in range(10):
        grant = rig.lease()
        rig.ack(grant.lease_id, *ranges(grant))
    assert rig.counts() == {"settled": 10, "deferred": 10}


def test_blocked_messages_do_not_use_up_the_hole_cap():
    """They wait for an operator: nothing that consumers do would ever close those holes."""
    rig = Rig(20, max_ack_holes=2, max_attempts=1, on_exhausted="block")
    for _ in range(10):
        rig.nack(rig.lease().lease_id, (rig.state.frontier, rig.state.frontier))
        rig.ack(rig.lease().lease_id, (rig.state.frontier, rig.state.frontier))
    assert rig.counts() == {"settled": 10, "blocked": 10}


def test_blocked_neighbours_are_one_hole():
    """However many they are and whatever blocked them, they leave room for no more other holes."""
    rig = Rig(20, max_ack_holes=2, max_attempts=1, on_exhausted="block")
    for version in range(1, 6):
        rig.nack(rig.lease().lease_id, (version, version), error=f"no {version}")
    for version in (6, 8, 10):
        rig.ack(rig.lease().lease_id, (version, version))
        assert rig.lease().runs == ((version + 1, version + 1, 1),)
    rig.ack(rig.lease().lease_id, (12, 12))
    assert rig.lease().reason == "ack_hole_cap"
    rig.do(cmd.Unblock(((1, 5),), "skip"))
    assert rig.lease().reason == "ack_hole_cap"


@pytest.mark.parametrize("order", ["none", "partition"])
def test_a_lease_of_nothing_is_nothing(order):
    """A count below one grants nothing and leaves no event."""
    rig = Rig(3, order=order)
    assert rig.lease(0) == cmd.Grant(reason="empty")
    assert rig.counts() == {"ready": 3}
