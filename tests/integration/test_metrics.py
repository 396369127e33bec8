"""Metrics of a broker with some life in it: every declared one is emitted, and says the truth."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from spillway import wire
from spillway.broker.census import Census, Tally
from spillway.broker.counters import COUNTED, Counters, Histogram
from spillway.core.errors import InvariantError
from spillway.core.metrics import DECLARED, family

ORDERS = {"org": "default", "queue": "orders"}
OTHER = {"org": "", "queue": "other"}


async def families(desk, by=()):
    return {found.name: found for found in await desk.broker.metrics(by)}


async def value(desk, name, by=(), **labels):
    """The value of the one series with these labels; None where there is none."""
    wanted = labels or ORDERS
    samples = (await families(desk, by))[f"spillway_{name}"].samples
    found = [s.value for s in samples if not s.suffix and dict(s.labels) == wanted]
    assert len(found) < 2
    return found[0] if found else None


def reads(desk, wanted, name):
    """Whether a series has a value, for `eventually_async`."""

    async def it_does():
        return await value(desk, name) == wanted

    return it_does


async def live(desk):
    """A bit of everything."""
    await desk.queue(max_attempts=2, on_exhausted="park", max_depth=30)
    await desk.push(*range(20))
    await desk.push("again", transaction_id="tx")
    await desk.push("again", transaction_id="tx")
    await desk.push("later", delay_ms=60_000)
    messages = await desk.lease(6)
    await desk.ack(messages[0], messages[2])
    await desk.nack(messages[1], delay_ms=0)
    await desk.nack(messages[3], park=True)
    await desk.lease(1)
    await desk.do("redrive", all=True)
    await desk.do("purge", what="waiting", all=True, limit=2)


# ---------------------------------------------------------------- the registry


async def test_every_declared_metric_is_emitted_and_no_other(desk):
    """The list in core.metrics is the truth: name, kind, labels, help, all in use."""
    await live(desk)
    await desk.broker.spoolkeeping.hold(wire.SpoolHoldRequest(), "ann")
    await desk.push("held")
    found = await families(desk)
    assert found.keys() == DECLARED.keys()
    for name, declared in DECLARED.items():
        assert found[name].samples, name
        assert found[name].kind == declared.kind
        for sample in found[name].samples:
            assert tuple(k for k in sample.labels if k != "le") == declared.labels


def test_each_help_names_a_trouble_in_one_line():
    """Whoever sees a rise reads what it means, in a sentence."""
    assert [
        n for n, d in DECLARED.items() if "\n" in d.help or not d.help.endswith((".", "?"))
    ] == []
    assert [n for n, d in DECLARED.items() if (d.kind == "counter") != n.endswith("_total")] == []


def test_an_undeclared_metric_cannot_be_emitted():
    """A name that is not in the list is a mistake of ours."""
    with pytest.raises(InvariantError):
        family("spillway_surprise", [])


# ---------------------------------------------------------------- the truth


async def test_gauges_tell_where_the_messages_are(desk):
    """The numbers of a scrape are those of the state, without waiting for anything."""
    await live(desk)
    counts = await desk.counts()
    assert await value(desk, "queue_ready") == counts["ready"]
    assert await value(desk, "queue_in_flight") == counts["leased"] == 3
    assert await value(desk, "queue_deferred") == counts["deferred"] == 1
    assert await value(desk, "queue_parked") == 0
    assert await value(desk, "queue_blocked") == 0
    assert await value(desk, "queue_tail") == sum(counts.values()) == 23
    queue = await desk.insights.get_queue("default", "orders")
    assert await value(desk, "queue_depth") == queue.groups[0].depth
    assert await value(desk, "queue_ack_hole_ranges") == queue.groups[0].ack_hole_ranges
    assert await value(desk, "queue_oldest_ready_seconds") > 0


async def test_counters_count_messages_once_they_are_in_the_log(desk):
    """What was produced, handed out, settled, repaired: message by message."""
    await live(desk)
    found = {name: await value(desk, f"queue_{name}_total") for name in COUNTED}
    assert {name: count for name, count in found.items() if count} == {
        "produced": 23,
        "duplicates": 1,
        "consumed": 7,
        "acked": 2,
        "nacked": 1,
        "parked": 1,
        "redriven": 1,
        "purged": 2,
    }


async def test_expired_leases_are_counted_with_what_they_held(desk, eventually_async):
    """One lease of three messages: one expired lease, three redelivered messages."""
    await desk.push(1, 2, 3)
    await desk.lease(3, visibility_ms=20)
    await eventually_async(reads(desk, 1, "queue_expired_leases_total"))
    assert await value(desk, "queue_redelivered_total") == 3


async def test_a_refused_push_is_counted(desk):
    """A full queue shows with the next commit, before anybody complains."""
    await desk.queue(max_depth=1)
    await desk.push(1)
    with pytest.raises(AssertionError):
        await desk.push(2, 3)
    await desk.lease()
    assert await value(desk, "queue_refused_total") == 2


async def test_warm_and_cold_messages_are_the_backlog(desk):
    """What is at hand and what is only in PostgreSQL, together all that has to be handed out."""
    await desk.queue(in_memory_queue_size=5)
    for n in range(12):
        await desk.push(n)
    assert await value(desk, "warm_messages") == 5
    assert await value(desk, "cold_messages") == 7
    first, *rest = await desk.lease(12)
    await desk.ack(*rest)
    assert await value(desk, "cold_messages") == 0
    await desk.nack(first)
    assert await value(desk, "cold_messages") == 1


async def test_waiting_consumers_are_counted(desk, eventually_async):
    """A long poll that waits is a consumer without work."""
    await desk.queue()
    waiting = asyncio.create_task(desk.lease(wait_ms=30_000))
    await eventually_async(reads(desk, 1, "waiting_consumers"))
    await desk.push(1)
    await waiting
    assert await value(desk, "waiting_consumers") == 0


async def test_commits_and_shards_are_measured(desk):
    """Each commit is in the histograms, each shard has its epoch and its lanes."""
    await desk.push(1)
    buckets = (await families(desk))["spillway_commit_seconds"].samples
    count = next(s.value for s in buckets if s.suffix == "_count")
    assert count == sum(shard.commits for shard in desk.broker.shards) > 0
    assert (
        await value(desk, "shard_owned", shard="0")
        == await value(desk, "shard_epoch", shard="1")
        == 1
    )
    lanes = [s.value for s in (await families(desk))["spillway_lanes_in_memory"].samples]
    assert sum(lanes) == 1


async def test_checkpoints_are_counted(desk):
    """What the checkpointer saved shows at the next scrape."""
    await desk.push(1)
    await desk.lease()
    shard = next(shard for shard in desk.broker.shards if shard.entries)
    await desk.broker.checkpointer.save(shard, 1)
    found = (await families(desk))["spillway_checkpoints_written_total"].samples
    assert [s.value for s in found] == [1]


# ---------------------------------------------------------------- series


async def test_an_empty_queue_has_its_series_and_a_deleted_one_has_none(desk):
    """A queue is zero, not absent; a deleted one is absent, not zero."""
    await desk.queue()
    assert await value(desk, "queue_depth") == await value(desk, "queue_produced_total") == 0
    await desk.push(1)
    await desk.operations.delete_queue("default", "orders", "ann", None)
    for found in (await families(desk)).values():
        assert [s for s in found.samples if s.labels.get("queue")] == []


async def test_labels_are_finer_on_request(desk):
    """By group, by partition, or both; the sums stay the same."""
    await desk.push(1, 2, partition="a")
    await desk.push(1, partition="b")
    await desk.lease(1, "g", partitions=["a"])
    await desk.lease(1, "h", partitions=["b"])
    assert await value(desk, "queue_in_flight") == 2
    assert await value(desk, "queue_in_flight", ["group"], **ORDERS, group="g") == 1
    assert await value(desk, "queue_ready", ["partition"], **ORDERS, partition="a") == 3
    both = {"group": "h", "partition": "a"}
    assert await value(desk, "queue_ready", ["group", "partition"], **ORDERS, **both) == 2
    assert await value(desk, "queue_tail", ["group", "partition"], **ORDERS, partition="a") == 2
    samples = (await families(desk, ["group", "partition"]))["spillway_queue_depth"].samples
    assert sum(s.value for s in samples) == await value(desk, "queue_depth") == 6


async def test_too_many_series_end_in_other(desk, monkeypatch):
    """Labels are bounded: the rest is summed up, nothing is left out."""
    monkeypatch.setattr("spillway.broker.metrics.SERIES_MAX", 3)
    for at in range(6):
        await desk.push(1, partition=f"p{at}")
    samples = (await families(desk, ["partition"]))["spillway_queue_depth"].samples
    by_name = {s.labels["partition"]: s.value for s in samples if "partition" in s.labels}
    assert sum(by_name.values()) == 6
    assert by_name["other"] >= 3


async def test_too_many_queues_end_in_other(desk):
    """The busiest queues have series of their own, all others share one."""
    desk.broker.counters._shown_max = 2
    await desk.push(1, queue="quiet")
    await desk.push(1, 2, queue="busy")
    await desk.push(1, 2, 3, queue="busier")
    shown = {"queue_produced_total": 1, "queue_depth": 1, "queue_tail": 1, "cold_messages": 0}
    for name, of_other in shown.items():
        samples = (await families(desk))[f"spillway_{name}"].samples
        assert [s.labels["queue"] for s in samples if s.labels["org"]] != ["quiet"]
        assert await value(desk, name, **OTHER) == of_other
    assert await value(desk, "queue_produced_total", org="default", queue="busier") == 3


# ---------------------------------------------------------------- lanes out of memory


async def test_lanes_out_of_memory_are_counted_by_the_census(desk):
    """A scrape reads memory alone; the survey has folded what is not there, once."""
    for at in range(5):
        await desk.push(1, 2, partition=f"p{at}")
    await desk.ack(*await desk.lease(1, partitions=["p0"]))
    desk.forget()
    census: Census = desk.broker.census
    await census.run_once()
    assert await value(desk, "queue_depth") == await value(desk, "queue_ready") == 9
    assert await value(desk, "queue_oldest_ready_seconds") > 0
    assert await value(desk, "lanes_uncounted") is None
    assert (await families(desk))["spillway_lanes_uncounted"].samples[0].value == 0
    assert not any(shard.entries for shard in desk.broker.shards)
    assert await census.run_once() == 0


async def test_a_lane_that_comes_back_is_counted_from_memory_again(desk):
    """What was kept of a lane is dropped as soon as it may move."""
    await desk.push(1, 2)
    census: Census = desk.broker.census
    desk.forget()
    assert await census.run_once() == 1
    await desk.ack(*await desk.lease())
    assert await value(desk, "queue_depth") == 1
    assert await census.run_once() == 0
    desk.forget()
    assert (await families(desk))["spillway_lanes_uncounted"].samples[0].value == 1
    assert await census.run_once() == 1
    assert await value(desk, "queue_depth") == 1


async def test_counts_of_a_shard_that_changed_hands_are_not_kept(desk):
    """Another epoch, another writer may have been there: fold again."""
    await desk.push(1)
    desk.forget()
    census: Census = desk.broker.census
    await census.run_once()
    for shard in desk.broker.shards:
        shard.epoch += 1
    assert await value(desk, "queue_depth") == 0
    for shard in desk.broker.shards:
        shard.epoch -= 1
    assert await value(desk, "queue_depth") == 1


# ---------------------------------------------------------------- very many lanes


@pytest.fixture
def tallies_a_turn(monkeypatch):
    """How many lanes were added up in each turn of the loop, while the block lasts."""
    turns = [0]
    add = Tally.add

    def counted(self, other):
        turns[-1] += 1
        add(self, other)

    monkeypatch.setattr(Tally, "add", counted)

    @asynccontextmanager
    async def watched():
        turns[:] = [0]
        done = asyncio.Event()

        async def turn():
            while not done.is_set():
                await asyncio.sleep(0)
                turns.append(0)

        turning = asyncio.create_task(turn())
        await asyncio.sleep(0)
        yield turns
        done.set()
        await turning

    return watched


@pytest.mark.parametrize("in_memory", [True, False], ids=["in memory", "kept by the census"])
async def test_a_scrape_counts_a_few_lanes_in_a_turn(desk, monkeypatch, tallies_a_turn, in_memory):
    """Pushes go on between: no turn of the loop is longer for there being more lanes."""
    monkeypatch.setattr("spillway.broker.census.LANES_A_TURN", 5)
    for at in range(40):
        await desk.push(1, partition=f"p{at}")
    if not in_memory:
        desk.forget()
        await desk.broker.census.run_once()
    async with tallies_a_turn() as turns:
        assert await value(desk, "queue_depth") == 40
    assert sum(turns) == 40
    assert max(turns) <= 5


async def test_two_scrapes_take_turns(desk, monkeypatch, tallies_a_turn):
    """Those who scrape at once share the slices; each gets all of it."""
    monkeypatch.setattr("spillway.broker.census.LANES_A_TURN", 5)
    for at in range(40):
        await desk.push(1, partition=f"p{at}")
    async with tallies_a_turn() as turns:
        depths = await asyncio.gather(*(value(desk, "queue_depth") for _ in range(4)))
    assert depths == [40] * 4
    assert sum(turns) == 160
    assert max(turns) <= 5


async def test_a_push_is_stored_while_a_scrape_walks(desk, monkeypatch):
    """It comes between two slices, and does not wait for the end."""
    monkeypatch.setattr("spillway.broker.census.LANES_A_TURN", 1)
    await desk.push(1, partition="a")
    lanes = desk.broker.facts.cached_lanes() * 1_000_000
    monkeypatch.setattr(desk.broker.facts, "cached_lanes", lambda: lanes)
    scrape = asyncio.create_task(desk.broker.metrics())
    await asyncio.sleep(0)
    await desk.push(2, partition="a")
    assert not scrape.done()
    scrape.cancel()
    await asyncio.gather(scrape, return_exceptions=True)


# ---------------------------------------------------------------- counters


def test_no_series_falls_when_a_queue_gets_its_own():
    """What `other` has shown stays there; the queue's own series begins at zero."""
    counters = Counters(shown_max=1)
    counters.add([((1, "acked"), 5), ((2, "acked"), 3)])
    assert counters.show([1, 2]) == {1}
    assert (counters.of_queue(1, "acked"), counters.other("acked")) == (5, 3)
    assert counters.show([2]) == {2}
    assert (counters.of_queue(2, "acked"), counters.other("acked")) == (0, 3)
    counters.add([((2, "acked"), 4), ((3, "acked"), 1)])
    assert counters.show([2, 3]) == {2}
    assert (counters.of_queue(2, "acked"), counters.other("acked")) == (4, 4)


def test_a_histogram_holds_the_smaller_in_the_larger():
    """Cumulative buckets, a sum and a count, as Prometheus expects."""
    histogram = Histogram((1, 10))
    for size in (1, 2, 10, 11):
        histogram.observe(size)
    samples = [(s.suffix, s.labels.get("le"), s.value) for s in histogram.samples()]
    assert samples == [
        ("_bucket", "1", 1),
        ("_bucket", "10", 3),
        ("_bucket", "+Inf", 4),
        ("_sum", None, 24.0),
        ("_count", None, 4),
    ]
