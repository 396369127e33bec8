"""Bring a database to the schema of this release: the files of `schema/`, each applied once.

`NNNN_pre_what.sql` prepares the database for a release, `NNNN_post_what.sql` cleans up behind the
one before. Each runs in one transaction with the row that records it, behind a lock, so brokers
that start together migrate once. Nothing is locked or written where there is nothing to do.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import LiteralString

import psycopg

from spillway.core.errors import DatabaseVersionError, SpillwayError, invariant
from spillway.log.connect import classify, connect, place
from spillway.log.queries import sql as query

SERVER_VERSION_MIN = 140_000
LOCK_KEY = 0x5350_494C_4C57_4159  # "SPILLWAY"

_NAME = re.compile(r"\d{4}_(pre|post)_[a-z0-9_]+")
_SERVER = query("server_facts")
_LOCK = query("migration_lock")
_RECORDS_EXIST = query("migrations_exist")
_RECORDS = query("migrations")
_RECORD = query("migration_insert")


class SchemaMismatchError(SpillwayError):
    """The database is not one that this release can work with."""

    code = "schema_mismatch"
    hint = "run the release that migrated this database, or a newer one"


@dataclass(frozen=True, slots=True, order=True)
class Migration:
    """One file of the schema."""

    name: str
    sql: LiteralString

    @property
    def checksum(self) -> str:
        """Tells that the file is still the one that was applied."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


@cache
def migrations() -> tuple[Migration, ...]:
    """Every file of `schema/`, in the order in which they are applied."""
    folder = resources.files("spillway.log").joinpath("schema")
    files = [file for file in folder.iterdir() if file.name.endswith(".sql")]
    texts = {f.name.removesuffix(".sql"): f.read_text(encoding="utf-8") for f in files}
    invariant(all(map(_NAME.fullmatch, texts)), f"a migration is misnamed: {sorted(texts)}")
    return tuple(Migration(name, texts[name]) for name in sorted(texts))


def sql() -> str:
    """The whole schema as one script, records included: an owner may apply it in our place."""
    parts = [part for m in migrations() for part in (m.sql.strip(), _record(m))]
    return "\n\n".join(["BEGIN;", *parts, "COMMIT;"]) + "\n"


def _record(migration: Migration) -> str:
    row = f"('{migration.name}', '{migration.checksum}')"
    return f"INSERT INTO spillway.migration (name, checksum) VALUES {row};"  # noqa: S608 (ours)


async def migrate(database_url: str) -> list[str]:
    """Apply what is missing; the names of what was applied."""
    conn = await connect(database_url, application_name="spillway migrate")
    try:
        await _check_server(conn, place(database_url))
        known = migrations()
        missing = _missing(known, await _records(conn))
        return [m.name for m in missing if await _apply(conn, m, known)]
    except psycopg.Error as error:
        raise classify(error, database_url) from error
    finally:
        await conn.close()


async def _check_server(conn: psycopg.AsyncConnection, where: str) -> None:
    row = await (await conn.execute(_SERVER)).fetchone()
    assert row is not None
    number, version, encoding = row
    if number < SERVER_VERSION_MIN:
        raise DatabaseVersionError(f"PostgreSQL at {where} is version {version}")
    if encoding != "UTF8":
        raise SchemaMismatchError(
            f"PostgreSQL at {where} is encoded in {encoding}",
            hint="create the database with ENCODING 'UTF8' TEMPLATE template0",
        )


async def _records(conn: psycopg.AsyncConnection) -> dict[str, str]:
    """Name → checksum of what was applied."""
    row = await (await conn.execute(_RECORDS_EXIST)).fetchone()
    if row is None or not row[0]:
        return {}
    return dict(await (await conn.execute(_RECORDS)).fetchall())


def _missing(known: Sequence[Migration], records: dict[str, str]) -> list[Migration]:
    newer = sorted(records.keys() - {m.name for m in known})
    if newer:
        raise SchemaMismatchError(f"a newer release has migrated this database: {newer}")
    for migration in known:
        if records.get(migration.name, migration.checksum) != migration.checksum:
            raise SchemaMismatchError(
                f"{migration.name} is not the file that was applied to this database",
                hint="restore the file of the release; a change needs a migration of its own",
            )
    return [m for m in known if m.name not in records]


async def _apply(
    conn: psycopg.AsyncConnection, migration: Migration, known: Sequence[Migration]
) -> bool:
    """Whether it was us: another broker may have been faster."""
    async with conn.transaction():
        await conn.execute(_LOCK, {"key": LOCK_KEY})
        if migration not in _missing(known, await _records(conn)):
            return False
        await conn.execute(migration.sql)
        await conn.execute(_RECORD, {"name": migration.name, "checksum": migration.checksum})
    return True
