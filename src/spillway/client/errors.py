"""What can go wrong on the caller's side, and how an error of the broker gets its class back.

Codes, not texts, cross the wire: the class raised here is the class the broker raised.
"""

from functools import cache

from spillway.client.pushed import Pushed
from spillway.core.errors import SpillwayError
from spillway.wire import ErrorDetail

TRANSIENT_STATUSES = frozenset({429, 502, 503, 504})


class BrokerUnreachableError(SpillwayError):
    """The broker does not answer."""

    code = "broker_unreachable"
    status = 503
    transient = True
    hint = "is `spillway serve` running, and is the url (or SPILLWAY_URL) right?"

    def __init__(
        self, message: str | None = None, *, sent: bool = False, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        #: Whether the request may have reached the broker: its outcome is then unknown.
        self.sent = sent


class RequestTimeoutError(BrokerUnreachableError):
    """The broker did not answer in time."""

    code = "request_timeout"
    hint = "raise timeout_s, or look at `spillway doctor` for what holds the broker up"


class BadReplyError(SpillwayError):
    """The answer does not come from a Spillway broker, or from one of another age."""

    code = "bad_reply"
    hint = "does the url lead to a Spillway broker, and not to a proxy in front of none?"

    def __init__(self, message: str, *, answered: int | None = None) -> None:
        super().__init__(message)
        #: The HTTP status of the answer, when there was one.
        self.answered = answered


class ClientClosedError(SpillwayError):
    """The client is closed."""

    code = "client_closed"
    hint = "make a new Client, or leave its `with` block later"


class ClientUsageError(SpillwayError):
    """The client is used in a way it cannot serve."""

    code = "client_usage"
    status = 400
    hint = "see docs/reference/client.md"


class BufferFullError(SpillwayError):
    """The producer holds as many unsent messages as it may."""

    code = "buffer_full"
    status = 429
    hint = "flush() when the broker is back, or give the producer a larger buffer_max"


class PushFailedError(SpillwayError):
    """Some messages of the batch were not accepted."""

    code = "push_failed"
    status = 400
    hint = "look at .failed; the others of the batch are stored (see .results)"

    def __init__(self, results: list[Pushed]) -> None:
        self.results = results
        self.failed = [result for result in results if result.status == "failed"]
        super().__init__(f"{len(self.failed)} of {len(results)} messages failed{self._first()}")

    def _first(self) -> str:
        if not self.failed or self.failed[0].error is None:
            return ""
        first = self.failed[0]
        return f"; the first, #{first.index}: {self.failed[0].error.message}"


class BrokerError(SpillwayError):
    """The broker answered with an error that this client does not know by name."""


@cache
def _known() -> dict[str, type[SpillwayError]]:
    found: dict[str, type[SpillwayError]] = {}
    waiting = [SpillwayError]
    while waiting:
        kind = waiting.pop()
        if not kind.__module__.startswith("spillway.client"):
            found.setdefault(kind.code, kind)
        waiting.extend(kind.__subclasses__())
    return found


@cache
def _unknown(code: str, status: int) -> type[BrokerError]:
    facts = {"code": code, "status": status, "transient": status in TRANSIENT_STATUSES}
    return type("BrokerError", (BrokerError,), facts)


def error_of(detail: ErrorDetail, status: int = 400) -> SpillwayError:
    """The error a broker reported, as the class that the broker itself would raise."""
    kind = _known().get(detail.code) or _unknown(detail.code, status)
    return kind(detail.message, hint=detail.hint)


def detail_of(error: SpillwayError) -> ErrorDetail:
    return ErrorDetail(code=error.code, message=error.message, hint=error.hint)
