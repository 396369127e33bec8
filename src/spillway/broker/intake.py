"""Pushes: check each item, find its lane, append, wait for the commit."""

import asyncio
import secrets
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass

from spillway.broker.append import Arrivals, append, failed
from spillway.broker.breaker import Breaker
from spillway.broker.buffering import Buffering
from spillway.broker.facts import Facts, LaneFacts, QueueFacts, check_partition
from spillway.broker.lanes import LaneEntry
from spillway.broker.shard import Shard
from spillway.core.errors import (
    DatabasePermissionError,
    DatabaseUnavailableError,
    InvalidItemError,
    InvalidNameError,
    NotOwnerError,
    QueueNotFoundError,
    ShardReloadingError,
    SpillwayError,
)
from spillway.core.routing import DEFAULT_PARTITION, partition_of
from spillway.spool.event import Address
from spillway.wire import PushItem, PushResult, QueueOptions, is_name

SPAN_MS_MAX = 366 * 86_400_000
PRIORITY_DEFAULT = 2
LANES_AT_ONCE = 200
"""So many are loaded with one look at the log: it is to be answered well within our patience."""


@dataclass(frozen=True, slots=True)
class ItemLimits:
    """What one message may weigh."""

    message_bytes_max: int = 1024 * 1024
    key_bytes_max: int = 1024
    headers_bytes_max: int = 16 * 1024
    transaction_id_bytes_max: int = 256


@dataclass(slots=True)
class Checked:
    """An item that is within the limits."""

    index: int
    item: PushItem
    payload: bytes
    transaction_id: str
    is_plain: bool


Tickets = list[tuple[asyncio.Future[None], Arrivals]]


