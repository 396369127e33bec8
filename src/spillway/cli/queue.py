"""`spillway queue`: queues and their consumer groups."""

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import msgspec
import typer

from spillway.cli.outcome import counted, say
from spillway.cli.output import age, print_facts, print_json, print_json_lines, print_table
from spillway.cli.selection import report, require, with_selection
from spillway.cli.session import Session, with_session
from spillway.cli.signature import Options, expanded
from spillway.cli.span import VISIBILITY, moment, span
from spillway.cli.spinner import spinning

if TYPE_CHECKING:
    from spillway.client import operations
    from spillway.client.operations import Selected
    from spillway.client.sync_client import Client
    from spillway.wire import GroupCounts, QueueReply

app = typer.Typer(help="Queues and their consumer groups.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.")]
Group = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.")]
OneGroup = Annotated[str | None, typer.Option("--group", "-g", help="Only this group.")]
Reason = Annotated[str | None, typer.Option(help="Why, for the audit.")]
Yes = Annotated[bool, typer.Option("--yes", help="Yes, really.")]

COUNTS = ("ready", "deferred", "leased", "blocked", "parked", "dropped", "settled")


def _option(kind: Any, text: str, **limits: Any) -> tuple[Any, Any]:  # noqa: ANN401
    info = typer.Option(help=text, rich_help_panel="Options of the queue", **limits)
    return Annotated[kind, info], None


def _span(name: str, text: str, *bounds: str) -> tuple[Any, Any]:
    info = typer.Option(
        name,
        help=text,
        rich_help_panel="Options of the queue",
        parser=span(*bounds),
        metavar="SPAN",
    )
    return Annotated[int | None, info], None


OPTIONS: Options = {
    "partitions": _option(
        int | None, "Hashed partitions for keys; may only grow.", min=1, max=1024
    ),
    "order": _option(
        Literal["none", "partition"] | None, "partition: one lease at a time in a partition."
    ),
    "max_attempts": _option(int | None, "Deliveries before giving up.", min=1, max=1000),
    "on_exhausted": _option(Literal["park", "block", "drop"] | None, "What giving up means."),
    "visibility_ms": _span("--visibility", "How long a lease lasts: 30s.", *VISIBILITY),
    "backoff_base_ms": _span("--backoff-base", "First wait before a retry: 1s.", "0", "1d"),
    "backoff_cap_ms": _span("--backoff-cap", "Longest wait before a retry: 5m.", "0", "1d"),
    "max_ack_holes": _option(
        int | None, "Gaps between acks before new ones wait.", min=1, max=1_000_000
    ),
    "max_depth": _option(
        int | None,
        "Depth of each lane (not of the queue) at which pushes are refused; 0: no cap.",
        min=0,
    ),
    "dedupe_window_ms": _span("--dedupe-window", "How long ids are remembered: 10m.", "0", "1d"),
    "dedupe_count": _option(int | None, "How many ids are remembered.", min=0, max=1_000_000),
    "retention_ms": _span("--retention", "How long settled messages stay: 1d."),
    "in_memory_queue_size": _option(int | None, "Bodies kept warm.", min=0, max=1_000_000),
}


