"""`spillway top`: the queues of a broker, live in the terminal."""

import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spillway.cli.frames import Line, Look, lines
from spillway.cli.interrupt import polite
from spillway.cli.outcome import say
from spillway.cli.output import age, duration, print_json, short, shown
from spillway.cli.queue import every_queue
from spillway.cli.session import Session, with_session
from spillway.cli.spooltroubles import glance
from spillway.core.errors import SpillwayError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from spillway.client.sync_client import Client
    from spillway.wire import HealthReply

HEADINGS = (
    "queue",
    "group",
    "ready",
    "leased",
    "deferred",
    "blocked",
    "dead",
    "in/s",
    "done/s",
    "oldest",
)
NAMES = (0, 1)
KEPT = (*NAMES, HEADINGS.index("ready"))
"""Columns that stay, whatever is in them."""
NOTHING = ("0", "-")
TABLE_FRAME = 4
"""Lines of the table beside its rows."""
UNBOUNDED = 10_000

Cell = tuple[str, str]  # text, style


@with_session
def top(
    session: Session,
    interval: Annotated[float, typer.Option("--interval", "-i", min=0.1, help="Seconds.")] = 1.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print one frame (two looks, for the rates) and leave.")
    ] = False,
) -> None:
    """Watch queues and groups: counts, rates, the oldest that waits. q or Ctrl-C leaves.

    With --json: a JSON line for each queue and group of one frame.
    """
    with session.client() as client, polite("leaving") as stop:
        if once or session.json_ or not sys.stdout.isatty():
            if note := _spool_note(client.health()):
                say(note)
            before = _look(client)
            stop.wait(interval)
            _print_once(client, before, as_json=session.json_)
        else:
            _watch(client, interval, stop.is_set)


def _look(client: "Client") -> Look:
    return Look(time.monotonic(), list(every_queue(client)))


def _spool_note(health: "HealthReply") -> str | None:
    """The spool, where it is not empty."""
    words = glance(health.spool)
    return None if words is None else f"spool: {words} → spillway spool status"


def _print_once(client: "Client", before: Look, *, as_json: bool) -> None:
    frame = lines(_look(client), before)
    if as_json:
        for line in frame:
            print_json(asdict(line))
        return
    from rich.console import Console  # noqa: PLC0415

    width = None if sys.stdout.isatty() else 160
    console = Console(width=width, highlight=False)
    console.print(_table(frame, console))


def _watch(client: "Client", interval: float, stopped: Callable[[], bool]) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415

    console = Console(highlight=False)
    before: Look | None = None
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        while not stopped():
            try:
                health = client.health()
                look = _look(client) if health.database == "connected" else None
                frame = [] if look is None else lines(look, before)
                live.update(_screen(console, client.origin.url, health, frame), refresh=True)
                before = look or before
            except SpillwayError as error:
                live.update(f"{error.message}\n{error.hint}", refresh=True)
            if pressed(interval) == "q":
                return


def _screen(
    console: "Console", url: str, health: "HealthReply", frame: list[Line]
) -> "RenderableType":
    from rich.console import Group  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    style = "green" if health.status == "ok" else "bold red"
    head = (
        f"spillway {health.version}  {url}  {health.status}  "
        f"database {health.database}  shards {health.shards_owned}/{health.shards_total}  "
        f"up {duration(health.uptime_s)}"
    )
    above = [Text(head, style=style, no_wrap=True, overflow="ellipsis")]
    if note := _spool_note(health):
        above.append(Text(note, style="bold yellow", no_wrap=True, overflow="ellipsis"))
    room = max(console.height - len(above) - TABLE_FRAME - 1, 1)
    hidden = len(frame) - room
    foot = "q leaves" if hidden <= 0 else f"+ {hidden} more   q leaves"
    return Group(*above, _table(frame[:room], console), Text(foot, style="dim"))


def _table(frame: list[Line], console: "Console") -> "Table":
    """With all columns and whole numbers where there is room; else without what is all zero."""
    from rich.measure import Measurement  # noqa: PLC0415

    rows = [_cells(line) for line in frame]
    table = _columns(rows, list(range(len(HEADINGS))))
    boundless = console.options.update(width=UNBOUNDED)
    if Measurement.get(console, boundless, table).maximum <= console.width:
        return table
    rows = [_cells(line, number=short) for line in frame]
    tells = [any(row[at][0] not in NOTHING for row in rows) for at in range(len(HEADINGS))]
    return _columns(rows, [at for at, tell in enumerate(tells) if tell or at in KEPT])


def _columns(rows: list[list[Cell]], kept: list[int]) -> "Table":
    """Names give way when it is narrow, numbers never do."""
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for at in kept:
        is_name = at in NAMES
        heading = Text(HEADINGS[at], no_wrap=True, overflow="ellipsis")
        table.add_column(heading, justify="left" if is_name else "right", no_wrap=not is_name)
    for row in rows:
        cells = (row[at] for at in kept)
        table.add_row(
            *[Text(text, style=style, no_wrap=True, overflow="ellipsis") for text, style in cells]
        )
    return table


def _cells(line: Line, number: Callable[[float], str] = "{:,.0f}".format) -> list[Cell]:
    name = shown(line.queue) + (" (paused)" if line.paused else "")
    rates = [line.in_per_s, line.out_per_s]
    pushed, done = ["-" if rate is None else number(rate) for rate in rates]
    return [
        (name, "bold"),
        (shown(line.group), ""),
        (number(line.ready), ""),
        (number(line.leased), ""),
        (number(line.deferred), ""),
        (number(line.blocked), "bold red" if line.blocked else "dim"),
        (number(line.dead), "yellow" if line.dead else "dim"),
        (pushed, "cyan"),
        (done, "green"),
        (age(line.oldest_ready_at), ""),
    ]


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Single key presses, without Enter; where stdin is no terminal, a plain pause."""
    if not sys.stdin.isatty():
        yield _pause
        return
    import termios  # noqa: PLC0415
    import tty  # noqa: PLC0415

    saved: Any = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield _press
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, saved)


def _pause(seconds: float) -> str:
    time.sleep(seconds)
    return ""


def _press(seconds: float) -> str:
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return sys.stdin.read(1) if ready else ""
