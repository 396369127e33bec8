"""`spillway spool`: the pushes that wait in files, and those that could not be replayed."""

import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spillway.cli.draining import Bar, Draining, Lines
from spillway.cli.hints import hint_of
from spillway.cli.interrupt import polite
from spillway.cli.outcome import DEPENDENCY_DOWN, FAILED, counted, exit_code, say
from spillway.cli.output import (
    age,
    duration,
    print_facts,
    print_json,
    print_json_lines,
    print_table,
    size,
)
from spillway.cli.selection import report
from spillway.cli.session import Session, with_session
from spillway.cli.spoolreader import Place, Reader, reader
from spillway.cli.spooltroubles import troubles
from spillway.core.errors import (
    SelectionRequiredError,
    SpillwayError,
    SpoolFileNotFoundError,
    SpoolLineNotFoundError,
)

if TYPE_CHECKING:
    from spillway.client.sync_client import Client
    from spillway.wire import SpoolEvent, SpoolFile, SpoolReply

app = typer.Typer(
    help="Pushes that wait in files while PostgreSQL is away, and those that failed.",
    no_args_is_help=True,
)

File = Annotated[str, typer.Argument(metavar="FILE", help="From `spillway spool list`.")]
SomeFile = Annotated[str | None, typer.Argument(metavar="[FILE]", help="Only this file.")]
Line = Annotated[int | None, typer.Option("--line", min=1, help="Only this line of it.")]
Reason = Annotated[str | None, typer.Option(help="Why, for the audit.")]
Failed = Annotated[bool, typer.Option("--failed", help="Those that could not be replayed.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--folder",
        exists=True,
        file_okay=False,
        help="Read this spool folder itself: no broker, no PostgreSQL needed.",
    ),
]

WITHOUT_BROKER = "`spillway spool list --folder DIR` reads the files themselves"


# ---------------------------------------------------------------- status


@app.command("status")
@with_session
def status(
    session: Session,
    *,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="A progress bar, until the spool is empty.")
    ] = False,
    interval: Annotated[
        float, typer.Option("--interval", "-i", min=0.1, help="Seconds between two looks.")
    ] = 1.0,
) -> None:
    """Tell what waits, since when, and what stands in its way.

    With --json: one JSON document; with --watch too, a JSON line for each look.
    """
    if watch:
        _watch(session, interval)
        return
    try:
        with session.client() as client:
            now = client.spool()
    except SpillwayError as error:
        if exit_code(error) == DEPENDENCY_DOWN:
            error.hint = f"{hint_of(error)}; without a broker: {WITHOUT_BROKER}"
        raise
    if session.json_:
        print_json(now)
        return
    print_facts(_facts(now))
    if now.queues:
        sys.stdout.write("\n")
        rows = ((one.queue, one.org, one.events) for one in now.queues)
        print_table(("QUEUE", "ORG", "WAITING"), rows)
        if now.queues_more:
            say(f"and {counted(now.queues_more, 'more queue')}")
    _tell_troubles(now)


def _facts(now: "SpoolReply") -> dict[str, object]:
    waiting = f"{counted(now.pending, 'event')} in {counted(now.files, 'file')}"
    if now.counting:
        waiting = f"still counting: {waiting} or more"
    elif now.pending:
        waiting += f", the oldest for {duration(now.oldest_s)}"
    used = f"{size(now.bytes)} of {size(now.bytes_max)} ({now.bytes / now.bytes_max:.0%})"
    hold, owner = now.hold, now.owner
    standby = {} if owner is None else {"standby": f"hands over to {owner.address or 'the owner'}"}
    return standby | {
        "database": now.database,
        "breaker": now.breaker,
        "hold": None if hold is None else f"{hold.actor}, for {age(hold.since)}",
        "waiting": waiting,
        "unwritten": f"{now.unwritten} of qos 0; {now.lost} lost",
        "bytes": used,
        "disk free": size(now.disk_free),
        "failed": now.failed,
        "replay": f"{now.rate:,.0f}/s" if now.rate else "idle",
        "since start": f"{now.accepted} accepted, {now.replayed} replayed, {now.revived} revived, "
        f"{now.discarded} discarded, {now.refused} refused",
        "folder": now.folder,
        "foreign": ", ".join(now.foreign) or None,
    }


def _tell_troubles(now: "SpoolReply") -> None:
    found = list(troubles(now))
    for trouble in found:
        say(trouble.text)
        say(f"  → {trouble.free}")
    if now.pending and not found:
        say("it is being replayed: spillway spool status --watch")


def _watch(session: Session, interval: float) -> None:
    """Until the spool is empty, or somebody has seen enough."""
    draining = Draining()
    is_terminal = sys.stdout.isatty() and not session.json_
    with (
        session.client(retries=0) as client,
        polite("leaving") as stop,
        Bar() if is_terminal else Lines() as view,
    ):
        while not stop.is_set():
            now = _look(client, view)
            if now is not None:
                stage = draining.look(now, time.monotonic())
                if session.json_:
                    print_json(now)
                else:
                    view.show(stage)
                if not now.pending:
                    break
            stop.wait(interval)
        else:
            return
    say("the spool is empty")
    _tell_troubles(now)


