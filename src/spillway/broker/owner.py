"""The owner of the shards, as a broker sees it that stands by. PostgreSQL alone says who it is."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from spillway.client.http1 import Response, encode, origin_of
from spillway.client.loop_transport import LoopTransport
from spillway.client.protocol import Request, json_reply, parse, query
from spillway.core.errors import (
    RequestTooLargeError,
    SpillwayError,
    SpoolHeldError,
    SpoolOwnerUnreachableError,
)
from spillway.log.database import Database
from spillway.spool.event import Trouble
from spillway.wire import SpoolTaken

log = structlog.get_logger(__name__)

PATH = "/v1/spool/events"
SECRET = "x-spillway-secret"  # noqa: S105 (the name of a header)
TIMEOUT_S = 30.0
"""The owner answers within 10 s of work; the rest is for waiting behind an earlier attempt."""
BACKOFF_S = 0.1
BACKOFF_S_MAX = 5.0
PATIENCE = 2
"""The first failure is none yet: the owner may be just about to take the shards."""

_taken = json_reply(SpoolTaken)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the owner listens, and what it wants to hear."""

    broker: str
    address: str
    secret: str


class Owner:
    """Hands events to the owner."""

    def __init__(self, database: Database, stands_by: Callable[[], bool]) -> None:
        self._database = database
        self._stands_by = stands_by
        self._place: Place | None = None
        self._failures = 0
        self._retry_at_s = 0.0
        self._trouble: Trouble | None = None

    @property
    def is_another(self) -> bool:
        """Whether PostgreSQL answers, and this broker waits for the shards of another."""
        return self._stands_by()

    @property
    def may_ask(self) -> bool:
        """Whether there is somebody to ask, and it is time to."""
        return self.is_another and time.monotonic() >= self._retry_at_s

    @property
    def address(self) -> str | None:
        """Where it listens, as far as it is known."""
        return self._place.address if self._place is not None and self.is_another else None

    @property
    def trouble(self) -> Trouble | None:
        """Why it takes nothing."""
        return self._trouble if self.is_another else None

    def look_again(self) -> None:
        """Ask it now, not in time."""
        self._retry_at_s = 0.0

    async def take(self, source: str, lines: list[bytes], *, aside: bool = False) -> SpoolTaken:
        """Hand it lines of a file; the answer says what became of them."""
        if self._place is None:
            self._place = await self._find()
        place = self._place
        try:
            taken = await _ask(place, source, b"".join(lines), aside=aside)
        except RequestTooLargeError:
            raise
        except SpillwayError as error:
            raise self._failed(place, error) from error
        if self._trouble is not None:
            log.info("spool_owner_reachable", address=place.address)
        self._failures, self._retry_at_s, self._trouble = 0, 0.0, None
        return taken

    async def _find(self) -> Place:
        row = await self._database.row("owner")
        return Place(*row) if row is not None and row[0] is not None else Place("", "", "")

    def _failed(self, place: Place, error: SpillwayError) -> SpoolOwnerUnreachableError:
        """It is looked for anew the next time: it may be another one by then."""
        self._place = None
        pause_s = min(BACKOFF_S_MAX, BACKOFF_S * 2**self._failures)
        self._retry_at_s = time.monotonic() + pause_s
        self._failures = min(self._failures + 1, 100)
        told = _as_told(place, error)
        if self._failures >= PATIENCE:
            if self._trouble is None:
                log.warning(
                    "spool_owner_unreachable",
                    address=place.address,
                    reason=told.message,
                    hint=told.hint,
                )
            self._trouble = Trouble(told.code, told.message, told.hint)
        return told


def _as_told(place: Place, error: SpillwayError) -> SpoolOwnerUnreachableError:
    if isinstance(error, SpoolOwnerUnreachableError):
        return error
    hint = error.hint if isinstance(error, SpoolHeldError) else None
    return SpoolOwnerUnreachableError(f"{place.address}: {error.message} [{error.code}]", hint=hint)


async def _ask(place: Place, source: str, body: bytes, *, aside: bool) -> SpoolTaken:
    if not place.broker:
        raise SpoolOwnerUnreachableError("nobody owns the shards")
    if not (place.address and place.secret):
        raise SpoolOwnerUnreachableError(
            f"the owner, {place.broker}, has told no address, or is of an older release"
        )
    headers = {
        "content-type": "application/x-ndjson",
        "accept": "application/json",
        SECRET: place.secret,
    }
    path = PATH + query(source=source, aside=aside or None)
    request = Request("POST", path, _taken, body, headers)
    return parse(request, await _exchange(place.address, request))


async def _exchange(address: str, request: Request[SpoolTaken]) -> Response:
    """On a connection of its own: there is one request at a time, and seldom."""
    origin = origin_of(address)
    transport = LoopTransport(origin)
    try:
        data = encode(origin, request.method, request.path, dict(request.headers), request.body)
        return await transport.send(data, TIMEOUT_S)
    finally:
        await transport.close()
