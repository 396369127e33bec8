"""Appending: versions, record batches and their columns, repeats, room."""

from datetime import UTC, datetime
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.broker.append import Arrivals, append, deliver_ms
from spillway.broker.intake import _is_plain
from spillway.core import commands as cmd
from spillway.core.lane import DedupeWindow
from spillway.wire import PushItem, PushResult

NOW_MS = 1_700_000_000_000


def item(payload: bytes = b"{}", *, raw: bool = False, **more) -> PushItem:
    """A message; `raw` ones are bytes, not JSON."""
    return PushItem(queue="orders", payload=payload if raw else msgspec.Raw(payload), **more)


def push(lone, entry, *items: PushItem) -> list[PushResult]:
    """Append as the intake does: one request for one lane."""
    results: list[PushResult | None] = [None] * len(items)
    arrivals = Arrivals.at(entry.facts)
    for index, each in enumerate(items):
        given_id = each.transaction_id
        arrivals.add(index, each, bytes(each.payload), given_id or f"auto-{index}")
        arrivals.is_plain = arrivals.is_plain and _is_plain(each)
        arrivals.has_given_ids = arrivals.has_given_ids or given_id is not None
    append(lone.shard, entry, arrivals, results, lone.clock.now_ms())
    assert None not in results
    return results


def outcomes(results: list[PushResult]) -> list[tuple[str, int | None]]:
    """(status or error code, version)"""
    return [(r.error.code if r.error else r.status, r.version) for r in results]


def shapes(lone) -> list[tuple[int, int]]:
    """(first version, count) of every batch that waits for its commit."""
    return [(b.base_version, b.count) for b in lone.draft.commit.batches]


@pytest.fixture
def entry(lone):
    """A lane that knows that nothing was pushed to it lately."""
    lane = lone.lane()
    lane.lane.dedupe = DedupeWindow()
    return lane


# ---------------------------------------------------------------- versions and batches


def test_versions_are_dense_and_in_order(lone, entry):
    """Two requests in one commit: one batch, versions one after another."""
    first = push(lone, entry, item(b"1"), item(b"2"))
    second = push(lone, entry, item(b"3"))
    assert outcomes(first + second) == [("stored", 1), ("stored", 2), ("stored", 3)]
    assert [r.index for r in first] == [0, 1]
    assert shapes(lone) == [(1, 3)]
    assert lone.draft.commit.batches[0].payloads == [b"1", b"2", b"3"]
    assert (lone.draft.messages, lone.draft.payload_bytes, entry.lane.tail) == (3, 3, 3)
    assert lone.draft.counts == {(1, "produced"): 3}


def test_a_batch_ends_at_256_messages(lone, entry):
    """The 257th message begins the next batch, also when it comes with another request."""
    push(lone, entry, *[item()] * 255)
    push(lone, entry, *[item()] * 259)
    assert shapes(lone) == [(1, 256), (257, 256), (513, 2)]


