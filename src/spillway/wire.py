"""The HTTP shapes: what `api` decodes and `client` encodes, in one place so that they cannot drift.

Requests are strict (an unknown field is an error); replies may gain fields, and a client ignores
those it does not know. Times are RFC 3339 strings; `…_ms` are integers of milliseconds.
"""

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, convert

# Python's `$` also matches before a last newline: hence the look-ahead.
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$(?!\n)"
DAY_MS = 86_400_000
SPAN_MS_MAX = 366 * DAY_MS

Name = Annotated[str, Meta(pattern=NAME_PATTERN)]
PartitionName = Annotated[str, Meta(min_length=1, max_length=256)]
Timestamp = Annotated[datetime, Meta(tz=True)]
SpanMs = Annotated[int, Meta(ge=0, le=SPAN_MS_MAX)]
Reason = Annotated[str, Meta(max_length=1000)]
Version = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Start = Annotated[str, Meta(description="`earliest`, `latest` or an RFC 3339 time")]

Order = Literal["none", "key", "partition"]
OnExhausted = Literal["park", "block", "drop"]
PushStatus = Literal["stored", "duplicate", "buffered", "failed"]
SettleStatus = Literal["acked", "nacked", "parked", "extended", "refused"]


def moment_of(start: str) -> datetime | None:
    """The time that a start names; None for `earliest` and `latest`. Raises a ValidationError.

    msgspec cannot tell a word from a time in a union of both, so a start travels as a string.
    """
    return None if start in ("earliest", "latest") else convert(start, Timestamp)


