"""Traffic that keeps books: numbered pushes and settled messages in, what clients were told out.

A producer pushes the next numbers only when the last ones were answered, and repeats a push until
it is. A consumer settles and leases in one call, and repeats a settlement until it is answered. So
whatever is done to the broker and its database meanwhile, the books say what must be in the log at
the end: `spillway.testing.verdict` compares.
"""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from random import Random
from types import TracebackType
from typing import Any, NamedTuple, Self

from spillway.client.async_client import AsyncClient
from spillway.client.batch import Item
from spillway.client.message import AsyncMessage
from spillway.client.pushed import Pushed
from spillway.client.retry import NO_RETRIES, RetryPolicy
from spillway.core.errors import SpillwayError
from spillway.wire import Nack, SettleLease, SettleResult

PATIENT = RetryPolicy(attempts_max=100_000, base_s=0.02, cap_s=0.2)
PATIENCE_S = 120.0
ANSWER_S = 5.0
POLL_S = 0.01
LULL_S = 0.02
TAKEN = ("stored", "duplicate", "buffered")


class Place(NamedTuple):
    """Where a message lies."""

    queue: str
    partition: str
    version: int


class Route(NamedTuple):
    """Where a producer pushes to: a partition of a queue, or wherever a key leads."""

    queue: str
    partition: str | None = None
    key: str | None = None

    def __str__(self) -> str:
        """As it stands in transaction ids."""
        return f"{self.queue}-{self.partition or self.key or ''}"


class Answer(NamedTuple):
    """A push that was answered: when, after how long, with what."""

    at_s: float
    took_s: float
    statuses: frozenset[str]


@dataclass
class Books:
    """What clients were told."""

    told: dict[str, Place | None] = field(default_factory=dict)
    """Where each transaction id was stored; None: in a file, as far as its producer knows."""
    statuses: Counter[str] = field(default_factory=Counter)
    answers: list[Answer] = field(default_factory=list)
    acked: dict[Place, float] = field(default_factory=dict)
    """When each was first told to be settled."""
    parked: set[Place] = field(default_factory=set)
    perhaps_parked: set[Place] = field(default_factory=set)
    drained: set[str] = field(default_factory=set)
    """Queues all of whose messages were settled at the end, by the broker's own words."""
    wrongs: list[str] = field(default_factory=list)
    """What no consumer should ever see."""

    def note_push(self, queue: str, results: Sequence[Pushed]) -> None:
        """A push was answered."""
        for result in results:
            self.statuses[result.status] += 1
            transaction_id = str(result.transaction_id)
            assert result.status in TAKEN, result
            before = self.told.setdefault(transaction_id, None)
            if result.version is None:
                continue
            place = Place(queue, str(result.partition), result.version)
            assert before in {None, place}, f"{transaction_id} was {before}, is {place} now"
            self.told[transaction_id] = place

    def note_settled(
        self, held: Sequence[AsyncMessage], park: set[str], results: Sequence[SettleResult]
    ) -> None:
        """A settlement was answered."""
        places = {message.receipt: place_of(message) for message in held}
        for result in results:
            place = places[result.receipt]
            if result.status == "acked":
                self.acked.setdefault(place, time.monotonic())
            elif result.status == "parked":
                self.parked.add(place)
            elif result.receipt in park:
                # An attempt that was never answered may have done it: then its receipt is stale.
                self.perhaps_parked.add(place)


def place_of(message: AsyncMessage) -> Place:
    """Where a message lies."""
    return Place(message.queue, message.partition, message.version)


