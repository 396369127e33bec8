"""Events on their way from a file into the log: sorted into runs, each for one lane."""

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from spillway.broker.breaker import Breaker
from spillway.broker.facts import LaneFacts, QueueFacts
from spillway.broker.handover import Handover, Sorted
from spillway.broker.intake import Intake, ItemLimits
from spillway.broker.runs import TOGETHER, Run
from spillway.core.errors import DatabaseUnavailableError, InvalidItemError, QueueNotFoundError
from spillway.core.routing import partition_of
from spillway.spool.event import Address, Event
from spillway.wire import QueueOptions

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)


class Facts:
    """Three queues: a narrow one, a wide one, and one that nobody knows."""

    def __init__(self) -> None:
        self.asked = 0
        self.is_away = False
        self._queues = {
            name: QueueFacts(number, "default", name, QueueOptions(partitions=width), False, NOW)
            for number, (name, width) in enumerate({"narrow": 1, "wide": 4}.items(), 1)
        }

    def cached_queue(self, _org: str, name: str) -> QueueFacts | None:
        return self._queues.get(name)

    async def queue(self, _org: str, name: str) -> QueueFacts:
        self.asked += 1
        if self.is_away:
            raise DatabaseUnavailableError
        raise QueueNotFoundError(f"queue {name!r} does not exist")

    async def lane(self, queue: QueueFacts, partition: str) -> LaneFacts:
        lane_id = 100 * queue.queue_id + len(queue.lanes)
        return queue.lanes.setdefault(partition, LaneFacts(lane_id, queue, partition, 2, 0, 0))


@pytest.fixture
def facts():
    return Facts()


@pytest.fixture
def handover(facts):
    return make_handover(facts)


def make_handover(facts: Facts) -> Handover:
    """One that finds lanes; nothing of it reaches PostgreSQL."""
    limits = ItemLimits(message_bytes_max=64, transaction_id_bytes_max=16)
    nothing = cast("Any", None)
    intake = Intake(
        cast("Any", facts), [], limits, nothing, Breaker(), auto_create=False, now_ms=lambda: NOW_MS
    )
    return Handover(intake, [], nothing, lambda: NOW_MS)


@pytest.fixture(scope="session")
def event(make_event):
    """Makes a plain event of a number."""

    def plain(number: int, queue: str = "narrow", partition: str | None = "Default", **more):
        return make_event(number, queue, partition, **{"priority": 2} | more)

    return plain


async def sort(handover: Handover, *events: Event, count_max: int = 100) -> Sorted:
    """In two parts, as a long window is."""
    found, numbered = Sorted(), list(enumerate(events))
    half = len(numbered) // 2
    for part in (numbered[:half], numbered[half:]):
        await handover.sort(part, found, count_max)
    return found


async def only_run(handover: Handover, *events: Event) -> Run:
    """The run of events that stand together."""
    found = await sort(handover, *events)
    [[run]] = found.lanes.values()
    return run


# ---------------------------------------------------------------- into runs


async def test_a_run_holds_its_columns(event, handover):
    """Places, numbers, ids, payloads, in the order of the file."""
    run = await only_run(handover, event(7), event(8))
    assert (run.indexes, run.seqs, run.ids) == ([0, 1], [7, 8], ["t-7", "t-8"])
    assert (run.payloads, run.rich, run.doubtful) == ([b"7", b"8"], {}, set())
    assert (run.address, run.lane.partition) == (Address("default", "narrow", "Default"), "Default")


async def test_a_run_is_no_longer_than_a_batch(event, handover):
    """Neither in events nor in time: one look at the dedupe window is for all of it."""
    later = NOW + TOGETHER
    found = await sort(
        handover,
        *(event(n) for n in range(5)),
        event(5, accepted_at=later),
        event(6, accepted_at=later + timedelta(microseconds=1)),
        event(7, accepted_at=NOW),
        count_max=3,
    )
    [runs] = found.lanes.values()
    assert [run.indexes for run in runs] == [[0, 1, 2], [3, 4, 5], [6], [7]]
    assert [run.accepted_ms - NOW_MS for run in runs] == [0, 0, 1000, 0]


async def test_addresses_of_one_lane_keep_its_order(event, handover):
    """Pushes from before the queue was known have another address, and the same lane."""
    found = await sort(handover, event(1, partition=None), event(2), event(3, partition=None))
    [[run]] = found.lanes.values()
    assert [(address.partition, indexes) for address, indexes in run.by_address()] == [
        (None, [0]),
        ("Default", [1]),
        (None, [2]),
    ]
    assert list(run.without({1}).by_address()) == [(run.address, [0, 2])]


