"""Connections to PostgreSQL, and what its errors mean to us."""

import asyncio
from collections.abc import Mapping
from traceback import clear_frames
from typing import Any, Self

import psycopg
from psycopg.conninfo import conninfo_to_dict

from spillway.core.errors import (
    DatabasePermissionError,
    DatabaseSchemaError,
    DatabaseUnavailableError,
    SettingsError,
    SpillwayError,
)
from spillway.log.queries import sql

CONNECT_TIMEOUT_S = 10.0
LIVENESS: Mapping[str, int] = {
    # A peer that vanished without a word is noticed in some 15 s instead of two hours.
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 5,
    "tcp_user_timeout": 15_000,
}
# No connection, no resources, operator at work, system trouble; then a lost race between
# transactions, and a server that became a standby.
TRANSIENT = ("08", "53", "57", "58", "40001", "40P01", "25006")
GONE = ("08", "57P")  # no connection, the server stops or starts
UNKNOWN_NAME = "PostgreSQL runs, but has no such database or role: make it, or mend the URL"
DISK_FULL = "53100"
FORBIDDEN = ("42501", "28")
UNMIGRATED = ("3F000", "42P01", "42703")  # no such schema, table, column
CUT_OFF = (psycopg.OperationalError, psycopg.InterfaceError, OSError, TimeoutError)

CANCELED = "57014"

_SESSION = sql("session")


class Connection(psycopg.AsyncConnection):
    """A connection that leaves nothing behind where it does not come about."""

    @classmethod
    async def connect(cls, conninfo: str = "", **params: Any) -> Self:
        """As psycopg's, but an attempt that is broken off closes its socket now.

        The frames of its traceback hold it: whoever remembers the error, or a cycle, would keep it
        open, one a second while PostgreSQL is silent, until there are no more to be had.
        """
        try:
            return await super().connect(conninfo, **params)
        except BaseException as error:
            clear_frames(error.__traceback__)
            raise


async def connect(
    database_url: str,
    *,
    timeout_s: float = CONNECT_TIMEOUT_S,
    application_name: str = "spillway",
) -> psycopg.AsyncConnection:
    """An autocommit connection that speaks UTC and UTF-8; each host of the URL has `timeout_s`."""
    params = _params(database_url, application_name)
    hosts = str(params.get("host", "")).count(",") + 1
    try:
        async with asyncio.timeout(timeout_s * hosts):
            conn = await Connection.connect("", autocommit=True, **params)
            try:
                await conn.execute(_SESSION)
            except BaseException:
                await conn.close()
                raise
    except TimeoutError as error:
        late = TimeoutError(f"no connection within {timeout_s:g} s")
        raise classify(late, database_url) from error
    except (psycopg.Error, OSError) as error:
        raise classify(error, database_url) from error
    return conn


def _params(database_url: str, application_name: str) -> dict[str, str | int]:
    """What the URL says; our own wishes only where it is silent."""
    return {
        **LIVENESS,
        "application_name": application_name,
        **parse(database_url),
        "client_encoding": "UTF8",
    }


def parse(database_url: str) -> dict[str, str]:
    """What a URL names; a SettingsError if it is none."""
    try:
        parsed = conninfo_to_dict(database_url)
    except psycopg.Error:
        # Not chained: libpq repeats the URL, and with it the password.
        raise SettingsError(
            "the database URL cannot be understood",
            hint="it looks like postgresql://user:password@host:5432/database",
        ) from None
    return {name: str(value) for name, value in parsed.items() if value is not None}


def place(database_url: str) -> str:
    """Where a URL points to, in words without a password."""
    params = parse(database_url)
    host = params.get("host") or params.get("hostaddr") or "the local socket"
    port = "" if host.startswith("/") else f":{params.get('port', '5432')}"
    return f"{host}{port}, database {params.get('dbname') or params.get('user') or 'of the user'}"


def was_canceled(error: BaseException) -> bool:
    """Whether PostgreSQL is there and ended a statement, which took too long."""
    return getattr(error.__cause__, "sqlstate", None) == CANCELED


def is_silent(exc: BaseException) -> bool:
    """Whether PostgreSQL gives no answer at all, not even a refusal."""
    state = getattr(exc, "sqlstate", None) or getattr(exc.__cause__, "sqlstate", None)
    return state is None or state.startswith(GONE)


def classify(exc: BaseException, database_url: str | None = None) -> SpillwayError:
    """What a failure means: gone for a while, not allowed, or a mistake. Its cause stays."""
    state = getattr(exc, "sqlstate", None)
    where = f" at {place(database_url)}" if database_url else ""
    reason = str(exc).strip() or type(exc).__name__
    error: SpillwayError
    if isinstance(exc, SpillwayError):
        return exc
    if state == DISK_FULL:
        error = DatabaseUnavailableError(
            f"PostgreSQL{where} has no room left: {reason}",
            hint="make room on the disk of PostgreSQL's data; then it goes on by itself",
        )
    elif state.startswith(TRANSIENT) if state else isinstance(exc, CUT_OFF):
        hint = UNKNOWN_NAME if "does not exist" in reason else None
        error = DatabaseUnavailableError(f"PostgreSQL{where} does not answer: {reason}", hint=hint)
    elif state and state.startswith(FORBIDDEN):
        error = DatabasePermissionError(f"PostgreSQL{where} refuses: {reason}")
    else:
        kind = DatabaseSchemaError if state in UNMIGRATED else SpillwayError
        error = kind(f"PostgreSQL{where} failed ({state or 'no SQLSTATE'}): {reason}")
    error.__cause__ = exc
    return error