class Traffic:
    """Producers and consumers that go on whatever happens, inside the block, until `finish`."""

    def __init__(
        self,
        url: str,
        routes: Sequence[Route],
        queues: dict[str, dict[str, Any]],
        *,
        producers_a_route: int = 2,
        consumers_a_queue: int = 2,
        park_share: float = 0.0,
        breath_s: float = 0.0,
        repeat: bool = True,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`queues` are made with their options first; without any, pushes make theirs.

        Those with `order: partition` are held to it. A producer takes a breath after each push;
        without `repeat` a push that is not answered with success is an error of the traffic.
        """
        self.books = Books()
        self.retries = 0
        self._routes = [route for route in routes for _ in range(producers_a_route)]
        self._queues = queues
        self._consumers_a_queue = consumers_a_queue
        self._park_share = park_share
        self._breath_s = breath_s
        self._really_sleep = sleep
        self._repeat = repeat
        retries, timeout_s = (PATIENT, PATIENCE_S) if repeat else (NO_RETRIES, ANSWER_S)
        self._pushing = AsyncClient(url, timeout_s=timeout_s, retries=retries, sleep=self._sleep)
        self.client = AsyncClient(url, timeout_s=PATIENCE_S, retries=PATIENT, sleep=self._sleep)
        self._stop_producing = asyncio.Event()
        self._stop_consuming = asyncio.Event()
        self._producing: list[asyncio.Task[None]] = []
        self._seen: dict[tuple[str, str], int] = defaultdict(int)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for client in (self._pushing, self.client):
            await self._stack.enter_async_context(client)
        for queue, options in self._queues.items():
            await self.client.create_queue(queue, **options)
        group = await self._stack.enter_async_context(asyncio.TaskGroup())
        self._producing = [
            group.create_task(self._produce(f"{route}-{at}", route))
            for at, route in enumerate(self._routes)
        ]
        for queue in list(self._queues) * self._consumers_a_queue:
            group.create_task(self._consume(queue))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop_producing.set()
        self._stop_consuming.set()
        await self._stack.__aexit__(kind, error, traceback)

    async def flow(self, told: int, acked: int = 0, within_s: float = 60) -> tuple[int, int]:
        """Wait until so many more are told and acked; how many they were."""
        books = self.books
        before = len(books.told), len(books.acked)
        await self.until(
            lambda: len(books.told) - before[0] >= told and len(books.acked) - before[1] >= acked,
            within_s,
        )
        return len(books.told) - before[0], len(books.acked) - before[1]

    async def until(
        self, condition: Callable[[], bool | Awaitable[bool]], within_s: float = 60
    ) -> None:
        """Poll until the condition holds."""
        deadline = time.monotonic() + within_s
        while True:
            holds = condition()
            if holds if isinstance(holds, bool) else await holds:
                return
            assert time.monotonic() < deadline, f"not so within {within_s} s: {condition}"
            await asyncio.sleep(POLL_S)

    async def finish(self, within_s: float = 60) -> Books:
        """No new pushes; wait until everything is in the log and settled."""
        self._stop_producing.set()
        await self.until(lambda: all(one.done() for one in self._producing), within_s)
        await self.until(self.is_drained, within_s)
        self.books.drained.update(self._queues)
        self._stop_consuming.set()
        return self.books

    async def is_drained(self) -> bool:
        """Whether nothing waits in files and everything is settled, by the broker's own words."""
        spool = (await self.client.health()).spool
        if spool.pending:
            return False
        assert not spool.failed, f"{spool.failed} events were set aside"
        groups = [one for name in self._queues for one in (await self.client.queue(name)).groups]
        open_states = sum(one.ready + one.leased + one.deferred for one in groups)
        return len(groups) == len(self._queues) and open_states == 0

    async def _sleep(self, seconds: float) -> None:
        self.retries += 1
        await self._really_sleep(seconds)

    # ------------------------------------------------------------ pushes

    async def _produce(self, name: str, route: Route) -> None:
        number = 0
        random = Random(name)
        while not self._stop_producing.is_set():
            numbers = range(number, number + random.randint(1, 5))
            number = numbers.stop
            items = [
                Item(
                    route.queue,
                    {"by": name, "n": n},
                    partition=route.partition,
                    key=route.key,
                    transaction_id=f"{name}-{n}",
                )
                for n in numbers
            ]
            began_s = time.monotonic()
            results = await self._push(items)
            now_s = time.monotonic()
            self.books.note_push(route.queue, results)
            statuses = frozenset(result.status for result in results)
            self.books.answers.append(Answer(now_s, now_s - began_s, statuses))
            await asyncio.sleep(self._breath_s)

    async def _push(self, items: list[Item]) -> list[Pushed]:
        while True:
            try:
                return await self._pushing.push_many(items)
            except SpillwayError:
                if not self._repeat:
                    raise
                await self._sleep(LULL_S)

    # ------------------------------------------------------------ leases

    async def _consume(self, queue: str) -> None:
        random = Random(queue)
        lease = SettleLease(queue=queue, max=10, wait_ms=200)
        held: Sequence[AsyncMessage] = ()
        while held or not self._stop_consuming.is_set():
            park = {m.receipt for m in held if random.random() < self._park_share}
            ack = [m.receipt for m in held if m.receipt not in park]
            nack = [Nack(receipt=receipt, park=True, error="chaos") for receipt in park]
            asked_s = time.monotonic()
            try:
                reply, leased = await self.client.settle(ack, nack=nack, lease=lease)
            except SpillwayError:
                await self._sleep(LULL_S)
                # The settlement alone is safe to repeat; what was leased comes back by itself.
                reply, leased = await self.client.settle(ack, nack=nack)
            self.books.note_settled(held, park, reply.results)
            self._look_at(queue, leased, asked_s)
            held = leased

    def _look_at(self, queue: str, leased: Sequence[AsyncMessage], asked_s: float) -> None:
        wrongs, acked = self.books.wrongs, self.books.acked
        places = map(place_of, leased)
        wrongs += [f"{place} came back" for place in places if acked.get(place, asked_s) < asked_s]
        if self._queues[queue].get("order") != "partition":
            return
        for message in leased:
            lane = message.queue, message.partition
            if message.version > self._seen[lane] + 1:
                wrongs.append(f"{place_of(message)} came after {self._seen[lane]}")
            self._seen[lane] = max(self._seen[lane], message.version)
