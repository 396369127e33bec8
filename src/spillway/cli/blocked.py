"""`spillway blocked`: messages that hold their line until somebody decides."""

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from spillway.cli.outcome import say
from spillway.cli.output import age, print_json, print_json_lines, print_table
from spillway.cli.selection import report, require, with_selection
from spillway.cli.session import Session, with_session
from spillway.cli.spinner import spinning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spillway.client.operations import Selected
    from spillway.client.sync_client import Client
    from spillway.wire import BlockedMessage

app = typer.Typer(help="Messages that hold their line (key or lane).", no_args_is_help=True)

PAGE = 500

Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.")]


@app.command("list")
@with_session
def list_blocked(
    session: Session,
    queue: Queue,
    *,
    group: Annotated[str | None, typer.Option("--group", "-g", help="Only of this group.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")] = 100,
) -> None:
    """List the blocked messages of a queue. With --json: a JSON line for each."""
    with session.client() as client:
        pages = islice(_pages(client, queue, group, min(PAGE, limit)), limit)
        if session.json_:
            print_json_lines(pages)
            return
        blocked = list(pages)
    if not blocked:
        say(f"{queue}: nothing is blocked")
        return
    headings = ("GROUP", "MESSAGE", "ATTEMPTS", "BLOCKED", "ERROR")
    rows = (
        (one.group, f"{one.partition}/{one.version}", one.attempts, age(one.blocked_at), one.error)
        for one in blocked
    )
    print_table(headings, rows)
    say(f"free them: spillway blocked unblock {queue} --all --action retry")


def _pages(
    client: "Client", queue: str, group: str | None, size: int
) -> "Iterator[BlockedMessage]":
    after: str | None = None
    while True:
        page = client.blocked(queue, group=group, limit=size, next=after)
        yield from page.blocked
        after = page.next
        if after is None:
            return


@app.command("unblock")
@with_session
@with_selection
def unblock(
    session: Session,
    queue: Queue,
    selection: "Selected",
    action: Annotated[
        Literal["retry", "skip", "park"],
        typer.Option(help="Retry with fresh attempts, skip, or park."),
    ] = "retry",
) -> None:
    """Free blocked messages, and with them their line. With --json: one JSON document."""
    require(selection)
    with session.client() as client, spinning(f"unblock: {queue}"):
        reply = client.unblock(queue, action=action, **selection)
    if session.json_:
        print_json(reply)
    report(reply, "message")
