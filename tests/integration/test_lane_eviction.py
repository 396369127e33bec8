"""Lanes leave memory when they are idle or too many, and nobody can tell afterwards."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from spillway.core.errors import DatabaseUnavailableError
from spillway.settings import Settings
from spillway.wiring import running_broker

LANES = 30


@pytest.fixture
async def crowded(desk, database_url, monkeypatch) -> AsyncIterator:
    """A desk before a broker that keeps ten lanes in memory; it evicts when it is told to."""
    await desk.broker.stop()
    monkeypatch.setattr("spillway.broker.evictor.YOUNG_MS", 0)
    settings = Settings(num_shards=2, lanes_in_memory_max=10, lane_idle_s=3600)
    async with running_broker(database_url, settings) as broker:
        broker.evictor.wait_s = lambda: 3600
        yield type(desk)(broker, database_url)


def in_memory(desk) -> set[str]:
    """The partitions of the lanes that are in memory."""
    entries = (entry for shard in desk.broker.shards for entry in shard.entries.values())
    return {entry.facts.partition for entry in entries}


async def fill(desk) -> None:
    """One message on each of many lanes; p0 is the one that was used longest ago."""
    for at in reversed(range(LANES)):
        await desk.push(at, partition=f"p{at}", transaction_id=f"tx-{at}")
    long_ago_ms = desk.broker.clock.now_ms() - 60_000
    for shard in desk.broker.shards:
        for entry in shard.entries.values():
            entry.used_ms = long_ago_ms + int(entry.facts.partition[1:])


async def test_the_lanes_used_longest_ago_leave_when_there_are_too_many(crowded):
    """A tenth less than the bound stays, and it is the lanes that were used last."""
    await fill(crowded)
    assert await crowded.broker.evictor.run_once() == LANES - 9
    assert in_memory(crowded) == {f"p{at}" for at in range(LANES - 9, LANES)}
    assert await crowded.broker.evictor.run_once() == 0


async def test_nobody_can_tell_that_a_lane_was_out_of_memory(crowded):
    """Versions go on, repeats are known, leases and acks find their messages, counts are right."""
    await fill(crowded)
    leased = await crowded.lease(5, visibility_ms=60_000)
    assert await crowded.ack(*leased[:3]) == ["acked"] * 3
    before = await crowded.counts()
    await crowded.broker.evictor.run_once()
    assert await crowded.counts() == before == {"ready": LANES - 5, "leased": 2, "settled": 3}
    assert await crowded.ack(*leased[3:]) == ["acked"] * 2
    assert await crowded.push(0, partition="p0", transaction_id="tx-0") == [1]
    assert await crowded.push("next", partition="p0") == [2]
    rest = await crowded.lease(LANES)
    assert len({(m.partition, m.version) for m in (*leased, *rest)}) == LANES + 1
    assert await crowded.balanced()


async def test_a_scrape_counts_a_lane_before_and_after_it_left(crowded):
    """Its counts are kept as it goes: no survey has to fold it again."""
    await fill(crowded)
    await crowded.ack(*await crowded.lease(3))
    before = {f.name: f for f in await crowded.broker.metrics()}
    assert await crowded.broker.evictor.run_once() > 0
    after = {f.name: f for f in await crowded.broker.metrics()}
    for name in ("depth", "ready", "tail"):
        full = f"spillway_queue_{name}"
        assert after[full] == before[full]
    assert after["spillway_lanes_uncounted"].samples[0].value == 0
    assert await crowded.broker.census.run_once() == 0


async def evict_idle(desk) -> int:
    """Let every lane go that may, as if nobody had used any for long."""
    for shard in desk.broker.shards:
        for entry in shard.entries.values():
            entry.used_ms = 1
    desk.broker.evictor._looked_ms = 0
    return await desk.broker.evictor.run_once()


async def test_a_lane_whose_lease_ends_soon_stays_and_a_settled_one_goes(crowded):
    """The clock is about to act on the one; the alarm of the other is nobody's."""
    await fill(crowded)
    held, settled = await crowded.lease(2, visibility_ms=30_000)
    await crowded.ack(settled)
    await evict_idle(crowded)
    assert in_memory(crowded) == {held.partition}


async def test_a_lane_with_a_long_lease_leaves_and_its_receipt_is_good(crowded):
    """A million leases of an hour are not a million objects either."""
    await fill(crowded)
    held = await crowded.lease(5, visibility_ms=3_600_000)
    await evict_idle(crowded)
    assert in_memory(crowded) == set()
    assert await crowded.ack(*held) == ["acked"] * 5


async def test_who_waits_behind_a_long_lease_hears_of_its_end(crowded, eventually_async):
    """The lane was busy when it left memory, and that is not forgotten."""
    await crowded.queue(order="partition")
    await crowded.push("first", "second")
    held = await crowded.lease(visibility_ms=3_600_000)
    waiting = asyncio.create_task(crowded.lease(wait_ms=20_000))
    line = await line_of(crowded)
    await eventually_async(lambda: line.waiting)
    assert await evict_idle(crowded) == 1
    await crowded.ack(*held)
    async with asyncio.timeout(5):
        assert [m.version for m in await waiting] == [2]


