"""Questions to a broker on PostgreSQL: right answers, from memory or from the log."""

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest

from spillway.broker import blockings, insights
from spillway.core.errors import (
    BadRequestError,
    DatabaseUnavailableError,
    GroupNotFoundError,
    MessageNotFoundError,
    OverloadedError,
    QueueNotFoundError,
)


async def story_of(desk, version, partition="Default", group="default"):
    return await desk.insights.story("default", "orders", partition, version, group)


async def browsed_all(desk, **query):
    """Every page of a browse: (partition, version) by (partition, version)."""
    found, cursor, pages = [], None, 0
    while True:
        reply = await desk.browse(next=cursor, **query)
        found += [(m.partition, m.version) for m in reply.messages]
        cursor, pages = reply.next, pages + 1
        if cursor is None:
            return found, pages


# ---------------------------------------------------------------- counts


async def test_counts_obey_the_conservation_law_in_memory_and_out_of_it(desk):
    """Each message is in one place, and a lane that left memory tells the same."""
    await desk.queue(max_attempts=1, on_exhausted="block")
    await desk.push(*range(10))
    await desk.push(11, delay_ms=60_000)
    messages = await desk.lease(6)
    await desk.ack(messages[0], messages[2])
    await desk.nack(messages[1], park=True)
    await desk.nack(messages[3])
    held = {"ready": 4, "deferred": 1, "leased": 2, "blocked": 1, "parked": 1, "settled": 2}
    assert await desk.counts() == held
    queue = await desk.insights.get_queue("default", "orders")
    assert queue.tail == sum(held.values()) == 11
    assert queue.groups[0].depth == 8
    desk.forget()
    assert await desk.insights.get_queue("default", "orders") == queue
    assert not any(shard.entries for shard in desk.broker.shards)


async def test_counts_are_summed_over_lanes(desk):
    """A queue's numbers are those of all its partitions together, more than one look takes."""
    for at in range(6):
        await desk.push(*range(at + 1), partition=f"p{at}")
    await desk.ack(*await desk.lease(3, partitions=["p5"]))
    queue = await desk.insights.get_queue("default", "orders")
    assert (queue.lanes, queue.tail) == (6, 21)
    assert (queue.groups[0].ready, queue.groups[0].settled) == (18, 3)


async def test_many_idle_lanes_are_counted_without_coming_back(desk, monkeypatch):
    """A question about idle lanes folds them in chunks and lets them go again."""
    monkeypatch.setattr("spillway.broker.glance.LANES_AT_ONCE", 10)
    for at in range(35):
        await desk.push(1, partition=f"p{at}")
    desk.forget()
    assert (await desk.insights.get_queue("default", "orders")).tail == 35
    assert not any(shard.entries for shard in desk.broker.shards)


async def test_a_queue_without_consumers_shows_what_a_first_one_would_find(desk):
    """Before any lease the default group is counted as if it were there; others are unknown."""
    await desk.push(1, 2)
    assert await desk.counts() == {"ready": 2}
    with pytest.raises(GroupNotFoundError):
        await desk.counts("other")
    await desk.lease(group="other")
    assert [g.group for g in await desk.insights.list_groups("default", "orders")] == ["other"]
    with pytest.raises(GroupNotFoundError):
        await desk.counts()


async def test_the_oldest_ready_message_is_told_from_memory_and_from_the_log(desk):
    """The age that alerts watch is that of the first message which could be leased."""
    await desk.push(1)
    await desk.push(2)
    enqueued = [m.enqueued_at for m in (await desk.browse()).messages]

    async def oldest():
        return (await desk.insights.get_group("default", "orders", "default")).oldest_ready_at

    assert await oldest() == enqueued[0]
    (first,) = await desk.lease()
    assert await oldest() == enqueued[1]
    desk.forget()
    assert await oldest() == enqueued[1]
    await desk.ack(first)
    await desk.lease()
    assert await oldest() is None


