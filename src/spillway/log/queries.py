"""Every statement of `queries.sql` by its name: SQL is written there and nowhere else."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import LiteralString

from spillway.core.errors import SpillwayError

_NAME = re.compile(r"^-- name: *(\S+) *$", re.MULTILINE)


class UnknownQueryError(SpillwayError):
    """There is no such statement in queries.sql."""

    code = "unknown_query"


@dataclass(frozen=True, slots=True)
class Query:
    """A statement, and what it is for."""

    name: str
    description: str
    sql: LiteralString


class Queries(dict[str, Query]):
    """Statements by name; a name that is not there is a mistake of ours."""

    def __missing__(self, name: str) -> Query:
        raise UnknownQueryError(f"no statement is named {name!r} in log/queries.sql")


def parse(text: str) -> Queries:
    """The named statements of a file."""
    _, *pieces = _NAME.split(text)
    queries = Queries()
    for name, body in zip(pieces[::2], pieces[1::2], strict=True):
        if name in queries:
            raise UnknownQueryError(f"two statements are named {name!r} in log/queries.sql")
        queries[name] = _query(name, body.strip().splitlines())
    return queries


def _query(name: str, lines: list[str]) -> Query:
    comments = 0
    while comments < len(lines) and lines[comments].startswith("--"):
        comments += 1
    description = " ".join(line.removeprefix("--").strip() for line in lines[:comments])
    return Query(name, description, "\n".join(lines[comments:]).strip())


QUERIES: Mapping[str, Query] = parse(
    resources.files("spillway.log").joinpath("queries.sql").read_text(encoding="utf-8")
)


def sql(name: str) -> LiteralString:
    """The text of a statement. Called while a module loads, so that a wrong name shows at once."""
    return QUERIES[name].sql
