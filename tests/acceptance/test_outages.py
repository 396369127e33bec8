"""PostgreSQL goes away in every way it can: producers go on, consumers are told, nothing is lost.

And it comes back: the backlog replays by itself, though producers never stop, and whatever is
pushed meanwhile stands behind it.
"""

import asyncio
import time

import httpx
import psycopg
import pytest

from spillway import AsyncClient, Item
from spillway.testing.traffic import Route, Traffic
from spillway.testing.verdict import judge

ROUTES = [
    Route("plain"),
    Route("parts", "north"),
    Route("parts", "south"),
    Route("keyed", key="a"),
    Route("keyed", key="b"),
    Route("strict", "Default"),
]
OPTIONS = {"max_attempts": 1000, "visibility_ms": 3_000, "backoff_base_ms": 0}
QUEUES = {
    "plain": OPTIONS,
    "parts": OPTIONS,
    "keyed": OPTIONS | {"partitions": 4},
    "strict": OPTIONS | {"order": "partition"},
}
FLOW = 100
FIRST_S, LATER_S = 5.0, 1.0
"""The first answer after the outage began is promised in 2.5 s, the later ones at once; a machine
that is busy with other things gets some grace.
"""
AWAY = "database_unavailable"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture
async def served(serve, fragile):
    """A broker before a database that may be hurt."""
    served = serve("--database-url", fragile.url, num_shards=2)
    await asyncio.to_thread(served.start)
    return served


@pytest.fixture
async def http(served):
    """Plain requests, to see what comes back."""
    async with httpx.AsyncClient(base_url=served.url, timeout=30) as http:
        yield http


# ---------------------------------------------------------------- what clients see


async def a_long_poll(traffic, http):
    """A consumer that waits for a message that will not come, already under way."""
    await traffic.client.create_queue("quiet")
    wait = {"group": "idle", "wait_ms": 60_000}
    polling = asyncio.create_task(http.post("/v1/queues/quiet/lease", json=wait))

    async def waits():
        return "idle" in [one.group for one in await traffic.client.groups("quiet")]

    await traffic.until(waits)
    return polling


async def consumers_are_told(http):
    """Whoever asks for messages hears at once that there are none to be had, and why."""
    began_s = time.monotonic()
    lease = await http.post("/v1/queues/plain/lease", json={"wait_ms": 60_000})
    settle = await http.post("/v1/settle", json={"ack": []})
    assert time.monotonic() - began_s < LATER_S
    assert (lease.status_code, lease.json()) == (200, {"messages": [], "reason": AWAY})
    assert (settle.status_code, settle.json()["error"]["code"]) == (503, AWAY)
    assert {lease.headers["retry-after"], settle.headers["retry-after"]} == {"1"}


async def the_broker_says_how_it_is(http):
    """It takes pushes, and says what it is without."""
    health = (await http.get("/health")).json()
    assert (health["status"], health["database"], health["ready"]) == (
        "degraded",
        "disconnected",
        True,
    )
    assert health["spool"]["breaker"] == "open"
    assert health["spool"]["pending"] > 0
    assert (await http.get("/health/ready")).status_code == 200


def producers_went_on(books, began_s, tripped_s):
    """Every push was answered with success, the first of the outage late, the others in time."""
    assert books.statuses.keys() <= {"stored", "buffered"}
    took = [(one.at_s - one.took_s, one.took_s) for one in books.answers if one.at_s > began_s]
    assert max(took_s for _, took_s in took) < FIRST_S
    assert max(took_s for asked_s, took_s in took if asked_s > tripped_s) < LATER_S


async def comes_back(traffic):
    """What is pushed goes to the log again, and nobody had to stop for that."""
    stored = traffic.books.statuses["stored"]
    await traffic.until(lambda: traffic.books.statuses["stored"] >= stored + FLOW)


@pytest.mark.parametrize("outage", ["stopped", "killed", "frozen", "read_only", "crowded"])
async def test_an_outage(served, fragile, http, outage):
    """Success for producers all the time, an answer for consumers, and order to the end."""
    async with Traffic(
        served.url, ROUTES, QUEUES, producers_a_route=1, consumers_a_queue=1, repeat=False
    ) as traffic:
        await traffic.flow(told=FLOW, acked=FLOW)
        polling = await a_long_poll(traffic, http)
        began_s = time.monotonic()
        await asyncio.to_thread(fragile.begin, outage)
        await traffic.until(lambda: traffic.books.statuses["buffered"] > 0)
        tripped_s = time.monotonic()
        assert (await polling).json() == {"messages": [], "reason": AWAY}
        assert time.monotonic() - began_s < FIRST_S + LATER_S
        await traffic.flow(told=FLOW)
        await consumers_are_told(http)
        await the_broker_says_how_it_is(http)
        await traffic.flow(told=FLOW)
        await asyncio.to_thread(fragile.end, outage)
        await comes_back(traffic)
        books = await traffic.finish()
    producers_went_on(books, began_s, tripped_s)
    await judge(fragile.url, books)


