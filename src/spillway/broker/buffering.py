"""Which pushes go to files instead of the log, and how they get there."""

import asyncio

import msgspec
from msgspec import UNSET, Raw

from spillway.broker.append import Arrivals, deliver_ms, expires_ms
from spillway.broker.breaker import Breaker
from spillway.core.errors import DatabaseUnavailableError, SpillwayError
from spillway.spool.event import Event, moment
from spillway.spool.spool import Parts, Spool
from spillway.wire import PushResult
from spillway.wire.payload import unwrapped, wrapped

DOOR_S = 0.5
"""How long a push waits for the last of a backlog before it joins it."""


class Buffering:
    """Between the pushes and the spool."""

    def __init__(self, spool: Spool, breaker: Breaker) -> None:
        self._spool = spool
        self._breaker = breaker

    def takes_all(self) -> bool:
        """Whether no push is to go to the log now."""
        return self._breaker.is_open or self._spool.hold is not None

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to stand behind: every push goes to the log."""
        spool = self._spool
        return not spool.pending and spool.gate.is_known and not self.takes_all()

    async def divide(self, arrivals: list[Arrivals]) -> tuple[list[Arrivals], list[Arrivals]]:
        """Those that may go to the log, and those that stand behind others in files."""
        spool = self._spool
        if self.takes_all():
            return [], arrivals
        loop = asyncio.get_running_loop()
        deadline = loop.time() + DOOR_S
        while any(self._waits(one) for one in arrivals):
            if not await spool.at_door(deadline - loop.time()):
                break
        if self.takes_all():
            return [], arrivals
        free = [one for one in arrivals if not self._waits(one)]
        return free, [one for one in arrivals if self._waits(one)]

    def _waits(self, arrivals: Arrivals) -> bool:
        return arrivals.lane is None or self._spool.gate.holds(arrivals.address)

    async def buffer(
        self,
        arrivals: list[Arrivals],
        results: list[PushResult | None],
        accepted_ms: int,
        *,
        doubt: bool = False,
    ) -> None:
        """Put them into files; they have their results once they are durable there.

        Where there is doubt, the log has nothing of them from before `accepted_ms`.
        """
        await self._take(arrivals, results, accepted_ms, doubt=doubt, durable=True)

    async def accept(
        self, arrivals: list[Arrivals], results: list[PushResult | None], accepted_ms: int
    ) -> None:
        """Take them with qos 0: they have their results at once."""
        await self._take(arrivals, results, accepted_ms, doubt=False, durable=False)

    async def _take(
        self,
        arrivals: list[Arrivals],
        results: list[PushResult | None],
        accepted_ms: int,
        *,
        doubt: bool,
        durable: bool,
    ) -> None:
        if not arrivals:
            return
        parts: Parts = [(one.address, events_of(one, accepted_ms, doubt=doubt)) for one in arrivals]
        try:
            if durable:
                await self._spool.append(parts)
            else:
                self._spool.accept(parts)
        except SpillwayError as error:
            told = _unknown(error) if doubt else error
            for one in arrivals:
                one.fail(results, told)
            return
        for one in arrivals:
            one.buffered(results)


def _unknown(error: SpillwayError) -> SpillwayError:
    """What is said where a commit was tried, and the spool had no room: nobody guesses."""
    return DatabaseUnavailableError(
        "PostgreSQL went away inside the commit: it may or may not have been stored"
        f" ({error.code}: {error.message})",
        hint="push again with the same transaction ids: what was stored is a duplicate then",
    )


def events_of(arrivals: Arrivals, accepted_ms: int, *, doubt: bool) -> list[Event]:
    """Arrivals as events, with every choice that was made for them; numbered by the spool."""
    address = arrivals.address
    namespace, task = named(address.queue)
    accepted_at = moment(accepted_ms)
    mark = True if doubt else UNSET
    return [
        Event(
            address.queue,
            address.partition,
            payload_text(payload if type(item.payload) is bytes else Raw(payload)),
            transaction_id,
            item.trace_id,
            namespace,
            task,
            address.org,
            item.key,
            item.headers,
            item.priority,
            None if (due_ms := deliver_ms(item, accepted_ms)) is None else moment(due_ms),
            None if (end_ms := expires_ms(item, accepted_ms)) is None else moment(end_ms),
            accepted_at,
            0,
            mark,
        )
        for item, payload, transaction_id in zip(
            arrivals.items, arrivals.payloads, arrivals.ids, strict=True
        )
    ]


def named(queue: str) -> tuple[str, str]:
    """The namespace and the task in the name of a queue: both, or neither."""
    namespace, _, task = queue.rpartition(".")
    return namespace, task if namespace else ""


def payload_text(payload: Raw | bytes) -> Raw:
    """A payload as it stands in a line: JSON text, whatever was pushed."""
    if isinstance(payload, Raw):
        return payload
    return wrapped(payload)


BYTES_HEAD = b'{"payload_base64":'


def payload_of(event: Event) -> Raw | bytes:
    """What was pushed: JSON text, or bytes."""
    if bytes(event.payload).startswith(BYTES_HEAD):
        try:
            return unwrapped(event.payload)
        except msgspec.ValidationError:
            pass  # another field stands beside it: it is the JSON that it looks like
    return event.payload
