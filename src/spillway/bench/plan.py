"""What a load process is told (stdin) and what it found (stdout), both as JSON."""

from typing import Annotated

import msgspec

from spillway.bench.orders import (
    BATCH_MAX,
    BATCHES_MAX,
    PAYLOAD_BYTES_MIN,
    PRODUCERS_MAX,
)
from spillway.bench.samples import Spread

Count = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=3600)]


class PlanError(ValueError):
    """The plan contradicts itself."""


class Waiting(msgspec.Struct, frozen=True):
    """Batches that an earlier load pushed: their messages must come out."""

    batches: Count
    batch: Annotated[int, msgspec.Meta(ge=1, le=BATCH_MAX)] = 1
    first_batch: Annotated[int, msgspec.Meta(ge=0, lt=BATCHES_MAX)] = 0

    @property
    def messages(self) -> int:
        return self.batches * self.batch


class Push(msgspec.Struct, frozen=True, array_like=True):
    """A push of one batch, in seconds of the machine's monotonic clock."""

    due_at: float
    answered_at: float
    buffered: bool


class LoadPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Producers push until `messages` or `seconds` is reached, consumers until all of it is acked.

    With `rate` the pushes follow a fixed schedule (open loop) instead of each other. Where
    `buffered` is set, that answer is as good as `stored`; with `diary` each push is reported.
    """

    host: str
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]
    queue: str
    group: str = "default"
    seed: Annotated[str, msgspec.Meta(min_length=1, max_length=9)] = "bench"
    producers: Annotated[int, msgspec.Meta(ge=0, le=PRODUCERS_MAX)] = 0
    consumers: Annotated[int, msgspec.Meta(ge=0, le=PRODUCERS_MAX)] = 0
    batch: Annotated[int, msgspec.Meta(ge=1, le=BATCH_MAX)] = 1
    first_batch: Annotated[int, msgspec.Meta(ge=0, lt=BATCHES_MAX)] = 0
    payload_bytes: Annotated[int, msgspec.Meta(ge=PAYLOAD_BYTES_MIN, le=1_000_000)] = 100
    transaction_ids: bool = True
    messages: Count = 0
    seconds: Seconds = 0.0
    warmup_s: Seconds = 1.0
    seconds_max: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 120.0
    stall_s: Annotated[float, msgspec.Meta(gt=0, le=600)] = 10.0
    rate: Annotated[float, msgspec.Meta(ge=0, le=100_000)] = 0.0
    buffered: bool = False
    diary: bool = False
    waiting: tuple[Waiting, ...] = ()
    lease_max: Annotated[int, msgspec.Meta(ge=1, le=BATCH_MAX)] = 100
    lease_wait_ms: Annotated[int, msgspec.Meta(ge=0, le=60_000)] = 0
    own_partitions: bool = False
    in_order: bool = True
    verify: bool = True

    def __post_init__(self) -> None:
        if self.producers + self.consumers == 0:
            raise PlanError("a load needs producers or consumers")
        if self.producers and not (self.messages or self.seconds):
            raise PlanError("producers need `messages` or `seconds`, or they never end")
        if self.consumers and not (self.producers or self.waiting):
            raise PlanError("consumers alone need `waiting`: which messages there are")
        if self.rate and not self.producers:
            raise PlanError("a rate needs producers")

    @property
    def batches(self) -> int:
        """How many batches the producers push at most (the last one may be more than asked for)."""
        left = BATCHES_MAX - self.first_batch
        return min(-(-self.messages // self.batch), left) if self.messages else left


class LoadFindings(msgspec.Struct, frozen=True, kw_only=True):
    """What the load process saw. Latencies of an open loop count from the intended send time."""

    stored: int
    buffered: int
    duplicates_refused: int
    acked: int
    seconds: float
    push: Spread | None
    settle: Spread | None
    delivery: Spread | None
    lost: int | None
    duplicated: int | None
    out_of_order: int | None
    complete: bool
    errors: dict[str, int]
    cpu_s: float
    late_ms_max: float | None = None
    diary: list[Push] = []

    @property
    def accepted(self) -> int:
        return self.stored + self.buffered
