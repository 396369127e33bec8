"""What a broker knows after a restart: leases, retries, repeats, versions; all from the log."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from msgspec import Raw

from spillway import wire
from spillway.log import audit
from spillway.settings import Settings
from spillway.wiring import running_broker


async def crash(broker):
    """End a broker without a word to PostgreSQL: no flush, no checkpoint, no release."""
    for task in broker._tasks:
        task.cancel()
    for shard in broker.shards:
        shard.close()
    await broker.database.close()


@pytest.fixture
async def restart(desk, database_url) -> AsyncIterator:
    """Crash the broker of a desk and start another one behind a new desk, with other settings."""
    current = desk.broker
    async with AsyncExitStack() as stack:

        async def again(**settings):
            nonlocal current
            await crash(current)
            starting = running_broker(database_url, Settings(num_shards=2, **settings))
            current = await stack.enter_async_context(starting)
            return type(desk)(current, database_url)

        yield again


# ---------------------------------------------------------------- leases and retries


async def test_a_receipt_outlives_the_broker_that_gave_it(desk, restart):
    """While its lease lives, a message can be acked at the next broker, and is not handed out."""
    await desk.push(1, 2)
    (message,) = await desk.lease(visibility_ms=60_000)
    desk = await restart()
    assert [m.version for m in await desk.lease(5)] == [2]
    assert await desk.ack(message) == ["acked"]
    assert await desk.counts() == {"settled": 1, "leased": 1}


async def test_a_receipt_is_stale_once_its_lease_ran_out_during_the_restart(desk, restart):
    """The message is on its second attempt then, and only that attempt may settle it."""
    await desk.push(1)
    (first,) = await desk.lease(visibility_ms=100)
    desk = await restart()
    (second,) = await desk.lease(wait_ms=10_000)
    assert second.attempt == 2
    assert await desk.ack(first) == ["refused"]
    assert await desk.ack(second) == ["acked"]


@pytest.mark.parametrize("is_saved", [False, True], ids=["control log", "checkpoint"])
async def test_a_lease_runs_out_though_nobody_asks(desk, restart, eventually_async, is_saved):
    """The last attempt of a dead worker becomes a dead letter on a lane nobody touched since."""
    await desk.queue(max_attempts=1)
    await desk.push(1)
    assert len(await desk.lease(visibility_ms=200)) == 1
    if is_saved:
        for shard in desk.broker.shards:
            await desk.broker.checkpointer.save(shard, 1)
    desk = await restart()

    async def is_dead():
        return await desk.rows("SELECT version, cause FROM spillway.dead_letter")

    await eventually_async(is_dead)
    assert await is_dead() == [(1, "expired")]


async def test_a_time_to_live_runs_out_though_nobody_asks(desk, restart, eventually_async):
    """Messages past their time are dropped on a lane nobody touched since the start."""
    await desk.push(0)
    assert len(await desk.lease()) == 1
    await desk.push(1, 2, ttl_ms=200)
    desk = await restart()

    async def is_dropped():
        return (await audit.run(desk.url)).totals["dropped"] == 2

    await eventually_async(is_dropped)


async def test_a_retry_wakes_a_consumer_that_waits_since_the_start(desk, restart):
    """A nack with a delay, a restart, and a long poll that asked before the time came."""
    await desk.push(1)
    (message,) = await desk.lease()
    assert await desk.nack(message, delay_ms=300) == ["nacked"]
    desk = await restart()
    (again,) = await desk.lease(wait_ms=10_000)
    assert (again.version, again.attempt) == (1, 2)


async def test_idle_lanes_stay_out_of_memory_after_a_restart(desk, restart, eventually_async):
    """Only lanes on which the clock has something to do are read without being asked for."""
    await desk.queue(partitions=1)
    for number in range(8):
        await desk.push(number, partition=f"p{number}")
    leased = await desk.lease(8)
    await desk.ack(*[m for m in leased if m.partition != "p3"])
    for shard in desk.broker.shards:
        await desk.broker.checkpointer.save(shard, 1)
    desk = await restart()
    await eventually_async(lambda: not desk.broker.awakening._rounds)
    entries = [entry for shard in desk.broker.shards for entry in shard.entries.values()]
    assert [entry.facts.partition for entry in entries] == ["p3"]


# ---------------------------------------------------------------- repeats


async def test_a_repeat_is_known_after_a_restart(desk, restart):
    """A duplicate is answered with the first version; another payload is a conflict."""
    await desk.push("first", "other")
    (version,) = await desk.push("same", transaction_id="tx-1")
    desk = await restart()
    same, different = (
        wire.PushItem(queue="orders", payload=Raw(payload), transaction_id="tx-1")
        for payload in (b'"same"', b'"different"')
    )
    (repeated,) = await desk.broker.push("default", [same])
    assert (repeated.status, repeated.version) == ("duplicate", version)
    (refused,) = await desk.broker.push("default", [different])
    assert (refused.status, refused.error.code) == ("failed", "transaction_conflict")
    assert await desk.push("next") == [version + 1]


# ---------------------------------------------------------------- checkpoints and pruning


async def test_an_idle_lane_leaves_memory_and_comes_back(desk, restart, eventually_async):
    """It is saved, forgotten, and returns with its attempts, holes and the rest of its messages."""
    desk = await restart(lane_idle_s=0.1)
    await desk.push(*range(5))
    one, two, three = await desk.lease(3)
    assert await desk.ack(one, three) == ["acked", "acked"]
    assert await desk.nack(two, delay_ms=0) == ["nacked"]
    await eventually_async(lambda: not any(shard.entries for shard in desk.broker.shards))
    assert await desk.rows("SELECT count(*) FROM spillway.checkpoint") == [(1,)]

    assert [(m.version, m.attempt) for m in await desk.lease(5)] == [(2, 2), (4, 1), (5, 1)]


async def test_a_lane_with_a_live_lease_does_not_leave(desk, restart, eventually_async):
    """Whatever the clock still has to do keeps a lane in memory."""
    desk = await restart(lane_idle_s=0.01)
    await desk.push(1)
    await desk.lease(visibility_ms=1_000)
    runs = desk.broker.evictor.runs
    await eventually_async(lambda: desk.broker.evictor.runs > runs + 20)
    assert sum(len(shard.entries) for shard in desk.broker.shards) == 1
    (again,) = await desk.lease(wait_ms=10_000)
    assert again.attempt == 2


async def test_the_control_log_is_trimmed_behind_two_checkpoints(desk, restart):
    """What is left of it, with a checkpoint, is all that a restart needs."""
    await desk.push(*range(40))
    for _ in range(3):
        for _ in range(5):
            (message,) = await desk.lease()
            await desk.ack(message)
        for shard in desk.broker.shards:
            await desk.broker.checkpointer.save(shard, 1)
    (message,) = await desk.lease()
    (controls,) = await desk.rows("SELECT min(seq), max(seq) FROM spillway.control_event")
    assert await desk.rows("SELECT count(*) FROM spillway.checkpoint") == [(2,)]
    assert 1 < controls[0] < controls[1]
    before = await desk.counts()
    desk = await restart()
    assert await desk.counts() == before == {"settled": 15, "leased": 1, "ready": 24}
    assert await desk.ack(message) == ["acked"]


async def test_a_slow_group_holds_back_its_own_queue_and_no_other(desk):
    """What every group has settled goes when retention is over; the rest stays."""
    for queue in ("orders", "mails"):
        await desk.queue(queue, retention_ms=0, dedupe_window_ms=0)
        await desk.push(1, 2, queue=queue)
        await desk.ack(*await desk.lease(2, queue=queue))
    (slow, _) = await desk.lease(2, group="slow")
    await desk.ack(slow)
    await desk.broker.pruner.run_once()
    left = await desk.rows("SELECT queue, version FROM spillway.message ORDER BY 1, 2")
    assert left == [("orders", 1), ("orders", 2)]


async def test_retention_keeps_what_is_settled(desk):
    """Before its queue's retention is over nothing is removed."""
    await desk.queue(retention_ms=3_600_000)
    await desk.push(1)
    await desk.ack(*await desk.lease())
    assert await desk.broker.pruner.run_once() == 0
    assert await desk.rows("SELECT version FROM spillway.message") == [(1,)]


async def test_versions_are_not_used_again_after_everything_was_pruned(desk, restart):
    """Nothing is left of a lane but how far it went, and that outlives a restart."""
    await desk.queue(retention_ms=0, dedupe_window_ms=0)
    await desk.push(*range(7))
    await desk.ack(*await desk.lease(7))
    assert await desk.broker.pruner.run_once() == 7
    assert await desk.rows("SELECT count(*) FROM spillway.message_batch") == [(0,)]
    desk = await restart()
    assert await desk.push("next") == [8]
    assert [(m.version, m.attempt) for m in await desk.lease(5)] == [(8, 1)]
    assert [m.version for m in await desk.lease(5, group="late")] == [8]
