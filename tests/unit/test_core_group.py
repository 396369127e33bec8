"""The delivery rules of a group, each by a few commands."""

import pytest

from spillway.core import commands as cmd
from spillway.core import events as ev
from spillway.core.policy import LEASE_AGE_MS_MAX
from spillway.core.state import attempts_of
from spillway.testing.rig import START_MS, Rig, fold

ONE = ((1, 1),)
ENDS = {"park": "parked", "block": "blocked", "drop": "dropped"}


def fail_by_nack(rig: Rig) -> None:
    rig.nack(rig.lease().lease_id, *ONE, delay_ms=0, error="boom")
    rig.wait(0)


def fail_by_expiry(rig: Rig) -> None:
    rig.lease(1, visibility_ms=10)
    rig.wait(10)


def fail_in_turn(rig: Rig) -> None:
    (fail_by_nack if rig.state.next_lease_id % 2 else fail_by_expiry)(rig)


@pytest.mark.parametrize("fail", [fail_by_nack, fail_by_expiry, fail_in_turn])
@pytest.mark.parametrize("on_exhausted", ENDS)
@pytest.mark.parametrize("attempts", [1, 2, 5])
def test_max_attempts_is_exactly_that_many_deliveries(fail, on_exhausted, attempts):
    """A message is delivered N times, then given up on at once, however it fails."""
    rig = Rig(1, max_attempts=attempts, on_exhausted=on_exhausted, backoff_base_ms=0)
    for n in range(attempts):
        assert rig.counts() == {"ready": 1}, n
        fail(rig)
        rig.wait(0)
    assert rig.counts() == {ENDS[on_exhausted]: 1}
    assert sum(type(event) is ev.Leased for event in rig.events) == attempts
    assert not rig.lease().runs


def test_attempts_are_numbered_from_one():
    """Each lease tells the holder which attempt it is."""
    rig = Rig(1, max_attempts=3, backoff_base_ms=0)
    seen = []
    for _ in range(3):
        grant = rig.lease(1, visibility_ms=10)
        seen += grant.runs
        rig.wait(10)
        rig.wait(0)
    assert seen == [(1, 1, 1), (1, 1, 2), (1, 1, 3)]


def test_a_retry_waits_for_its_backoff():
    """The next attempt comes after base x 2^(attempt-1) x jitter, or the delay of the nack."""
    rig = Rig(1, backoff_base_ms=1_000)
    rig.nack(rig.lease().lease_id, *ONE)
    assert rig.state.waiting.get(1).due_ms == START_MS + 500
    rig.wait(500)
    rig.nack(rig.lease().lease_id, *ONE)
    assert rig.state.waiting.get(1).due_ms == START_MS + 1_500
    rig.wait(1_000)
    rig.nack(rig.lease().lease_id, *ONE, delay_ms=7)
    assert rig.state.waiting.get(1).due_ms == START_MS + 1_507


def test_the_error_of_a_nack_is_kept():
    """What the consumer said travels with the message to its dead letter."""
    rig = Rig(2, max_attempts=1)
    rig.nack(rig.lease(2).lease_id, *ONE, error="no such order")
    assert rig.events[-1] == ev.Parked(ONE, "exhausted", "no such order", lease_id=1)


def test_an_expired_lease_ends_at_its_deadline():
    """At the deadline, not before, the message is free again and its receipt is stale."""
    rig = Rig(1, backoff_base_ms=0)
    lease_id = rig.lease(1, visibility_ms=100).lease_id
    rig.wait(99)
    assert rig.where(1) == "leased"
    rig.wait(1)
    assert rig.where(1) == "ready"
    assert rig.events[-1] == ev.Expired(lease_id, ((1, 1, rig.now_ms),))
    assert rig.ack(lease_id, *ONE).refused == ONE


def test_expiry_is_the_same_lazily_and_swept():
    """An ack after the deadline is refused, whether or not the sweeper came by before."""
    swept, lazy = Rig(2), Rig(2)
    for rig in (swept, lazy):
        rig.lease(2, visibility_ms=100)
        rig.now_ms += 100
    swept.do(cmd.Sweep())
    assert [rig.ack(1, (1, 2)).refused for rig in (swept, lazy)] == [((1, 2),)] * 2
    assert swept.events == lazy.events
    assert swept.record() == lazy.record()


def test_a_sweep_with_nothing_due_does_nothing():
    """Sweeping is free of events while no deadline has come."""
    rig = Rig(2)
    rig.lease()
    events = len(rig.events)
    rig.wait(10)
    assert len(rig.events) == events


def test_an_ack_settles_and_its_repeat_is_fine():
    """A second ack of the same lease changes nothing and is not refused."""
    rig = Rig(3)
    lease_id = rig.lease(3).lease_id
    assert rig.ack(lease_id, (1, 3)) == cmd.Verdict(((1, 3),))
    events = len(rig.events)
    assert rig.ack(lease_id, (1, 3)) == cmd.Verdict()
    assert len(rig.events) == events


