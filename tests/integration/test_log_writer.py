"""The commit against PostgreSQL: what is encoded arrives, the fence holds, all or nothing."""

import asyncio

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.core import events as ev
from spillway.core.message import BYTES, JSON, RecordBatch
from spillway.log import binary as pg
from spillway.log import events as codec
from spillway.log import writer as writing
from spillway.log.connect import connect
from spillway.log.writer import Commit, ControlRow, NewDead, Writer

NOW_MS = 1_700_000_000_123
LANE, GROUP, QUEUE, TIMEOUT_S = 7, "default", 3, 10.0
LOG_TABLES = ("message_batch", "control_event", "dead_letter")
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
TIMES_MS = st.integers(0, 253_402_300_799_999)


@pytest.fixture
async def writer(database_url):
    """A writer of shard 0 under epoch 5."""
    async with await connect(database_url) as conn:
        await conn.execute(
            "INSERT INTO spillway.shard (shard_id, epoch, commit_seq) VALUES (0,5,8)"
        )
        yield await Writer.open(conn)


@pytest.fixture
async def rows(database_url):
    """What PostgreSQL says, asked from outside."""
    async with await connect(database_url) as conn:

        async def ask(statement: str) -> list[tuple]:
            return await (await conn.execute(statement)).fetchall()

        yield ask


def batch(base: int = 1, count: int = 1, **columns) -> RecordBatch:
    ids = [f"t{base + i}" for i in range(count)]
    return RecordBatch(LANE, base, NOW_MS, ids, [b"{}"] * count, **columns)


def dead(version: int, **more) -> NewDead:
    told = {
        "attempts": 2,
        "cause": "exhausted",
        "error": None,
        "actor": None,
        "reason": None,
        "dead_ms": NOW_MS + 9,
    }
    return NewDead(QUEUE, LANE, GROUP, version, **(told | more))


def control(seq: int = 1) -> ControlRow:
    acked = ev.Acked(1, ((1, 1),))
    return ControlRow(LANE, GROUP, seq, [(NOW_MS, acked), (NOW_MS + 4, acked)])


async def write(writer: Writer, epoch: int = 5, seq: int = 9, shard_id: int = 0, **commit) -> bool:
    return await writer.write(shard_id, epoch, seq, Commit(**commit), TIMEOUT_S)


async def counts(rows) -> list[int]:
    return [(await rows(f"SELECT count(*) FROM spillway.{name}"))[0][0] for name in LOG_TABLES]


# ---------------------------------------------------------------- binary forms


@pytest.fixture(scope="module")
def server(postgres, _migrated):
    """Sends a binary value, brings back what PostgreSQL makes of it."""
    with psycopg.connect(postgres.url, autocommit=True) as conn:

        def ask(statement: str, oid: int, value: bytes, *, binary: bool) -> bytes:
            query = statement.encode()
            result = conn.pgconn.exec_params(query, [value], [oid], [1], int(binary))
            assert result.status == psycopg.pq.ExecStatus.TUPLES_OK, result.error_message
            return result.get_value(0, 0)

        yield ask


@pytest.mark.parametrize(
    ("oid", "value", "literal"),
    [
        (
            pg.TEXT_ARRAY,
            pg.texts(["ab", None, "Grüße 🚰", ""]),
            "ARRAY['ab', NULL, 'Grüße 🚰', '']",
        ),
        (pg.TEXT_ARRAY, pg.texts([]), "'{}'::text[]"),
        (pg.BYTEA_ARRAY, pg.array(pg.BYTEA, [b"\0\xff", b""]), r"ARRAY['\x00ff', '']::bytea[]"),
        (pg.INT2_ARRAY, pg.array(pg.INT2, [pg.int2(-1), None]), "'{-1,NULL}'::int2[]"),
        (pg.INT8_ARRAY, pg.array(pg.INT8, [pg.int8(2**62)]), "ARRAY[4611686018427387904]"),
        (pg.TIMESTAMPTZ, pg.timestamptz(NOW_MS), "'2023-11-14 22:13:20.123Z'::timestamptz"),
        (pg.TIMESTAMPTZ, pg.timestamptz(-1), "'1969-12-31 23:59:59.999Z'::timestamptz"),
        (pg.JSONB, pg.jsonb(b'{"b": 1, "a": null}'), """'{"a":null,"b":1}'::jsonb"""),
    ],
    ids=["texts", "no texts", "bytes", "int2", "int8", "after 2000", "before 1970", "json"],
)
def test_postgresql_reads_the_value_that_was_meant(server, oid, value, literal):
    """Our bytes equal the value that SQL writes in words."""
    assert server(f"SELECT $1 = {literal}", oid, value, binary=False) == b"t"


