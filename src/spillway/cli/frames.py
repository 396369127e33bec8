"""What `spillway top` shows: two looks at the queues, a while apart, make the rates."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spillway.wire import GroupCounts, QueueReply


@dataclass(frozen=True, slots=True)
class Line:
    """One (queue, group) on the screen."""

    queue: str
    group: str
    ready: int
    leased: int
    deferred: int
    blocked: int
    dead: int
    in_per_s: float | None
    out_per_s: float | None
    oldest_ready_at: str | None
    paused: bool


@dataclass(frozen=True, slots=True)
class Look:
    """The queues at one moment."""

    at: float
    queues: "list[QueueReply]"

    def totals(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Everything ever pushed and ever done, by (queue, group)."""
        return {
            (queue.queue, group.group): (queue.tail, done(group))
            for queue in self.queues
            for group in queue.groups
        }


def done(group: "GroupCounts") -> int:
    return group.settled + group.parked + group.dropped


def lines(look: Look, before: Look | None) -> list[Line]:
    """The lines of a frame, those that hurt most first: there may be room for a few only."""
    earlier = before.totals() if before is not None else {}
    elapsed = look.at - before.at if before is not None else 0.0
    found = [
        _line(queue, group, earlier.get((queue.queue, group.group)), elapsed)
        for queue in look.queues
        for group in queue.groups
    ]
    return sorted(found, key=_pain)


def _pain(line: Line) -> tuple[object, ...]:
    """Blocked ones, then those with the oldest ready message, then the deepest."""
    is_blocked, waits_long = line.blocked > 0, line.oldest_ready_at is not None
    depth = line.ready + line.leased + line.deferred + line.blocked
    return not is_blocked, not waits_long, line.oldest_ready_at or "", -depth, line.queue


def _line(
    queue: "QueueReply", group: "GroupCounts", earlier: tuple[int, int] | None, elapsed: float
) -> Line:
    rates: tuple[float | None, float | None] = (None, None)
    if earlier is not None and elapsed > 0:
        pushed, finished = queue.tail - earlier[0], done(group) - earlier[1]
        rates = (max(pushed, 0) / elapsed, max(finished, 0) / elapsed)
    return Line(
        queue=queue.queue,
        group=group.group,
        ready=group.ready,
        leased=group.leased,
        deferred=group.deferred,
        blocked=group.blocked,
        dead=group.parked,
        in_per_s=rates[0],
        out_per_s=rates[1],
        oldest_ready_at=group.oldest_ready_at,
        paused=queue.paused or group.paused,
    )