async def test_without_a_partition_a_wide_queue_is_asked_for_each(event, handover):
    """Their ids, or keys, tell the lane."""
    events = [event(n, "wide", None, key="k" if n % 3 == 0 else None) for n in range(12)]
    found = await sort(handover, *events)
    for runs in found.lanes.values():
        for run in runs:
            for index in run.indexes:
                one = events[index]
                assert run.lane.partition == partition_of(one.key or one.transaction_id, 4)
    assert sum(len(run.indexes) for runs in found.lanes.values() for run in runs) == 12


places = st.tuples(
    st.sampled_from(["narrow", "wide", "gone"]),
    st.sampled_from([None, "Default", "p1"]),
    st.integers(0, 2),
)


@given(st.lists(places, max_size=40), st.integers(1, 5))
async def test_whatever_comes_every_lane_keeps_its_order(event, came, count_max):
    """Each event is in one run, or refused; runs of a lane, one behind the other, are its order."""
    events = [
        event(n, queue, partition, accepted_at=NOW + second * TOGETHER)
        for n, (queue, partition, second) in enumerate(came)
    ]
    found = await sort(make_handover(Facts()), *events, count_max=count_max)
    by_lane = defaultdict(list)
    for lane_id, runs in found.lanes.items():
        for run in runs:
            assert 0 < len(run.indexes) <= count_max
            for address, indexes in run.by_address():
                assert {events[index].address for index in indexes} == {address}
            assert [index for _, some in run.by_address() for index in some] == run.indexes
            accepted = [events[index].accepted_at for index in run.indexes]
            assert accepted[0] == run.earliest == min(accepted)
            assert max(accepted) <= run.latest
            by_lane[lane_id] += run.indexes
    assert all(indexes == sorted(indexes) for indexes in by_lane.values())
    refused = [index for index, _ in found.refused]
    assert refused == [index for index, one in enumerate(events) if one.queue == "gone"]
    assert sorted(sum(by_lane.values(), refused)) == list(range(len(events)))


# ---------------------------------------------------------------- what is refused


async def test_a_queue_that_is_gone_is_asked_for_once(event, handover, facts):
    """However many of its events are left."""
    found = await sort(handover, *(event(n, "gone", f"p{n % 3}") for n in range(9)), event(9))
    assert [(index, type(error)) for index, error in found.refused] == [
        (n, QueueNotFoundError) for n in range(9)
    ]
    assert facts.asked == 1
    assert [run.indexes for runs in found.lanes.values() for run in runs] == [[9]]


async def test_what_is_about_postgresql_is_no_fault_of_an_event(event, handover, facts):
    """The file waits."""
    facts.is_away = True
    with pytest.raises(DatabaseUnavailableError):
        await sort(handover, event(1, "gone"))


@pytest.mark.parametrize(
    "bad",
    [
        {"payload": Raw(b'"' + b"x" * 63 + b'"')},
        {"transaction_id": "x" * 17},
        {"transaction_id": "é" * 9},
        {"headers": {"a": "\0"}},
        {"priority": 1},
    ],
    ids=["payload", "id", "id in bytes", "headers", "priority"],
)
async def test_the_limits_of_today_hold_for_each(event, handover, bad):
    """The others of its run go on, in order."""
    found = await sort(handover, event(1), event(2, **bad), event(3))
    assert [index for index, _ in found.refused] == [1]
    assert [run.indexes for runs in found.lanes.values() for run in runs] == [[0, 2]]


async def test_no_queue_is_made_for_what_it_would_not_have(event, handover, facts):
    """The limits are looked at first."""
    found = await sort(handover, event(1, "gone", transaction_id="x" * 17), event(2, "gone"))
    assert [type(error) for _, error in found.refused] == [InvalidItemError, QueueNotFoundError]
    assert facts.asked == 1


async def test_the_limits_hold_in_every_part_of_a_window(event, handover):
    """Where the lane is known already, too."""
    found = await sort(handover, event(2), event(3, transaction_id="x" * 17))
    assert [[run.ids for run in runs] for runs in found.lanes.values()] == [[["t-2"]]]
    found = await sort(handover, event(4), event(5, transaction_id=""), event(6))
    assert [index for index, _ in found.refused] == [1]