@given(st.lists(st.none() | TEXTS, max_size=20), st.lists(st.none() | TIMES_MS, max_size=20))
def test_postgresql_would_have_written_the_same_bytes(server, texts, times):
    """An array that PostgreSQL has read and sends again is what was sent."""
    moments = pg.array(pg.TIMESTAMPTZ, [None if t is None else pg.timestamptz(t) for t in times])
    for oid, value in ((pg.TEXT_ARRAY, pg.texts(texts)), (pg.TIMESTAMPTZ_ARRAY, moments)):
        assert server("SELECT $1", oid, value, binary=True) == value


async def test_rows_of_a_commit_arrive_as_they_were_meant(writer):
    """An array of our composite types is what PostgreSQL itself would send back."""
    batches = [writing._batch(batch(1, 3, keys=["k", None, ""])), writing._batch(batch(4))]
    deads = [writing._dead(dead(1, error="no 🚰", actor="ann")), writing._dead(dead(2))]
    encoded = {
        "new_batch": writer._rows("new_batch", batches),
        "new_control": writer._rows("new_control", [writing._control(control())]),
        "new_dead": writer._rows("new_dead", deads),
        "new_replayed": writer._rows("new_replayed", [writing._replayed((7, "failover_x"), 5)]),
    }
    for name, value in encoded.items():
        query = f"SELECT $1::spillway.{name}[]".encode()
        oid = writer._oids[f"{name}[]"]
        async with writer._conn.lock:
            writer._conn.pgconn.send_query_params(query, [value], [oid], [1], 1)
            result = await writer._answer(TIMEOUT_S)
        assert result.get_value(0, 0) == value


# ---------------------------------------------------------------- the fence


async def test_the_fence_refuses(writer, rows):
    """Another epoch, be it higher, or another shard: nothing at all is written."""
    assert await write(writer, batches=[batch()])
    assert await write(writer, seq=10, dead=[dead(1)])
    everything = {
        "batches": [batch(2)],
        "controls": [control()],
        "dead": [dead(1, cause="operator")],
        "redriven_ids": [1],
    }
    for shard_id, epoch in ((0, 4), (0, 6), (1, 5)):
        assert not await write(writer, seq=11, shard_id=shard_id, epoch=epoch, **everything)
    assert await counts(rows) == [1, 0, 1]
    assert await rows("SELECT commit_seq FROM spillway.shard") == [(10,)]
    assert await rows("SELECT dead_id, cause FROM spillway.dead_letter") == [(1, "exhausted")]


async def test_an_empty_commit_proves_the_ownership(writer, rows):
    """Nothing to write still passes through the fence, and is counted."""
    assert await write(writer)
    assert not await write(writer, epoch=4, seq=10)
    assert await rows("SELECT epoch, commit_seq FROM spillway.shard") == [(5, 9)]


# ---------------------------------------------------------------- what is written


async def test_events_are_kept_with_the_moment_of_the_last(writer, rows):
    """The bytes of the control log are the codec's, under (lane, group, seq)."""
    assert await write(writer, controls=[control(41)])
    (found,) = await rows(
        'SELECT lane_id, "group", seq, events, (extract(epoch FROM at) * 1000)::bigint'
        " FROM spillway.control_event"
    )
    assert found[:3] == (LANE, GROUP, 41)
    assert codec.decode(found[3]) == control(41).events
    assert found[4] == NOW_MS + 4


