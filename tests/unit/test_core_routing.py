"""Routing: stable for ever, even, independent from level to level, and calm when it grows."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.core.routing import hash64, jump, partition_name, partition_of, shard_of

KEYS = [f"order-{i}" for i in range(20_000)]


@pytest.mark.parametrize(
    ("level", "value", "hashed"),
    [
        ("partition", "", 17118910978062401700),
        ("partition", "order-1", 13667553610381864451),
        ("enqueue_shard", "order-1", 1059661615410639241),
        ("shard", "1\0Default", 16656508138537952354),
        ("partition", "Grüße 漢字 🚰", 3733988520723953815),
    ],
)
def test_the_hash_never_changes(level, value, hashed):
    """A stored message is found by these very numbers, whatever the release."""
    assert hash64(level, value) == hashed


@pytest.mark.parametrize(
    ("hashed", "buckets", "bucket"),
    [(1, 1, 0), (42, 57, 43), (0xDEAD10CC, 1, 0), (0xDEAD10CC, 666, 361), (256, 1024, 520)],
)
def test_the_jump_is_the_published_one(hashed, buckets, bucket):
    """Other languages have this function: their vectors are ours."""
    assert jump(hashed, buckets) == bucket


def test_keys_stay_where_they_were():
    """Partitions and shards of known names, from one release to the next."""
    assert [partition_of(key, 7) for key in KEYS[:6]] == ["p4", "p2", "p2", "p1", "p3", "Default"]
    assert [shard_of(1, "Default", 4), shard_of(1, "p1", 4), shard_of(7, "p3", 1024)] == [2, 3, 81]


def test_the_first_partition_is_the_plain_queue():
    """A queue that gets partitions keeps its lane as the first of them."""
    assert [partition_name(i) for i in range(3)] == ["Default", "p1", "p2"]
    assert {partition_of(key, 1) for key in KEYS[:100]} == {"Default"}


@pytest.mark.parametrize("partitions", [2, 7, 64, 100])
def test_every_partition_gets_its_share(partitions):
    """No partition is empty, and none is much fuller than the others."""
    counts = Counter(partition_of(key, partitions) for key in KEYS)
    share = len(KEYS) / partitions
    assert set(counts) == {partition_name(i) for i in range(partitions)}
    assert all(0.65 * share < count < 1.35 * share for count in counts.values())


@pytest.mark.parametrize("partitions", [1, 2, 7, 16, 99])
def test_growing_moves_few_keys_and_those_to_the_new_partition(partitions):
    """From N to N + 1 partitions about one key in N + 1 moves, and none between old ones."""
    before = [partition_of(key, partitions) for key in KEYS]
    after = [partition_of(key, partitions + 1) for key in KEYS]
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    share = len(KEYS) / (partitions + 1)
    assert set(moved) == {partition_name(partitions)}
    assert 0.65 * share < len(moved) < 1.35 * share


def test_levels_are_independent():
    """The keys of one partition spread over all enqueue shards, as evenly as all keys do."""
    keys = [key for key in KEYS if partition_of(key, 8) == "p3"]
    counts = Counter(hash64("enqueue_shard", key) % 8 for key in keys)
    share = len(keys) / 8
    assert set(counts) == set(range(8))
    assert all(0.75 * share < count < 1.25 * share for count in counts.values())


def test_the_lanes_of_a_queue_spread_over_all_shards():
    """Neither one queue's partitions nor many queues' first lanes gather on some shards."""
    of_one_queue = Counter(shard_of(1, partition_name(i), 4) for i in range(1_000))
    first_lanes = Counter(shard_of(queue_id, "Default", 4) for queue_id in range(1_000))
    for counts in (of_one_queue, first_lanes):
        assert set(counts) == {0, 1, 2, 3}
        assert min(counts.values()) > 200


def test_queue_and_partition_do_not_run_together():
    """Queue 1 with partition 11 is not queue 11 with partition 1."""
    assert hash64("shard", "1\x0011") != hash64("shard", "11\x001")
    assert [shard_of(1, "11", 1024), shard_of(11, "1", 1024)] == [231, 877]


@given(st.integers(0, 2**64 - 1), st.integers(1, 2_000))
def test_a_jump_lands_and_only_ever_goes_up(hashed, buckets):
    """A bucket is in range, and one more bucket leaves a value where it is or makes it the new."""
    bucket, grown = jump(hashed, buckets), jump(hashed, buckets + 1)
    assert 0 <= bucket < buckets
    assert grown in {bucket, buckets}
