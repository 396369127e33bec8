"""Checkpoints: the state as a record, and back."""

import pytest

from spillway.core import checkpoint
from spillway.core import commands as cmd
from spillway.core.state import GroupState
from spillway.testing.rig import Rig, fold, through_storage


def busy() -> Rig:
    """A group with something in every state."""
    rig = Rig(8, max_attempts=1, on_exhausted="block")
    rig.push(1, delay_ms=500)
    rig.push(1, ttl_ms=0)
    rig.push(1)
    lease_id = rig.lease(8, visibility_ms=900).lease_id
    rig.ack(lease_id, (2, 2))
    rig.nack(lease_id, (3, 3), error="no")
    rig.nack(lease_id, (4, 4), park=True)
    rig.do(cmd.Extend(lease_id, 5_000))
    rig.lease(9, visibility_ms=100)
    rig.do(cmd.Return(2))
    rig.nack(rig.lease(1).lease_id, (11, 11), error="boom")
    return rig


def restored(rig: Rig) -> GroupState:
    return checkpoint.from_record(through_storage(rig.record()))


def test_a_checkpoint_brings_everything_back():
    """A restored state is the same state: same record, same counts, same future."""
    rig = busy()
    twin = busy()
    assert set(rig.counts()) == {
        "settled", "leased", "parked", "blocked", "deferred", "dropped",
    }  # fmt: skip
    rig.state = restored(rig)
    for pause_ms in (0, 400, 600, 5_000):
        rig.wait(pause_ms)
        twin.wait(pause_ms)
        assert (rig.record(), rig.counts()) == (twin.record(), twin.counts())
    assert rig.events == twin.events


def test_an_empty_group_has_a_checkpoint_too():
    """Before creation and after deletion a group still remembers its lease ids."""
    rig = busy()
    rig.do(cmd.DeleteGroup())
    state = restored(rig)
    assert (state.exists, state.next_lease_id) == (False, rig.state.next_lease_id)


def test_a_checkpoint_and_the_rest_is_the_fold():
    """From any checkpoint on, the remaining events lead to the same state as all from the start."""
    whole = busy()
    for cut in range(len(whole.events) + 1):
        early = checkpoint.to_record(fold(whole.events[:cut]))
        state = fold(whole.events[cut:], checkpoint.from_record(through_storage(early)))
        assert checkpoint.to_record(state) == whole.record()


def test_the_record_does_not_tell_how_the_state_came_about():
    """Ripe or not, leased early or late: equal states have equal checkpoints."""
    one, two = Rig(4, backoff_base_ms=0), Rig(4, backoff_base_ms=0)
    for rig, order in ((one, (1, 2)), (two, (2, 1))):
        lease_id = rig.lease(2).lease_id
        for version in order:
            rig.nack(lease_id, (version, version), delay_ms=0)
    one.wait(0)
    assert one.record() == two.record()


@pytest.mark.parametrize(
    "harm",
    [
        lambda record: (999, *record[1:]),
        lambda record: record[:-1],
        lambda record: (),
        lambda record: (*record[:5], [[3, 1]], *record[6:]),
        lambda record: (*record[:8], [[1]], *record[9:]),
    ],
    ids=["newer schema", "cut short", "empty", "impossible range", "broken lease"],
)
def test_a_damaged_checkpoint_is_refused(harm):
    """A checkpoint that cannot be read says so, and the log answers instead."""
    with pytest.raises(checkpoint.UnknownCheckpointError):
        checkpoint.from_record(harm(busy().record()))


def test_an_old_schema_is_lifted(monkeypatch):
    """A checkpoint of an older release passes its upcaster."""
    record = busy().record()
    monkeypatch.setitem(checkpoint.UPCASTERS, 0, lambda old: (1, True, *old[1:]))
    state = checkpoint.from_record((0, *record[2:]))
    assert checkpoint.to_record(state) == record
