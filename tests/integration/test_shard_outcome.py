"""A connection dies inside a commit: whoever waits is told what the log knows, never a guess."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from msgspec import Raw

from spillway import wire
from spillway.core.errors import DatabaseUnavailableError, SpillwayError
from spillway.log import audit
from spillway.log.embedded import EmbeddedPostgres
from spillway.log.writer import Writer
from spillway.settings import Settings
from spillway.wiring import running_broker

COMMIT_TIMEOUT_S = 1.0
OUTCOME_WAIT_S = 5.0
SLACK_S = 3.0
IN_COMMIT = (
    "SELECT pid FROM pg_stat_activity"
    " WHERE wait_event_type = 'Lock' AND datname = current_database()"
)
HELD_UP = """
    CREATE FUNCTION hold_up() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NEW; END $$;
    CREATE TRIGGER hold_up BEFORE INSERT ON spillway.message_batch
    FOR EACH ROW EXECUTE FUNCTION hold_up()
"""
"""Behind the fence, so that the commit holds the row of the shard while it waits."""
REFUSALS = {"database_unavailable", "not_owner"}


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[EmbeddedPostgres]:
    """A PostgreSQL that may be frozen, killed and stopped."""
    with EmbeddedPostgres(tmp_path_factory.mktemp("outcome")) as postgres:
        yield postgres


@pytest.fixture
def url(server, request) -> str:
    """A database of this test's own on it."""
    server.start()
    name = f"outcome_{abs(hash(request.node.name))}"
    with psycopg.connect(server.url, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name}")
    return urlunsplit(urlsplit(server.url)._replace(path=f"/{name}"))


@pytest.fixture
async def broker(url) -> AsyncIterator:
    """A broker with one shard and a short commit timeout; afterwards the books balance."""
    settings = Settings(num_shards=1, commit_timeout_s=COMMIT_TIMEOUT_S, drain_timeout_s=2)
    async with running_broker(url, settings) as broker:
        yield broker
    assert (await audit.run(url)).differences == []


async def push(broker, *ids, payload=b"1"):
    items = [wire.PushItem(queue="orders", payload=Raw(payload), transaction_id=one) for one in ids]
    return await broker.push("default", items)


async def try_to_push(broker, *ids):
    """The results, or the codes of why there are none."""
    try:
        results = await push(broker, *ids)
    except SpillwayError as error:
        return [], {error.code}
    codes = {result.error.code for result in results if result.error}
    return ([] if codes else results), codes


@pytest.fixture
def push_until_stored(broker, eventually_async):
    """What a careful producer does; the results, and how often it was refused before."""

    async def again(*ids):
        found, refusals = [], 0

        async def once():
            nonlocal found, refusals
            found, codes = await try_to_push(broker, *ids)
            assert codes <= REFUSALS
            refusals += bool(codes)
            return found

        await eventually_async(once, 30)
        return found, refusals

    return again


def stored(url):
    """The transaction ids in the log, by version."""
    with psycopg.connect(url) as conn:
        rows = conn.execute("SELECT version, transaction_id FROM spillway.message ORDER BY version")
        return dict(rows.fetchall())


def writer_backend(broker):
    return broker.shards[0]._writer._conn.info.backend_pid


# ---------------------------------------------------------------- what commit_seq decides


async def test_a_commit_that_landed_without_an_answer_is_reported_as_stored(
    broker, url, monkeypatch
):
    """The connection broke after the commit: `commit_seq` says that it is in the log."""
    await push(broker, "tx-0")
    write = Writer.write

    async def write_and_break(self, *arguments):
        assert await write(self, *arguments)
        monkeypatch.undo()
        raise psycopg.OperationalError("the connection broke")

    monkeypatch.setattr(Writer, "write", write_and_break)
    (result,) = await push(broker, "tx-1")
    assert (result.status, result.version) == ("stored", 2)
    assert stored(url) == {1: "tx-0", 2: "tx-1"}


