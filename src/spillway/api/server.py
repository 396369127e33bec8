"""The ASGI callable, and uvicorn around it."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import uvicorn

from spillway.api.asgi import ASGIApp, ASGIReceive, ASGISend, Scope
from spillway.api.attendance import ClientGoneError
from spillway.api.call import Call
from spillway.api.identity import identify
from spillway.api.limits import Limits
from spillway.api.listener import BACKLOG, port_of
from spillway.api.native import ROUTES
from spillway.api.ports import Broker
from spillway.api.protocol import BoundedProtocol
from spillway.api.response import CLOSE, Response, failure, send_response
from spillway.api.routing import Route, Router
from spillway.core.errors import UnknownOptionError

IDLE_CONNECTION_S = 75
LINGER_S = 2.0
CANCELLED_S = 1.0
IDENTIFYING = (b"authorization", b"x-spillway-org")


def make_app(broker: Broker, limits: Limits | None = None) -> ASGIApp:
    """The HTTP skin of a broker, as a bare ASGI callable."""
    bounds = limits or Limits()
    router = Router(ROUTES)

    async def app(scope: Scope, receive: ASGIReceive, send: ASGISend) -> None:
        call = Call(broker, bounds, scope, receive)
        try:
            route, call.params = router.find(scope["method"], scope["raw_path"])
            await _admit(call, route)
            response = await route.handler(call)
        except ClientGoneError:
            return
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 (the last resort)
            response = failure(error, call.reply_media, call.where)
        await _send(send, receive, response)

    return app


async def _admit(call: Call, route: Route) -> None:
    if route.query is None and call.scope["query_string"]:
        raise UnknownOptionError(f"{route.method} {route.path} takes no query parameters")
    if route.is_open:
        return
    headers = call.headers
    if call.limits.require_api_key or any(name in headers for name in IDENTIFYING):
        await identify(call)


async def _send(send: ASGISend, receive: ASGIReceive, response: Response) -> None:
    if response.headers is not CLOSE:
        await send_response(send, response)
        return
    await send_response(send, response, more=True)
    await _linger(receive)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _linger(receive: ASGIReceive) -> None:
    """Swallow for a moment what still comes.

    Closing at once would reset the connection, and the caller lose the answer while it writes.
    """
    try:
        async with asyncio.timeout(LINGER_S):
            while (await receive()).get("more_body", False):
                pass
    except TimeoutError:
        return


# ---------------------------------------------------------------- uvicorn


class _Uvicorn(uvicorn.Server):
    """uvicorn without its signal handlers: the command line owns the signals."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()


async def serve(
    app: ASGIApp,
    sockets: list[socket.socket],
    *,
    stop: asyncio.Event,
    limits: Limits | None = None,
    on_listening: Callable[[int], None] = lambda _: None,
    grace_s: int = 10,
) -> None:
    """Serve on `listener.listen`'s sockets until `stop`; requests may finish for `grace_s`."""
    server = _Uvicorn(_config(app, limits or Limits(), grace_s))
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(server.serve(sockets))
        group.create_task(_announce(server, port_of(sockets), on_listening))
        stopping = group.create_task(_stop(server, stop))
        await serving
        stopping.cancel()
    await _let_cancelled_answer(server)


async def _announce(server: _Uvicorn, port: int, on_listening: Callable[[int], None]) -> None:
    await server.listening.wait()
    on_listening(port)


async def _stop(server: _Uvicorn, stop: asyncio.Event) -> None:
    await stop.wait()
    server.should_exit = True


async def _let_cancelled_answer(server: _Uvicorn) -> None:
    tasks = list(server.server_state.tasks)
    if tasks:
        await asyncio.wait(tasks, timeout=CANCELLED_S)


def _config(app: ASGIApp, limits: Limits, grace_s: int) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=partial(BoundedProtocol, limits=limits),  # type: ignore[arg-type]  # it is only called
        ws="none",
        loop="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=IDLE_CONNECTION_S,
        timeout_graceful_shutdown=grace_s,
    )
