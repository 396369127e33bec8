"""`evolve`: one event of the control log into the state. It decides nothing and refuses the illegal."""

from heapq import heappush
from typing import Any

from spillway.core import events as ev
from spillway.core.ranges import Range, RangeMap, RangeSet
from spillway.core.ranges import total as total_of
from spillway.core.retry import Waiting, WaitingRoom
from spillway.core.state import Blocking, GroupState, IllegalTransitionError, Lease


def evolve(state: GroupState, event: ev.Event, at_ms: int = 0) -> GroupState:
    """Fold one event. An illegal one raises and changes nothing."""
    _EVOLVE[type(event)](state, event, at_ms)
    return state


def _refuse_unless(legal: bool, event: ev.Event, why: str) -> None:  # noqa: FBT001
    if not legal:
        raise IllegalTransitionError(f"{event} is illegal: {why}")


def _lease_of(state: GroupState, event: Any, ranges: tuple[Range, ...]) -> Lease:
    lease = state.leases.get(event.lease_id)
    _refuse_unless(lease is not None, event, "there is no such lease")
    assert lease is not None  # noqa: S101 (for mypy)
    held = sum(lease.held.covered(start, end) for start, end in ranges)
    _refuse_unless(held == total_of(ranges), event, "the lease does not hold all of it")
    return lease


def _close_if_empty(state: GroupState, lease_id: int) -> None:
    if not state.leases[lease_id].held:
        del state.leases[lease_id]


def _on_created(state: GroupState, event: ev.GroupCreated, at_ms: int) -> None:
    _refuse_unless(not state.exists, event, "the group exists")
    state.exists = True
    state.kind = event.kind
    state.frontier = event.after
    if event.after:
        state.settled.add(1, event.after)


def _on_deferred(state: GroupState, event: ev.Deferred, at_ms: int) -> None:
    _refuse_unless(
        all(_is_fresh(state, start, end) for start, end, _ in event.runs), event, "not fresh"
    )
    for start, end, due_ms in event.runs:
        state.waiting.put(start, end, Waiting(0, due_ms))
        state.frontier = max(state.frontier, end)


def _is_fresh(state: GroupState, start: int, end: int) -> bool:
    return start > state.frontier and not any(state.settled.within(start, end))


def _is_free(state: GroupState, start: int, end: int) -> bool:
    below = min(end, state.frontier)
    waiting = sum(e - s + 1 for s, e, _ in state.waiting.within(start, below))
    above = max(start, state.frontier + 1)
    return waiting == max(0, below - start + 1) and (above > end or _is_fresh(state, above, end))


def _on_leased(state: GroupState, event: ev.Leased, at_ms: int) -> None:
    _refuse_unless(event.lease_id >= state.next_lease_id, event, "lease ids only grow")
    _refuse_unless(all(_is_free(state, s, e) for s, e in event.ranges), event, "not free")
    held: RangeMap[int] = RangeMap()
    for start, end in event.ranges:
        for s, e, waiting in state.waiting.take(start, end):
            held.put(s, e, waiting.attempts + 1)
        fresh = max(start, state.frontier + 1)
        if fresh <= end:
            held.put(fresh, end, 1)
    state.frontier = max(state.frontier, event.ranges[-1][1])
    state.leases[event.lease_id] = Lease(held, event.deadline_ms, at_ms, event.consumer)
    state.next_lease_id = event.lease_id + 1
    heappush(state.deadlines, (event.deadline_ms, event.lease_id))


def _on_extended(state: GroupState, event: ev.Extended, at_ms: int) -> None:
    lease = _lease_of(state, event, ())
    lease.deadline_ms = event.deadline_ms
    heappush(state.deadlines, (event.deadline_ms, event.lease_id))


def _on_acked(state: GroupState, event: ev.Acked, at_ms: int) -> None:
    lease = _lease_of(state, event, event.ranges)
    for start, end in event.ranges:
        lease.held.take(start, end)
        state.settled.add(start, end)
    _close_if_empty(state, event.lease_id)


def _on_nacked(state: GroupState, event: ev.Nacked, at_ms: int) -> None:
    lease = _lease_of(state, event, tuple((s, e) for s, e, _ in event.runs))
    for start, end, due_ms in event.runs:
        for s, e, attempts in lease.held.take(start, end):
            kept = attempts - 1 if event.returned else attempts
            state.waiting.put(s, e, Waiting(kept, due_ms, event.error))
    _close_if_empty(state, event.lease_id)


