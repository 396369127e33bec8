"""The core beside its oracle: any walk of commands, pushes and clock, compared after every step."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spillway.core import checkpoint
from spillway.core import commands as cmd
from spillway.core.policy import Policy
from spillway.core.state import GroupState, attempts_of, validate
from spillway.testing.model import Oracle
from spillway.testing.rig import Rig, fold, through_storage

PAUSES_MS = st.sampled_from([0, 1, 5, 20, 100, 400])
COUNTS = st.integers(1, 6)
PICKS = st.integers(0, 5)
# Small on purpose: everything meets everything.
SPANS = st.lists(
    st.tuples(st.integers(1, 14), st.integers(0, 3)).map(lambda s: (s[0], s[0] + s[1])),
    min_size=1,
    max_size=2,
).map(tuple)


def each(ranges) -> set[int]:
    return {version for run in ranges for version in range(run[0], run[1] + 1)}


class GroupMachine(RuleBasedStateMachine):
    """Every public command of a group, in any order."""

    @initialize(
        order=st.sampled_from(["none", "partition"]),
        max_attempts=st.integers(1, 3),
        on_exhausted=st.sampled_from(["park", "block", "drop"]),
        max_ack_holes=st.sampled_from([1, 100]),
        jitter=st.sampled_from([0.0, 0.4, 1.0]),
    )
    def begin(self, jitter, **options):
        policy = Policy(**options, visibility_ms=50, backoff_base_ms=20, backoff_cap_ms=60)
        self.rig = Rig(exists=False)
        self.rig.policy, self.rig.jitter = policy, jitter
        self.oracle = Oracle(policy)
        self.shadow, self.folded = GroupState(), 0
        self.do(cmd.CreateGroup())

    def do(self, command):
        self.oracle.sweep(self.rig.now_ms, self.rig.jitter)
        return self.rig.do(command)

    def lease_id(self, pick: int) -> int:
        """One of the last leases given, live or over."""
        return max(1, self.rig.state.next_lease_id - 1 - pick)

    # ------------------------------------------------------------ the lane and the clock

    @rule(count=COUNTS, delay_ms=st.none() | PAUSES_MS, ttl_ms=st.none() | PAUSES_MS)
    def push(self, count, delay_ms, ttl_ms):
        for _ in range(count if self.rig.lane.tail < 40 else 0):
            self.rig.push(1, delay_ms=delay_ms, ttl_ms=ttl_ms)
            now_ms = self.rig.now_ms
            self.oracle.push(
                0 if delay_ms is None else now_ms + delay_ms,
                None if ttl_ms is None else now_ms + ttl_ms,
            )

    @rule(pause_ms=PAUSES_MS)
    def wait(self, pause_ms):
        self.rig.now_ms += pause_ms
        self.do(cmd.Sweep())

    @rule(pause_ms=PAUSES_MS)
    def wait_unswept(self, pause_ms):
        """The next command meets the expired by itself."""
        self.rig.now_ms += pause_ms
        self.do(cmd.Extend(0, 1))

    # ------------------------------------------------------------ a holder

    @rule(count=COUNTS, visibility_ms=st.sampled_from([1, 30, 10**9]))
    def lease(self, count, visibility_ms):
        grant = self.do(cmd.LeaseMessages(count, visibility_ms))
        expected = self.oracle.lease(count, visibility_ms, self.rig.now_ms)
        got = [(v, attempt) for s, e, attempt in grant.runs for v in range(s, e + 1)]
        assert got == expected
        assert bool(grant.runs) == (grant.reason is None)

    @rule(pick=PICKS, spans=SPANS)
    def ack(self, pick, spans):
        lease_id = self.lease_id(pick)
        verdict = self.do(cmd.Ack(lease_id, spans))
        self.compare(verdict, self.oracle.ack(lease_id, each(spans)), spans)

    @rule(pick=PICKS)
    def ack_all(self, pick):
        lease_id = self.lease_id(pick)
        spans = tuple((m.version, m.version) for m in self.oracle.held_by(lease_id)) or ((1, 1),)
        verdict = self.do(cmd.Ack(lease_id, spans[::-1]))
        self.compare(verdict, self.oracle.ack(lease_id, each(spans)), spans)

    @rule(pick=PICKS, spans=SPANS, delay_ms=st.none() | PAUSES_MS, park=st.booleans())
    def nack(self, pick, spans, delay_ms, park):
        lease_id, now_ms = self.lease_id(pick), self.rig.now_ms
        verdict = self.do(cmd.Nack(lease_id, spans, delay_ms, "no", park))
        options = {"delay_ms": delay_ms, "park": park}
        told = self.oracle.nack(lease_id, each(spans), now_ms, self.rig.jitter, **options)
        self.compare(verdict, told, spans)

    def compare(self, verdict, told, spans):
        done, refused = told
        tail = self.rig.lane.tail
        assert each(verdict.done) | each(verdict.parked) == done
        assert {v for v in each(verdict.refused) if v <= tail} == refused
        assert {v for v in each(spans) if v > tail} <= each(verdict.refused)

    @rule(pick=PICKS)
    def give_back(self, pick):
        lease_id = self.lease_id(pick)
        self.do(cmd.Return(lease_id))
        self.oracle.give_back(lease_id, self.rig.now_ms)

    @rule(pick=PICKS, visibility_ms=st.sampled_from([1, 60, 10**9]))
    def extend(self, pick, visibility_ms):
        lease_id = self.lease_id(pick)
        deadline_ms = self.do(cmd.Extend(lease_id, visibility_ms))
        assert deadline_ms == self.oracle.extend(lease_id, visibility_ms, self.rig.now_ms)

    # ------------------------------------------------------------ an operator

    @rule(spans=SPANS)
    def park(self, spans):
        self.do(cmd.Park(spans))
        self.oracle.park(each(spans))

    @rule(spans=SPANS, action=st.sampled_from(["retry", "skip", "park"]))
    def unblock(self, spans, action):
        self.do(cmd.Unblock(spans, action))
        self.oracle.unblock(each(spans), action, self.rig.now_ms)

    @rule(spans=SPANS, dead=st.booleans())
    def purge(self, spans, dead):
        self.do(cmd.Purge(spans, dead))
        self.oracle.purge(each(spans), dead=dead)

    @rule(spans=SPANS)
    def redrive(self, spans):
        self.do(cmd.Redrive(spans))
        self.oracle.redrive(each(spans))

    @rule(after=st.integers(0, 20))
    def seek(self, after):
        self.do(cmd.Seek(after))
        self.oracle.seek(after)

    @rule(after=st.integers(0, 20))
    @precondition(lambda self: self.rig.lane.tail > 5)
    def delete_and_create(self, after):
        self.do(cmd.DeleteGroup())
        self.do(cmd.CreateGroup(after))
        self.oracle.start_over(after)

    @rule()
    def restart(self):
        """The state comes back from a checkpoint, and so does the one that shadows it."""
        record = through_storage(self.rig.record())
        self.rig.state = checkpoint.from_record(record)
        self.shadow = checkpoint.from_record(record)
        self.folded = len(self.rig.events)

    # ------------------------------------------------------------ after every step

    @invariant()
    def agrees_with_the_oracle(self):
        rig, oracle = self.rig, self.oracle
        tail = range(1, rig.lane.tail + 1)
        places = oracle.places(rig.now_ms)
        assert [rig.where(version) for version in tail] == places
        told = {place: places.count(place) for place in places}
        assert rig.counts() == told
        assert {v: attempts_of(rig.state, v) for v in oracle.attempts()} == oracle.attempts()

    @invariant()
    def one_holder_and_no_attempt_too_many(self):
        held = [
            (version, lease_id, attempt)
            for lease_id, lease in self.rig.state.leases.items()
            for start, end, attempt in lease.held
            for version in range(start, end + 1)
        ]
        assert {version: lease_id for version, lease_id, _ in held} == self.oracle.holders()
        assert len(held) == len(self.oracle.holders())
        assert all(attempt <= self.rig.policy.max_attempts for _, _, attempt in held)
        assert self.rig.state.leases.keys() == self.oracle.leases.keys()

    @invariant()
    def the_fold_is_the_state(self):
        validate(self.rig.state, self.rig.lane.tail)
        fold(self.rig.events[self.folded :], self.shadow)
        self.folded = len(self.rig.events)
        assert checkpoint.to_record(self.shadow) == self.rig.record()

    def teardown(self):
        if hasattr(self, "rig"):
            assert checkpoint.to_record(fold(self.rig.events)) == self.rig.record()


# All night long it may take longer than the others.
TestGroupMachine = pytest.mark.timeout(900)(GroupMachine.TestCase)
