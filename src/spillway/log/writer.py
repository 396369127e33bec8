"""The commit: everything a shard decided, in one statement, hence in one transaction.

The statement begins with the fence. Where another broker has raised the epoch it changes nothing,
and `Writer.write` says so. One statement is also one round trip: BEGIN, UPDATE, COPY, INSERT and
COMMIT would be five (ADR 0002 has the measurement).
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import psycopg
from psycopg import generators, pq, waiting

from spillway.core.events import Event
from spillway.core.message import RecordBatch
from spillway.log import binary as pg
from spillway.log import events as codec
from spillway.log.queries import QUERIES

PREPARE_TIMEOUT_S = 5.0
WAIT_INTERVAL_S = 1.0


@dataclass(slots=True)
class ControlRow:
    """The events of one (lane, group) in one commit, each with the moment of its decision."""

    lane_id: int
    group: str
    seq: int
    events: list[tuple[int, Event]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class NewDead:
    """A dead letter to write; its body is copied from the message log by the statement."""

    queue_id: int
    lane_id: int
    group: str
    version: int
    attempts: int
    cause: str
    error: str | None
    actor: str | None
    reason: str | None
    dead_ms: int


@dataclass(slots=True)
class Commit:
    """What one transaction writes."""

    batches: list[RecordBatch] = field(default_factory=list)
    controls: list[ControlRow] = field(default_factory=list)
    dead: list[NewDead] = field(default_factory=list)
    redriven_ids: list[int] = field(default_factory=list)
    replayed: dict[tuple[int, str], int] = field(default_factory=dict)
    """The highest number that was replayed, by lane and file."""


class Writer:
    """One shard's connection to the log. Used by one task at a time."""

    def __init__(self, conn: psycopg.AsyncConnection, type_oids: dict[str, int]) -> None:
        self._conn = conn
        self._oids = type_oids
        self._limit: asyncio.Timeout | None = None

    @classmethod
    async def open(cls, conn: psycopg.AsyncConnection) -> "Writer":
        """Learn the types of this database and prepare the statement."""
        await conn.execute(QUERIES["commit_session"].sql)
        rows = await (await conn.execute(QUERIES["commit_types"].sql)).fetchall()
        writer = cls(conn, dict(rows))
        await writer._prepare()
        return writer

    async def _prepare(self) -> None:
        oids = self._oids
        types = [pg.INT4, pg.INT8, pg.INT8]
        types += [oids["new_batch[]"], oids["new_control[]"], oids["new_dead[]"], pg.INT8_ARRAY]
        types += [oids["new_replayed[]"]]
        async with self._conn.lock:
            statement = QUERIES["commit"].sql.encode()
            self._conn.pgconn.send_prepare(b"commit", statement, types)
            await self._answer(PREPARE_TIMEOUT_S)

    async def write(
        self, shard_id: int, epoch: int, commit_seq: int, commit: Commit, timeout_s: float
    ) -> bool:
        """Write it all. False: the fence did not let it through, nothing was written.

        After any exception but a refusal, which has an SQLSTATE that is not transient, the outcome
        is unknown and this writer is of no more use.
        """
        params = [
            pg.int4(shard_id),
            pg.int8(epoch),
            pg.int8(commit_seq),
            self._rows("new_batch", [_batch(b) for b in commit.batches]),
            self._rows("new_control", [_control(c) for c in commit.controls]),
            self._rows("new_dead", [_dead(d) for d in commit.dead]),
            pg.array(pg.INT8, [pg.int8(i) for i in commit.redriven_ids]),
            self._rows("new_replayed", [_replayed(*r) for r in commit.replayed.items()]),
        ]
        async with self._conn.lock:
            # psycopg's cursors convert value by value; the arrays are encoded already.
            self._conn.pgconn.send_query_prepared(b"commit", params, [1] * len(params), 1)
            result = await self._answer(timeout_s)
        return result.get_value(0, 0) == pg.int8(1)

    async def _answer(self, timeout_s: float) -> pq.abc.PGresult:
        """The answer, at once or never: psycopg's own wait would ask a frozen backend to cancel."""
        pgconn = self._conn.pgconn
        self._limit = asyncio.timeout(timeout_s)
        try:
            async with self._limit:
                results: list[pq.abc.PGresult] = await waiting.wait_async(
                    generators.execute(pgconn), pgconn.socket, interval=WAIT_INTERVAL_S
                )
        except BaseException:
            pgconn.finish()
            raise
        finally:
            self._limit = None
        result = results[-1]
        if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
            raise psycopg.errors.error_from_result(result, encoding="utf-8")
        return result

    def _rows(self, type_name: str, rows: Sequence[bytes]) -> bytes:
        return pg.array(self._oids[type_name], rows)

    def abandon(self) -> None:
        """Close the connection without another word to PostgreSQL."""
        if self._limit is None:
            self._conn.pgconn.finish()
        elif not self._limit.expired():
            # Its number must not be given to another socket while a write waits on it.
            self._limit.reschedule(0)


