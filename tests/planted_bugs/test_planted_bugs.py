"""Planted bugs: each is put into the core or the simulated broker, and the simulation must find it.

A simulation that finds nothing proves nothing. Each bug below is one small change that a reviewer
could miss; without it the same seeds pass (tests/simulation plays them).
"""

from dataclasses import replace

import pytest

from spillway.core import checkpoint, fold, group
from spillway.core import commands as cmd
from spillway.core import events as ev
from spillway.core.lane import DedupeWindow, Schedule
from spillway.core.ranges import RangeMap, RangeSet
from spillway.core.state import GroupState
from spillway.testing.simulator import BrokenPromiseError, broker, run
from spillway.testing.simulator.storage import Storage

SEEDS = 100
BUGS = {}


def bug(plant):
    """A bug, named by its function, described by its docstring."""
    BUGS[plant.__name__] = plant
    return plant


@bug
def accept_a_stale_ack(patch):
    """An ack settles what another lease holds by now."""

    def decide_ack(state, command, now):
        holders = {
            i for i, lease in state.leases.items() for s, e in command.ranges if lease.held.covered(s, e)
        }
        lease_id = command.lease_id if command.lease_id in state.leases or not holders else min(holders)
        return honest(state, replace(command, lease_id=lease_id), now)

    honest = group._DECIDE[cmd.Ack]
    patch.setitem(group._DECIDE, cmd.Ack, decide_ack)


@bug
def lose_an_attempt(patch):
    """An expired lease does not count as a delivery."""
    patch.setitem(
        fold._EVOLVE,
        ev.Expired,
        lambda state, event: fold._wait_again(state, event, "lease expired", spent=0),
    )


@bug
def forget_a_hole(patch):
    """A gap of one version between acked ranges counts as acked."""

    def add(self, start, end):
        honest(self, start - 1 if start - 2 in self else start, end)

    honest = RangeSet.add
    patch.setattr(RangeSet, "add", add)


@bug
def skip_the_fence_check(patch):
    """A deposed broker may still write."""
    patch.setattr(Storage, "check_fence", lambda self, epoch: None)


@bug
def drop_a_deferred_message_at_checkpoint(patch):
    """A checkpoint holds what was tried before, and forgets what waits for its own time."""

    def to_record(state):
        record = list(honest(state))
        record[9] = [run for run in record[9] if run[2]]
        return tuple(record)

    honest = checkpoint.to_record
    patch.setattr(checkpoint, "to_record", to_record)


@bug
def never_end_an_expired_lease(patch):
    """The deadline passes and nobody looks."""
    patch.setattr(GroupState, "overdue_leases", lambda self, now_ms: [])
    patch.setattr(group, "is_due", lambda state, now: state.waiting.ripen(now.now_ms))


@bug
def ack_the_whole_lease(patch):
    """An ack of one message settles all that the lease holds."""

    def decide_ack(state, command, now):
        lease = state.leases.get(command.lease_id)
        held = tuple((s, e) for s, e, _ in lease.held) if lease else command.ranges
        return honest(state, replace(command, ranges=held), now)

    honest = group._DECIDE[cmd.Ack]
    patch.setitem(group._DECIDE, cmd.Ack, decide_ack)


@bug
def park_without_a_dead_letter(patch):
    """An expired message is parked, and its dead-letter row is forgotten."""
    honest = broker.dead_letters
    patch.setattr(
        broker, "dead_letters", lambda event: set() if event.cause == "expired" else honest(event)
    )


@bug
def forget_who_pushed(patch):
    """The dedupe window does not know a transaction id."""
    patch.setattr(DedupeWindow, "find", lambda self, transaction_id: None)


@bug
def deliver_once_too_often(patch):
    """The last attempt is followed by another."""

    def give_back(lease_id, held, now, *rest, **more):
        policy = replace(now.policy, max_attempts=now.policy.max_attempts + 1)
        return honest(lease_id, held, replace(now, policy=policy), *rest, **more)

    honest = group._give_back
    patch.setattr(group, "_give_back", give_back)


