"""Push, lease and settle."""

from typing import Annotated, Literal

from msgspec import Meta, Raw, field

from spillway.wire.shapes import (
    ErrorDetail,
    Name,
    PartitionName,
    PushStatus,
    Reply,
    Request,
    SettleStatus,
    SpanMs,
    Timestamp,
)


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
    """Messages to store, for one or many queues. `qos` 1 is answered when they are durable."""

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


class PushReply(Reply, omit_defaults=True):
    """One result an item, in the request's order. `durable` false: not on disk yet (`qos` 0)."""

    results: list[PushResult]
    durable: bool = True


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
    """Give a message back, or up (`park`); or back untouched: `release` spends no attempt."""

    receipt: str
    delay_ms: SpanMs | None = None
    error: str | None = None
    park: bool = False
    release: bool = False

    def __post_init__(self) -> None:
        if self.release and (self.park or self.delay_ms is not None):
            raise ValueError("release excludes park and delay_ms")


class Extend(Request):
    """Hold a message for `visibility_ms` from now."""

    receipt: str
    visibility_ms: Annotated[int, Meta(ge=10, le=12 * 3_600_000)]


class SettleRequest(Request):
    """Ack, nack and extend, and ask for more, in one round trip."""

    ack: list[str] = field(default_factory=list)
    nack: list[Nack] = field(default_factory=list)
    extend: list[Extend] = field(default_factory=list)
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
