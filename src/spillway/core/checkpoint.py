"""A checkpoint: the fold so far as plain tuples. A cache of the control log, never the truth."""

from collections.abc import Callable
from typing import Any

from spillway.core.errors import InvariantError, SpillwayError
from spillway.core.ranges import RangeMap, RangeSet
from spillway.core.retry import Waiting
from spillway.core.state import Blockade, Blocking, GroupState, Lease, rebuild_deadlines

Record = tuple[Any, ...]

SCHEMA = 1
UPCASTERS: dict[int, Callable[[Record], Record]] = {}
"""old schema → the same content in the next schema."""


class UnknownCheckpointError(SpillwayError):
    """The checkpoint is damaged, or has a schema that this release does not know."""

    code = "unknown_checkpoint"
    hint = "nothing is lost: the state is folded from the control log instead"


def to_record(state: GroupState) -> Record:
    """The whole state, in an order that does not depend on how it came about."""
    return (
        SCHEMA,
        state.exists,
        state.kind,
        state.frontier,
        state.next_lease_id,
        list(state.settled),
        list(state.parked),
        list(state.dropped),
        [_lease_record(i, lease) for i, lease in sorted(state.leases.items())],
        [(s, e, w.attempts, w.due_ms, w.error) for s, e, w in state.waiting.runs()],
        [(s, e, b.attempts, b.at_ms, b.error) for s, e, b in state.blocked],
    )


def _lease_record(lease_id: int, lease: Lease) -> Record:
    return (lease_id, list(lease.held), lease.deadline_ms, lease.leased_ms, lease.consumer)


def from_record(record: Record) -> GroupState:
    """The state behind a checkpoint of this or an older release."""
    try:
        return _restore(_upcast(record))
    except (IndexError, InvariantError, KeyError, TypeError, ValueError) as error:
        raise UnknownCheckpointError(f"the checkpoint is damaged: {error}") from error


def _upcast(record: Record) -> Record:
    while record[0] != SCHEMA:
        upcast = UPCASTERS.get(record[0])
        if upcast is None:
            raise UnknownCheckpointError(f"checkpoint schema {record[0]}, known is {SCHEMA}")
        record = upcast(record)
    return record


def _restore(record: Record) -> GroupState:
    _, exists, kind, frontier, next_lease_id, settled, parked, dropped, *rest = record
    leases, waiting, blocked = rest
    state = GroupState(
        exists=exists,
        kind=kind,
        settled=RangeSet(settled),
        parked=RangeSet(parked),
        dropped=RangeSet(dropped),
        frontier=frontier,
        leases={i: Lease(RangeMap(held), d, at, who) for i, held, d, at, who in leases},
        blocked=Blockade((s, e, Blocking(a, at, error)) for s, e, a, at, error in blocked),
        next_lease_id=next_lease_id,
    )
    for start, end, attempts, due_ms, error in waiting:
        state.waiting.put(start, end, Waiting(attempts, due_ms, error))
    rebuild_deadlines(state)
    return state
