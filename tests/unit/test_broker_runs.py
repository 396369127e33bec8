"""Runs: what goes into the log together, and how much of it at a time."""

import base64
from collections import deque
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from spillway.broker.facts import LaneFacts, QueueFacts
from spillway.broker.runs import PLAIN, Appetite, Run, portion
from spillway.spool.event import Address, Event
from spillway.wire import QueueOptions

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)
ORDERS = QueueFacts(1, "default", "orders", QueueOptions(), False, NOW)
PLENTY = Appetite(events=1_000, bytes=1 << 20, runs=100)


def lane(lane_id: int = 1, shard_id: int = 0) -> LaneFacts:
    return LaneFacts(lane_id, ORDERS, f"p{lane_id}", 2, 0, shard_id)


@pytest.fixture(scope="session")
def event(make_event):
    """Makes a plain event of a number."""
    return partial(make_event, partition="Default", priority=2)


def run_of(*events: Event, at: LaneFacts | None = None, first: int = 0) -> Run:
    """Events at places of a file from `first` on."""
    run = Run.behind(at or lane(), Address("default", "orders", "Default"), events[0])
    for index, one in enumerate(events, first):
        run.add(index, one, run.address)
    return run


# ---------------------------------------------------------------- parts of a run


def test_parts_of_a_run_keep_what_belongs_together(event):
    """By the places of their events, whatever is left out."""
    run = run_of(*(event(n, doubt=n == 2 or UNSET) for n in range(4)))
    rest = run.without({0, 2})
    assert (rest.indexes, rest.seqs, rest.ids, rest.payloads) == (
        [1, 3],
        [1, 3],
        ["t-1", "t-3"],
        [b"1", b"3"],
    )
    assert run.without({9}) is run
    assert run.within({2, 9}).indexes == [2]
    assert [one.indexes for one in run.apart()] == [[0], [1], [2], [3]]
    assert run.doubtful == {2}


def test_plain_events_go_as_columns(event):
    """No item is made for them."""
    arrivals = run_of(event(1), event(2)).arrivals("failover_x", NOW_MS)
    assert arrivals.is_plain
    assert all(item is PLAIN for item in arrivals.items)
    assert (arrivals.source, arrivals.seqs) == ("failover_x", [1, 2])


def test_rich_events_are_the_pushes_they_were(event):
    """Beside plain ones: bytes, keys, headers, what is left of a life."""
    wrapped = b'{"payload_base64":"%b"}' % base64.b64encode(b"\x00\xff")
    end = NOW + timedelta(seconds=5)
    run = run_of(
        event(1),
        event(2, payload=Raw(wrapped)),
        event(3, key="k", headers={"a": "b"}, trace_id="t", expires_at=end),
        event(4, payload=Raw(b'{"payload_base64":"AA==","more":1}')),
    )
    assert run.payloads == [b"1", b"\x00\xff", b"3", b'{"payload_base64":"AA==","more":1}']
    plain, raw, full, alike = run.arrivals(None, NOW_MS + 2_000).items
    assert plain is PLAIN
    assert raw.payload == b"\x00\xff"
    assert (full.key, full.headers, full.trace_id, full.ttl_ms) == ("k", {"a": "b"}, "t", 3_000)
    assert type(alike.payload) is Raw
    [late] = run.within({2}).items(NOW_MS + 60_000)
    assert late.ttl_ms == 1


@pytest.mark.parametrize(
    ("events", "size", "count"),
    [(9, 99, 4), (3, 99, 3), (1, 99, 1), (9, 3, 3), (9, 1, 1), (9, 0, 1)],
    ids=["all", "events", "one", "bytes", "a byte", "none"],
)
def test_a_run_is_cut_to_the_appetite(event, events, size, count):
    """At its beginning, one event at the least: it could not go on otherwise."""
    head, rest = run_of(*map(event, range(4))).cut(Appetite(events, size, 1))
    assert head.indexes == list(range(count))
    assert (rest.indexes if rest else []) == list(range(count, 4))


# ---------------------------------------------------------------- portions

lengths = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), max_size=12)


@given(lengths, st.integers(1, 8), st.integers(1, 12), st.integers(1, 4))
def test_portions_take_everything_in_order(event, wanted, events, size, runs):
    """Of one shard, one run of a lane, within the appetite but for a single event; nothing is lost
    or overtakes another of its lane.
    """
    lanes = [lane(n, shard_id=n % 2) for n in range(4)]
    made, at = [], 0
    for number, count in sorted(wanted, key=lambda one: (one[0] % 2, one[0])):
        made.append(run_of(*map(event, range(at, at + count)), at=lanes[number], first=at))
        at += count
    waiting, taken = deque(made), []
    while waiting:
        some = portion(waiting, Appetite(events, size, runs))
        assert len({run.lane.lane_id for run in some}) == len(some) <= runs
        assert len({run.lane.shard_id for run in some}) == 1
        indexes = [index for run in some for index in run.indexes]
        payloads = [payload for run in some for payload in run.payloads]
        assert 0 < len(indexes) <= events
        assert sum(map(len, payloads)) <= size or len(indexes) == 1
        taken += indexes
    assert taken == list(range(at))


def test_a_portion_ends_at_the_next_shard(event):
    """A commit is one shard's."""
    waiting = deque([run_of(event(1), at=lane(1, 0)), run_of(event(2), at=lane(2, 1))])
    assert [run.lane.lane_id for run in portion(waiting, PLENTY)] == [1]
    assert [run.lane.lane_id for run in portion(waiting, PLENTY)] == [2]


def test_a_portion_has_one_run_of_a_lane(event):
    """The next one is looked at when this one is known: its ids may stand in both."""
    waiting = deque([run_of(event(1)), run_of(event(1)), run_of(event(2), at=lane(2))])
    assert len(portion(waiting, PLENTY)) == 1
    assert len(portion(waiting, PLENTY)) == 2
