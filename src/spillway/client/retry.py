"""When to try again: full jitter, a ceiling on attempts, a deadline, and only where it is safe."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from spillway.client.errors import BadReplyError, BrokerUnreachableError, ClientUsageError
from spillway.client.http1 import Response
from spillway.client.protocol import Request, parse
from spillway.core.errors import SpillwayError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Wait anything up to `base_s * 2^n` (at most `cap_s`) before the n-th repetition."""

    attempts_max: int = 8
    base_s: float = 0.1
    cap_s: float = 5.0

    def wait_s(self, attempt: int, draw: float) -> float:
        """The wait after the failed attempt number `attempt`; `draw` is in [0, 1)."""
        return draw * min(self.cap_s, self.base_s * float(2 ** min(attempt - 1, 30)))


NO_RETRIES = RetryPolicy(attempts_max=1)


def policy_of(retries: RetryPolicy | int | None) -> RetryPolicy:
    """How users spell it: a policy, a number of repetitions, or None for the default."""
    if isinstance(retries, RetryPolicy):
        return retries
    return RetryPolicy() if retries is None else RetryPolicy(attempts_max=retries + 1)


def checked_timeout_s(timeout_s: float) -> float:
    """The seconds that a call may take, if they are any."""
    if not 0 < timeout_s < math.inf:
        raise ClientUsageError(f"timeout_s must be over 0, not {timeout_s:g}")
    return timeout_s


def retry_after_s(response: Response) -> float:
    """The seconds that `Retry-After` asks for; 0 without one (we never send a date)."""
    value = response.headers.get("retry-after", "")
    return float(value) if value.isdigit() else 0.0


def may_repeat(error: SpillwayError, *, safe: bool) -> bool:
    """Whether a repetition cannot do the thing twice.

    A broker that answers "not now" has done nothing, or says that it may have. Anything may be
    asked again: a push is known by its transaction ids and a settlement by its receipts, verbs
    find nothing left to do, and a lease that nobody heard of ends. After a broken connection
    nobody knows: then only what the broker takes as the same request again.
    """
    if isinstance(error, BrokerUnreachableError):
        return safe or not error.sent
    if isinstance(error, BadReplyError):
        return safe and error.answered in {502, 503, 504}
    return error.transient


class Trial(Generic[T]):
    """One request's attempts: reads answers, says how long to wait, or lets the error go.

    All of them, and the waits between, end `timeout_s` after the first began; where the broker was
    asked to wait, that comes on top.
    """

    __slots__ = (
        "_attempt",
        "_clock",
        "_deadline",
        "_policy",
        "_random",
        "_request",
        "_retry_after_s",
    )

    def __init__(
        self,
        request: Request[T],
        policy: RetryPolicy,
        timeout_s: float,
        clock: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        self._request = request
        self._policy = policy
        self._clock = clock
        self._random = random
        self._deadline = clock() + timeout_s + request.wait_s
        self._attempt = 1
        self._retry_after_s = 0.0

    def left_s(self) -> float:
        """What the next attempt may take."""
        return self._deadline - self._clock()

    def read(self, response: Response) -> T:
        self._retry_after_s = retry_after_s(response)
        return parse(self._request, response)

    def wait_after(self, error: SpillwayError) -> float:
        """Seconds to wait before the next attempt; raises the error when there is to be none."""
        wait = max(self._policy.wait_s(self._attempt, self._random()), self._retry_after_s)
        if self._attempt >= self._policy.attempts_max or wait >= self.left_s():
            raise error
        if not may_repeat(error, safe=self._request.safe):
            raise error
        self._attempt += 1
        self._retry_after_s = 0.0
        return wait
