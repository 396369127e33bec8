"""`spillway schema`: the tables that Spillway keeps in PostgreSQL."""

import asyncio
import sys

import typer

from spillway.cli.database import Data, DatabaseUrl, database
from spillway.cli.outcome import say

app = typer.Typer(help="The tables in PostgreSQL: apply, print.", no_args_is_help=True)


@app.command("apply")
def apply(data: Data = None, database_url: DatabaseUrl = None) -> None:
    """Make or migrate the tables; does nothing when they are up to date."""
    from spillway.log.migrations import migrate  # noqa: PLC0415

    with database(data, database_url) as url:
        applied = asyncio.run(migrate(url))
    say(f"applied: {', '.join(applied)}" if applied else "the schema is up to date")


@app.command("print")
def print_schema() -> None:
    """Print the SQL of all migrations, without connecting."""
    from spillway.log.migrations import sql  # noqa: PLC0415

    sys.stdout.write(sql())
