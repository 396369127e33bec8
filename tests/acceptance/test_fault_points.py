"""kill -9 at every named place of the spool, under load; afterwards the database is the judge."""

import asyncio
import signal

import psycopg
import pytest

from spillway import AsyncClient
from spillway.spool.faultpoints import POINTS
from spillway.testing.traffic import PATIENT, Route, Traffic
from spillway.testing.verdict import judge

ROUTES = [Route("plain"), Route("keyed", key="a"), Route("keyed", key="b"), Route("strict", "one")]
OPTIONS = {"max_attempts": 1000, "visibility_ms": 1_500, "backoff_base_ms": 0}
QUEUES = {
    "plain": OPTIONS,
    "keyed": OPTIONS | {"partitions": 4},
    "strict": OPTIONS | {"order": "partition"},
}
FLOW = 100
POISON = 30
BARE = 60  # two bites and a half
FULL = 10
LARGE = "x" * 300_000
"""Three of them fill a request from broker to broker."""

WRITING = [
    ("before_write", 5),
    ("before_fsync", 5),
    ("before_directory_fsync", 2),
    ("after_fsync_before_reply", 1),
    ("after_fsync_before_reply", 7),
    ("after_rename", 2),
]
REPLAYING = [
    ("mid_batch", 1),
    ("mid_batch", 5),
    ("after_commit_before_delete", 1),
    ("after_commit_before_delete", 4),
    ("after_delete", 1),
]
RECOVERING = [("mid_recovery", 1)]
SETTING_ASIDE = [("mid_quarantine", 1), ("mid_revival", 1)]
HANDING_OVER = [("after_answer_of_owner", 1), ("after_answer_of_owner", 2)]
SHORTENING = [("mid_shortening", 1), ("after_shortening", 1)]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def test_every_place_is_tried():
    """A place that nobody dies at proves nothing."""
    tried = WRITING + REPLAYING + RECOVERING + SETTING_ASIDE + HANDING_OVER + SHORTENING
    assert {point for point, _ in tried} == set(POINTS)


@pytest.fixture
def served(serve, fragile):
    """A broker with small buffer files on a database that may be stopped."""
    return serve(
        "--database-url",
        fragile.url,
        num_shards=2,
        auto_create_queues=False,
        file_buffer_events_per_file=100,
        file_buffer_max_batch=25,
        file_buffer_retry_interval=0.2,
    )


async def died(served, point):
    """Wait until the broker is dead, by its fault and nothing else."""
    assert await asyncio.to_thread(served.wait) == -signal.SIGKILL, served.talk()
    assert f"fault: killed at {point}" in served.talk()


@pytest.mark.parametrize(("point", "nth"), WRITING)
async def test_a_kill_on_the_way_into_a_file(served, fragile, point, nth):
    """What was answered is there. The next broker finds it though the database is still away."""
    await asyncio.to_thread(served.start, point, nth)
    async with Traffic(served.url, ROUTES, QUEUES, producers_a_route=1) as traffic:
        await traffic.flow(told=FLOW, acked=FLOW)
        await asyncio.to_thread(fragile.stop)
        await died(served, point)
        await asyncio.to_thread(served.start)
        await traffic.flow(told=FLOW)
        await asyncio.to_thread(fragile.start)
        books = await traffic.finish()
    assert books.statuses["buffered"] >= FLOW
    await judge(fragile.url, books)


@pytest.mark.parametrize(("point", "nth"), REPLAYING)
async def test_a_kill_on_the_way_into_the_log(served, fragile, point, nth):
    """The replay begins again where the log says, though pushes go on all the time."""
    await asyncio.to_thread(served.start, point, nth)
    async with Traffic(served.url, ROUTES, QUEUES, producers_a_route=1) as traffic:
        await traffic.flow(told=FLOW, acked=FLOW)
        await asyncio.to_thread(fragile.stop)
        await traffic.flow(told=3 * FLOW)
        await asyncio.to_thread(fragile.start)
        await died(served, point)
        await asyncio.to_thread(served.start)
        await traffic.flow(told=FLOW, acked=FLOW)
        books = await traffic.finish()
    assert books.statuses["buffered"] >= FLOW
    await judge(fragile.url, books)


@pytest.mark.parametrize(("point", "nth"), [("mid_batch", 3), ("after_commit_before_delete", 1)])
async def test_a_kill_where_no_window_knows_what_was_stored(served, fragile, patience, point, nth):
    """Without dedupe the replay alone knows what it has done, by what the log says."""
    await asyncio.to_thread(served.start, point, nth)
    async with AsyncClient(served.url, retries=PATIENT) as client:
        await client.create_queue("bare", dedupe_window_ms=0)
        await asyncio.to_thread(fragile.stop)
        for n in range(BARE):
            assert (await client.push("bare", n)).status == "buffered"
        await asyncio.to_thread(fragile.start)
        await died(served, point)
        await asyncio.to_thread(served.start)
        await patience.until(lambda: is_aside(client, 0))
        messages = await client.lease("bare", max=2 * BARE)
        assert [message.payload for message in messages] == list(range(BARE))