def test_an_ack_may_take_part_of_a_lease_in_any_order():
    """What is named is settled, the rest stays leased; a repeat within the request counts once."""
    rig = Rig(5)
    lease_id = rig.lease(5).lease_id
    assert rig.ack(lease_id, (4, 4), (1, 2), (4, 4)).done == ((1, 2), (4, 4))
    assert rig.counts() == {"settled": 3, "leased": 2}


def test_a_stale_ack_is_refused():
    """After an expiry the old holder cannot settle what another holds now."""
    rig = Rig(1, backoff_base_ms=0)
    old = rig.lease(1, visibility_ms=10).lease_id
    rig.wait(10)
    new = rig.lease().lease_id
    assert rig.ack(old, *ONE) == cmd.Verdict((), ONE)
    assert rig.nack(old, *ONE) == cmd.Verdict((), ONE)
    assert rig.ack(new, *ONE).done == ONE


def test_an_ack_of_a_dead_letter_is_refused():
    """Given up on is not done: the holder learns that its work came too late."""
    rig = Rig(2)
    lease_id = rig.lease(2).lease_id
    rig.do(cmd.Park(ONE))
    assert rig.ack(lease_id, (1, 2)) == cmd.Verdict(((2, 2),), ONE)


def test_a_repeated_nack_in_one_request_counts_once():
    """The same receipt twice in a request is one nack, also on the last attempt."""
    rig = Rig(2, max_attempts=1, on_exhausted="block")
    rig.nack(rig.lease(2).lease_id, (2, 2), (1, 1), (2, 2))
    assert rig.counts() == {"blocked": 2}


def test_a_nack_can_park_at_once():
    """A holder that knows better gives up before the attempts are used."""
    rig = Rig(2)
    verdict = rig.nack(rig.lease(2).lease_id, *ONE, error="never", park=True)
    assert verdict.parked == ONE
    assert rig.counts() == {"parked": 1, "leased": 1}


def test_one_nack_may_retry_and_give_up():
    """Each message of a lease is decided by its own attempts."""
    rig = Rig(2, max_attempts=2, backoff_base_ms=0)
    fail_by_nack(rig)
    verdict = rig.nack(rig.lease(2).lease_id, (1, 2))
    assert (verdict.done, verdict.parked) == (((1, 2),), ONE)
    assert rig.counts() == {"parked": 1, "ready": 1}


def test_an_extension_never_shortens():
    """Asking for less than is left changes nothing and writes nothing."""
    rig = Rig(1)
    lease_id = rig.lease(1, visibility_ms=1_000).lease_id
    events = len(rig.events)
    assert rig.do(cmd.Extend(lease_id, 10)) == START_MS + 1_000
    assert len(rig.events) == events
    assert rig.do(cmd.Extend(lease_id, 5_000)) == START_MS + 5_000


def test_an_extension_ends_with_the_lease_age():
    """However often it is extended, a lease ends a day after it was given."""
    rig = Rig(1)
    lease_id = rig.lease(1, visibility_ms=LEASE_AGE_MS_MAX - 1_000).lease_id
    rig.wait(LEASE_AGE_MS_MAX - 2_000)
    for _ in range(3):
        assert rig.do(cmd.Extend(lease_id, 60_000)) == START_MS + LEASE_AGE_MS_MAX
    rig.wait(2_000)
    assert rig.do(cmd.Extend(lease_id, 60_000)) is None


def test_a_lease_cannot_begin_longer_than_the_lease_age():
    """The first deadline obeys the same bound as every extension."""
    assert Rig(1).lease(1, 10 * LEASE_AGE_MS_MAX).deadline_ms == START_MS + LEASE_AGE_MS_MAX


def test_a_returned_lease_spends_no_attempt():
    """A lease that never reached its holder gives its attempt back."""
    rig = Rig(2, max_attempts=1)
    lease_id = rig.lease(2).lease_id
    rig.ack(lease_id, (2, 2))
    assert rig.do(cmd.Return(lease_id)).done == ONE
    rig.wait(0)
    assert rig.lease(2).runs == ((1, 1, 1),)


def test_part_of_a_lease_is_returned():
    """What a holder did not touch is free at once; the rest stays with it."""
    rig = Rig(3, max_attempts=1)
    lease_id = rig.lease(3).lease_id
    verdict = rig.do(cmd.Return(lease_id, ((2, 4),)))
    assert (verdict.done, verdict.refused) == (((2, 3),), ((4, 4),))
    assert rig.counts() == {"leased": 1, "ready": 2}
    assert rig.lease(3).runs == ((2, 3, 1),)


