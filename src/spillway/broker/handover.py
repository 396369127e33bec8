"""From the spool into the log: spooled events become messages again, exactly once and in order.

Three things keep an event from being stored twice. The commit that stores it also says how far its
file has come in its lane, so whatever a crash cut off goes on behind it. Where a push went to a
file because the outcome of its commit was not known, the log is asked for its transaction id. And
a client's own repeat is found by the queue's dedupe window, as of the moment of its acceptance.
"""

import asyncio
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple

from spillway.broker.append import append, conflicts, error_detail
from spillway.broker.buffering import payload_of
from spillway.broker.facts import LaneFacts
from spillway.broker.intake import LANES_AT_ONCE, Intake
from spillway.broker.lanes import LaneEntry
from spillway.broker.runs import PLAIN, Run, item_of
from spillway.broker.shard import Shard
from spillway.core.errors import (
    CommitRefusedError,
    DatabasePermissionError,
    DatabaseSchemaError,
    NotOwnerError,
    QueueNotFoundError,
    QuotaExceededError,
    SpillwayError,
)
from spillway.log.database import Database
from spillway.spool.event import Address, Event, Trouble, moment
from spillway.wire import ErrorDetail, PushResult

Results = dict[int, PushResult]
Refused = tuple[int, SpillwayError | Trouble]
"""The place of an event that the log will not have, and why."""

Outcomes = dict[int, Trouble | None]
"""What is wrong with each event, by its place; None: it is in the log."""


@dataclass(slots=True)
class Bite:
    """Runs on their way into the log, in one commit."""

    runs: list[Run]
    shard: Shard
    epoch: int
    results: Results
    """By index; what has none is stored."""
    ticket: asyncio.Future[None]
    apart: bool
    """Whether nothing else was in its commit."""

    @property
    def is_interrupted(self) -> bool:
        """Whether it failed, or its shard was lost and taken again: what follows must wait."""
        if self.shard.epoch != self.epoch or not self.shard.owned:
            return True
        return self.ticket.done() and self.ticket.exception() is not None

    @property
    def events(self) -> int:
        """How many there are."""
        return sum(len(run.indexes) for run in self.runs)

    @property
    def bytes(self) -> int:
        """Of their payloads."""
        return sum(len(payload) for run in self.runs for payload in run.payloads)

    @property
    def errors(self) -> dict[int, ErrorDetail]:
        """By index, why a lane did not take an event: it had no room."""
        return {index: result.error for index, result in self.results.items() if result.error}


@dataclass(slots=True)
class _Home:
    """Where the events of one address belong, once that is known; None: asked for each."""

    address: Address
    lane: LaneFacts | None = None


class _Grown(NamedTuple):
    """A run, and what it had before the events came that are being sorted."""

    run: Run
    events: int
    rich: int


@dataclass(slots=True)
class Sorted:
    """Events by lane in their order, and those that the rules of today refuse."""

    lanes: dict[int, list[Run]] = field(default_factory=dict)
    refused: list[Refused] = field(default_factory=list)
    homes: dict[tuple[str, str, str | None], _Home] = field(default_factory=dict)
    closed: dict[tuple[str, str], SpillwayError] = field(default_factory=dict)
    """The queues that take nothing: not to be asked for each event."""


