"""Where the messages of a lane are for a group: runs of versions, never one by one."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from spillway.broker.lanes import LaneEntry
from spillway.core.events import GroupCreated
from spillway.core.fold import evolve
from spillway.core.ranges import Range, RangeSet
from spillway.core.state import (
    BLOCKED,
    DEFERRED,
    DROPPED,
    LEASED,
    PARKED,
    READY,
    SETTLED,
    GroupState,
    Moment,
)

UNSETTLED = "unsettled"
WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbours with the same history."""

    start: int
    end: int
    error: str | None = None
    at_ms: int | None = None


def state_on(entry: LaneEntry, group: str) -> GroupState:
    """The state of a group on a lane; where it has not begun, the one that it would begin with."""
    known = entry.groups.get(group)
    if known is not None and known.state.exists:
        return known.state
    return evolve(GroupState(), GroupCreated(entry.lane.pruned_to))


# ---------------------------------------------------------------- by the name of a state


def runs_in(
    state: GroupState, now: Moment, name: str | None, low: int, high: int
) -> Iterator[Range]:
    """The runs of `low..high` that are in a state; all of `low..high` where none is named."""
    high = min(high, now.lane.tail)
    if low > high:
        return
    if name is None:
        yield low, high
    elif name in (READY, DEFERRED):
        yield from _free(state, now, low, high, later=name == DEFERRED)
    else:
        yield from _HELD[name](state, low, high)


def _free(state: GroupState, now: Moment, low: int, high: int, *, later: bool) -> Iterator[Range]:
    if low <= state.frontier:
        for start, end, waiting in state.waiting.within(low, min(high, state.frontier)):
            if (waiting.due_ms > now.now_ms) == later:
                yield start, end
    fresh = max(low, state.frontier + 1)
    if fresh > high:
        return
    for gap_start, gap_end in state.settled.gaps(fresh, high):
        for start, end, due_ms in now.lane.schedule.split(gap_start, gap_end, now.now_ms):
            if bool(due_ms) == later:
                yield start, end


def _leased(state: GroupState, low: int, high: int) -> Iterator[Range]:
    held = [run for lease in state.leases.values() for run in lease.held.within(low, high)]
    return iter(RangeSet((start, end) for start, end, _ in held))


def _settled(state: GroupState, low: int, high: int) -> Iterator[Range]:
    done = RangeSet(state.settled.within(low, high))
    for given_up in (state.parked, state.dropped):
        for start, end in given_up.within(low, high):
            done.discard(start, end)
    return iter(done)


def _blocked(state: GroupState, low: int, high: int) -> Iterator[Range]:
    return ((start, end) for start, end, _ in state.blocked.within(low, high))


_HELD: dict[str, Callable[[GroupState, int, int], Iterator[Range]]] = {
    LEASED: _leased,
    SETTLED: _settled,
    BLOCKED: _blocked,
    PARKED: lambda state, low, high: state.parked.within(low, high),
    DROPPED: lambda state, low, high: state.dropped.within(low, high),
}


# ---------------------------------------------------------------- what an operator's verb may touch


def candidates(state: GroupState, what: str, low: int, high: int) -> Iterator[Run]:
    """The runs of `low..high` that are `blocked`, `waiting` or `unsettled`, in version order."""
    if low > high:
        return iter(())
    if what == BLOCKED:
        return (Run(s, e, b.error, b.at_ms) for s, e, b in state.blocked.within(low, high))
    if what == WAITING:
        return _waiting(state, low, high)
    return _unsettled(state, low, high)


def _waiting(state: GroupState, low: int, high: int) -> Iterator[Run]:
    if low <= state.frontier:
        for start, end, waiting in state.waiting.within(low, min(high, state.frontier)):
            yield Run(start, end, waiting.error)
    fresh = max(low, state.frontier + 1)
    if fresh <= high:
        yield from (Run(start, end) for start, end in state.settled.gaps(fresh, high))


def _unsettled(state: GroupState, low: int, high: int) -> Iterator[Run]:
    """Everything that is not settled; cut where the last error changes."""
    for start, end in state.settled.gaps(low, high):
        known = [Run(s, e, w.error) for s, e, w in state.waiting.within(start, end)]
        known += [Run(s, e, b.error) for s, e, b in state.blocked.within(start, end)]
        at = start
        for run in sorted(known, key=lambda run: run.start):
            if at < run.start:
                yield Run(at, run.start - 1)
            yield run
            at = run.end + 1
        if at <= end:
            yield Run(at, end)
