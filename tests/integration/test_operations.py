"""Operator verbs against a broker on PostgreSQL: durable, audited, exact about what they touch."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from msgspec import Raw

from spillway import wire
from spillway.core.errors import (
    BadRequestError,
    GroupNotFoundError,
    InvalidNameError,
    QueueNotFoundError,
    SelectionRequiredError,
    SpillwayError,
    UnknownOptionError,
)
from spillway.settings import Settings
from spillway.wiring import running_broker

ACTIONS = 'SELECT verb, actor, reason, "group", detail FROM spillway.operator_action ORDER BY 1'
FUTURE = datetime.now(UTC) + timedelta(days=1)
PAST = datetime.now(UTC) - timedelta(days=1)


# ---------------------------------------------------------------- redrive


async def test_redrive_brings_a_dead_letter_back_as_a_new_message(desk):
    """The new message says where it comes from; the old version is settled, the row is gone."""
    await desk.push({"n": 1}, key="k", transaction_id="tx-1", headers={"a": "b"})
    await desk.die(error="no such customer")
    dead = (await desk.dead()).dead[0]

    reply = await desk.do("redrive", all=True, reason="customer exists now")

    assert reply == wire.VerbReply(verb="redrive", affected=1)
    (again,) = await desk.lease(5)
    assert (again.version, again.attempt, again.key) == (2, 1, "k")
    assert bytes(again.payload) == b'{"n":1}'
    assert again.headers == {
        "a": "b",
        "spillway-origin-partition": "Default",
        "spillway-origin-version": "1",
        "spillway-origin-group": "default",
        "spillway-origin-dead-id": str(dead.id),
        "spillway-origin-cause": "nack",
        "spillway-origin-transaction-id": "tx-1",
    }
    assert again.transaction_id == f"redrive-{dead.id}"
    assert (await desk.dead()).total == 0
    assert await desk.counts() == {"leased": 1, "settled": 1}


async def test_redrive_keeps_bytes_and_the_first_transaction_id(desk):
    """Bytes stay bytes, and a second redrive still names the id of the first push."""
    await desk.push(b"\x00\xff", transaction_id="first")
    await desk.die()
    await desk.do("redrive", all=True)
    await desk.die()
    await desk.do("redrive", all=True)
    (message,) = await desk.lease()
    assert message.payload == b"\x00\xff"
    assert message.headers["spillway-origin-transaction-id"] == "first"
    assert message.headers["spillway-origin-version"] == "2"


async def test_two_redrives_at_once_bring_a_message_back_once(desk):
    """However many redrives run side by side, each dead letter returns one time."""
    await desk.push(*range(50))
    await desk.die(50)
    replies = await asyncio.gather(*(desk.do("redrive", all=True) for _ in range(4)))
    assert sum(reply.affected for reply in replies) == 50
    assert len(await desk.lease(200)) == 50


async def test_redrive_survives_a_restart(desk):
    """What was answered is in the log: the state folded from it is the same."""
    await desk.push(1, 2, 3)
    await desk.die(2)
    await desk.do("redrive", all=True, limit=1)
    before = await desk.counts()
    desk.forget()
    assert await desk.counts() == before == {"ready": 2, "parked": 1, "settled": 1}


async def test_redrive_passes_a_full_queue(desk):
    """A queue at its max_depth refuses pushes, never the return of its own messages."""
    await desk.queue(max_depth=2)
    await desk.push(1, 2)
    await desk.die()
    assert (await desk.do("redrive", all=True)).affected == 1
    item = wire.PushItem(queue="orders", payload=Raw(b"3"))
    assert (await desk.broker.push("default", [item]))[0].error.code == "queue_full"


async def test_redrive_takes_ids_names_filters_and_limits(desk):
    """Each way to say which dead letters are meant means those and no others."""
    await desk.push(*range(4), key="a")
    await desk.push(*range(4), key="b")
    await desk.die(4, error="timeout")
    await desk.die(4, error="refused")
    some = (await desk.dead()).dead

    async def dry(**selection):
        reply = await desk.do("redrive", dry_run=True, **selection)
        assert reply.dry_run
        return reply.affected, reply.remaining

    assert await dry(all=True) == (8, 0)
    assert await dry(all=True, limit=3) == (3, 5)
    assert await dry(key="a") == (4, 0)
    assert await dry(error_contains="refu") == (4, 0)
    assert await dry(error_contains="time", key="b") == (0, 0)
    assert await dry(before=PAST) == (0, 0)
    assert await dry(before=FUTURE) == (8, 0)
    assert await dry(partition="elsewhere") == (0, 0)
    assert await dry(ids=[some[0].id, some[5].id, 10**9]) == (2, 0)
    assert await dry(messages=[wire.MessageName(partition="Default", version=2)]) == (1, 0)
    assert (await desk.dead()).total == 8
    reply = await desk.do("redrive", error_contains="refu", limit=3)
    assert (reply.affected, reply.remaining) == (3, 1)
    assert (await desk.dead(error_contains="refu")).total == 1


async def test_redrive_works_in_bounded_commits(desk, monkeypatch):
    """Many dead letters, or heavy ones, go back page by page."""
    monkeypatch.setattr("spillway.broker.deadletters.PAGE_LETTERS", 7)
    monkeypatch.setattr("spillway.broker.deadletters.PAGE_BYTES", 40)
    await desk.push(*["x" * 15] * 30)
    await desk.die(30)
    commits = sum(shard.commits for shard in desk.broker.shards)
    assert (await desk.do("redrive", all=True)).affected == 30
    assert sum(shard.commits for shard in desk.broker.shards) - commits >= 15
    assert [m.version for m in await desk.lease(100)] == list(range(31, 61))


# ---------------------------------------------------------------- park, unblock, purge


async def test_park_reaches_messages_wherever_they_are(desk):
    """Ready, deferred and leased ones become dead letters; a stale receipt is refused then."""
    await desk.push(1, 2)
    await desk.push(3, delay_ms=60_000)
    (held,) = await desk.lease()
    assert (await desk.do("park", all=True, reason="recall")).affected == 3
    assert await desk.ack(held) == ["refused"]
    assert await desk.counts() == {"parked": 3}
    assert {letter.reason for letter in (await desk.dead()).dead} == {"operator"}


async def test_park_catches_what_was_pushed_a_moment_ago(desk):
    """The body of a dead letter is copied from the log: parking waits until it is there."""
    await desk.queue()
    await desk.lease()
    pushing = asyncio.create_task(desk.push(*range(20)))
    parked = 0
    while parked < 20:
        parked += (await desk.do("park", all=True)).affected
    await pushing
    letters = (await desk.dead()).dead
    assert sorted(int(bytes(letter.payload)) for letter in letters) == list(range(20))


async def test_park_finds_messages_by_key_age_and_error(desk):
    """What only the body or the last failure knows can be asked for too."""
    await desk.push(1, 2, key="a")
    await desk.push(3, 4, key="b")
    messages = await desk.lease(4)
    await desk.nack(messages[0], error="timeout after 3 s", delay_ms=60_000)
    await desk.nack(messages[2], error="refused", delay_ms=60_000)

    async def dry(**selection):
        return (await desk.do("park", dry_run=True, **selection)).affected

    assert await dry(key="b") == 2
    assert await dry(error_contains="timeout") == 1
    assert await dry(error_contains="timeout", key="b") == 0
    assert await dry(before=PAST) == 0
    assert await dry(before=FUTURE, key="a") == 2
    assert (await desk.do("park", error_contains="refused")).affected == 1
    assert [letter.version for letter in (await desk.dead()).dead] == [3]


async def test_a_bulk_park_goes_on_over_many_pages(desk, monkeypatch):
    """Pages are an inner matter: limit and remaining count messages."""
    monkeypatch.setattr("spillway.broker.operations.PAGE_VERSIONS", 10)
    monkeypatch.setattr("spillway.broker.handwork.PAGE_VERSIONS", 10)
    await desk.push(*range(95))
    reply = await desk.do("park", all=True, limit=33)
    assert (reply.affected, reply.remaining) == (33, 62)
    assert await desk.counts() == {"ready": 62, "parked": 33}


@pytest.mark.parametrize(
    ("action", "after"),
    [("retry", {"ready": 2}), ("skip", {"settled": 2}), ("park", {"parked": 2})],
)
async def test_unblock_lets_the_line_go(desk, action, after):
    """A blocked line goes on by retrying, skipping or parking what blocks it."""
    await desk.queue(order="partition", on_exhausted="block", max_attempts=1)
    await desk.push(1, 2)
    await desk.nack(*await desk.lease(2), error="no")
    await desk.push(3)
    assert await desk.lease() == []
    reply = await desk.do("unblock", all=True, action=action, reason="mended")
    assert reply.affected == 2
    counts = await desk.counts()
    assert counts.pop("ready") - 1 == after.pop("ready", 0)
    assert counts == after
    (message,) = await desk.lease()
    assert message.attempt == 1


async def test_unblock_wakes_a_consumer_that_waits(desk, eventually_async):
    """Whoever waits for the line gets its head as soon as it is free."""
    await desk.queue(order="partition", on_exhausted="block", max_attempts=1)
    await desk.push(1)
    await desk.nack(*await desk.lease())
    waiting = asyncio.create_task(desk.lease(wait_ms=30_000))
    line = next(iter(desk.broker.dispatch.lines(1)))
    await eventually_async(lambda: line.waiting)
    await desk.do("unblock", messages=[wire.MessageName(partition="Default", version=1)])
    assert [m.version for m in await waiting] == [1]


async def test_purge_settles_what_waits_and_leaves_what_is_held(desk):
    """Ready and deferred messages go unseen; a leased one stays with its holder."""
    await desk.push(*range(5))
    await desk.push(6, delay_ms=60_000)
    (held,) = await desk.lease()
    assert (await desk.do("purge", what="waiting", all=True)).affected == 5
    assert await desk.counts() == {"leased": 1, "settled": 5}
    assert await desk.ack(held) == ["acked"]


async def test_purge_of_a_queue_nobody_leased_from(desk):
    """The default group is there for whoever comes first, an operator too."""
    await desk.push(*range(3))
    assert (await desk.do("purge", what="waiting", all=True)).affected == 3
    assert await desk.lease(5) == []


async def test_purge_deletes_dead_letters(desk):
    """The rows go, and the versions count as settled."""
    await desk.push(1, 2)
    await desk.die(2)
    first = (await desk.dead()).dead[0].id
    assert (await desk.do("purge", what="dead", ids=[first])).affected == 1
    assert await desk.counts() == {"parked": 1, "settled": 1}
    assert (await desk.dead()).total == 1


@pytest.mark.parametrize("verb", ["redrive", "unblock", "park", "purge"])
async def test_a_bulk_verb_must_say_what_it_means(desk, verb):
    """Neither names nor filter nor all: refused, also as a dry run."""
    await desk.push(1)
    more = {"what": "waiting"} if verb == "purge" else {}
    with pytest.raises(SelectionRequiredError):
        await desk.do(verb, dry_run=True, **more)


async def test_verbs_reach_lanes_that_left_memory(desk):
    """A lane out of memory is found, changed, and durable as any other."""
    for partition in ("a", "b", "c"):
        await desk.push(1, 2, partition=partition)
    desk.forget()
    assert (await desk.do("park", partition="b")).affected == 2
    desk.forget()
    assert {letter.partition for letter in (await desk.dead()).dead} == {"b"}
    assert await desk.counts() == {"ready": 4, "parked": 2}


# ---------------------------------------------------------------- queues


async def test_a_queue_is_made_once_and_then_set(desk):
    """PUT makes it or sets all options; PATCH changes those given."""
    options = wire.QueueOptions(max_attempts=3)
    made, queue = await desk.operations.put_queue("default", "orders", options, "ann")
    assert (made, queue.options.max_attempts) == (True, 3)
    made, queue = await desk.operations.put_queue("default", "orders", wire.QueueOptions(), "ann")
    assert (made, queue.options.max_attempts) == (False, 5)
    patch = wire.QueuePatch(visibility_ms=1234)
    queue = await desk.operations.patch_queue("default", "orders", patch, "ann")
    assert (queue.options.visibility_ms, queue.options.max_attempts) == (1234, 5)


async def test_options_that_cannot_be_kept_are_refused(desk):
    """No order by key yet, and partitions only grow; the queue stays as it was."""
    await desk.queue(partitions=4)
    with pytest.raises(UnknownOptionError):
        await desk.queue("other", order="key")
    with pytest.raises(BadRequestError):
        await desk.queue(partitions=3)
    with pytest.raises(InvalidNameError):
        await desk.queue("no/name")
    assert (await desk.queue(partitions=5)).options.partitions == 5


async def test_new_options_rule_at_once_and_are_in_the_story(desk):
    """A change needs no restart: policy, warm budget and story know it."""
    await desk.queue(max_attempts=5)
    await desk.push(1)
    (message,) = await desk.lease()
    patch = wire.QueuePatch(max_attempts=1, in_memory_queue_size=7)
    await desk.operations.patch_queue("default", "orders", patch, "ann")
    assert await desk.nack(message) == ["parked"]
    assert [budget.limit for budget in desk.broker.budgets.values()] == [7]
    story = (await desk.insights.story("default", "orders", "Default", 1, "default")).story
    changed = next(event for event in story if event.event == "ConfigChanged")
    assert dict(changed.detail["changes"]) == {"max_attempts": 1, "in_memory_queue_size": 7}


async def test_a_paused_queue_hands_out_nothing_until_resumed(desk, eventually_async):
    """Pushes and settlements go on; a waiting consumer is served when it is resumed."""
    await desk.push(1, 2)
    (held,) = await desk.lease()
    assert (await desk.do("pause", reason="deploy")).affected == 1
    assert await desk.lease() == []
    assert await desk.ack(held) == ["acked"]
    waiting = asyncio.create_task(desk.lease(wait_ms=30_000))
    line = next(iter(desk.broker.dispatch.lines(1)))
    await eventually_async(lambda: line.waiting)
    await desk.do("resume")
    assert [m.version for m in await waiting] == [2]


async def test_a_pause_of_one_group_leaves_the_others(desk):
    """Only the named group stops, and the fact outlives a restart."""
    await desk.push(1)
    await desk.lease(group="a")
    await desk.do("pause", group="a")
    await desk.push(2)
    assert await desk.lease(group="a") == []
    assert len(await desk.lease(5, group="b")) == 2
    groups = {g.group: g.paused for g in await desk.insights.list_groups("default", "orders")}
    assert groups == {"a": True, "b": False}
    with pytest.raises(GroupNotFoundError):
        await desk.do("pause", group="nobody")


async def test_a_deleted_queue_is_gone_and_its_name_is_free(desk):
    """Receipts are stale, waiters learn it, and a new queue of the name starts empty."""
    await desk.push(1, 2)
    (held,) = await desk.lease()
    reply = await desk.operations.delete_queue("default", "orders", "ann", "old")
    assert reply.deleted == "orders"
    with pytest.raises(QueueNotFoundError):
        await desk.insights.get_queue("default", "orders")
    assert await desk.ack(held) == ["refused"]
    await desk.push("new")
    (message,) = await desk.lease(9)
    assert (message.version, bytes(message.payload)) == (1, b'"new"')


async def test_a_queue_is_not_revived_by_pushes_that_race_with_its_deletion(desk):
    """Each push is stored in the old queue, fails, or makes a new one; none wakes the dead."""
    for _ in range(10):
        await desk.queue()
        await desk.push(0, partition="warm")
        desk.forget()
        pushes = [
            desk.broker.push(
                "default", [wire.PushItem(queue="orders", payload=Raw(b"1"), partition=f"p{i % 3}")]
            )
            for i in range(30)
        ]
        deletion = desk.operations.delete_queue("default", "orders", "ann", None)
        *answers, _ = await asyncio.gather(*pushes, deletion, return_exceptions=True)
        assert all(isinstance(a, SpillwayError | list) for a in answers)
        deleted = {i for (i,) in await desk.rows(DELETED)}
        in_memory = {e.facts.queue.queue_id for s in desk.broker.shards for e in s.entries.values()}
        assert not deleted & in_memory


DELETED = "SELECT queue_id FROM spillway.queue WHERE deleted_at IS NOT NULL"


# ---------------------------------------------------------------- the audit


async def test_every_verb_leaves_its_row(desk):
    """Who, what, why, how many: in the table before the answer."""
    await desk.queue(on_exhausted="block", max_attempts=1)
    await desk.push(*range(6))
    await desk.nack(*await desk.lease())
    await desk.do("unblock", all=True, reason="one")
    await desk.do("park", all=True, limit=2, reason="two")
    await desk.do("redrive", all=True, limit=1, reason="three")
    await desk.do("purge", what="dead", all=True, reason="four")
    await desk.do("purge", what="waiting", all=True, dry_run=True)
    await desk.do("seek", to="latest", reason="five\0")
    await desk.do("pause", group="default", reason="six")
    rows = {verb: rest for verb, *rest in await desk.rows(ACTIONS)}
    assert rows["unblock"][:3] == ["ann", "one", "default"]
    assert rows["park"][3] == {"affected": 2, "all": True, "limit": 2}
    assert rows["redrive"][3]["affected"] == 1
    assert rows["purge"][1] == "four"
    assert rows["seek"][1] == "five\N{REPLACEMENT CHARACTER}"
    assert rows["pause"][2] == "default"
    assert rows["create_queue"][0] == "ann"


async def test_a_verb_that_breaks_off_is_audited_with_what_it_did(desk, monkeypatch):
    """Half of a bulk change is a change: the row says so."""
    monkeypatch.setattr("spillway.broker.deadletters.PAGE_LETTERS", 2)
    await desk.push(*range(6))
    await desk.die(6)
    real, calls = desk.operations._dead._act, []

    async def act(*args):
        calls.append(args)
        if len(calls) == 3:
            raise ConnectionResetError
        await real(*args)

    monkeypatch.setattr(desk.operations._dead, "_act", act)
    with pytest.raises(ConnectionResetError):
        await desk.do("redrive", all=True)
    (row,) = [r for r in await desk.rows(ACTIONS) if r[0] == "redrive"]
    assert row[4]["affected"] == 4
    assert row[4]["broke_off"] == "ConnectionResetError"


async def test_verbs_hold_after_the_broker_is_gone(database_url, desk):
    """Another broker that takes over knows all of it."""
    await desk.push(*range(4))
    await desk.die(2)
    await desk.do("redrive", all=True, limit=1)
    await desk.do("pause")
    before = await desk.counts()
    await desk.broker.stop()
    async with running_broker(database_url, Settings()) as other:
        found = await other.insights.get_group("default", "orders", "default")
        queue = await other.insights.get_queue("default", "orders")
    assert (found.ready, found.parked, found.settled) == (3, 1, 1)
    assert before == {"ready": 3, "parked": 1, "settled": 1}
    assert queue.paused


async def test_old_pushes_are_not_judged_by_new_options(desk):
    """An id may come again where the window of its time let it: the books balance all the same."""
    await desk.queue(dedupe_window_ms=0)
    assert await desk.push(1, transaction_id="a") != await desk.push(2, transaction_id="a")
    patch = wire.QueuePatch(dedupe_window_ms=600_000)
    await desk.operations.patch_queue("default", "orders", patch, "ann")
    assert await desk.balanced()


async def test_a_change_of_options_that_breaks_off_is_audited(desk, monkeypatch):
    """The row was changed: whatever fails behind it, somebody did it."""
    await desk.push(1)
    await desk.lease()

    def fail(*_):
        raise SpillwayError("broke off")

    for shard in desk.broker.shards:
        monkeypatch.setattr(shard, "handle", fail)
    patch = wire.QueuePatch(max_attempts=9)
    with pytest.raises(SpillwayError):
        await desk.operations.patch_queue("default", "orders", patch, "ann")
    monkeypatch.undo()
    detail = {"affected": 1, "max_attempts": 9, "broke_off": "SpillwayError"}
    assert await desk.rows(ACTIONS) == [("update_queue", "ann", None, None, detail)]
