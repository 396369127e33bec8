"""API keys: made, listed and revoked in the tables; brokers look there within seconds."""

import hashlib
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime

import psycopg
from psycopg.rows import class_row

from spillway.core.errors import SpillwayError
from spillway.log.connect import classify, connect
from spillway.log.queries import sql

PREFIX = "sw_"
SECRET_BYTES = 32

_ORG_ENSURE = sql("org_ensure")
_ORG_LOCK = sql("org_lock")
_INSERT = sql("api_key_insert")
_LIST = sql("api_keys")
_REVOKE = sql("api_key_revoke")


class KeyExistsError(SpillwayError):
    """The org has a live key of this name."""

    code = "key_exists"
    status = 409
    hint = "take another name, or end the old key first: `spillway key revoke NAME`"


class KeyNotFoundError(SpillwayError):
    """The org has no live key of this name."""

    code = "key_not_found"
    status = 404
    hint = "`spillway key list` shows the live keys of every org"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is known of a key; the key itself is not."""

    org: str
    name: str
    digest: str
    created_at: datetime
    revoked_at: datetime | None


def digest_of(key: str) -> bytes:
    """What the database keeps in the place of a key."""
    return hashlib.sha256(key.encode()).digest()


async def create(database_url: str, org: str, name: str) -> str:
    """A new key: nobody can show it again."""
    key = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
    async with _work(database_url) as conn:
        await conn.execute(_ORG_ENSURE, {"org": org})
        await conn.execute(_ORG_LOCK, {"org": org})  # one at a time: a live name is unique
        row = {"digest": digest_of(key), "org": org, "name": name}
        made = await conn.execute(_INSERT, row)
        if not made.rowcount:
            raise KeyExistsError(f"org {org!r} has a live key {name!r}")
    return key


async def list_keys(database_url: str, org: str | None, *, revoked: bool) -> list[ApiKey]:
    """The keys of an org or of all, by org and age; the revoked ones on request."""
    async with _work(database_url) as conn, conn.cursor(row_factory=class_row(ApiKey)) as cursor:
        await cursor.execute(_LIST, {"org": org, "revoked": revoked})
        return await cursor.fetchall()


async def revoke(database_url: str, org: str, name: str) -> None:
    """End a key for good; its name is free again."""
    async with _work(database_url) as conn:
        ended = await conn.execute(_REVOKE, {"org": org, "name": name})
        if not ended.rowcount:
            raise KeyNotFoundError(f"org {org!r} has no live key {name!r}")


@asynccontextmanager
async def _work(database_url: str) -> AsyncIterator[psycopg.AsyncConnection]:
    """One transaction on a connection of its own."""
    conn = await connect(database_url, application_name="spillway key")
    try:
        async with conn.transaction():
            yield conn
    except psycopg.Error as error:
        raise classify(error, database_url) from error
    finally:
        await conn.close()