def test_a_batch_ends_at_32_kib(lone, entry):
    """What does not fit any more goes to the next batch; a large message has one to itself."""
    kib = bytes(1024)
    push(lone, entry, *[item(kib * 16)] * 3, item(kib * 40), item(kib), item(kib))
    assert shapes(lone) == [(1, 2), (3, 2), (5, 2)]
    assert [b.payload_bytes // 1024 for b in lone.draft.commit.batches] == [32, 56, 2]


def test_a_message_is_at_hand_as_soon_as_it_is_decided(lone, entry):
    """The window has the batches of this process without a read."""
    push(lone, entry, *[item()] * 300)
    assert [entry.window.find(v).base_version for v in (1, 256, 257, 300)] == [1, 1, 257, 257]
    assert len(entry.window) == 300


def test_whoever_waits_is_told(lone, entry):
    """A push makes its lane a candidate once it is decided."""
    ready = []
    lone.shard.on_ready = ready.append
    push(lone, entry, item())
    assert ready == [entry]


SIZES = st.lists(
    st.lists(st.sampled_from([0, 1, 100, 8_000, 20_000, 40_000]), min_size=1, max_size=120),
    max_size=8,
)


@given(requests=SIZES)
def test_batches_are_dense_and_within_their_limits(make_lone, requests):
    """However it arrives: no gap, nothing lost, and only a batch's last message may overflow it."""
    lone = make_lone()
    entry = lone.lane()
    for sizes in requests:
        push(lone, entry, *[item(bytes(size)) for size in sizes])
    batches = lone.draft.commit.batches
    sizes = [len(payload) for batch in batches for payload in batch.payloads]
    assert sizes == [size for request in requests for size in request]
    assert all(b.base_version == a.last_version + 1 for a, b in pairwise(batches))
    assert all(0 < batch.count <= 256 for batch in batches)
    assert all(sum(map(len, batch.payloads[:-1])) < 32_768 for batch in batches)
    assert all(batch.payload_bytes == sum(map(len, batch.payloads)) for batch in batches)


# ---------------------------------------------------------------- columns


def test_optional_columns_begin_when_they_are_first_needed(lone, entry):
    """Messages before the first that has one are filled up with nothing, those after go on."""
    push(lone, entry, item(), item())
    plain = lone.draft.commit.batches[0]
    assert plain.is_plain
    push(lone, entry, item(key="k"), item(headers={"h": "1"}), item(b"\0", raw=True))
    push(lone, entry, item(trace_id="t"), item(ttl_ms=5), item(delay_ms=7))
    push(lone, entry, item())
    none = None
    assert plain.keys == [none, none, "k", none, none, none, none, none, none]
    assert plain.headers == [none, none, none, {"h": "1"}, none, none, none, none, none]
    assert plain.content_types == [0, 0, 0, 0, 1, 0, 0, 0, 0]
    assert plain.trace_ids == [none, none, none, none, none, "t", none, none, none]
    assert plain.expires_ms == [none, none, none, none, none, none, NOW_MS + 5, none, none]
    assert plain.deliver_ms == [none, none, none, none, none, none, none, NOW_MS + 7, none]
    assert shapes(lone) == [(1, 9)]


def test_the_next_batch_is_plain_again(lone, entry):
    """A column costs nothing in batches that do not use it."""
    push(lone, entry, item(key="k"), *[item()] * 256)
    assert [batch.is_plain for batch in lone.draft.commit.batches] == [False, True]


def test_times_are_put_on_the_schedule(lone, entry):
    """What is due later waits, what is over is dropped, and the lane rings at the earliest."""
    alarms = []
    lone.shard.on_alarm = lambda _, at_ms: alarms.append(at_ms - NOW_MS)
    past = datetime.fromtimestamp(NOW_MS / 1000 - 5, UTC)
    push(lone, entry, item(delay_ms=900), item(ttl_ms=300), item(deliver_at=past), item(delay_ms=0))
    schedule = entry.lane.schedule
    assert list(schedule.split(1, 4, NOW_MS)) == [(1, 1, NOW_MS + 900), (2, 4, 0)]
    assert (schedule.next_expiry_ms(), alarms) == (NOW_MS + 300, [300])


@pytest.mark.parametrize(
    ("moment", "ms"),
    [
        (datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC), 1_700_000_000_123),
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(1, 1, 1, tzinfo=UTC), 0),
    ],
)
def test_times_before_1970_are_1970(moment, ms):
    """Whatever lies in the past is due at once."""
    assert deliver_ms(item(deliver_at=moment), NOW_MS) == ms


# ---------------------------------------------------------------- repeats


def test_a_repeat_is_stored_once(lone, entry):
    """The same id and payload again: the first version, whether it is in the log yet or not."""
    push(lone, entry, item(b"1", transaction_id="a"))
    again = push(lone, entry, item(b"1", transaction_id="a"), item(b"2", transaction_id="b"))
    assert outcomes(again) == [("duplicate", 1), ("stored", 2)]
    assert lone.draft.counts == {(1, "produced"): 2, (1, "duplicates"): 1}


def test_a_repeat_within_a_request_is_stored_once(lone, entry):
    """Also behind other messages the version is that of the first copy."""
    ids = ["a", "b", "a", "c", "b"]
    results = push(lone, entry, *[item(i.encode(), transaction_id=i) for i in ids])
    assert outcomes(results) == [
        ("stored", 1),
        ("stored", 2),
        ("duplicate", 1),
        ("stored", 3),
        ("duplicate", 2),
    ]
    assert lone.draft.commit.batches[0].transaction_ids == ["a", "b", "c"]


def test_another_payload_under_a_known_id_is_a_conflict(lone, entry):
    """In the same request or a later one; the others are stored."""
    first = push(lone, entry, item(b"1", transaction_id="a"), item(b"2", transaction_id="a"))
    later = push(lone, entry, item(b"3", transaction_id="a"), item(b"4", transaction_id="b"))
    assert outcomes(first) == [("stored", 1), ("transaction_conflict", None)]
    assert outcomes(later) == [("transaction_conflict", None), ("stored", 2)]
    assert "'a' is version 1 " in later[0].error.message


