"""Every statement against the real schema."""

import re

import psycopg
import pytest

from spillway.log.queries import QUERIES

_PARAMETER = re.compile(r"%\((\w+)\)[sbt]")


def numbered(statement: str) -> str:
    """Named parameters as PostgreSQL knows them."""
    names = list(dict.fromkeys(_PARAMETER.findall(statement)))
    return _PARAMETER.sub(lambda m: f"${names.index(m[1]) + 1}", statement).replace("%%", "%")


@pytest.fixture(scope="module")
def prepared(postgres, _migrated):
    """A connection to a database of our schema."""
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE prepared TEMPLATE {_migrated}")
    url = postgres.url.replace("/spillway?", "/prepared?")
    with psycopg.connect(url, autocommit=True) as conn:
        yield conn


@pytest.mark.parametrize("name", QUERIES)
def test_statement_prepares(prepared, name):
    """PostgreSQL knows every table, column and type of it."""
    prepared.execute(f'PREPARE "{name}" AS {numbered(QUERIES[name].sql)}')
