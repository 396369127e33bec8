"""The state of a group on a lane, and ways to look at it. `core.group` says how it moves."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import islice
from operator import itemgetter

from spillway.core.errors import SpillwayError
from spillway.core.lane import Lane
from spillway.core.policy import Policy
from spillway.core.ranges import Range, RangeMap, RangeSet, are_ascending
from spillway.core.ranges import total as total_of
from spillway.core.retry import WaitingRoom

READY, DEFERRED, LEASED = "ready", "deferred", "leased"
SETTLED, PARKED, BLOCKED, DROPPED = "settled", "parked", "blocked", "dropped"
STATES = (READY, DEFERRED, LEASED, SETTLED, PARKED, BLOCKED, DROPPED)


RIPE_LOOKED_AT = 100
"""How many runs of what came back are asked which is due for longest."""
DEADLINES_SPARE = 64
"""How many reminders beyond twice the leases are kept before they are made afresh."""


class IllegalTransitionError(SpillwayError):
    """An event does not fit the state of the messages that it names."""

    code = "illegal_transition"


@dataclass(frozen=True, slots=True)
class Blocking:
    """Why a version is blocked."""

    attempts: int
    at_ms: int
    error: str | None = None


class Blockade(RangeMap[Blocking]):
    """The blocked versions; those next to each other make one hole, whatever blocked them."""

    __slots__ = ("holes",)

    def __init__(self, runs: Iterable[tuple[int, int, Blocking]] = ()) -> None:
        self.holes = RangeSet()
        super().__init__(runs)

    def put(self, start: int, end: int, value: Blocking) -> None:
        """Block versions; none of them may be blocked yet."""
        super().put(start, end, value)
        self.holes.add(start, end)

    def take(self, start: int, end: int) -> list[tuple[int, int, Blocking]]:
        """Remove and return what lies inside `start..end`."""
        self.holes.discard(start, end)
        return super().take(start, end)


@dataclass(slots=True)
class Lease:
    """A holder's fenced right to some versions; the value of each is its attempt number."""

    held: RangeMap[int]
    deadline_ms: int
    leased_ms: int
    consumer: str | None = None


@dataclass(slots=True)
class GroupState:
    """The fold of a (lane, group)'s control log."""

    exists: bool = False
    kind: str = "lease"
    settled: RangeSet = field(default_factory=RangeSet)
    parked: RangeSet = field(default_factory=RangeSet)
    dropped: RangeSet = field(default_factory=RangeSet)
    frontier: int = 0
    leases: dict[int, Lease] = field(default_factory=dict)
    waiting: WaitingRoom = field(default_factory=WaitingRoom)
    blocked: Blockade = field(default_factory=Blockade)
    next_lease_id: int = 1
    deadlines: list[tuple[int, int]] = field(default_factory=list, compare=False)
    # Where to look for messages past their time to live, so that none is looked at twice.
    lapses_seen: int = field(default=0, compare=False)
    came_back: list[Range] = field(default_factory=list, compare=False)
    overdue: tuple[Range, ...] = field(default=(), compare=False)

    @property
    def trim(self) -> int:
        """Everything up to here is done for the group."""
        return self.settled.prefix_end

    def remind(self, lease_id: int, deadline_ms: int) -> None:
        """Note when a lease is to be looked at."""
        heappush(self.deadlines, (deadline_ms, lease_id))
        # Most leases are done long before their deadline: their reminders must not pile up.
        if len(self.deadlines) > 2 * len(self.leases) + DEADLINES_SPARE:
            rebuild_deadlines(self)

    def overdue_leases(self, now_ms: int) -> list[int]:
        """The leases whose deadline has come, without looking at the others."""
        return sorted(
            {
                lease_id
                for lease_id in _reached(self.deadlines, now_ms)
                if lease_id in self.leases and self.leases[lease_id].deadline_ms <= now_ms
            }
        )

    def next_deadline_ms(self) -> int | None:
        """When the next lease ends by itself."""
        while self.deadlines:
            deadline_ms, lease_id = self.deadlines[0]
            lease = self.leases.get(lease_id)
            if lease is not None and lease.deadline_ms == deadline_ms:
                return deadline_ms
            heappop(self.deadlines)
        return None


@dataclass(frozen=True, slots=True)
class Moment:
    """What a decision may look at beside the state: the time, the rules, the lane, a die's roll."""

    now_ms: int
    policy: Policy
    lane: Lane
    jitter: float = 0.5


def leased_in(state: GroupState, low: int, high: int) -> RangeMap[int]:
    """The leased versions of `low..high` with their attempts: one look at every lease."""
    leased: RangeMap[int] = RangeMap()
    if low <= state.frontier:
        for lease in state.leases.values():
            for start, end, attempt in lease.held.within(low, high):
                leased.put(start, end, attempt)
    return leased


def state_of(
    state: GroupState, moment: Moment, version: int, leased: RangeMap[int] | None = None
) -> str:
    """In which of the seven states a version is. `leased`: what is, where it is known already."""
    if version in state.settled:
        if version in state.parked:
            return PARKED
        return DROPPED if version in state.dropped else SETTLED
    if version in state.blocked:
        return BLOCKED
    if version in (leased_in(state, version, version) if leased is None else leased):
        return LEASED
    waiting = state.waiting.get(version)
    if waiting is not None:
        return READY if waiting.due_ms <= moment.now_ms else DEFERRED
    later = any(moment.lane.schedule.not_yet(version, version, moment.now_ms))
    return DEFERRED if later else READY


