"""What is removed, and what must not be: groups, the dedupe window, and races in between."""

import pytest

from spillway import wire
from spillway.broker.lanes import LaneEntry

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
