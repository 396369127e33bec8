"""`spillway seek`: move a consumer group."""

from typing import Annotated

import typer

from spillway.cli.output import print_json
from spillway.cli.selection import report
from spillway.cli.session import Session, with_session
from spillway.cli.span import moment


@with_session
def seek(
    session: Session,
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.")],
    to: Annotated[
        str,
        typer.Argument(
            metavar="TO", help="earliest, latest, a time, a span back such as 2h, or a version."
        ),
    ],
    *,
    group: Annotated[str, typer.Option("--group", "-g", help="The consumer group.")] = "default",
    partition: Annotated[
        str | None, typer.Option(help="Only this partition; needed for a version.")
    ] = None,
    reason: Annotated[str | None, typer.Option(help="Why, for the audit.")] = None,
) -> None:
    """Move a group: back to see messages again, or ahead to skip them.

    With --json: one JSON document.
    """
    target = _target(to)
    if isinstance(target, int) and partition is None:
        raise typer.BadParameter(f"version {to} of which partition? add --partition NAME")
    with session.client() as client:
        reply = client.seek(queue, target, group=group, partition=partition, reason=reason)
    if session.json_:
        print_json(reply)
    report(reply, "lane", " moved")


def _target(to: str) -> str | int:
    if to in ("earliest", "latest"):
        return to
    if to.isdigit():
        return int(to)
    time = moment(to)
    assert time is not None
    return time.isoformat()
