"""A consumer group on one lane: the states of its messages, and every move between them.

A message is, for one group, in exactly one of these states:

    ready     due, and free to be leased
    deferred  free, but its time (a retry's backoff, its own deliver_at) has not come
    leased    held by one lease until its deadline
    settled   acked, skipped or purged: done
    parked    given up on, a dead letter until redriven or purged
    blocked   given up on, and its line waits for an operator
    dropped   thrown away by rule (exhausted on a `drop` queue, past its time to live)

`decide` looks at the state and answers a command with events; it changes nothing. `evolve` folds
one event into the state; it decides nothing. The state after a restart is the same fold over the
stored events, so whatever was answered is remembered. TRANSITIONS below is the whole law, as data:
the docs draw it, and the tests hold `evolve` to it, which makes each move that it lists and refuses
every other. `evolve` itself does not read it: it checks what it is about to change.

Versions are kept as ranges. What is not mentioned anywhere is fresh: above `frontier` and not
settled. So a million waiting messages cost nothing here, and a lease of a thousand is one pair.
"""

from collections.abc import Callable, Iterator
from typing import Any

from spillway.core import commands as cmd
from spillway.core import events as ev
from spillway.core import verbs
from spillway.core.errors import GroupNotFoundError
from spillway.core.fold import evolve
from spillway.core.order import CHOOSE, SCAN_RUNS_MAX
from spillway.core.policy import LEASE_AGE_MS_MAX
from spillway.core.ranges import Range, RangeSet, merged
from spillway.core.retry import backoff_ms
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
    free_in,
)

__all__ = ["TRANSITIONS", "decide", "evolve", "handle", "is_due"]

_FREE = (READY, DEFERRED)
TRANSITIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "Deferred": {READY: (DEFERRED,), DEFERRED: (DEFERRED,)},
    "Leased": {READY: (LEASED,)},
    "Extended": {LEASED: (LEASED,)},
    "Acked": {LEASED: (SETTLED,)},
    "Nacked": {LEASED: _FREE},
    "Expired": {LEASED: _FREE},
    "Parked": dict.fromkeys((READY, DEFERRED, LEASED, BLOCKED), (PARKED,)),
    "Blocked": {LEASED: (BLOCKED,)},
    "Unblocked": {BLOCKED: (READY, SETTLED)},
    "Dropped": dict.fromkeys((READY, DEFERRED, LEASED), (DROPPED,)),
    "Purged": dict.fromkeys((READY, DEFERRED, PARKED), (SETTLED,)),
    "Redriven": {PARKED: (SETTLED,)},
    "Sought": {
        **dict.fromkeys((READY, LEASED, BLOCKED), (READY, SETTLED)),
        **dict.fromkeys((DEFERRED, SETTLED), (READY, DEFERRED, SETTLED)),
        DROPPED: (READY, DEFERRED, DROPPED),
        PARKED: (PARKED,),
    },
}
"""event → state before → states after. The clock alone moves deferred to ready."""


# ---------------------------------------------------------------- decide: a command into events


def decide(state: GroupState, command: cmd.Command, now: Moment) -> cmd.Decision:
    """Answer a command with the events that make it so. Looks, changes nothing."""
    kind = type(command)
    if not state.exists and kind in _NEEDS_GROUP:
        raise GroupNotFoundError
    decision: cmd.Decision = _DECIDE[kind](state, command, now)
    return decision


def handle(state: GroupState, command: cmd.Command, now: Moment) -> cmd.Decision:
    """Let the clock act first, then decide and fold: what a single writer does with a command."""
    swept = _fold(state, decide(state, cmd.Sweep(), now)) if is_due(state, now) else ()
    decision = decide(state, command, now)
    _fold(state, decision)
    return cmd.Decision((*swept, *decision.events), decision.reply) if swept else decision


def _fold(state: GroupState, decision: cmd.Decision) -> tuple[ev.Event, ...]:
    for event in decision.events:
        evolve(state, event)
    return decision.events


def is_due(state: GroupState, now: Moment) -> bool:
    """Whether the clock has made a Sweep necessary."""
    state.waiting.ripen(now.now_ms)
    now.lane.schedule.ripen(now.now_ms)
    _look_for_overdue(state, now)
    deadline = state.next_deadline_ms()
    return bool(state.overdue) or (deadline is not None and deadline <= now.now_ms)


