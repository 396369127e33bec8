"""Connections as the log uses them."""

import socket

import pytest

from spillway.core.errors import DatabaseUnavailableError
from spillway.log.connect import connect


async def shown(conn, name):
    return (await (await conn.execute(f"SHOW {name}")).fetchone())[0]


async def test_session_is_ours_whatever_the_role_prefers(database_url):
    """A role's defaults can neither move the clock nor let a commit be lost."""
    conn = await connect(database_url)
    database = conn.info.dbname
    for setting in (
        "TimeZone = 'Asia/Tokyo'",
        "synchronous_commit = off",
        "default_transaction_isolation = 'serializable'",
        "client_encoding = 'LATIN1'",
    ):
        await conn.execute(f"ALTER DATABASE {database} SET {setting}")
    await conn.close()
    conn = await connect(database_url, application_name="spillway shard 3")
    assert await shown(conn, "TimeZone") == "UTC"
    assert await shown(conn, "synchronous_commit") == "on"
    assert await shown(conn, "transaction_isolation") == "read committed"
    assert await shown(conn, "client_encoding") == "UTF8"
    assert await shown(conn, "application_name") == "spillway shard 3"
    assert conn.autocommit
    await conn.close()


async def test_stricter_commits_are_left_alone(database_url):
    """Where the operator asks for more than `on`, it stays more."""
    conn = await connect(database_url)
    await conn.execute(f"ALTER DATABASE {conn.info.dbname} SET synchronous_commit = remote_apply")
    await conn.close()
    conn = await connect(database_url)
    assert await shown(conn, "synchronous_commit") == "remote_apply"
    await conn.close()


async def test_server_that_accepts_and_is_silent_is_given_up():
    """A connection attempt ends in time although nobody refuses it."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(DatabaseUnavailableError, match=r"no connection within 0\.2 s"):
            await connect(f"postgresql://ann@127.0.0.1:{port}/shop", timeout_s=0.2)


async def test_what_was_given_up_leaves_no_socket():
    """Closed at once, also while the error is remembered: a day of silence has many attempts."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://ann@127.0.0.1:{silent.getsockname()[1]}/shop?sslmode=disable"
        with pytest.raises(DatabaseUnavailableError) as remembered:
            await connect(url, timeout_s=0.1)
        theirs, _ = silent.accept()
        with theirs:
            theirs.settimeout(10)
            while theirs.recv(4096):  # the greeting, then the end
                pass
        assert remembered.value.__cause__ is not None
