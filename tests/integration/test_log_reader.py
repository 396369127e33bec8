"""Batches out of the log: as they went in, from where and as far as was asked."""

from itertools import count

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spillway.core.message import RecordBatch
from spillway.log import reader
from spillway.log.connect import connect
from spillway.log.reader import read_batches, read_ids, read_times
from spillway.log.writer import Commit, Writer

NOW_MS = 1_700_000_000_123
MANY, LARGE, TIMEOUT_S = 1_000_000, 2**40, 10.0
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
TIMES_MS = st.integers(0, 253_402_300_799_999)
LANES = count(1)


class Log:
    """One connection that writes as a shard does and reads as a lane does."""

    def __init__(self, conn: psycopg.AsyncConnection, writer: Writer) -> None:
        self.conn = conn
        self.writer = writer

    async def write(self, *batches: RecordBatch) -> None:
        assert await self.writer.write(0, 1, 1, Commit(batches=list(batches)), TIMEOUT_S)

    async def read(
        self, start: int, messages: int = MANY, size: int = LARGE, lane_id: int = 1
    ) -> list[RecordBatch]:
        return await read_batches(self.conn, lane_id, start, messages, size)


@pytest.fixture
async def log(database_url):
    async with await connect(database_url) as conn:
        await conn.execute("INSERT INTO spillway.shard (shard_id, epoch) VALUES (0, 1)")
        yield Log(conn, await Writer.open(conn))


def batch(base: int, size: int = 3, lane_id: int = 1, at_ms: int = NOW_MS, **columns):
    ids = [f"t{base + i}" for i in range(size)]
    payloads = [b'"%d"' % (base + i) for i in range(size)]
    return RecordBatch(lane_id, base, at_ms, ids, payloads, **columns)


def bases(batches: list[RecordBatch]) -> list[int]:
    return [b.base_version for b in batches]


def values(found: RecordBatch) -> dict:
    """All columns; how many bytes they take is another matter in the log."""
    return {name: getattr(found, name) for name in RecordBatch.__slots__ if name != "payload_bytes"}


@st.composite
def batches(draw) -> RecordBatch:
    """Any batch that the core could make: each optional column there or not."""
    size = draw(st.integers(1, 5))

    def column(elements):
        return draw(st.none() | st.lists(elements, min_size=size, max_size=size))

    return RecordBatch(
        lane_id=next(LANES),
        base_version=draw(st.integers(1, 2**62)),
        appended_ms=draw(TIMES_MS),
        transaction_ids=draw(st.lists(TEXTS, min_size=size, max_size=size)),
        payloads=draw(st.lists(st.binary(max_size=40), min_size=size, max_size=size)),
        keys=column(st.none() | TEXTS),
        headers=column(st.none() | st.dictionaries(TEXTS, TEXTS, max_size=3)),
        content_types=column(st.integers(0, 1)),
        deliver_ms=column(st.none() | TIMES_MS),
        expires_ms=column(st.none() | TIMES_MS),
        trace_ids=column(st.none() | TEXTS),
    )


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(written=st.lists(batches(), min_size=1, max_size=4))
async def test_batches_come_back_as_they_went_in(log, written):
    """Every column, whatever is in it: NUL bytes, nothing, any text, NULLs between values."""
    await log.write(*written)
    for each in written:
        (found,) = await log.read(each.base_version, lane_id=each.lane_id)
        assert values(found) == values(each)


async def test_one_row_a_message_for_people(log):
    """The view `message` shows what the columns of a batch say about each message."""
    await log.conn.execute("INSERT INTO spillway.org VALUES ('default')")
    await log.conn.execute(
        "INSERT INTO spillway.queue (org, name, options) VALUES ('default', 'orders', '{}')"
    )
    await log.conn.execute(
        "INSERT INTO spillway.lane (queue_id, partition, priority, enqueue_shard, shard_id)"
        " VALUES (1, 'Default', 2, 0, 0)"
    )
    await log.write(batch(4, 2, keys=[None, "k"], headers=[{"h": "1"}, None], content_types=[0, 1]))
    cursor = await log.conn.execute(
        "SELECT queue, version, transaction_id, key, headers, payload, content_type"
        " FROM spillway.message ORDER BY version"
    )
    assert await cursor.fetchall() == [
        ("orders", 4, "t4", None, {"h": "1"}, b'"4"', 0),
        ("orders", 5, "t5", "k", None, b'"5"', 1),
    ]


