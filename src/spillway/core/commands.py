"""What can be asked of a group on a lane, and what is answered."""

from dataclasses import dataclass
from typing import Any

from spillway.core.events import Event
from spillway.core.ranges import Range


@dataclass(frozen=True, slots=True)
class CreateGroup:
    """Begin behind a version."""

    after: int = 0
    kind: str = "lease"
    actor: str | None = None


@dataclass(frozen=True, slots=True)
class LeaseMessages:
    """Hand out up to `count` versions."""

    count: int
    visibility_ms: int | None = None
    consumer: str | None = None


@dataclass(frozen=True, slots=True)
class Ack:
    """A holder is done with versions."""

    lease_id: int
    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Nack:
    """A holder gives versions back, or up."""

    lease_id: int
    ranges: tuple[Range, ...]
    delay_ms: int | None = None
    error: str | None = None
    park: bool = False


@dataclass(frozen=True, slots=True)
class Return:
    """Versions never reached whoever handles them: ready again, no attempt spent. None: all."""

    lease_id: int
    ranges: tuple[Range, ...] | None = None


@dataclass(frozen=True, slots=True)
class Extend:
    """A holder needs more time for the lease."""

    lease_id: int
    visibility_ms: int


@dataclass(frozen=True, slots=True)
class Sweep:
    """Let the clock act: end leases, drop what is past its time to live."""


@dataclass(frozen=True, slots=True)
class Park:
    """Give up on versions by hand, wherever they are."""

    ranges: tuple[Range, ...]
    actor: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Unblock:
    """Let blocked versions go."""

    ranges: tuple[Range, ...]
    action: str = "retry"
    actor: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Purge:
    """Settle waiting versions, or forget dead letters."""

    ranges: tuple[Range, ...]
    dead: bool = False
    actor: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Redrive:
    """Dead letters leave for their lane."""

    ranges: tuple[Range, ...]
    actor: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Seek:
    """Move the group behind a version."""

    after: int
    actor: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ChangeConfig:
    """Note in the story that the options of the queue were changed."""

    changes: tuple[tuple[str, Any], ...]
    actor: str | None = None


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """Forget the group."""

    actor: str | None = None
    reason: str | None = None


Command = (
    CreateGroup
    | LeaseMessages
    | Ack
    | Nack
    | Return
    | Extend
    | Sweep
    | Park
    | Unblock
    | Purge
    | Redrive
    | Seek
    | ChangeConfig
    | DeleteGroup
)


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease: runs of (first, last, attempt). Empty with a reason when nothing was due."""

    lease_id: int = 0
    runs: tuple[tuple[int, int, int], ...] = ()
    deadline_ms: int = 0
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was done, and which versions were refused."""

    done: tuple[Range, ...] = ()
    refused: tuple[Range, ...] = ()
    parked: tuple[Range, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """Events to store, and the answer once they are."""

    events: tuple[Event, ...] = ()
    reply: Any = None
