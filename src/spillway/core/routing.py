"""Where a message goes: key → partition → lane → shard.

Each level hashes with its own prefix, so that the levels are independent: with one hash for all,
the keys of a partition would reach only some of its enqueue shards. The first eight bytes of a
SHA-256 are well mixed and every language has them, PostgreSQL and the JVM included. Partitions use
a jump hash: growing from N to N+1 moves one key in N+1, not nearly all of them.
"""

from hashlib import sha256

DEFAULT_PARTITION = "Default"
ROUTING_VERSION = 1

_MASK = (1 << 64) - 1


def hash64(level: str, value: str) -> int:
    """The routing hash of a value at a level (`partition`, `enqueue_shard`, `shard`)."""
    digest = sha256(f"spillway.{level}.{ROUTING_VERSION}\0{value}".encode()).digest()
    return int.from_bytes(digest[:8], "big")


def jump(hashed: int, buckets: int) -> int:
    """Lamping and Veach's jump consistent hash: a bucket in [0, buckets)."""
    bucket, at = -1, 0
    while at < buckets:
        bucket = at
        hashed = (hashed * 2862933555777941757 + 1) & _MASK
        at = int((bucket + 1) * ((1 << 31) / ((hashed >> 33) + 1)))
    return bucket


def partition_name(index: int) -> str:
    """The name of a hashed partition: index 0 is the plain queue itself."""
    return DEFAULT_PARTITION if index == 0 else f"p{index}"


def partition_of(value: str, partitions: int) -> str:
    """The partition of a key (or, where there is none, of a transaction id)."""
    if partitions == 1:
        return DEFAULT_PARTITION
    return partition_name(jump(hash64("partition", value), partitions))


def shard_of(queue_id: int, partition: str, num_shards: int) -> int:
    """The shard that owns the lanes of a partition."""
    return hash64("shard", f"{queue_id}\0{partition}") % num_shards
