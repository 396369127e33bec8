"""The measurements of decisions 0002, 0004 and 0013 to 0015, repeated by
`.venv/bin/python docs/adr/measure.py NUMBER`; without a number, all of them.

Each shape of a commit and of a row is written into a fresh embedded PostgreSQL with fsync on, by
the encoders of the broker; each line by those of the spool, into a scratch folder of this one
(`TMPDIR` says where). What was decided for is the code of the broker; the rest lives here.
"""

import asyncio
import random
import struct
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from zlib import crc32

import msgspec
import psycopg
from msgspec import Raw
from msgspec.structs import astuple

from spillway.bench.orders import BATCH_MAX, payloads
from spillway.core import events as ev
from spillway.core.message import BATCH_MESSAGES_MAX, RecordBatch
from spillway.log import binary as pg
from spillway.log.embedded import EmbeddedPostgres
from spillway.log.events import encode
from spillway.log.migrations import migrate
from spillway.log.queries import QUERIES
from spillway.log.writer import Commit, ControlRow, Writer
from spillway.spool import event
from spillway.spool.event import Address, Event
from spillway.spool.gate import BUCKETS, Gate
from spillway.spool.spool import Spool, SpoolConfig

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


# ---------------------------------------------------------------- the spool


def spooled(count: int) -> list[Event]:
    """Events such as the spool gets them: an order with an id of the client's making."""
    bodies = payloads(count, PAYLOAD_BYTES, BATCH_MAX, random.Random(1))
    at = datetime.fromtimestamp(NOW_MS / 1000, UTC)
    return [
        Event(
            "orders", "Default", Raw(body), f"Zk3tVq0pT1mWb8Yc5nXr2A-{i}", None, "", "",
            "default", None, None, 2, None, None, at, NOW_MS * 1000 + i,
        )
        for i, body in enumerate(bodies)
    ]  # fmt: skip


FIELDS = [
    (field.name, bytes if field.name == "payload" else field.type)
    for field in msgspec.structs.fields(Event)
    if field.name != "doubt"  # it would be a bit of something
]
Packed = msgspec.defstruct("Packed", FIELDS, array_like=True)
pack = msgspec.msgpack.Encoder().encode
unpack = msgspec.msgpack.Decoder(Packed).decode


def packed(events: list[Event]) -> list[bytes]:
    """What a binary format would be: length, checksum, the fields without their names."""
    texts = [pack(one) for one in events]
    return [struct.pack("!II", len(text), crc32(text)) + text for text in texts]


def unpacked(record: bytes) -> object:
    assert crc32(record[8:]) == int.from_bytes(record[4:8])
    return unpack(record[8:])


def forms() -> None:
    """Decision 0013: a line of JSON against a binary record."""
    found = spooled(50_000)
    plain = [
        Packed(*(bytes(v) if isinstance(v, Raw) else v for v in astuple(one)[:-1])) for one in found
    ]
    for name, events, write, read in (
        ("JSON lines", found, event.lines, event.read),
        ("binary", plain, packed, unpacked),
    ):
        texts = write(events)
        into = median(spent(write, events) for _ in range(7))
        out = median(spent(read_all, read, texts) for _ in range(7))
        size = sum(map(len, texts)) / len(texts)
        rates = [len(texts) / taken / 1000 for taken in (into, out)]
        print(f"0013 {name}: {size:.0f} bytes, encode {rates[0]:.0f}k/s, decode {rates[1]:.0f}k/s")


def read_all(read: Callable[[bytes], object], texts: list[bytes]) -> None:
    for text in texts:
        read(text)


async def group_fsync(scratch: Path) -> None:
    """Decision 0013: how many events share an fsync, by how many push at once."""
    found = spooled(20_000)
    for pushers in (1, 8, 64, 256):
        syncs: list[str] = []
        config = SpoolConfig(scratch / f"spool-{pushers}", events_per_file=1_000_000)
        spool = Spool(config, lambda: NOW_MS, syncs.append)
        await spool.open()
        chosen = found[: 300 if pushers == 1 else len(found)]
        waiting = iter(chosen)
        taken = await seconds(asyncio.gather(*(push(spool, waiting) for _ in range(pushers))))
        await spool.close()
        group = len(chosen) / syncs.count("before_fsync")
        print(f"0013 {pushers} pushers: {len(chosen) / taken:.0f} events/s, {group:.1f} an fsync")


