"""PostgreSQL's disk is full (SQLSTATE 53100): pushes wait in files, nothing is half stored.

Once with a real full disk, a tmpfs under the table of the batches; and, where nobody may mount one,
with an error that PostgreSQL is made to raise at the same place.
"""

import asyncio
import os
import subprocess
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random

import psycopg
import pytest

from spillway.log.embedded import EmbeddedPostgres

FULL = """
    CREATE FUNCTION no_space() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION USING ERRCODE = '53100',
            MESSAGE = 'could not extend file: No space left on device';
    END $$;
    CREATE TRIGGER no_space AFTER INSERT ON spillway.message_batch
    FOR EACH ROW EXECUTE FUNCTION no_space()
"""
"""Behind the insert of all rows: whatever is stored by then must go again."""
SMALL_MB, LARGE_MB = 8, 64
PAYLOAD_BYTES = 100_000
PUSHES_MAX = SMALL_MB * 2**20 // PAYLOAD_BYTES + 3
BUFFERED = (201, {"buffered"}, {None})


def execute(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute(statement)


def stored(url: str) -> list[tuple[str, int, str]]:
    """(partition, version, transaction id) of what is in the log."""
    with psycopg.connect(url) as conn:
        return conn.execute(
            "SELECT partition, version, transaction_id FROM spillway.message ORDER BY 1, 2"
        ).fetchall()


async def push(site, *ids: str, payload: object = 1, partitions: tuple[str, ...] = ("a",)):
    """A push of these transaction ids, one for each partition in turn."""
    items = [
        {
            "queue": "orders",
            "payload": payload,
            "transaction_id": one,
            "partition": partitions[at % len(partitions)],
        }
        for at, one in enumerate(ids)
    ]
    return await site("POST", "/v1/messages", {"items": items})


def told(answer) -> tuple[int, set[str], set[int | None]]:
    """What a push was told: how it was answered, the statuses and the versions of its items."""
    results = answer.body["results"]
    return (
        answer.status,
        {result["status"] for result in results},
        {result.get("version") for result in results},
    )


# ---------------------------------------------------------------- raised


@pytest.fixture
async def site(open_site, database_url) -> AsyncIterator:
    """A broker before a database of this test's own; at the end its books balance."""
    async with open_site(database_url) as site:
        yield site


async def test_a_full_disk_is_no_concern_of_producers(site, database_url):
    """Every push goes to files, at once; nothing of it is in the log."""
    await push(site, "tx-0")
    execute(database_url, FULL)
    for at in range(3):
        ids = [f"tx-{at}-{partition}" for partition in "abc"]
        assert told(await push(site, *ids, partitions=("a", "b", "c"))) == BUFFERED
    answers = await asyncio.gather(*(push(site, f"many-{at}") for at in range(10)))
    assert [told(answer) for answer in answers] == [BUFFERED] * 10
    assert stored(database_url) == [("a", 1, "tx-0")]
    spool = await site.ask("GET", "/v1/spool")
    assert (spool["pending"], spool["failed"]) == (19, 0)


async def test_service_resumes_by_itself_when_there_is_space_again(
    site, database_url, eventually_async
):
    """What waited is stored, once, behind what was there; a repeat of it is known."""
    await push(site, "tx-0")
    execute(database_url, FULL)
    for _ in range(2):
        assert told(await push(site, "tx-1")) == BUFFERED
    execute(database_url, "DROP TRIGGER no_space ON spillway.message_batch")
    await eventually_async(lambda: not site.broker.spool.pending)
    assert told(await push(site, "tx-1")) == (201, {"duplicate"}, {2})
    assert stored(database_url) == [("a", 1, "tx-0"), ("a", 2, "tx-1")]
    assert (await site.ask("GET", "/health"))["status"] == "ok"


async def test_what_is_stored_can_be_worked_off_meanwhile(site, database_url, eventually_async):
    """Leases and acks go on between the attempts to store: a full queue drains on a full disk."""
    await push(site, "tx-0", "tx-1")
    (held,) = await site.lease("orders")
    execute(database_url, FULL)
    assert told(await push(site, "tx-2")) == BUFFERED

    async def acked(receipt: str) -> bool:
        return (await site("POST", "/v1/settle", {"ack": [receipt]})).status == 200

    await eventually_async(lambda: acked(held["receipt"]))
    found = []

    async def leased() -> bool:
        found[:] = await site.lease("orders")
        return bool(found) and await acked(found[0]["receipt"])

    await eventually_async(leased)
    assert await site.counts("orders") == {"settled": 2}


# ---------------------------------------------------------------- real


def run(*words: str) -> str | None:
    """What went wrong with a command, if anything."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else done.stderr.strip()


@pytest.fixture
def small_disk(postgres: EmbeddedPostgres) -> Iterator[Path]:
    """A tmpfs with a tablespace `small` on it."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small tmpfs")
    mounted = postgres.data_dir / "small"
    mounted.mkdir()
    problem = run("mount", "-t", "tmpfs", "-o", f"size={SMALL_MB}m", "tmpfs", str(mounted))
    if problem is not None:
        mounted.rmdir()
        pytest.skip(f"a small tmpfs cannot be mounted here: {problem}")
    try:
        owner = postgres.cluster.stat()
        os.chown(mounted, owner.st_uid, owner.st_gid)
        mounted.chmod(0o700)
        execute(postgres.url, f"CREATE TABLESPACE small LOCATION '{mounted}'")
        yield mounted
        execute(postgres.url, "DROP TABLESPACE small")
    finally:
        assert run("umount", "-l", str(mounted)) is None
        mounted.rmdir()


@pytest.fixture
def tight_database_url(small_disk: Path, database_url: str) -> str:
    """A database whose batches are on the small disk."""
    execute(database_url, "ALTER TABLE spillway.message_batch SET TABLESPACE small")
    return database_url


async def test_a_disk_that_really_is_full(
    open_site, tight_database_url, small_disk, eventually_async
):
    """Pushes until nothing goes in, then some; when the disk has grown all of it is there."""
    random, url = Random(0), tight_database_url
    statuses: list[str] = []
    async with open_site(url) as site:
        while statuses.count("buffered") < 3:
            assert len(statuses) <= PUSHES_MAX
            body = b64encode(random.randbytes(PAYLOAD_BYTES)).decode()
            answer = await push(site, f"tx-{len(statuses)}", payload={"payload_base64": body})
            assert answer.status == 201
            statuses.append(answer.body["results"][0]["status"])
        fitted = statuses.count("stored")
        assert fitted >= 10
        assert statuses == ["stored"] * fitted + ["buffered"] * 3
        assert [row[1:] for row in stored(url)] == [(at + 1, f"tx-{at}") for at in range(fitted)]
        assert run("mount", "-o", f"remount,size={LARGE_MB}m", str(small_disk)) is None
        await eventually_async(lambda: not site.broker.spool.pending)
        messages = await site.lease("orders", max=100)
        assert [message["transaction_id"] for message in messages] == [
            f"tx-{at}" for at in range(len(statuses))
        ]
