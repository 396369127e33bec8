"""`spillway lease`: take messages by hand."""

from typing import Annotated

import typer

from spillway.cli.outcome import say
from spillway.cli.output import print_json_lines, print_table
from spillway.cli.session import Session, with_session
from spillway.cli.span import VISIBILITY, span


@with_session
def lease(
    session: Session,
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.")],
    *,
    group: Annotated[str, typer.Option("--group", "-g", help="The consumer group.")] = "default",
    count: Annotated[int, typer.Option("--max", "-n", min=1, max=10_000, help="At most.")] = 1,
    wait: Annotated[
        int,
        typer.Option(
            parser=span(most="60s"),
            metavar="SPAN",
            help="Wait so long for the first: 500ms, 5s; at most 60s.",
        ),
    ] = 0,
    visibility: Annotated[
        int | None,
        typer.Option(
            parser=span(*VISIBILITY),
            metavar="SPAN",
            help="Hold them so long; the queue's visibility if not given.",
        ),
    ] = None,
    partition: Annotated[
        list[str] | None, typer.Option(help="Only of this partition; repeatable.")
    ] = None,
    ack: Annotated[bool, typer.Option("--ack", help="Ack them at once, after printing.")] = False,
) -> None:
    """Lease messages and print them with their receipts, for `spillway settle`.

    With --json: a JSON line for each message.
    """
    with session.client() as client:
        messages = client.lease(
            queue,
            group,
            max=count,
            wait_ms=wait,
            visibility_ms=visibility,
            partitions=partition or None,
            consumer="spillway lease",
        )
        if session.json_:
            print_json_lines(message.wire for message in messages)
        elif messages:
            headings = ("PARTITION", "VERSION", "ATTEMPT", "KEY", "PAYLOAD", "RECEIPT")
            # A receipt is there to be copied: it stands last, and whole.
            rows = [
                (one.partition, one.version, one.attempt, one.key, one.wire.payload, one.receipt)
                for one in messages
            ]
            print_table(headings, rows, whole=True)
        if not messages:
            say(f"nothing to lease: {messages.reason or 'no message is due'}")
        elif ack:
            client.ack(*[message.receipt for message in messages])
            say(f"{len(messages)} acked")