class Request(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Base of everything a caller sends."""


class Reply(Struct, kw_only=True):
    """Base of everything the broker answers."""


# ---------------------------------------------------------------- errors


class ErrorDetail(Reply):
    """What went wrong, and the next step."""

    code: str
    message: str
    hint: str


class ErrorReply(Reply):
    """The body of every answer that is not 2xx."""

    error: ErrorDetail


# ---------------------------------------------------------------- queues


class QueueOptions(Request):
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


# ---------------------------------------------------------------- push


class PushItem(Request):
    """One message. `payload` is any JSON value; bytes are {"payload_base64": "…"}."""

    queue: str
    payload: Raw
    partition: str | None = None
    key: str | None = None
    transaction_id: str | None = None
    headers: dict[str, str] | None = None
    priority: int = 2
    delay_ms: int | None = None
    deliver_at: Timestamp | None = None
    ttl_ms: int | None = None
    trace_id: str | None = None


class PushRequest(Request):
    """Messages to store, for one or many queues. `qos` 1 answers when they are durable."""

    items: list[PushItem]
    qos: Literal[0, 1] = 1


class PushResult(Reply, omit_defaults=True):
    """What became of one item."""

    index: int
    status: PushStatus
    partition: str | None = None
    version: int | None = None
    transaction_id: str | None = None
    error: ErrorDetail | None = None


class PushReply(Reply):
    """One result an item, in the order of the request."""

    results: list[PushResult]


# ---------------------------------------------------------------- lease and settle


class Consumer(Request):
    """Who leases: shown beside the lease while it lives."""

    name: Annotated[str, Meta(max_length=256)] | None = None
    host: Annotated[str, Meta(max_length=256)] | None = None
    flow: Annotated[str, Meta(max_length=256)] | None = None
    flow_type: Annotated[str, Meta(max_length=256)] | None = None
    action: Annotated[str, Meta(max_length=256)] | None = None
    action_class: Annotated[str, Meta(max_length=256)] | None = None
    plugin: Annotated[str, Meta(max_length=256)] | None = None


class LeaseRequest(Request):
    """Ask for messages; `wait_ms` waits for the first one."""

    group: Name = "default"
    max: Annotated[int, Meta(ge=1, le=10_000)] = 1
    wait_ms: Annotated[int, Meta(ge=0, le=60_000)] = 0
    visibility_ms: Annotated[int, Meta(ge=10, le=12 * 3_600_000)] | None = None
    partitions: Annotated[list[PartitionName], Meta(min_length=1, max_length=1024)] | None = None
    consumer: Consumer | None = None


class SettleLease(LeaseRequest, kw_only=True):
    """A lease in the same round trip as a settle."""

    queue: Name


class Message(Reply):
    """A leased message. Settle it with its receipt."""

    receipt: str
    queue: str
    partition: str
    version: int
    key: str | None
    payload: Raw
    headers: dict[str, str] | None
    attempt: int
    transaction_id: str
    enqueued_at: str
    priority: int
    trace_id: str | None = None


class LeaseReply(Reply, omit_defaults=True):
    """Leased messages; `reason` says why there is none."""

    messages: list[Message]
    reason: str | None = None


class Nack(Request):
    """Give a message back, or up (`park`)."""

    receipt: str
    delay_ms: SpanMs | None = None
    error: str | None = None
    park: bool = False


class Extend(Request):
    """Hold a message for `visibility_ms` from now."""

    receipt: str
    visibility_ms: Annotated[int, Meta(ge=10, le=12 * 3_600_000)]


class SettleRequest(Request):
    """Ack, nack and extend, and ask for more, in one round trip."""

    ack: list[str] = []
    nack: list[Nack] = []
    extend: list[Extend] = []
    lease: SettleLease | None = None


class SettleResult(Reply, omit_defaults=True):
    """What became of one receipt."""

    receipt: str
    status: SettleStatus
    error: ErrorDetail | None = None


class SettleReply(Reply, omit_defaults=True):
    """One result a receipt, in the order ack, nack, extend."""

    results: list[SettleResult]
    messages: list[Message] | None = None
    reason: str | None = None


# ---------------------------------------------------------------- browse, story, dead letters


class BrowsedMessage(Reply):
    """A message seen without leasing it; `state` is for the asked group."""

    partition: str
    version: int
    key: str | None
    payload: Raw
    headers: dict[str, str] | None
    transaction_id: str
    enqueued_at: str
    priority: int
    deliver_at: str | None
    expires_at: str | None
    state: str
    attempts: int


class BrowseReply(Reply):
    """A page of messages in the order of (partition, version); `next` continues it."""

    messages: list[BrowsedMessage]
    next: str | None = None


class StoryEvent(Reply):
    """One control event that touched the message."""

    seq: int
    at: str
    group: str
    event: str
    detail: dict[str, Any]


class StoryReply(Reply):
    """The message and everything that happened to it (as far back as the control log reaches)."""

    message: BrowsedMessage
    story: list[StoryEvent]


class DeadLetter(Reply):
    """A message that was given up on."""

    id: int
    group: str
    partition: str
    version: int
    key: str | None
    payload: Raw
    headers: dict[str, str] | None
    transaction_id: str
    attempts: int
    error: str | None
    reason: str
    enqueued_at: str
    dead_at: str


class DeadReply(Reply):
    """A page of dead letters, oldest first; `next` continues it."""

    dead: list[DeadLetter]
    total: int
    next: int | None = None


class BlockedMessage(Reply):
    """A message that holds its line until an operator decides."""

    group: str
    partition: str
    version: int
    attempts: int
    error: str | None
    blocked_at: str


class BlockedReply(Reply):
    """The blocked messages of a queue."""

    blocked: list[BlockedMessage]


# ---------------------------------------------------------------- operator verbs


class MessageName(Request):
    """A message by its address."""

    partition: str
    version: Version


class Selection(Request):
    """Which messages a verb means: names, a filter, or all. Filters are joined by AND."""

    group: Name = "default"
    messages: Annotated[list[MessageName], Meta(max_length=10_000)] | None = None
    partition: str | None = None
    key: str | None = None
    error_contains: str | None = None
    before: Timestamp | None = None
    all: bool = False
    limit: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    dry_run: bool = False
    reason: Reason | None = None


class RedriveRequest(Selection):
    """Dead letters back to their lanes, with fresh attempts."""

    ids: Annotated[list[int], Meta(max_length=10_000)] | None = None


class UnblockRequest(Selection):
    """What to do with blocked messages: retry with fresh attempts, skip, or park."""

    action: Literal["retry", "skip", "park"] = "retry"


class ParkRequest(Selection):
    """Give up on messages by hand."""


class PurgeRequest(Selection, kw_only=True):
    """Settle what waits (`waiting`) or delete dead letters (`dead`)."""

    what: Literal["waiting", "dead"]
    ids: Annotated[list[int], Meta(max_length=10_000)] | None = None


class SeekRequest(Request, kw_only=True):
    """Move a group: `earliest`, `latest`, a time, or a version of one partition."""

    group: Name = "default"
    to: Start | Version
    partition: str | None = None
    reason: Reason | None = None

    def __post_init__(self) -> None:
        if isinstance(self.to, str):
            moment_of(self.to)


class PauseRequest(Request):
    """Stop (or, to /resume, start again) leasing from a queue, or for one group of it."""

    group: Name | None = None
    reason: Reason | None = None


class VerbReply(Reply):
    """What an operator verb did (or would do, with `dry_run`)."""

    verb: str
    affected: int
    dry_run: bool = False
    remaining: int = 0


# ---------------------------------------------------------------- health and topology


class HealthReply(Reply):
    """How the broker is."""

    status: Literal["ok", "degraded"]
    database: Literal["connected", "disconnected"]
    version: str
    uptime_s: float
    shards_owned: int
    shards_total: int


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
    """The conservation law, checked from the log itself."""

    balanced: bool
    lanes: int
    groups: int
    messages: int
    totals: dict[str, int]
    differences: list[AuditDifference]
