"""A group on a lane with a clock in the hand: commands in, replies out, every event kept.

The smallest way to try the core by hand or in a test; no PostgreSQL, no broker, no waiting.
"""

from typing import Any

import msgspec

from spillway.core import checkpoint
from spillway.core import commands as cmd
from spillway.core import events as ev
from spillway.core.group import evolve, handle
from spillway.core.lane import Lane
from spillway.core.policy import Policy
from spillway.core.ranges import Range
from spillway.core.state import GroupState, Moment, counts, state_of, validate

START_MS = 1_000_000


class Rig:
    """One group of one lane, and the hand on its clock."""

    def __init__(self, messages: int = 0, *, exists: bool = True, **policy: Any) -> None:
        self.now_ms = START_MS
        self.jitter = 0.5
        self.policy = Policy(**policy)
        self.lane = Lane()
        self.state = GroupState()
        self.events: list[ev.Event] = []
        self.push(messages)
        if exists:
            self.do(cmd.CreateGroup())

    @property
    def moment(self) -> Moment:
        """What a decision may look at now."""
        return Moment(self.now_ms, self.policy, self.lane, self.jitter)

    def push(
        self, messages: int = 1, *, delay_ms: int | None = None, ttl_ms: int | None = None
    ) -> int:
        """Append messages; the version of the last one."""
        for _ in range(messages):
            self.lane.tail += 1
            if delay_ms is not None:
                self.lane.schedule.defer(self.lane.tail, self.now_ms + delay_ms)
            if ttl_ms is not None:
                self.lane.schedule.expire(self.lane.tail, self.now_ms + ttl_ms)
        return self.lane.tail

    def do(self, command: cmd.Command) -> Any:  # noqa: ANN401 (each command has its own reply)
        """Handle a command and check the state that it leaves."""
        decision = handle(self.state, command, self.moment)
        self.events.extend(decision.events)
        validate(self.state, self.lane.tail)
        return decision.reply

    def lease(self, count: int = 1, visibility_ms: int | None = None) -> cmd.Grant:
        """Lease messages."""
        grant: cmd.Grant = self.do(cmd.LeaseMessages(count, visibility_ms))
        return grant

    def ack(self, lease_id: int, *ranges: Range) -> cmd.Verdict:
        """Ack versions of a lease."""
        verdict: cmd.Verdict = self.do(cmd.Ack(lease_id, ranges))
        return verdict

    def nack(self, lease_id: int, *ranges: Range, **options: Any) -> cmd.Verdict:
        """Nack versions of a lease."""
        verdict: cmd.Verdict = self.do(cmd.Nack(lease_id, ranges, **options))
        return verdict

    def wait(self, ms: int) -> None:
        """Let the clock move, and act."""
        self.now_ms += ms
        self.do(cmd.Sweep())

    def where(self, version: int) -> str:
        """The state of a version."""
        return state_of(self.state, self.moment, version)

    def counts(self) -> dict[str, int]:
        """How many messages are in each state, without those where none are."""
        return {name: n for name, n in counts(self.state, self.moment).items() if n}

    def record(self) -> checkpoint.Record:
        """The state as its checkpoint."""
        return checkpoint.to_record(self.state)


def fold(events: list[ev.Event], state: GroupState | None = None) -> GroupState:
    """The state after events, from nothing or from a checkpoint, by way of their stored forms."""
    state = GroupState() if state is None else state
    for event in events:
        evolve(state, ev.from_record(through_storage(ev.to_record(event))))
    return state


def through_storage(record: tuple[Any, ...]) -> tuple[Any, ...]:
    """What PostgreSQL gives back of a record: the same values, with lists for tuples."""
    return tuple(msgspec.msgpack.decode(msgspec.msgpack.encode(record)))
