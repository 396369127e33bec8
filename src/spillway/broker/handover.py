"""From the spool into the log: spooled events become messages again, exactly once and in order.

Three things keep an event from being stored twice. The commit that stores it also says how far its
file has come in its lane, so whatever a crash cut off goes on behind it. Where a push went to a
file because the outcome of its commit was not known, the log is asked for its transaction id. And
a client's own repeat is found by the queue's dedupe window, as of the moment of its acceptance.
"""

import asyncio
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType

from msgspec import Raw

from spillway.broker.append import Arrivals, append, conflicts
from spillway.broker.buffering import BYTES_HEAD, payload_of
from spillway.broker.facts import LaneFacts
from spillway.broker.intake import PRIORITY_DEFAULT, Intake
from spillway.broker.lanes import LaneEntry
from spillway.broker.shard import Shard
from spillway.core.errors import (
    DatabasePermissionError,
    DatabaseSchemaError,
    QueueNotFoundError,
    QuotaExceededError,
    SpillwayError,
)
from spillway.log.database import Database
from spillway.spool.event import Address, Event, moment
from spillway.wire import PushItem, PushResult

TOGETHER = timedelta(seconds=1)
"""Events accepted within this share one look at the dedupe window."""

Results = dict[int, PushResult]
Refused = tuple[int, SpillwayError]
"""The place of an event that the log will not have, and why."""

PLAIN = PushItem("", Raw(b"null"))
"""Stands for an item that had nothing but a payload, which is in a column of its own."""


@dataclass(slots=True)
class Run:
    """Events that go into the log together, column by column: of one lane and one address, in
    their order, accepted close to each other.

    An event is read, put into the columns and let go: what the loop touches for a million of them
    stays in the processor's cache.
    """

    lane: LaneFacts
    address: Address
    earliest: datetime
    latest: datetime
    indexes: list[int] = field(default_factory=list)
    """Their places in the file."""
    seqs: list[int] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    rich: dict[int, tuple[Event, Raw | bytes]] = field(default_factory=dict)
    """By their index, those that had more than JSON for a payload, and what that was."""
    doubtful: set[int] = field(default_factory=set)
    """The indexes of those that may be in the log already."""

    @classmethod
    def behind(cls, lane: LaneFacts, address: Address, first: Event) -> "Run":
        """None yet, for events accepted from this one on."""
        return cls(lane, address, first.accepted_at, first.accepted_at + TOGETHER)

    def add(self, index: int, event: Event) -> None:
        """One more."""
        payload = bytes(event.payload)
        if not _is_plain(event, payload):
            pushed = payload_of(event)
            self.rich[index] = event, pushed
            payload = bytes(pushed)
        if event.doubt is True:
            self.doubtful.add(index)
        self.indexes.append(index)
        self.seqs.append(event.seq)
        self.ids.append(event.transaction_id)
        self.payloads.append(payload)

    def without(self, gone: Container[int]) -> "Run":
        """But for those at these places."""
        kept = [at for at, index in enumerate(self.indexes) if index not in gone]
        return self if len(kept) == len(self.indexes) else self._only(kept)

    def within(self, chosen: Container[int]) -> "Run":
        """Those at these places."""
        return self._only([at for at, index in enumerate(self.indexes) if index in chosen])

    def apart(self) -> Iterator["Run"]:
        """Each by itself."""
        return (self._only([at]) for at in range(len(self.indexes)))

    def _only(self, kept: list[int]) -> "Run":
        return Run(
            self.lane,
            self.address,
            self.earliest,
            self.latest,
            [self.indexes[at] for at in kept],
            [self.seqs[at] for at in kept],
            [self.ids[at] for at in kept],
            [self.payloads[at] for at in kept],
            self.rich,
            self.doubtful,
        )

    @property
    def accepted_ms(self) -> int:
        """When the first of them was accepted, or a moment before."""
        return int(self.earliest.timestamp() * 1000)

    def items(self, now_ms: int) -> list[PushItem]:
        """As the pushes that they were."""
        if not self.rich:
            return [PLAIN] * len(self.indexes)
        rich = map(self.rich.get, self.indexes)
        return [PLAIN if one is None else _item(*one, now_ms) for one in rich]

    def arrivals(self, source: str | None, now_ms: int) -> Arrivals:
        """On their way into the lane."""
        return Arrivals(
            self.lane,
            Address(self.lane.queue.org, self.lane.queue.name, self.lane.partition),
            self.indexes,
            self.items(now_ms),
            self.payloads,
            self.ids,
            is_plain=not self.rich,
            has_given_ids=True,
            source=source,
            seqs=self.seqs,
            accepted_ms=self.accepted_ms,
            is_quiet=True,
        )


@dataclass(slots=True)
class Bite:
    """A run on its way into the log."""

    run: Run
    shard: Shard
    epoch: int
    results: Results
    """What has none is stored."""
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
    def stored(self) -> list[int]:
        """The indexes of those that the lane took: all but those for which it had no room."""
        if not self.results:
            return self.run.indexes
        errors = {index for index, result in self.results.items() if result.error}
        return self.run.without(errors).indexes


@dataclass(slots=True)
class _Home:
    """Where the events of one address belong, once that is known; None: asked for each."""

    address: Address
    lane: LaneFacts | None = None