async def test_a_commit_that_never_arrived_is_reported_as_failed(broker, url, monkeypatch):
    """Nothing of it is in the log; the version goes to the next message."""

    async def break_at_once(self, *arguments):
        monkeypatch.undo()
        raise psycopg.OperationalError("the connection broke")

    await push(broker, "tx-0")
    monkeypatch.setattr(Writer, "write", break_at_once)
    with pytest.raises(DatabaseUnavailableError):
        await push(broker, "tx-1")
    assert stored(url) == {1: "tx-0"}
    (result,) = await push(broker, "tx-2")
    assert (result.status, result.version) == ("stored", 2)


async def test_what_others_committed_meanwhile_proves_nothing(broker, url, monkeypatch):
    """Another broker wrote in between, so `commit_seq` may be its: stored is not claimed."""

    async def be_followed(self, shard_id, epoch, commit_seq, *arguments):
        monkeypatch.undo()
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute(
                "UPDATE spillway.shard SET epoch = epoch + 1, commit_seq = %s", (commit_seq,)
            )
        raise psycopg.OperationalError("the connection broke")

    await push(broker, "tx-0")
    monkeypatch.setattr(Writer, "write", be_followed)
    with pytest.raises(DatabaseUnavailableError) as caught:
        await push(broker, "tx-1")
    assert "may or may not" in caught.value.message
    assert stored(url) == {1: "tx-0"}


async def test_what_a_failed_commit_handed_out_can_be_leased_again(broker, url, monkeypatch):
    """The lane is asked again though nothing was pushed since: it is not forgotten as empty."""

    async def break_at_once(self, *arguments):
        monkeypatch.undo()
        raise psycopg.OperationalError("the connection broke")

    await push(broker, "tx-0", "tx-1")
    request = wire.LeaseRequest(max=10)
    monkeypatch.setattr(Writer, "write", break_at_once)
    with pytest.raises(DatabaseUnavailableError):
        await broker.lease("default", "orders", request)
    reply = await broker.lease("default", "orders", request)
    assert [(m.version, m.attempt) for m in reply.messages] == [(1, 1), (2, 1)]


async def test_a_commit_that_cannot_be_encoded_fails_alone(broker, url, monkeypatch):
    """A mistake of ours is told as one, and the shard goes on with the next commit."""

    async def stumble(self, *arguments):
        monkeypatch.undo()
        raise struct_error

    struct_error = ValueError("does not fit")
    monkeypatch.setattr(Writer, "write", stumble)
    with pytest.raises(SpillwayError) as caught:
        await push(broker, "tx-1")
    assert caught.value.status == 500
    assert (await push(broker, "tx-1"))[0].status == "stored"


# ---------------------------------------------------------------- killed and frozen backends


@pytest.mark.slow
async def test_writers_killed_under_load_store_everything_once(
    broker, url, push_until_stored, eventually_async
):
    """Twenty times the backend of the writer is terminated while pushes are under way."""
    told = {}
    refused = 0
    done = asyncio.Event()

    async def produce(name):
        nonlocal refused
        number = 0
        while not done.is_set():
            ids = [f"{name}-{number + i}" for i in range(3)]
            results, refusals = await push_until_stored(*ids)
            refused += refusals
            told.update((result.version, result.transaction_id) for result in results)
            number += 3

    async def terminate():
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as admin:
            for _ in range(20):
                (shard,) = broker.shards
                enough = shard.commits + 5
                await eventually_async(lambda: shard.commits >= enough and shard._writer)  # noqa: B023
                pid = writer_backend(broker)
                await admin.execute("SELECT pg_terminate_backend(%s)", (pid,))
        done.set()

    await asyncio.gather(terminate(), *(produce(f"p{i}") for i in range(8)))
    assert refused > 0
    assert broker.shards[0].epoch > 20
    assert stored(url) == told
    numbers = {}
    for _, transaction_id in sorted(told.items()):
        name, number = transaction_id.split("-")
        assert int(number) == numbers.setdefault(name, 0)
        numbers[name] += 1