@bug
def keep_a_lease_through_a_seek(patch):
    """A seek moves the group, but a holder may still settle."""

    def on_sought(state, event):
        leases = dict(state.leases)
        honest(state, event)
        state.leases.update(leases)

    honest = fold._EVOLVE[ev.Sought]
    patch.setitem(fold._EVOLVE, ev.Sought, on_sought)


@bug
def forget_the_attempts_at_checkpoint(patch):
    """After a restart a waiting message starts to count again."""

    def to_record(state):
        record = list(honest(state))
        record[9] = [(s, e, 0, due, error) for s, e, _, due, error in record[9]]
        return tuple(record)

    honest = checkpoint.to_record
    patch.setattr(checkpoint, "to_record", to_record)


@bug
def let_a_retry_be_overtaken(patch):
    """In an ordered lane a message that waits for its retry holds nothing back."""
    from spillway.core.retry import WaitingRoom

    patch.setattr(WaitingRoom, "first_unripe_retry", lambda self: None)


@bug
def lease_to_two_in_an_ordered_lane(patch):
    """An ordered lane does not look whether it is busy."""
    from spillway.core import order

    patch.setitem(order.CHOOSE, "partition", order.choose_unordered)


@bug
def step_over_a_ready_message(patch):
    """Stepping over a delayed message takes the ready ones before it along."""

    def on_deferred(state, event):
        for start, end, due_ms in event.runs:
            state.waiting.put(start, end, fold.Waiting(0, due_ms))
            state.frontier = end

    patch.setitem(fold._EVOLVE, ev.Deferred, on_deferred)


@bug
def deliver_after_the_time_to_live(patch):
    """Nobody notes that a message is over."""
    patch.setattr(Schedule, "ripen", lambda self, now_ms: None)


@bug
def deliver_before_its_time(patch):
    """`deliver_at` is stored and not looked at."""
    patch.setattr(Schedule, "not_yet", lambda self, start, end, now_ms: iter(()))


@bug
def believe_that_a_commit_failed(patch):
    """When the connection dies, the broker calls it a failure without asking the log."""

    def reload_after(self, batch):
        dropped = self.draft
        self.in_flight, self.draft = None, broker.Batch(len(self.storage.messages) + 1)
        for answer, _ in [*batch.answers, *dropped.answers]:
            answer(None)

    patch.setattr(broker.Broker, "_reload_after", reload_after)


@bug
def answer_before_the_commit(patch):
    """A reply goes out when it is decided, not when it is stored."""

    def write(self, answer, reply):
        answer(reply)
        honest(self, lambda _: None, reply)

    honest = broker.Broker._write
    patch.setattr(broker.Broker, "_write", write)


@bug
def lose_a_piece_of_a_cut_run(patch):
    """Taking from the middle of a run forgets what lay behind the cut."""

    def take(self, start, end):
        taken = honest(self, start, end)
        if taken and self.get(end + 1) is not None and self.get(start - 1) is not None:
            honest(self, end + 1, end + 1)
        return taken

    honest = RangeMap.take
    patch.setattr(RangeMap, "take", take)


def seeds_until_found():
    for seed in range(SEEDS):
        try:
            run(seed)
        except BrokenPromiseError as error:
            print(str(error)[:200])
            return seed + 1
    return None


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name, monkeypatch):
    """The simulation breaks a promise within a fixed number of seeds."""
    BUGS[name](monkeypatch)
    found = seeds_until_found()
    assert found, f"{name} survived {SEEDS} seeds: {BUGS[name].__doc__}"
    print(f"{name}: seed {found - 1}")


def test_without_a_bug_the_same_seeds_pass():
    """The mutations are what was found, not the worlds."""
    assert seeds_until_found() is None
