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

BATCHES_TIMED_MAX = 1_000
BATCHES_RECENT_MAX = 100
BYTES_RECENT_MAX = 4 * 1024 * 1024

Times = list[int | None] | None
"""A moment for each message of a batch that has one; None where none has."""

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
    return [_batch(lane_id, row) for row in await _rows(conn, "batches_from", params)]


async def read_times(
    conn: psycopg.AsyncConnection, lane_id: int, after: int
) -> list[tuple[int, Times, Times]]:
    """The next batches behind `after` in which some message has a time to wait for or to end at:
    the first version, the times to wait for, the times to end at.
    """
    params = {"lane_id": lane_id, "after": after, "limit": BATCHES_TIMED_MAX}
    rows = await _rows(conn, "times_behind", params)
    return [(base, _times(deliver), _times(expires)) for base, deliver, expires in rows]


async def read_ids(
    conn: psycopg.AsyncConnection, lane_id: int, before: int, since_ms: int
) -> list[RecordBatch]:
    """The next batches before a version and after a moment, newest first, with ids and payloads
    alone: what the dedupe window is rebuilt from, a few MiB at a time.
    """
    params = {
        "lane_id": lane_id,
        "before": before,
        "since_ms": since_ms,
        "limit": BATCHES_RECENT_MAX,
        "bytes": BYTES_RECENT_MAX,
    }
    return [
        RecordBatch(lane_id, base, pg.ms_of(appended), _ids(ids), pg.elements(payloads))
        for base, appended, ids, payloads in await _rows(conn, "ids_before", params)
    ]


async def _rows(
    conn: psycopg.AsyncConnection, query: str, params: dict[str, Any]
) -> list[tuple[Any, ...]]:
    async with conn.cursor(binary=True) as cursor:
        for oid in _RAW_OIDS:
            cursor.adapters.register_loader(oid, _RawLoader)
        await cursor.execute(QUERIES[query].sql, params, prepare=True)
        return await cursor.fetchall()


def _batch(lane_id: int, row: tuple[Any, ...]) -> RecordBatch:
    base, appended, ids, keys, headers, payloads, types, deliver, expires, traces = row
    return RecordBatch(
        lane_id=lane_id,
        base_version=base,
        appended_ms=pg.ms_of(appended),
        transaction_ids=_ids(ids),
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


def _ids(value: bytes) -> list[str]:
    return [str(v, "utf-8") for v in pg.elements(value) if v is not None]


def _texts(value: bytes | None) -> list[str | None] | None:
    return (
        None
        if value is None
        else [None if v is None else str(v, "utf-8") for v in pg.elements(value)]
    )


def _times(value: bytes | None) -> Times:
    return (
        None if value is None else [None if v is None else pg.ms_of(v) for v in pg.elements(value)]
    )
