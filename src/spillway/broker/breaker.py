"""The breaker: open while PostgreSQL is away, so that nobody waits for it in vain."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import structlog

from spillway.core.errors import DatabaseUnavailableError
from spillway.log.connect import is_silent

T = TypeVar("T")
log = structlog.get_logger(__name__)

PATIENCE_S = 2.25
"""How long a question to PostgreSQL may wait for its answer before PostgreSQL is taken to be away.

It is for each question by itself: a large request asks many, and each answer shows that
PostgreSQL is there.
"""

RELAPSE_S = 5.0
"""Whoever trips again so soon after a recovery has not recovered: it stays open for a while."""
REST_S = 0.25
REST_S_MAX = 1.0


class TooLateError(DatabaseUnavailableError):
    """PostgreSQL takes long to answer. There may just be a lot to read: no reason to trip."""


class Breaker:
    """Tripped by whoever finds PostgreSQL away; reset by ownership, which keeps asking."""

    def __init__(self) -> None:
        self.is_open = False
        self.trips = 0
        self.on_trip: Callable[[], None] = lambda: None
        self.on_reset: Callable[[], None] = lambda: None
        self._reset_at_s = float("-inf")
        self._tripped_at_s = 0.0
        self._is_silent = False
        self._rest_s = 0.0
        self._rests_until_s = 0.0
        self._waiting: set[asyncio.Timeout] = set()
        self._reading: set[asyncio.Task[Any]] = set()
        self._tickets: dict[asyncio.Future[None], float] = {}
        """The commits that somebody waits for, each with its deadline."""
        self._watching = False

    def trip(self, cause: Exception) -> None:
        """PostgreSQL is away: pushes go to files, leases come back empty, at once."""
        if self.is_open:
            return
        now_s = time.monotonic()
        relapsed = now_s - self._reset_at_s < RELAPSE_S
        self._rest_s = min(REST_S_MAX, self._rest_s * 2 or REST_S) if relapsed else 0.0
        self._rests_until_s = now_s + self._rest_s
        self._tripped_at_s, self._is_silent = now_s, is_silent(cause)
        self.is_open = True
        self.trips += 1
        log.warning("database_unavailable", error=str(cause), now="switching to file buffer")
        now_s = asyncio.get_running_loop().time()
        for limit in self._waiting:
            if not limit.expired():
                limit.reschedule(now_s)
        for ticket in list(self._tickets):
            _give_up(ticket)
        self.on_trip()

    def check(self) -> None:
        """Refuse what would ask PostgreSQL in vain. One that only takes no message can be asked."""
        if self.is_open and self._is_silent:
            away_s = time.monotonic() - self._tripped_at_s
            raise DatabaseUnavailableError(f"PostgreSQL does not answer, for {away_s:.0f} s now")

    @property
    def rests(self) -> bool:
        """Whether it stays open even if PostgreSQL answers."""
        return self.is_open and time.monotonic() < self._rests_until_s

    @property
    def is_steady(self) -> bool:
        """Whether what tripped it may be tried again. Consumers had as much time as the rest took:
        where PostgreSQL answers but takes no message, they can make room.
        """
        return not self.is_open and time.monotonic() >= self._reset_at_s + self._rest_s

    def reset(self) -> None:
        """PostgreSQL answers."""
        if not self.is_open or self.rests:
            return
        self.is_open = False
        self._reset_at_s = time.monotonic()
        log.info("database_recovered", now="PostgreSQL recovery detected")
        self.on_reset()

    async def patient(self, work: Awaitable[T]) -> T:
        """Its outcome within our patience and before the breaker trips, else PostgreSQL is away.

        Whether what was asked for happens all the same is not known then.
        """
        limit = asyncio.timeout(PATIENCE_S)
        self._waiting.add(limit)
        try:
            async with limit:
                return await work
        except TimeoutError as error:
            raise DatabaseUnavailableError("PostgreSQL did not answer in time") from error
        finally:
            self._waiting.discard(limit)

    async def landed(self, ticket: asyncio.Future[None]) -> None:
        """As `patient`, for a commit that only the caller waits for.

        There is one for every push: a single timer looks after all of them.
        """
        if self.is_open:
            _give_up(ticket)
        elif not ticket.done():
            loop = asyncio.get_running_loop()
            self._tickets[ticket] = loop.time() + PATIENCE_S
            if not self._watching:
                self._watching = True
                loop.call_at(self._tickets[ticket], self._watch, loop)
        try:
            await ticket
        finally:
            self._tickets.pop(ticket, None)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """End the waiting that took too long, and look again when the next one may have."""
        now_s = loop.time()
        for ticket in [ticket for ticket, end_s in self._tickets.items() if end_s <= now_s]:
            _give_up(ticket)
        later = [end_s for end_s in self._tickets.values() if end_s > now_s]
        self._watching = bool(later)
        if later:
            loop.call_at(min(later), self._watch, loop)

    async def soon(self, reading: Coroutine[Any, Any, T]) -> T:
        """As `patient`, but it goes on without us: whoever asks next finds it done."""
        task = asyncio.get_running_loop().create_task(reading)
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)
        try:
            return await self.patient(asyncio.shield(task))
        except DatabaseUnavailableError as error:
            if task.done():
                raise
            raise TooLateError from error


def _give_up(ticket: asyncio.Future[None]) -> None:
    if not ticket.done():
        ticket.set_exception(DatabaseUnavailableError("PostgreSQL did not answer in time"))
