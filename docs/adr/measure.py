"""The measurements of decisions 0002 and 0004, repeated by `.venv/bin/python docs/adr/measure.py`.

Each shape of a commit and of a row is written into a fresh embedded PostgreSQL with fsync on, by
the encoders of the broker. What was decided for is the real `Writer`; the rest lives here.
"""

import asyncio
import random
import struct
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path
from statistics import median

import psycopg

from spillway.bench.orders import BATCH_MAX, payloads
from spillway.core import events as ev
from spillway.core.message import BATCH_MESSAGES_MAX, RecordBatch
from spillway.log import binary as pg
from spillway.log.embedded import EmbeddedPostgres
from spillway.log.events import encode
from spillway.log.migrations import migrate
from spillway.log.writer import Commit, ControlRow, Writer

PAYLOAD_BYTES = 106
NOW_MS = 1_700_000_000_000
FENCE = "UPDATE spillway.shard SET commit_seq = %s WHERE shard_id = 0 AND epoch = 1 RETURNING 1"
COPY = (
    "COPY spillway.message_batch"
    " (lane_id, base_version, count, appended_at, transaction_ids, payloads)"
    " FROM STDIN (FORMAT binary)"
)
CONTROL = "INSERT INTO spillway.control_event VALUES (%s, 'default', %s, %s, now())"
HEAD, TAIL = b"PGCOPY\n\xff\r\n\x00" + bytes(8), b"\xff\xff"


class Log:
    """A message log that grows, on one lane."""

    def __init__(self, conn: psycopg.AsyncConnection, writer: Writer) -> None:
        self.conn, self.writer = conn, writer
        self.version, self.seq = 0, 0
        self.bodies = list(payloads(100_000, PAYLOAD_BYTES, BATCH_MAX, random.Random(1)))

    def next(self, count: int) -> Commit:
        """So many messages in record batches, and the event of a lease beside them."""
        commit = Commit()
        for at in range(0, count, BATCH_MESSAGES_MAX):
            some = [self.bodies[(self.version + i) % 100_000] for i in range(min(256, count - at))]
            batch = RecordBatch(1, self.version + 1, NOW_MS)
            batch.payloads = some
            batch.transaction_ids = [f"{self.version + i:022}" for i in range(len(some))]
            commit.batches.append(batch)
            self.version += len(some)
        self.seq += 1
        lease = ev.Leased(self.seq, ((1, count),), NOW_MS)
        commit.controls.append(ControlRow(1, "default", self.seq, [(NOW_MS, lease)]))
        return commit

    async def one_statement(self, commit: Commit) -> None:
        assert await self.writer.write(0, 1, self.seq, commit, 10.0)

    async def five_round_trips(self, commit: Commit) -> None:
        async with self.conn.transaction():
            await self.conn.execute(FENCE, (self.seq,), prepare=True)
            async with self.conn.cursor().copy(COPY) as copy:
                await copy.write(HEAD + b"".join(map(row_of, commit.batches)) + TAIL)
            for row in commit.controls:
                values = (row.lane_id, row.seq, encode(row.events))
                await self.conn.execute(CONTROL, values, prepare=True)


def row_of(batch: RecordBatch) -> bytes:
    """A record batch in the form of a binary COPY."""
    return copy_row(
        pg.int8(batch.lane_id),
        pg.int8(batch.base_version),
        pg.int4(len(batch.payloads)),
        pg.timestamptz(batch.appended_ms),
        pg.texts(batch.transaction_ids),
        pg.array(pg.BYTEA, batch.payloads),
    )


def copy_row(*values: bytes) -> bytes:
    return struct.pack("!h", len(values)) + b"".join(struct.pack("!i", len(v)) + v for v in values)


async def commits(log: Log) -> None:
    """Decision 0002: what a commit looks like on the wire. Both shapes in turn, medians."""
    shapes = (log.one_statement, log.five_round_trips)
    for count, rounds in ((1, 2_000), (1_000, 200)):
        taken: list[list[float]] = [[], []]
        for _ in range(rounds):
            for shape, found in zip(shapes, taken, strict=True):
                commit = log.next(count)
                found.append(await seconds(shape(commit)))
        for shape, found in zip(shapes, taken, strict=True):
            ms = median(found) * 1000
            print(f"0002 {shape.__name__} of {count}: {ms:.2f} ms, {count / ms:.0f}k msg/s")


async def rows(log: Log) -> None:
    """Decision 0004: a row a message, or a row a record batch; written and read back."""
    count = 200_000
    await log.conn.execute("CREATE TABLE one (id bigint PRIMARY KEY, tx text, payload bytea)")
    singles = [
        copy_row(pg.int8(i), f"{i:022}".encode(), log.bodies[i % 100_000]) for i in range(count)
    ]
    commit = log.next(count)
    batches = [row_of(batch) for batch in commit.batches]
    for name, table, encoded in (
        ("message", "COPY one FROM STDIN (FORMAT binary)", singles),
        ("batch", COPY, batches),
    ):
        before = await wal(log)
        taken = await seconds(copied(log, table, encoded))
        size = (await wal(log) - before) / count
        print(
            f"0004 a row a {name}: {count / taken / 1000:.0f}k msg/s, {size:.0f} bytes of WAL each"
        )
    first = commit.batches[0].base_version
    for what in ("payloads", "unnest(payloads)"):
        query = f"SELECT {what} FROM spillway.message_batch WHERE base_version >= {first}"
        reads = [await seconds(log.conn.cursor(binary=True).execute(query)) for _ in range(9)]
        taken = median(reads)
        print(f"0004 read {what}: {count / taken / 1000:.0f}k msg/s")


async def copied(log: Log, table: str, encoded: list[bytes]) -> None:
    async with log.conn.cursor().copy(table) as copy:
        await copy.write(HEAD + b"".join(encoded) + TAIL)


async def wal(log: Log) -> int:
    cursor = await log.conn.execute("SELECT pg_current_wal_insert_lsn() - '0/0'")
    return int((await cursor.fetchone())[0])


async def seconds(act: Awaitable[object]) -> float:
    started = time.perf_counter()
    await act
    return time.perf_counter() - started


async def main(url: str) -> None:
    await migrate(url)
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as conn:
        await conn.execute("INSERT INTO spillway.shard (shard_id, epoch) VALUES (0, 1)")
        log = Log(conn, await Writer.open(conn))
        await commits(log)
        await rows(log)


with tempfile.TemporaryDirectory() as scratch, EmbeddedPostgres(Path(scratch)) as postgres:
    asyncio.run(main(postgres.url))
