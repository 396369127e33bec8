"""The spool: what waits in files, what was set aside, and what an operator may do about it."""

from typing import Literal

from spillway.wire.shapes import Reason, Reply, Request

SpoolStream = Literal["failover", "qos0"]


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


class SpoolReply(Reply):
    """What waits in files, since when, and what stands in its way."""

    folder: str
    pending: int
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