async def line_of(desk):
    """Where consumers of the queue wait."""
    return desk.broker.dispatch.line(await desk.broker.facts.queue("default", "orders"), "default")


def an_hour_later(desk) -> None:
    """At once, as where another broker's clock is taken over."""
    desk.broker.clock.set(desk.broker.clock.now_ms() / 1000 + 3600)
    desk.broker.sweeper.nudge()


async def test_a_delayed_message_out_of_memory_wakes_who_waits_for_it(crowded, eventually_async):
    """Its lane comes back when it is due, though nobody asks for it."""
    await crowded.queue()
    await crowded.push("later", delay_ms=3_600_000)
    waiting = asyncio.create_task(crowded.lease(wait_ms=20_000))
    line = await line_of(crowded)
    await eventually_async(lambda: line.waiting)
    assert await evict_idle(crowded) == 1
    assert in_memory(crowded) == set()
    an_hour_later(crowded)
    assert [m.version for m in await waiting] == [1]


async def test_a_lane_that_cannot_be_read_when_its_alarm_rings_is_tried_again(
    crowded, monkeypatch, eventually_async
):
    """PostgreSQL is away just then: what is over is dropped later, not never."""
    await crowded.queue()
    await crowded.push("short-lived", ttl_ms=3_600_000)
    broker, tried = crowded.broker, []
    assert await evict_idle(crowded) == 1
    (lane,) = broker.facts.cached_lanes()
    shard = broker.shards[lane.shard_id]
    load = shard.lanes

    async def fail_once(lanes):
        tried.append(len(lanes))
        if len(tried) == 1:
            raise DatabaseUnavailableError("away")
        return await load(lanes)

    monkeypatch.setattr(shard, "lanes", fail_once)
    an_hour_later(crowded)
    await eventually_async(lambda: len(tried) == 2)
    await eventually_async(lambda: in_memory(crowded))


async def test_a_lane_whose_push_is_not_in_the_log_yet_stays(crowded, monkeypatch):
    """Read back now, it would give the same version twice."""
    await fill(crowded)
    (lane,) = [one for one in crowded.broker.facts.cached_lanes() if one.partition == "p0"]
    writer = crowded.broker.shards[lane.shard_id]._writer
    write, gate, begun = writer.write, asyncio.Event(), asyncio.Event()

    async def slow(*arguments):
        begun.set()
        await gate.wait()
        return await write(*arguments)

    monkeypatch.setattr(writer, "write", slow)
    pushing = asyncio.create_task(crowded.push("second", partition="p0"))
    await begun.wait()
    crowded.broker.shards[lane.shard_id].entries[lane.lane_id].used_ms = 0
    await crowded.broker.evictor.run_once()
    assert "p0" in in_memory(crowded)
    gate.set()
    assert await pushing == [2]
    assert await crowded.push("third", partition="p0") == [3]


async def test_lanes_are_saved_together(crowded):
    """Two hundred groups a transaction, not one: a crowd is gone in no time."""
    await fill(crowded)
    await crowded.ack(*await crowded.lease(LANES))
    checkpointer, rounds = crowded.broker.checkpointer, []
    save = checkpointer._save_some

    async def noted(shard, moved):
        rounds.append(len(moved))
        await save(shard, moved)

    checkpointer._save_some = noted
    evicted = await crowded.broker.evictor.run_once()
    assert evicted >= LANES - 10
    assert len(rounds) <= len(crowded.broker.shards)


async def test_a_young_lane_stays_however_many_there_are(crowded, monkeypatch):
    """Whoever has just asked for it is perhaps still busy with it."""
    monkeypatch.setattr("spillway.broker.evictor.YOUNG_MS", 60_000)
    for at in range(LANES):
        await crowded.push(at, partition=f"p{at}")
    assert await crowded.broker.evictor.run_once() == 0
    assert len(in_memory(crowded)) == LANES


async def test_looking_takes_a_tenth_of_the_time_at_most(desk):
    """Where no lane may leave, it does not look at all of them every second."""
    evictor = desk.broker.evictor
    assert evictor.wait_s() == pytest.approx(1.0)
    evictor._took_s = 0.5
    assert evictor.wait_s() == pytest.approx(5.0)


async def test_a_lane_that_could_not_be_saved_stays(crowded, monkeypatch):
    """The fence refused, or more was decided meanwhile: it goes another time."""
    await fill(crowded)
    await crowded.ack(*await crowded.lease(LANES))

    async def refused(shard, moved):
        pass

    with monkeypatch.context() as patch:
        patch.setattr(crowded.broker.checkpointer, "keep", refused)
        assert await crowded.broker.evictor.run_once() == 0
    assert await crowded.broker.evictor.run_once() > 0
