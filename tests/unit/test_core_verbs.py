"""The operator's verbs."""

import pytest

from spillway.core import commands as cmd
from spillway.core import events as ev
from spillway.core.state import attempts_of
from spillway.testing.rig import Rig

ONE = ((1, 1),)


def blocked(attempts: int = 2) -> Rig:
    rig = Rig(3, max_attempts=attempts, on_exhausted="block", backoff_base_ms=0)
    use_up(rig)
    return rig


def use_up(rig: Rig) -> int:
    """Fail version 1 until it is given up on; how many leases that took."""
    for n in range(1, 99):
        rig.wait(0)
        rig.nack(rig.lease().lease_id, *ONE)
        if rig.where(1) in {"blocked", "parked"}:
            return n
    raise AssertionError


@pytest.mark.parametrize("attempts", [1, 3])
def test_unblock_gives_fresh_attempts(attempts):
    """A retried message has all its attempts again, and exactly those."""
    rig = blocked(attempts)
    assert rig.do(cmd.Unblock(((1, 9),))).done == ONE
    assert (rig.where(1), attempts_of(rig.state, 1)) == ("ready", 0)
    assert use_up(rig) == attempts


def test_unblock_can_skip():
    """A skipped message is done."""
    rig = blocked()
    rig.do(cmd.Unblock(ONE, "skip", "ann", "known"))
    assert rig.where(1) == "settled"
    assert rig.events[-1] == ev.Unblocked(ONE, "skip", "ann", "known", rig.now_ms)


def test_unblock_can_park():
    """A parked message is a dead letter with the operator's name on it."""
    rig = blocked()
    rig.do(cmd.Unblock(ONE, "park", "ann", "broken"))
    assert rig.where(1) == "parked"
    assert rig.events[-1] == ev.Parked(ONE, "operator", None, "ann", "broken")


def test_unblock_of_nothing_is_refused():
    """What is not blocked is refused and leaves no event; a range given twice counts once."""
    rig = blocked()
    assert rig.do(cmd.Unblock(((2, 3),))).refused == ((2, 3),)
    assert rig.do(cmd.Unblock(ONE + ONE)).done == ONE


def test_park_by_hand_takes_from_anywhere():
    """Leased, waiting, blocked and fresh messages can be given up on; settled ones stay settled."""
    rig = blocked()
    lease_id = rig.lease().lease_id
    rig.push(2)
    rig.ack(rig.lease().lease_id, (3, 3))
    assert rig.do(cmd.Park(((1, 99), (2, 2)), "ann", "all")).parked == ((1, 2), (4, 5))
    assert rig.counts() == {"parked": 4, "settled": 1}
    assert rig.ack(lease_id, (2, 2)).refused == ((2, 2),)
    assert rig.do(cmd.Park(((1, 99),))).refused == ((1, 99),)


def test_seek_back_delivers_again():
    """Leases end, retries and blocks are forgotten, attempts start again; dead letters stay."""
    rig = Rig(5)
    lease_id = rig.lease(4).lease_id
    rig.ack(lease_id, *ONE)
    rig.nack(lease_id, (2, 2), park=True)
    rig.nack(lease_id, (3, 3), delay_ms=1_000)
    rig.do(cmd.Seek(0, "ann", "again"))
    assert rig.counts() == {"ready": 4, "parked": 1}
    assert rig.ack(lease_id, (4, 4)).refused == ((4, 4),)
    assert rig.lease(9).runs == ((1, 1, 1), (3, 5, 1))


def test_seek_forward_skips():
    """What lies before the new place is done; dead letters stay dead letters."""
    rig = Rig(5)
    lease_id = rig.lease(3).lease_id
    rig.nack(lease_id, (2, 2), park=True)
    rig.do(cmd.Seek(4))
    assert rig.counts() == {"settled": 3, "parked": 1, "ready": 1}
    assert rig.lease(9).runs == ((5, 5, 1),)


def test_seek_stays_within_the_lane():
    """A group cannot be sent beyond the tail or to messages that are pruned."""
    rig = Rig(5)
    rig.lane.pruned_to = 2
    rig.do(cmd.Seek(99))
    assert rig.counts() == {"settled": 5}
    rig.do(cmd.Seek(0))
    assert rig.counts() == {"settled": 2, "ready": 3}


def test_a_group_begins_within_the_lane():
    """A start before what is left, or beyond the tail, is moved to the border; a second is none."""
    rig = Rig(5, exists=False)
    rig.lane.pruned_to = 3
    rig.do(cmd.CreateGroup(0, "lease", "ann"))
    rig.do(cmd.CreateGroup(4))
    assert rig.events == [ev.GroupCreated(3, "lease", "ann")]
    assert rig.counts() == {"settled": 3, "ready": 2}


def test_purge_settles_what_waits():
    """Ready and deferred messages go; leased, blocked and parked ones stay."""
    rig = blocked()
    rig.push(3)
    lease_id = rig.lease(3).lease_id
    rig.nack(lease_id, (2, 2), park=True)
    rig.nack(lease_id, (3, 3), delay_ms=1_000)
    rig.push(1, delay_ms=1_000)
    assert rig.do(cmd.Purge(((1, 99),), False, "ann")).done == ((3, 3), (5, 7))
    assert rig.counts() == {"blocked": 1, "parked": 1, "leased": 1, "settled": 4}
    assert rig.do(cmd.Purge(((50, 99),))).refused == ((50, 99),)


def test_purge_of_the_dead_forgets_dead_letters():
    """Dead letters that are purged are done."""
    rig = Rig(3)
    rig.do(cmd.Park(((1, 2),)))
    assert rig.do(cmd.Purge(((2, 9),), True)).done == ((2, 2),)
    assert rig.counts() == {"parked": 1, "settled": 1, "ready": 1}


def test_redrive_takes_dead_letters_once():
    """A redriven dead letter is done here: its copy is a new message. A repeat finds nothing."""
    rig = Rig(3)
    rig.do(cmd.Park(((1, 2),)))
    assert rig.do(cmd.Redrive(((1, 3), (1, 1)), "ann", "fixed")).done == ((1, 2),)
    assert rig.counts() == {"settled": 2, "ready": 1}
    assert rig.do(cmd.Redrive(((1, 3),))).refused == ((1, 3),)