async def test_a_message_is_as_old_as_it_has_been_due(desk):
    """Not as old as its push: nobody was late while it was delayed, or waited for its retry."""
    await desk.queue()
    await desk.push("later", delay_ms=200)
    (message,) = (await desk.browse()).messages

    async def oldest():
        return (await desk.insights.get_group("default", "orders", "default")).oldest_ready_at

    assert await oldest() is None
    (leased,) = await desk.lease(wait_ms=20_000)
    await desk.nack(leased, delay_ms=0)
    returned = await oldest()
    assert returned > message.deliver_at
    desk.forget()
    assert await oldest() == returned
    await desk.push("new")
    assert await oldest() == returned


async def test_queues_are_listed_by_name_in_pages(desk):
    """An org sees its own queues, in order, a page at a time."""
    for name in ("c", "a", "b"):
        await desk.queue(name)
    page = await desk.insights.list_queues("default", None, 2)
    assert ([q.queue for q in page.queues], page.next) == (["a", "b"], "b")
    page = await desk.insights.list_queues("default", page.next, 2)
    assert ([q.queue for q in page.queues], page.next) == (["c"], None)
    assert (await desk.insights.list_queues("acme", None, 2)).queues == []
    with pytest.raises(QueueNotFoundError):
        await desk.insights.get_queue("acme", "a")


# ---------------------------------------------------------------- browse


async def test_browse_shows_messages_without_leasing_them(desk):
    """Bodies, keys, headers, times and the state for a group; nothing moves."""
    await desk.push({"n": 1}, key="k", headers={"a": "b"}, transaction_id="tx")
    await desk.push(b"\x00", delay_ms=60_000, ttl_ms=90_000)
    one, two = (await desk.browse()).messages
    assert (bytes(one.payload), one.key, one.headers) == (b'{"n":1}', "k", {"a": "b"})
    assert (one.transaction_id, one.state, one.attempts) == ("tx", "ready", 0)
    assert (two.payload, two.state) == (b"\x00", "deferred")
    assert two.deliver_at < two.expires_at
    assert await desk.counts() == {"ready": 1, "deferred": 1}


