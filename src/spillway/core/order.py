"""Which messages a lease may take, for each `order` of a queue.

`none`: whatever is due, lowest version first. `partition`: one lease at a time, and a retry or a
block holds everything behind it. (`key` is not there yet; this table is its seam.)
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spillway.core.ranges import Range

if TYPE_CHECKING:
    from spillway.core.policy import Policy
    from spillway.core.state import GroupState, Moment

SCAN_RUNS_MAX = 2_000
"""How many not-yet-due runs one lease steps over; the next lease goes on behind them."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What to lease, what to step over, and why nothing when there is nothing."""

    ranges: tuple[Range, ...] = ()
    deferred: tuple[tuple[int, int, int], ...] = ()
    reason: str | None = None


def choose_unordered(state: "GroupState", moment: "Moment", count: int) -> Choice:
    """Retries that are due, then fresh messages; nobody waits for anybody."""
    return _choose_below(state, moment, count, moment.lane.tail)


def choose_by_partition(state: "GroupState", moment: "Moment", count: int) -> Choice:
    """The head of the lane only, and only when nothing of it is in flight."""
    if state.leases:
        return Choice(reason="lane_busy")
    limit = moment.lane.tail
    retry = state.waiting.first_unripe_retry()
    if retry is not None:
        limit = min(limit, retry - 1)
    if state.blocked.first is not None:
        limit = min(limit, state.blocked.first - 1)
    choice = _choose_below(state, moment, count, limit)
    if choice.ranges or limit == moment.lane.tail:
        return choice
    held_by_block = state.blocked.first is not None and state.blocked.first - 1 == limit
    return Choice(deferred=choice.deferred, reason="blocked" if held_by_block else "retry_pending")


CHOOSE: dict[str, Callable[["GroupState", "Moment", int], Choice]] = {
    "none": choose_unordered,
    "partition": choose_by_partition,
}


def at_hole_cap(state: "GroupState", policy: "Policy") -> bool:
    """Whether new messages wait until holes are closed."""
    # What waits for its own time, or for an operator, makes a hole that no consumer can close.
    stuck = len(state.waiting.scheduled) + len(state.blocked.holes)
    return state.settled.holes - stuck > policy.max_ack_holes


def _choose_below(state: "GroupState", moment: "Moment", count: int, limit: int) -> Choice:
    ranges = _ripe(state, limit, count)
    left = count - sum(end - start + 1 for start, end in ranges)
    if left == 0:
        return Choice(tuple(ranges))
    if at_hole_cap(state, moment.policy):
        return Choice(tuple(ranges), reason=None if ranges else "ack_hole_cap")
    fresh, deferred = _fresh(state, moment, limit, left)
    ranges.extend(fresh)
    stepped_far = len(deferred) >= SCAN_RUNS_MAX
    reason = None if ranges else "scanning" if stepped_far else "empty"
    return Choice(tuple(ranges), tuple(deferred), reason)


def _ripe(state: "GroupState", limit: int, count: int) -> list[Range]:
    """Versions that wait no longer, in order."""
    ranges: list[Range] = []
    for start, end, _ in state.waiting.ripe.within(1, limit):
        if count < 1:
            break
        count -= _extend(ranges, start, min(end, start + count - 1))
    return ranges


def _fresh(
    state: "GroupState", moment: "Moment", limit: int, count: int
) -> tuple[list[Range], list[tuple[int, int, int]]]:
    """Versions never leased, in order, and those stepped over because their time has not come."""
    ranges: list[Range] = []
    deferred: list[tuple[int, int, int]] = []
    for gap_start, gap_end in state.settled.gaps(state.frontier + 1, limit):
        for start, end, due_ms in moment.lane.schedule.split(gap_start, gap_end, moment.now_ms):
            if due_ms:
                deferred.append((start, end, due_ms))
            else:
                count -= _extend(ranges, start, min(end, start + count - 1))
            if count < 1 or len(deferred) >= SCAN_RUNS_MAX:
                return ranges, deferred
    return ranges, deferred


def _extend(ranges: list[Range], start: int, end: int) -> int:
    """Add a range, to the last one when it is its neighbour; how many versions that were."""
    if ranges and ranges[-1][1] == start - 1:
        ranges[-1] = (ranges[-1][0], end)
    else:
        ranges.append((start, end))
    return end - start + 1
