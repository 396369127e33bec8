"""`spillway bench`: measure a broker, and plain PostgreSQL beside it."""

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from spillway.bench.report import Report
    from spillway.bench.session import Session
    from spillway.bench.workload import Workload

app = typer.Typer(
    name="bench",
    help="Measure push, lease, ack, latency, recovery, WAL and memory. "
    "Starts a broker in a scratch folder and removes it, or measures one with --url.",
    no_args_is_help=True,
)

Json = Annotated[bool, typer.Option("--json", help="One JSON object a scenario on stdout.")]
# Not from SPILLWAY_URL: to load a broker that others use must be said each time.
Url = Annotated[str | None, typer.Option(help="Measure this running broker instead.")]
DatabaseUrl = Annotated[
    str | None, typer.Option(help="With --url: the broker's PostgreSQL, for the baseline.")
]
Scratch = Annotated[
    Path | None, typer.Option(help="Parent of the scratch folder. [default: the system's]")
]
Repeat = Annotated[int, typer.Option(min=1, max=100, help="Runs; the median is reported.")]
BrokerSetting = Annotated[
    list[str] | None,
    typer.Option("--setting", metavar="NAME=VALUE", help="Environment of the started broker."),
]
Batch = Annotated[int | None, typer.Option(min=1, help="Messages a request.")]
Connections = Annotated[int | None, typer.Option(min=1, help="Connections that push.")]
Consumers = Annotated[int | None, typer.Option(min=1, help="Connections that lease and ack.")]
PayloadBytes = Annotated[int | None, typer.Option(min=1, help="Bytes of JSON a message.")]
Messages = Annotated[int | None, typer.Option(min=1, help="How many messages.")]
Seconds = Annotated[float | None, typer.Option(help="How long, instead of how many.")]
Partitions = Annotated[int | None, typer.Option(min=1, help="Partitions of the queue.")]
TransactionIds = Annotated[
    bool, typer.Option(help="Push with transaction ids, as the client does.")
]
Rate = Annotated[float | None, typer.Option(help="Messages a second, by schedule.")]
ControlRows = Annotated[int | None, typer.Option(min=1, help="Rows of the control log to fold.")]


@app.command()
def produce(
    *,
    batch: Batch = None,
    connections: Connections = None,
    payload_bytes: PayloadBytes = None,
    messages: Messages = None,
    seconds: Seconds = None,
    partitions: Partitions = None,
    transaction_ids: TransactionIds = True,
    url: Url = None,
    database_url: DatabaseUrl = None,
    scratch: Scratch = None,
    setting: BrokerSetting = None,
    repeat: Repeat = 1,
    json: Json = False,
) -> None:
    """Push batches as fast as they are answered."""
    _measure("produce", locals())


@app.command()
def single(
    *,
    connections: Connections = None,
    payload_bytes: PayloadBytes = None,
    messages: Messages = None,
    seconds: Seconds = None,
    partitions: Partitions = None,
    transaction_ids: TransactionIds = True,
    url: Url = None,
    database_url: DatabaseUrl = None,
    scratch: Scratch = None,
    setting: BrokerSetting = None,
    repeat: Repeat = 1,
    json: Json = False,
) -> None:
    """Push one message a request over many connections."""
    _measure("single", locals())


@app.command()
def drain(
    *,
    batch: Batch = None,
    consumers: Consumers = None,
    payload_bytes: PayloadBytes = None,
    messages: Messages = None,
    partitions: Partitions = None,
    transaction_ids: TransactionIds = True,
    url: Url = None,
    database_url: DatabaseUrl = None,
    scratch: Scratch = None,
    setting: BrokerSetting = None,
    repeat: Repeat = 1,
    json: Json = False,
) -> None:
    """Lease and ack a full queue until it is empty."""
    _measure("drain", locals())


@app.command()
def roundtrip(
    *,
    batch: Batch = None,
    connections: Connections = None,
    consumers: Consumers = None,
    payload_bytes: PayloadBytes = None,
    messages: Messages = None,
    seconds: Seconds = None,
    partitions: Partitions = None,
    transaction_ids: TransactionIds = True,
    url: Url = None,
    database_url: DatabaseUrl = None,
    scratch: Scratch = None,
    setting: BrokerSetting = None,
    repeat: Repeat = 1,
    json: Json = False,
) -> None:
    """Push, lease and ack at the same time."""
    _measure("roundtrip", locals())


@app.command()
def latency(
    *,
    rate: Rate = None,
    batch: Batch = None,
    connections: Connections = None,
    consumers: Consumers = None,
    payload_bytes: PayloadBytes = None,
    messages: Messages = None,
    seconds: Seconds = None,
    partitions: Partitions = None,
    transaction_ids: TransactionIds = True,
    url: Url = None,
    database_url: DatabaseUrl = None,
    scratch: Scratch = None,
    setting: BrokerSetting = None,
    repeat: Repeat = 1,
    json: Json = False,
) -> None:
    """Push by schedule; latencies count from the intended send time."""
    _measure("latency", locals())


