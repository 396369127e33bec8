"""Is the caller still there? A long request is cancelled when its caller goes away."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from spillway.api.asgi import ASGIReceive

PATIENCE_S = 0.02


class ClientGoneError(Exception):
    """The caller went away: there is nobody left to answer."""


class Attendance:
    """Watches for the disconnect while the body of the `with` runs, and cancels it then.

    A short call never pays for a watcher: it is made when the call has taken `PATIENCE_S`. The body
    of the request must have been read, as a watcher swallows what comes.
    """

    __slots__ = ("_is_hung_up", "_left", "_receive", "_task", "_timer", "_watcher")

    def __init__(self, receive: ASGIReceive, is_hung_up: Callable[[], bool]) -> None:
        self._receive = receive
        self._is_hung_up = is_hung_up
        self._left = False
        self._watcher: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._timer = loop.call_later(PATIENCE_S, self._watch, loop)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        if self._left and self._task is not None:
            others = self._task.uncancel()
            if kind is asyncio.CancelledError and others == 0:
                raise ClientGoneError from None

    def has_left(self) -> bool:
        """Look without waiting: one step of `receive` has the news, or would block."""
        if self._left or self._is_hung_up():
            return True
        step = self._receive().__await__()
        try:
            next(step)
        except StopIteration as news:
            return bool(news.value["type"] == "http.disconnect")
        step.close()
        return False

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        self._watcher = loop.create_task(self._wait_for_disconnect())

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._left = True
        if self._task is not None:
            self._task.cancel()