class Intake:
    """What a push goes through."""

    def __init__(
        self,
        facts: Facts,
        shards: list[Shard],
        limits: ItemLimits,
        buffering: Buffering,
        breaker: Breaker,
        *,
        auto_create: bool,
        now_ms: Callable[[], int],
    ) -> None:
        self._facts = facts
        self._shards = shards
        self._limits = limits
        self._buffering = buffering
        self._breaker = breaker
        self._auto_create = auto_create
        self._now_ms = now_ms
        self.on_live: Callable[[], None] = lambda: None
        """Told of pushes that go to the log while others are in files."""

    async def push(self, org: str, items: list[PushItem], *, qos: int = 1) -> list[PushResult]:
        """Store what can be stored, else buffer it; one result an item, in order."""
        results: list[PushResult | None] = [None] * len(items)
        arrivals = await self._sort(org, items, results)
        if qos == 0:
            await self._buffering.accept(arrivals, results, self._now_ms())
        else:
            await self._keep(arrivals, results)
        return [result for result in results if result is not None]

    async def _keep(self, arrivals: list[Arrivals], results: list[PushResult | None]) -> None:
        """In the log or in files, durably."""
        late: list[Arrivals] = []
        if not self._buffering.is_idle:
            arrivals, late = await self._buffering.divide(arrivals)
            if arrivals:
                self.on_live()
        accepted_ms = self._now_ms()
        tickets = await self._append(arrivals, late, results, accepted_ms)
        if late:
            await asyncio.sleep(0)  # whose commit was given up on just now came before them
            await self._buffering.buffer(late, results, accepted_ms)
        doubtful = await self._wait(tickets, results)
        if doubtful:
            await self._buffering.buffer(doubtful, results, accepted_ms, doubt=True)

    async def _append(
        self,
        free: list[Arrivals],
        late: list[Arrivals],
        results: list[PushResult | None],
        now_ms: int,
    ) -> Tickets:
        """Decide their place in the log; what finds PostgreSQL away is late."""
        tickets: Tickets = []
        if len(free) > 1:
            await self._load(free)
        for arrivals in free:
            try:
                lane = arrivals.home
                shard = self._shards[lane.shard_id]
                entry = shard.entries.get(lane.lane_id)
                if entry is None or (arrivals.has_given_ids and entry.lane.dedupe is None):
                    self._check_closed()
                    entry = await self._breaker.patient(self.ready(shard, lane, now_ms))
                    now_ms = self._now_ms()
                    if self._buffering.takes_all():  # somebody holds the spool since then
                        late.append(arrivals)
                        continue
                append(shard, entry, arrivals, results, now_ms)
                tickets.append((shard.ticket(), arrivals))
            except SpillwayError as error:
                if self._is_away(error):
                    late.append(arrivals)
                else:
                    arrivals.fail(results, error)
        return tickets

    async def _load(self, free: list[Arrivals]) -> None:
        """Have their lanes in memory, many with one look at the log. What cannot be had now is told
        when it is needed.
        """
        missing: dict[int, list[LaneFacts]] = {}
        for lane in (arrivals.home for arrivals in free):
            if lane.lane_id not in self._shards[lane.shard_id].entries:
                missing.setdefault(lane.shard_id, []).append(lane)
        for shard_id, lanes in missing.items():
            for start in range(0, len(lanes), LANES_AT_ONCE):
                some = lanes[start : start + LANES_AT_ONCE]
                try:
                    self._check_closed()
                    await self._breaker.patient(self._shards[shard_id].lanes(some))
                except SpillwayError as error:
                    self._is_away(error)
                    break

    def _check_closed(self) -> None:
        """Ask nothing of a PostgreSQL that is away."""
        if self._breaker.is_open:
            raise DatabaseUnavailableError

    def _is_away(self, error: SpillwayError) -> bool:
        """Whether the spool takes it: PostgreSQL is away, or refused it with others."""
        if isinstance(error, DatabaseUnavailableError):
            self._breaker.trip(error)
            return True
        if isinstance(error, ShardReloadingError):
            return True  # the replay finds out what PostgreSQL refuses, one message at a time
        # What was lost with the database is not lost to another broker.
        return self._breaker.is_open and isinstance(error, NotOwnerError | DatabasePermissionError)

    async def _wait(self, tickets: Tickets, results: list[PushResult | None]) -> list[Arrivals]:
        """Wait for every commit. Returns those whose outcome is not known in time: the spool takes
        them too, and the replay looks in the log first.
        """
        failures: list[SpillwayError] = []
        doubtful: list[Arrivals] = []
        for ticket, arrivals in tickets:
            try:
                await self._breaker.landed(ticket)
            except SpillwayError as error:
                if self._is_away(error):
                    doubtful.append(arrivals)
                else:
                    failures.append(error)
                    arrivals.fail(results, error)
        if failures and len(failures) == len(tickets) and not _any_accepted(results):
            raise failures[0]
        return doubtful

    async def _sort(
        self, org: str, items: list[PushItem], results: list[PushResult | None]
    ) -> list[Arrivals]:
        """Checked items by lane, in order; bad ones get their result here."""
        together = self._together(org, items)
        if together is not None:
            return [together]
        by_lane: dict[Address, Arrivals] = {}
        # A lane that is not known is known for none of its items: none overtakes another.
        strangers: list[Checked] = []
        prefix = _own_ids()
        for index, item in enumerate(items):
            try:
                payload = bytes(item.payload)
                given_id = item.transaction_id
                transaction_id = f"{prefix}-{index}" if given_id is None else given_id
                one = Checked(index, item, payload, transaction_id, self.check(item, payload))
                lane, partition = self._known(org, item, transaction_id)
                if lane is None:
                    _check_address(item)
                    strangers.append(one)
                    continue
            except SpillwayError as error:
                results[index] = failed(index, item, error)
                continue
            _place(one, by_lane, lane, Address(org, item.queue, partition))
        refused = await self._acquaint(org, strangers) if strangers else {}
        for one in strangers:
            refusal = refused.get(one.item.queue)
            if refusal is not None:
                results[one.index] = failed(one.index, one.item, refusal)
                continue
            lane, partition = self._known(org, one.item, one.transaction_id)
            _place(one, by_lane, lane, Address(org, one.item.queue, partition))
        for found in by_lane.values():
            found.straighten()
        return list(by_lane.values())

    async def _acquaint(self, org: str, strangers: list[Checked]) -> dict[str, SpillwayError]:
        """Have the lanes of these known, unless PostgreSQL is away; returns the queues that refused
        them, and why.
        """
        by_queue: dict[str, list[Checked]] = {}
        for one in strangers:
            by_queue.setdefault(one.item.queue, []).append(one)
        refused: dict[str, SpillwayError] = {}
        for name, some in by_queue.items():
            if self._breaker.is_open:
                break
            try:
                await self._breaker.patient(self._meet(org, name, some))
            except DatabaseUnavailableError as error:
                self._breaker.trip(error)
            except SpillwayError as error:
                refused[name] = error
        return refused

    async def _meet(self, org: str, name: str, some: list[Checked]) -> None:
        queue = self._facts.cached_queue(org, name) or await self._queue(org, name)
        partitions = {route(queue, one.item, one.transaction_id) for one in some}
        await self._facts.make_lanes(queue, partitions)

    def _together(self, org: str, items: list[PushItem]) -> Arrivals | None:
        """All of them as columns, where they are what most requests have: plain items for one queue
        without partitions. None: each is to be looked at.
        """
        name = items[0].queue
        queue = self._facts.cached_queue(org, name)
        if queue is None:
            if not (self._breaker.is_open and is_name(name)):
                return None
            lane, address = None, Address(org, name, None)
        else:
            lane = queue.lanes.get(DEFAULT_PARTITION)
            if lane is None or queue.options.partitions > 1:
                return None
            address = Address(org, name, DEFAULT_PARTITION)
        if not all(item.queue == name and _is_plain(item) for item in items):
            return None
        payloads = [bytes(item.payload) for item in items]
        given = [item.transaction_id for item in items]
        prefix = _own_ids() if None in given else ""
        ids = [f"{prefix}-{at}" if one is None else one for at, one in enumerate(given)]
        if not self.fit_all(payloads, ids):
            return None
        whole = Arrivals(lane, address, list(range(len(items))), items, payloads, ids)
        whole.has_given_ids = any(given)
        whole.straighten()
        return whole

    def fit_all(self, payloads: Sequence[Sized], ids: Sequence[str]) -> bool:
        """Whether items that have nothing else are all within the limits; False: one may not be."""
        text = "".join(ids)
        return (
            text.isascii()
            and "\0" not in text
            and max(map(len, payloads), default=0) <= self._limits.message_bytes_max
            and max(map(len, ids), default=1) <= self._limits.transaction_id_bytes_max
            and min(map(len, ids), default=1) > 0
        )

    def check_plain(self, payload: bytes, transaction_id: str) -> None:
        """Hold an item that has nothing else to the limits."""
        limits = self._limits
        if len(payload) > limits.message_bytes_max:
            raise _too_large(payload, limits)
        _check_text("transaction_id", transaction_id, limits.transaction_id_bytes_max)

    def check(self, item: PushItem, payload: bytes) -> bool:
        """Hold an item to the limits; whether it is plain."""
        limits = self._limits
        is_plain = _is_plain(item)
        if len(payload) > limits.message_bytes_max:
            raise _too_large(payload, limits)
        if item.transaction_id is not None:
            _check_text("transaction_id", item.transaction_id, limits.transaction_id_bytes_max)
        if not is_plain:
            _check_extras(item, limits, self._now_ms())
        return is_plain

    def _known(
        self, org: str, item: PushItem, transaction_id: str
    ) -> tuple[LaneFacts | None, str | None]:
        """The lane and the partition of an item, as far as they can be told without PostgreSQL."""
        queue = self._facts.cached_queue(org, item.queue)
        if queue is None:
            return None, item.partition
        partition = route(queue, item, transaction_id)
        return queue.lanes.get(partition), partition

    async def lane_of(self, org: str, item: PushItem, transaction_id: str) -> LaneFacts:
        """Where an item belongs; its queue is made if that is allowed."""
        queue = self._facts.cached_queue(org, item.queue) or await self._queue(org, item.queue)
        partition = route(queue, item, transaction_id)
        return await self._facts.lane(queue, partition)

    async def _queue(self, org: str, name: str) -> QueueFacts:
        check_name(name)
        if self._auto_create:
            return (await self._facts.create_queue(org, name, QueueOptions()))[1]
        return await self._facts.queue(org, name)

    async def ready(self, shard: Shard, lane: LaneFacts, as_of_ms: int) -> LaneEntry:
        """The lane in memory, with its dedupe window as of that moment."""
        found = await shard.lanes([lane])
        if not found:
            self._facts.forget(lane.queue)
            raise QueueNotFoundError(f"queue {lane.queue.name!r} was deleted meanwhile")
        await shard.know_recent(found[0], as_of_ms)
        shard.check_owned()
        return found[0]