@app.command()
def wal(
    *,
    batch: Batch = None,
    connections: Connections = None,
    consumers: Consumers = None,
    payload_bytes: PayloadBytes = None,
    messages: Messages = None,
    partitions: Partitions = None,
    transaction_ids: TransactionIds = True,
    url: Url = None,
    database_url: DatabaseUrl = None,
    scratch: Scratch = None,
    setting: BrokerSetting = None,
    repeat: Repeat = 1,
    json: Json = False,
) -> None:
    """Count WAL and dead tuples from a message's push to its pruning."""
    _measure("wal", locals())


@app.command()
def recovery(
    *,
    messages: Messages = None,
    control_rows: ControlRows = None,
    payload_bytes: PayloadBytes = None,
    partitions: Partitions = None,
    scratch: Scratch = None,
    setting: BrokerSetting = None,
    repeat: Repeat = 1,
    json: Json = False,
) -> None:
    """Kill the broker with a full queue; time its start to the first lease."""
    _measure("recovery", locals())


@app.command()
def memory(
    *,
    messages: Messages = None,
    payload_bytes: PayloadBytes = None,
    partitions: Partitions = None,
    transaction_ids: TransactionIds = True,
    url: Url = None,
    database_url: DatabaseUrl = None,
    scratch: Scratch = None,
    setting: BrokerSetting = None,
    repeat: Repeat = 1,
    json: Json = False,
) -> None:
    """Fill a queue and read the broker's memory."""
    _measure("memory", locals())


@app.command(name="all")
def all_of_them(
    *,
    scratch: Scratch = None,
    setting: BrokerSetting = None,
    repeat: Repeat = 1,
    json: Json = False,
) -> None:
    """Run the whole table of scenarios, each with a broker of its own."""
    from spillway.bench.workload import TABLE  # noqa: PLC0415 (help stays fast)

    _report(_session(scratch=scratch, setting=setting, repeat=repeat), TABLE, as_json=json)


_SESSION_OPTIONS = ("url", "database_url", "scratch", "setting", "repeat")


def _measure(scenario: str, options: dict[str, Any]) -> None:
    from spillway.bench.errors import BenchError  # noqa: PLC0415 (help stays fast)
    from spillway.bench.workload import workload  # noqa: PLC0415 (help stays fast)

    as_json = options.pop("json")
    session = _session(**{name: options.pop(name, None) for name in _SESSION_OPTIONS})
    try:
        work = workload(scenario, **options)
    except BenchError as error:
        raise typer.BadParameter(str(error)) from error
    _report(session, [work], as_json=as_json)


def _session(
    *,
    repeat: int,
    scratch: Path | None,
    setting: list[str] | None,
    url: str | None = None,
    database_url: str | None = None,
) -> "Session":
    from spillway.bench.session import Session  # noqa: PLC0415 (help stays fast)

    if database_url and not url:
        raise typer.BadParameter("--database-url goes with --url")
    if setting and url:
        raise typer.BadParameter("--setting is for a broker that is started here")
    return Session(
        say=_say,
        url=url,
        database_url=database_url,
        scratch=scratch,
        repeat=repeat,
        settings=dict(_name_and_value(pair) for pair in setting or ()),
    )


def _report(session: "Session", workloads: "list[Workload]", *, as_json: bool) -> None:
    """JSON as soon as a scenario is through, the table at the end."""
    from spillway.bench.report import as_json as encoded  # noqa: PLC0415 (help stays fast)

    _stop_in_order_on_sigterm()
    reports = []
    for workload in workloads:
        reports.append(_one(session, workload))
        if as_json:
            print(encoded(reports[-1]), flush=True)
    if not as_json:
        _draw(reports)


def _one(session: "Session", workload: "Workload") -> "Report":
    from spillway.bench.errors import BenchError  # noqa: PLC0415 (help stays fast)

    try:
        return session.measure(workload)
    except BenchError as error:
        typer.echo(f"bench {workload.scenario}: {error}", err=True)
        raise typer.Exit(1) from error


def _draw(reports: "list[Report]") -> None:
    from rich.console import Console  # noqa: PLC0415 (help stays fast)

    from spillway.bench.report import table  # noqa: PLC0415 (help stays fast)

    Console(soft_wrap=not sys.stdout.isatty()).print(table(reports))


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _name_and_value(pair: str) -> tuple[str, str]:
    name, equals, value = pair.partition("=")
    if not (name and equals):
        raise typer.BadParameter(f"--setting wants NAME=VALUE, not {pair!r}")
    return name, value


def _stop_in_order_on_sigterm() -> None:
    """So that the broker and the scratch folder go, as with Ctrl-C."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
