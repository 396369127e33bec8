"""What a scenario found: one JSON object, or one line of a table for people."""

import statistics
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.table import Table


class Report(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields of DESIGN §11. The first eight are always there, the others where they exist."""

    scenario: str
    messages: int
    seconds: float
    messages_per_s: float
    p50_ms: float | None
    p99_ms: float | None
    settings: dict[str, Any]
    baseline: float | None
    push_p50_ms: float | None = None
    push_p99_ms: float | None = None
    lease_p50_ms: float | None = None
    lease_p99_ms: float | None = None
    wal_bytes_per_message: float | None = None
    dead_tuples_per_message: float | None = None
    first_lease_s: float | None = None
    live_p99_normal_ms: float | None = None
    live_p99_ms: float | None = None
    first_push_ms: float | None = None
    stored_again_s: float | None = None
    broker_rss_mb: float | None = None
    lost: int | None = None
    duplicated: int | None = None
    out_of_order: int | None = None


_EXTRAS = (
    "push_p99_ms",
    "lease_p99_ms",
    "wal_bytes_per_message",
    "dead_tuples_per_message",
    "first_lease_s",
    "live_p99_normal_ms",
    "live_p99_ms",
    "first_push_ms",
    "stored_again_s",
    "broker_rss_mb",
    "lost",
    "duplicated",
    "out_of_order",
)


def as_json(report: Report) -> str:
    return msgspec.json.encode(report).decode()


def median(reports: Sequence[Report]) -> Report:
    """The run in the middle, with the rates of all of them."""
    ranked = sorted(reports, key=headline)
    middle = ranked[(len(ranked) - 1) // 2]
    if len(reports) == 1:
        return middle
    settings = {
        **middle.settings,
        "repeat": len(reports),
        "rates": [report.messages_per_s for report in reports],
        "rates_median": statistics.median(report.messages_per_s for report in reports),
    }
    return msgspec.structs.replace(middle, settings=settings)


def headline(report: Report) -> float:
    """The figure a scenario is about."""
    for figure in (report.first_lease_s, report.wal_bytes_per_message, report.first_push_ms):
        if figure is not None:
            return figure
    if report.scenario == "latency" and report.lease_p99_ms is not None:
        return report.lease_p99_ms
    return report.messages_per_s


def table(reports: Sequence[Report]) -> Table:
    """For people; the JSON has more."""
    drawn = Table(title="spillway bench", title_justify="left")
    drawn.add_column("scenario")
    for name in ("messages/s", "x baseline", "p50 ms", "p99 ms"):
        drawn.add_column(name, justify="right")
    drawn.add_column("also")
    for report in reports:
        drawn.add_row(*row(report))
    return drawn


def row(report: Report) -> tuple[str, ...]:
    extras = {name: getattr(report, name) for name in _EXTRAS}
    return (
        f"{report.scenario}, batch {report.settings.get('batch', 1)}",
        f"{report.messages_per_s:,.0f}",
        f"{report.messages_per_s / report.baseline:.2f}" if report.baseline else "-",
        _number(report.p50_ms),
        _number(report.p99_ms),
        "  ".join(
            f"{name} {_number(value)}" for name, value in extras.items() if value is not None
        ),
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}"
