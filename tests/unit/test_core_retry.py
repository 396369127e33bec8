"""Backoff, and the room where versions wait."""

from spillway.core.retry import Waiting, WaitingRoom, backoff_ms


def test_backoff_doubles_up_to_its_cap():
    """The ceiling doubles with each attempt, jitter picks below it, the cap ends it."""
    assert [backoff_ms(n, 100, 1_000, 1.0) for n in (1, 2, 3, 4, 5)] == [100, 200, 400, 800, 1_000]
    assert backoff_ms(3, 100, 1_000, 0.5) == 200
    assert backoff_ms(3, 100, 1_000, 0.0) == 0
    assert backoff_ms(1_000_000, 100, 1_000, 1.0) == 1_000


def test_waiting_ends_when_it_is_due():
    """A version is ripe from its due time on, not a millisecond before."""
    room = WaitingRoom()
    room.put(1, 3, Waiting(1, 50))
    room.ripen(49)
    assert (room.ripe.total, room.unripe_total, room.next_due_ms()) == (0, 3, 50)
    room.ripen(50)
    assert (room.ripe.total, room.unripe_total, room.next_due_ms()) == (3, 0, None)


def test_an_old_reminder_does_not_ripen_a_later_wait():
    """A version that left and came back with a later time waits for that time."""
    room = WaitingRoom()
    room.put(1, 1, Waiting(1, 10))
    room.take(1, 1)
    room.put(1, 1, Waiting(2, 90))
    room.ripen(10)
    assert room.ripe.total == 0
    assert room.next_due_ms() == 90


def test_a_clock_set_back_makes_waiting_again():
    """What is due follows the clock, also when it is set back."""
    room = WaitingRoom()
    room.put(1, 2, Waiting(1, 10))
    room.put(3, 3, Waiting(1, 30))
    room.ripen(30)
    room.ripen(20)
    assert list(room.ripe) == [(1, 2, Waiting(1, 10))]
    assert room.next_due_ms() == 30
    room.ripen(30)
    assert room.ripe.total == 3


def test_retries_and_scheduled_messages_are_told_apart():
    """Only a version that was tried before holds an ordered lane."""
    room = WaitingRoom()
    room.put(1, 2, Waiting(0, 50))
    assert room.first_unripe_retry() is None
    room.put(5, 6, Waiting(1, 50))
    assert (room.first_unripe_retry(), list(room.scheduled)) == (5, [(1, 2)])
    room.ripen(50)
    assert (room.first_unripe_retry(), list(room.scheduled)) == (None, [])


def test_what_waits_reads_the_same_ripe_or_not():
    """The runs are in version order and joined, however far they have ripened."""
    early, late = WaitingRoom(), WaitingRoom()
    for room in (early, late):
        room.put(4, 4, Waiting(1, 10, "no"))
        room.put(1, 1, Waiting(1, 99))
    late.ripen(50)
    for room in (early, late):
        room.put(5, 5, Waiting(1, 10, "no"))
        assert room.runs() == [(1, 1, Waiting(1, 99)), (4, 5, Waiting(1, 10, "no"))]
    assert late.within(4, 9) == [(4, 4, Waiting(1, 10, "no")), (5, 5, Waiting(1, 10, "no"))]
    assert (late.get(4), late.get(5), late.get(2)) == (*2 * [Waiting(1, 10, "no")], None)


def test_reminders_do_not_pile_up():
    """Versions that come and go leave no trail of reminders."""
    room = WaitingRoom()
    for due_ms in range(1, 10_000):
        room.put(1, 1, Waiting(1, due_ms))
        room.take(1, 1)
    room.put(1, 1, Waiting(1, 20_000))
    assert len(room._due) < 200
    assert room.next_due_ms() == 20_000
