"""Spans and points in time as people type them: 500ms, 5s, 2m, 1h, 7d; 2026-01-31T12:00Z."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import overload

import typer

VISIBILITY = ("10ms", "12h")
"""The shortest and the longest lease."""
_UNITS_MS = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_span = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|)")


@overload
def span_ms(text: str | int) -> int: ...
@overload
def span_ms(text: None) -> None: ...
def span_ms(text: str | int | None) -> int | None:
    """A span in milliseconds; a bare number is milliseconds."""
    if text is None or isinstance(text, int):
        return text
    match = _span.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is no span of time: write 500ms, 5s, 2m, 1h or 7d")
    return round(float(match[1]) * _UNITS_MS[match[2]])


def span(least: str = "0", most: str = "366d") -> Callable[[str | int], int]:
    """How an option reads a span that has bounds; typer names the option in a refusal."""

    def read(text: str | int) -> int:
        ms = span_ms(text)
        if not span_ms(least) <= ms <= span_ms(most):
            raise typer.BadParameter(f"{text!r} is not from {least} to {most}")
        return ms

    return read


def moment(text: str | datetime | None) -> datetime | None:
    """A time with a zone (no zone: UTC), or a span, which means so long ago."""
    if text is None or isinstance(text, datetime):
        return text
    if _span.fullmatch(text.strip()) and not text.strip().isdigit():
        return datetime.now(UTC) - timedelta(milliseconds=span_ms(text))
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no time: write 2026-01-31T12:00:00Z, or 2h for two hours ago"
        ) from None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
