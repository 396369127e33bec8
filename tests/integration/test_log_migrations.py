"""A database is brought to the schema of the release, once."""

import asyncio
import socket

import psycopg
import pytest

from spillway.core.errors import (
    DatabasePermissionError,
    DatabaseUnavailableError,
    DatabaseVersionError,
)
from spillway.log import migrations
from spillway.log.migrations import Migration, SchemaMismatchError, migrate

NAMES = [m.name for m in migrations.migrations()]

TABLES = """
SELECT table_name, column_name, data_type, is_nullable, column_default
FROM information_schema.columns WHERE table_schema = 'spillway' ORDER BY 1, 2
"""


def rows(url, query):
    with psycopg.connect(url, autocommit=True) as conn:
        return conn.execute(query).fetchall()


def execute(url, *statements):
    with psycopg.connect(url, autocommit=True) as conn:
        for statement in statements:
            conn.execute(statement)


async def test_empty_database_is_migrated_once(empty_database_url):
    """The first call applies everything, the second nothing."""
    assert await migrate(empty_database_url) == NAMES
    assert await migrate(empty_database_url) == []


async def test_two_brokers_that_start_together_migrate_once(empty_database_url):
    """Each migration is applied by exactly one of them, and nobody fails."""
    applied = await asyncio.gather(*(migrate(empty_database_url) for _ in range(6)))
    assert sorted(name for names in applied for name in names) == sorted(NAMES)


async def test_printed_schema_is_the_applied_one(empty_database_url, database_url):
    """What `schema print` says, psql can apply; a broker then finds nothing to do."""
    execute(empty_database_url, migrations.sql())
    assert rows(empty_database_url, TABLES) == rows(database_url, TABLES)
    assert await migrate(empty_database_url) == []


async def test_migration_that_fails_leaves_nothing(empty_database_url, monkeypatch):
    """A migration and its record stand or fall together; those before it stay."""
    bad = Migration("9999_post_bad", "CREATE TABLE spillway.half (); SELECT 1 / 0")
    files = (*migrations.migrations(), bad)
    monkeypatch.setattr(migrations, "migrations", lambda: files)
    with pytest.raises(migrations.SpillwayError, match="22012"):
        await migrate(empty_database_url)
    assert rows(empty_database_url, "SELECT to_regclass('spillway.half')") == [(None,)]
    assert rows(empty_database_url, "SELECT name FROM spillway.migration") == [
        (name,) for name in NAMES
    ]


async def test_database_of_a_newer_release_is_refused(database_url):
    """An unknown migration means that this release is too old."""
    execute(database_url, "INSERT INTO spillway.migration VALUES ('9000_pre_future', 'x')")
    with pytest.raises(SchemaMismatchError, match=r"newer release.*9000_pre_future"):
        await migrate(database_url)


async def test_changed_file_of_an_applied_migration_is_refused(database_url):
    """A file that is not what was applied is noticed by its checksum."""
    execute(database_url, "UPDATE spillway.migration SET checksum = 'other'")
    with pytest.raises(SchemaMismatchError, match=NAMES[0]):
        await migrate(database_url)


@pytest.fixture
def stranger(postgres, empty_database_url):
    """The URL of a role without rights on the database."""
    execute(empty_database_url, "CREATE ROLE stranger LOGIN")
    yield empty_database_url.replace("//spillway@", "//stranger@")
    execute(empty_database_url, "DROP OWNED BY stranger", "DROP ROLE stranger")


async def test_role_without_create_is_told_what_to_grant(stranger):
    """The hint names the right that is missing."""
    with pytest.raises(DatabasePermissionError, match="permission denied") as raised:
        await migrate(stranger)
    assert "CREATE" in raised.value.hint


async def test_role_without_create_finds_a_migrated_database(stranger, empty_database_url):
    """Where nothing is to be applied, no right to create is needed."""
    await migrate(empty_database_url)
    execute(
        empty_database_url,
        "GRANT USAGE ON SCHEMA spillway TO stranger",
        "GRANT SELECT ON ALL TABLES IN SCHEMA spillway TO stranger",
    )
    assert await migrate(stranger) == []


async def test_unreachable_server_is_named_without_its_password():
    """Host and port are in the message, the password is not."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(DatabaseUnavailableError, match=f"127.0.0.1:{port}") as raised:
            await migrate(f"postgresql://ann:s3cret@127.0.0.1:{port}/shop")
    assert "s3cret" not in str(raised.value)


async def test_old_server_is_refused(empty_database_url, monkeypatch):
    """The minimum is checked before anything is written."""
    monkeypatch.setattr(migrations, "SERVER_VERSION_MIN", 990_000)
    with pytest.raises(DatabaseVersionError, match="is version"):
        await migrate(empty_database_url)


async def test_other_encodings_are_refused(postgres):
    """Only UTF-8 holds every key and header."""
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        admin.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
        try:
            with pytest.raises(SchemaMismatchError, match="encoded in LATIN1"):
                await migrate(postgres.url.replace("/spillway?", "/latin?"))
        finally:
            admin.execute("DROP DATABASE latin WITH (FORCE)")


def test_migrations_ship_in_order():
    """Files are package data, numbered without gaps."""
    assert [int(name[:4]) for name in NAMES] == list(range(1, len(NAMES) + 1))
