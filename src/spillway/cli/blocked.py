"""`spillway blocked`: messages that hold their line until somebody decides."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from spillway.cli.outcome import say
from spillway.cli.output import age, print_json, print_json_lines, print_table
from spillway.cli.selection import report, require, with_selection
from spillway.cli.session import Session, with_session
from spillway.cli.spinner import spinning

if TYPE_CHECKING:
    from spillway.client.operations import Selected

app = typer.Typer(help="Messages that hold their line (key or lane).", no_args_is_help=True)

Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.")]


@app.command("list")
@with_session
def list_blocked(
    session: Session,
    queue: Queue,
    group: Annotated[str | None, typer.Option("--group", "-g", help="Only of this group.")] = None,
) -> None:
    """List the blocked messages of a queue. With --json: a JSON line for each."""
    with session.client() as client:
        blocked = client.blocked(queue, group=group).blocked
    if session.json_:
        print_json_lines(blocked)
        return
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
