"""`spillway schema`: the tables that Spillway keeps in PostgreSQL."""

import sys
from importlib import import_module

import typer

from spillway.cli.database import Data, DatabaseUrl, database
from spillway.cli.outcome import say

app = typer.Typer(help="The tables in PostgreSQL: apply, print.", no_args_is_help=True)


@app.command("apply")
def apply(data: Data = None, database_url: DatabaseUrl = None) -> None:
    """Make or migrate the tables; does nothing when they are up to date."""
    migrate = import_module("spillway.log.schema").migrate
    with database(data, database_url) as url:
        migrate(url)
    say("the schema is up to date")


@app.command("print")
def print_schema() -> None:
    """Print the SQL of all migrations, without connecting."""
    sys.stdout.write(import_module("spillway.log.schema").sql())
