"""The events of a consumer group on a lane: what the control log holds, and nothing else.

Every event has a tag and a version for its stored form. `to_record` / `from_record` turn events
into plain tuples and back; when a stored form changes, its old version stays readable through an
upcaster, so a log that was ever written can always be folded.
"""

from collections.abc import Callable
from dataclasses import astuple, dataclass, fields
from typing import Any

from spillway.core.errors import SpillwayError
from spillway.core.ranges import Range

Record = tuple[Any, ...]
DueRun = tuple[int, int, int]
"""(first version, last version, when due in ms)"""


@dataclass(frozen=True, slots=True)
class GroupCreated:
    """The group begins on this lane behind version `after`."""

    after: int
    kind: str = "lease"
    actor: str | None = None


@dataclass(frozen=True, slots=True)
class Deferred:
    """Fresh versions were stepped over because their time has not come."""

    runs: tuple[DueRun, ...]


@dataclass(frozen=True, slots=True)
class Leased:
    """A holder got versions until the deadline. Each lease is one more attempt."""

    lease_id: int
    ranges: tuple[Range, ...]
    deadline_ms: int
    consumer: str | None = None
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class Extended:
    """A holder keeps the lease until a new deadline."""

    lease_id: int
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class Acked:
    """A holder is done with versions."""

    lease_id: int
    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Nacked:
    """A holder gave versions back. `returned` ones never reached it and keep their attempts."""

    lease_id: int
    runs: tuple[DueRun, ...]
    error: str | None = None
    returned: bool = False


@dataclass(frozen=True, slots=True)
class Expired:
    """A lease passed its deadline; what it held waits again."""

    lease_id: int
    runs: tuple[DueRun, ...]


@dataclass(frozen=True, slots=True)
class Parked:
    """Versions were given up on; each is a dead letter now. `lease_id` is 0 unless it had them."""

    ranges: tuple[Range, ...]
    cause: str
    error: str | None = None
    actor: str | None = None
    reason: str | None = None
    lease_id: int = 0


@dataclass(frozen=True, slots=True)
class Blocked:
    """Versions were given up on, and their line waits for an operator."""

    ranges: tuple[Range, ...]
    cause: str
    error: str | None = None
    at_ms: int = 0
    lease_id: int = 0


@dataclass(frozen=True, slots=True)
class Unblocked:
    """An operator let blocked versions go: `retry` with fresh attempts, or `skip`."""

    ranges: tuple[Range, ...]
    action: str
    actor: str | None = None
    reason: str | None = None
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class Dropped:
    """Versions were thrown away by rule: exhausted, or past their time to live."""

    ranges: tuple[Range, ...]
    cause: str
    lease_id: int = 0


@dataclass(frozen=True, slots=True)
class Sought:
    """The group was moved behind version `after`; leases end, retries and blocks are forgotten."""

    after: int
    actor: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Purged:
    """Waiting versions were settled, or dead letters deleted, by an operator."""

    ranges: tuple[Range, ...]
    dead: bool = False
    actor: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Redriven:
    """Dead letters went back to their lane as new messages; the old versions are settled."""

    ranges: tuple[Range, ...]
    actor: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ConfigChanged:
    """The options that rule this lane were changed; kept for the story, it moves no message."""

    changes: tuple[tuple[str, Any], ...]
    actor: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Deleted:
    """The group (or its queue) was deleted; a later GroupCreated starts from nothing."""

    actor: str | None = None
    reason: str | None = None


Event = (
    GroupCreated
    | Deferred
    | Leased
    | Extended
    | Acked
    | Nacked
    | Expired
    | Parked
    | Blocked
    | Unblocked
    | Dropped
    | Sought
    | Purged
    | Redriven
    | ConfigChanged
    | Deleted
)

TAGS: dict[str, tuple[type[Any], int]] = {
    "C": (GroupCreated, 1),
    "F": (Deferred, 1),
    "L": (Leased, 1),
    "X": (Extended, 1),
    "A": (Acked, 1),
    "N": (Nacked, 1),
    "E": (Expired, 1),
    "P": (Parked, 1),
    "B": (Blocked, 1),
    "U": (Unblocked, 1),
    "D": (Dropped, 1),
    "S": (Sought, 1),
    "G": (Purged, 1),
    "R": (Redriven, 1),
    "K": (ConfigChanged, 1),
    "Z": (Deleted, 1),
}
"""Stored tag → (event, current version of its stored form). Tags are never reused."""

UPCASTERS: dict[tuple[str, int], Callable[[Record], Record]] = {}
"""(tag, old version) → the same fields in the form of the next version."""

_TAG_OF = {cls: (tag, version) for tag, (cls, version) in TAGS.items()}
_NESTED = {
    cls: tuple(i for i, f in enumerate(fields(cls)) if f.name in {"ranges", "runs", "changes"})
    for cls, _ in TAGS.values()
}


class UnknownEventError(SpillwayError):
    """The control log holds an event that this release does not know."""

    code = "unknown_event"
    hint = "it was written by a newer release: run that release, or a newer one"


def to_record(event: Event) -> Record:
    """The stored form: (tag, version, field, field, …)."""
    return (*_TAG_OF[type(event)], *_shallow(event))


def _shallow(event: Event) -> Record:
    return tuple(getattr(event, f) for f in event.__slots__)


def from_record(record: Record) -> Event:
    """The event behind a stored form, whatever release wrote it."""
    tag, version, *values = record
    known = TAGS.get(tag)
    if known is None or version > known[1]:
        raise UnknownEventError(f"event {tag!r} version {version} in the control log")
    for old in range(version, known[1]):
        values = list(_upcaster(tag, old)(tuple(values)))
    for i in _NESTED[known[0]]:
        values[i] = tuple(map(tuple, values[i]))
    event: Event = known[0](*values)
    return event


def _upcaster(tag: str, version: int) -> Callable[[Record], Record]:
    upcaster = UPCASTERS.get((tag, version))
    if upcaster is None:
        raise UnknownEventError(f"event {tag!r} version {version} has no way to its next version")
    return upcaster


def detail(event: Event) -> dict[str, Any]:
    """The fields of an event by name, for the story of a message."""
    return dict(zip(event.__slots__, astuple(event), strict=True))
