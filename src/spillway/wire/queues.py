"""Queues and groups."""

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from spillway.wire.shapes import (
    DAY_MS,
    OnExhausted,
    Order,
    Reply,
    Request,
    SpanMs,
    Start,
    moment_of,
)


class QueueOptions(Request, omit_defaults=False):
    """The options of a queue; each is enforced."""

    partitions: Annotated[int, Meta(ge=1, le=1024)] = 1
    order: Order = "none"
    max_attempts: Annotated[int, Meta(ge=1, le=1000)] = 5
    on_exhausted: OnExhausted = "park"
    visibility_ms: Annotated[int, Meta(ge=10, le=12 * 3_600_000)] = 30_000
    backoff_base_ms: Annotated[int, Meta(ge=0, le=DAY_MS)] = 1_000
    backoff_cap_ms: Annotated[int, Meta(ge=0, le=DAY_MS)] = 300_000
    max_ack_holes: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    max_depth: Annotated[int, Meta(ge=0, lt=2**53)] = 0
    dedupe_window_ms: Annotated[int, Meta(ge=0, le=DAY_MS)] = 600_000
    dedupe_count: Annotated[int, Meta(ge=0, le=1_000_000)] = 100_000
    retention_ms: SpanMs = DAY_MS
    in_memory_queue_size: Annotated[int, Meta(ge=0, le=1_000_000)] = 5_000


class QueuePatch(Request):
    """The options to change; the others stay. `partitions` may only grow."""

    partitions: Annotated[int, Meta(ge=1, le=1024)] | UnsetType = UNSET
    order: Order | UnsetType = UNSET
    max_attempts: Annotated[int, Meta(ge=1, le=1000)] | UnsetType = UNSET
    on_exhausted: OnExhausted | UnsetType = UNSET
    visibility_ms: Annotated[int, Meta(ge=10, le=12 * 3_600_000)] | UnsetType = UNSET
    backoff_base_ms: Annotated[int, Meta(ge=0, le=DAY_MS)] | UnsetType = UNSET
    backoff_cap_ms: Annotated[int, Meta(ge=0, le=DAY_MS)] | UnsetType = UNSET
    max_ack_holes: Annotated[int, Meta(ge=1, le=1_000_000)] | UnsetType = UNSET
    max_depth: Annotated[int, Meta(ge=0, lt=2**53)] | UnsetType = UNSET
    dedupe_window_ms: Annotated[int, Meta(ge=0, le=DAY_MS)] | UnsetType = UNSET
    dedupe_count: Annotated[int, Meta(ge=0, le=1_000_000)] | UnsetType = UNSET
    retention_ms: SpanMs | UnsetType = UNSET
    in_memory_queue_size: Annotated[int, Meta(ge=0, le=1_000_000)] | UnsetType = UNSET


class GroupCounts(Reply):
    """Where the messages of a queue are, for one group.

    `depth = ready + deferred + leased + blocked` and
    `tail = settled + leased + ready + deferred + blocked + parked + dropped`.
    """

    group: str
    depth: int
    ready: int
    deferred: int
    leased: int
    blocked: int
    parked: int
    dropped: int
    settled: int
    ack_hole_ranges: int
    oldest_ready_at: str | None
    paused: bool


class QueueReply(Reply):
    """A queue: its options and its counts."""

    queue: str
    org: str
    created_at: str
    paused: bool
    options: QueueOptions
    lanes: int
    tail: int
    groups: list[GroupCounts]


class QueueListReply(Reply):
    """Queues in the order of their names; `next` continues the list."""

    queues: list[QueueReply]
    next: str | None = None


class GroupListReply(Reply):
    """The groups of a queue."""

    groups: list[GroupCounts]


class DeletedReply(Reply):
    """What was deleted."""

    deleted: str


class GroupOptions(Request):
    """Where a new group starts: `earliest`, `latest` or a time."""

    start: Start = "earliest"

    def __post_init__(self) -> None:
        moment_of(self.start)
