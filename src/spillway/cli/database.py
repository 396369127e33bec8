"""Commands that read PostgreSQL themselves: which one is meant."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        envvar="SPILLWAY_DATA",
        file_okay=False,
        help="The folder of a broker with an embedded PostgreSQL (started if it is not running).",
    ),
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option("--database-url", envvar="SPILLWAY_DATABASE_URL", help="A PostgreSQL, by url."),
]

DEFAULT_DATA = Path("spillway-data")
"""Where `spillway serve` keeps its own, beside which one usually stands."""


@contextmanager
def database(data: Path | None, database_url: str | None) -> Iterator[str]:
    """The url of the PostgreSQL that is meant; an embedded one runs as long as it is needed."""
    if database_url is not None:
        yield database_url
        return
    data = data or (DEFAULT_DATA if (DEFAULT_DATA / "postgres").is_dir() else None)
    if data is None:
        raise typer.BadParameter("name the database: --data DIR or --database-url URL")
    if not (data / "postgres").is_dir():
        raise typer.BadParameter(f"{data} holds no embedded PostgreSQL")
    from spillway.log.embedded import EmbeddedPostgres  # noqa: PLC0415

    postgres = EmbeddedPostgres(data)
    if postgres.is_running():  # a broker's: left as it is
        yield postgres.url
        return
    with postgres:
        yield postgres.url
