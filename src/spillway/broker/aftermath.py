"""What follows from an event beside its fold: counts, dead letters, who looks again."""

from collections.abc import Iterable
from typing import Any

from spillway.broker.draft import Draft
from spillway.broker.lanes import LaneEntry
from spillway.core import events as ev
from spillway.core.state import GroupState, Moment, attempts_of, leased_in
from spillway.log.writer import NewDead

COUNTED: dict[type[Any], str] = {
    ev.Leased: "consumed",
    ev.Acked: "acked",
    ev.Nacked: "nacked",
    ev.Expired: "redelivered",
    ev.Parked: "parked",
    ev.Blocked: "blocked",
    ev.Dropped: "dropped",
    ev.Redriven: "redriven",
    ev.Purged: "purged",
}


FREES = (
    ev.Nacked,
    ev.Expired,
    ev.Unblocked,
    ev.Sought,
    ev.Parked,
    ev.Dropped,
    ev.Purged,
)
"""Events after which something may be leasable that was not before: what came back, or what stood
behind a message that is out of the way now.
"""


def count(draft: Draft, entry: LaneEntry, events: tuple[ev.Event, ...]) -> None:
    """Note in the draft what a decision did; it counts once the draft is in the log."""
    queue_id = entry.facts.queue.queue_id
    for event in events:
        counted = COUNTED.get(type(event))
        if counted is not None:
            draft.counts[queue_id, counted] += _messages(event)
    expired = len(set(_expired_leases(events)))
    if expired:
        draft.counts[queue_id, "expired_leases"] += expired


def _messages(event: ev.Event) -> int:
    runs: tuple[tuple[int, ...], ...] = getattr(event, "ranges", ()) or getattr(event, "runs", ())
    return sum(run[1] - run[0] + 1 for run in runs)


def _expired_leases(events: tuple[ev.Event, ...]) -> Iterable[int]:
    """The leases whose deadline passed; twice where one event gives up on what was on its last
    attempt, and another takes back the rest.
    """
    for event in events:
        match event:
            case (
                ev.Expired(lease_id=lease_id)
                | ev.Parked(cause="expired", lease_id=lease_id)
                | ev.Blocked(cause="expired", lease_id=lease_id)
                | ev.Dropped(cause="expired", lease_id=lease_id)
            ):
                yield lease_id
            case _:
                pass


def dead_letters(
    entry: LaneEntry, group: str, state: GroupState, event: ev.Parked, moment: Moment
) -> Iterable[NewDead]:
    """A dead letter for each version of a Parked event (looked at before the event is folded)."""
    facts = entry.facts
    if event.lease_id:
        leased = state.leases[event.lease_id].held
    else:
        leased = leased_in(state, event.ranges[0][0], event.ranges[-1][1])
    for start, end in event.ranges:
        for version in range(start, end + 1):
            yield NewDead(
                facts.queue.queue_id,
                facts.lane_id,
                group,
                version,
                attempts_of(state, version, leased),
                event.cause,
                event.error or _last_error(state, version),
                event.actor,
                event.reason,
                moment.now_ms,
            )


def _last_error(state: GroupState, version: int) -> str | None:
    waiting = state.waiting.get(version)
    if waiting is not None:
        return waiting.error
    blocking = state.blocked.get(version)
    return blocking.error if blocking else None
