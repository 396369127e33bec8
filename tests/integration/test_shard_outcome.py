"""A connection dies inside a commit: nobody is told a guess, and nothing is stored twice."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from msgspec import Raw
from structlog.testing import capture_logs

from spillway import wire
from spillway.broker.breaker import PATIENCE_S
from spillway.core.errors import SpillwayError
from spillway.log import audit
from spillway.log.embedded import EmbeddedPostgres
from spillway.log.writer import Writer
from spillway.settings import Settings
from spillway.wiring import running_broker

COMMIT_TIMEOUT_S = 1.0
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


async def is_well(broker) -> bool:
    """Whether it says so."""
    return (await broker.health()).status == "ok"


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


def stored(url):
    """The transaction ids in the log, by version."""
    with psycopg.connect(url) as conn:
        rows = conn.execute("SELECT version, transaction_id FROM spillway.message ORDER BY version")
        return dict(rows.fetchall())


@pytest.fixture
def drained(broker, url, eventually_async):
    """The log, once everything that went to files is in it."""

    async def wait():
        await eventually_async(lambda: not broker.spool.pending, 30)
        assert broker.spool.quarantined == 0
        return stored(url)

    return wait


def writer_backend(broker):
    return broker.shards[0]._writer._conn.info.backend_pid


# ---------------------------------------------------------------- what commit_seq decides


async def test_a_commit_that_landed_without_an_answer_is_stored_once(
    broker, url, drained, monkeypatch
):
    """The connection broke after the commit: the push went to a file too, and the log knows it."""
    await push(broker, "tx-0")
    write = Writer.write

    async def write_and_break(self, *arguments):
        assert await write(self, *arguments)
        monkeypatch.undo()
        raise psycopg.OperationalError("the connection broke")

    monkeypatch.setattr(Writer, "write", write_and_break)
    (result,) = await push(broker, "tx-1")
    assert result.status == "buffered"
    assert await drained() == {1: "tx-0", 2: "tx-1"}


async def test_a_commit_that_never_arrived_is_stored_from_the_spool(
    broker, url, drained, monkeypatch
):
    """Nothing of it was in the log; it gets the version that it was meant to have."""

    async def break_at_once(self, *arguments):
        monkeypatch.undo()
        raise psycopg.OperationalError("the connection broke")

    await push(broker, "tx-0")
    monkeypatch.setattr(Writer, "write", break_at_once)
    (result,) = await push(broker, "tx-1")
    assert result.status == "buffered"
    assert await drained() == {1: "tx-0", 2: "tx-1"}
    (result,) = await push(broker, "tx-2")
    assert (result.status, result.version) == ("stored", 3)


async def test_what_others_committed_meanwhile_proves_nothing(broker, url, drained, monkeypatch):
    """Another broker wrote in between, so `commit_seq` may be its: the log itself is asked."""

    async def be_followed(self, shard_id, epoch, commit_seq, *arguments):
        monkeypatch.undo()
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute(
                "UPDATE spillway.shard SET epoch = epoch + 1, commit_seq = %s", (commit_seq,)
            )
        raise psycopg.OperationalError("the connection broke")

    await push(broker, "tx-0")
    monkeypatch.setattr(Writer, "write", be_followed)
    (result,) = await push(broker, "tx-1")
    assert result.status == "buffered"
    assert await drained() == {1: "tx-0", 2: "tx-1"}


async def test_what_a_failed_commit_handed_out_can_be_leased_again(
    broker, eventually_async, monkeypatch
):
    """The lane is asked again though nothing was pushed since: it is not forgotten as empty."""

    async def break_at_once(self, *arguments):
        monkeypatch.undo()
        raise psycopg.OperationalError("the connection broke")

    await push(broker, "tx-0", "tx-1")
    request = wire.LeaseRequest(max=10)
    monkeypatch.setattr(Writer, "write", break_at_once)
    reply = await broker.lease("default", "orders", request)
    assert (reply.messages, reply.reason) == ([], "database_unavailable")
    await eventually_async(lambda: is_well(broker))
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


@pytest.mark.parametrize("where", ["_landed", "_recover"])
async def test_a_mistake_behind_a_commit_does_not_end_the_shard(
    broker, drained, eventually_async, monkeypatch, where
):
    """It is told as critical, memory begins anew, and the log says what landed."""

    async def break_off(self, *arguments):
        raise psycopg.OperationalError("the connection broke")

    def stumble(*arguments):
        monkeypatch.undo()
        raise ValueError("a mistake of ours")

    await push(broker, "tx-0")
    shard = broker.shards[0]
    monkeypatch.setattr(shard, where, stumble)
    if where == "_recover":
        monkeypatch.setattr(Writer, "write", break_off)
    with capture_logs() as logs:
        (result,) = await push(broker, "tx-1")
    assert result.status == "buffered"
    assert [entry["log_level"] for entry in logs if entry["event"] == "shard_failed"] == [
        "critical"
    ]
    assert await drained() == {1: "tx-0", 2: "tx-1"}
    await eventually_async(lambda: is_well(broker))
    assert (await push(broker, "tx-2"))[0].status == "stored"


# ---------------------------------------------------------------- killed and frozen backends


class Producers:
    """Push numbers in triples, each producer its own and one push after the other."""

    def __init__(self, broker, count):
        self.broker = broker
        self.names = [f"p{i}" for i in range(count)]
        self.told = dict.fromkeys(self.names, 0)
        self.versions = {}
        self.buffered = 0
        self.slowest_s = 0.0
        self.done = asyncio.Event()

    async def run(self):
        await asyncio.gather(*map(self._produce, self.names))

    async def _produce(self, name):
        while not self.done.is_set():
            ids = [f"{name}-{self.told[name] + i}" for i in range(3)]
            began = time.monotonic()
            results = await push(self.broker, *ids)
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
            for result in results:
                assert result.status in {"stored", "buffered"}
                if result.status == "stored":
                    self.versions[result.version] = result.transaction_id
                self.buffered += result.status == "buffered"
            self.told[name] += 3

    def check(self, log):
        """Everything told is there once, in the order of its producer, at the version told."""
        assert list(log) == list(range(1, len(log) + 1))
        assert self.versions.items() <= log.items()
        numbers = {name: [] for name in self.names}
        for transaction_id in log.values():
            name, number = transaction_id.split("-")
            numbers[name].append(int(number))
        assert numbers == {name: list(range(count)) for name, count in self.told.items()}


@pytest.mark.slow
async def test_writers_killed_under_load_store_everything_once(
    broker, url, drained, eventually_async
):
    """Twenty times the backend of the writer is terminated while pushes are under way."""
    producers = Producers(broker, 8)

    async def terminate():
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as admin:
            for _ in range(20):
                (shard,) = broker.shards
                enough = shard.commits + 5
                await eventually_async(lambda: shard.commits >= enough and shard._writer)  # noqa: B023
                pid = writer_backend(broker)
                await admin.execute("SELECT pg_terminate_backend(%s)", (pid,))
        producers.done.set()

    await asyncio.gather(terminate(), producers.run())
    producers.check(await drained())
    assert producers.buffered > 0
    assert broker.shards[0].epoch > 20


@pytest.mark.slow
@pytest.mark.parametrize("lands", [True, False], ids=["thawed", "killed"])
async def test_a_backend_frozen_inside_a_commit_hangs_nobody(
    broker, url, drained, eventually_async, lands
):
    """Producers hear of files in time; whatever became of the commit, the message is there once."""
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
    assert [result.status for result in await pushing] == ["buffered"]
    assert [result.status for result in await push(broker, "tx-2")] == ["buffered"]
    assert time.monotonic() - began < PATIENCE_S + SLACK_S
    os.kill(frozen, signal.SIGCONT if lands else signal.SIGKILL)
    assert await drained() == {1: "tx-0", 2: "tx-1", 3: "tx-2"}


async def test_a_backend_frozen_before_a_commit_hangs_nobody(broker, url, drained):
    """The statement was sent and never read. Taken over, the shard goes on without it."""
    await push(broker, "tx-0")
    frozen = writer_backend(broker)
    os.kill(frozen, signal.SIGSTOP)
    began = time.monotonic()
    assert [result.status for result in await push(broker, "tx-1")] == ["buffered"]
    assert time.monotonic() - began < PATIENCE_S + SLACK_S
    assert await drained() == {1: "tx-0", 2: "tx-1"}
    os.kill(frozen, signal.SIGCONT)
    # Whatever it still reads of the old commit: the fence lets nothing through.
    await push(broker, "tx-2")
    assert await drained() == {1: "tx-0", 2: "tx-1", 3: "tx-2"}


@pytest.mark.slow
async def test_frozen_backends_of_the_pool_are_replaced(broker, url, drained):
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
        (result,) = await push(broker, "tx-1")
        assert result.status in {"stored", "buffered"}
        assert time.monotonic() - began < PATIENCE_S + SLACK_S
        assert await drained() == {1: "tx-0", 2: "tx-1"}
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)


# ---------------------------------------------------------------- a server that stops


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_a_stopped_server_is_no_concern_of_producers(
    server, broker, drained, eventually_async, mode
):
    """They are answered in time all along; afterwards everything is there once, in order."""
    producers = Producers(broker, 4)

    async def stop_and_start():
        await eventually_async(lambda: len(producers.versions) > 50)
        await asyncio.to_thread(server.stop, mode)
        await eventually_async(lambda: producers.buffered > 50)
        health = await broker.health()
        assert (health.status, health.ready, health.database) == ("degraded", True, "disconnected")
        await asyncio.to_thread(server.start)
        before = len(producers.versions)
        await eventually_async(lambda: len(producers.versions) > before + 50)
        producers.done.set()

    await asyncio.gather(stop_and_start(), producers.run())
    producers.check(await drained())
    assert producers.slowest_s < PATIENCE_S + SLACK_S
    await eventually_async(lambda: is_well(broker))