def _look_for_overdue(state: GroupState, now: Moment) -> None:
    """Note the free messages past their time to live: of those that just passed it or came back."""
    schedule = now.lane.schedule
    if not state.exists or not schedule.expired.total:
        state.came_back.clear()
        return
    if schedule.lapses == state.lapses_seen and not state.came_back and not state.overdue:
        return
    back = (run for s, e in state.came_back for run in schedule.expired.within(s, e))
    found = (*state.overdue, *schedule.lapsed_since(state.lapses_seen), *back)
    state.overdue = _still_free(state, found, now)
    state.lapses_seen = schedule.lapses
    state.came_back.clear()


def _still_free(state: GroupState, ranges: tuple[Range, ...], now: Moment) -> tuple[Range, ...]:
    tail = now.lane.tail
    return tuple(run for s, e in merged(ranges) for run in free_in(state, s, min(e, tail)))


def _decide_lease(state: GroupState, command: cmd.LeaseMessages, now: Moment) -> cmd.Decision:
    if command.count < 1:
        return cmd.Decision((), cmd.Grant(reason="empty"))
    choice = CHOOSE[now.policy.order](state, now, command.count)
    events: list[ev.Event] = []
    if choice.deferred and _must_note(choice.ranges, choice.deferred):
        events.append(ev.Deferred(choice.deferred))
    if not choice.ranges:
        return cmd.Decision(tuple(events), cmd.Grant(reason=choice.reason or "empty"))
    visibility_ms = command.visibility_ms or now.policy.visibility_ms
    deadline_ms = now.now_ms + min(visibility_ms, LEASE_AGE_MS_MAX)
    lease_id = state.next_lease_id
    events.append(ev.Leased(lease_id, choice.ranges, deadline_ms, command.consumer, now.now_ms))
    runs = tuple(run for start, end in choice.ranges for run in _attempt_runs(state, start, end))
    return cmd.Decision(tuple(events), cmd.Grant(lease_id, runs, deadline_ms))


def _must_note(ranges: tuple[Range, ...], deferred: tuple[ev.DueRun, ...]) -> bool:
    """Stepping over is written down only when something behind it is leased, or to get on."""
    return bool(ranges) or len(deferred) >= SCAN_RUNS_MAX


def _attempt_runs(state: GroupState, start: int, end: int) -> list[tuple[int, int, int]]:
    """The attempt that each version of a new lease is on."""
    if start > state.frontier:
        return [(start, end, 1)]
    runs = [(s, e, w.attempts + 1) for s, e, w in state.waiting.within(start, end)]
    fresh = max(start, state.frontier + 1)
    return [*runs, (fresh, end, 1)] if fresh <= end else runs


def _decide_ack(state: GroupState, command: cmd.Ack, _now: Moment) -> cmd.Decision:
    lease = state.leases.get(command.lease_id)
    done: list[Range] = []
    refused: list[Range] = []
    for start, end in merged(command.ranges):
        held = [] if lease is None else [(s, e) for s, e, _ in lease.held.within(start, end)]
        done.extend(held)
        refused.extend(_not_acked(state, start, end, held))
    events = (ev.Acked(command.lease_id, tuple(done)),) if done else ()
    return cmd.Decision(events, cmd.Verdict(tuple(done), tuple(refused)))


def _not_acked(state: GroupState, start: int, end: int, held: list[Range]) -> list[Range]:
    """What of `start..end` is neither held nor acked before: a repeated ack is fine."""
    if held == [(start, end)]:
        return []
    known = RangeSet([*held, *state.settled.within(start, end)])
    for given_up in (state.parked, state.dropped):
        for s, e in list(given_up.within(start, end)):
            known.discard(s, e)
    return list(known.gaps(start, end))


def _decide_nack(state: GroupState, command: cmd.Nack, now: Moment) -> cmd.Decision:
    lease = state.leases.get(command.lease_id)
    asked = merged(command.ranges)
    held = [] if lease is None else [run for s, e in asked for run in lease.held.within(s, e)]
    done = RangeSet((s, e) for s, e, _ in held)
    refused = tuple(gap for s, e in asked for gap in done.gaps(s, e))
    if command.park and held:
        ranges = tuple(done)
        parked = ev.Parked(ranges, "nack", command.error, lease_id=command.lease_id)
        return cmd.Decision((parked,), cmd.Verdict((), refused, ranges))
    events = _give_back(command.lease_id, held, now, command.delay_ms, command.error)
    given_up = tuple(r for event in events if isinstance(event, ev.Parked) for r in event.ranges)
    return cmd.Decision(events, cmd.Verdict(tuple(done), refused, given_up))


