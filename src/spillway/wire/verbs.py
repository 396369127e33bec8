"""What operators ask for."""

from typing import Annotated, Literal

from msgspec import Meta

from spillway.wire.shapes import (
    DeadId,
    Name,
    Reason,
    Reply,
    Request,
    Start,
    Text,
    Timestamp,
    Version,
    moment_of,
)


class MessageName(Request):
    """A message by its address."""

    partition: Text
    version: Version


class Selection(Request):
    """Which messages a verb means: names, a filter, or all. Filters are joined by AND."""

    group: Name = "default"
    messages: Annotated[list[MessageName], Meta(max_length=10_000)] | None = None
    partition: Text | None = None
    key: Text | None = None
    error_contains: Text | None = None
    before: Timestamp | None = None
    all: bool = False
    limit: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    dry_run: bool = False
    reason: Reason | None = None


class RedriveRequest(Selection):
    """Dead letters back to their lanes, with fresh attempts."""

    ids: Annotated[list[DeadId], Meta(max_length=10_000)] | None = None


class UnblockRequest(Selection):
    """What to do with blocked messages: retry with fresh attempts, skip, or park."""

    action: Literal["retry", "skip", "park"] = "retry"


class ParkRequest(Selection):
    """Give up on messages by hand."""


class PurgeRequest(Selection, kw_only=True):
    """Settle what waits (`waiting`) or delete dead letters (`dead`)."""

    what: Literal["waiting", "dead"]
    ids: Annotated[list[DeadId], Meta(max_length=10_000)] | None = None


class SeekRequest(Request, kw_only=True):
    """Move a group: `earliest`, `latest`, a time, or a version of one partition."""

    group: Name = "default"
    to: Start | Version
    partition: Text | None = None
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