def test_ids_are_known_as_long_as_the_window(lone):
    """After dedupe_window_ms the same id is a new message."""
    entry = lone.lane(dedupe_window_ms=1_000)
    entry.lane.dedupe = DedupeWindow()
    twin = item(b"1", transaction_id="a")
    assert outcomes(push(lone, entry, twin)) == [("stored", 1)]
    lone.clock.ms += 999
    assert outcomes(push(lone, entry, twin)) == [("duplicate", 1)]
    lone.clock.ms += 1
    assert outcomes(push(lone, entry, twin)) == [("stored", 2)]


def test_ids_that_the_broker_gave_are_not_remembered(lone, entry):
    """Nobody can repeat an id that he was never told: the window stays small."""
    push(lone, entry, item(), item())
    assert len(entry.lane.dedupe) == 0
    push(lone, entry, item(transaction_id="a"))
    assert entry.lane.dedupe.find("a")[0] == 3


# ---------------------------------------------------------------- room


def test_a_full_lane_refuses_the_rest(lone):
    """What fits is stored, in order; what does not is told so."""
    entry = lone.lane(max_depth=3)
    push(lone, entry, item(), item())
    results = push(lone, entry, item(), item(), item())
    assert outcomes(results) == [("stored", 3), ("queue_full", None), ("queue_full", None)]
    assert lone.draft.counts == {(1, "produced"): 3, (1, "refused"): 2}
    assert shapes(lone) == [(1, 3)]


def test_settled_messages_make_room(lone):
    """The depth of a lane is what some group has not settled."""
    entry = lone.lane(max_depth=2)
    push(lone, entry, item(), item())
    lone.shard.handle(entry, "g", cmd.CreateGroup())
    grant = lone.shard.handle(entry, "g", cmd.LeaseMessages(1))
    assert outcomes(push(lone, entry, item())) == [("queue_full", None)]
    lone.shard.handle(entry, "g", cmd.Ack(grant.lease_id, ((1, 1),)))
    assert outcomes(push(lone, entry, item(), item())) == [("stored", 3), ("queue_full", None)]


def test_done_messages_behind_one_that_waits_make_room_too(lone):
    """A retry or a block at the head is one message, not the whole stretch behind it."""
    entry = lone.lane(max_depth=2)
    lone.shard.handle(entry, "g", cmd.CreateGroup())
    push(lone, entry, item())
    lone.shard.handle(entry, "g", cmd.LeaseMessages(1))
    for version in range(2, 9):
        assert outcomes(push(lone, entry, item())) == [("stored", version)]
        grant = lone.shard.handle(entry, "g", cmd.LeaseMessages(1))
        lone.shard.handle(entry, "g", cmd.Ack(grant.lease_id, ((version, version),)))
    assert outcomes(push(lone, entry, item(), item())) == [("stored", 9), ("queue_full", None)]


def test_the_group_that_is_furthest_behind_says_how_deep_a_lane_is(lone):
    """One that has not begun on it has everything before it."""
    entry = lone.lane(max_depth=3)
    push(lone, entry, item(), item())
    for group in ("fast", "slow"):
        lone.shard.handle(entry, group, cmd.CreateGroup())
    grant = lone.shard.handle(entry, "fast", cmd.LeaseMessages(2))
    lone.shard.handle(entry, "fast", cmd.Ack(grant.lease_id, ((1, 2),)))
    assert entry.depth() == 2
    grant = lone.shard.handle(entry, "slow", cmd.LeaseMessages(2))
    lone.shard.handle(entry, "slow", cmd.Ack(grant.lease_id, ((2, 2),)))
    assert entry.depth() == 1
    entry.facts.queue.groups["new"] = None
    assert entry.depth() == 2


def test_a_lane_that_lost_its_groups_has_the_room_of_what_was_pruned(lone):
    """A lane whose messages are gone is not full, though no group is there to say so."""
    entry = lone.lane(max_depth=2, tail=1_000, pruned_to=999)
    assert outcomes(push(lone, entry, item(), item())) == [("stored", 1_001), ("queue_full", None)]


def test_a_repeat_of_a_refused_message_is_refused_too(lone):
    """A repeat may not be called a duplicate of a version that was never given."""
    entry = lone.lane(max_depth=1)
    entry.lane.dedupe = DedupeWindow()
    ids = ["a", "b", "a", "b"]
    results = push(lone, entry, *[item(transaction_id=i) for i in ids])
    assert outcomes(results) == [
        ("stored", 1),
        ("queue_full", None),
        ("duplicate", 1),
        ("queue_full", None),
    ]
    assert entry.lane.dedupe.find("b") is None
