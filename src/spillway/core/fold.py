"""`evolve`: one event of the control log into the state. It decides nothing, refuses the illegal.

Every handler checks all that it needs before it changes anything. The clock of a fold is the one
that the events carry, so it gives the same state whenever and however often it is done.
"""

from typing import Any

from spillway.core import events as ev
from spillway.core.ranges import RangeMap, RangeSet, are_ascending
from spillway.core.ranges import total as total_of
from spillway.core.retry import Waiting, WaitingRoom
from spillway.core.state import Blockade, Blocking, GroupState, IllegalTransitionError, Lease

Held = ev.Extended | ev.Acked | ev.Nacked | ev.Expired | ev.Parked | ev.Blocked | ev.Dropped


def evolve(state: GroupState, event: ev.Event) -> GroupState:
    """Fold one event. An illegal one raises and changes nothing."""
    kind = type(event)
    if not state.exists and kind not in _WITHOUT_GROUP:
        raise _illegal(event, "the group does not exist")
    _EVOLVE[kind](state, event)
    return state


def _illegal(event: ev.Event, why: str) -> IllegalTransitionError:
    return IllegalTransitionError(f"{event} is illegal: {why}")


def _refuse_unless(legal: bool, event: ev.Event, why: str) -> None:  # noqa: FBT001
    if not legal:
        raise _illegal(event, why)


def _check_runs(event: ev.Event, runs: tuple[tuple[int, ...], ...]) -> None:
    if not runs or not are_ascending(runs):
        raise _illegal(event, "its ranges are empty, out of order or overlap")


def _lease_of(state: GroupState, event: Held, runs: tuple[tuple[int, ...], ...]) -> Lease:
    lease = state.leases.get(event.lease_id)
    if lease is None:
        raise _illegal(event, "there is no such lease")
    for run in runs:
        if lease.held.covered(run[0], run[1]) != run[1] - run[0] + 1:
            raise _illegal(event, "the lease does not hold all of it")
    return lease


def _close_if_empty(state: GroupState, lease_id: int) -> None:
    if not state.leases[lease_id].held:
        del state.leases[lease_id]


def _on_created(state: GroupState, event: ev.GroupCreated) -> None:
    _refuse_unless(not state.exists, event, "the group exists")
    state.exists = True
    state.kind = event.kind
    state.frontier = event.after
    if event.after:
        state.settled.add(1, event.after)


def _on_deferred(state: GroupState, event: ev.Deferred) -> None:
    _check_runs(event, event.runs)
    _refuse_unless(all(_is_fresh(state, s, e) for s, e, _ in event.runs), event, "not fresh")
    for start, end, due_ms in event.runs:
        # What lies in between is due, and from now on below the frontier: it waits for a lease.
        for s, e in list(state.settled.gaps(state.frontier + 1, start - 1)):
            state.waiting.put(s, e, Waiting(0, 0))
        state.waiting.put(start, end, Waiting(0, due_ms))
        state.frontier = end


def _is_fresh(state: GroupState, start: int, end: int) -> bool:
    return start > state.frontier and not any(state.settled.within(start, end))


def _is_free(state: GroupState, start: int, end: int, due_by_ms: int | None = None) -> bool:
    """Whether every version waits (and no longer than until `due_by_ms`) or is fresh."""
    if start > state.frontier:
        return _is_fresh(state, start, end)
    below = min(end, state.frontier)
    waiting = sum(
        e - s + 1
        for s, e, waiting in state.waiting.within(start, below)
        if due_by_ms is None or waiting.due_ms <= due_by_ms
    )
    return waiting == below - start + 1 and (below == end or _is_fresh(state, below + 1, end))


def _on_leased(state: GroupState, event: ev.Leased) -> None:
    _refuse_unless(event.lease_id >= state.next_lease_id, event, "lease ids only grow")
    _check_runs(event, event.ranges)
    free = all(_is_free(state, s, e, event.at_ms) for s, e in event.ranges)
    _refuse_unless(free, event, "it is not free, or not due")
    held: RangeMap[int] = RangeMap()
    for start, end in event.ranges:
        for s, e, waiting in state.waiting.take(start, end):
            held.put(s, e, waiting.attempts + 1)
        fresh = max(start, state.frontier + 1)
        if fresh <= end:
            held.put(fresh, end, 1)
    state.frontier = max(state.frontier, event.ranges[-1][1])
    state.leases[event.lease_id] = Lease(held, event.deadline_ms, event.at_ms, event.consumer)
    state.next_lease_id = event.lease_id + 1
    state.remind(event.lease_id, event.deadline_ms)


def _on_extended(state: GroupState, event: ev.Extended) -> None:
    lease = _lease_of(state, event, ())
    lease.deadline_ms = event.deadline_ms
    state.remind(event.lease_id, event.deadline_ms)


def _on_acked(state: GroupState, event: ev.Acked) -> None:
    _check_runs(event, event.ranges)
    lease = _lease_of(state, event, event.ranges)
    for start, end in event.ranges:
        lease.held.take(start, end)
        state.settled.add(start, end)
    _close_if_empty(state, event.lease_id)


def _on_nacked(state: GroupState, event: ev.Nacked) -> None:
    _wait_again(state, event, event.error, spent=0 if event.returned else 1)


def _on_expired(state: GroupState, event: ev.Expired) -> None:
    _wait_again(state, event, "lease expired", spent=1)


