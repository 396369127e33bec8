"""Producers: many small pushes gathered into few requests, in bounded memory."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self, Unpack

from spillway.client.batch import Item, ItemOptions, failure_of, mint_prefix, sealed
from spillway.client.errors import (
    BufferFullError,
    ClientClosedError,
    ClientUsageError,
    PushFailedError,
)
from spillway.client.pushed import Pushed


class Pusher(Protocol):
    """What a producer needs of its client."""

    def push_many(self, items: list[Item], *, raise_on_failure: bool = ...) -> list[Pushed]: ...


class AsyncPusher(Protocol):
    """What an asynchronous producer needs of its client."""

    async def push_many(
        self, items: list[Item], *, raise_on_failure: bool = ...
    ) -> list[Pushed]: ...


class _Numbering:
    """Transaction ids for items that bring none, minted once so that any flush may be repeated."""

    def __init__(self) -> None:
        self._prefix = mint_prefix()
        self._next = 0

    def item(self, queue: str, payload: object, options: ItemOptions) -> Item:
        if options.get("transaction_id") is None:
            options["transaction_id"] = f"{self._prefix}-{self._next}"
            self._next += 1
        try:
            item = Item(queue, payload, **options)
        except TypeError as error:
            raise ClientUsageError(str(error)) from error
        return sealed(item)  # what cannot be sent is refused now, not with its batch


class Producer:
    """Gathers pushes; sends them at `batch` items, after `linger_ms`, on flush() and close().

    There is no thread: the linger is looked at by the next push. A message counts as stored only
    when flush() or close() has returned; what a failed flush could not send stays for the next.
    """

    def __init__(
        self,
        client: Pusher,
        *,
        batch: int = 500,
        linger_ms: int = 50,
        buffer_max: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._batch = batch
        self._linger_s = linger_ms / 1000
        self._buffer_max = max(buffer_max, batch)
        self._clock = clock
        self._items: list[Item] = []
        self._oldest_at = 0.0
        self._numbering = _Numbering()
        self._closed = False

    def push(self, queue: str, payload: object, **options: Unpack[ItemOptions]) -> None:
        """Take a message over; sends when a batch is full or old enough."""
        if self._closed:
            raise ClientClosedError("the producer is closed")
        if len(self._items) >= self._buffer_max:
            raise BufferFullError(f"{len(self._items)} messages wait to be sent")
        item = self._numbering.item(queue, payload, options)
        if not self._items:
            self._oldest_at = self._clock()
        self._items.append(item)
        due = self._clock() - self._oldest_at >= self._linger_s
        if due or len(self._items) >= self._batch:
            self.flush()

    def flush(self) -> list[Pushed]:
        """Send what is held; raises PushFailedError for refused items, which are then dropped."""
        if not self._items:
            return []
        sending = list(self._items)
        results = self._client.push_many(sending, raise_on_failure=False)
        del self._items[: len(sending)]
        if any(result.status == "failed" for result in results):
            raise PushFailedError(results)
        return results

    def close(self) -> None:
        """Flush and take no more; twice is fine."""
        if not self._closed:
            self.flush()
            self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


_Waiting = tuple[Item, "asyncio.Future[Pushed]"]


class AsyncProducer:
    """Gathers concurrent pushes into batches; `await push(…)` returns when the message is durable.

    One batch is in flight at a time, so the order of the pushes is kept; while it is, the next one
    gathers. At most `buffer_max` messages wait: then push() waits for room.
    """

    def __init__(
        self,
        client: AsyncPusher,
        *,
        batch: int = 500,
        linger_ms: int = 0,
        buffer_max: int = 10_000,
    ) -> None:
        self._client = client
        self._batch = batch
        self._linger_s = linger_ms / 1000
        self._room = asyncio.Semaphore(buffer_max)
        self._waiting: deque[_Waiting] = deque()
        self._numbering = _Numbering()
        self._flusher: asyncio.Task[None] | None = None
        self._closed = False

    async def push(self, queue: str, payload: object, **options: Unpack[ItemOptions]) -> Pushed:
        """Store a message; its failure is raised here."""
        if self._closed:
            raise ClientClosedError("the producer is closed")
        item = self._numbering.item(queue, payload, options)
        async with self._room:
            stored: asyncio.Future[Pushed] = asyncio.get_running_loop().create_future()
            self._waiting.append((item, stored))
            if self._flusher is None or self._flusher.done():
                self._flusher = asyncio.create_task(self._flush())
            return await stored

    async def flush(self) -> None:
        """Wait until all that was pushed before has its answer."""
        while self._flusher is not None and not self._flusher.done():
            await self._flusher

    async def close(self) -> None:
        """Flush and take no more; twice is fine."""
        self._closed = True
        await self.flush()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _flush(self) -> None:
        await asyncio.sleep(self._linger_s)
        while self._waiting:
            size = min(self._batch, len(self._waiting))
            sending = [self._waiting.popleft() for _ in range(size)]
            await self._send(sending)

    async def _send(self, sending: list[_Waiting]) -> None:
        try:
            results = await self._client.push_many(
                [item for item, _ in sending], raise_on_failure=False
            )
        except Exception as error:  # noqa: BLE001 (each push raises it to its own caller)
            for _, stored in sending:
                _answer(stored, error)
            return
        for (_, stored), result in zip(sending, results, strict=True):
            _answer(stored, failure_of(result) if result.status == "failed" else result)


def _answer(stored: "asyncio.Future[Pushed]", outcome: Pushed | Exception) -> None:
    if stored.done():  # its caller was cancelled
        return
    if isinstance(outcome, Exception):
        stored.set_exception(outcome)
    else:
        stored.set_result(outcome)
