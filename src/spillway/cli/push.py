"""`spillway push`: messages from arguments, a file or stdin."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from spillway.cli.hints import hint_of
from spillway.cli.interrupt import polite
from spillway.cli.lines import LineReader, opened
from spillway.cli.outcome import FAILED, INTERRUPTED, say
from spillway.cli.output import print_json_lines
from spillway.cli.session import Session, with_session
from spillway.cli.span import span_ms

if TYPE_CHECKING:
    from spillway.client.pushed import Pushed
    from spillway.wire import ErrorDetail

BATCH = 1_000
FAILURES_SHOWN = 10
UNWRITTEN = "buffered and not on disk yet"
LOOKS_LIKE_JSON = ("{", "[", '"')

Form = Literal["auto", "json", "text"]


@with_session
def push(
    session: Session,
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The queue; made on first push.")],
    payload: Annotated[
        list[str] | None,
        typer.Argument(metavar="PAYLOAD", help="Payloads; none: lines from --file or stdin."),
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
        str | None,
        typer.Option("--key", "-k", help="Chooses the partition, always the same one."),
    ] = None,
    partition: Annotated[str | None, typer.Option(help="The partition, instead of a key.")] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", help="NAME=VALUE; repeatable.")
    ] = None,
    transaction_id: Annotated[
        str | None, typer.Option(help="For one payload: makes a repetition a duplicate.")
    ] = None,
    priority: Annotated[int, typer.Option(min=1, max=4, help="Only 2 is taken for now.")] = 2,
    delay: Annotated[str | None, typer.Option(help="Not before: 500ms, 5s, 2m, 1h, 1d.")] = None,
    ttl: Annotated[str | None, typer.Option(help="Not after: 500ms, 5s, 2m, 1h, 1d.")] = None,
    trace_id: Annotated[str | None, typer.Option(help="Travels with the message.")] = None,
    qos: Annotated[
        int, typer.Option(min=0, max=1, help="0: answered before it is on disk; a kill loses it.")
    ] = 1,
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
    level: Literal[0, 1] = 1 if qos else 0
    pushing = _Pushing(queue, form, as_json=session.json_)
    with session.client() as client, polite() as stop:
        with pushing.told(), _batches(payload, file, stop.is_set) as batches:
            for batch in batches:
                items = [Item(queue, pushing.payload(text), **options) for text in batch]
                pushing.take(client.push_many(items, qos=level, raise_on_failure=False))
        stopped = stop.is_set()
    if stopped:
        raise typer.Exit(INTERRUPTED)
    if pushing.count["failed"]:
        raise typer.Exit(FAILED)


class _Pushing:
    """What was pushed so far, and what is to be said about it."""

    def __init__(self, queue: str, form: Form, *, as_json: bool) -> None:
        self._queue = queue
        self._form = form
        self._as_json = as_json
        self._no_json_count = 0
        self._hints: set[str] = set()
        self.count: Counter[str] = Counter()

    def payload(self, text: str) -> Any:  # noqa: ANN401 (any JSON value)
        """JSON goes as it was written: no digit of a number is lost on the way."""
        import msgspec  # noqa: PLC0415

        if self._form == "text":
            return text
        try:
            msgspec.json.decode(text)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            return self._no_json(text, str(error))
        return msgspec.Raw(text.encode())

    def _no_json(self, text: str, why: str) -> str:
        if self._form == "json":
            raise typer.BadParameter(f"not JSON: {text[:80]!r} ({why})") from None
        if text.lstrip()[:1] not in LOOKS_LIKE_JSON:
            return text
        self._no_json_count += 1
        if self._no_json_count == 1:
            say(f"pushed as a text, for it is not JSON: {text[:80]!r} ({why})")
            say("  hint: --as json refuses such payloads, --as text says that they are meant so")
        return text

    def take(self, results: "list[Pushed]") -> None:
        for result in results:
            result.index = sum(self.count.values())
            if result.error is not None and self.count["failed"] < FAILURES_SHOWN:
                self._say_failure(result.index, result.error)
            self.count[result.status if result.durable else UNWRITTEN] += 1
        if self._as_json:
            print_json_lines(results)

    def _say_failure(self, index: int, detail: "ErrorDetail") -> None:
        from spillway.client.errors import error_of  # noqa: PLC0415

        say(f"#{index}: {detail.message} [{detail.code}]")
        hint = hint_of(error_of(detail))
        if hint not in self._hints:
            self._hints.add(hint)
            say(f"  hint: {hint}")

    @contextmanager
    def told(self) -> Iterator[None]:
        """Whatever ends it, what was pushed until then is told."""
        try:
            yield
        except BaseException:
            if self.count:
                self._tell()
            raise
        self._tell()

    def _tell(self) -> None:
        kinds = ("stored", "duplicate", "buffered", UNWRITTEN, "failed")
        parts = [f"{self.count[kind]} {kind}" for kind in kinds if self.count[kind]]
        say(f"{self._queue}: {', '.join(parts) or 'nothing to push'}")
        if self._no_json_count > 1:
            say(f"{self._no_json_count} of them as texts, for they are not JSON")


# ---------------------------------------------------------------- reading


def _headers(given: list[str] | None) -> dict[str, str] | None:
    pairs = [text.partition("=") for text in given or ()]
    if any(not separator for _, separator, _ in pairs):
        raise typer.BadParameter("a header is NAME=VALUE")
    return {name: value for name, _, value in pairs} or None


@contextmanager
def _batches(
    payload: list[str] | None, file: Path | None, stop_asked: Callable[[], bool]
) -> Iterator[Iterator[list[str]]]:
    if payload:
        yield iter([payload])
    elif file is not None:
        with opened(file) as source, _progress(file) as on_bytes:
            yield _read(LineReader(source, stop_asked=stop_asked, on_bytes=on_bytes))
    else:
        if sys.stdin.isatty():
            say("reading messages from the terminal, one a line; Ctrl-D ends")
        yield _read(LineReader(sys.stdin.buffer, stop_asked=stop_asked))


def _read(reader: LineReader) -> Iterator[list[str]]:
    return iter(lambda: reader.batch(BATCH), [])


@contextmanager
def _progress(file: Path) -> Iterator[Callable[[int], object]]:
    """A bar on stderr when somebody looks."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task(file.name, total=file.stat().st_size)
        yield lambda count: progress.update(task, advance=count)
