"""Worker: leases, runs a handler on N messages at a time, keeps the leases, settles."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from spillway.client.message import AsyncMessage, Messages, error_text
from spillway.core.errors import DatabaseUnavailableError, SpillwayError
from spillway.wire import Consumer, Extend, Nack, SettleReply

_log = logging.getLogger("spillway.worker")

Handler = Callable[[AsyncMessage], Awaitable[None] | None]
PAUSE_S = 1.0


class WorkerClient(Protocol):
    """What a worker needs of AsyncClient."""

    async def lease(
        self,
        queue: str,
        group: str = ...,
        *,
        max: int = ...,  # noqa: A002 (the wire's word)
        wait_ms: int = ...,
        visibility_ms: int | None = ...,
        partitions: Sequence[str] | None = ...,
        consumer: Consumer | str | None = ...,
    ) -> Messages[AsyncMessage]: ...
    async def settle(
        self,
        ack: Sequence[str] = ...,
        *,
        nack: Sequence[Nack] = ...,
        extend: Sequence[Extend] = ...,
    ) -> tuple[SettleReply, Messages[AsyncMessage]]: ...


class Worker:
    """Runs `handler` for each message of a queue, `concurrency` at a time.

    A handler that returns acks its message; one that raises gives it back with the error's text,
    and the traceback goes to the logger `spillway.worker`. Plain functions run in threads. stop()
    lets the running handlers finish, up to `drain_s`.
    """

    def __init__(
        self,
        client: WorkerClient,
        queue: str,
        handler: Handler,
        *,
        group: str = "default",
        concurrency: int = 10,
        visibility_ms: int = 30_000,
        wait_ms: int = 2_000,
        drain_s: float = 30.0,
        name: str | None = None,
    ) -> None:
        self._client = client
        self._queue = queue
        self._handler = handler
        self._group = group
        self._concurrency = concurrency
        self._visibility_ms = visibility_ms
        self._wait_ms = wait_ms
        self._drain_s = drain_s
        self._consumer = None if name is None else Consumer(name=name)
        self._running: dict[asyncio.Task[None], AsyncMessage] = {}
        self._acks: list[str] = []
        self._nacks: list[Nack] = []
        self._stopping = asyncio.Event()
        self._change = asyncio.Event()

    def stop(self) -> None:
        """Lease no more; run() returns when the handlers are done."""
        self._stopping.set()
        self._change.set()

    async def run(self) -> None:
        """Work until stop(); cancelling gives the messages in hand back."""
        async with asyncio.TaskGroup() as duties:
            settling = duties.create_task(self._settle_forever())
            beating = duties.create_task(self._beat_forever())
            try:
                await self._lease_forever(duties)
                await self._drain()
            finally:
                settling.cancel()
                beating.cancel()
                self._cancel_running()
                await asyncio.shield(self._settle())

    # ------------------------------------------------------------ duties

    async def _lease_forever(self, duties: asyncio.TaskGroup) -> None:
        while not self._stopping.is_set():
            free = self._concurrency - len(self._running)
            if free == 0:
                await self._changed()
                continue
            for message in await self._lease(free):
                task = duties.create_task(self._handle(message))
                self._running[task] = message
                task.add_done_callback(self._finished)

    async def _settle_forever(self) -> None:
        while True:
            await self._settle()
            await asyncio.sleep(0.005 if self._acks or self._nacks else 0.02)

    async def _beat_forever(self) -> None:
        while True:
            await asyncio.sleep(self._visibility_ms / 3000)
            held = [
                Extend(receipt=one.receipt, visibility_ms=self._visibility_ms)
                for one in self._running.values()
            ]
            if held:
                await self._send(extend=held)

    # ------------------------------------------------------------ steps

    async def _lease(self, free: int) -> Sequence[AsyncMessage]:
        try:
            leased = await self._client.lease(
                self._queue,
                self._group,
                max=free,
                wait_ms=self._wait_ms,
                visibility_ms=self._visibility_ms,
                consumer=self._consumer,
            )
        except SpillwayError as error:
            if not error.transient:
                raise
            why = str(error)
        else:
            if leased.reason != DatabaseUnavailableError.code:
                return leased
            why = leased.reason  # an answer at once, whatever `wait_ms` says
        _log.warning("cannot lease now: %s", why)
        await asyncio.sleep(PAUSE_S)
        return ()

    async def _handle(self, message: AsyncMessage) -> None:
        try:
            if inspect.iscoroutinefunction(self._handler):
                await self._handler(message)
            else:
                await asyncio.to_thread(self._handler, message)
        except asyncio.CancelledError:
            self._give_back(message, "the worker was stopped before the handler was done")
            raise
        except Exception as error:  # noqa: BLE001 (whatever it is, it belongs to the message)
            _log.warning("the handler failed on %r", message, exc_info=True)
            self._give_back(message, error_text(error))
        else:
            if not message.settled:
                self._acks.append(message.receipt)

    def _give_back(self, message: AsyncMessage, error: str) -> None:
        if not message.settled:
            self._nacks.append(Nack(receipt=message.receipt, error=error))

    def _finished(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._change.set()

    async def _changed(self) -> None:
        self._change.clear()
        await self._change.wait()

    async def _drain(self) -> None:
        if self._running:
            await asyncio.wait(self._running, timeout=self._drain_s)

    def _cancel_running(self) -> None:
        for task, message in list(self._running.items()):
            task.cancel()
            self._give_back(message, "the worker was stopped before the handler was done")
            message.settled = True

    async def _settle(self) -> None:
        acks, nacks = self._acks, self._nacks
        if not acks and not nacks:
            return
        self._acks, self._nacks = [], []
        settled = False
        try:
            settled = await self._send(acks, nacks)
        finally:  # also when cancelled on the way: to settle twice is harmless, never to is not
            if not settled:
                self._acks, self._nacks = acks + self._acks, nacks + self._nacks

    async def _send(
        self, ack: Sequence[str] = (), nack: Sequence[Nack] = (), extend: Sequence[Extend] = ()
    ) -> bool:
        try:
            reply, _ = await self._client.settle(ack, nack=nack, extend=extend)
        except SpillwayError as error:
            if not error.transient:
                raise
            _log.warning("cannot settle now: %s", error)
            return False
        refused = sum(result.status == "refused" for result in reply.results)
        if refused:
            _log.warning("%d leases were over before they were settled", refused)
        return True
