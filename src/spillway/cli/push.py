"""`spillway push`: messages from arguments, a file or stdin."""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

import typer

from spillway.cli.interrupt import polite
from spillway.cli.outcome import FAILED, INTERRUPTED, say
from spillway.cli.output import print_json_lines
from spillway.cli.session import Session, with_session
from spillway.cli.span import span_ms

if TYPE_CHECKING:
    from spillway.client.batch import Item
    from spillway.client.sync_client import Client
    from spillway.wire import PushResult

BATCH = 1_000
FAILURES_SHOWN = 10

Form = Literal["auto", "json", "text"]


@with_session
def push(
    session: Session,
    queue: Annotated[str, typer.Argument(help="The queue; made on first push.")],
    payload: Annotated[
        list[str] | None, typer.Argument(help="Payloads; none: lines from --file or stdin.")
    ] = None,
    *,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", exists=True, dir_okay=False, help="Lines to push."),
    ] = None,
    form: Annotated[
        Form, typer.Option("--as", help="How to read a payload; auto: JSON, else a text.")
    ] = "auto",
    key: Annotated[
        str | None, typer.Option("--key", "-k", help="Keeps its messages in order.")
    ] = None,
    partition: Annotated[str | None, typer.Option(help="The partition, instead of a key.")] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", help="NAME=VALUE; repeatable.")
    ] = None,
    transaction_id: Annotated[
        str | None, typer.Option(help="For one payload: makes a repetition a duplicate.")
    ] = None,
    priority: Annotated[int, typer.Option(min=1, max=4, help="1 goes first.")] = 2,
    delay: Annotated[str | None, typer.Option(help="Not before: 500ms, 5s, 2m, 1h, 1d.")] = None,
    ttl: Annotated[str | None, typer.Option(help="Not after: 500ms, 5s, 2m, 1h, 1d.")] = None,
    trace_id: Annotated[str | None, typer.Option(help="Travels with the message.")] = None,
) -> None:
    """Push messages; without payloads each line of --file or stdin is one.

    With --json: a JSON line for each result. Exit code 1 if a message failed.
    """
    from spillway.client.batch import Item  # noqa: PLC0415

    if transaction_id is not None and len(payload or ()) != 1:
        raise typer.BadParameter("--transaction-id names one message: give one payload")
    options: dict[str, Any] = {
        "key": key,
        "partition": partition,
        "headers": _headers(header),
        "transaction_id": transaction_id,
        "priority": priority,
        "delay_ms": span_ms(delay),
        "ttl_ms": span_ms(ttl),
        "trace_id": trace_id,
    }
    with session.client() as client, _lines(payload, file) as lines, polite() as stop:
        items = (Item(queue, _payload(line, form), **options) for line in lines)
        count = _push_all(client, items, stop_asked=stop.is_set, as_json=session.json_)
        stopped = stop.is_set()
    _conclude(count, queue, stopped=stopped)


def _push_all(
    client: "Client",
    items: "Iterator[Item]",
    *,
    stop_asked: Callable[[], bool],
    as_json: bool,
) -> Counter[str]:
    count: Counter[str] = Counter()
    while not stop_asked():
        batch = list(islice(items, BATCH))
        if not batch:
            break
        results = client.push_many(batch, raise_on_failure=False)
        _show(results, count, as_json=as_json)
    return count


def _show(results: "list[PushResult]", count: Counter[str], *, as_json: bool) -> None:
    for result in results:
        if result.error is not None and count["failed"] < FAILURES_SHOWN:
            say(f"#{sum(count.values())}: {result.error.message} [{result.error.code}]")
        result.index = sum(count.values())
        count[result.status] += 1
    if as_json:
        print_json_lines(results)


def _conclude(count: Counter[str], queue: str, *, stopped: bool) -> None:
    parts = [
        f"{count[status]} {status}" for status in ("stored", "duplicate", "buffered", "failed")
    ]
    told = ", ".join(part for part in parts if not part.startswith("0 ")) or "nothing to push"
    say(f"{queue}: {told}")
    if stopped:
        raise typer.Exit(INTERRUPTED)
    if count["failed"]:
        raise typer.Exit(FAILED)


# ---------------------------------------------------------------- reading


def _headers(given: list[str] | None) -> dict[str, str] | None:
    pairs = [text.partition("=") for text in given or ()]
    if any(not separator for _, separator, _ in pairs):
        raise typer.BadParameter("a header is NAME=VALUE")
    return {name: value for name, _, value in pairs} or None


def _payload(text: str, form: Form) -> Any:  # noqa: ANN401 (any JSON value)
    if form == "text":
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        if form == "json":
            raise typer.BadParameter(f"not JSON: {text[:80]!r} ({error})") from None
        return text


@contextmanager
def _lines(payload: list[str] | None, file: Path | None) -> Iterator[Iterable[str]]:
    if payload:
        yield payload
    elif file is not None:
        with file.open("rb") as source:
            yield _watched(source, file.stat().st_size, file.name)
    else:
        if sys.stdin.isatty():
            say("reading messages from the terminal, one a line; Ctrl-D ends")
        yield (line for line in _stripped(sys.stdin.buffer) if line)


def _stripped(source: BinaryIO) -> Iterator[str]:
    return (line.rstrip(b"\r\n").decode() for line in source)


def _watched(source: BinaryIO, size: int, name: str) -> Iterator[str]:
    """The lines of a file, with a progress bar on stderr when somebody looks."""
    if not sys.stderr.isatty():
        yield from (line for line in _stripped(source) if line)
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import wrap_file  # noqa: PLC0415

    with wrap_file(source, size, description=name, console=Console(stderr=True)) as watched:
        yield from (line for line in _stripped(watched) if line)