@pytest.mark.slow
@pytest.mark.parametrize("lands", [True, False], ids=["thawed", "killed"])
async def test_a_backend_frozen_inside_a_commit_hangs_nobody(
    broker, url, push_until_stored, eventually_async, lands
):
    """Callers hear 503 in time, nobody hears a guess; the retry finds out what became of it."""
    await push(broker, "tx-0")
    frozen = writer_backend(broker)
    with psycopg.connect(url) as blocker, psycopg.connect(url, autocommit=True) as admin:
        admin.execute(HELD_UP)
        blocker.execute("SELECT pg_advisory_lock(1)")
        pushing = asyncio.ensure_future(push(broker, "tx-1"))
        await eventually_async(lambda: (frozen,) in admin.execute(IN_COMMIT).fetchall())
        os.kill(frozen, signal.SIGSTOP)
        blocker.execute("SELECT pg_advisory_unlock(1)")
    began = time.monotonic()
    with pytest.raises(DatabaseUnavailableError) as caught:
        await pushing
    assert "may or may not" in caught.value.message
    _, codes = await try_to_push(broker, "tx-2")
    assert codes <= REFUSALS
    assert codes
    assert time.monotonic() - began < COMMIT_TIMEOUT_S + OUTCOME_WAIT_S + SLACK_S
    os.kill(frozen, signal.SIGCONT if lands else signal.SIGKILL)
    results, _ = await push_until_stored("tx-1")
    assert results[0].status == ("duplicate" if lands else "stored")
    assert stored(url) == {1: "tx-0", 2: "tx-1"}


async def test_a_backend_frozen_before_a_commit_hangs_nobody(broker, url, push_until_stored):
    """The statement was sent and never read. Taken over, the shard goes on without it."""
    await push(broker, "tx-0")
    frozen = writer_backend(broker)
    os.kill(frozen, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(DatabaseUnavailableError):
        await push(broker, "tx-1")
    assert time.monotonic() - began < COMMIT_TIMEOUT_S + OUTCOME_WAIT_S
    results, _ = await push_until_stored("tx-1")
    assert (results[0].status, results[0].version) == ("stored", 2)
    os.kill(frozen, signal.SIGCONT)
    # Whatever it still reads of the old commit: the fence lets nothing through.
    results, _ = await push_until_stored("tx-2")
    assert stored(url) == {1: "tx-0", 2: "tx-1", 3: "tx-2"}


@pytest.mark.slow
async def test_frozen_backends_of_the_pool_are_replaced(broker, url, push_until_stored):
    """A question to PostgreSQL does not wait for a connection that does not answer."""
    await push(broker, "tx-0")
    with psycopg.connect(url) as admin:
        query = "SELECT pid FROM pg_stat_activity WHERE application_name = 'spillway'"
        frozen = [pid for (pid,) in admin.execute(query)]
    assert frozen
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        for shard in broker.shards:
            for entry in list(shard.entries.values()):
                shard.evict(entry)
        began = time.monotonic()
        results, _ = await push_until_stored("tx-1")
        assert time.monotonic() - began < COMMIT_TIMEOUT_S + OUTCOME_WAIT_S + SLACK_S
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
    assert results[0].version == 2


# ---------------------------------------------------------------- a server that stops


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_a_stopped_server_is_told_in_time_and_service_resumes(
    server, broker, url, eventually_async, mode
):
    """503 while it is away, each answer in time; afterwards everything is there once."""
    told, slowest, refused = {}, 0.0, 0
    back = asyncio.Event()

    async def produce(name):
        nonlocal slowest, refused
        number = 0

        async def once():
            nonlocal slowest, refused
            began = time.monotonic()
            results, codes = await try_to_push(broker, f"{name}-{number}")
            slowest = max(slowest, time.monotonic() - began)
            assert codes <= REFUSALS
            refused += bool(codes)
            told.update((result.version, result.transaction_id) for result in results)
            return results

        while not back.is_set():
            number += 1
            await eventually_async(once, 30)

    async def stop_and_start():
        await eventually_async(lambda: len(told) > 50)
        await asyncio.to_thread(server.stop, mode)
        await eventually_async(lambda: refused > 50)
        await eventually_async(lambda: broker.health().status == "degraded")
        await asyncio.to_thread(server.start)
        before = len(told)
        await eventually_async(lambda: len(told) > before + 50)
        back.set()

    await asyncio.gather(stop_and_start(), *(produce(f"p{i}") for i in range(4)))
    assert slowest < COMMIT_TIMEOUT_S + OUTCOME_WAIT_S + SLACK_S
    assert stored(url) == told
    await eventually_async(lambda: broker.health().status == "ok")
