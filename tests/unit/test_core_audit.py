"""The conservation law on facts alone."""

from spillway.core.audit import DIFFERENCES_MAX, Audit, Finding, LaneCensus, audit_group
from spillway.core.events import Acked, GroupCreated, Leased, Parked
from spillway.core.fold import evolve
from spillway.core.ranges import RangeSet
from spillway.core.state import GroupState


def census(*batches, pruned_to=0):
    lane = LaneCensus(pruned_to)
    for base, count in batches:
        lane.add(base, count, [count, None])
    return lane


def state(*events):
    folded = GroupState()
    for event in (GroupCreated(0), *events):
        evolve(folded, event)
    return folded


def whats(findings):
    return [(f.what, f.expected, f.found) for f in findings]


def test_dense_batches_are_sound():
    """From behind the pruned versions to the tail, each version once."""
    lane = census((11, 5), (16, 1), pruned_to=10)
    assert (lane.findings, lane.lane.tail, list(lane.present)) == ([], 16, [(11, 16)])


def test_gap_and_overlap_are_told_apart():
    """Both are named with the version that was due and the one that came."""
    assert whats(census((2, 2)).findings) == [("versions are missing from", 1, 2)]
    assert whats(census((1, 4), (3, 4)).findings) == [("versions are there twice from", 5, 3)]


def test_column_of_another_length_is_named():
    """A batch whose columns disagree cannot be read back."""
    lane = LaneCensus(0)
    lane.add(1, 3, [3, 2])
    assert whats(lane.findings) == [("batch at version 1 has a column of another length", 3, 2)]


def test_states_add_up_to_the_tail():
    """Acked, leased and fresh messages together are the lane."""
    group = state(Leased(1, ((1, 4),), 10), Acked(1, ((1, 2),)))
    totals, findings = audit_group(census((1, 9)), group, RangeSet(), 5)
    assert findings == []
    assert (totals["settled"], totals["leased"], totals["ready"]) == (2, 2, 5)


def test_dead_letters_are_the_parked_messages():
    """One too few and one too many are two findings."""
    group = state(Parked(((2, 3),), "operator"))
    _, findings = audit_group(census((1, 9)), group, RangeSet([(3, 4)]), 5)
    assert whats(findings) == [
        ("parked messages without a dead letter", 0, 1),
        ("dead letters of messages that are not parked", 0, 1),
    ]


def test_pruned_messages_must_be_settled():
    """What the log no longer holds, nobody may wait for."""
    _, findings = audit_group(census((6, 4), pruned_to=5), state(), RangeSet(), 5)
    assert whats(findings) == [("unsettled messages that the log does not hold", 0, 5)]


def test_findings_beyond_the_limit_are_counted():
    """A ruin is told in bounded space."""
    audit = Audit()
    audit.note(("q", "p", "g"), [Finding("x", 0, i) for i in range(DIFFERENCES_MAX + 3)])
    assert (len(audit.differences), audit.left_out, audit.balanced) == (DIFFERENCES_MAX, 3, False)