def _place(
    one: Checked, by_lane: dict[Address, Arrivals], lane: LaneFacts | None, address: Address
) -> None:
    """Put an item behind those of its lane."""
    arrivals = by_lane.get(address)
    if arrivals is None:
        arrivals = by_lane[address] = Arrivals(lane, address)
    arrivals.add(one.index, one.item, one.payload, one.transaction_id)
    arrivals.is_plain = arrivals.is_plain and one.is_plain
    arrivals.has_given_ids = arrivals.has_given_ids or one.item.transaction_id is not None


def _own_ids() -> str:
    """What the ids of a request's items begin with that came without one.

    One draw a request: ids that begin alike compress well.
    """
    return secrets.token_urlsafe(16)


def _any_accepted(results: list[PushResult | None]) -> bool:
    return any(result is not None and result.status != "failed" for result in results)


def check_name(name: str) -> None:
    """Refuse what cannot be the name of a queue."""
    if not is_name(name):
        raise InvalidNameError(f"queue name {name[:64]!r} is outside the pattern")


def _check_address(item: PushItem) -> None:
    """What a lookup would have refused."""
    check_name(item.queue)
    if item.partition is not None:
        check_partition(item.partition)


def _is_plain(item: PushItem) -> bool:
    return (
        item.key is None
        and item.partition is None
        and item.headers is None
        and item.delay_ms is None
        and item.deliver_at is None
        and item.ttl_ms is None
        and item.trace_id is None
        and item.priority == PRIORITY_DEFAULT
        and type(item.payload) is not bytes
    )


