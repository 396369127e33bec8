"""Data on stdout: JSON for programs, aligned columns for people."""

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

_encoder = msgspec.json.Encoder()
CELL_WIDTH_MAX = 60


def print_json(value: Any) -> None:  # noqa: ANN401 (anything msgspec can write)
    """One JSON document on one line."""
    sys.stdout.write(_encoder.encode(value).decode() + "\n")


def print_json_lines(values: Iterable[Any]) -> None:
    """One JSON document a line."""
    for value in values:
        print_json(value)


def print_table(
    headings: Sequence[str], rows: Iterable[Sequence[object]], *, whole: bool = False
) -> None:
    """Aligned columns; long cells are cut, control characters are shown as escapes."""
    cells = [[shown(value) if whole else _cell(value) for value in row] for row in rows]
    widths = [
        max(len(heading), *(len(row[at]) for row in cells)) if cells else len(heading)
        for at, heading in enumerate(headings)
    ]
    for row in [list(headings), *cells]:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        sys.stdout.write(line.rstrip() + "\n")


def print_facts(facts: dict[str, object]) -> None:
    """One fact a line, values aligned."""
    width = max((len(name) for name in facts), default=0)
    for name, value in facts.items():
        sys.stdout.write(f"{name.ljust(width)}  {shown(value)}\n")


def shown(value: object) -> str:
    """A value as people read it; text from messages cannot drive the terminal."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, msgspec.Raw):
        value = bytes(value).decode("utf-8", "replace")
    text = value if isinstance(value, str) else str(value)
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def _cell(value: object) -> str:
    text = shown(value)
    return text if len(text) <= CELL_WIDTH_MAX else text[: CELL_WIDTH_MAX - 1] + "…"


def age(since: str | None, now: datetime | None = None) -> str:
    """How long ago a wire time was."""
    if since is None:
        return "-"
    seconds = ((now or datetime.now(UTC)) - datetime.fromisoformat(since)).total_seconds()
    return duration(max(seconds, 0.0))


def duration(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s" if seconds >= 10 else f"{seconds:.1f}s"


def short(count: float) -> str:
    """A number in at most four characters, rounded down: 950, 1.2k, 25k, 3.4M."""
    value, unit = int(count), ""
    for larger in ("k", "M", "G", "T"):
        if value < 1000:
            break
        value, rest, unit = value // 1000, value % 1000, larger
    if not unit:
        return str(value)
    return f"{value}.{rest // 100}{unit}" if value < 10 else f"{value}{unit}"


def size(count: int) -> str:
    """Bytes as people read them."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