async def test_a_frozen_database_with_nothing_at_hand(served, fragile, http):
    """Lane and body would have to be read: consumers hear in time that this cannot be done."""
    item = {"queue": "plain", "payload": 1}
    assert (await http.post("/v1/messages", json={"items": [item]})).status_code == 201
    served.kill()
    await asyncio.to_thread(served.start)
    await asyncio.to_thread(fragile.freeze)
    began_s = time.monotonic()
    lease = await http.post("/v1/queues/plain/lease", json={"wait_ms": 20_000})
    assert lease.json() == {"messages": [], "reason": AWAY}
    settle = await http.post("/v1/settle", json={"ack": ["1~1~1~default~1"]})
    assert settle.status_code == 503
    assert time.monotonic() - began_s < 2 * FIRST_S
    await asyncio.to_thread(fragile.thaw)
    deadline_s, messages = time.monotonic() + 30, []
    while not messages and time.monotonic() < deadline_s:
        messages = (await http.post("/v1/queues/plain/lease", json={})).json()["messages"]
    assert messages[0]["attempt"] == 1


# ---------------------------------------------------------------- a full disk


@pytest.fixture
def small_disk(fragile, served):
    """The messages of the database are on a disk of their own, which is soon full."""
    with fragile.small_disk() as disk:
        yield disk


@pytest.mark.root
async def test_a_full_disk(served, fragile, small_disk, http):
    """Producers go on into files, on another disk; what is stored can be worked off meanwhile."""
    async with Traffic(
        served.url, ROUTES, QUEUES, producers_a_route=1, consumers_a_queue=1, repeat=False
    ) as traffic:
        await traffic.flow(told=FLOW, acked=FLOW)
        began_s = time.monotonic()
        small_disk.fill()
        await traffic.until(lambda: traffic.books.statuses["buffered"] > 0)
        tripped_s = time.monotonic()
        await traffic.flow(told=3 * FLOW)
        lease = await http.post("/v1/queues/plain/lease", json={"group": "other"})
        assert lease.status_code == 200
        assert lease.json()["messages"] or lease.json()["reason"] == AWAY
        small_disk.make_room()
        await comes_back(traffic)
        books = await traffic.finish()
    producers_went_on(books, began_s, tripped_s)
    await judge(fragile.url, books)


# ---------------------------------------------------------------- inside a commit

HELD_UP = """
    CREATE FUNCTION hold_up() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NEW; END $$;
    CREATE TRIGGER hold_up BEFORE INSERT ON spillway.message_batch
    FOR EACH ROW EXECUTE FUNCTION hold_up()
"""
"""Behind the fence: the commit holds the row of its shard while it waits."""
IN_COMMIT = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
MANY = 700
"""More than a record batch holds."""


@pytest.mark.parametrize("landed", [True, False], ids=["landed", "killed"])
async def test_a_commit_whose_outcome_is_not_known(served, fragile, landed):
    """Its push went to a file as well, and no window helps: the log itself is asked."""
    async with AsyncClient(served.url, retries=0) as client:
        await client.create_queue("bare", dedupe_window_ms=0)
        await client.push("bare", {"by": "before", "n": 0})
        fragile.execute(HELD_UP)
        items = [Item("bare", {"by": "bare", "n": n}) for n in range(MANY)]
        with psycopg.connect(fragile.url, autocommit=True) as conn:
            conn.execute("SELECT pg_advisory_lock(1)")
            began_s = time.monotonic()
            results = await client.push_many(items)
            assert time.monotonic() - began_s < FIRST_S
            assert {result.status for result in results} == {"buffered"}
            if not landed:
                fragile.execute(f"SELECT pg_terminate_backend(pid) FROM ({IN_COMMIT}) AS held_up")
        await drained(client)
        found = await client.lease("bare", max=2 * MANY)
        assert [message.payload["n"] for message in found] == [0, *range(MANY)]


async def drained(client):
    """Wait until the spool is empty."""
    deadline = time.monotonic() + 30
    while (await client.health()).spool.pending:
        assert time.monotonic() < deadline
        await asyncio.sleep(0)
