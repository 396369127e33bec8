"""What all shapes are made of: names, spans, the strict request, the tolerant reply, the error."""

import re
from datetime import UTC, datetime
from typing import Annotated, Literal

from msgspec import Meta, Struct, ValidationError, convert

# Python's `$` also matches before a last newline: hence the look-ahead.
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$(?!\n)"
TEXT_PATTERN = r"^[^\x00]*$"
DAY_MS = 86_400_000
SPAN_MS_MAX = 366 * DAY_MS

Name = Annotated[str, Meta(pattern=NAME_PATTERN)]
Text = Annotated[str, Meta(pattern=TEXT_PATTERN)]
PartitionName = Annotated[str, Meta(min_length=1, max_length=256, pattern=TEXT_PATTERN)]
Timestamp = Annotated[datetime, Meta(tz=True)]
SpanMs = Annotated[int, Meta(ge=0, le=SPAN_MS_MAX)]
Reason = Annotated[str, Meta(max_length=1000)]
Version = Annotated[int, Meta(ge=1, le=2**63 - 1)]
DeadId = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Start = Annotated[str, Meta(description="`earliest`, `latest` or an RFC 3339 time")]

Order = Literal["none", "key", "partition"]
OnExhausted = Literal["park", "block", "drop"]
PushStatus = Literal["stored", "duplicate", "buffered", "failed"]
SettleStatus = Literal["acked", "nacked", "parked", "extended", "refused"]


_name = re.compile(NAME_PATTERN)


def is_name(text: str) -> bool:
    """Whether it can be the name of an org, a queue or a group."""
    return _name.match(text) is not None


def moment_of(start: str) -> datetime | None:
    """The time that a start names; None for `earliest` and `latest`. Raises a ValidationError.

    msgspec cannot tell a word from a time in a union of both, so a start travels as a string.
    """
    if start in ("earliest", "latest"):
        return None
    try:
        return convert(start, Timestamp).astimezone(UTC)
    except OverflowError as error:
        raise ValidationError(f"{start!r} is outside the years 1 to 9999 of UTC") from error


class Request(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Base of everything a caller sends."""


class Reply(Struct, kw_only=True):
    """Base of everything the broker answers."""


class ErrorDetail(Reply):
    """What went wrong, and the next step."""

    code: str
    message: str
    hint: str


class ErrorReply(Reply):
    """The body of every answer that is not 2xx."""

    error: ErrorDetail
