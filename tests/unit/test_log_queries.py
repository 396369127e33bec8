"""The statements by name."""

from pathlib import Path

import pytest

from spillway.log.queries import QUERIES, UnknownQueryError, parse, sql

SOURCES = Path(__file__).parents[2] / "src"


def test_statement_is_found_by_name():
    """Comments above the statement describe it, the rest is SQL."""
    query = parse("-- file\n\n-- name: one\n-- What it is for\n-- and why.\nSELECT 1\n")["one"]
    assert (query.name, query.description) == ("one", "What it is for and why.")
    assert query.sql == "SELECT 1"


def test_unknown_name_is_refused():
    """A wrong name stops the import of the module that asks for it."""
    with pytest.raises(UnknownQueryError, match="no statement is named 'nonsense'"):
        sql("nonsense")


def test_name_is_given_once():
    """A second statement of a name would silently win."""
    with pytest.raises(UnknownQueryError, match="two statements"):
        parse("-- name: a\n-- x\nSELECT 1\n-- name: a\n-- y\nSELECT 2\n")


@pytest.mark.parametrize("name", QUERIES)
def test_statement_is_described(name):
    """Every statement says what it is for, and is one statement."""
    assert QUERIES[name].description
    assert QUERIES[name].sql
    assert ";" not in QUERIES[name].sql


def test_every_statement_is_used():
    """A statement that nobody runs is a mistake or a leftover."""
    code = "\n".join(path.read_text() for path in SOURCES.rglob("*.py"))
    assert [name for name in QUERIES if f'"{name}"' not in code] == []