def _give_back(
    lease_id: int,
    held: list[tuple[int, int, int]],
    now: Moment,
    delay_ms: int | None,
    error: str | None,
    *,
    expired: bool = False,
) -> tuple[ev.Event, ...]:
    """Retry what has attempts left, give up on the rest: decided at once, not at the next lease."""
    limit = now.policy.max_attempts
    spent = merged(tuple((s, e) for s, e, attempt in held if attempt >= limit))
    again = tuple(
        (s, e, now.now_ms + (_backoff(now, attempt) if delay_ms is None else delay_ms))
        for s, e, attempt in held
        if attempt < limit
    )
    events: list[ev.Event] = []
    if spent:
        cause = "expired" if expired else "exhausted"
        events.append(_give_up(spent, now, cause, error, lease_id))
    if again and expired:
        events.append(ev.Expired(lease_id, again))
    elif again:
        events.append(ev.Nacked(lease_id, again, error))
    return tuple(events)


def _backoff(now: Moment, attempt: int) -> int:
    policy = now.policy
    return backoff_ms(attempt, policy.backoff_base_ms, policy.backoff_cap_ms, now.jitter)


def _give_up(
    ranges: tuple[Range, ...], now: Moment, cause: str, error: str | None, lease_id: int
) -> ev.Event:
    match now.policy.on_exhausted:
        case "block":
            return ev.Blocked(ranges, cause, error, now.now_ms, lease_id)
        case "drop":
            return ev.Dropped(ranges, cause, lease_id)
        case _:
            return ev.Parked(ranges, cause, error, lease_id=lease_id)


def _decide_return(state: GroupState, command: cmd.Return, now: Moment) -> cmd.Decision:
    lease = state.leases.get(command.lease_id)
    asked = command.ranges or ()
    if lease is None:
        return cmd.Decision((), cmd.Verdict(refused=asked))
    if command.ranges is None:
        done = RangeSet((s, e) for s, e, _ in lease.held)
    else:
        done = RangeSet((s, e) for lo, hi in asked for s, e, _ in lease.held.within(lo, hi))
    refused = tuple(gap for low, high in asked for gap in done.gaps(low, high))
    runs = tuple((start, end, now.now_ms) for start, end in done)
    events = (ev.Nacked(command.lease_id, runs, None, returned=True),) if runs else ()
    return cmd.Decision(events, cmd.Verdict(tuple(done), refused))


def _decide_extend(state: GroupState, command: cmd.Extend, now: Moment) -> cmd.Decision:
    lease = state.leases.get(command.lease_id)
    if lease is None:
        return cmd.Decision((), None)
    wanted = min(now.now_ms + command.visibility_ms, lease.leased_ms + LEASE_AGE_MS_MAX)
    if wanted <= lease.deadline_ms:
        return cmd.Decision((), lease.deadline_ms)
    return cmd.Decision((ev.Extended(command.lease_id, wanted),), wanted)


def _decide_sweep(state: GroupState, _command: cmd.Sweep, now: Moment) -> cmd.Decision:
    events: list[ev.Event] = []
    for lease_id in state.overdue_leases(now.now_ms):
        held = list(state.leases[lease_id].held)
        events.extend(_give_back(lease_id, held, now, None, "lease expired", expired=True))
    overdue = merged((*_still_free(state, state.overdue, now), *_freed_too_late(events, now)))
    if overdue:
        events.append(ev.Dropped(overdue, "ttl"))
    return cmd.Decision(tuple(events), None)


def _freed_too_late(events: list[ev.Event], now: Moment) -> Iterator[Range]:
    """What an expired lease just gave back, past its own time too: one sweep does it all."""
    for event in events:
        if isinstance(event, ev.Expired):
            for start, end, _ in event.runs:
                yield from now.lane.schedule.expired.within(start, end)


_DECIDE: dict[type[Any], Callable[[GroupState, Any, Moment], cmd.Decision]] = {
    cmd.CreateGroup: verbs.create,
    cmd.LeaseMessages: _decide_lease,
    cmd.Ack: _decide_ack,
    cmd.Nack: _decide_nack,
    cmd.Return: _decide_return,
    cmd.Extend: _decide_extend,
    cmd.Sweep: _decide_sweep,
    cmd.Park: verbs.park,
    cmd.Unblock: verbs.unblock,
    cmd.Purge: verbs.purge,
    cmd.Redrive: verbs.redrive,
    cmd.Seek: verbs.seek,
    cmd.ChangeConfig: verbs.change_config,
    cmd.DeleteGroup: verbs.delete,
}
_NEEDS_GROUP = {cmd.LeaseMessages, cmd.Park, cmd.Unblock, cmd.Purge, cmd.Redrive, cmd.Seek}
