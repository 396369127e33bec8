"""The schedule of a lane and its dedupe window."""

from spillway.core.lane import SPLIT_WINDOW, DedupeWindow, Schedule


def test_a_lane_splits_into_now_and_later():
    """Runs that may go now have no due time; the others say when."""
    schedule = Schedule()
    schedule.defer(3, 50)
    schedule.defer(4, 50)
    assert list(schedule.split(1, 6, 49)) == [(1, 2, 0), (3, 4, 50), (5, 6, 0)]
    assert list(schedule.split(1, 6, 50)) == [(1, 6, 0)]
    assert list(schedule.not_yet(4, 9, 0)) == [(4, 4, 50)]


def test_a_split_looks_no_further_than_it_must():
    """Messages whose time came long ago are met in windows, not all at once."""
    schedule = Schedule()
    for version in range(1, 3 * SPLIT_WINDOW):
        schedule.defer(version, version)
    assert next(schedule.split(1, 3 * SPLIT_WINDOW, 10**9)) == (1, SPLIT_WINDOW, 0)


def test_without_a_schedule_a_span_is_one_run():
    """A lane without delayed messages is not looked through."""
    assert list(Schedule().split(1, 10**12, 0)) == [(1, 10**12, 0)]


def test_the_next_delivery_is_ahead():
    """Times that have come, or were forgotten, are no reason to wake up."""
    schedule = Schedule()
    for version, due_ms in ((1, 10), (2, 20), (3, 30)):
        schedule.defer(version, due_ms)
    assert schedule.next_delivery_ms(10) == 20
    schedule.forget(2)
    assert schedule.next_delivery_ms(10) == 30
    assert schedule.next_delivery_ms(30) is None


def test_messages_pass_their_time_to_live():
    """A message is past its time from that millisecond on."""
    schedule = Schedule()
    schedule.expire(1, 10)
    schedule.expire(2, 20)
    schedule.ripen(9)
    assert schedule.expired.total == 0
    schedule.ripen(10)
    assert (list(schedule.expired), schedule.next_expiry_ms()) == ([(1, 1)], 20)


def test_forgotten_messages_do_not_come_back():
    """Once pruned, a message neither expires nor wakes anybody, and its reminders go."""
    schedule = Schedule()
    for version in range(1, 5_001):
        schedule.expire(version, 10_000 + version)
        schedule.defer(version, 10_000 + version)
    schedule.forget(4_999)
    schedule.forget(10)
    assert (schedule.next_expiry_ms(), len(schedule._expiries)) == (15_000, 1)
    schedule.ripen(10**6)
    assert list(schedule.expired) == [(5_000, 5_000)]
    schedule.forget(5_000)
    assert not schedule


def window(*batches: tuple[int, int, list[str]]) -> DedupeWindow:
    dedupe = DedupeWindow()
    for at_ms, base_version, ids in batches:
        dedupe.add_batch(at_ms, ids, base_version, [7] * len(ids))
    return dedupe


def test_a_repeat_finds_its_first_copy():
    """The window answers with the original version and the fingerprint of its payload."""
    dedupe = window((100, 1, ["a", "b"]))
    assert (dedupe.find("b"), dedupe.find("c")) == ((2, 7), None)


def test_the_largest_values_fit():
    """Versions far beyond 32 bits and any fingerprint stay apart."""
    dedupe = DedupeWindow()
    dedupe.add_batch(100, ["a", "b"], 2**62, [2**63 - 1, -(2**63)])
    assert dedupe.find("a") == (2**62, 2**63 - 1)
    assert dedupe.find("b") == (2**62 + 1, -(2**63))


def test_a_request_larger_than_the_count_is_known_whole():
    """Sent again it must be all repeats; without a count nothing is known."""
    dedupe = window((100, 1, ["a"]), (200, 2, ["b", "c", "d"]))
    dedupe.slide(300, 1_000, 2)
    assert [dedupe.find(i) for i in "abcd"] == [None, (2, 7), (3, 7), (4, 7)]
    dedupe.slide(300, 1_000, 0)
    assert len(dedupe) == 0


def test_the_window_forgets_by_age_and_by_count():
    """Whole batches leave: those that are too old, and the oldest when there are too many ids."""
    dedupe = window((100, 1, ["a"]), (200, 2, ["b", "c"]), (300, 4, ["d"]))
    dedupe.slide(1_099, 1_000, 100)
    assert dedupe.find("a") == (1, 7)
    dedupe.slide(1_100, 1_000, 100)
    assert dedupe.find("a") is None
    dedupe.slide(1_100, 1_000, 2)
    assert (dedupe.find("b"), dedupe.find("d"), len(dedupe)) == (None, (4, 7), 1)


def test_an_id_used_again_later_stays_known():
    """Read back from the log, an old use of an id does not take the newer one away."""
    dedupe = window((100, 1, ["a"]), (2_000, 2, ["a"]))
    dedupe.slide(2_000, 1_000, 100)
    assert dedupe.find("a") == (2, 7)


def test_a_group_asks_only_for_what_lapsed_since():
    """What passed its time is told once to each who asks, also after the older are forgotten."""
    schedule = Schedule()
    for version, expires_ms in ((1, 10), (2, 10), (3, 30)):
        schedule.expire(version, expires_ms)
    schedule.ripen(10)
    assert (schedule.lapsed_since(0), schedule.lapses) == ([(1, 2)], 2)
    schedule.ripen(30)
    assert schedule.lapsed_since(2) == [(3, 3)]
    schedule.forget(2)
    assert (schedule.lapsed_since(0), schedule.lapsed_since(3)) == ([(3, 3)], [])