def _on_expired(state: GroupState, event: ev.Expired, at_ms: int) -> None:
    lease = _lease_of(state, event, tuple((s, e) for s, e, _ in event.runs))
    for start, end, due_ms in event.runs:
        for s, e, attempts in lease.held.take(start, end):
            state.waiting.put(s, e, Waiting(attempts, due_ms, "lease expired"))
    _close_if_empty(state, event.lease_id)


def _release(state: GroupState, start: int, end: int) -> None:
    """Take versions out of whatever lease, waiting room or block they are in."""
    state.waiting.take(start, end)
    state.blocked.take(start, end)
    for lease_id in [i for i, lease in state.leases.items() if lease.held.covered(start, end)]:
        state.leases[lease_id].held.take(start, end)
        _close_if_empty(state, lease_id)


def _check_unsettled(state: GroupState, event: Any) -> None:
    untouched = not any(any(state.settled.within(s, e)) for s, e in event.ranges)
    _refuse_unless(untouched, event, "some of it is settled already")


def _on_parked(state: GroupState, event: ev.Parked, at_ms: int) -> None:
    _check_unsettled(state, event)
    for start, end in event.ranges:
        _release(state, start, end)
        state.settled.add(start, end)
        state.parked.add(start, end)


def _on_dropped(state: GroupState, event: ev.Dropped, at_ms: int) -> None:
    _check_unsettled(state, event)
    _refuse_unless(
        not any(any(state.blocked.within(s, e)) for s, e in event.ranges), event, "it is blocked"
    )
    for start, end in event.ranges:
        _release(state, start, end)
        state.settled.add(start, end)
        state.dropped.add(start, end)


def _attempts_in_leases(state: GroupState, start: int, end: int) -> list[tuple[int, int, int]]:
    return [run for lease in state.leases.values() for run in lease.held.within(start, end)]


def _on_blocked(state: GroupState, event: ev.Blocked, at_ms: int) -> None:
    runs = [run for start, end in event.ranges for run in _attempts_in_leases(state, start, end)]
    held = sum(end - start + 1 for start, end, _ in runs)
    _refuse_unless(held == total_of(event.ranges), event, "it is not leased")
    for start, end, attempts in runs:
        _release(state, start, end)
        state.blocked.put(start, end, Blocking(attempts, event.at_ms, event.error))


def _on_unblocked(state: GroupState, event: ev.Unblocked, at_ms: int) -> None:
    blocked = sum(state.blocked.covered(start, end) for start, end in event.ranges)
    _refuse_unless(blocked == total_of(event.ranges), event, "it is not blocked")
    for start, end in event.ranges:
        state.blocked.take(start, end)
        if event.action == "retry":
            state.waiting.put(start, end, Waiting(0, at_ms))
        else:
            state.settled.add(start, end)


def _on_sought(state: GroupState, event: ev.Sought, at_ms: int) -> None:
    state.leases.clear()
    state.deadlines.clear()
    state.waiting = WaitingRoom()
    state.blocked = RangeMap()
    dropped = RangeSet(state.dropped.within(1, event.after))
    state.dropped = dropped
    state.settled = RangeSet(state.parked)
    state.frontier = event.after
    if event.after:
        state.settled.add(1, event.after)


def _on_purged(state: GroupState, event: ev.Purged, at_ms: int) -> None:
    if event.dead:
        _leave_parked(state, event)
        return
    _refuse_unless(all(_is_free(state, s, e) for s, e in event.ranges), event, "not waiting")
    for start, end in event.ranges:
        state.waiting.take(start, end)
        state.settled.add(start, end)


def _leave_parked(state: GroupState, event: ev.Purged | ev.Redriven) -> None:
    parked = all(state.parked.covers(start, end) for start, end in event.ranges)
    _refuse_unless(parked, event, "it is not parked")
    for start, end in event.ranges:
        state.parked.discard(start, end)


def _on_redriven(state: GroupState, event: ev.Redriven, at_ms: int) -> None:
    _leave_parked(state, event)


def _on_config_changed(state: GroupState, event: ev.ConfigChanged, at_ms: int) -> None:
    """Kept for the story; the options themselves live in the queue's row."""


def _on_deleted(state: GroupState, event: ev.Deleted, at_ms: int) -> None:
    empty = GroupState(next_lease_id=state.next_lease_id)
    for name in GroupState.__slots__:
        setattr(state, name, getattr(empty, name))


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
    ev.Redriven: _on_redriven,
    ev.ConfigChanged: _on_config_changed,
    ev.Deleted: _on_deleted,
}
