"""What is removed, and what must not be: groups, the dedupe window, and races in between."""

from types import SimpleNamespace

import pytest

from spillway import wire
from spillway.broker.lanes import LaneEntry
from spillway.core.errors import OverloadedError

SHORT = {"retention_ms": 0, "dedupe_window_ms": 0}


@pytest.fixture(autouse=True)
def by_hand(desk):
    """Only the test prunes: the duties do nothing by themselves."""
    for task in desk.broker._tasks:
        if not task.get_name().startswith("shard-"):
            task.cancel()


async def versions(desk):
    """What the log still holds."""
    return [v for (v,) in await desk.rows("SELECT version FROM spillway.message ORDER BY 1")]


async def test_the_dedupe_window_outlasts_retention(desk):
    """A window is rebuilt from the log: what it must know stays, however short the retention."""
    await desk.queue(retention_ms=0, dedupe_window_ms=60_000)
    await desk.push(1, transaction_id="once")
    await desk.ack(*await desk.lease())
    assert await desk.broker.pruner.run_once() == 0
    desk.forget()
    assert await desk.push(1, transaction_id="once") == [1]


# ---------------------------------------------------------------- lanes that left memory


async def leave(desk):
    """Every lane is saved and leaves memory, as if nobody had used it for long."""
    for shard in desk.broker.shards:
        await desk.broker.checkpointer.save(shard, 1)
    desk.forget()


def in_memory(desk):
    """The partitions of the lanes in memory."""
    entries = [entry for shard in desk.broker.shards for entry in shard.entries.values()]
    return {entry.facts.partition for entry in entries}


async def test_a_lane_that_left_memory_is_emptied(desk):
    """A drained queue that went quiet does not keep its messages for ever."""
    await desk.queue(**SHORT)
    for at in range(5):
        await desk.push(at, partition=f"p{at}")
    await desk.ack(*await desk.lease(5))
    await leave(desk)
    assert await desk.broker.pruner.run_once() == 5
    assert await versions(desk) == []
    assert await desk.push("next", partition="p1") == [2]


async def test_a_lane_with_nothing_to_prune_is_left_alone(desk):
    """Not settled by everybody, or not old enough: a million of them are not read each minute."""
    await desk.queue(**SHORT)
    await desk.push(1, partition="slow")
    await desk.ack(*await desk.lease())
    await desk.lease(group="other")
    await desk.queue("young", retention_ms=3_600_000)
    await desk.push(1, queue="young", partition="young")
    await desk.ack(*await desk.lease(queue="young"))
    await leave(desk)
    assert await desk.broker.pruner.run_once() == 0
    assert in_memory(desk) == set()
    assert await versions(desk) == [1, 1]


async def test_a_lane_that_cannot_be_pruned_does_not_hold_back_the_others(desk, monkeypatch):
    """The round after a failure goes on behind it."""
    monkeypatch.setattr("spillway.broker.pruner.LANES_A_LOOK", 1)
    await desk.queue(**SHORT)
    for at in range(3):
        await desk.push(at, partition=f"p{at}")
    await desk.ack(*await desk.lease(3))
    pruner, prune = desk.broker.pruner, desk.broker.pruner._prune

    async def prune_all_but_one(shard, entry, through):
        if entry.facts.partition == "p1":
            raise OverloadedError("not this one")
        await prune(shard, entry, through)

    monkeypatch.setattr(pruner, "_prune", prune_all_but_one)
    with pytest.raises(OverloadedError):
        await pruner.run_once()
    assert await pruner.run_once() == 1
    left = await desk.rows("SELECT partition FROM spillway.message")
    assert left == [("p1",)]


async def test_looking_takes_a_tenth_of_the_time_at_most(desk):
    """However many lanes there are."""
    pruner = desk.broker.pruner
    assert pruner.wait_s() == pytest.approx(60.0)
    pruner._looked_s = 20.0
    assert pruner.wait_s() == pytest.approx(200.0)


# ---------------------------------------------------------------- between two chunks


async def seek_back(desk):
    await desk.do("seek", to="earliest")
    return "default"


async def make_late(desk):
    await make_group(desk)
    return "late"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("come", [seek_back, make_late])
async def test_what_was_promised_while_it_prunes_stays(desk, monkeypatch, come, when):
    """Whoever seeks or begins between two chunks gets all that is left, or begins behind it."""
    monkeypatch.setattr("spillway.broker.pruner.BATCHES_A_ROUND", 1)
    await desk.queue(**SHORT)
    for at in range(3):
        await desk.push(at)
    await desk.ack(*await desk.lease(3))
    database, came = desk.broker.pruner._database, []
    row = database.row

    async def row_and_come(name, **values):
        if name != "prune" or came:
            return await row(name, **values)
        if when == "before":
            came.append(await come(desk))
        found = await row(name, **values)
        if when == "after":
            came.append(await come(desk))
        return found

    monkeypatch.setattr(database, "row", row_and_come)
    pruned = await desk.broker.pruner.run_once()
    (group,) = came
    assert pruned <= 1
    assert [m.version for m in await desk.lease(5, group=group)] == [1, 2, 3][pruned:]


async def test_what_was_not_removed_can_be_sought(desk, monkeypatch):
    """The statement refused: whoever comes next begins where the log begins."""
    await desk.queue(**SHORT)
    await desk.push(1)
    await desk.ack(*await desk.lease())

    async def refuse(shard, entry, end):
        return 0

    monkeypatch.setattr(desk.broker.pruner, "_remove", refuse)
    assert await desk.broker.pruner.run_once() == 0
    await desk.do("seek", to="earliest")
    assert [m.version for m in await desk.lease()] == [1]