@dataclass(slots=True)
class Sorted:
    """Events by lane in their order, and those that the rules of today refuse."""

    lanes: dict[int, list[Run]] = field(default_factory=dict)
    refused: list[Refused] = field(default_factory=list)
    closed: dict[tuple[str, str], SpillwayError] = field(default_factory=dict)
    """The queues that take nothing: not to be asked for each event."""

    def add(self, later: "Sorted") -> None:
        """Take in what was sorted behind it."""
        for lane_id, runs in later.lanes.items():
            self.lanes.setdefault(lane_id, []).extend(runs)
        self.refused += later.refused


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

    def now(self) -> datetime:
        """The time that messages get."""
        return moment(self._now_ms())

    async def sort(self, events: Iterable[tuple[int, Event]], count_max: int) -> Sorted:
        """Find the lane of each; transient errors (PostgreSQL is away) are raised."""
        found = Sorted()
        lanes, homes = found.lanes, dict[tuple[str, str, str | None], _Home]()
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
                or run.address is not home.address
                or len(run.ids) >= count_max
                or not run.earliest <= event.accepted_at <= run.latest
            ):
                run = Run.behind(lane, home.address, event)
                runs.append(run)
            run.add(index, event)
        self._hold_to_limits(found)
        return found

    async def _lane(self, found: Sorted, home: _Home, event: Event) -> LaneFacts:
        queue = event.org, event.queue
        if queue in found.closed:
            raise found.closed[queue].with_traceback(None)
        item = _item(event, event.payload, self._now_ms())
        try:
            lane = await self._intake.lane_of(event.org, item, event.transaction_id)
        except (QueueNotFoundError, QuotaExceededError) as error:
            found.closed[queue] = error
            raise
        if event.partition is not None or lane.queue.options.partitions == 1:
            home.lane = lane
        return lane

    def _hold_to_limits(self, found: Sorted) -> None:
        """The rules of today."""
        for lane_id, runs in found.lanes.items():
            refused = {index: error for run in runs for index, error in self._beyond(run)}
            if refused:
                rest = [run.without(refused) for run in runs]
                found.lanes[lane_id] = [run for run in rest if run.indexes]
                found.refused += refused.items()

    def _beyond(self, run: Run) -> Iterator[Refused]:
        """Those of a run that are not within the limits."""
        if not run.rich and self._intake.fit_all(run.payloads, run.ids):
            return
        items = run.items(self._now_ms())
        for index, item, payload, id_ in zip(
            run.indexes, items, run.payloads, run.ids, strict=True
        ):
            try:
                if item is PLAIN:
                    self._intake.check_plain(payload, id_)
                else:
                    self._intake.check(item, payload)
            except SpillwayError as error:
                yield index, error

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
        news = [run.without(known) for run in runs]
        stored = [run.within(known) for run in runs]
        return [run for run in news if run.indexes], [run for run in stored if run.indexes]

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
            await self._shards[shard_id].lanes(facts)

    async def bite(
        self,
        run: Run,
        source: str | None,
        check: Callable[[], None] = lambda: None,
        *,
        apart: bool = False,
    ) -> tuple[Bite | None, list[Refused]]:
        """Append a run; it is in the log once the ticket of the bite is done.

        Should some have transaction ids that stand for other payloads, nothing is appended: set
        them aside first, for the commit of the others says that all before them is done.

        `check` may refuse at the last moment: behind it nothing is awaited. With `apart` they get
        a commit of their own: if it is refused, nothing else is to blame.
        """
        shard = self._shards[run.lane.shard_id]
        entry = await self._entry(shard, run)
        now_ms = self._now_ms()
        arrivals = run.arrivals(source, now_ms)
        results: Results = {}
        check()
        refused = conflicts(entry, arrivals, run.accepted_ms)
        if refused:
            return None, [(run.indexes[at], error) for at, error in refused]
        if apart:
            shard.seal()
        append(shard, entry, arrivals, results, now_ms)
        ticket = shard.ticket_apart() if apart else shard.ticket()
        return Bite(run, shard, shard.epoch, results, ticket, apart), []

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

    def check_owned(self, lane: LaneFacts) -> None:
        """Refuse a lane that this broker does not write."""
        self._shards[lane.shard_id].check_owned()


def is_ours(error: SpillwayError) -> bool:
    """Whether it is about PostgreSQL or this broker, so that every event would meet it; what is
    about the event alone is the event's fault.
    """
    return error.transient or isinstance(error, DatabasePermissionError | DatabaseSchemaError)


def _is_plain(event: Event, payload: bytes) -> bool:
    """Whether a payload is all that it had."""
    return (
        event.key is None
        and event.headers is None
        and event.priority == PRIORITY_DEFAULT
        and event.trace_id is None
        and event.deliver_at is None
        and event.expires_at is None
        and not payload.startswith(BYTES_HEAD)
    )


def _item(event: Event, payload: Raw | bytes, now_ms: int) -> PushItem:
    return PushItem(
        event.queue,
        payload,  # type: ignore[arg-type]  # bytes stand for themselves
        event.partition,
        event.key,
        event.transaction_id,
        event.headers,
        event.priority,
        None,
        event.deliver_at,
        _ttl_ms(event, now_ms),
        event.trace_id,
    )


def _ttl_ms(event: Event, now_ms: int) -> int | None:
    """What is left of its life now; nothing is still a millisecond, so that it expires."""
    if event.expires_at is None:
        return None
    return max(1, int(event.expires_at.timestamp() * 1000) - now_ms)
