"""The asyncio client: the same calls as `Client`, to be awaited."""

import asyncio
import random
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, Self, TypeVar

from spillway.client import operations, requests
from spillway.client import spool as spoolkeeping
from spillway.client.batch import Batch, Item, all_failed, batches, placed
from spillway.client.consume import AsyncConsumption
from spillway.client.errors import ClientClosedError, PushFailedError, detail_of
from spillway.client.feed import Feed, FeedOptions, StopFlag
from spillway.client.http1 import Response, encode, origin_of
from spillway.client.identity import identity_headers
from spillway.client.loop_transport import LoopTransport
from spillway.client.message import AsyncMessage, Messages
from spillway.client.protocol import Request
from spillway.client.pushed import Pushed
from spillway.client.retry import RetryPolicy, Trial, checked_timeout_s, policy_of
from spillway.client.sync_client import DEFAULT_URL
from spillway.core.errors import SpillwayError
from spillway.wire import Consumer, Extend, Nack, SettleLease, SettleReply

T = TypeVar("T")
P = ParamSpec("P")


class AsyncTransport(Protocol):
    """What carries the bytes; replaceable for tests."""

    async def send(self, data: bytes, timeout_s: float) -> Response: ...
    async def close(self) -> None: ...


class AsyncDoor:
    """Sends requests and tries again where that is safe; `timeout_s` bounds all of it."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        org: str | None = None,
        api_key: str | None = None,
        timeout_s: float = 10.0,
        retries: RetryPolicy | int | None = None,
        actor: str | None = None,
        tls: ssl.SSLContext | None = None,
        connections_max: int = 100,
        transport: AsyncTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.origin = origin_of(url)
        self._headers = identity_headers(org=org, api_key=api_key, actor=actor)
        self._timeout_s = checked_timeout_s(timeout_s)
        self._policy = policy_of(retries)
        self._transport = transport or LoopTransport(
            self.origin, tls=tls, connections_max=connections_max
        )
        self._clock = clock
        self._sleep = sleep
        self._draw = draw
        self._closed = False

    async def send(self, request: Request[T]) -> T:
        """Carry a request from `spillway.client.requests` or `.operations`."""
        headers = {**self._headers, **request.headers}
        data = encode(self.origin, request.method, request.path, headers, request.body)
        trial = Trial(request, self._policy, self._timeout_s, self._clock, self._draw)
        while True:
            if self._closed:
                raise ClientClosedError
            try:
                return trial.read(await self._transport.send(data, trial.left_s()))
            except SpillwayError as error:
                await self._sleep(trial.wait_after(error))

    async def close(self) -> None:
        """Close the connections; twice is fine."""
        self._closed = True
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


def _call(build: Callable[P, Request[T]]) -> Callable[Concatenate[AsyncDoor, P], Awaitable[T]]:
    """The coroutine method that sends what `build` makes of its arguments."""

    @wraps(build)
    async def method(self: AsyncDoor, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.send(build(*args, **kwargs))

    return method


class AsyncClient(AsyncDoor):
    """A client of one broker; the tasks of one event loop share it.

    At most `connections_max` calls are under way at once; waiting for one of these connections is
    part of the time that a call may take.
    """

    push = _call(requests.push)
    ack = _call(requests.ack)
    nack = _call(requests.nack)
    extend = _call(requests.extend)

    queues = _call(operations.queues)
    queue = _call(operations.queue)
    create_queue = _call(operations.create_queue)
    update_queue = _call(operations.update_queue)
    delete_queue = _call(operations.delete_queue)
    groups = _call(operations.groups)
    group = _call(operations.group)
    create_group = _call(operations.create_group)
    delete_group = _call(operations.delete_group)

    browse = _call(operations.browse)
    story = _call(operations.story)
    dead = _call(operations.dead)
    blocked = _call(operations.blocked)

    redrive = _call(operations.redrive)
    unblock = _call(operations.unblock)
    park = _call(operations.park)
    purge = _call(operations.purge)
    seek = _call(operations.seek)
    pause = _call(operations.pause)
    resume = _call(operations.resume)

    spool = _call(spoolkeeping.status)
    spool_files = _call(spoolkeeping.files)
    spool_file = _call(spoolkeeping.file)
    spool_verify = _call(spoolkeeping.verify)
    spool_repair = _call(spoolkeeping.repair)
    spool_retry = _call(spoolkeeping.retry)
    spool_discard = _call(spoolkeeping.discard)
    spool_hold = _call(spoolkeeping.hold)
    spool_release = _call(spoolkeeping.release)

    health = _call(operations.health)
    live = _call(operations.live)
    ready = _call(operations.ready)
    topology = _call(operations.topology)
    metrics = _call(operations.metrics)
    metrics_text = _call(operations.metrics_text)
    audit = _call(operations.audit)

    async def push_many(
        self,
        items: Iterable[Item | Mapping[str, Any]],
        *,
        qos: Literal[0, 1] = 1,
        raise_on_failure: bool = True,
    ) -> list[Pushed]:
        """Store many messages in as few requests as the limits allow; results in their order."""
        results: list[Pushed] = []
        for batch in batches(items, qos=qos):
            results.extend(await self._push_batch(batch))
        if raise_on_failure and any(result.status == "failed" for result in results):
            raise PushFailedError(results)
        return results

    async def _push_batch(self, batch: Batch) -> list[Pushed]:
        try:
            return placed(batch, await self.send(batch.request))
        except SpillwayError as error:
            if batch.start == 0:  # nothing is stored yet: the plain error says it best
                raise
            return all_failed(batch, detail_of(error))

    async def lease(
        self,
        queue: str,
        group: str = "default",
        *,
        max: int = 1,  # noqa: A002 (the wire's word)
        wait_ms: int = 0,
        visibility_ms: int | None = None,
        partitions: Sequence[str] | None = None,
        consumer: Consumer | str | None = None,
    ) -> Messages[AsyncMessage]:
        """Lease up to `max` messages, waiting up to `wait_ms` for the first."""
        request = requests.lease(
            queue,
            group,
            max=max,
            wait_ms=wait_ms,
            visibility_ms=visibility_ms,
            partitions=partitions,
            consumer=consumer,
        )
        reply = await self.send(request)
        return Messages((AsyncMessage(one, self) for one in reply.messages), reply.reason)

    async def settle(
        self,
        ack: Sequence[str] = (),
        *,
        nack: Sequence[Nack] = (),
        extend: Sequence[Extend] = (),
        lease: SettleLease | None = None,
    ) -> tuple[SettleReply, Messages[AsyncMessage]]:
        """Ack, nack, extend by receipt and, with `lease`, get more in the same round trip."""
        reply = await self.send(requests.settle(ack, nack=nack, extend=extend, lease=lease))
        leased = (AsyncMessage(one, self) for one in reply.messages or ())
        return reply, Messages(leased, reply.reason)

    def consume(
        self,
        queue: str,
        group: str = "default",
        *,
        batch: int = 100,
        wait_ms: int = 2_000,
        visibility_ms: int | None = None,
        partitions: Sequence[str] | None = None,
        consumer: Consumer | str | None = None,
        max_messages: int | None = None,
        idle_timeout_s: float | None = None,
        stop: StopFlag | None = None,
    ) -> AsyncConsumption:
        """Messages one by one; each is acked when the loop comes back for the next.

        Use `async with client.consume(…) as messages:` to have an exception in the loop recorded
        with the message it hit. Ends after `max_messages`, `idle_timeout_s` without one, or when
        `stop` is set (looked at between messages and requests, so within `wait_ms`).
        """
        options = FeedOptions(
            queue,
            group,
            batch=batch,
            wait_ms=wait_ms,
            visibility_ms=visibility_ms,
            partitions=partitions,
            consumer=requests.consumer_of(consumer),
            max_messages=max_messages,
            idle_timeout_s=idle_timeout_s,
            stop=stop,
        )
        feed = Feed(options, self._clock, lambda message: AsyncMessage(message, self))
        return AsyncConsumption(feed, self.send, lambda: self._visibility(queue))

    async def _visibility(self, queue: str) -> int:
        return (await self.queue(queue)).options.visibility_ms
