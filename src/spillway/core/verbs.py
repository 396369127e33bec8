"""The operator's verbs on a group, decided: create, park, unblock, purge, redrive, seek, delete.

Each looks and changes nothing, like every part of `core.group.decide`. A verb does what it can of
the ranges that it was given and leaves the rest alone; when nothing is left, all is refused.
"""

from spillway.core import commands as cmd
from spillway.core import events as ev
from spillway.core.ranges import Range, merged
from spillway.core.state import GroupState, Moment, free_in


def create(state: GroupState, command: cmd.CreateGroup, now: Moment) -> cmd.Decision:
    """Begin behind a version; a group that exists stays as it is."""
    if state.exists:
        return cmd.Decision((), cmd.Verdict())
    created = ev.GroupCreated(_within_lane(command.after, now), command.kind, command.actor)
    return cmd.Decision((created,), cmd.Verdict())


def _within_lane(after: int, now: Moment) -> int:
    return max(now.lane.pruned_to, min(after, now.lane.tail))


def park(state: GroupState, command: cmd.Park, now: Moment) -> cmd.Decision:
    """Give up on what is not settled."""
    asked = merged(command.ranges)
    tail = now.lane.tail
    ranges = tuple(gap for s, e in asked for gap in state.settled.gaps(s, min(e, tail)))
    if not ranges:
        return _refused(command.ranges)
    parked = ev.Parked(ranges, "operator", None, command.actor, command.reason)
    return cmd.Decision((parked,), cmd.Verdict(parked=ranges))


def _refused(ranges: tuple[Range, ...]) -> cmd.Decision:
    return cmd.Decision((), cmd.Verdict(refused=ranges))


def unblock(state: GroupState, command: cmd.Unblock, now: Moment) -> cmd.Decision:
    """Let blocked versions go: back to the start, over the edge, or to the dead letters."""
    asked = merged(command.ranges)
    blocked = merged(tuple((s, e) for lo, hi in asked for s, e, _ in state.blocked.within(lo, hi)))
    if not blocked:
        return _refused(command.ranges)
    if command.action == "park":
        event: ev.Event = ev.Parked(blocked, "operator", None, command.actor, command.reason)
    else:
        event = ev.Unblocked(blocked, command.action, command.actor, command.reason, now.now_ms)
    return cmd.Decision((event,), cmd.Verdict(blocked))


def purge(state: GroupState, command: cmd.Purge, now: Moment) -> cmd.Decision:
    """Settle what waits, or forget dead letters. What is leased or blocked stays."""
    found = _parked_in if command.dead else free_in
    asked = merged(command.ranges)
    inside = [(low, min(high, now.lane.tail)) for low, high in asked if low <= now.lane.tail]
    ranges = merged(tuple(run for low, high in inside for run in found(state, low, high)))
    if not ranges:
        return _refused(command.ranges)
    purged = ev.Purged(ranges, command.dead, command.actor, command.reason)
    return cmd.Decision((purged,), cmd.Verdict(ranges))


def _parked_in(state: GroupState, low: int, high: int) -> list[Range]:
    return list(state.parked.within(low, high))


def redrive(state: GroupState, command: cmd.Redrive, _now: Moment) -> cmd.Decision:
    """Dead letters leave for their lane, where they become new messages."""
    ranges = tuple(r for lo, hi in merged(command.ranges) for r in state.parked.within(lo, hi))
    if not ranges:
        return _refused(command.ranges)
    return cmd.Decision((ev.Redriven(ranges, command.actor, command.reason),), cmd.Verdict(ranges))


def seek(_state: GroupState, command: cmd.Seek, now: Moment) -> cmd.Decision:
    """Move behind a version, as far as the lane still has messages."""
    sought = ev.Sought(_within_lane(command.after, now), command.actor, command.reason)
    return cmd.Decision((sought,), cmd.Verdict())


def change_config(state: GroupState, command: cmd.ChangeConfig, _now: Moment) -> cmd.Decision:
    """The options live in the queue's row; each story says when they changed."""
    events = (ev.ConfigChanged(command.changes, command.actor),) if state.exists else ()
    return cmd.Decision(events, cmd.Verdict())


def delete(state: GroupState, command: cmd.DeleteGroup, _now: Moment) -> cmd.Decision:
    """Forget the group; whoever creates it again starts from nothing."""
    events = (ev.Deleted(command.actor, command.reason),) if state.exists else ()
    return cmd.Decision(events, cmd.Verdict())