@pytest.mark.parametrize(
    ("state", "versions"),
    [
        ("settled", [1]),
        ("parked", [2]),
        ("leased", [3, 5]),
        ("deferred", [4, 9]),
        ("ready", [6, 7, 8]),
        ("blocked", []),
        ("dropped", []),
        (None, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
    ],
)
async def test_browse_filters_by_state(desk, state, versions):
    """Only what is in that state, found by its ranges, from memory or folded from the log."""
    await desk.queue(backoff_base_ms=60_000)
    await desk.push(*range(8))
    await desk.push(9, delay_ms=60_000)
    messages = await desk.lease(5)
    await desk.ack(messages[0])
    await desk.nack(messages[1], park=True)
    await desk.nack(messages[3], delay_ms=60_000)
    for _ in range(2):
        found = (await desk.browse(state=state)).messages
        assert [m.version for m in found] == versions
        assert {m.state for m in found} <= {state} or state is None
        desk.forget()


async def test_browse_pages_through_all_partitions_in_order(desk):
    """`next` goes on exactly where the page ended, over the borders of lanes and batches."""
    for partition in ("b", "a", "c"):
        await desk.push(*range(4), partition=partition)
        await desk.push(*range(3), partition=partition)
    everything = [(p, v) for p in "abc" for v in range(1, 8)]
    assert await browsed_all(desk, limit=4) == (everything, 6)
    assert await browsed_all(desk, limit=100) == (everything, 1)
    some = [(p, v) for p, v in everything if v >= 6]
    assert (await browsed_all(desk, limit=1, from_version=6))[0] == some
    assert (await browsed_all(desk, limit=5, partition="b"))[0] == [("b", v) for v in range(1, 8)]


async def test_browse_stays_within_its_bounds(desk, monkeypatch):
    """A page ends early at its bytes or its lanes, and its `next` goes on."""
    for partition in ("a", "b", "c"):
        await desk.push("x" * 10, "y" * 10, partition=partition)
    everything = [(p, v) for p in "abc" for v in (1, 2)]
    monkeypatch.setattr("spillway.broker.browse.PAGE_BYTES", 25)
    assert await browsed_all(desk, limit=100) == (everything, 3)
    monkeypatch.setattr("spillway.broker.browse.PAGE_BYTES", 10_000)
    monkeypatch.setattr("spillway.broker.browse.LANES_A_PAGE", 2)
    assert await browsed_all(desk, limit=100) == (everything, 2)
    assert await browsed_all(desk, limit=100, state="parked") == ([], 2)


@pytest.mark.parametrize("cursor", ["", "zzz", "W10", "\N{SNOWMAN}"])
async def test_browse_refuses_a_cursor_that_is_none(desk, cursor):
    """A cursor is ours or an error, never a guess."""
    await desk.queue()
    with pytest.raises(BadRequestError):
        await desk.browse(next=cursor)


async def test_browse_of_an_empty_queue_is_empty(desk):
    """No lanes, no messages, no error; an unknown group or queue is one."""
    await desk.queue()
    assert await browsed_all(desk) == ([], 1)
    with pytest.raises(GroupNotFoundError):
        await desk.browse(group="nobody")
    with pytest.raises(QueueNotFoundError):
        await desk.browse("nothing")


# ---------------------------------------------------------------- story


async def test_a_story_tells_everything_that_happened_to_a_message(desk):
    """Leases, failures, parking, in order, for every group; not what happened to others."""
    await desk.queue(max_attempts=2)
    await desk.push(*range(5))
    await desk.ack(*await desk.lease(5, "audit"))
    messages = await desk.lease(5)
    await desk.nack(messages[2], error="first", delay_ms=0)
    await desk.ack(*messages[:2])
    (again,) = await desk.lease()
    await desk.nack(again, error="second")
    told = await story_of(desk, 3)
    mine = [(e.event, e.group) for e in told.story]
    assert mine == [
        ("GroupCreated", "audit"),
        ("Leased", "audit"),
        ("Acked", "audit"),
        ("GroupCreated", "default"),
        ("Leased", "default"),
        ("Nacked", "default"),
        ("Leased", "default"),
        ("Parked", "default"),
    ]
    assert (told.message.state, bytes(told.message.payload)) == ("parked", b"2")
    assert told.story[5].detail["error"] == "first"
    assert [list(run)[:2] for run in told.story[4].detail["ranges"]] == [[1, 5]]
    assert json.loads(json.dumps(told.story[7].detail))["ranges"] == [[3, 3]]
    assert (await story_of(desk, 3, group="audit")).message.state == "settled"


async def test_a_story_names_only_the_ranges_that_matter(desk):
    """A lease of many ranges shows the one with the message in it."""
    await desk.push(*range(9))
    messages = await desk.lease(9)
    await desk.ack(*messages[::2])
    told = await story_of(desk, 5)
    acked = next(e for e in told.story if e.event == "Acked")
    assert [list(run) for run in acked.detail["ranges"]] == [[5, 5]]


async def test_a_story_is_bounded(desk, monkeypatch):
    """A message that was retried forever has a long story, not an endless one."""
    monkeypatch.setattr("spillway.broker.browse.ROWS_A_READ", 3)
    await desk.queue(max_attempts=1000)
    await desk.push(1)
    for _ in range(10):
        await desk.nack(*await desk.lease(), delay_ms=0)
    assert len((await story_of(desk, 1)).story) == 21
    monkeypatch.setattr("spillway.broker.browse.STORY_ROWS_MAX", 6)
    assert len((await story_of(desk, 1)).story) == 7
    monkeypatch.setattr("spillway.broker.browse.STORY_EVENTS_MAX", 4)
    assert 4 <= len((await story_of(desk, 1)).story) <= 5


async def test_a_message_that_is_not_there_has_no_story(desk):
    """Beyond the tail, in no partition, in no queue: 404, each with its own words."""
    await desk.push(1)
    with pytest.raises(MessageNotFoundError):
        await story_of(desk, 2)
    with pytest.raises(MessageNotFoundError):
        await story_of(desk, 1, partition="elsewhere")
    with pytest.raises(QueueNotFoundError):
        await desk.insights.story("default", "nothing", "Default", 1, "default")


# ---------------------------------------------------------------- dead, blocked


async def test_dead_letters_are_shown_in_pages(desk):
    """Oldest first, with the body, the error and where it came from; filters join by AND."""
    await desk.push(*range(5), key="a", headers={"h": "1"})
    await desk.push(b"\xff", partition="other", key="b")
    await desk.die(5, error="timeout", partitions=["Default"])
    await desk.die(1, error="refused", partitions=["other"])
    page = await desk.dead(limit=4)
    assert (page.total, len(page.dead), page.next) == (6, 4, page.dead[-1].id)
    rest = await desk.dead(limit=4, after=page.next)
    assert (len(rest.dead), rest.next) == (2, None)
    first, last = page.dead[0], rest.dead[-1]
    assert (bytes(first.payload), first.key, first.headers) == (b"0", "a", {"h": "1"})
    assert (first.error, first.reason, first.attempts) == ("timeout", "nack", 1)
    assert (last.payload, last.partition, last.version) == (b"\xff", "other", 1)
    assert (await desk.dead(error_contains="refu", key="b")).total == 1
    assert (await desk.dead(error_contains="refu", key="a")).total == 0
    assert (await desk.dead(partition="other")).total == 1
    assert (await desk.dead(group="nobody")).total == 0
    assert (await desk.dead(before=datetime.now(UTC) - timedelta(hours=1))).total == 0


async def test_a_page_of_heavy_dead_letters_ends_early(desk, monkeypatch):
    """Bodies bound a page too; nothing is skipped."""
    monkeypatch.setattr("spillway.broker.insights.DEAD_PAGE_BYTES", 30)
    await desk.push(*["x" * 18] * 5)
    await desk.die(5)
    found, after = [], None
    while True:
        page = await desk.dead(after=after)
        found.append([letter.version for letter in page.dead])
        after = page.next
        if after is None:
            break
    assert found == [[1, 2], [3, 4], [5]]


async def test_blocked_messages_are_listed_for_every_group(desk):
    """What waits for an operator, with its error, in memory or not."""
    await desk.queue(max_attempts=1, on_exhausted="block")
    await desk.push(1, partition="b")
    await desk.push(1, partition="a")
    await desk.nack(*await desk.lease(9), error="no")
    await desk.nack(*await desk.lease(1, "g", partitions=["a"]), error="never")

    async def blocked(group=None):
        reply = await desk.insights.blocked("default", "orders", group=group, limit=100, next=None)
        return [(m.partition, m.group, m.version, m.error, m.attempts) for m in reply.blocked]

    everything = [
        ("a", "default", 1, "no", 1),
        ("a", "g", 1, "never", 1),
        ("b", "default", 1, "no", 1),
    ]
    assert await blocked() == everything
    desk.forget()
    assert await blocked("g") == [everything[1]]
    with pytest.raises(GroupNotFoundError):
        await blocked("nobody")


# ---------------------------------------------------------------- the broker


async def test_topology_names_shards_and_brokers(desk):
    """Who writes what, and who was seen."""
    found = await desk.insights.topology()
    assert found.num_shards == len(found.shards) == 2
    assert all(s.owned_here and s.epoch == 1 and s.lease_until for s in found.shards)
    assert [b.alive for b in found.brokers] == [True]
    assert {s.owner for s in found.shards} == {b.broker for b in found.brokers}


async def test_topology_of_a_shard_that_nobody_holds(desk):
    """No owner and no lease, instead of a time before all times."""
    await desk.broker.shards[1].release()
    free = (await desk.insights.topology()).shards[1]
    assert (free.owner, free.lease_until, free.owned_here) == (None, None, False)


async def test_answers_are_never_ahead_of_the_log(desk):
    """Counts given while a commit is under way are those that a crash would leave behind."""
    await desk.queue()
    pushing = [asyncio.create_task(desk.push(*range(20))) for _ in range(20)]
    told = 0
    while told < 400:
        told = (await desk.insights.get_queue("default", "orders")).tail
        (row,) = await desk.rows("SELECT coalesce(sum(count), 0) FROM spillway.message_batch")
        assert row[0] >= told
    await asyncio.gather(*pushing)


# ---------------------------------------------------------------- blocked


async def test_what_is_blocked_comes_in_pages(desk):
    """All of it, each message once, in the order of (partition, group, version)."""
    await desk.queue(on_exhausted="block", max_attempts=1, order="none")
    for partition in ("a", "b"):
        await desk.push(*range(5), partition=partition)
    for group in ("one", "two"):
        for message in await desk.lease(10, group=group):
            await desk.nack(message, error="hard")

    async def read(group, limit):
        found, following, pages = [], None, 0
        while following is not None or not pages:
            page = await desk.insights.blocked(
                "default", "orders", group=group, limit=limit, next=following
            )
            assert len(page.blocked) <= limit
            found += [(one.partition, one.group, one.version) for one in page.blocked]
            following, pages = page.next, pages + 1
        return found, pages

    groups = ("one", "two")
    everything = [(p, g, v) for p in ("a", "b") for g in groups for v in range(1, 6)]
    assert await read(None, 100) == (everything, 1)
    assert await read(None, 3) == (everything, 7)
    assert await read("two", 5) == ([one for one in everything if one[1] == "two"], 2)


async def test_a_page_of_what_is_blocked_looks_at_so_many_lanes(desk, monkeypatch):
    """A short page says where to go on."""
    monkeypatch.setattr(blockings, "LANES_A_PAGE", 2)
    for partition in ("a", "b", "c"):
        await desk.push(1, partition=partition)
    blocked = desk.insights.blocked
    page = await blocked("default", "orders", group=None, limit=10, next=None)
    assert (page.blocked, page.next is None) == ([], False)
    page = await blocked("default", "orders", group=None, limit=10, next=page.next)
    assert (page.blocked, page.next) == ([], None)
    with pytest.raises(BadRequestError):
        await blocked("default", "orders", group=None, limit=10, next="nonsense")


# ---------------------------------------------------------------- the audit


async def test_an_audit_is_of_all_orgs_or_of_one(desk):
    """Whoever asks for its own org hears nothing of the others."""
    await desk.push(1, 2)
    await desk.broker.push("acme", desk.items("one"))
    assert (await desk.insights.audit()).messages == 3
    assert (await desk.insights.audit("acme")).messages == 1
    assert (await desk.insights.audit("nobody")).messages == 0


async def test_one_audit_at_a_time(desk, monkeypatch):
    """It reads the whole log: a second one is told to come later, and a statement has an end."""
    await desk.push(1)
    first, second = await asyncio.gather(
        desk.insights.audit(), desk.insights.audit(), return_exceptions=True
    )
    assert first.balanced
    assert isinstance(second, OverloadedError)
    held = await desk.broker.database.dedicated("a holder of the table")
    async with held.transaction():
        await held.execute("LOCK TABLE spillway.message_batch")
        monkeypatch.setattr(insights, "AUDIT_STATEMENT_S", 0.05)
        with pytest.raises(DatabaseUnavailableError, match="statement timeout"):
            await desk.insights.audit()
    await held.close()
    monkeypatch.undo()
    assert (await desk.insights.audit()).balanced
