"""Groups as people change them: seek, where they begin, how they come and go."""

from datetime import UTC, datetime, timedelta

import pytest

from spillway import wire
from spillway.core.errors import (
    BadRequestError,
    GroupConflictError,
    GroupNotFoundError,
    InvalidNameError,
    QuotaExceededError,
    SpillwayError,
)

FUTURE = datetime.now(UTC) + timedelta(days=1)
PAST = datetime.now(UTC) - timedelta(days=1)

# ---------------------------------------------------------------- seek and groups


async def test_seek_moves_a_group_back_and_forth(desk):
    """Earliest sees everything again, latest only what comes, a version what follows it."""
    await desk.push(*range(4))
    await desk.ack(*await desk.lease(4))
    assert (await desk.do("seek", to="earliest", reason="replay")).affected == 1
    assert await desk.counts() == {"ready": 4}
    await desk.do("seek", to=3, partition="Default")
    assert [m.version for m in await desk.lease(9)] == [3, 4]
    await desk.do("seek", to="latest")
    assert await desk.counts() == {"settled": 4}


async def test_seek_to_a_time_finds_the_first_message_of_then(desk):
    """A time means: what was appended from then on, on every lane."""
    await desk.push(1, 2, partition="a")
    await desk.push(1, partition="b")
    await desk.ack(*await desk.lease(9))
    assert (await desk.do("seek", to=PAST.isoformat())).affected == 2
    assert await desk.counts() == {"ready": 3}
    await desk.do("seek", to=FUTURE.isoformat(), partition="a")
    assert await desk.counts() == {"ready": 1, "settled": 2}


async def test_seek_to_a_version_needs_its_partition(desk):
    """Versions count by lane: without a partition nobody could say which is meant."""
    await desk.push(1, partition="a")
    await desk.push(1, partition="b")
    with pytest.raises(BadRequestError):
        await desk.do("seek", to=1)
    with pytest.raises(GroupNotFoundError):
        await desk.do("seek", to="earliest", group="nobody")


async def test_a_group_begins_where_it_was_told(desk):
    """Latest skips what is there, on lanes of the future nothing; it is made once."""
    await desk.push(1, 2, partition="a")

    async def make(group, start):
        options = wire.GroupOptions(start=start)
        return await desk.operations.put_group("default", "orders", group, options, "ann")

    made, counts = await make("late", "latest")
    assert (made, counts.ready, counts.settled) == (True, 0, 2)
    assert (await make("late", "latest"))[0] is False
    with pytest.raises(GroupConflictError):
        await make("late", "earliest")
    assert (await make("old", PAST.isoformat()))[1].ready == 2
    assert (await make("old", PAST.isoformat()))[0] is False
    desk.forget()
    await desk.push(3, partition="b")
    assert [m.partition for m in await desk.lease(9, "late")] == ["b"]
    with pytest.raises(InvalidNameError):
        await make("no/name", "latest")


async def test_a_deleted_group_starts_from_nothing(desk):
    """Positions and dead letters go with it: a group of the same name meets the messages anew."""
    await desk.push(1, 2, 3)
    await desk.die(1, group="g")
    await desk.ack(*await desk.lease(1, "g"))
    reply = await desk.operations.delete_group("default", "orders", "g", "ann")
    assert reply.deleted == "g"
    assert (await desk.dead()).total == 0
    with pytest.raises(GroupNotFoundError):
        await desk.counts("g")
    await desk.die(3, group="g")
    assert await desk.counts("g") == {"parked": 3}


# ---------------------------------------------------------------- groups that come and go


def entry_of(desk):
    (entry,) = [entry for shard in desk.broker.shards for entry in shard.entries.values()]
    return entry


async def test_nobody_leases_from_a_group_that_is_being_deleted(desk, monkeypatch):
    """Its positions would come back without a row, and hold back what is settled for ever."""
    await desk.push(1, 2)
    await desk.lease(group="late")
    delete = desk.operations._facts.delete_group

    async def meanwhile(queue, group):
        assert await desk.lease(group="late") == []
        with pytest.raises(GroupConflictError):
            await desk.operations.delete_group("default", "orders", "late", "bob")
        await delete(queue, group)

    monkeypatch.setattr(desk.operations._facts, "delete_group", meanwhile)
    await desk.operations.delete_group("default", "orders", "late", "ann")
    assert not entry_of(desk).groups["late"].state.exists
    assert [m.version for m in await desk.lease(5, group="late")] == [1, 2]


async def test_positions_without_a_row_are_ended(desk, monkeypatch):
    """The making of a group broke off before its row: it holds nothing back, and begins anew."""
    await desk.queue(retention_ms=0, dedupe_window_ms=0)
    await desk.push(*range(3))

    async def fail(*_):
        raise SpillwayError("broke off")

    with monkeypatch.context() as broken:
        broken.setattr(desk.operations._facts, "ensure_group", fail)
        options = wire.GroupOptions(start="latest")
        with pytest.raises(SpillwayError):
            await desk.operations.put_group("default", "orders", "late", options, "ann")
    await desk.push(3)
    await desk.ack(*await desk.lease(4))
    assert await desk.broker.pruner.run_once() == 4
    assert not entry_of(desk).groups["late"].state.exists
    await desk.push(4)
    assert [m.version for m in await desk.lease(5, group="late")] == [5]


async def test_a_queue_has_so_many_groups_and_no_more(open_desk):
    """Each costs rows on every lane; one that is there goes on."""
    async with open_desk(groups_per_queue_max=2) as desk:
        await desk.push(1)
        for group in ("a", "b", "a"):
            await desk.lease(group=group)
        with pytest.raises(QuotaExceededError):
            await desk.lease(group="c")
        with pytest.raises(QuotaExceededError):
            await desk.operations.put_group("default", "orders", "c", wire.GroupOptions(), "ann")
        await desk.operations.delete_group("default", "orders", "b", "ann")
        assert len(await desk.lease(group="c")) == 1