def _wait_again(
    state: GroupState, event: ev.Nacked | ev.Expired, error: str | None, *, spent: int
) -> None:
    _check_runs(event, event.runs)
    lease = _lease_of(state, event, event.runs)
    for start, end, due_ms in event.runs:
        for s, e, attempt in lease.held.take(start, end):
            state.waiting.put(s, e, Waiting(attempt - 1 + spent, due_ms, error))
        state.came_back.append((start, end))
    _close_if_empty(state, event.lease_id)


def _release(state: GroupState, start: int, end: int, lease_id: int) -> None:
    """Take versions out of whatever lease, waiting room or block they are in."""
    if lease_id:
        holders = [lease_id]
    elif _is_free(state, start, end):
        holders = []
    else:
        holders = [i for i, lease in state.leases.items() if lease.held.covered(start, end)]
    state.waiting.take(start, end)
    state.blocked.take(start, end)
    for holder in holders:
        state.leases[holder].held.take(start, end)
        _close_if_empty(state, holder)


def _settle_as(state: GroupState, event: ev.Parked | ev.Dropped, kind: RangeSet) -> None:
    """Give up on versions, wherever they are."""
    _check_runs(event, event.ranges)
    settled = any(any(state.settled.within(s, e)) for s, e in event.ranges)
    _refuse_unless(not settled, event, "some of it is settled already")
    if event.lease_id:
        _lease_of(state, event, event.ranges)
    for start, end in event.ranges:
        # A lease closes with its last version, and its id names nobody any more.
        _release(state, start, end, event.lease_id)
        state.settled.add(start, end)
        kind.add(start, end)


def _on_parked(state: GroupState, event: ev.Parked) -> None:
    _settle_as(state, event, state.parked)


def _on_dropped(state: GroupState, event: ev.Dropped) -> None:
    blocked = any(any(state.blocked.within(s, e)) for s, e in event.ranges)
    _refuse_unless(not blocked, event, "it is blocked")
    _settle_as(state, event, state.dropped)


def _on_blocked(state: GroupState, event: ev.Blocked) -> None:
    _check_runs(event, event.ranges)
    lease = _lease_of(state, event, event.ranges)
    for start, end in event.ranges:
        for s, e, attempt in lease.held.take(start, end):
            state.blocked.put(s, e, Blocking(attempt, event.at_ms, event.error))
    _close_if_empty(state, event.lease_id)


def _on_unblocked(state: GroupState, event: ev.Unblocked) -> None:
    _check_runs(event, event.ranges)
    blocked = sum(state.blocked.covered(start, end) for start, end in event.ranges)
    _refuse_unless(blocked == total_of(event.ranges), event, "it is not blocked")
    for start, end in event.ranges:
        state.blocked.take(start, end)
        if event.action == "retry":
            state.waiting.put(start, end, Waiting(0, event.at_ms))
            state.came_back.append((start, end))
        else:
            state.settled.add(start, end)


def _on_sought(state: GroupState, event: ev.Sought) -> None:
    state.leases.clear()
    state.deadlines.clear()
    state.lapses_seen = 0
    state.waiting = WaitingRoom()
    state.blocked = Blockade()
    state.dropped = RangeSet(state.dropped.within(1, event.after))
    state.settled = RangeSet(state.parked)
    state.frontier = event.after
    if event.after:
        state.settled.add(1, event.after)


def _on_purged(state: GroupState, event: ev.Purged) -> None:
    if event.dead:
        _leave_parked(state, event)
        return
    _check_runs(event, event.ranges)
    _refuse_unless(all(_is_free(state, s, e) for s, e in event.ranges), event, "not waiting")
    for start, end in event.ranges:
        state.waiting.take(start, end)
        state.settled.add(start, end)


def _leave_parked(state: GroupState, event: ev.Purged | ev.Redriven) -> None:
    _check_runs(event, event.ranges)
    parked = all(state.parked.covers(start, end) for start, end in event.ranges)
    _refuse_unless(parked, event, "it is not parked")
    for start, end in event.ranges:
        state.parked.discard(start, end)


def _on_config_changed(state: GroupState, event: ev.ConfigChanged) -> None:
    """Kept for the story; the options themselves live in the queue's row."""


def _on_deleted(state: GroupState, _event: ev.Deleted) -> None:
    empty = GroupState(next_lease_id=state.next_lease_id)
    for name in GroupState.__slots__:
        setattr(state, name, getattr(empty, name))


_WITHOUT_GROUP = {ev.GroupCreated, ev.ConfigChanged, ev.Deleted}
_EVOLVE: dict[type[Any], Any] = {
    ev.GroupCreated: _on_created,
    ev.Deferred: _on_deferred,
    ev.Leased: _on_leased,
    ev.Extended: _on_extended,
    ev.Acked: _on_acked,
    ev.Nacked: _on_nacked,
    ev.Expired: _on_expired,
    ev.Parked: _on_parked,
    ev.Blocked: _on_blocked,
    ev.Unblocked: _on_unblocked,
    ev.Dropped: _on_dropped,
    ev.Sought: _on_sought,
    ev.Purged: _on_purged,
    ev.Redriven: _leave_parked,
    ev.ConfigChanged: _on_config_changed,
    ev.Deleted: _on_deleted,
}