def _look(client: "Client", view: Bar | Lines) -> "SpoolReply | None":
    """None: the broker does not answer right now, perhaps because it is being started again."""
    try:
        return client.spool()
    except SpillwayError as error:
        if exit_code(error) != DEPENDENCY_DOWN:
            raise
        view.trouble(f"{error.message}; {hint_of(error)}")
        return None


# ---------------------------------------------------------------- files


@app.command("list")
@with_session
def list_files(
    session: Session, *, failed: Failed = False, limit: Limit = 100, folder: Folder = None
) -> None:
    """List buffer files, oldest first. With --json: a JSON line for each."""
    places: tuple[Place, ...] = ("failed",) if failed else ("waiting", "failed")
    with reader(session, folder) as found:
        files = [file for place in places for file in found.files(place, limit)]
    if session.json_:
        print_json_lines(files)
        return
    if not files:
        say("no failed events" if failed else "the spool is empty")
        return
    headings = ("FILE", "STATE", "STREAM", "EVENTS", "LEFT", "BYTES", "OLDEST")
    print_table(headings, map(_file_row, files))
    if found.more_files:
        say(f"and more: spillway spool list --limit {limit * 10}{_where(folder)}")
    say(f"look inside: spillway spool show {files[0].file}{_where(folder)}")


def _where(folder: Path | None) -> str:
    """What the next command must say too, to look into the same place."""
    return "" if folder is None else f" --folder {shlex.quote(str(folder))}"


def _file_row(file: "SpoolFile") -> tuple[object, ...]:
    since = age(file.oldest_at)
    return file.file, file.state, file.stream, file.events, file.left, size(file.bytes), since


@app.command("show")
@with_session
def show(
    session: Session,
    name: File,
    *,
    line: Line = None,
    first: Annotated[int, typer.Option("--from", min=1, help="From this line on.")] = 1,
    failed: Failed = False,
    limit: Limit = 100,
    folder: Folder = None,
) -> None:
    """Show the events of a file, or one of them whole. With --json: a JSON line for each.

    A file that waits comes before a failed one of the same name; --failed shows that one.
    """
    with reader(session, folder) as found:
        events = _shown(found, name, line or first, 1 if line else limit, failed=failed)
    if line and [one.line for one in events] != [line]:
        raise SpoolLineNotFoundError(f"{name} has no event at line {line}")
    if session.json_:
        print_json_lines(events)
    elif line:
        _print_event(events[0])
    else:
        headings = ("LINE", "QUEUE", "PARTITION", "KEY", "TRANSACTION", "PAYLOAD", "STATE")
        print_table(headings, map(_event_row, events))
        if found.next_line:
            more = f"spillway spool show {name} --from {found.next_line}"
            say(f"and more: {more}{_where(folder)}")
        _say_way_back(name, events, _where(folder))


def _shown(found: Reader, name: str, first: int, limit: int, *, failed: bool) -> "list[SpoolEvent]":
    if not failed:
        try:
            return list(found.events(name, "waiting", first, limit))
        except SpoolFileNotFoundError:
            try:
                events = list(found.events(name, "failed", first, limit))
            except SpoolFileNotFoundError as error:
                raise SpoolFileNotFoundError(f"the spool has no file {name!r}") from error
            say("it does not wait; of those that failed:")
            return events
    return list(found.events(name, "failed", first, limit))


def _event_row(one: "SpoolEvent") -> tuple[object, ...]:
    from msgspec import UNSET  # noqa: PLC0415

    payload = one.damaged if one.payload is UNSET else one.payload
    state = "done" if one.done else "waiting" if one.error is None else one.error.code
    return one.line, one.queue, one.partition, one.key, one.transaction_id, payload, state


def _print_event(one: "SpoolEvent") -> None:
    from msgspec.structs import asdict  # noqa: PLC0415

    facts: dict[str, object] = asdict(one) | {"payload": _event_row(one)[5]}
    if one.error is not None:
        facts["error"] = f"{one.error.message} [{one.error.code}]"
        facts["hint"] = one.error.hint
    print_facts(facts)


def _say_way_back(name: str, events: "list[SpoolEvent]", where: str) -> None:
    bad = next((one for one in events if one.error is not None), None)
    if bad is not None:
        say(f"why: spillway spool show {name} --failed --line {bad.line}{where}")
        say(f"mend: spillway spool repair {name} --line {bad.line} --event '{{\"queue\": …}}'")
        say(f"again: spillway spool retry {name}")


