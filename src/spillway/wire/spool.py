"""The spool: what waits in files, what was set aside, and what an operator may do about it."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, UnsetType, field

from spillway.wire.shapes import (
    ErrorDetail,
    Name,
    PartitionName,
    Reason,
    Reply,
    Request,
    Text,
    Timestamp,
)
from spillway.wire.verbs import VerbReply

SpoolStream = Literal["failover", "qos0"]
SpoolPlace = Literal["waiting", "failed"]
SpoolFileState = Literal["open", "waiting", "failed"]
SpoolFileName = Annotated[str, Meta(min_length=1, max_length=128)]
SpoolLine = Annotated[int, Meta(ge=1, le=2**31 - 1)]
TransactionId = Annotated[Text, Meta(min_length=1)]

# ---------------------------------------------------------------- the whole of it


class SpoolHoldRequest(Request):
    """Begin (or, to /release, end) to route pushes to files on purpose."""

    reason: Reason | None = None


class SpoolHold(Reply):
    """Somebody routes pushes to files on purpose."""

    actor: str
    reason: str | None
    since: str | None


class SpoolQueue(Reply):
    """How many events of a queue wait."""

    org: str
    queue: str
    events: int


class SpoolLane(Reply):
    """A lane that the replay passed over, and why."""

    org: str
    queue: str
    partition: str
    code: str
    message: str
    hint: str


class SpoolStuck(Reply):
    """A file that the replay passed over for what is wrong with the disk."""

    file: str
    code: str
    message: str
    hint: str


class SpoolOwner(Reply):
    """This broker stands by: its events go to the owner of the shards, if there is no trouble."""

    address: str | None
    trouble: ErrorDetail | None = None


class SpoolReply(Reply):
    """What waits in files, since when, and what stands in its way.

    While it is `counting` what earlier runs left, a file of theirs counts as one event.
    """

    folder: str
    pending: int
    counting: bool
    unwritten: int
    bytes: int
    bytes_max: int
    oldest_s: float
    age_max_s: float
    disk_free: int
    files: int
    failed: int
    lost: int
    accepted: int
    refused: int
    replayed: int
    revived: int
    discarded: int
    rate: float
    database: Literal["connected", "disconnected"]
    breaker: Literal["closed", "open"]
    hold: SpoolHold | None
    queues: list[SpoolQueue]
    held: list[SpoolLane]
    foreign: list[str]
    stuck: list[SpoolStuck] = field(default_factory=list)
    queues_more: int = 0
    """How many more queues than are shown here have events that wait."""
    owner: SpoolOwner | None = None
    """Only where this broker stands by."""


# ---------------------------------------------------------------- from broker to broker


class SpoolRefusal(Reply):
    """An event that the log will not have, by its place in the request."""

    at: int
    error: ErrorDetail


class SpoolTaken(Reply):
    """What became of events that another broker handed over, by their place in the request.

    What is neither `stored` nor `refused` is left: it is behind something that was refused, its
    lane is `held`, or there was no time.
    """

    stored: list[int]
    refused: list[SpoolRefusal]
    held: list[SpoolLane]


# ---------------------------------------------------------------- files and their events


class SpoolFile(Reply):
    """A buffer file. Of its `events`, so many are `left`: neither in the log nor thrown away."""

    file: str
    stream: SpoolStream
    state: SpoolFileState
    events: int
    left: int
    bytes: int
    oldest_at: str


class SpoolFilesReply(Reply, omit_defaults=True):
    """A page of files, oldest first; `next` continues it."""

    files: list[SpoolFile]
    next: str | None = None


class SpoolEvent(Reply, omit_defaults=True):
    """An event at its line. `error`: why it failed; `damaged`: the text of a broken line."""

    line: int
    org: str | None = None
    queue: str | None = None
    partition: str | None = None
    key: str | None = None
    payload: Raw | UnsetType = UNSET
    headers: dict[str, str] | None = None
    transaction_id: str | None = None
    trace_id: str | None = None
    priority: int | None = None
    deliver_at: str | None = None
    expires_at: str | None = None
    accepted_at: str | None = None
    seq: int | None = None
    done: bool = False
    error: ErrorDetail | None = None
    failed_at: str | None = None
    damaged: str | None = None


class SpoolEventsReply(Reply, omit_defaults=True):
    """A page of the events of a file; `next` is the line that continues it."""

    file: str
    state: SpoolFileState
    events: list[SpoolEvent]
    next: int | None = None


class SpoolVerifyRequest(Request):
    """Which file to check; all of them where none is named."""

    file: SpoolFileName | None = None


class SpoolFileCheck(Reply):
    """What a check found in a file; `problems` are the first of them, with their lines."""

    file: str
    state: SpoolFileState
    events: int
    damaged: int
    out_of_order: int
    problems: list[str]


class SpoolVerifyReply(Reply):
    """Whether every line is as it was written, and in its order."""

    sound: bool
    files: list[SpoolFileCheck]


# ---------------------------------------------------------------- repairs


class SpoolMended(Request):
    """Fields of an event that get another value; null empties one that may be empty."""

    org: Name | UnsetType = UNSET
    queue: Name | UnsetType = UNSET
    partition: PartitionName | UnsetType | None = UNSET
    key: Text | UnsetType | None = UNSET
    payload: Raw | UnsetType = UNSET
    headers: dict[str, str] | UnsetType | None = UNSET
    transaction_id: TransactionId | UnsetType = UNSET
    trace_id: Text | UnsetType | None = UNSET
    priority: Annotated[int, Meta(ge=1, le=4)] | UnsetType = UNSET
    deliver_at: Timestamp | UnsetType | None = UNSET
    expires_at: Timestamp | UnsetType | None = UNSET


class SpoolRepairRequest(Request, kw_only=True):
    """Mend a failed event, or `accept` a damaged line as it reads now."""

    file: SpoolFileName
    line: SpoolLine
    event: SpoolMended | None = None
    accept: bool = False
    reason: Reason | None = None

    def __post_init__(self) -> None:
        if self.accept == (self.event is not None):
            raise ValueError("say either event, with the fields to set, or accept")


class SpoolRetryRequest(Request):
    """Which failed events to try now; without a file all of them, and lanes passed over too."""

    file: SpoolFileName | None = None
    line: SpoolLine | None = None
    reason: Reason | None = None

    def __post_init__(self) -> None:
        if self.line is not None and self.file is None:
            raise ValueError("a line is a place in one file: name the file")


class SpoolRetryReply(VerbReply):
    """What a retry did. `earlier`: so many of what was asked for had gone in by themselves, or by
    another retry, within the minute before; of 10,000 at the most.
    """

    earlier: int = 0


class SpoolDiscardRequest(Request, kw_only=True):
    """Which events to throw away for good: those of a file, or one line of it."""

    file: SpoolFileName
    line: SpoolLine | None = None
    state: SpoolPlace = "failed"
    dry_run: bool = False
    reason: Reason | None = None
