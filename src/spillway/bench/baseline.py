"""What plain PostgreSQL does with the same messages, one row each: the figure to compare with.

`copy` is one plain COPY of all rows, in the faster of text and binary, encoded before the clock
starts; it promises nothing until its end. Beside it stands the rate of a COPY and a commit every
1,000 rows, as a loader would that must not lose what it has reported. `insert` is one-row INSERTs,
each committed, prepared once, by as many connections as the load has. A row is what a message is:
a position, a transaction id, a payload.
Runs as a process of its own, like the load: a plan on stdin, findings on stdout.
"""

import random
import sys
import time
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
import psycopg
from psycopg import sql

from spillway.bench.inserts import InsertRate, insert_rate, transaction_id
from spillway.bench.orders import BATCH_MAX, PAYLOAD_BYTES_MIN, payloads

ROWS_MAX = 500_000
COMMIT_ROWS = 1_000
_TRIAL_ROWS = 50_000
_BLOCK_ROWS = 2_000
_BY_BATCH_S = 1.5

Format = Literal["text", "binary"]
PayloadType = Literal["text", "bytea"]

_PAYLOAD_TYPES: dict[Format, PayloadType] = {"text": "text", "binary": "bytea"}
_HEADS: dict[Format, bytes] = {"text": b"", "binary": b"PGCOPY\n\xff\r\n\x00" + bytes(8)}
_TAILS: dict[Format, bytes] = {"text": b"", "binary": b"\xff\xff"}


class BaselinePlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to store, and how."""

    database_url: str
    kind: Literal["copy", "insert"]
    payload_bytes: Annotated[int, msgspec.Meta(ge=PAYLOAD_BYTES_MIN)] = 100
    rows: Annotated[int, msgspec.Meta(ge=1_000, le=ROWS_MAX)] = ROWS_MAX
    connections: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 64
    seconds: Annotated[float, msgspec.Meta(gt=0, le=600)] = 5.0


class BaselineFindings(msgspec.Struct, frozen=True):
    """Rows a second, and how they were stored."""

    rows_per_s: float
    how: str
    rows_per_s_by_commit: float | None = None


def measure(plan: BaselinePlan) -> BaselineFindings:
    """Make the table, fill it against the clock, drop it again."""
    with psycopg.connect(plan.database_url, autocommit=True) as connection:
        try:
            if plan.kind == "copy":
                return _copy(connection, plan)
            return _insert(connection, plan)
        finally:
            connection.execute("DROP SCHEMA IF EXISTS spillway_bench CASCADE")


def _copy(connection: psycopg.Connection, plan: BaselinePlan) -> BaselineFindings:
    chance = random.Random(plan.rows)
    bodies = list(payloads(plan.rows, plan.payload_bytes, BATCH_MAX, chance))
    trial = bodies[:_TRIAL_ROWS]
    formats: tuple[Format, ...] = ("binary", "text")
    best = max(formats, key=lambda form: copy_rate(connection, trial, form))
    rate = copy_rate(connection, bodies, best)
    by_commit = batch_rate(connection, bodies, best, COMMIT_ROWS)
    return BaselineFindings(rate, f"one COPY of {len(bodies):,} rows, {best}", by_commit)


def _insert(connection: psycopg.Connection, plan: BaselinePlan) -> BaselineFindings:
    _make_table(connection, "bytea")
    bodies = list(payloads(10_000, plan.payload_bytes, 1, random.Random(1)))
    found: InsertRate = insert_rate(plan.database_url, plan.connections, bodies, plan.seconds)
    how = f"one-row INSERTs, each committed, {found.connections} connections"
    return BaselineFindings(found.rows_per_s, how)


def copy_rate(connection: psycopg.Connection, bodies: Sequence[bytes], form: Format) -> float:
    """Rows a second of one COPY into a fresh table with a primary key."""
    _make_table(connection, _PAYLOAD_TYPES[form])
    blocks = copy_blocks(bodies, form, _BLOCK_ROWS)
    begun = time.perf_counter()
    _copy_in(connection, [_HEADS[form], *blocks, _TAILS[form]], form)
    return len(bodies) / (time.perf_counter() - begun)


def batch_rate(
    connection: psycopg.Connection, bodies: Sequence[bytes], form: Format, batch: int
) -> float:
    """Rows a second when each batch is a COPY and a commit of its own."""
    _make_table(connection, _PAYLOAD_TYPES[form])
    rows = 0
    begun = time.perf_counter()
    for block in copy_blocks(bodies, form, batch):
        _copy_in(connection, [_HEADS[form] + block + _TAILS[form]], form)
        rows += batch
        if time.perf_counter() - begun > _BY_BATCH_S:
            break
    return min(rows, len(bodies)) / (time.perf_counter() - begun)


def copy_blocks(bodies: Sequence[bytes], form: Format, rows: int) -> list[bytes]:
    """The rows in COPY's wire format, in blocks of `rows`."""
    encode = _binary_row if form == "binary" else _text_row
    return [
        b"".join(encode(i, bodies[i]) for i in range(first, min(first + rows, len(bodies))))
        for first in range(0, len(bodies), rows)
    ]


def _copy_in(connection: psycopg.Connection, blocks: Sequence[bytes], form: Format) -> None:
    statement = sql.SQL("COPY spillway_bench.message FROM STDIN (FORMAT {})").format(sql.SQL(form))
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for block in blocks:
            copy.write(block)


def _binary_row(number: int, body: bytes) -> bytes:
    fields = (number.to_bytes(8, "big"), transaction_id(number), body)
    return b"\x00\x03" + b"".join(len(field).to_bytes(4, "big") + field for field in fields)


def _text_row(number: int, body: bytes) -> bytes:
    return b"%d\t%b\t%b\n" % (number, transaction_id(number), body.replace(b"\\", b"\\\\"))


def _make_table(connection: psycopg.Connection, payload_type: PayloadType) -> None:
    connection.execute("DROP SCHEMA IF EXISTS spillway_bench CASCADE")
    connection.execute("CREATE SCHEMA spillway_bench")
    connection.execute(
        sql.SQL(
            "CREATE TABLE spillway_bench.message"
            " (id bigint PRIMARY KEY, transaction_id text NOT NULL, payload {} NOT NULL)"
        ).format(sql.SQL(payload_type))
    )


def main() -> None:
    """Entry point of `python -m spillway.bench.baseline`."""
    plan = msgspec.json.decode(sys.stdin.buffer.read(), type=BaselinePlan)
    sys.stdout.buffer.write(msgspec.json.encode(measure(plan)) + b"\n")


if __name__ == "__main__":
    main()