@app.command("verify")
@with_session
def verify(session: Session, name: SomeFile = None, *, folder: Folder = None) -> None:
    """Check every checksum, and the order. Changes nothing; exit code 1 if something is wrong.

    With --json: one JSON document.
    """
    with reader(session, folder) as found:
        checked = found.verify(name)
    files = checked.files
    if session.json_:
        print_json(checked)
    else:
        rows = ((one.file, one.state, one.events, one.damaged, one.out_of_order) for one in files)
        print_table(("FILE", "STATE", "EVENTS", "DAMAGED", "OUT OF ORDER"), rows)
        for one in files:
            for problem in one.problems:
                print(f"{one.file}: {problem}")
    if checked.sound:
        say(f"{counted(len(files), 'file')}, all sound")
        return
    say("damaged: the replay sets such lines aside; then spillway spool list --failed")
    raise typer.Exit(FAILED)


# ---------------------------------------------------------------- repairs


@app.command("repair")
@with_session
def repair(
    session: Session,
    name: File,
    *,
    line: Annotated[int, typer.Option("--line", min=1, help="Which line of it.")],
    event: Annotated[
        str | None,
        typer.Option("--event", metavar="JSON", help='Fields to set: {"queue": "orders"}.'),
    ] = None,
    accept: Annotated[
        bool, typer.Option("--accept", help="Take a damaged line as it reads now.")
    ] = False,
    reason: Reason = None,
) -> None:
    """Mend a failed event; it is tried again at the next retry. With --json: one document.

    Fields: queue, partition, key, payload, headers, transaction_id, trace_id, priority,
    deliver_at, expires_at, org. A damaged line that cannot be read needs queue and payload.
    """
    if accept == (event is not None):
        raise typer.BadParameter("say either --event JSON or --accept")
    fields = None if event is None else _fields(event)
    with session.client() as client:
        reply = client.spool_repair(name, line, fields, accept=accept, reason=reason)
    if session.json_:
        print_json(reply)
    say(f"repair: 1 event mended, {counted(reply.remaining, 'failed event')} to retry")
    say("it is tried by itself within FILE_BUFFER_RETRY_INTERVAL (5 s)")
    say(f"at once: spillway spool retry {name} --line {line}")


def _fields(text: str) -> dict[str, Any]:
    import msgspec  # noqa: PLC0415

    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise typer.BadParameter(f"--event is no JSON object: {error}") from error


@app.command("retry")
@with_session
def retry(
    session: Session, name: SomeFile = None, *, line: Line = None, reason: Reason = None
) -> None:
    """Try failed events now; without FILE all of them, and lanes that were passed over.

    With --json: one JSON document.
    """
    if line is not None and name is None:
        raise typer.BadParameter("a line is a place in one file: name the FILE")
    with session.client() as client:
        reply = client.spool_retry(name, line, reason=reason)
    if session.json_:
        print_json(reply)
    report(reply, "failed event", " went into the log")
    if reply.earlier:
        say(f"{reply.earlier} had gone in within the minute before (the broker tries them too)")


@app.command("discard")
@with_session
def discard(
    session: Session,
    name: File,
    *,
    line: Line = None,
    everything: Annotated[bool, typer.Option("--all", help="Everything in it.")] = False,
    waiting: Annotated[
        bool, typer.Option("--waiting", help="Of those that wait, not of those that failed.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count them.")] = False,
    reason: Reason = None,
) -> None:
    """Throw away events of a file for good: one line, or --all. With --json: one document."""
    if everything and line is not None:
        raise typer.BadParameter("--line and --all were both given: say one of them")
    if not everything and line is None:
        raise SelectionRequiredError(hint="say either --line N or, for the whole file, --all")
    state: Place = "waiting" if waiting else "failed"
    with session.client() as client:
        reply = client.spool_discard(name, line, state=state, dry_run=dry_run, reason=reason)
    if session.json_:
        print_json(reply)
    report(reply, f"{state} event")


# ---------------------------------------------------------------- maintenance


@app.command("hold")
@with_session
def hold(session: Session, reason: Reason = None) -> None:
    """Route pushes to files on purpose and replay nothing, while the database is worked on.

    It lasts until `spillway spool release`, over restarts too. With --json: one JSON document.
    """
    with session.client() as client:
        now = client.spool_hold(reason=reason)
    if session.json_:
        print_json(now)
    say("held: pushes go to files and consumers get what is stored")
    say("  → spillway spool release")


@app.command("release")
@with_session
def release(session: Session, reason: Reason = None) -> None:
    """End the hold: what waits is replayed, pushes go through. With --json: one JSON document."""
    with session.client() as client:
        was_held = client.spool().hold is not None
        now = client.spool_release(reason=reason)
    if session.json_:
        print_json(now)
    if was_held:
        say(f"released: {counted(now.pending, 'event')} to replay")
    else:
        say(f"nobody held the spool: nothing changed, {counted(now.pending, 'event')} to replay")
    if now.pending:
        say("  → spillway spool status --watch")
