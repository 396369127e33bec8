"""`for message in client.consume(…)`: the two loops around a Feed.

Python does not tell an iterator why its loop was left. Inside `with client.consume(…) as messages:`
the consumption sees an exception and gives the message back with its text, and a `break` counts the
message as handled. In a bare `for` both look alike, so the message in hand is given back: a second
delivery is the lesser evil. `message.ack()` before the `break` settles it either way.
"""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from spillway.client.errors import BrokerUnreachableError
from spillway.client.feed import Feed
from spillway.client.message import AsyncMessage, Message
from spillway.client.protocol import Request
from spillway.client.requests import settle

T = TypeVar("T")

_log = logging.getLogger("spillway.client")


class Send(Protocol):
    """A door that blocks."""

    def __call__(self, request: Request[T], /) -> T: ...


class AsyncSend(Protocol):
    """A door to await."""

    def __call__(self, request: Request[T], /) -> Awaitable[T]: ...


class Consumption:
    """An iterator of messages that settles them as it goes; also a context manager."""

    def __init__(self, feed: Feed[Message], send: Send, visibility: Callable[[], int]) -> None:
        self._feed = feed
        self._loop = _consume(feed, send, visibility)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        return next(self._loop)

    def close(self) -> None:
        """Settle what is handled, give back the rest."""
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _conclude(self._feed, error)
        self.close()


class AsyncConsumption:
    """An asynchronous iterator of messages that settles them as it goes; also a context manager."""

    def __init__(
        self,
        feed: Feed[AsyncMessage],
        send: AsyncSend,
        visibility: Callable[[], Awaitable[int]],
    ) -> None:
        self._feed = feed
        self._loop = _consume_async(feed, send, visibility)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AsyncMessage:
        return await anext(self._loop)

    async def aclose(self) -> None:
        """Settle what is handled, give back the rest."""
        await self._loop.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _conclude(self._feed, error)
        await self.aclose()


def _conclude(feed: Feed[Any], error: BaseException | None) -> None:
    if error is None:
        feed.handled()
    else:
        feed.raised(error)


def _part(error: BrokerUnreachableError) -> None:
    _log.warning("the last settlement was lost, its leases end by themselves: %s", error)


def _consume(
    feed: Feed[Message], send: Send, visibility: Callable[[], int]
) -> Generator[Message, None, None]:
    try:
        while True:
            if feed.ageing:
                feed.visibility_ms = feed.visibility_ms or visibility()
                feed.accept(send(feed.keepalive()))
            message = feed.next()
            if message is not None:
                yield message
            elif feed.finished:
                return
            else:
                _refill(feed, send)
    except BrokerUnreachableError:
        feed.abandon()
        raise
    finally:
        last = feed.farewell()
        if last is not None:
            try:
                feed.accept(send(last))
            except BrokerUnreachableError as error:
                _part(error)


def _refill(feed: Feed[Message], send: Send) -> None:
    try:
        feed.accept(send(feed.request()))
    except BrokerUnreachableError as error:
        # Nobody knows whether that lease happened. The settlements are safe to repeat; a new
        # lease follows only once the broker answers, and a lost one ends by its visibility.
        if not error.sent:
            raise
        feed.accept(send(feed.flush() or settle()))


async def _consume_async(
    feed: Feed[AsyncMessage], send: AsyncSend, visibility: Callable[[], Awaitable[int]]
) -> AsyncGenerator[AsyncMessage, None]:
    try:
        while True:
            if feed.ageing:
                feed.visibility_ms = feed.visibility_ms or await visibility()
                feed.accept(await send(feed.keepalive()))
            message = feed.next()
            if message is not None:
                yield message
            elif feed.finished:
                return
            else:
                await _refill_async(feed, send)
    except BrokerUnreachableError:
        feed.abandon()
        raise
    finally:
        last = feed.farewell()
        if last is not None:
            try:
                feed.accept(await send(last))
            except BrokerUnreachableError as error:
                _part(error)


async def _refill_async(feed: Feed[AsyncMessage], send: AsyncSend) -> None:
    try:
        feed.accept(await send(feed.request()))
    except BrokerUnreachableError as error:
        if not error.sent:
            raise
        feed.accept(await send(feed.flush() or settle()))
