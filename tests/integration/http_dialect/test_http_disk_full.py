"""PostgreSQL's disk is full (SQLSTATE 53100): that is told, nothing is half stored, it passes.

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
PUSHES_MAX = SMALL_MB * 2**20 // PAYLOAD_BYTES
REFUSED = (503, "database_unavailable", "1")


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


def refusal(answer) -> tuple[int, str, str | None]:
    return answer.status, answer.error, answer.headers.get("retry-after")


# ---------------------------------------------------------------- raised


@pytest.fixture
async def site(open_site, database_url) -> AsyncIterator:
    """A broker before a database of this test's own; at the end its books balance."""
    async with open_site(database_url) as site:
        yield site


async def test_a_full_disk_is_told_as_a_database_that_is_away(site, database_url):
    """503, worth a retry, every time; nothing of the push is in the log."""
    await push(site, "tx-0")
    execute(database_url, FULL)
    for _ in range(3):
        answer = await push(site, "tx-1", "tx-2", "tx-3", partitions=("a", "b", "c"))
        assert refusal(answer) == REFUSED
    answers = await asyncio.gather(*(push(site, f"many-{at}") for at in range(10)))
    assert {refusal(answer) for answer in answers} == {REFUSED}
    assert stored(database_url) == [("a", 1, "tx-0")]


async def test_service_resumes_by_itself_when_there_is_space_again(site, database_url):
    """The repeat of a refused push is stored, once, behind what was there."""
    await push(site, "tx-0")
    execute(database_url, FULL)
    assert refusal(await push(site, "tx-1")) == REFUSED
    execute(database_url, "DROP TRIGGER no_space ON spillway.message_batch")
    for status in ("stored", "duplicate"):
        answer = await push(site, "tx-1")
        (result,) = answer.body["results"]
        assert (answer.status, result["status"], result["version"]) == (201, status, 2)
    assert stored(database_url) == [("a", 1, "tx-0"), ("a", 2, "tx-1")]
    assert (await site.ask("GET", "/health"))["status"] == "ok"


async def test_what_is_stored_can_be_worked_off_meanwhile(site, database_url):
    """Leases and acks go on where they find room: a full queue can drain on a full disk."""
    await push(site, "tx-0", "tx-1")
    (held,) = await site.lease("orders")
    execute(database_url, FULL)
    assert refusal(await push(site, "tx-2")) == REFUSED
    assert await site.ack(held) == ["acked"]
    assert await site.ack(*await site.lease("orders")) == ["acked"]
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


async def test_a_disk_that_really_is_full(open_site, tight_database_url, small_disk):
    """Pushes until nothing goes in, and on when the disk has grown: all told is true."""
    random, url = Random(0), tight_database_url
    told = []
    async with open_site(url) as site:
        for number in range(PUSHES_MAX + 1):
            body = b64encode(random.randbytes(PAYLOAD_BYTES)).decode()
            answer = await push(site, f"tx-{number}", payload={"payload_base64": body})
            if answer.status != 201:
                break
            told.append(("a", answer.body["results"][0]["version"], f"tx-{number}"))
        assert len(told) >= 10
        assert refusal(answer) == REFUSED
        assert "No space left on device" in answer.body["error"]["message"]
        assert stored(url) == told
        assert run("mount", "-o", f"remount,size={LARGE_MB}m", str(small_disk)) is None
        answer = await push(site, f"tx-{number}", payload={"payload_base64": body})
        (result,) = answer.body["results"]
        assert (result["status"], result["version"]) == ("stored", len(told) + 1)
        messages = await site.lease("orders", max=100)
        assert [message["transaction_id"] for message in messages] == [
            f"tx-{at}" for at in range(len(told) + 1)
        ]
