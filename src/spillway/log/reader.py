"""Message batches out of the log, as they went in."""

from typing import Any

import msgspec
import psycopg
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.pq import Format

from spillway.core.message import RecordBatch
from spillway.log import binary as pg
from spillway.log.queries import QUERIES

_RAW_OIDS = (
    pg.TIMESTAMPTZ,
    pg.JSONB,
    pg.INT2_ARRAY,
    pg.TEXT_ARRAY,
    pg.BYTEA_ARRAY,
    pg.TIMESTAMPTZ_ARRAY,
)


class _RawLoader(Loader):
    """Hands over the binary form; whole columns are taken apart in `log.binary`."""

    format = Format.BINARY

    def load(self, data: Buffer) -> bytes:
        return bytes(data)


async def read_batches(
    conn: psycopg.AsyncConnection, lane_id: int, start: int, count_max: int, bytes_max: int
) -> list[RecordBatch]:
    """The batches from the one that holds `start` on: about `count_max` messages, or one row."""
    params = {"lane_id": lane_id, "start": start, "end": start + count_max, "bytes": bytes_max}
    return await _batches(conn, lane_id, "batches_from", params)


async def read_timed_batches(
    conn: psycopg.AsyncConnection, lane_id: int, after: int
) -> list[RecordBatch]:
    """The batches behind `after` in which some message has a time to wait for or to end at."""
    return await _batches(conn, lane_id, "batches_timed", {"lane_id": lane_id, "after": after})


async def read_recent_batches(
    conn: psycopg.AsyncConnection, lane_id: int, since_ms: int, count_max: int
) -> list[RecordBatch]:
    """The newest batches, oldest of them first: what the dedupe window is rebuilt from."""
    params = {"lane_id": lane_id, "since_ms": since_ms, "count": count_max}
    return await _batches(conn, lane_id, "batches_recent", params)


async def _batches(
    conn: psycopg.AsyncConnection, lane_id: int, query: str, params: dict[str, Any]
) -> list[RecordBatch]:
    async with conn.cursor(binary=True) as cursor:
        for oid in _RAW_OIDS:
            cursor.adapters.register_loader(oid, _RawLoader)
        await cursor.execute(QUERIES[query].sql, params, prepare=True)
        return [_batch(lane_id, row) for row in await cursor.fetchall()]


def _batch(lane_id: int, row: tuple[Any, ...]) -> RecordBatch:
    base, appended, ids, keys, headers, payloads, types, deliver, expires, traces = row
    return RecordBatch(
        lane_id=lane_id,
        base_version=base,
        appended_ms=pg.ms_of(appended),
        transaction_ids=[str(v, "utf-8") for v in pg.elements(ids) if v is not None],
        payloads=pg.elements(payloads),
        keys=_texts(keys),
        headers=None if headers is None else msgspec.json.decode(headers[1:]),
        content_types=None
        if types is None
        else [int.from_bytes(v or b"") for v in pg.elements(types)],
        deliver_ms=_times(deliver),
        expires_ms=_times(expires),
        trace_ids=_texts(traces),
        payload_bytes=len(payloads),
    )


def _texts(value: bytes | None) -> list[str | None] | None:
    return (
        None
        if value is None
        else [None if v is None else str(v, "utf-8") for v in pg.elements(value)]
    )


def _times(value: bytes | None) -> list[int | None] | None:
    return (
        None if value is None else [None if v is None else pg.ms_of(v) for v in pg.elements(value)]
    )
