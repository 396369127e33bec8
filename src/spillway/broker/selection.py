"""Which messages an operator's verb means: names, filters, or all of them."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from spillway.broker.facts import LaneFacts, QueueFacts
from spillway.core.errors import SelectionRequiredError
from spillway.core.ranges import Range, coalesce
from spillway.wire import MessageName, Selection

FILTERS = ("partition", "key", "error_contains", "before")


def require(request: Selection, ids: Sequence[int] | None = None) -> None:
    """A bulk change must say what it means."""
    named = request.messages is not None or ids is not None
    filtered = any(getattr(request, name) is not None for name in FILTERS)
    if not (named or filtered or request.all):
        raise SelectionRequiredError


def ms_of(moment: datetime | None) -> int | None:
    """A moment of the wire in milliseconds."""
    return None if moment is None else int(moment.timestamp() * 1000)


def detail(request: Selection) -> dict[str, Any]:
    """The selection as the audit keeps it; long lists of names as their count."""
    ids = getattr(request, "ids", None)
    said: dict[str, Any] = {
        "partition": request.partition,
        "key": request.key,
        "error_contains": request.error_contains,
        "before": request.before.isoformat() if request.before else None,
        "limit": request.limit,
        "all": request.all or None,
        "named": len(request.messages) if request.messages is not None else None,
        "ids": len(ids) if ids is not None else None,
    }
    return {name: value for name, value in said.items() if value is not None}


def lanes_of(
    lanes: Iterable[LaneFacts], request: Selection
) -> list[tuple[LaneFacts, list[Range] | None]]:
    """The lanes that a selection reaches into, each with the versions named (None: any)."""
    named = None if request.messages is None else _named(request.messages)
    wanted: list[tuple[LaneFacts, list[Range] | None]] = []
    for lane in sorted(lanes, key=lane_order):
        if request.partition not in (None, lane.partition):
            continue
        if named is None:
            wanted.append((lane, None))
        elif lane.partition in named:
            wanted.append((lane, coalesce(named[lane.partition])))
    return wanted


def lane_order(lane: LaneFacts) -> tuple[str, int, int]:
    """Lanes in the order in which they are shown and worked through."""
    return lane.partition, lane.priority, lane.enqueue_shard


def _named(messages: Sequence[MessageName]) -> dict[str, set[int]]:
    named: dict[str, set[int]] = {}
    for message in messages:
        named.setdefault(message.partition, set()).add(message.version)
    return named


def dead_filter(queue: QueueFacts, request: Selection, ids: Sequence[int] | None) -> dict[str, Any]:
    """The selection as parameters of the dead-letter queries. An id names its group by itself."""
    messages = request.messages
    return {
        "queue_id": queue.queue_id,
        "group": request.group if ids is None else None,
        "partition": request.partition,
        "key": request.key,
        "error": request.error_contains,
        "before": request.before,
        "ids": None if ids is None else list(ids),
        "partitions": None if messages is None else [m.partition for m in messages],
        "versions": None if messages is None else [m.version for m in messages],
    }