class Handover:
    """Puts events into the log."""

    def __init__(
        self,
        intake: Intake,
        shards: list[Shard],
        database: Database,
        now_ms: Callable[[], int],
    ) -> None:
        self._intake = intake
        self._shards = shards
        self._database = database
        self._now_ms = now_ms
        self._apart = asyncio.Lock()
        """Each refusal throws away what others have decided meanwhile: one at a time."""

    def now(self) -> datetime:
        """The time that messages get."""
        return moment(self._now_ms())

    async def sort(
        self, events: Iterable[tuple[int, Event]], found: Sorted, count_max: int
    ) -> None:
        """Find the lane of each, behind what was found before, and hold it to the rules of today;
        transient errors (PostgreSQL is away) are raised.
        """
        lanes, homes = found.lanes, found.homes
        grown: dict[int, _Grown] = {}
        last: Run | None = None
        for index, event in events:
            place = event.org, event.queue, event.partition
            home = homes.get(place)
            if home is None:
                home = homes[place] = _Home(event.address)
            try:
                lane = home.lane or await self._lane(found, home, event)
            except SpillwayError as error:
                if is_ours(error):
                    raise
                found.refused.append((index, error))
                continue
            runs = lanes.get(lane.lane_id)
            if runs is None:
                runs = lanes[lane.lane_id] = []
            run = runs[-1] if runs else None
            if (
                run is None
                or len(run.ids) >= count_max
                or not run.earliest <= event.accepted_at <= run.latest
            ):
                run = Run.behind(lane, home.address, event)
                runs.append(run)
            if run is not last:
                grown.setdefault(id(run), _Grown(run, len(run.ids), len(run.rich)))
                last = run
            run.add(index, event, home.address)
        self._hold_to_limits(found, grown.values())

    async def _lane(self, found: Sorted, home: _Home, event: Event) -> LaneFacts:
        queue = event.org, event.queue
        if queue in found.closed:
            raise found.closed[queue].with_traceback(None)
        pushed = payload_of(event)
        item = item_of(event, pushed, self._now_ms())
        self._intake.check(item, bytes(pushed))  # no queue is made for what it would not have
        try:
            lane = await self._intake.lane_of(event.org, item, event.transaction_id)
        except (QueueNotFoundError, QuotaExceededError) as error:
            found.closed[queue] = error
            raise
        if event.partition is not None or lane.queue.options.partitions == 1:
            home.lane = lane
        return lane

    def _hold_to_limits(self, found: Sorted, grown: Collection[_Grown]) -> None:
        """Refuse what is beyond them of that by which runs have grown."""
        ids = [one for run, start, _ in grown for one in run.ids[start:]]
        payloads = [one for run, start, _ in grown for one in run.payloads[start:]]
        are_plain = all(len(run.rich) == rich for run, _, rich in grown)
        if are_plain and self._intake.fit_all(payloads, ids):
            return
        refused = {at: error for run, start, _ in grown for at, error in self._beyond(run, start)}
        if refused:
            found.refused += refused.items()
            for lane_id, runs in found.lanes.items():
                found.lanes[lane_id] = _without(runs, refused)

    def _beyond(self, run: Run, start: int) -> Iterator[Refused]:
        items = run.items(self._now_ms())
        for at in range(start, len(items)):
            item, payload = items[at], run.payloads[at]
            try:
                if item is PLAIN:
                    self._intake.check_plain(payload, run.ids[at])
                else:
                    self._intake.check(item, payload)
            except SpillwayError as error:
                yield run.indexes[at], error

    async def split(
        self,
        runs: list[Run],
        mark: int,
        tried: Mapping[int, datetime] = MappingProxyType({}),
    ) -> tuple[list[Run], list[Run]]:
        """Runs of a lane: those that the log does not have, and those that it has already; up to
        the mark, all.

        `tried` says of some, by their index, when they may have got there; of others in doubt it
        is known that they came when they were accepted, or never.
        """
        known: set[int] = set()
        for run in runs if mark else ():
            known |= {i for i, seq in zip(run.indexes, run.seqs, strict=True) if seq <= mark}
        if any(run.doubtful for run in runs):
            known |= await self._in_log(runs, known, tried)
        if not known:
            return runs, []
        stored = [run.within(known) for run in runs]
        return _without(runs, known), [run for run in stored if run.indexes]

    async def marks(self, source: str) -> dict[int, int]:
        """How far a source has come, by lane. Whoever begins with a source asks anew: after a
        commit that failed only the log knows.
        """
        return dict(await self._database.rows("replayed_of_source", source=source))

    async def forget_sources(self, sources: list[str]) -> None:
        """Their files are gone, durably."""
        await self._database.rows("replayed_forget", sources=sources)

    async def _in_log(
        self, runs: list[Run], known: set[int], tried: Mapping[int, datetime]
    ) -> set[int]:
        lane = runs[0].lane
        doubtful = {
            index: (transaction_id, payload)
            for run in runs
            if run.doubtful
            for index, transaction_id, payload in zip(
                run.indexes, run.ids, run.payloads, strict=True
            )
            if index in run.doubtful and index not in known
        }
        if not doubtful:
            return set()
        since = min(
            tried.get(index, run.earliest)
            for run in runs
            for index in run.indexes
            if index in doubtful
        )
        # A push that gave up waiting may still be on its way: let it arrive before looking.
        await self._shards[lane.shard_id].flush()
        rows = await self._database.rows(
            "ids_since",
            lane_id=lane.lane_id,
            ids=[transaction_id for transaction_id, _ in doubtful.values()],
            since_ms=int(since.timestamp() * 1000) - 1,
        )
        stored = {(row[0], bytes(row[1])) for row in rows}
        return {index for index, pushed in doubtful.items() if pushed in stored}

    async def prepare(self, lanes: Iterable[LaneFacts]) -> None:
        """Have the lanes in memory; what can be read of them together is."""
        absent: dict[int, list[LaneFacts]] = {}
        for lane in lanes:
            if lane.lane_id not in self._shards[lane.shard_id].entries:
                absent.setdefault(lane.shard_id, []).append(lane)
        for shard_id, facts in absent.items():
            for at in range(0, len(facts), LANES_AT_ONCE):
                await self._shards[shard_id].lanes(facts[at : at + LANES_AT_ONCE])

    async def bite(
        self,
        runs: list[Run],
        source: str | None,
        check: Callable[[], None] = lambda: None,
        *,
        apart: bool = False,
    ) -> tuple[Bite | None, list[Refused]]:
        """Append runs of one shard; they are in the log once the ticket of the bite is done. It has
        the first ones alone where the draft is full before the last; if there is no room for
        another draft, the next bite says so.

        Should some have transaction ids that stand for other payloads, nothing is appended: set
        them aside first, for the commit of the others says that all before them is done.

        `check` may refuse at the last moment: behind it nothing is awaited. With `apart` they get
        a commit of their own: if it is refused, nothing else is to blame.
        """
        shard = self._shards[runs[0].lane.shard_id]
        entries = [await self._entry(shard, run) for run in runs]
        now_ms = self._now_ms()
        arrivals = [run.arrivals(source, now_ms) for run in runs]
        check()
        for entry in entries:
            shard.check_alive(entry)  # what a dead one knows of ids may have been thrown away
        refused: list[Refused] = [
            (run.indexes[at], error)
            for run, entry, some in zip(runs, entries, arrivals, strict=True)
            for at, error in conflicts(entry, some, run.accepted_ms)
        ]
        if refused:
            return None, refused
        if apart:
            shard.seal()
        results: Results = {}
        appended = 0
        for entry, some in zip(entries, arrivals, strict=True):
            if appended and shard.is_draft_full:
                break  # a ticket stands for one draft: nothing of a bite may be in another
            try:
                append(shard, entry, some, results, now_ms)
            except SpillwayError:
                if not appended:
                    raise
                break
            appended += 1
        ticket = shard.ticket_apart() if apart else shard.ticket()
        return Bite(runs[:appended], shard, shard.epoch, results, ticket, apart), []

    async def give(
        self,
        run: Run,
        source: str | None = None,
        check: Callable[[], None] = lambda: None,
        *,
        apart: bool = False,
    ) -> Outcomes:
        """Append a run and wait for it. If PostgreSQL refuses it for good, its events are tried one
        by one, so that the others do not wait for the one that is to blame.

        With a source nothing is appended behind an event that is refused, and what is there has no
        outcome: its mark would say that the refused one is done too.
        """
        if not run.indexes:
            return {}
        bite, refused = await self.bite([run], source, check, apart=apart)
        if bite is None:
            outcomes: Outcomes = {index: as_trouble(error) for index, error in refused}
            if source is not None:
                return outcomes
            return outcomes | await self.give(run.without(outcomes), apart=apart)
        try:
            await bite.ticket
        except SpillwayError as error:
            if is_ours(error) and (apart or not isinstance(error, CommitRefusedError)):
                raise
            if apart:
                return {run.indexes[0]: error_trouble(error)}
            return await self._give_apart(run, source, check)
        return dict.fromkeys(run.indexes) | {
            index: Trouble(error.code, error.message, error.hint)
            for index, error in bite.errors.items()
        }

    async def _give_apart(
        self, run: Run, source: str | None, check: Callable[[], None]
    ) -> Outcomes:
        outcomes: Outcomes = {}
        async with self._apart:
            for one in run.apart():
                outcomes |= await self.give(one, source, check, apart=True)
                if source is not None and any(outcomes.values()):
                    break
        return outcomes

    def tenure(self) -> Callable[[], None]:
        """A check that raises once a shard has changed hands since now: then what the log said in
        between may be old. Another broker may have stored what this one did not find.
        """
        before = self._holdings()

        def check() -> None:
            if self._holdings() != before:
                raise NotOwnerError("a shard changed hands meanwhile")

        return check

    def _holdings(self) -> list[tuple[bool, int]]:
        return [(shard.owned, shard.epoch) for shard in self._shards]

    async def _entry(self, shard: Shard, run: Run) -> LaneEntry:
        """The lane in memory, with its dedupe window."""
        entry = shard.entries.get(run.lane.lane_id)
        if entry is None or entry.lane.dedupe is None:
            entry = await self._intake.ready(shard, run.lane, run.accepted_ms)
        return entry

    async def settle(self) -> None:
        """Wait until whatever was decided is in the log, or known not to be."""
        for shard in self._shards:
            if shard.owned:
                with suppress(SpillwayError):
                    await shard.flush()

    @property
    def is_owner(self) -> bool:
        """Whether this broker writes anything at all; a standby keeps its files."""
        return any(shard.owned for shard in self._shards)


def _without(runs: list[Run], gone: Container[int]) -> list[Run]:
    """What is left of runs."""
    rest = (run.without(gone) for run in runs)
    return [run for run in rest if run.indexes]


def error_trouble(error: SpillwayError) -> Trouble:
    """An error as it stands in `failed/`."""
    detail = error_detail(error)
    return Trouble(detail.code, detail.message, detail.hint)


def as_trouble(error: SpillwayError | Trouble) -> Trouble:
    """The same, whether it was met here or at another broker."""
    return error if isinstance(error, Trouble) else error_trouble(error)


def is_ours(error: SpillwayError) -> bool:
    """Whether it is about PostgreSQL or this broker, so that every event would meet it; what is
    about the event alone is the event's fault.
    """
    return error.transient or isinstance(error, DatabasePermissionError | DatabaseSchemaError)