# ---------------------------------------------------------------- behind what waits in files


async def test_the_first_copy_stays_while_a_repeat_waits_in_a_file(
    desk, monkeypatch, eventually_async
):
    """However long it waits: the replay must find what it repeats."""
    await desk.queue(retention_ms=0, dedupe_window_ms=60_000)
    await desk.push("a", transaction_id="once")
    await desk.ack(*await desk.lease())
    await desk.broker.spoolkeeping.hold(wire.SpoolHoldRequest(), "ann")
    assert await desk.told("a", transaction_id="once") == ["buffered"]
    pruner = desk.broker.pruner
    later_ms = desk.broker.clock.now_ms() + 3_600_000
    with monkeypatch.context() as patch:
        patch.setattr(pruner, "_clock", SimpleNamespace(now_ms=lambda: later_ms))
        assert await pruner.run_once() == 0
        desk.forget()
        await desk.broker.spoolkeeping.release(wire.SpoolHoldRequest(), "ann")
        await eventually_async(replayed(desk))
        assert await versions(desk) == [1]
        assert await pruner.run_once() == 1


def replayed(desk):
    async def run():
        await desk.broker.replay.run_once()
        return not desk.broker.spool.pending

    return run


# ---------------------------------------------------------------- groups that have not come yet


async def make_group(desk, group="late", start="earliest"):
    options = wire.GroupOptions(start=start)
    return await desk.operations.put_group("default", "orders", group, options, "ann")


async def test_a_group_that_has_not_leased_yet_holds_everything(desk):
    """It was promised the lane from its beginning, whenever it comes."""
    await desk.queue(**SHORT)
    await make_group(desk)
    await desk.push(1, 2)
    await desk.ack(*await desk.lease(2))
    assert await desk.broker.pruner.run_once() == 0
    assert [m.version for m in await desk.lease(5, group="late")] == [1, 2]


async def test_a_group_that_came_to_another_lane_only_holds_this_one(desk):
    """Coming is by lane: what it has settled there says nothing about here."""
    await desk.queue(**SHORT)
    await desk.push(1, partition="a")
    await desk.ack(*await desk.lease(group="late"))
    await desk.push(2, partition="b")
    await desk.ack(*await desk.lease(2))
    assert await desk.broker.pruner.run_once() == 1
    assert [m.partition for m in await desk.lease(5, group="late")] == ["b"]


async def test_a_group_of_another_broker_holds_everything(desk):
    """Whoever waits for the shards may have made it: the pruner asks the database."""
    await desk.queue(**SHORT)
    await desk.push(1, 2)
    await desk.ack(*await desk.lease(2))
    await desk.rows(
        'INSERT INTO spillway.consumer (queue_id, "group")'
        " SELECT queue_id, 'late' FROM spillway.queue RETURNING 1"
    )
    assert await desk.broker.pruner.run_once() == 0
    assert [m.version for m in await desk.lease(5, group="late")] == [1, 2]


async def test_a_group_made_while_the_pruner_looks_holds_everything(desk, monkeypatch):
    """Between the look and the delete another broker makes a group: the statement itself knows."""
    await desk.queue(**SHORT)
    await desk.push(1, 2)
    await desk.ack(*await desk.lease(2))
    (shard,) = [shard for shard in desk.broker.shards if shard.entries]
    flush = shard.flush

    async def flush_and_be_late():
        await flush()
        await desk.rows(
            'INSERT INTO spillway.consumer (queue_id, "group")'
            " SELECT queue_id, 'late' FROM spillway.queue RETURNING 1"
        )

    monkeypatch.setattr(shard, "flush", flush_and_be_late)
    assert await desk.broker.pruner.run_once() == 0
    assert await versions(desk) == [1, 2]


async def test_a_deleted_group_holds_nothing(desk):
    """The way out: once it is gone, what the others settled goes."""
    await desk.queue(**SHORT)
    await make_group(desk)
    await desk.push(1, 2)
    await desk.ack(*await desk.lease(2))
    await desk.operations.delete_group("default", "orders", "late", "ann")
    assert await desk.broker.pruner.run_once() == 2
    assert await versions(desk) == []


async def test_groups_read_late_do_not_undo_what_was_done_meanwhile(desk, monkeypatch):
    """A group made or paused while the rows were read is not forgotten for them."""
    await desk.queue()
    facts = desk.broker.facts
    queue = await facts.queue("default", "orders")
    await facts.ensure_group(queue, "early")
    rows = facts._database.rows

    async def rows_and_then_some(name, **values):
        found = await rows(name, **values)
        if name == "groups_of_queues" and "late" not in queue.groups:
            await facts.ensure_group(queue, "late")
            await facts.pause_group(queue, "early", paused=True)
        return found

    monkeypatch.setattr(facts._database, "rows", rows_and_then_some)
    await facts.learn_groups([queue])
    assert {name: group.paused for name, group in queue.groups.items()} == {
        "early": True,
        "late": False,
    }


async def test_the_audit_notices_what_was_pruned_too_early(desk, monkeypatch):
    """A pruner that forgets a group which waits leaves books that do not balance."""
    await desk.queue(**SHORT)
    await make_group(desk)
    await desk.rows("UPDATE spillway.consumer SET created_at = now() - interval '1 h' RETURNING 1")
    await desk.push(1, 2)
    await desk.ack(*await desk.lease(2))
    monkeypatch.setattr(LaneEntry, "trim", lambda entry: entry.groups["default"].state.trim)
    assert await desk.broker.pruner.run_once() == 2
    differences = (await desk.insights.audit()).differences
    assert [(d.group, d.found) for d in differences] == [("late", 2)]
    await desk.operations.delete_group("default", "orders", "late", "ann")
