"""A leased message as applications see it: its payload is decoded when asked for, not before."""

from collections.abc import Awaitable, Iterable
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

from spillway import wire
from spillway.client.errors import error_of
from spillway.client.payload import decode_payload, payload_bytes
from spillway.wire import SettleReply, SettleResult

T = TypeVar("T")
M = TypeVar("M")
ERROR_TEXT_MAX = 4_000


class Settler(Protocol):
    """What a message needs of its client."""

    def ack(self, *receipts: str) -> SettleReply: ...
    def nack(
        self, *receipts: str, error: str | None = ..., delay_ms: int | None = ..., park: bool = ...
    ) -> SettleReply: ...
    def extend(self, *receipts: str, visibility_ms: int) -> SettleReply: ...


class AsyncSettler(Protocol):
    """What a message needs of its asynchronous client."""

    def ack(self, *receipts: str) -> Awaitable[SettleReply]: ...
    def nack(
        self, *receipts: str, error: str | None = ..., delay_ms: int | None = ..., park: bool = ...
    ) -> Awaitable[SettleReply]: ...
    def extend(self, *receipts: str, visibility_ms: int) -> Awaitable[SettleReply]: ...


class Leased:
    """What both kinds of message share."""

    __slots__ = ("settled", "wire")

    def __init__(self, message: wire.Message) -> None:
        self.wire = message
        #: Set once this message was acked or given back by hand.
        self.settled = False

    @property
    def receipt(self) -> str:
        return self.wire.receipt

    @property
    def queue(self) -> str:
        return self.wire.queue

    @property
    def partition(self) -> str:
        return self.wire.partition

    @property
    def version(self) -> int:
        return self.wire.version

    @property
    def key(self) -> str | None:
        return self.wire.key

    @property
    def headers(self) -> dict[str, str]:
        return self.wire.headers or {}

    @property
    def attempt(self) -> int:
        """1 at the first delivery."""
        return self.wire.attempt

    @property
    def transaction_id(self) -> str:
        return self.wire.transaction_id

    @property
    def enqueued_at(self) -> datetime:
        return datetime.fromisoformat(self.wire.enqueued_at)

    @property
    def priority(self) -> int:
        return self.wire.priority

    @property
    def trace_id(self) -> str | None:
        return self.wire.trace_id

    @property
    def payload(self) -> Any:  # noqa: ANN401 (any JSON value)
        """The value that was pushed: a JSON value, or bytes."""
        return decode_payload(self.wire.payload)

    @property
    def bytes(self) -> bytes:
        """The bytes that were pushed; of a JSON value its text."""
        data = payload_bytes(self.wire.payload)
        return bytes(self.wire.payload) if data is None else data

    def json(self, kind: type[T]) -> T:
        """The payload, checked and converted to a type (a dataclass, a Struct, list[int], …)."""
        return decode_payload(self.wire.payload, kind)

    def __repr__(self) -> str:
        where = f"{self.queue}/{self.partition}/{self.version}"
        return f"<{type(self).__name__} {where} attempt {self.attempt}>"


class Message(Leased):
    """A leased message. Settle it: ack(), nack() or extend()."""

    __slots__ = ("_client",)

    def __init__(self, message: wire.Message, client: Settler) -> None:
        super().__init__(message)
        self._client = client

    def ack(self) -> None:
        """It is handled; raises StaleReceiptError when the lease was over before."""
        self.settled = True
        check(self._client.ack(self.receipt).results[0])

    def nack(
        self, error: str | None = None, *, delay_ms: int | None = None, park: bool = False
    ) -> None:
        """Give it back for another attempt, or up (`park`)."""
        self.settled = True
        reply = self._client.nack(self.receipt, error=error, delay_ms=delay_ms, park=park)
        check(reply.results[0])

    def extend(self, visibility_ms: int) -> None:
        """Hold it for so long from now."""
        check(self._client.extend(self.receipt, visibility_ms=visibility_ms).results[0])


class AsyncMessage(Leased):
    """A leased message. Settle it: await ack(), nack() or extend()."""

    __slots__ = ("_client",)

    def __init__(self, message: wire.Message, client: AsyncSettler) -> None:
        super().__init__(message)
        self._client = client

    async def ack(self) -> None:
        """It is handled; raises StaleReceiptError when the lease was over before."""
        self.settled = True
        check((await self._client.ack(self.receipt)).results[0])

    async def nack(
        self, error: str | None = None, *, delay_ms: int | None = None, park: bool = False
    ) -> None:
        """Give it back for another attempt, or up (`park`)."""
        self.settled = True
        reply = await self._client.nack(self.receipt, error=error, delay_ms=delay_ms, park=park)
        check(reply.results[0])

    async def extend(self, visibility_ms: int) -> None:
        """Hold it for so long from now."""
        reply = await self._client.extend(self.receipt, visibility_ms=visibility_ms)
        check(reply.results[0])


class Messages(list[M], Generic[M]):
    """Leased messages; `reason` says why there is none."""

    def __init__(self, messages: Iterable[M], reason: str | None = None) -> None:
        super().__init__(messages)
        self.reason = reason


def check(result: SettleResult) -> None:
    """Raise what the broker says against a settlement."""
    if result.status == "refused" and result.error is not None:
        raise error_of(result.error, 409)


def error_text(error: BaseException) -> str:
    """The bounded text of an exception, as it is kept beside a message that failed."""
    return f"{type(error).__name__}: {error}"[:ERROR_TEXT_MAX]