def _too_large(payload: bytes, limits: ItemLimits) -> InvalidItemError:
    return InvalidItemError(
        f"payload has {len(payload)} bytes, the limit is {limits.message_bytes_max}"
    )


def _check_text(name: str, value: str, high: int) -> None:
    size = len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
    if not 1 <= size <= high:
        raise InvalidItemError(f"{name} has {size} bytes, allowed are 1 to {high}")
    if "\0" in value:
        raise InvalidItemError(f"{name} contains a NUL character")


def _check_extras(item: PushItem, limits: ItemLimits, now_ms: int) -> None:
    if item.key is not None:
        _check_text("key", item.key, limits.key_bytes_max)
    if item.trace_id is not None:
        _check_text("trace_id", item.trace_id, limits.transaction_id_bytes_max)
    if item.headers is not None:
        _check_headers(item.headers, limits.headers_bytes_max)
    if item.priority != PRIORITY_DEFAULT:
        raise InvalidItemError(
            f"priority {item.priority} is not available yet, only {PRIORITY_DEFAULT} is",
            hint="leave priority out",
        )
    _check_times(item, now_ms)


def _check_headers(headers: dict[str, str], high: int) -> None:
    size = sum(len(k.encode()) + len(v.encode()) for k, v in headers.items())
    if size > high:
        raise InvalidItemError(f"headers have {size} bytes, the limit is {high}")
    if any("\0" in k or "\0" in v for k, v in headers.items()):
        raise InvalidItemError("headers contain a NUL character")


def _check_times(item: PushItem, now_ms: int) -> None:
    if item.delay_ms is not None:
        _check_span("delay_ms", item.delay_ms, 0)
        if item.deliver_at is not None:
            raise InvalidItemError("delay_ms and deliver_at exclude each other")
    if item.deliver_at is not None:
        away_ms = int(item.deliver_at.timestamp() * 1000) - now_ms
        _check_span("deliver_at, as ms from now,", max(away_ms, 0), 0)
    if item.ttl_ms is not None:
        _check_span("ttl_ms", item.ttl_ms, 1)


def _check_span(name: str, span_ms: int, low: int) -> None:
    if not low <= span_ms <= SPAN_MS_MAX:
        raise InvalidItemError(f"{name} is {span_ms}, allowed are {low} to {SPAN_MS_MAX}")


def route(queue: QueueFacts, item: PushItem, transaction_id: str) -> str:
    """The partition of an item: its own, or by its key, or spread by its transaction id."""
    if item.partition is not None:
        return item.partition
    if queue.options.partitions == 1:
        return DEFAULT_PARTITION
    return partition_of(item.key or transaction_id, queue.options.partitions)