def test_time_to_live_drops_what_is_free():
    """Fresh, retried and delayed messages go when their time is over."""
    rig = Rig(backoff_base_ms=10_000)
    rig.push(2, ttl_ms=100)
    rig.push(1, ttl_ms=100, delay_ms=10_000)
    rig.push(1)
    fail_by_nack(rig)
    rig.nack(rig.lease().lease_id, *ONE)
    rig.wait(100)
    assert rig.counts() == {"dropped": 3, "ready": 1}
    assert rig.events[-1] == ev.Dropped(((1, 3),), "ttl")


def test_time_to_live_leaves_a_holder_alone():
    """A leased message past its time can still be acked; when it comes back, it is dropped."""
    rig = Rig()
    rig.push(2, ttl_ms=100)
    lease_id = rig.lease(2).lease_id
    rig.wait(100)
    assert rig.counts() == {"leased": 2}
    rig.ack(lease_id, *ONE)
    rig.nack(lease_id, (2, 2), delay_ms=0)
    rig.wait(0)
    assert rig.counts() == {"settled": 1, "dropped": 1}


def test_one_sweep_does_it_all():
    """A lease and a time to live that end together end in one sweep; a second finds nothing."""
    rig = Rig(backoff_base_ms=0)
    rig.push(1, ttl_ms=100)
    rig.lease(1, visibility_ms=100)
    rig.now_ms += 100
    rig.do(cmd.Ack(1, ONE))
    assert [type(event) for event in rig.events[-2:]] == [ev.Expired, ev.Dropped]
    events = len(rig.events)
    rig.wait(0)
    assert len(rig.events) == events


def test_time_to_live_is_kept_after_a_return_and_a_seek():
    """What comes back past its time, by a return, an unblock or a seek, is dropped then."""
    rig = Rig(max_attempts=1, on_exhausted="block")
    rig.push(4, ttl_ms=100)
    rig.ack(rig.lease(1).lease_id, *ONE)
    rig.nack(rig.lease(1).lease_id, (2, 2))
    rig.lease(1)
    rig.lease(1)
    rig.wait(100)
    assert rig.counts() == {"settled": 1, "blocked": 1, "leased": 2}
    rig.do(cmd.Return(3))
    rig.do(cmd.Unblock(((2, 2),)))
    rig.wait(0)
    assert rig.counts() == {"settled": 1, "leased": 1, "dropped": 2}
    rig.do(cmd.Seek(0))
    rig.wait(0)
    assert rig.counts() == {"dropped": 4}


def test_time_to_live_leaves_a_block_alone():
    """A blocked message waits for its operator, whatever its time."""
    rig = Rig(max_attempts=1, on_exhausted="block")
    rig.push(1, ttl_ms=100)
    fail_by_nack(rig)
    rig.wait(1_000)
    assert rig.counts() == {"blocked": 1}


def test_a_delayed_message_is_delivered_from_its_time_on():
    """`deliver_at` is kept to the millisecond."""
    rig = Rig()
    rig.push(1, delay_ms=100)
    rig.wait(99)
    assert (rig.where(1), rig.lease().runs) == ("deferred", ())
    rig.wait(1)
    assert (rig.where(1), rig.lease().runs) == ("ready", ((1, 1, 1),))


def test_a_message_that_is_over_before_it_begins_is_dropped():
    """A time to live that ends before the delivery time means no delivery."""
    rig = Rig()
    rig.push(1, delay_ms=100, ttl_ms=50)
    rig.wait(50)
    assert rig.counts() == {"dropped": 1}
    rig.wait(100)
    assert not rig.lease().runs


def test_a_clock_set_back_breaks_nothing():
    """When the clock jumps back, what was due waits again, and nothing is lost or refused."""
    rig = Rig(2, backoff_base_ms=0)
    rig.nack(rig.lease().lease_id, *ONE, delay_ms=1_000)
    rig.wait(1_000)
    rig.wait(-900)
    assert rig.lease(5).runs == ((2, 2, 1),)
    rig.wait(900)
    assert rig.lease(5).runs == ((1, 1, 2),)
    assert attempts_of(fold(rig.events), 1) == 2


def test_a_group_that_was_deleted_starts_from_nothing():
    """Created again, it gets every message; old receipts stay stale because lease ids go on."""
    rig = Rig(3, max_attempts=1)
    old = rig.lease(3).lease_id
    rig.ack(old, *ONE)
    rig.nack(old, (2, 2))
    rig.do(cmd.DeleteGroup())
    assert rig.ack(old, (3, 3)).refused == ((3, 3),)
    rig.do(cmd.CreateGroup())
    grant = rig.lease(3)
    assert grant.runs == ((1, 3, 1),)
    assert grant.lease_id > old
    assert rig.ack(old, (3, 3)).refused == ((3, 3),)
    assert fold(rig.events).next_lease_id == rig.state.next_lease_id
