"""`spillway`: the root of the command line and the table of its commands."""

import sys
from importlib.metadata import version
from typing import Annotated, Any

import typer

from spillway.cli.lazy import Entry, LazyGroup
from spillway.cli.outcome import EXIT_CODES
from spillway.cli.session import PANEL, TEXTS, TIMEOUT_S_MIN, Session

MESSAGES, QUEUES, BROKER = "Messages", "Queues and repairs", "Broker and checks"

HELP = f"""
Spillway: a durable message queue on PostgreSQL.

Data goes to stdout, talk to stderr. With --json, reads print JSON: one document, or one a line \
for lists (each command says which). The connection options may stand before or after the command.

{EXIT_CODES}
"""


class SpillwayGroup(LazyGroup):
    """Every command of Spillway; its help line is here, the rest in its own file."""

    entries = {  # noqa: RUF012 (typed in the base)
        "push": Entry("push", "push", "Push messages: arguments, a file or stdin.", MESSAGES),
        "lease": Entry("lease", "lease", "Lease messages and print them.", MESSAGES),
        "settle": Entry("settle", "app", "Ack, nack, park or extend by receipt.", MESSAGES),
        "tail": Entry("tail", "tail", "Follow messages without consuming them.", MESSAGES),
        "queue": Entry("queue", "app", "Queues and groups: make, show, change, pause.", QUEUES),
        "dead": Entry("dead", "app", "Dead letters: list, show, redrive, purge.", QUEUES),
        "blocked": Entry("blocked", "app", "Messages that hold their line.", QUEUES),
        "seek": Entry("seek", "seek", "Move a consumer group.", QUEUES),
        "serve": Entry("serve", "serve", "Run a broker.", BROKER),
        "top": Entry("top", "top", "Watch queues live.", BROKER),
        "doctor": Entry("doctor", "doctor", "Find what is wrong and how to free it.", BROKER),
        "audit": Entry("audit", "audit", "Check that no message is lost or doubled.", BROKER),
        "spool": Entry("spool", "app", "Pushes that wait in files: status, repair, hold.", BROKER),
        "key": Entry("key", "app", "API keys: create, list, revoke.", BROKER),
        "schema": Entry("schema", "app", "The tables in PostgreSQL: apply, print.", BROKER),
        "bench": Entry("bench", "app", "Measure, beside a plain COPY.", BROKER),
    }


app = typer.Typer(
    cls=SpillwayGroup,
    help=HELP,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"spillway {version('spillway')}\n")
        raise typer.Exit


def _global(text: str, name: str, least: float | None = None) -> Any:  # noqa: ANN401 (typer's info)
    return typer.Option(name, help=text, min=least, rich_help_panel=PANEL)


@app.callback()
def root(
    ctx: typer.Context,
    *,
    url: Annotated[str | None, _global(TEXTS["url"], "--url")] = None,
    org: Annotated[str | None, _global(TEXTS["org"], "--org")] = None,
    api_key: Annotated[str | None, _global(TEXTS["api_key"], "--api-key")] = None,
    actor: Annotated[str | None, _global(TEXTS["actor"], "--actor")] = None,
    timeout: Annotated[float | None, _global(TEXTS["timeout"], "--timeout", TIMEOUT_S_MIN)] = None,
    json_: Annotated[bool, _global(TEXTS["json_"], "--json")] = False,
    version: Annotated[  # noqa: ARG001 (its callback answers)
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Keep the connection options for the command."""
    ctx.obj = Session(url, org, api_key, actor, timeout, json_)
