"""Counters: every count is in one series, their number is bounded, and none ever falls."""

from hypothesis import given
from hypothesis import strategies as st

from spillway.broker.counters import Counters, Histogram


def counted(counters: Counters, **produced: int) -> None:
    counters.add(((int(name[1:]), "produced"), n) for name, n in produced.items())


def seen(counters: Counters, living: set[int]) -> tuple[dict[int, int], int]:
    """What somebody who scrapes gets: each shown queue, and the others."""
    shown = counters.show(living)
    own = {queue_id: counters.of_queue(queue_id, "produced") for queue_id in sorted(shown)}
    return own, counters.other("produced")


def test_the_busiest_queues_are_shown():
    """Where there are more queues than series, the rest is summed up."""
    counters = Counters(shown_max=2)
    counted(counters, q1=1, q2=5, q3=3, q4=2)
    assert seen(counters, {1, 2, 3, 4}) == ({2: 5, 3: 3}, 3)


def test_an_idle_queue_is_shown_too():
    """A queue without traffic has a series of zeros, so that its first message is a step."""
    counters = Counters()
    assert seen(counters, {7}) == ({7: 0}, 0)
    counted(counters, q7=2)
    assert seen(counters, {7}) == ({7: 2}, 0)


def test_a_shown_queue_stays_shown():
    """A queue that becomes busier later does not push another one's series away."""
    counters = Counters(shown_max=1)
    counted(counters, q1=1)
    assert seen(counters, {1, 2}) == ({1: 1}, 0)
    counted(counters, q2=100)
    assert seen(counters, {1, 2}) == ({1: 1}, 100)


def test_a_queue_that_moves_up_begins_at_zero():
    """What was seen as `other` stays there; only what comes after is the queue's own."""
    counters = Counters(shown_max=1)
    counted(counters, q1=1, q2=9, q3=5)
    assert seen(counters, {1, 2, 3}) == ({2: 9}, 6)
    counted(counters, q3=1)
    assert seen(counters, {1, 3}) == ({3: 0}, 7)
    counted(counters, q3=4)
    assert seen(counters, {1, 3}) == ({3: 4}, 7)


def test_counts_of_a_name_stay_apart():
    """Each name is a series of its own."""
    counters = Counters()
    counters.add([((1, "acked"), 2), ((1, "nacked"), 3)])
    counters.show({1})
    assert [counters.of_queue(1, name) for name in ("acked", "nacked", "parked")] == [2, 3, 0]
    assert counters.of_queue(99, "acked") == 0


STEPS = st.lists(
    st.tuples(st.sampled_from(["count", "scrape"]), st.integers(1, 5), st.integers(1, 9)),
    max_size=40,
)


@given(STEPS, st.integers(0, 3))
def test_no_series_ever_falls_and_nothing_is_lost(steps, shown_max):
    """While queues live: each scrape shows at least as much as the last, and all that was."""
    counters, total, living = Counters(shown_max), 0, {1, 2, 3, 4, 5}
    last: tuple[dict[int, int], int] = ({}, 0)
    for step, queue_id, n in steps:
        if step == "count":
            counters.add([((queue_id, "produced"), n)])
            total += n
            continue
        own, other = seen(counters, living)
        assert other >= last[1]
        assert all(own[known] >= before for known, before in last[0].items())
        assert sum(own.values()) + other == total
        assert len(own) == min(shown_max, 5)
        last = own, other


def test_buckets_hold_the_smaller_ones_too():
    """A value on a bound belongs to it; the last bucket holds everything."""
    histogram = Histogram((0.5, 1.0))
    for value in (0.25, 0.5, 0.75, 8.0):
        histogram.observe(value)
    found = [(s.labels, s.value, s.suffix) for s in histogram.samples()]
    assert found == [
        ({"le": "0.5"}, 2, "_bucket"),
        ({"le": "1"}, 3, "_bucket"),
        ({"le": "+Inf"}, 4, "_bucket"),
        ({}, 9.5, "_sum"),
        ({}, 4, "_count"),
    ]


def test_a_commit_is_observed_by_time_and_by_size():
    """Both histograms get one observation a commit."""
    counters = Counters()
    counters.commit(0.004, 100)
    sums = [
        [s.value for s in h.samples() if s.suffix in {"_sum", "_count"}] for h in both(counters)
    ]
    assert sums == [[0.004, 1], [100.0, 1]]


def both(counters: Counters) -> tuple[Histogram, Histogram]:
    return counters.commit_seconds, counters.commit_messages