# ---------------------------------------------------------------- from a version on


@pytest.fixture
async def stored(log):
    """Lane 1 has versions 1 to 30, three a batch; there is another lane beside it."""
    await log.write(*(batch(base) for base in range(1, 31, 3)), batch(1, 30, lane_id=2))
    return log


async def test_reading_begins_with_the_batch_that_holds_the_version(stored):
    """Whole batches, about as many messages as asked; behind the tail only the last batch."""
    asked = [(1, 3), (1, 4), (2, 2), (3, 2), (5, 100), (30, 1), (31, 5)]
    assert [bases(await stored.read(*ask)) for ask in asked] == [
        [1],
        [1, 4],
        [1],
        [1, 4],
        [4, 7, 10, 13, 16, 19, 22, 25, 28],
        [28],
        [28],
    ]


async def test_reading_stops_at_a_size_but_brings_at_least_one(stored):
    """A stretch of large messages does not fill the memory; the first batch always comes."""
    assert bases(await stored.read(4, MANY, 1)) == [4]
    cursor = await stored.conn.execute(
        "SELECT pg_column_size(payloads) FROM spillway.message_batch WHERE lane_id = 1"
    )
    size = sum(row[0] for row in (await cursor.fetchall())[1:4])
    assert bases(await stored.read(4, MANY, size)) == [4, 7, 10]
    assert bases(await stored.read(4, MANY, size - 1)) == [4, 7]


async def test_reading_a_pruned_version_begins_with_what_is_left(stored):
    """The holder is gone: what comes is behind it, and the caller finds its version missing."""
    await stored.conn.execute("DELETE FROM spillway.message_batch WHERE base_version < 10")
    assert bases(await stored.read(2, 10)) == [10]
    assert bases(await stored.read(2, 5)) == []


async def test_an_empty_lane_has_nothing(stored):
    """No rows, no error."""
    assert await stored.read(1, lane_id=99) == []
    assert await read_ids(stored.conn, 99, 10, 0) == []


# ---------------------------------------------------------------- timed and recent


async def test_only_the_times_of_batches_that_have_some_are_read(log, monkeypatch):
    """What the schedule is rebuilt from: a page at a time, behind what was read."""
    await log.write(
        batch(1, deliver_ms=[None, 5, None]),
        batch(4),
        batch(7, expires_ms=[7, None, None]),
        batch(10, deliver_ms=[1, 1, 1], expires_ms=[2, 2, 2]),
        batch(13, lane_id=2, deliver_ms=[1, 1, 1]),
    )
    asked = (0, 1, 6, 9, 10)
    found = {after: await read_times(log.conn, 1, after) for after in asked}
    firsts = {after: [base for base, *_ in page] for after, page in found.items()}
    assert firsts == {0: [1, 7, 10], 1: [7, 10], 6: [7, 10], 9: [10], 10: []}
    assert found[0][0] == (1, [None, 5, None], None)
    assert found[9] == [(10, [1, 1, 1], [2, 2, 2])]
    monkeypatch.setattr(reader, "BATCHES_TIMED_MAX", 2)
    assert await read_times(log.conn, 1, 0) == found[0][:2]


async def test_ids_are_read_backwards_to_a_moment(log, monkeypatch):
    """The newest first, each statement up to a number and a size of batches, at least one."""
    await log.write(*(batch(1 + 3 * i, at_ms=NOW_MS + 10 * i) for i in range(4)))

    async def bases_of(before: int, since_ms: int) -> list[int]:
        return bases(await read_ids(log.conn, 1, before, since_ms))

    assert await bases_of(13, NOW_MS - 1) == [10, 7, 4, 1]
    assert await bases_of(10, NOW_MS) == [7, 4]
    assert await bases_of(13, NOW_MS + 30) == []
    (newest, *_) = await read_ids(log.conn, 1, 13, 0)
    written = batch(10, at_ms=NOW_MS + 30)
    assert (newest.appended_ms, newest.transaction_ids, newest.payloads) == (
        written.appended_ms,
        written.transaction_ids,
        written.payloads,
    )
    monkeypatch.setattr(reader, "BYTES_RECENT_MAX", 1)
    assert await bases_of(13, 0) == [10]
    monkeypatch.setattr(reader, "BYTES_RECENT_MAX", LARGE)
    monkeypatch.setattr(reader, "BATCHES_RECENT_MAX", 3)
    assert await bases_of(13, 0) == [10, 7, 4]
