"""Looking without touching: browse, story, dead and blocked messages."""

from typing import Any

from msgspec import Raw

from spillway.wire.shapes import Reply


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
    """A page of the blocked messages of a queue; `next` continues it. A page may be short."""

    blocked: list[BlockedMessage]
    next: str | None = None
