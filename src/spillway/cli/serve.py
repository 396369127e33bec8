"""`spillway serve`: run a broker."""

import asyncio
import gc
import signal
import socket
import sys
from collections.abc import Callable
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spillway.cli.hints import hint_of
from spillway.cli.outcome import say
from spillway.core.errors import DatabaseUnavailableError

if TYPE_CHECKING:
    from spillway.broker.service import Broker
    from spillway.settings import Settings

COLLECT_EVERY = 50_000
"""Allocations between two looks of the garbage collector: messages are no cycles, looking costs."""


def serve(
    *,
    data: Annotated[
        Path | None, typer.Option(help="Folder of the embedded PostgreSQL. [env: SPILLWAY_DATA]")
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on. [env: SPILLWAY_HOST]")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port; 0 takes a free one. [env: SPILLWAY_PORT]")
    ] = None,
    database_url: Annotated[
        str | None,
        typer.Option(help="PostgreSQL 14 or newer to use. [env: SPILLWAY_DATABASE_URL]"),
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(help="debug, info, warning, error. [env: SPILLWAY_LOG_LEVEL]")
    ] = None,
) -> None:
    """Run a broker: with no option at all, on an embedded PostgreSQL in ./spillway-data.

    The first SIGTERM or Ctrl-C drains: no new requests, those under way finish. The second stops.
    """
    import uvloop  # noqa: PLC0415 (`spillway --help` stays fast)

    from spillway.settings import load  # noqa: PLC0415
    from spillway.telemetry import set_up_logs  # noqa: PLC0415

    settings = load(data=data, host=host, port=port, database_url=database_url, log_level=log_level)
    set_up_logs(settings.log_level)
    gc.set_threshold(COLLECT_EVERY, 20, 50)
    try:
        uvloop.run(_serve(settings))
    except asyncio.CancelledError:
        say("stopped without draining; nothing that was answered is lost")


async def _serve(settings: "Settings") -> None:
    from spillway import wiring  # noqa: PLC0415
    from spillway.api.limits import Limits  # noqa: PLC0415
    from spillway.api.listener import listen  # noqa: PLC0415
    from spillway.api.server import make_app  # noqa: PLC0415
    from spillway.api.server import serve as serve_http  # noqa: PLC0415
    from spillway.broker.service import START_PATIENCE_S  # noqa: PLC0415

    stop = asyncio.Event()
    _on_signals(stop)
    sockets = listen(settings.host, settings.port)  # a taken port is told before anything starts
    if settings.database_url is None and sys.stderr.isatty():
        say(f"starting PostgreSQL in {settings.data} …")
    async with wiring.embedded_postgres(settings) as keeper:
        url = wiring.database_url(settings, keeper)
        broker = wiring.make_broker(url, settings, keeper=keeper)
        limits = Limits(
            settings.request_bytes_max,
            settings.items_max,
            settings.require_api_key,
            settings.body_timeout_s,
            settings.connections_max,
        )

        def listening(port: int) -> None:
            broker.ownership.address = settings.address or reachable(settings.host, port)
            _tell_start(settings, broker, f"http://{settings.host}:{port}")

        try:
            await broker.start(0.0 if keeper and keeper.is_late else START_PATIENCE_S)
            stopping = asyncio.get_running_loop().create_task(_stop_waits(stop, broker.drain))
            await serve_http(
                make_app(broker, limits),
                sockets,
                stop=stop,
                limits=limits,
                on_listening=listening,
                grace_s=ceil(settings.drain_timeout_s),
            )
            stopping.cancel()
        except asyncio.CancelledError:
            broker.hurry()
            raise
        finally:
            await _end(broker)


async def _end(broker: "Broker") -> None:
    """Stop in order; who is interrupted there, too, stops at once, and still ends its files."""
    try:
        await broker.stop()
    except asyncio.CancelledError:
        broker.hurry()
        await broker.stop()
        raise
    finally:
        await broker.database.close()


def reachable(host: str, port: int) -> str:
    """Where others reach whoever listens there: no other machine is at an address for all."""
    if host in {"0.0.0.0", "::", ""}:  # noqa: S104 (listening on it is the setting's business)
        host = socket.gethostname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _tell_start(settings: "Settings", broker: "Broker", url: str) -> None:
    ownership = broker.ownership
    say(f"listening on {url}")
    if not ownership.database_answers:
        error = ownership.trouble or DatabaseUnavailableError()
        why = " ".join(str(error).split()).rstrip(".")
        say(f"warning: {why}; pushes go to files until it does")
        say(f"  hint: {hint_of(error)}")
    elif ownership.stands_by:
        say("standby: another broker holds the shards; it takes over when that one ends")
    if settings.host not in {"127.0.0.1", "localhost", "::1"}:
        say(
            "warning: listening beyond this machine"
            + ("" if settings.require_api_key else " without API keys")
        )


async def _stop_waits(stop: asyncio.Event, drain: Callable[[], None]) -> None:
    await stop.wait()
    drain()


def _on_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()

    def on_signal() -> None:
        if stop.is_set():
            say("stopping now")
            if task is not None:
                task.cancel()
            return
        say("draining: requests under way finish; once more to stop at once")
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
