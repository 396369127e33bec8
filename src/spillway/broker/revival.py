"""Revival: events that were set aside are tried again, and go to the end of their lanes.

A file of which nothing went in is left alone for twice as many rounds as before, some minutes at
most, unless a person changes it or asks for it.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import TypeGuard, TypeVar

import structlog
from msgspec import UNSET

from spillway.broker.breaker import Breaker
from spillway.broker.duty import Duty
from spillway.broker.handover import Handover, Outcomes, Sorted, as_trouble
from spillway.broker.owner import Owner
from spillway.broker.runs import Run
from spillway.core.errors import (
    DatabaseUnavailableError,
    SpillwayError,
    SpoolFileNotFoundError,
    SpoolOwnerUnreachableError,
    TransactionConflictError,
)
from spillway.log.connect import was_canceled
from spillway.spool import event as line_of
from spillway.spool import folder as disk
from spillway.spool import names
from spillway.spool.event import Event, Failed, FailedEvent, Trouble
from spillway.spool.quarantine import Stamp, mark
from spillway.spool.spool import Spool

log = structlog.get_logger(__name__)

T = TypeVar("T")
FILES_A_ROUND = 20
"""The next round goes on behind them: a thousand files of poison must not cost a thousand reads."""
ROUNDS_MAX = 60
"""The most a file sits out."""
LATELY_S, LATELY_MAX = 60.0, 10_000
"""How long, and of how many events, it is known that they went in: somebody may ask for them."""
TOGETHER = 500
"""Events that are looked at in one turn of the loop."""
BYTES_MAX = 1024 * 1024
"""Lines that are handed to the owner at once."""


@dataclass(slots=True)
class Rest:
    """A file of which nothing went in sits rounds out, as long as it is the same file."""

    stamp: Stamp | None
    rounds: int = 0
    left: int = 0


class Revival(Duty):
    """Tries failed events again, every RETRY_INTERVAL or when somebody asks for it."""

    name = "revival"

    def __init__(self, spool: Spool, handover: Handover, owner: Owner, breaker: Breaker) -> None:
        super().__init__(spool.config.retry_interval_s)
        self._spool = spool
        self._handover = handover
        self._owner = owner
        self._breaker = breaker
        self._behind = ("", "")
        self._turn = self._lap = 0
        self._dares = False
        self._rests: dict[str, Rest] = {}
        self.revived = 0
        self._lately: deque[tuple[float, str, int]] = deque(maxlen=LATELY_MAX)
        """When which line of which file went in."""

    def lately(self, file: str | None, line: int | None) -> int:
        """How many of a file, of all files, or of one line went in within the last minute."""
        since = monotonic() - LATELY_S
        return sum(
            at > since and file in (None, name) and line in (None, place)
            for at, name, place in self._lately
        )

    async def run_once(self) -> int:
        """Returns how many events went into the log after all."""
        spool, before = self._spool, self.revived
        if not spool.gate.is_known or not spool.quarantined or self._breaker.is_open:
            return 0
        if not (self._handover.is_owner or self._owner.may_ask):
            return 0
        files = await asyncio.to_thread(lambda: list(self._awake()))
        later = [file for file in files if disk.age(file) > self._behind] or files
        # Oldest first, where one round is enough: what they wait for may be there since a moment.
        chosen = files if len(files) <= FILES_A_ROUND else later[:FILES_A_ROUND]
        if not chosen:
            return 0
        self._behind = disk.age(chosen[-1])
        self._dares = False
        self._turn += 1
        self._lap, turn = divmod(self._turn, len(chosen))
        try:
            for at, file in enumerate(chosen):
                self._dares = self._dares or at == turn
                async with spool.working:
                    await self._retry_sparingly(file)
        except DatabaseUnavailableError as error:
            self._breaker.trip(error)
        except SpoolOwnerUnreachableError:
            pass  # it was told, and is tried again in time
        return self.revived - before

    def _awake(self) -> Iterator[str]:
        """The files that do not rest; blocking."""
        quarantine = self._spool.quarantine
        rests, self._rests = self._rests, {}
        for file in quarantine.files():
            rest = rests.get(file)
            if rest is not None and rest.stamp == quarantine.stamp(file):
                self._rests[file] = rest
                if rest.left:
                    rest.left -= 1
                    continue
            yield file

    async def _retry_sparingly(self, file: str) -> None:
        """A file that PostgreSQL takes too long for is no reason to think that it is away."""
        before = self.revived
        try:
            await self._retry(file, None, sparing=True)
        except DatabaseUnavailableError as error:
            if not was_canceled(error):
                raise
            log.warning("spool_retry_too_slow", file=file, error=error.message)
        if self.revived > before:
            self._rests.pop(file, None)
        else:
            rest = self._rests.setdefault(file, Rest(None))
            rest.rounds = rest.left = min(ROUNDS_MAX, rest.rounds * 2 or 1)
            rest.stamp = await asyncio.to_thread(self._spool.quarantine.stamp, file)

    async def retry(self, file: str, line: int | None = None) -> None:
        """Try all events of a file, or that of one line; the caller holds `working`."""
        await self._retry(file, line, sparing=False)

    async def _retry(self, file: str, line: int | None, *, sparing: bool) -> None:
        if self._spool.hold is None:
            with suppress(SpoolFileNotFoundError):  # somebody discarded it meanwhile
                await self._retry_file(file, line, sparing=sparing)

    async def _retry_file(self, file: str, line: int | None, *, sparing: bool) -> None:
        records = await asyncio.to_thread(self._spool.quarantine.read, file)
        chosen = {
            at: record
            for at, record in enumerate(records)
            if isinstance(record, FailedEvent)
            and line in (None, at + 1)
            and not (sparing and record.error.code == TransactionConflictError.code)
        }
        if not chosen:
            return
        unsure: set[int] = set()
        if self._owner.is_another:
            outcomes = await self._try_at_owner(file, chosen, sparing=sparing)
            unsure = chosen.keys() - outcomes.keys()
        else:
            outcomes = await self._try(file, chosen, sparing=sparing)
        gone = {at for at, trouble in outcomes.items() if trouble is None}
        troubles = {at: trouble for at, trouble in outcomes.items() if trouble is not None}
        self._spool.reached("mid_revival")
        left = {mark(chosen[at]) for at in gone}
        await self._spool.forget_origin(file, left)
        outcome = _Outcome(gone, troubles, unsure)
        if any(outcome.changes(at, record) for at, record in enumerate(records) if record):
            await asyncio.to_thread(self._spool.quarantine.change, file, outcome)
        self._spool.quarantined -= len(gone)
        self.revived += len(gone)
        now = monotonic()
        self._lately.extend((now, file, at + 1) for at in gone)
        if gone:
            log.info("spool_events_revived", file=file, events=len(gone))

    async def _try(self, file: str, chosen: dict[int, FailedEvent], *, sparing: bool) -> Outcomes:
        """What came of those that were tried."""
        found = await self._sort(chosen)
        outcomes: Outcomes = {index: as_trouble(error) for index, error in found.refused}
        tried = {at: one.tried_at for at, one in chosen.items() if one.tried_at is not UNSET}
        wanted: list[Run] = []
        for runs in found.lanes.values():
            news, stored = await self._handover.split(runs, 0, tried)
            outcomes |= dict.fromkeys(index for run in stored for index in run.indexes)
            wanted += news
        await self._begin(file, chosen, {index for run in wanted for index in run.indexes})
        suspects = {at for at, record in chosen.items() if _was_refused(record)}
        for run in wanted:
            outcomes |= await self._handover.give(run.without(suspects))
        suspected = [one for run in wanted for one in run.within(suspects).apart()]
        return outcomes | await self._try_suspects(
            suspected, lambda one: self._handover.give(one, apart=True), sparing=sparing
        )

    async def _try_at_owner(
        self, file: str, chosen: dict[int, FailedEvent], *, sparing: bool
    ) -> Outcomes:
        """The same, where another broker writes the log. What comes back without an outcome stays
        in doubt: the next attempt has it looked for.
        """
        lines = {at: line_of.lines([_again(record)])[0] for at, record in chosen.items()}
        suspects = [at for at, record in chosen.items() if _was_refused(record)]
        plain = [at for at in chosen if at not in set(suspects)]

        async def hand_over(some: list[int]) -> Outcomes:
            # The log was not asked: who is in doubt stays so, and since when.
            fresh = (at for at in some if chosen[at].doubt is not True)
            await self._begin(file, chosen, {at for at in fresh if not _was_tried(chosen[at])})
            return await self._hand_over(file, {at: lines[at] for at in some})

        outcomes: Outcomes = {}
        for some in _portions(plain, lines):
            outcomes |= await hand_over(some)
        return outcomes | await self._try_suspects(
            [[at] for at in suspects], hand_over, sparing=sparing
        )

    async def _hand_over(self, file: str, lines: dict[int, bytes]) -> Outcomes:
        places, source = list(lines), file.removesuffix(names.COMPLETE)
        taken = await self._owner.take(source, list(lines.values()), aside=True)
        outcomes: Outcomes = {places[at]: None for at in taken.stored}
        return outcomes | {
            places[one.at]: Trouble(one.error.code, one.error.message, one.error.hint)
            for one in taken.refused
        }

    async def _sort(self, chosen: dict[int, FailedEvent]) -> Sorted:
        """By lane, without a long turn of the loop that everybody is served by."""
        found = Sorted()
        events = list(chosen.items())
        for at in range(0, len(events), TOGETHER):
            some = [(index, _again(record)) for index, record in events[at : at + TOGETHER]]
            await self._handover.sort(some, found, self._spool.config.max_batch)
            await asyncio.sleep(0)
        return found

    async def _begin(self, file: str, chosen: dict[int, FailedEvent], tried: set[int]) -> None:
        """Should this attempt be cut off, the next one looks in the log for what it did."""
        if not tried:
            return
        now = self._handover.now()
        for at in tried:
            chosen[at].tried_at = now
            chosen[at].doubt = UNSET  # the log was asked, and does not have it

        def marked(at: int, record: Failed) -> Failed:
            return chosen[at] if at in tried else record

        await asyncio.to_thread(self._spool.quarantine.change, file, marked)

    async def _try_suspects(
        self,
        suspected: Sequence[T],
        give: Callable[[T], Awaitable[Outcomes]],
        *,
        sparing: bool,
    ) -> Outcomes:
        """What PostgreSQL refused before. Each refusal throws away what others have decided
        meanwhile, so the first one ends it for this round; the next round begins with another.
        """
        outcomes: Outcomes = {}
        first = self._lap % max(1, len(suspected)) if sparing else 0
        for one in (*suspected[first:], *suspected[:first]):
            if sparing and not self._dares:
                break
            found = await give(one)
            outcomes |= found
            self._dares = bool(found) and not any(found.values())
        return outcomes


def _portions(places: list[int], lines: dict[int, bytes]) -> Iterator[list[int]]:
    """As many as go in a request, at least one."""
    some: list[int] = []
    size = 0
    for at in places:
        if some and size + len(lines[at]) > BYTES_MAX:
            yield some
            some, size = [], 0
        some.append(at)
        size += len(lines[at])
    if some:
        yield some


def _was_refused(record: Failed | None) -> bool:
    """Whether it was PostgreSQL that would not have it."""
    return record is not None and record.error.code == SpillwayError.code


def _again(record: FailedEvent) -> Event:
    """As it was, but perhaps in the log already, if an earlier attempt was cut off."""
    values = {name: getattr(record, name) for name in Event.__struct_fields__}
    if record.tried_at is not UNSET:
        values["doubt"] = True
    return Event(**values)


class _Outcome:
    """What becomes of the records of a file."""

    def __init__(self, gone: set[int], troubles: dict[int, Trouble], unsure: set[int]) -> None:
        self._gone = gone
        self._troubles = troubles
        self._unsure = unsure

    def changes(self, at: int, record: Failed) -> bool:
        """Whether a record does not stay as it is."""
        if at in self._unsure:
            return False
        trouble = self._troubles.get(at, record.error)
        return at in self._gone or trouble.code != record.error.code or _was_tried(record)

    def __call__(self, at: int, record: Failed) -> Failed | None:
        if at in self._gone:
            return None
        if at in self._unsure:
            return record
        record.error = self._troubles.get(at, record.error)
        if _was_tried(record):
            record.tried_at = UNSET
        return record


def _was_tried(record: Failed) -> TypeGuard[FailedEvent]:
    return isinstance(record, FailedEvent) and record.tried_at is not UNSET
