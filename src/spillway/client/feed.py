"""The state behind `consume()`: what is leased, what is handled, what the next request must say.

No IO: the doors carry `request()` and hand the answer to `accept()`. A message is settled when the
caller comes back for the next one; settlements wait and ride with the next lease in one round trip.
Whatever is still held when the loop ends goes back: `farewell()`.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from spillway.client.errors import ClientUsageError
from spillway.client.message import Leased, error_text
from spillway.client.protocol import Request
from spillway.client.requests import settle
from spillway.wire import Consumer, Extend, Message, Nack, SettleLease, SettleReply

M = TypeVar("M", bound=Leased)

_log = logging.getLogger("spillway.client")

# Below this age nothing held back can be near the end of any sensible lease.
YOUNG_S = 1.0


class StopFlag(Protocol):
    """threading.Event, asyncio.Event or anything alike."""

    def is_set(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class FeedOptions:
    """What `consume()` was asked for."""

    queue: str
    group: str = "default"
    batch: int = 100
    wait_ms: int = 2_000
    visibility_ms: int | None = None
    partitions: Sequence[str] | None = None
    consumer: Consumer | None = None
    max_messages: int | None = None
    idle_timeout_s: float | None = None
    stop: StopFlag | None = None

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ClientUsageError(f"batch must be at least 1, not {self.batch}")


class Feed(Generic[M]):
    """The life of one `consume()` loop."""

    def __init__(
        self, options: FeedOptions, clock: Callable[[], float], wrap: Callable[[Message], M]
    ) -> None:
        self._options = options
        self._clock = clock
        self._wrap = wrap
        self._waiting: deque[M] = deque()
        self._current: M | None = None
        self._acks: list[str] = []
        self._nacks: list[Nack] = []
        self._sent: tuple[int, int] = (0, 0)
        self._handed_out = 0
        self._leased_at = self._active_at = clock()
        self.visibility_ms = options.visibility_ms

    # ------------------------------------------------------------ handing out

    def next(self) -> M | None:
        """The next message at hand; the one before counts as handled."""
        self.handled()
        if self._stopped() or not self._waiting:
            return None
        self._current = self._waiting.popleft()
        self._handed_out += 1
        return self._current

    def handled(self) -> None:
        """The message in the caller's hands is done."""
        if self._current is None:
            return
        self._active_at = self._clock()
        if not self._current.settled:
            self._acks.append(self._current.receipt)
        self._current = None

    def failed(self, error: str | None) -> None:
        """The message in the caller's hands is not done: another attempt, after the backoff."""
        if self._current is not None and not self._current.settled:
            self._nacks.append(Nack(receipt=self._current.receipt, error=error))
        self._current = None

    def raised(self, error: BaseException) -> None:
        self.failed(error_text(error))

    @property
    def finished(self) -> bool:
        """Whether no more is to be leased."""
        return self._stopped() or self._room() == 0 or self._idle_left_s() <= 0

    # ------------------------------------------------------------ requests

    def request(self) -> Request[SettleReply]:
        """Settle what is handled and lease more, in one round trip."""
        idle_ms = self._idle_left_s() * 1000
        lease = SettleLease(
            queue=self._options.queue,
            group=self._options.group,
            max=min(self._options.batch, self._room()),
            wait_ms=int(min(self._options.wait_ms, max(idle_ms, 0), 60_000)),
            visibility_ms=self._options.visibility_ms,
            partitions=None if self._options.partitions is None else list(self._options.partitions),
            consumer=self._options.consumer,
        )
        return self._settle(lease=lease)

    def flush(self) -> Request[SettleReply] | None:
        """Settle what is handled, without a lease; None when there is nothing to settle."""
        if not self._acks and not self._nacks:
            return None
        return self._settle()

    def farewell(self) -> Request[SettleReply] | None:
        """Settle what is handled and give back the rest, at once and without blame."""
        self.failed("the loop was left before it came back for the next message")
        while self._waiting:
            self._nacks.append(Nack(receipt=self._waiting.popleft().receipt, release=True))
        return self.flush()

    def abandon(self) -> None:
        """The broker is gone: what is held comes back when its leases end."""
        self._waiting.clear()
        self._acks.clear()
        self._nacks.clear()
        self._current = None

    @property
    def ageing(self) -> bool:
        """Whether messages held back need their lease extended before they are handed out."""
        if not self._waiting:
            return False
        limit_s = YOUNG_S if self.visibility_ms is None else self.visibility_ms / 2000
        return self._clock() - self._leased_at > limit_s

    def keepalive(self) -> Request[SettleReply]:
        """Settle what is handled and extend what is held back."""
        visibility_ms = self.visibility_ms or 30_000
        return self._settle(
            extend=[
                Extend(receipt=one.receipt, visibility_ms=visibility_ms) for one in self._waiting
            ]
        )

    def accept(self, reply: SettleReply) -> None:
        """Take over what the broker answered to the last request."""
        acks, nacks = self._sent
        del self._acks[:acks], self._nacks[:nacks]
        lost = {result.receipt for result in reply.results if result.status == "refused"}
        if lost:
            _log.warning("%d leases were over before they were settled", len(lost))
            self._waiting = deque(one for one in self._waiting if one.receipt not in lost)
        self._leased_at = self._clock()
        if reply.messages:
            self._active_at = self._leased_at
            self._waiting.extend(self._wrap(message) for message in reply.messages)

    # ------------------------------------------------------------ details

    def _settle(
        self, *, extend: Sequence[Extend] = (), lease: SettleLease | None = None
    ) -> Request[SettleReply]:
        self._sent = (len(self._acks), len(self._nacks))
        return settle(self._acks, nack=self._nacks, extend=extend, lease=lease)

    def _stopped(self) -> bool:
        return self._options.stop is not None and self._options.stop.is_set()

    def _room(self) -> int:
        if self._options.max_messages is None:
            return self._options.batch
        return max(self._options.max_messages - self._handed_out, 0)

    def _idle_left_s(self) -> float:
        if self._options.idle_timeout_s is None:
            return float("inf")
        return self._options.idle_timeout_s - (self._clock() - self._active_at)
