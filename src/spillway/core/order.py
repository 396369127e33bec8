"""Which messages a lease may take, for each `order` of a queue.

`none`: whatever is due, lowest version first. `partition`: one lease at a time, and a retry or a
block holds everything behind it. (`key` joins them with the partitions work; this table is its seam.)
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spillway.core.ranges import Range

if TYPE_CHECKING:
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


def _choose_below(state: "GroupState", moment: "Moment", count: int, limit: int) -> Choice:
    ranges = list(_ripe(state, limit, count))
    left = count - sum(end - start + 1 for start, end in ranges)
    if left == 0:
        return Choice(tuple(ranges))
    if state.settled.holes > moment.policy.max_ack_holes:
        return Choice(tuple(ranges), reason=None if ranges else "ack_hole_cap")
    fresh, deferred = _fresh(state, moment, limit, left)
    ranges.extend(fresh)
    stepped_far = len(deferred) >= SCAN_RUNS_MAX
    reason = None if ranges else "scanning" if stepped_far else "empty"
    return Choice(tuple(ranges), tuple(deferred), reason)


def _ripe(state: "GroupState", limit: int, count: int) -> Iterator[Range]:
    for start, end, _ in state.waiting.ripe.within(1, limit):
        last = min(end, start + count - 1)
        yield start, last
        count -= last - start + 1
        if count == 0:
            return


def _fresh(
    state: "GroupState", moment: "Moment", limit: int, count: int
) -> tuple[list[Range], list[tuple[int, int, int]]]:
    """Versions never leased, in order, and those stepped over because their time has not come."""
    ranges: list[Range] = []
    deferred: list[tuple[int, int, int]] = []
    for start, end, due_ms in _split_fresh(state, moment, limit):
        if due_ms:
            deferred.append((start, end, due_ms))
            if len(deferred) >= SCAN_RUNS_MAX:
                break
            continue
        last = min(end, start + count - 1)
        ranges.append((start, last))
        count -= last - start + 1
        if count == 0:
            break
    return ranges, deferred


def _split_fresh(
    state: "GroupState", moment: "Moment", limit: int
) -> Iterator[tuple[int, int, int]]:
    """Fresh runs as (start, end, due): due is 0 for those that may go now."""
    for gap_start, gap_end in state.settled.gaps(state.frontier + 1, limit):
        start = gap_start
        for low, high, due_ms in moment.lane.schedule.not_yet(gap_start, gap_end, moment.now_ms):
            if start < low:
                yield start, low - 1, 0
            yield low, high, due_ms
            start = high + 1
        if start <= gap_end:
            yield start, gap_end, 0
