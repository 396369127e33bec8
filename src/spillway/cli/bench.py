"""`spillway bench`: measure a broker, and plain PostgreSQL beside it."""

import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from spillway.cli.outcome import say
from spillway.cli.session import Session as Connection
from spillway.cli.signature import Options, expanded

if TYPE_CHECKING:
    from spillway.bench.report import Report
    from spillway.bench.session import Session
    from spillway.bench.workload import Workload

app = typer.Typer(
    name="bench",
    help="Measure push, lease, ack, latency, recovery, WAL, memory and the spool. "
    "Starts a broker in a scratch folder and removes it, or measures one with --url.",
    no_args_is_help=True,
)

Batch = Annotated[int | None, typer.Option(min=1, help="Messages a request.")]
Connections = Annotated[int | None, typer.Option(min=1, help="Connections that push.")]
Consumers = Annotated[int | None, typer.Option(min=1, help="Connections that lease and ack.")]
Messages = Annotated[int | None, typer.Option(min=1, help="How many messages.")]
Seconds = Annotated[float | None, typer.Option(min=0.1, help="How long, instead of how many.")]
Rate = Annotated[float | None, typer.Option(help="Messages a second, by schedule.")]
ControlRows = Annotated[
    int | None, typer.Option(min=1, help="Rows of the control log that must be read again.")
]


LiveRate = Annotated[
    float | None, typer.Option(min=0, help="Live pushes a second beside the replay; 0: none.")
]
IntoBacklog = Annotated[
    bool, typer.Option("--into-backlog", help="Live pushes to the lane that is being replayed.")
]
How = Annotated[
    Literal["pause", "stop", "kill"] | None,
    typer.Option(help="What happens to PostgreSQL: frozen, stopped in order, or kill -9."),
]


def _option(kind: Any, default: Any, text: str, *names: str, **more: Any) -> tuple[Any, Any]:  # noqa: ANN401
    return Annotated[kind, typer.Option(*names, help=text, **more)], default