async def push(spool: Spool, waiting: Iterator[Event]) -> None:
    for one in waiting:
        await spool.append([(one.address, [one])])


def doors() -> None:
    """Decision 0014: asking the gate, and what counting each order by itself would take."""
    addresses = [Address("default", f"q{n % 100}", f"customer-{n}") for n in range(1_000_000)]
    tracemalloc.start()
    gate = Gate()
    gate.is_known = True
    buckets = tracemalloc.get_traced_memory()[0]
    tracemalloc.clear_traces()
    exact = dict.fromkeys([(a.org, a.queue, a.partition) for a in addresses], 1)
    each = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    asked = addresses[::10]
    taken = spent(read_all, gate.holds, asked) / len(asked)
    print(f"0014 gate: {buckets / 1024:.0f} KiB, {taken * 1e9:.0f} ns a question")
    print(f"0014 a count for each of {len(exact):,} orders: {each / 1024**2:.0f} MiB")
    for lanes in (100, 1_000, 10_000, 100_000):
        chosen = random.Random(1).sample(addresses, lanes)
        filled = Gate()
        filled.is_known = True
        for address in chosen:
            filled.add(address)
        others = set(asked) - set(chosen)
        held = sum(map(filled.holds, others)) / len(others)
        print(f"0014 {lanes} of {BUCKETS} buckets wanted: {held:.1%} of the others wait too")


async def marks(log: Log) -> None:
    """Decision 0015: a mark in the commit, or every id looked up in the log."""
    for _ in range(40):
        await log.one_statement(log.next(5_000))
    ids = [f"{log.version - i:022}" for i in range(1_000)]
    params = {"lane_id": 1, "ids": ids, "since_ms": NOW_MS + 3_600_000}
    for name, since_ms in (("since the last hour", NOW_MS + 3_600_000), ("in all of it", 0)):
        query = log.conn.execute
        sql = QUERIES["ids_since"].sql
        tries = [await seconds(query(sql, params | {"since_ms": since_ms})) for _ in range(5)]
        print(f"0015 look up 1,000 ids {name}: {median(tries) * 1000:.1f} ms")
    for name, source in (("without", None), ("with", "failover_8123-0123456789ab")):
        taken = []
        for _ in range(50):
            commit = log.next(1_000)
            if source is not None:
                commit.replayed[1, source] = log.seq
            taken.append(await seconds(log.one_statement(commit)))
        print(f"0015 a commit of 1,000 {name} a mark: {median(taken) * 1000:.2f} ms")


def spent(act: Callable[..., object], *given: object) -> float:
    started = time.perf_counter()
    act(*given)
    return time.perf_counter() - started


async def main(url: str, scratch: Path, wanted: set[str]) -> None:
    """Those that are asked for, or all."""
    if wanted & {"0013"}:
        forms()
        await group_fsync(scratch)
    if wanted & {"0014"}:
        doors()
    await migrate(url)
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as conn:
        await conn.execute("INSERT INTO spillway.shard (shard_id, epoch) VALUES (0, 1)")
        log = Log(conn, await Writer.open(conn))
        if wanted & {"0002"}:
            await commits(log)
        if wanted & {"0004"}:
            await rows(log)
        if wanted & {"0015"}:
            await marks(log)


DECISIONS = {"0002", "0004", "0013", "0014", "0015"}
with tempfile.TemporaryDirectory() as scratch, EmbeddedPostgres(Path(scratch) / "pg") as postgres:
    asyncio.run(main(postgres.url, Path(scratch), DECISIONS & set(sys.argv[1:]) or DECISIONS))
