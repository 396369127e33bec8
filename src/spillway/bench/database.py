"""What a workload costs inside PostgreSQL: WAL, dead tuples, rows."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, LiteralString, Self

import psycopg
from psycopg import sql

# Tables of the schema and their TOAST tables; indexes have no tuples of their own to count.
_TUPLES: LiteralString = """
SELECT coalesce(sum(n_tup_ins), 0)::bigint, coalesce(sum(n_tup_upd), 0)::bigint,
       coalesce(sum(n_tup_del), 0)::bigint, coalesce(sum(n_dead_tup), 0)::bigint
FROM pg_stat_all_tables
WHERE relid IN (
    SELECT unnest(ARRAY[c.oid, nullif(c.reltoastrelid, 0)])
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'spillway' AND c.relkind = 'r')
"""
_WAL: LiteralString = """
SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint, wal_records, wal_fpi
FROM pg_stat_wal
"""
_TABLES: LiteralString = """
SELECT c.relname::text, c.reltoastrelid <> 0
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'spillway' AND c.relkind = 'r'
"""
_BATCHES: LiteralString = "SELECT count(*) FROM spillway.message_batch"
_CONTROL_ROWS: LiteralString = "SELECT count(*) FROM spillway.control_event"
_CONTROL_LANES: LiteralString = "SELECT count(DISTINCT lane_id) FROM spillway.control_event"
_SERVER: LiteralString = """
SELECT current_setting('server_version'), current_setting('fsync'),
       current_setting('synchronous_commit')
"""
# A server process reports its counts at the latest after it was idle for ten seconds.
_REPORTED_S = 11.0
_POLL_S = 0.25


@dataclass(frozen=True, slots=True)
class Counters:
    """Readings of one moment, or what they grew by."""

    wal_bytes: int
    wal_records: int
    wal_full_pages: int
    inserted: int
    updated: int
    deleted: int
    dead: int

    def since(self, before: Self) -> Self:
        names = [field.name for field in fields(self)]
        return type(self)(**{name: getattr(self, name) - getattr(before, name) for name in names})


@dataclass(frozen=True, slots=True)
class Server:
    """What the figures depend on most."""

    version: str
    fsync: str
    synchronous_commit: str


class Database:
    """The PostgreSQL under the broker, seen from beside it."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True, application_name="spillway-bench")

    def close(self) -> None:
        self._connection.close()

    def server(self) -> Server:
        version, fsync, synchronous = self._one(_SERVER)
        return Server(str(version), str(fsync), str(synchronous))

    def counters(self) -> Counters:
        return Counters(*map(int, (*self._one(_WAL), *self._one(_TUPLES))))

    def settled_counters(self) -> Counters:
        """Once every server process had the time to report its counts."""
        time.sleep(_REPORTED_S)
        return self.counters()

    def batches(self) -> int:
        return int(self._one(_BATCHES)[0])

    def control_rows(self) -> int:
        return int(self._one(_CONTROL_ROWS)[0])

    def lanes_with_control_rows(self) -> int:
        return int(self._one(_CONTROL_LANES)[0])

    def checkpoint(self) -> None:
        self._connection.execute("CHECKPOINT")

    def wait_until_pruned(self, seconds: float) -> bool:
        """Whether the last message batch went away in time."""
        until = time.monotonic() + seconds
        while self.batches():
            if time.monotonic() > until:
                return False
            time.sleep(_POLL_S)
        return True

    @contextmanager
    def autovacuum_held(self) -> Iterator[None]:
        """Dead tuples stay countable."""
        self._set_autovacuum(on=False)
        try:
            yield
        finally:
            self._set_autovacuum(on=True)

    def _set_autovacuum(self, *, on: bool) -> None:
        for table, toast in self._connection.execute(_TABLES).fetchall():
            names = ["autovacuum_enabled", *(["toast.autovacuum_enabled"] if toast else [])]
            change = [sql.SQL(name if on else f"{name} = off") for name in names]
            self._connection.execute(
                sql.SQL("ALTER TABLE {} {} ({})").format(
                    sql.Identifier("spillway", table),
                    sql.SQL("RESET" if on else "SET"),
                    sql.SQL(", ").join(change),
                )
            )

    def _one(self, query: LiteralString) -> tuple[Any, ...]:
        # Statistics are cached within a transaction only, and each statement is one here.
        row = self._connection.execute(query).fetchone()
        assert row is not None
        return tuple(row)
