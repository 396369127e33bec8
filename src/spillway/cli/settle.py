"""`spillway settle`: what became of leased messages, by receipt."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from spillway.cli.outcome import REFUSED, say
from spillway.cli.output import print_json_lines
from spillway.cli.session import Session, with_session
from spillway.cli.span import VISIBILITY, span, span_ms

if TYPE_CHECKING:
    from spillway.wire import SettleReply

app = typer.Typer(help="Settle leased messages by receipt.", no_args_is_help=True)

Receipts = Annotated[
    list[str] | None, typer.Argument(help="Receipts from `spillway lease`; none: one a line.")
]


@app.command("ack")
@with_session
def ack(session: Session, receipts: Receipts = None) -> None:
    """They are handled. With --json: a JSON line for each receipt."""
    with session.client() as client:
        _report(client.ack(*_read(receipts)), as_json=session.json_)


@app.command("nack")
@with_session
def nack(
    session: Session,
    receipts: Receipts = None,
    error: Annotated[str | None, typer.Option(help="Why; kept with the message.")] = None,
    delay: Annotated[
        str | None, typer.Option(help="Not again before: 0, 5s, 2m; the backoff if not given.")
    ] = None,
) -> None:
    """Give them back for another attempt. With --json: a JSON line for each receipt."""
    with session.client() as client:
        reply = client.nack(*_read(receipts), error=error, delay_ms=span_ms(delay))
        _report(reply, as_json=session.json_)


@app.command("park")
@with_session
def park(
    session: Session,
    receipts: Receipts = None,
    error: Annotated[str | None, typer.Option(help="Why; kept with the dead letter.")] = None,
) -> None:
    """Give them up: dead letters at once. With --json: a JSON line for each receipt."""
    with session.client() as client:
        reply = client.nack(*_read(receipts), error=error, park=True)
        _report(reply, as_json=session.json_)


@app.command("extend")
@with_session
def extend(
    session: Session,
    receipts: Receipts = None,
    visibility: Annotated[
        int,
        typer.Option(
            parser=span(*VISIBILITY), metavar="SPAN", help="Hold them so long from now: 30s, 2m."
        ),
    ] = 30_000,
) -> None:
    """Hold them longer. With --json: a JSON line for each receipt."""
    with session.client() as client:
        reply = client.extend(*_read(receipts), visibility_ms=visibility)
        _report(reply, as_json=session.json_)


def _read(receipts: list[str] | None) -> list[str]:
    given = receipts or [line.strip() for line in sys.stdin if line.strip()]
    if not given:
        raise typer.BadParameter("no receipts")
    return given


def _report(reply: "SettleReply", *, as_json: bool) -> None:
    if as_json:
        print_json_lines(reply.results)
    refused = [result for result in reply.results if result.status == "refused"]
    for result in refused:
        say(f"{result.receipt}: {result.error.message if result.error else 'refused'}")
    for hint in dict.fromkeys(result.error.hint for result in refused if result.error):
        say(f"  hint: {hint}")
    say(f"{len(reply.results) - len(refused)} settled, {len(refused)} refused")
    if refused:
        raise typer.Exit(REFUSED)
