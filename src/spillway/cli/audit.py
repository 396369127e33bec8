"""`spillway audit`: the conservation law, checked from the log itself."""

import asyncio
from typing import TYPE_CHECKING

import typer

from spillway.cli.database import Data, DatabaseUrl, database
from spillway.cli.outcome import FAILED, counted, say
from spillway.cli.output import print_facts, print_json, print_table
from spillway.cli.session import Session, with_session
from spillway.cli.spinner import spinning

if TYPE_CHECKING:
    from spillway.wire import AuditReply


@with_session
def audit(session: Session, *, data: Data = None, database_url: DatabaseUrl = None) -> None:
    """Check the conservation law: what was pushed is in one place, for every lane and group.

    The law: tail = settled + leased + ready + deferred + blocked + parked + dropped.

    Asks the broker at --url; with --data or --database-url it reads PostgreSQL itself, broker or
    no broker. Prints every difference; exit code 1 if there is one. With --json: one document.
    """
    with spinning("reading the log"):
        reply = _run(session, data, database_url)
    if session.json_:
        print_json(reply)
    else:
        _print(reply)
    if not reply.balanced:
        raise typer.Exit(FAILED)


def _run(session: Session, data: "Data", database_url: "DatabaseUrl") -> "AuditReply":
    if data is None and database_url is None:
        with session.client() as client:
            return client.audit()
    import msgspec  # noqa: PLC0415

    from spillway.log.audit import run  # noqa: PLC0415
    from spillway.wire import AuditReply  # noqa: PLC0415

    with database(data, database_url) as url:
        return msgspec.convert(asyncio.run(run(url)), AuditReply, from_attributes=True)


def _print(reply: "AuditReply") -> None:
    facts = {"lanes": reply.lanes, "groups": reply.groups, "messages": reply.messages}
    print_facts({**facts, "without a group": reply.ungrouped, **reply.totals})
    if reply.ungrouped:
        say(f"{reply.ungrouped:,} in queues without a group: they have no state yet")
    if sum(reply.totals.values()) + reply.ungrouped > reply.messages:
        say("a message counts once for each group of its queue")
    if reply.balanced:
        say("balanced: nothing is lost, nothing is in two places")
        return
    say(f"NOT balanced: {counted(len(reply.differences), 'difference')}")
    headings = ("QUEUE", "PARTITION", "GROUP", "WHAT", "EXPECTED", "FOUND")
    print_table(
        headings,
        [
            (one.queue, one.partition, one.group, one.what, one.expected, one.found)
            for one in reply.differences
        ],
    )
