"""Health, topology and the audit."""

from typing import Literal

from spillway.wire.shapes import Reply


class SpoolHealth(Reply):
    """What waits in files, and why; `replay_rate` is events a second.

    `full`: by its bytes or its age it takes no more; what would go to files is refused.
    """

    pending: int
    bytes: int
    oldest_s: float
    failed: int
    held: bool
    breaker: Literal["closed", "open"]
    disk_free_bytes: int
    replay_rate: float
    owner_unreachable: bool = False
    """The broker stands by, and the owner of the shards takes none of its events."""
    full: bool = False


class HealthReply(Reply):
    """How the broker is. `ready`: it takes pushes, if need be into files, and those have room."""

    status: Literal["ok", "degraded"]
    ready: bool
    database: Literal["connected", "disconnected"]
    version: str
    uptime_s: float
    shards_owned: int
    shards_total: int
    spool: SpoolHealth


class ShardReply(Reply):
    """Who writes a shard."""

    shard: int
    epoch: int
    owner: str | None
    owned_here: bool
    lease_until: str | None
    commit_seq: int


class BrokerReply(Reply):
    """A broker that was seen."""

    broker: str
    address: str
    started_at: str
    seen_at: str
    alive: bool


class TopologyReply(Reply):
    """Shards and brokers."""

    num_shards: int
    shards: list[ShardReply]
    brokers: list[BrokerReply]


class AuditDifference(Reply):
    """A place where the conservation law does not hold."""

    queue: str
    partition: str
    group: str
    what: str
    expected: int
    found: int


class AuditReply(Reply):
    """The conservation law, checked from the log itself.

    `totals`: the states of the messages, for each group that reads them. `ungrouped` of the
    `messages` are in queues that no group reads, and so in no total.
    """

    balanced: bool
    lanes: int
    groups: int
    messages: int
    totals: dict[str, int]
    differences: list[AuditDifference]
    ungrouped: int = 0