def _batch(batch: RecordBatch) -> bytes:
    payloads = batch.payloads
    columns: list[tuple[int, bytes | None]] = [
        (pg.INT8, pg.int8(batch.lane_id)),
        (pg.INT8, pg.int8(batch.base_version)),
        (pg.INT4, pg.int4(len(payloads))),
        (pg.TIMESTAMPTZ, pg.timestamptz(batch.appended_ms)),
        (pg.TEXT_ARRAY, pg.texts(batch.transaction_ids)),
        (pg.TEXT_ARRAY, None if batch.keys is None else pg.texts(batch.keys)),
        (pg.JSONB, _headers(batch.headers)),
        (pg.BYTEA_ARRAY, pg.array(pg.BYTEA, payloads)),
        (pg.INT2_ARRAY, _content_types(batch.content_types)),
        (pg.TIMESTAMPTZ_ARRAY, _times(batch.deliver_ms)),
        (pg.TIMESTAMPTZ_ARRAY, _times(batch.expires_ms)),
        (pg.TEXT_ARRAY, None if batch.trace_ids is None else pg.texts(batch.trace_ids)),
    ]
    return pg.composite(columns)


def _headers(headers: list[dict[str, str] | None] | None) -> bytes | None:
    return None if headers is None else pg.jsonb(msgspec.json.encode(headers))


def _content_types(types: list[int] | None) -> bytes | None:
    return None if types is None else pg.array(pg.INT2, [pg.int2(t) for t in types])


def _times(times: list[int | None] | None) -> bytes | None:
    if times is None:
        return None
    return pg.array(pg.TIMESTAMPTZ, [None if t is None else pg.timestamptz(t) for t in times])


def _control(row: ControlRow) -> bytes:
    return pg.composite(
        [
            (pg.INT8, pg.int8(row.lane_id)),
            (pg.TEXT, row.group.encode()),
            (pg.INT8, pg.int8(row.seq)),
            (pg.BYTEA, codec.encode(row.events)),
            (pg.TIMESTAMPTZ, pg.timestamptz(row.events[-1][0])),
        ]
    )


def _replayed(at: tuple[int, str], seq: int) -> bytes:
    lane_id, source = at
    return pg.composite(
        [(pg.INT8, pg.int8(lane_id)), (pg.TEXT, source.encode()), (pg.INT8, pg.int8(seq))]
    )


def _text(value: str | None) -> tuple[int, bytes | None]:
    return pg.TEXT, None if value is None else value.encode()


def _dead(dead: NewDead) -> bytes:
    return pg.composite(
        [
            (pg.INT8, pg.int8(dead.queue_id)),
            (pg.INT8, pg.int8(dead.lane_id)),
            _text(dead.group),
            (pg.INT8, pg.int8(dead.version)),
            (pg.INT4, pg.int4(dead.attempts)),
            _text(dead.cause),
            _text(dead.error),
            _text(dead.actor),
            _text(dead.reason),
            (pg.TIMESTAMPTZ, pg.timestamptz(dead.dead_ms)),
        ]
    )