def _given(_: typer.Context, given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace a command's `options` by the flags of a queue."""
    return expanded(command, "options", OPTIONS, _given)


# ---------------------------------------------------------------- look


@app.command("list")
@with_session
def list_queues(session: Session) -> None:
    """List queues with their counts, a line for each group. With --json: a JSON line a queue."""
    with session.client() as client:
        if session.json_:
            print_json_lines(every_queue(client))
            return
        rows = [row for queue in every_queue(client) for row in _rows(queue)]
    print_table(("QUEUE", "GROUP", *(name.upper() for name in COUNTS), "OLDEST READY", ""), rows)


def every_queue(client: "Client") -> "Iterator[QueueReply]":
    after: str | None = None
    while True:
        page = client.queues(after=after)
        yield from page.queues
        after = page.next
        if after is None:
            return


def _rows(queue: "QueueReply") -> "Iterator[tuple[object, ...]]":
    for group in queue.groups:
        yield (queue.queue, *group_row(group, paused=queue.paused))
    if not queue.groups:
        yield (queue.queue, None, queue.tail, *[0] * (len(COUNTS) - 1), None, "")


def group_row(group: "GroupCounts", *, paused: bool = False) -> tuple[object, ...]:
    counts = [getattr(group, name) for name in COUNTS]
    note = "paused" if paused or group.paused else ""
    return (group.group, *counts, age(group.oldest_ready_at), note)


@app.command("show")
@with_session
def show(session: Session, name: Name) -> None:
    """Show a queue: options and groups. With --json: one JSON document."""
    with session.client() as client:
        queue = client.queue(name)
    if session.json_:
        print_json(queue)
        return
    facts = {"queue": queue.queue, "org": queue.org, "created": queue.created_at}
    options = msgspec.structs.asdict(queue.options)
    print_facts(
        facts | {"paused": queue.paused, "lanes": queue.lanes, "tail": queue.tail} | options
    )
    if queue.groups:
        say("")
        _print_groups(queue.groups)


@app.command("groups")
@with_session
def groups(session: Session, name: Name) -> None:
    """List the groups of a queue. With --json: a JSON line for each."""
    with session.client() as client:
        found = client.groups(name)
    if session.json_:
        print_json_lines(found)
    else:
        _print_groups(found)


def _print_groups(groups: "list[GroupCounts]") -> None:
    headings = ("GROUP", *(name.upper() for name in COUNTS), "OLDEST READY", "")
    print_table(headings, [group_row(group) for group in groups])


@app.command("story")
@with_session
def story(
    session: Session,
    name: Name,
    partition: Annotated[str, typer.Argument(metavar="PARTITION", help="Its partition.")],
    version: Annotated[int, typer.Argument(metavar="VERSION", min=1, help="Its version.")],
    group: OneGroup = None,
) -> None:
    """Tell everything that happened to one message. With --json: one JSON document."""
    with session.client() as client:
        reply = client.story(name, partition, version, group=group)
    if session.json_:
        print_json(reply)
        return
    print_facts(msgspec.structs.asdict(reply.message))
    if not reply.story:
        say("nothing happened to it, as far back as the control log reaches")
        return
    sys.stdout.write("\n")
    rows = [
        (one.at, one.group, one.event, ", ".join(f"{k}={v}" for k, v in one.detail.items()))
        for one in reply.story
    ]
    print_table(("AT", "GROUP", "EVENT", "DETAIL"), rows)


# ---------------------------------------------------------------- make, change, delete


@app.command("create")
@with_session
@with_options
def create(session: Session, name: Name, options: dict[str, Any]) -> None:
    """Make a queue, or set all options of one. With --json: one JSON document."""
    with session.client() as client:
        queue = client.create_queue(name, **cast("operations.Options", options))
    _changed(session, queue, "is there")


@app.command("update")
@with_session
@with_options
def update(session: Session, name: Name, options: dict[str, Any]) -> None:
    """Change the given options of a queue. With --json: one JSON document."""
    if not options:
        raise typer.BadParameter("name at least one option to change")
    with session.client() as client:
        queue = client.update_queue(name, **cast("operations.Options", options))
    _changed(session, queue, "changed")


def _changed(session: Session, queue: "QueueReply", what: str) -> None:
    if session.json_:
        print_json(queue)
    say(f"queue {queue.queue} {what}")


@app.command("delete")
@with_session
def delete(session: Session, name: Name, yes: Yes = False, reason: Reason = None) -> None:
    """Delete a queue with all its messages and groups; needs --yes. With --json: one document."""
    if not yes:
        raise typer.BadParameter(f"this deletes every message of {name}: say --yes")
    with session.client() as client:
        reply = client.delete_queue(name, reason=reason)
    if session.json_:
        print_json(reply)
    say(f"queue {reply.deleted} deleted")


@app.command("purge")
@with_session
@with_selection
def purge(session: Session, name: Name, selection: "Selected") -> None:
    """Settle waiting messages unseen; needs a filter or --all. With --json: one document."""
    require(selection)
    with session.client() as client, spinning(f"purge: {name}"):
        reply = client.purge(name, what="waiting", **selection)
    if session.json_:
        print_json(reply)
    report(reply, "message")


@app.command("pause")
@with_session
def pause(session: Session, name: Name, group: OneGroup = None, reason: Reason = None) -> None:
    """Stop leasing from a queue, or for one group. With --json: one JSON document."""
    with session.client() as client:
        reply = client.pause(name, group=group, reason=reason)
    if session.json_:
        print_json(reply)
    report(reply, "group")


@app.command("resume")
@with_session
def resume(session: Session, name: Name, group: OneGroup = None, reason: Reason = None) -> None:
    """Lease again from a queue, or for one group. With --json: one JSON document."""
    with session.client() as client:
        reply = client.resume(name, group=group, reason=reason)
    if session.json_:
        print_json(reply)
    report(reply, "group")


@app.command("group-create")
@with_session
def group_create(
    session: Session,
    name: Name,
    group: Group,
    start: Annotated[
        str, typer.Option(help="earliest, latest, a time, or a span ago such as 2h.")
    ] = "earliest",
) -> None:
    """Make a consumer group. With --json: one JSON document."""
    where = start if start in ("earliest", "latest") else moment(start)
    assert where is not None
    with session.client() as client:
        counts = client.create_group(name, group, start=where)
    if session.json_:
        print_json(counts)
    say(f"group {counts.group} of {name} is there: {counted(counts.ready, 'message')} ready")


@app.command("group-delete")
@with_session
def group_delete(session: Session, name: Name, group: Group, yes: Yes = False) -> None:
    """Delete a group and its position; needs --yes. With --json: one JSON document."""
    if not yes:
        raise typer.BadParameter(f"this forgets what {group} has handled: say --yes")
    with session.client() as client:
        reply = client.delete_group(name, group)
    if session.json_:
        print_json(reply)
    say(f"group {reply.deleted} deleted")
