"""The collections of the core against plain sets, dicts and lists."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from spillway.core.lane import DedupeWindow, Schedule
from spillway.core.ranges import RangeMap, RangeSet, are_ascending, coalesce, merged
from spillway.core.retry import Waiting, WaitingRoom

HIGHEST = 30
SPAN = st.tuples(st.integers(1, HIGHEST), st.integers(0, 6)).map(lambda s: (s[0], s[0] + s[1]))
EDITS = st.lists(st.tuples(st.booleans(), SPAN), max_size=25)


def versions(start: int, end: int) -> set[int]:
    return set(range(start, end + 1))


def spread(ranges: Iterable[tuple[int, ...]]) -> list[int]:
    return [version for run in ranges for version in range(run[0], run[1] + 1)]


@given(EDITS, SPAN)
def test_a_range_set_is_a_set(edits, span):
    """Whatever is added and discarded, a RangeSet answers like a set of integers."""
    ranges, model = RangeSet(), set()
    for add, (start, end) in edits:
        (ranges.add if add else ranges.discard)(start, end)
        model = model | versions(start, end) if add else model - versions(start, end)
    assert list(ranges) == coalesce(model) == list(RangeSet(reversed(list(ranges))))
    assert ranges.total == len(model)
    assert all((version in ranges) == (version in model) for version in range(1, HIGHEST + 9))
    assert spread(ranges.within(*span)) == sorted(model & versions(*span))
    assert spread(ranges.gaps(*span)) == sorted(versions(*span) - model)
    assert ranges.covers(*span) == (versions(*span) <= model)
    assert (ranges.first, ranges.last) == (min(model, default=None), max(model, default=0))


@given(EDITS)
def test_holes_and_prefix_are_those_of_the_set(edits):
    """The prefix ends before the first absent version; holes are the runs absent below the last."""
    ranges, model = RangeSet(), set()
    for add, (start, end) in edits:
        (ranges.add if add else ranges.discard)(start, end)
        model = model | versions(start, end) if add else model - versions(start, end)
    first_absent = next(version for version in range(1, HIGHEST + 99) if version not in model)
    assert ranges.prefix_end == first_absent - 1
    absent = versions(1, max(model, default=0)) - model
    assert ranges.holes == len(coalesce(absent))


@given(st.lists(st.tuples(SPAN, st.sampled_from("ab"), st.booleans()), max_size=25), SPAN)
def test_a_range_map_is_a_dict(edits, span):
    """Whatever is put and taken, a RangeMap answers like a dict of integers, in the fewest runs."""
    runs, model = RangeMap(), {}
    for (start, end), value, put in edits:
        if put and not any(version in model for version in range(start, end + 1)):
            runs.put(start, end, value)
            model |= dict.fromkeys(range(start, end + 1), value)
        else:
            taken = runs.take(start, end)
            gone = {v: model.pop(v) for v in range(start, end + 1) if v in model}
            assert {v: value for s, e, value in taken for v in range(s, e + 1)} == gone
    assert {v: value for s, e, value in runs for v in range(s, e + 1)} == model
    assert runs.total == len(model)
    assert all(runs.get(version) == model.get(version) for version in range(1, HIGHEST + 9))
    inside = {v: x for v, x in model.items() if span[0] <= v <= span[1]}
    assert {v: x for s, e, x in runs.within(*span) for v in range(s, e + 1)} == inside
    assert runs.covered(*span) == len(inside)
    for (_, end, value), (start, _, after) in zip(list(runs), list(runs)[1:], strict=False):
        assert end < start - 1 or value != after


@given(st.lists(st.tuples(st.integers(-3, HIGHEST), st.integers(-3, HIGHEST)), max_size=9))
def test_merged_ranges_hold_the_same_versions(ranges):
    """Merging keeps every version from 1 on, and leaves ascending ranges."""
    result = merged(tuple(ranges))
    assert spread(result) == sorted({v for s, e in ranges for v in range(max(s, 1), e + 1)})
    assert are_ascending(result)


WAITS = st.tuples(SPAN, st.integers(0, 2), st.integers(0, 40))


@given(st.lists(st.one_of(WAITS, SPAN, st.integers(0, 40)), max_size=30))
def test_a_waiting_room_is_a_list_of_due_times(steps):
    """Puts, takes and any clock, set back too: what is ripe is exactly what is due."""
    room, model, now_ms = WaitingRoom(), {}, 0
    for step in steps:
        if isinstance(step, int):
            now_ms = step
        elif len(step) == 2:
            taken = room.take(*step)
            gone = {v: model.pop(v) for v in range(step[0], step[1] + 1) if v in model}
            assert {v: w for s, e, w in taken for v in range(s, e + 1)} == gone
            assert are_ascending(taken)
        elif not any(v in model for v in range(step[0][0], step[0][1] + 1)):
            waiting = Waiting(step[1], step[2])
            room.put(*step[0], waiting)
            model |= dict.fromkeys(range(step[0][0], step[0][1] + 1), waiting)
        room.ripen(now_ms)
        assert_same(room, model, now_ms)


def assert_same(room: WaitingRoom, model: dict[int, Waiting], now_ms: int) -> None:
    unripe = {v: w for v, w in model.items() if w.due_ms > now_ms}
    assert spread(room.ripe) == sorted(model.keys() - unripe.keys())
    assert {v: w for s, e, w in room.runs() for v in range(s, e + 1)} == model
    assert room.next_due_ms() == min((w.due_ms for w in unripe.values()), default=None)
    assert room.first_unripe_retry() == min((v for v in unripe if unripe[v].attempts), default=None)
    assert list(room.scheduled) == coalesce(v for v in unripe if not unripe[v].attempts)
    assert (room.total, room.unripe_total) == (len(model), len(unripe))


TIMES = st.none() | st.integers(1, 40)


@given(st.lists(st.tuples(TIMES, TIMES), max_size=20), st.integers(0, 41), st.integers(0, 21), SPAN)
def test_a_schedule_is_two_columns_of_times(messages, now_ms, forgotten, span):
    """Delivery and expiry are read from the messages' own times, forgotten ones aside."""
    schedule = Schedule()
    for version, (deliver_ms, expires_ms) in enumerate(messages, 1):
        if deliver_ms is not None:
            schedule.defer(version, deliver_ms)
        if expires_ms is not None:
            schedule.expire(version, expires_ms)
    schedule.forget(forgotten)
    schedule.ripen(now_ms)
    kept = dict(list(enumerate(messages, 1))[forgotten:])
    later = {v: times[0] for v, times in kept.items() if times[0] and times[0] > now_ms}
    over = [v for v, times in kept.items() if times[1] and times[1] <= now_ms]
    alive = [times[1] for times in kept.values() if times[1] and times[1] > now_ms]
    split = list(schedule.split(*span, now_ms))
    assert {v: due for s, e, due in split for v in range(s, e + 1)} == {
        v: later.get(v, 0) for v in versions(*span)
    }
    assert list(schedule.expired) == coalesce(over)
    assert schedule.next_delivery_ms(now_ms) == min(later.values(), default=None)
    assert schedule.next_expiry_ms() == min(alive, default=None)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.lists(st.sampled_from("abcdef"), max_size=3))),
    st.integers(1, 20),
    st.integers(0, 6),
)
def test_a_dedupe_window_remembers_the_latest_use(batches, window_ms, count_max):
    """Inside age and count every id finds its last use; beyond them nothing is remembered."""
    dedupe, model, now_ms, version = DedupeWindow(), [], 0, 0
    for pause_ms, ids in batches:
        now_ms += pause_ms
        first, version = version + 1, version + len(ids)
        dedupe.add_batch(now_ms, ids, first, [v % 7 for v in range(first, version + 1)])
        if ids:
            model.append((now_ms, list(zip(ids, range(first, version + 1), strict=True))))
        dedupe.slide(now_ms, window_ms, count_max)
        model = slid(model, now_ms - window_ms, count_max)
        latest = {i: v for _, uses in model for i, v in uses}
        for transaction_id in "abcdef":
            found = latest.get(transaction_id)
            assert dedupe.find(transaction_id) == (found and (found, found % 7))


def slid(model: list, oldest_ms: int, count_max: int) -> list:
    model = [batch for batch in model if batch[0] > oldest_ms]
    kept_min = 1 if count_max else 0
    while len(model) > kept_min and len({i for _, uses in model for i, _ in uses}) > count_max:
        model = model[1:]
    return model