SHAPE: Options = {
    "payload_bytes": _option(int | None, None, "Bytes of JSON a message.", min=1),
    "partitions": _option(int | None, None, "Partitions of the queue.", min=1),
    "transaction_ids": _option(bool, True, "Push with transaction ids, as the client does."),
}
OWN: Options = {
    "scratch": _option(Path | None, None, "Parent of the scratch folder (the system's)."),
    "setting": _option(
        list[str] | None, None, "For the broker's environment.", metavar="NAME=VALUE"
    ),
    "repeat": _option(int, 1, "Runs; the median is reported.", min=1, max=100),
    "json_": _option(bool, False, "One JSON object a scenario on stdout.", "--json"),
}
# Not from SPILLWAY_URL: to load a broker that others use must be said each time.
RUNNING: Options = {
    "url": _option(str | None, None, "Measure this running broker instead."),
    "database_url": _option(str | None, None, "With --url: its PostgreSQL, for the baseline."),
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the shared options say: where and how to measure, and the shape of the messages."""

    session: "Session"
    shape: dict[str, Any]
    json: bool


def _with(*sets: Options) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace a command's `wanted` by sets of shared options."""
    options = {name: option for chosen in sets for name, option in chosen.items()}
    return lambda command: expanded(command, "wanted", options, _wanted)


def _wanted(ctx: typer.Context, given: dict[str, Any]) -> Wanted:
    root = ctx.find_root().obj
    return Wanted(
        session=_session(given),
        shape={name: given[name] for name in SHAPE if name in given},
        json=given["json_"] or (isinstance(root, Connection) and root.json_),
    )


def _session(given: dict[str, Any]) -> "Session":
    from spillway.bench.session import Session  # noqa: PLC0415 (help stays fast)

    url, database_url = given.get("url"), given.get("database_url")
    if database_url and not url:
        raise typer.BadParameter("--database-url goes with --url")
    if given["setting"] and url:
        raise typer.BadParameter("--setting is for a broker that is started here")
    return Session(
        say=say,
        url=url,
        database_url=database_url,
        scratch=given["scratch"],
        repeat=given["repeat"],
        settings=dict(_name_and_value(pair) for pair in given["setting"] or ()),
    )


def _name_and_value(pair: str) -> tuple[str, str]:
    name, equals, value = pair.partition("=")
    if not (name and equals):
        raise typer.BadParameter(f"--setting wants NAME=VALUE, not {pair!r}")
    return name, value


@app.command()
@_with(SHAPE, OWN, RUNNING)
def produce(
    wanted: Wanted,
    *,
    batch: Batch = None,
    connections: Connections = None,
    messages: Messages = None,
    seconds: Seconds = None,
) -> None:
    """Push batches as fast as they are answered."""
    _measure(
        "produce", wanted, batch=batch, connections=connections, messages=messages, seconds=seconds
    )


@app.command()
@_with(SHAPE, OWN, RUNNING)
def single(
    wanted: Wanted,
    *,
    connections: Connections = None,
    messages: Messages = None,
    seconds: Seconds = None,
) -> None:
    """Push one message a request over many connections."""
    _measure("single", wanted, connections=connections, messages=messages, seconds=seconds)


@app.command()
@_with(SHAPE, OWN, RUNNING)
def drain(
    wanted: Wanted,
    *,
    batch: Batch = None,
    consumers: Consumers = None,
    messages: Messages = None,
) -> None:
    """Lease and ack a full queue until it is empty."""
    _measure("drain", wanted, batch=batch, consumers=consumers, messages=messages)


@app.command()
@_with(SHAPE, OWN, RUNNING)
def roundtrip(
    wanted: Wanted,
    *,
    batch: Batch = None,
    connections: Connections = None,
    consumers: Consumers = None,
    messages: Messages = None,
    seconds: Seconds = None,
) -> None:
    """Push, lease and ack at the same time."""
    _measure(
        "roundtrip",
        wanted,
        batch=batch,
        connections=connections,
        consumers=consumers,
        messages=messages,
        seconds=seconds,
    )


@app.command()
@_with(SHAPE, OWN, RUNNING)
def latency(
    wanted: Wanted,
    *,
    rate: Rate = None,
    batch: Batch = None,
    connections: Connections = None,
    consumers: Consumers = None,
    messages: Messages = None,
    seconds: Seconds = None,
) -> None:
    """Push by schedule; latencies count from the intended send time."""
    _measure(
        "latency",
        wanted,
        rate=rate,
        batch=batch,
        connections=connections,
        consumers=consumers,
        messages=messages,
        seconds=seconds,
    )


@app.command()
@_with(SHAPE, OWN, RUNNING)
def wal(
    wanted: Wanted,
    *,
    batch: Batch = None,
    connections: Connections = None,
    consumers: Consumers = None,
    messages: Messages = None,
) -> None:
    """Count WAL and dead tuples from a message's push to its pruning."""
    _measure(
        "wal", wanted, batch=batch, connections=connections, consumers=consumers, messages=messages
    )


@app.command()
@_with(SHAPE, OWN)
def recovery(
    wanted: Wanted,
    *,
    messages: Messages = None,
    control_rows: ControlRows = None,
) -> None:
    """Kill the broker with a full queue; time its start to the first lease."""
    _measure("recovery", wanted, messages=messages, control_rows=control_rows)


@app.command()
@_with(SHAPE, OWN, RUNNING)
def memory(
    wanted: Wanted,
    *,
    messages: Messages = None,
) -> None:
    """Fill a queue and read the broker's memory."""
    _measure("memory", wanted, messages=messages)


@app.command()
@_with(SHAPE, OWN, RUNNING)
def spool(
    wanted: Wanted,
    *,
    batch: Batch = None,
    connections: Connections = None,
    messages: Messages = None,
    seconds: Seconds = None,
) -> None:
    """Push into the files of the spool, as if PostgreSQL were away."""
    _measure(
        "spool", wanted, batch=batch, connections=connections, messages=messages, seconds=seconds
    )


@app.command()
@_with(SHAPE, OWN, RUNNING)
def replay(
    wanted: Wanted,
    *,
    messages: Messages = None,
    connections: Connections = None,
    rate: LiveRate = None,
    into_backlog: IntoBacklog = False,
) -> None:
    """Bring messages from files into the log, alone and beside live pushes."""
    _measure(
        "replay",
        wanted,
        messages=messages,
        connections=connections,
        rate=rate,
        into_backlog=into_backlog,
    )


@app.command()
@_with(SHAPE, OWN)
def outage(
    wanted: Wanted,
    *,
    how: How = None,
    seconds: Seconds = None,
    rate: Rate = None,
    batch: Batch = None,
    connections: Connections = None,
) -> None:
    """Take PostgreSQL away under load and bring it back."""
    _measure(
        "outage",
        wanted,
        how=how,
        seconds=seconds,
        rate=rate,
        batch=batch,
        connections=connections,
    )


@app.command(name="all")
@_with(OWN)
def all_of_them(wanted: Wanted) -> None:
    """Run the whole table of scenarios, each with a broker of its own."""
    from spillway.bench.workload import TABLE  # noqa: PLC0415 (help stays fast)

    _report(wanted, TABLE)


def _measure(scenario: str, wanted: Wanted, **given: Any) -> None:
    from spillway.bench.workload import workload  # noqa: PLC0415 (help stays fast)

    _report(wanted, [workload(scenario, **given, **wanted.shape)])


def _report(wanted: Wanted, workloads: "Sequence[Workload]") -> None:
    """JSON as soon as a scenario is through, the table at the end."""
    from spillway.bench.report import as_json  # noqa: PLC0415 (help stays fast)

    _stop_in_order_on_sigterm()
    reports = []
    for workload in workloads:
        reports.append(wanted.session.measure(workload))
        if wanted.json:
            print(as_json(reports[-1]), flush=True)
    if not wanted.json:
        _draw(reports)


def _draw(reports: "list[Report]") -> None:
    from rich.console import Console  # noqa: PLC0415 (help stays fast)

    from spillway.bench.report import table  # noqa: PLC0415 (help stays fast)

    Console(soft_wrap=not sys.stdout.isatty()).print(table(reports))


def _stop_in_order_on_sigterm() -> None:
    """So that the broker and the scratch folder go, as with Ctrl-C."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