@pytest.mark.parametrize(("point", "nth"), SHORTENING)
async def test_a_kill_while_a_file_gets_shorter(served, fragile, patience, point, nth):
    """What a full queue holds back comes in order, and once, though no window knows of it."""
    await asyncio.to_thread(served.start, point, nth)
    async with AsyncClient(served.url, retries=PATIENT) as client:
        await client.create_queue("bare", dedupe_window_ms=0)
        await client.create_queue("full", dedupe_window_ms=0, max_depth=FULL)
        await asyncio.to_thread(fragile.stop)
        for n in range(BARE):
            assert (await client.push("bare", n)).status == "buffered"
        for n in range(2 * FULL):
            assert (await client.push("full", n)).status == "buffered"
        await asyncio.to_thread(fragile.start)
        await died(served, point)
        await asyncio.to_thread(served.start)
        got: list[int] = []
        while len(got) < 2 * FULL:
            messages = await client.lease("full", max=FULL, wait_ms=5_000)
            await client.settle([message.receipt for message in messages])
            got += [message.payload for message in messages]
        await patience.until(lambda: is_aside(client, 0))
        assert got == list(range(2 * FULL))
        messages = await client.lease("bare", max=2 * BARE)
        assert [message.payload for message in messages] == list(range(BARE))
        assert not await client.lease("full")


@pytest.mark.parametrize(("point", "nth"), RECOVERING)
async def test_a_kill_while_a_crash_is_made_good(served, fragile, point, nth):
    """What the first broker left open, and the second had begun to end, the third takes in."""
    await asyncio.to_thread(served.start)
    async with Traffic(served.url, ROUTES, QUEUES, producers_a_route=1) as traffic:
        await traffic.flow(told=FLOW, acked=FLOW)
        await asyncio.to_thread(fragile.stop)
        await traffic.flow(told=FLOW)
        await asyncio.to_thread(served.kill)
        assert list(served.spool.glob("*.tmp"))
        served.launch(point, nth)
        await died(served, point)
        await asyncio.to_thread(fragile.start)
        await asyncio.to_thread(served.start)
        books = await traffic.finish()
    assert books.statuses["buffered"] >= FLOW
    await judge(fragile.url, books)


@pytest.mark.parametrize(("point", "nth"), SETTING_ASIDE)
async def test_a_kill_while_events_are_set_aside_or_come_back(
    served, fragile, patience, point, nth
):
    """Each is set aside once and, once its queue is there, comes into the log once."""
    await asyncio.to_thread(served.start, point, nth)
    ids = [f"poison-{n}" for n in range(POISON)]
    async with AsyncClient(served.url, retries=PATIENT) as client:
        await asyncio.to_thread(fragile.stop)
        for at, one in enumerate(ids):
            assert (await client.push("missing", at, transaction_id=one)).status == "buffered"
        await asyncio.to_thread(fragile.start)
        if point == "mid_quarantine":
            await died(served, point)
            await asyncio.to_thread(served.start)
        await patience.until(lambda: is_aside(client))
        await client.create_queue("missing")
        if point == "mid_revival":
            await died(served, point)
            await asyncio.to_thread(served.start)
        await patience.until(lambda: is_aside(client, 0))
    with psycopg.connect(fragile.url) as conn:
        rows = conn.execute("SELECT transaction_id FROM spillway.message").fetchall()
        assert sorted(one for (one,) in rows) == sorted(ids)


async def is_aside(client, count=POISON):
    """Whether nothing waits, and so many events are set aside."""
    spool = (await client.health()).spool
    assert spool.failed <= POISON
    return (spool.pending, spool.failed) == (0, count)


@pytest.mark.parametrize(("point", "nth"), HANDING_OVER)
async def test_a_kill_of_a_standby_that_hands_its_spool_over(serve, fragile, patience, point, nth):
    """It does not know what the owner has: the owner does, and stores the rest alone."""
    first, second = [serve("--database-url", fragile.url, num_shards=2) for _ in range(2)]
    await asyncio.to_thread(first.start)
    async with AsyncClient(first.url, retries=PATIENT) as client:
        await client.create_queue("orders", dedupe_window_ms=0, dedupe_count=0)
    await asyncio.to_thread(first.kill)
    await asyncio.to_thread(fragile.stop)
    await asyncio.to_thread(second.start)
    async with AsyncClient(second.url, retries=PATIENT) as client:
        for at in range(10):
            assert (await client.push("orders", [at, LARGE])).status == "buffered"
    await asyncio.to_thread(second.kill)
    await asyncio.to_thread(fragile.start)
    await asyncio.to_thread(first.start)
    second.launch(point, nth)
    await died(second, point)
    await asyncio.to_thread(second.start)
    async with AsyncClient(second.url, retries=PATIENT) as client:
        await patience.until(lambda: is_aside(client, 0))
        assert (await client.health()).shards_owned == 0
    rows = fragile.execute(
        "SELECT (convert_from(payload, 'UTF8')::json -> 0)::text::int FROM spillway.message"
        " ORDER BY version"
    )
    assert [at for (at,) in rows] == list(range(10))
