"""Two brokers on one database: one writes, the other waits; whoever was deposed changes nothing."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from itertools import pairwise

import pytest
from msgspec import Raw

from spillway import wire
from spillway.core.errors import DatabaseUnavailableError, NotOwnerError
from spillway.settings import Settings
from spillway.wiring import make_broker, running_broker

LEASE_S = 1.0


@pytest.fixture
async def pair(desk, database_url) -> AsyncIterator:
    """The desk of a broker that owns every shard, and that of one that waits for them."""
    async with AsyncExitStack() as stack:
        settings = Settings(num_shards=2, shard_lease_s=LEASE_S)
        broker = await stack.enter_async_context(running_broker(database_url, settings))
        yield desk, type(desk)(broker, database_url)


def owned(desk):
    """How many shards a broker believes to own."""
    return sum(shard.owned for shard in desk.broker.shards)


async def steal(desk):
    """What another broker does: raise every epoch."""
    await desk.rows("UPDATE spillway.shard SET epoch = epoch + 1 RETURNING 1")


def silence(broker):
    """Let no duty of a broker find out by itself what happened to its shards."""
    for task in broker._tasks:
        if not task.get_name().startswith("shard-"):
            task.cancel()


async def give_up(broker):
    """Let go of everything without a word to PostgreSQL, as a killed process does."""
    for task in broker._tasks:
        task.cancel()
    for shard in broker.shards:
        shard.close()


def item(value=1, **more):
    return wire.PushItem(queue="orders", payload=Raw(str(value).encode()), **more)


# ---------------------------------------------------------------- waiting and taking over


async def test_the_second_broker_waits_and_says_so(pair):
    """It owns nothing, answers `not_owner`, and its health is degraded."""
    first, second = pair
    assert (owned(first), owned(second)) == (2, 0)
    await first.push(1)
    (refused,) = await second.broker.push("default", [item()])
    assert (refused.status, refused.error.code) == ("failed", "not_owner")
    with pytest.raises(NotOwnerError):
        await second.lease()
    assert (await second.broker.health()).status == "degraded"


async def test_a_dead_owner_is_followed_at_once(pair, eventually_async):
    """Its backends are gone, so nobody waits for its lease; nothing of it is lost."""
    first, second = pair
    await first.push(1, 2)
    (held,) = await first.lease(visibility_ms=60_000)
    assert first.broker.shards[0]._config.lease_s >= 10
    began = time.monotonic()
    await give_up(first.broker)
    await eventually_async(lambda: owned(second) == 2)
    assert time.monotonic() - began < 5
    assert [m.version for m in await second.lease(5)] == [2]
    assert await second.ack(held) == ["acked"]


async def test_a_broker_that_stops_in_order_hands_over(pair, eventually_async):
    """It lets its shards go; the next owner need not wait for anything."""
    first, second = pair
    await first.push(1)
    await first.broker.stop()
    await eventually_async(lambda: owned(second) == 2)
    assert [m.version for m in await second.lease(5)] == [1]


async def test_the_new_owner_knows_what_the_old_one_changed(pair, eventually_async):
    """Lanes, queues, options and groups that came after it last looked."""
    first, second = pair
    await first.queue("orders", max_attempts=3)
    await first.push(1, partition="north")
    with pytest.raises(NotOwnerError):
        await second.lease()
    await first.push(2, partition="south")
    await first.operations.patch_queue("default", "orders", wire.QueuePatch(max_attempts=9), "ann")
    await give_up(first.broker)
    await eventually_async(lambda: owned(second) == 2)
    assert sorted(m.partition for m in await second.lease(5)) == ["north", "south"]
    assert (await second.insights.get_queue("default", "orders")).options.max_attempts == 9


async def test_a_long_poll_at_the_waiting_broker_ends_in_an_error(pair):
    """It cannot know whether there is something: an empty list would be a guess."""
    first, second = pair
    await first.push(1)
    with pytest.raises(NotOwnerError):
        await second.lease(wait_ms=100)


async def test_epochs_only_grow(pair, eventually_async):
    """Each owner has a higher one than the last, whoever it was."""
    first, second = pair
    query = "SELECT epoch FROM spillway.shard ORDER BY shard_id"
    seen = [await first.rows(query)]
    await give_up(first.broker)
    await eventually_async(lambda: owned(second) == 2)
    seen.append(await second.rows(query))
    await steal(second)
    await eventually_async(lambda: owned(second) == 0)
    await eventually_async(lambda: owned(second) == 2)
    seen.append(await second.rows(query))
    for before, after in pairwise(seen):
        assert all(old < new for (old,), (new,) in zip(before, after, strict=True))


# ---------------------------------------------------------------- the deposed


async def test_a_deposed_broker_stores_nothing(desk):
    """Its next commit changes no row, the caller hears `not_owner`, memory is thrown away."""
    await desk.push(0)
    silence(desk.broker)
    await steal(desk)
    with pytest.raises(NotOwnerError):
        await desk.broker.push("default", [item()])
    assert await desk.rows("SELECT version FROM spillway.message") == [(1,)]
    # Its only lane lies on one shard: that one is lost.
    assert owned(desk) == 1


async def test_a_deposed_broker_hands_nothing_out_and_takes_nothing_back(desk):
    """A lease, an ack, a nack: each is an error, and nothing of it is in the log."""
    await desk.push(*range(5))
    (held, other) = await desk.lease(2)
    silence(desk.broker)
    rows = await desk.rows("SELECT count(*) FROM spillway.control_event")
    for attempt in (
        desk.lease,
        lambda: desk.ack(held),
        lambda: desk.nack(other),
    ):
        await steal(desk)
        with pytest.raises(NotOwnerError):
            await attempt()
        assert await desk.rows("SELECT count(*) FROM spillway.control_event") == rows
        await desk.broker.ownership.run_once()
        assert owned(desk) == 2


async def test_a_paused_broker_proves_that_it_owns_before_it_answers(desk):
    """After its lease even an answer that writes nothing waits for the fence."""
    await desk.push(0, transaction_id="tx-0")
    (held,) = await desk.lease()
    assert await desk.ack(held) == ["acked"]
    silence(desk.broker)
    await steal(desk)
    assert await desk.ack(held) == ["acked"]  # so shortly after it looked, it may say so
    for shard in desk.broker.shards:
        shard._certain_until_s = time.monotonic()
    with pytest.raises(NotOwnerError):
        await desk.ack(held)


async def test_a_receipt_of_the_next_owner_tells_a_broker_that_it_was_deposed(desk):
    """It must not call a receipt stale that it is too old to know."""
    await desk.push(0, 1)
    (held,) = await desk.lease()
    silence(desk.broker)
    await steal(desk)
    lane, lease, epoch, group, version = held.receipt.split("~")
    newer = f"{lane}~{int(lease) + 1}~{int(epoch) + 1}~{group}~{int(version) + 1}"
    with pytest.raises(NotOwnerError):
        await desk.broker.settle("default", wire.SettleRequest(ack=[newer]))


async def test_a_deposed_checkpointer_changes_nothing(desk):
    """What it would save may be old: the fence refuses it, and the control log stays whole."""
    await desk.push(*range(3))
    await desk.ack(*await desk.lease(2))
    silence(desk.broker)
    controls = await desk.rows("SELECT * FROM spillway.control_event")
    await steal(desk)
    for shard in desk.broker.shards:
        try:
            await desk.broker.checkpointer.save(shard, 1)
        except NotOwnerError:
            continue
    assert await desk.rows("SELECT * FROM spillway.checkpoint") == []
    assert await desk.rows("SELECT * FROM spillway.control_event") == controls
    assert owned(desk) < 2


async def test_a_checkpoint_behind_a_stale_fence_is_rolled_back(desk, monkeypatch):
    """Deposed between the flush and the write, which the flush cannot see."""
    await desk.push(*range(3))
    await desk.ack(*await desk.lease(2))
    silence(desk.broker)
    (shard,) = [shard for shard in desk.broker.shards if shard.entries]
    flush = shard.flush

    async def flush_and_be_deposed():
        await flush()
        await steal(desk)

    monkeypatch.setattr(shard, "flush", flush_and_be_deposed)
    await desk.broker.checkpointer.save(shard, 1)
    assert await desk.rows("SELECT * FROM spillway.checkpoint") == []
    assert not shard.owned


async def test_a_deposed_pruner_removes_nothing(desk, monkeypatch):
    """The new owner may have sought back to what the old one thinks is settled."""
    await desk.queue(retention_ms=0, dedupe_window_ms=0)
    await desk.push(*range(3))
    await desk.ack(*await desk.lease(3))
    silence(desk.broker)
    await steal(desk)
    with pytest.raises(NotOwnerError):
        await desk.broker.pruner.run_once()
    assert len(await desk.rows("SELECT version FROM spillway.message")) == 3


async def test_a_prune_behind_a_stale_fence_removes_nothing(desk, monkeypatch):
    """Deposed between the flush and the delete."""
    await desk.queue(retention_ms=0, dedupe_window_ms=0)
    await desk.push(*range(3))
    await desk.ack(*await desk.lease(3))
    silence(desk.broker)
    (shard,) = [shard for shard in desk.broker.shards if shard.entries]
    flush = shard.flush

    async def flush_and_be_deposed():
        await flush()
        await steal(desk)

    monkeypatch.setattr(shard, "flush", flush_and_be_deposed)
    assert await desk.broker.pruner.run_once() == 0
    assert len(await desk.rows("SELECT version FROM spillway.message")) == 3


async def test_of_two_brokers_that_start_together_one_has_every_shard(database_url):
    """Nobody hands a request over, so a broker with half of the shards would refuse the rest."""
    settings = Settings(num_shards=8)
    one, two = [make_broker(database_url, settings) for _ in range(2)]
    try:
        await asyncio.gather(one.start(), two.start())
        assert sorted(sum(s.owned for s in broker.shards) for broker in (one, two)) == [0, 8]
        healths = [await broker.health() for broker in (one, two)]
        assert sorted(health.status for health in healths) == ["degraded", "ok"]
    finally:
        for broker in (one, two):
            await broker.stop()
            await broker.database.close()


async def test_a_broker_that_lost_the_first_shard_lets_the_others_go(pair, eventually_async):
    """What is left of a split heals by itself: the other one gets all of them."""
    first, second = pair
    await first.broker.shards[0].release()
    await eventually_async(lambda: owned(second) == 2, 30)
    assert owned(first) == 0


async def test_a_push_that_meets_both_owners_is_stored_once(pair, eventually_async):
    """The answer of the first was lost; the second owner knows the transaction id."""
    first, second = pair
    (version,) = await first.push(7, transaction_id="tx")
    await give_up(first.broker)
    await eventually_async(lambda: owned(second) == 2)
    pushes = [second.broker.push("default", [item(7, transaction_id="tx")]) for _ in range(5)]
    results = [result for results in await asyncio.gather(*pushes) for result in results]
    assert {(r.status, r.version) for r in results} == {("duplicate", version)}


# ---------------------------------------------------------------- verbs

VERBS = {
    "put": lambda o: o.put_queue("default", "orders", wire.QueueOptions(max_attempts=9), "ann"),
    "make": lambda o: o.put_queue("default", "fresh", wire.QueueOptions(), "ann"),
    "patch": lambda o: o.patch_queue("default", "orders", wire.QueuePatch(max_attempts=9), "ann"),
    "delete": lambda o: o.delete_queue("default", "orders", "ann", None),
    "pause": lambda o: o.pause("default", "orders", wire.PauseRequest(), "ann"),
    "pause group": lambda o: o.pause("default", "orders", wire.PauseRequest(group="late"), "ann"),
    "resume": lambda o: o.resume("default", "orders", wire.PauseRequest(), "ann"),
    "group": lambda o: o.put_group("default", "orders", "new", wire.GroupOptions(), "ann"),
    "forget group": lambda o: o.delete_group("default", "orders", "late", "ann"),
    "seek": lambda o: o.seek("default", "orders", wire.SeekRequest(to="latest"), "ann"),
    "unblock": lambda o: o.unblock(
        "default", "orders", wire.UnblockRequest(action="retry", all=True), "ann"
    ),
    "park": lambda o: o.park("default", "orders", wire.ParkRequest(all=True), "ann"),
    "purge": lambda o: o.purge(
        "default", "orders", wire.PurgeRequest(what="waiting", all=True), "ann"
    ),
    "purge dead": lambda o: o.purge(
        "default", "orders", wire.PurgeRequest(what="dead", all=True), "ann"
    ),
    "redrive": lambda o: o.redrive("default", "orders", wire.RedriveRequest(all=True), "ann"),
}
FACTS = (
    "SELECT q.name, q.options::text, q.paused, q.deleted_at,"
    " array_agg(DISTINCT c.group || c.paused), count(DISTINCT a.action_id)"
    " FROM spillway.queue AS q LEFT JOIN spillway.consumer AS c"
    " USING (queue_id) LEFT JOIN spillway.operator_action AS a ON a.queue = q.name"
    " GROUP BY q.queue_id ORDER BY q.queue_id"
)


@pytest.mark.parametrize("verb", VERBS)
async def test_the_waiting_broker_carries_no_verb_out(pair, verb):
    """Its owner would go on as if nothing had been said: refused before the first row."""
    first, second = pair
    await first.push(1)
    await first.lease(group="late")
    await second.broker.facts.queue("default", "orders")
    before = await first.rows(FACTS)
    with pytest.raises(NotOwnerError):
        await VERBS[verb](second.operations)
    assert await first.rows(FACTS) == before


async def test_a_push_at_the_waiting_broker_makes_no_queue(pair):
    """The owner makes it, when it is pushed there."""
    first, second = pair
    (refused,) = await second.broker.push("default", [item()])
    assert (refused.status, refused.error.code) == ("failed", "not_owner")
    assert await first.rows("SELECT name FROM spillway.queue") == []
    assert await first.push(1) == [1]


@pytest.mark.parametrize("verb", ["patch", "delete", "pause", "group", "make"])
async def test_a_deposed_broker_that_does_not_know_it_changes_no_facts(desk, verb):
    """The new owner has read them already: whoever is late is stopped by the fence."""
    await desk.push(0)
    silence(desk.broker)
    before = await desk.rows(FACTS)
    await steal(desk)
    with pytest.raises(NotOwnerError):
        await VERBS[verb](desk.operations)
    assert await desk.rows(FACTS) == before


async def test_only_the_owner_buries_what_is_deleted(pair):
    """Another broker may know of the deletion what the owner does not: it leaves the rows alone."""
    first, second = pair
    await first.push(1)
    await first.rows("UPDATE spillway.queue SET deleted_at = now() RETURNING 1")
    await second.broker.pruner.run_once()
    assert await first.rows("SELECT base_version FROM spillway.message_batch") == [(1,)]
    silence(first.broker)
    first.forget()
    await steal(first)
    await first.broker.pruner.run_once()
    assert await first.rows("SELECT base_version FROM spillway.message_batch") == [(1,)]


async def test_a_deletion_that_breaks_off_is_audited_and_buried(desk, monkeypatch):
    """The tombstone and its audit are one: whatever fails behind them, somebody deleted it."""
    await desk.push(1, 2)
    await desk.lease()
    for shard in desk.broker.shards:
        monkeypatch.setattr(shard, "lanes", fail)
    with pytest.raises(DatabaseUnavailableError):
        await desk.operations.delete_queue("default", "orders", "ann", "not needed")
    monkeypatch.undo()
    audit = "SELECT queue, verb, actor, reason, detail FROM spillway.operator_action"
    assert await desk.rows(audit) == [
        ("orders", "delete_queue", "ann", "not needed", {"affected": 1})
    ]
    await desk.broker.pruner.run_once()
    for table in ("lane", "message_batch", "control_event"):
        assert await desk.rows(f"SELECT lane_id FROM spillway.{table}") == []
    assert not any(shard.entries for shard in desk.broker.shards)


async def fail(*_):
    raise DatabaseUnavailableError