async def test_a_dead_letter_keeps_a_copy_of_its_body(writer, rows):
    """Everything the message had, so that pruning its batch takes nothing away."""
    full = batch(
        5,
        3,
        keys=[None, "k-6", None],
        headers=[None, {"h": "ü"}, None],
        content_types=[JSON, BYTES, JSON],
        trace_ids=[None, "trace-6", None],
    )
    full.payloads[1] = b"\0\xff"
    assert await write(writer, batches=[batch(1, 4), full, batch(8)])
    told = {"error": "Fehler: ü", "actor": "ann", "reason": "poison"}
    assert await write(writer, seq=10, dead=[dead(6, **told), dead(7), dead(1), dead(8)])
    found = await rows(
        "SELECT version, transaction_id, key, headers, payload, content_type, trace_id, attempts,"
        " cause, error, actor, reason FROM spillway.dead_letter ORDER BY version"
    )
    plain = [None, None, b"{}", 0, None, 2, "exhausted", None, None, None]
    assert [list(row) for row in found] == [
        [1, "t1", *plain],
        [6, "t6", "k-6", {"h": "ü"}, b"\0\xff", 1, "trace-6", 2, "exhausted", *told.values()],
        [7, "t7", *plain],
        [8, "t8", *plain],
    ]
    times = "(extract(epoch FROM {}) * 1000)::bigint"
    moments = f"SELECT DISTINCT {times.format('enqueued_at')}, {times.format('dead_at')}"
    assert await rows(f"{moments} FROM spillway.dead_letter") == [(NOW_MS, NOW_MS + 9)]


async def test_a_second_death_of_a_message_is_one_dead_letter(writer, rows):
    """The newer cause stands, the number stays."""
    await write(writer, batches=[batch()])
    await write(writer, seq=10, dead=[dead(1)])
    await write(writer, seq=11, dead=[dead(1, attempts=5, cause="operator", actor="ann")])
    found = await rows("SELECT dead_id, attempts, cause, actor FROM spillway.dead_letter")
    assert found == [(1, 5, "operator", "ann")]


async def test_redriven_dead_letters_leave_with_the_new_message(writer, rows):
    """Deleted in the commit that writes their message anew; others stay."""
    await write(writer, batches=[batch(1, 3)])
    await write(writer, seq=10, dead=[dead(1), dead(2), dead(3)])
    await write(writer, seq=11, batches=[batch(4)], redriven_ids=[1, 3, 999])
    assert await rows("SELECT version FROM spillway.dead_letter") == [(2,)]
    assert await counts(rows) == [2, 0, 1]


async def test_an_sql_error_writes_nothing(writer, rows):
    """One row that PostgreSQL refuses takes the whole commit with it, its number too."""
    await write(writer, batches=[batch(1, 2)])
    twice = {"batches": [batch(3), batch(1)], "controls": [control()], "dead": [dead(1)]}
    with pytest.raises(psycopg.errors.UniqueViolation):
        await write(writer, seq=10, **twice)
    assert await counts(rows) == [1, 0, 0]
    assert await rows("SELECT commit_seq FROM spillway.shard") == [(9,)]


async def test_a_dead_letter_without_a_body_is_an_error(writer, rows):
    """Better no commit than a dead letter that nobody can redrive."""
    await write(writer, batches=[batch(1, 2)])
    with pytest.raises(psycopg.errors.NotNullViolation):
        await write(writer, seq=10, dead=[dead(3)], controls=[control()])
    assert await counts(rows) == [1, 0, 0]


# ---------------------------------------------------------------- when there is no answer


@pytest.fixture
async def locked(database_url):
    """Somebody holds the row of the fence: a commit waits."""
    async with await connect(database_url) as conn, conn.transaction():
        await conn.execute("SELECT FROM spillway.shard FOR UPDATE")
        yield


async def test_a_commit_without_an_answer_gives_its_connection_up(writer, locked):
    """The outcome is unknown, and the connection is of no more use."""
    with pytest.raises(TimeoutError):
        await writer.write(0, 5, 9, Commit(batches=[batch()]), 0.02)
    assert writer._conn.closed


async def test_an_abandoned_commit_ends_at_once(writer, locked):
    """Who is deposed does not wait for PostgreSQL; the socket is closed by who waits on it."""
    commit = asyncio.create_task(writer.write(0, 5, 9, Commit(batches=[batch()]), TIMEOUT_S))
    while writer._limit is None:  # noqa: ASYNC110 (a turn of the loop each)
        await asyncio.sleep(0)
    writer.abandon()
    writer.abandon()
    with pytest.raises(TimeoutError):
        await commit
    assert writer._conn.closed


async def test_an_idle_writer_is_abandoned_at_once(writer):
    """Nothing is under way: the connection is closed without a word."""
    writer.abandon()
    assert writer._conn.closed
