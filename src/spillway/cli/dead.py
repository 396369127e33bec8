"""`spillway dead`: dead letters, where given-up messages wait to be redriven or purged."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from spillway.cli.outcome import say
from spillway.cli.output import age, print_facts, print_json, print_json_lines, print_table
from spillway.cli.selection import report, require, with_selection
from spillway.cli.session import Session, with_session
from spillway.cli.span import moment
from spillway.cli.spinner import spinning
from spillway.core.errors import MessageNotFoundError

if TYPE_CHECKING:
    from datetime import datetime

    from spillway.client.operations import Selected
    from spillway.client.sync_client import Client
    from spillway.wire import DeadLetter

app = typer.Typer(help="Dead letters: list, show, redrive, purge.", no_args_is_help=True)

PAGE = 500

Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.")]
Ids = Annotated[list[int] | None, typer.Option("--id", help="A dead letter; repeatable.")]
OneGroup = Annotated[str | None, typer.Option("--group", "-g", help="Only of this group.")]


@app.command("list")
@with_session
def list_dead(
    session: Session,
    queue: Queue,
    *,
    group: OneGroup = None,
    partition: Annotated[str | None, typer.Option(help="Only of this partition.")] = None,
    key: Annotated[str | None, typer.Option(help="Only of this key.")] = None,
    error: Annotated[str | None, typer.Option(help="Only with this in their error.")] = None,
    before: Annotated[str | None, typer.Option(help="Only older: a time, or a span: 2h.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")] = 100,
) -> None:
    """List dead letters, oldest first. With --json: a JSON line for each."""
    filters = {"group": group, "partition": partition, "key": key, "error_contains": error}
    with session.client() as client:
        pages = _pages(client, queue, filters, moment(before), limit)
        if session.json_:
            print_json_lines(pages)
            return
        rows = [_row(letter) for letter in pages]
    if not rows:
        say(f"{queue}: no dead letters")
        return
    print_table(("ID", "GROUP", "MESSAGE", "ATTEMPTS", "DEAD", "WHY", "ERROR"), rows)
    say(f"back to work: spillway dead redrive {queue} --all")


def _row(letter: "DeadLetter") -> tuple[object, ...]:
    message = f"{letter.partition}/{letter.version}"
    when = age(letter.dead_at)
    return letter.id, letter.group, message, letter.attempts, when, letter.reason, letter.error


def _pages(
    client: "Client",
    queue: str,
    filters: dict[str, str | None],
    before: "datetime | None",
    limit: int,
) -> "Iterator[DeadLetter]":
    after: int | None = None
    while limit > 0:
        page = client.dead(
            queue,
            group=filters["group"],
            partition=filters["partition"],
            key=filters["key"],
            error_contains=filters["error_contains"],
            before=before,
            limit=min(limit, PAGE),
            after=after,
        )
        yield from page.dead
        limit -= len(page.dead)
        after = page.next
        if after is None:
            return


@app.command("show")
@with_session
def show(
    session: Session,
    queue: Queue,
    number: Annotated[int, typer.Argument(metavar="ID", help="From `spillway dead list`.")],
) -> None:
    """Show one dead letter whole. With --json: one JSON document."""
    with session.client() as client:
        page = client.dead(queue, after=number - 1, limit=1).dead
    if not page or page[0].id != number:
        raise MessageNotFoundError(
            f"there is no dead letter {number} in {queue}",
            hint=f"`spillway dead list {queue}` shows those there are",
        )
    letter = page[0]
    if session.json_:
        print_json(letter)
        return
    names = ("id", "group", "partition", "version", "key", "transaction_id", "attempts", "reason")
    more = ("error", "enqueued_at", "dead_at", "headers", "payload")
    print_facts({name: getattr(letter, name) for name in (*names, *more)})


@app.command("redrive")
@with_session
@with_selection
def redrive(session: Session, queue: Queue, selection: "Selected", ids: Ids = None) -> None:
    """Put dead letters back to their lanes, with fresh attempts. With --json: one document."""
    require(selection, named=ids)
    with session.client() as client, spinning(f"redrive: {queue}"):
        reply = client.redrive(queue, ids=ids or None, **selection)
    if session.json_:
        print_json(reply)
    report(reply, "dead letter")


@app.command("purge")
@with_session
@with_selection
def purge(session: Session, queue: Queue, selection: "Selected", ids: Ids = None) -> None:
    """Delete dead letters for good. With --json: one JSON document."""
    require(selection, named=ids)
    with session.client() as client, spinning(f"purge: {queue}"):
        reply = client.purge(queue, what="dead", ids=ids or None, **selection)
    if session.json_:
        print_json(reply)
    report(reply, "dead letter")


@app.command("park")
@with_session
@with_selection
def park(session: Session, queue: Queue, selection: "Selected") -> None:
    """Give up on waiting messages by hand: they become dead letters. With --json: one document."""
    require(selection)
    with session.client() as client, spinning(f"park: {queue}"):
        reply = client.park(queue, **selection)
    if session.json_:
        print_json(reply)
    report(reply, "message")