def attempts_of(state: GroupState, version: int, leased: RangeMap[int] | None = None) -> int:
    """How many leases have covered a version that is not settled."""
    held = (leased_in(state, version, version) if leased is None else leased).get(version)
    if held is not None:
        return held
    if (waiting := state.waiting.get(version)) is not None:
        return waiting.attempts
    blocking = state.blocked.get(version)
    return blocking.attempts if blocking else 0


def free_in(state: GroupState, low: int, high: int) -> list[Range]:
    """What of `low..high` is ready or deferred."""
    waiting = [(s, e) for s, e, _ in state.waiting.within(low, high)]
    fresh = max(low, state.frontier + 1)
    return [*waiting, *state.settled.gaps(fresh, high)] if fresh <= high else waiting


def counts(state: GroupState, moment: Moment) -> dict[str, int]:
    """How many messages are in each state. Together they are the tail: the conservation law."""
    state.waiting.ripen(moment.now_ms)
    tail = moment.lane.tail
    fresh = total_of(state.settled.gaps(state.frontier + 1, tail))
    later = sum(
        total_of(state.settled.gaps(start, end))
        for start, end, _ in moment.lane.schedule.not_yet(state.frontier + 1, tail, moment.now_ms)
    )
    return {
        READY: fresh - later + state.waiting.ripe.total,
        DEFERRED: later + state.waiting.unripe_total,
        LEASED: sum(lease.held.total for lease in state.leases.values()),
        SETTLED: state.settled.total - state.parked.total - state.dropped.total,
        PARKED: state.parked.total,
        BLOCKED: state.blocked.total,
        DROPPED: state.dropped.total,
    }


def ready_heads(state: GroupState, moment: Moment) -> list[tuple[int, int]]:
    """Of what came back and of what is new, the one that could be leased for longest.

    Each with its due time; 0 where it was due from the start.
    """
    state.waiting.ripen(moment.now_ms)
    ripe = islice(state.waiting.ripe.within(1, moment.lane.tail), RIPE_LOOKED_AT)
    deliver_ms = moment.lane.schedule.deliver_ms
    back = [(start, waiting.due_ms or deliver_ms(start)) for start, _, waiting in ripe]
    heads = [min(back, key=itemgetter(1))] if back else []
    fresh = _first_fresh(state, moment)
    return heads if fresh is None else [*heads, (fresh, deliver_ms(fresh))]


def _first_fresh(state: GroupState, moment: Moment) -> int | None:
    for low, high in state.settled.gaps(state.frontier + 1, moment.lane.tail):
        for start, _, due_ms in moment.lane.schedule.split(low, high, moment.now_ms):
            if not due_ms:
                return start
    return None


def next_wake_ms(state: GroupState, moment: Moment) -> int | None:
    """When the clock alone will make something leasable, or end a lease."""
    fresh = moment.lane.schedule.next_delivery_ms(moment.now_ms)
    times = (state.waiting.next_due_ms(), state.next_deadline_ms(), fresh)
    return min((t for t in times if t is not None), default=None)


def validate(state: GroupState, tail: int) -> None:
    """Check every rule that ties the parts of the state together."""
    for lease in state.leases.values():
        _refuse_place(bool(lease.held), "an empty lease was kept")
        _refuse_place(all(attempt >= 1 for _, _, attempt in lease.held), "a lease is an attempt")
    places = sorted(_places(state))
    _refuse_place(are_ascending(places), "a version is in two places")
    last = places[-1][1] if places else 0
    _refuse_place(max(last, state.frontier) <= tail, "something is beyond the tail")
    touched = sum(min(e, state.frontier) - s + 1 for s, e in places if s <= state.frontier)
    _refuse_place(touched == state.frontier, "a touched version is nowhere")
    for subset in (state.parked, state.dropped):
        _refuse_place(all(state.settled.covers(s, e) for s, e in subset), "given up, not settled")
    both = any(any(state.dropped.within(s, e)) for s, e in state.parked)
    _refuse_place(not both, "parked and dropped at once")


def _places(state: GroupState) -> Iterator[Range]:
    """Every range of every place."""
    yield from state.settled
    for lease in state.leases.values():
        yield from ((start, end) for start, end, _ in lease.held)
    yield from ((start, end) for start, end, _ in state.waiting.ripe)
    yield from ((start, end) for start, end, _ in state.waiting.unripe)
    yield from ((start, end) for start, end, _ in state.blocked)


def _refuse_place(holds: bool, why: str) -> None:  # noqa: FBT001
    if not holds:
        raise IllegalTransitionError(why)


def _reached(deadlines: list[tuple[int, int]], now_ms: int) -> Iterator[int]:
    """The part of the heap that is due: it hangs together at the root."""
    nodes = [0]
    while nodes:
        node = nodes.pop()
        if node < len(deadlines) and deadlines[node][0] <= now_ms:
            yield deadlines[node][1]
            nodes += (2 * node + 1, 2 * node + 2)


def rebuild_deadlines(state: GroupState) -> None:
    """After a restore: the heap of deadlines is derived from the leases."""
    state.deadlines = [(lease.deadline_ms, lease_id) for lease_id, lease in state.leases.items()]
    heapify(state.deadlines)
