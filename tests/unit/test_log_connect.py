"""What PostgreSQL's errors mean, and what may be said about a URL."""

import psycopg
import pytest
from psycopg import errors

from spillway.core.errors import (
    DatabasePermissionError,
    DatabaseUnavailableError,
    SettingsError,
    SpillwayError,
)
from spillway.log.connect import classify, connect, place

TRANSIENT = [
    errors.ConnectionFailure("08006"),
    errors.TooManyConnections("53300"),
    errors.DiskFull("53100"),
    errors.AdminShutdown("57P01"),
    errors.QueryCanceled("57014"),
    errors.IoError("58030"),
    errors.SerializationFailure("40001"),
    errors.DeadlockDetected("40P01"),
    errors.ReadOnlySqlTransaction("25006"),
    psycopg.OperationalError("server closed the connection unexpectedly"),
    psycopg.InterfaceError("the connection is closed"),
    ConnectionRefusedError(111, "refused"),
    TimeoutError(),
]
PERMANENT = [
    errors.UniqueViolation("23505"),
    errors.SyntaxError("42601"),
    errors.TransactionRollback("40000"),
    psycopg.DataError("PostgreSQL text fields cannot contain NUL"),
    ZeroDivisionError(),
]


def name(error):
    return f"{type(error).__name__}-{getattr(error, 'sqlstate', None)}"


@pytest.mark.parametrize("error", TRANSIENT, ids=name)
def test_failure_that_passes_is_transient(error):
    """What another try may mend says so, and keeps its cause."""
    found = classify(error)
    assert type(found) is DatabaseUnavailableError
    assert found.transient
    assert found.__cause__ is error


def test_a_full_disk_is_told_as_one():
    """The server answers well; what is missing is room, and the next step is to make some."""
    found = classify(errors.DiskFull("could not extend file: No space left on device"))
    assert (found.code, found.status, found.transient) == ("database_unavailable", 503, True)
    assert "no room left" in found.message
    assert "No space left on device" in found.message
    assert "make room on the disk" in found.hint
    assert classify(errors.TooManyConnections("53300")).hint == DatabaseUnavailableError.hint


@pytest.mark.parametrize("error", PERMANENT, ids=name)
def test_failure_of_ours_is_not_transient(error):
    """What no retry mends is an error of ours, and keeps its cause."""
    found = classify(error)
    assert type(found) is SpillwayError
    assert not found.transient
    assert found.__cause__ is error


@pytest.mark.parametrize(
    "error", [errors.InsufficientPrivilege("42501"), errors.InvalidPassword("28P01")], ids=name
)
def test_refusal_is_a_matter_of_permission(error):
    """The server lives, but not for us."""
    assert type(classify(error)) is DatabasePermissionError


def test_error_of_ours_stays_what_it_is():
    """Classified twice is classified once."""
    error = DatabaseUnavailableError("gone")
    assert classify(error) is error


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://ann:s3cret@db.local:5433/shop", "db.local:5433, database shop"),
        ("postgresql://ann:s3cret@db.local/", "db.local:5432, database ann"),
        ("postgresql://ann@/shop?host=%2Frun%2Fpg", "/run/pg, database shop"),
        ("host=db.local password=s3cret dbname=shop", "db.local:5432, database shop"),
    ],
)
def test_place_of_a_url_has_no_password(url, expected):
    """Messages name host, port and database, and nothing secret."""
    assert place(url) == expected


def test_broken_url_is_not_repeated():
    """What libpq cannot read it quotes, and the password with it: we do not."""
    with pytest.raises(SettingsError) as raised:
        place("postgresql//ann:s3cret@db")
    assert "s3cret" not in str(raised.value)
    assert raised.value.__cause__ is None


async def test_nobody_at_the_port_is_named_without_the_password():
    """The error of a refused connection tells where, and is transient."""
    with pytest.raises(DatabaseUnavailableError, match=r"127\.0\.0\.1:1") as raised:
        await connect("postgresql://ann:s3cret@127.0.0.1:1/shop", timeout_s=5)
    assert "s3cret" not in str(raised.value)
    assert isinstance(raised.value.__cause__, psycopg.OperationalError)
