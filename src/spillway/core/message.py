"""Messages as they travel together: the record batch, the unit of the log and of memory."""

from dataclasses import dataclass, field
from typing import Any

JSON, BYTES = 0, 1
"""Content types: a payload is JSON text, or bytes."""

BATCH_MESSAGES_MAX = 256
BATCH_BYTES_MAX = 32 * 1024
"""Where a record batch is cut: compressed, such a row stays inside one page of PostgreSQL."""


@dataclass(slots=True)
class RecordBatch:
    """Consecutive messages of one lane, column by column; optional columns are None when unused."""

    lane_id: int
    base_version: int
    appended_ms: int
    transaction_ids: list[str] = field(default_factory=list)
    payloads: list[Any] = field(default_factory=list)
    keys: list[str | None] | None = None
    headers: list[dict[str, str] | None] | None = None
    content_types: list[int] | None = None
    deliver_ms: list[int | None] | None = None
    expires_ms: list[int | None] | None = None
    trace_ids: list[str | None] | None = None
    payload_bytes: int = 0

    @property
    def count(self) -> int:
        """How many messages."""
        return len(self.payloads)

    @property
    def last_version(self) -> int:
        """The version of the last message."""
        return self.base_version + len(self.payloads) - 1

    @property
    def is_full(self) -> bool:
        """Whether the next message starts a new batch."""
        return len(self.payloads) >= BATCH_MESSAGES_MAX or self.payload_bytes >= BATCH_BYTES_MAX

    @property
    def is_plain(self) -> bool:
        """Whether no optional column is used."""
        return (
            self.keys is None
            and self.headers is None
            and self.content_types is None
            and self.deliver_ms is None
            and self.expires_ms is None
            and self.trace_ids is None
        )
