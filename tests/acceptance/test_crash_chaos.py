"""Brokers and PostgreSQL are killed at random moments under load; the database alone is the judge.

Producers push numbered messages and repeat each push until it is answered. Consumers settle and
lease in one call, and repeat a settlement until it is answered. A seed fixes who is killed when.
"""

import asyncio
import contextlib
import os
import signal
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from random import Random

import psycopg
import pytest

from spillway import AsyncClient, Item, RetryPolicy, SpillwayError
from spillway.core import events as ev
from spillway.log import audit
from spillway.log import events as codec
from spillway.log.embedded import EmbeddedPostgres
from spillway.wire import Nack, SettleLease

LANES = [("plain", "Default"), ("parts", "north"), ("parts", "south"), ("strict", "Default")]
PRODUCERS_A_LANE = 2
OPTIONS = {"max_attempts": 1000, "visibility_ms": 1_500, "backoff_base_ms": 0}
QUEUES = {"plain": {}, "parts": {}, "strict": {"order": "partition"}}
PATIENT = RetryPolicy(attempts_max=100_000, base_s=0.02, cap_s=0.2, total_s=120)
MESSAGES_A_ROUND = 150
"""How many must be stored and acked between two kills: else nothing was tried."""

pytestmark = [pytest.mark.slow]

Place = tuple[str, str, int]
"""(queue, partition, version)"""


@dataclass
class Books:
    """What clients were told, to be held against what is in the database."""

    stored: dict[str, Place] = field(default_factory=dict)
    duplicates: int = 0
    acked: set[Place] = field(default_factory=set)
    parked: set[Place] = field(default_factory=set)
    perhaps_parked: set[Place] = field(default_factory=set)
    came_back: list[Place] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)
    flowed: list[tuple[int, int]] = field(default_factory=list)


def place_of(message):
    """Where a message lies."""
    return message.queue, message.partition, message.version


class Load:
    """Producers and consumers that go on whatever happens, until told to stop."""

    def __init__(self, url, patience):
        self.books = Books()
        self.stop_producing = asyncio.Event()
        self.stop_consuming = asyncio.Event()
        self._patience = patience
        self._client = AsyncClient(url, timeout_s=5, retries=PATIENT, sleep=patience.sleep)

    async def run(self, killer):
        """The whole life: load beside the killer, then drain what is left."""
        async with self._client as client, asyncio.TaskGroup() as group:
            for queue, options in QUEUES.items():
                await client.create_queue(queue, **OPTIONS, **options)
            producing = [
                group.create_task(self.produce(f"{queue}-{partition}-{i}", queue, partition))
                for queue, partition in LANES
                for i in range(PRODUCERS_A_LANE)
            ]
            for queue in [*QUEUES, "parts", "plain"]:
                group.create_task(self.consume(queue))
            await killer(self.books)
            self.stop_producing.set()
            await asyncio.wait(producing)
            await self._patience.until(self.is_drained, 60)
            self.stop_consuming.set()

    async def is_drained(self):
        """Whether everything that was stored is settled, by the broker's own words."""
        groups = [one for name in QUEUES for one in (await self._client.queue(name)).groups]
        open_states = sum(one.ready + one.leased + one.deferred for one in groups)
        return len(groups) == len(QUEUES) and open_states == 0

    async def produce(self, name, queue, partition):
        """Batch after batch; the next one only when the last one was answered."""
        number = 0
        random = Random(name)
        while not self.stop_producing.is_set():
            numbers = range(number, number + random.randint(1, 5))
            number = numbers.stop
            items = [
                Item(queue, {"by": name, "n": n}, partition=partition, transaction_id=f"{name}-{n}")
                for n in numbers
            ]
            results = []
            while not results:
                with contextlib.suppress(SpillwayError):
                    results = await self._client.push_many(items)
            for result in results:
                self.books.duplicates += result.status == "duplicate"
                place = (queue, partition, result.version)
                assert self.books.stored.setdefault(result.transaction_id, place) == place

    async def consume(self, queue):
        """Settle and lease in one call; after an error the settlement alone, until answered."""
        random = Random(queue)
        lease = SettleLease(queue=queue, max=10, wait_ms=200)
        held = []
        while held or not self.stop_consuming.is_set():
            park = {m.receipt for m in held if random.random() < 0.01}
            ack = [m.receipt for m in held if m.receipt not in park]
            nack = [Nack(receipt=receipt, park=True, error="chaos") for receipt in park]
            settled_before = frozenset(self.books.acked)
            try:
                reply, leased = await self._client.settle(ack, nack=nack, lease=lease)
            except SpillwayError as error:
                await self._patience.lull(error)
                reply, leased = await self._client.settle(ack, nack=nack)
            self.note(held, park, reply.results)
            held = leased
            self.books.came_back += settled_before.intersection(map(place_of, leased))

    def note(self, held, park, results):
        """What became of the messages that were held."""
        places = {m.receipt: place_of(m) for m in held}
        for result in results:
            if result.status == "refused" and result.receipt in park:
                # An attempt that was never answered may have done it: then its receipt is stale.
                self.books.perhaps_parked.add(places[result.receipt])
            if result.status in {"acked", "parked"}:
                getattr(self.books, result.status).add(places[result.receipt])


class Killer:
    """Waits until messages flowed, then a little more by the dice, then kills."""

    def __init__(self, served, patience, bury, seed, rounds):
        self.served = served
        self._bury = bury
        self._patience = patience
        self._random = Random(seed)
        # Each kind at least once, in an order of the seed's own.
        kinds = ["broker", "postmaster", "both", "backend", "terminated"]
        self._random.shuffle(kinds)
        self._plan = (kinds * rounds)[:rounds]

    async def __call__(self, books):
        for kind in self._plan:
            await self.let_flow(books)
            await asyncio.to_thread(getattr(self, f"kill_{kind}"))
            books.kills[kind] += 1
        await self.let_flow(books)

    async def let_flow(self, books):
        """Enough stored and acked since the last kill, or fail."""
        stored, acked = len(books.stored), len(books.acked)
        much = MESSAGES_A_ROUND + self._random.randint(0, MESSAGES_A_ROUND)
        await self._patience.until(lambda: len(books.stored) - stored >= much, 60)
        await self._patience.until(lambda: len(books.acked) - acked >= much, 60)
        books.flowed.append((len(books.stored) - stored, len(books.acked) - acked))

    def kill_broker(self):
        """The broker dies; its PostgreSQL lives on, and the next broker finds it."""
        self.served.kill()
        self.served.start()

    def kill_postmaster(self):
        """PostgreSQL dies below a broker that lives; then the broker dies as well."""
        postmaster = self.served.postmaster
        self.served.kill_postmaster()
        self.served.kill()
        self._bury(postmaster)
        self.served.start()

    def kill_both(self):
        """The broker first, then PostgreSQL: nobody is left to say anything."""
        postmaster = self.served.postmaster
        self.served.kill()
        self.served.kill_postmaster()
        self._bury(postmaster)
        self.served.start()

    def kill_backend(self):
        """One backend dies by -9, so PostgreSQL restarts by itself; the broker must cope."""
        os.kill(self._random.choice(self.served.backends()), signal.SIGKILL)

    def kill_terminated(self):
        """An administrator ends the connection of a writer."""
        victim = self._random.choice(self.served.backends())
        with psycopg.connect(self.served.database_url) as conn:
            conn.execute("SELECT pg_terminate_backend(%s)", (victim,))


# ---------------------------------------------------------------- the judge


def judge_messages(conn, books):
    """Every acknowledged message is there once, where it was said to be, in push order."""
    rows = conn.execute(
        "SELECT queue, partition, version, transaction_id, convert_from(payload, 'UTF8')::jsonb"
        " FROM spillway.message ORDER BY lane_id, version"
    ).fetchall()
    found = {tx: (queue, partition, version) for queue, partition, version, tx, _ in rows}
    assert len(found) == len(rows), "a transaction id is there twice"
    assert found == books.stored
    versions = defaultdict(list)
    numbers = defaultdict(list)
    for queue, partition, version, _, payload in rows:
        versions[queue, partition].append(version)
        numbers[payload["by"], queue, partition].append(payload["n"])
    assert set(versions) == set(LANES)
    for seen in versions.values():
        assert seen == list(range(1, len(seen) + 1)), "versions are not dense"
    for seen in numbers.values():
        assert seen == list(range(len(seen))), "a producer's messages changed their order"


def judge_dead_letters(conn, books):
    """Each message that was parked is a dead letter, once, and nothing else is."""
    rows = conn.execute(
        "SELECT q.name, l.partition, d.version FROM spillway.dead_letter d"
        " JOIN spillway.lane l USING (lane_id) JOIN spillway.queue q ON q.queue_id = l.queue_id"
    ).fetchall()
    assert len(set(rows)) == len(rows), "two dead letters of one message"
    assert books.parked <= set(rows) <= books.parked | books.perhaps_parked


def judge_control_log(conn, books):
    """In the whole log no version is leased after it was acked, and every told ack is there."""
    acked = defaultdict(set)
    rows = conn.execute(
        "SELECT q.name, l.partition, e.events FROM spillway.control_event e"
        " JOIN spillway.lane l USING (lane_id) JOIN spillway.queue q USING (queue_id)"
        ' ORDER BY e.lane_id, e."group", e.seq'
    ).fetchall()
    for queue, partition, events in rows:
        for _, event in codec.decode(events):
            if isinstance(event, ev.Acked | ev.Leased):
                versions = {v for start, end in event.ranges for v in range(start, end + 1)}
                again = versions & acked[queue, partition]
                assert not again, f"{event} touches {again}, acked before"
                if isinstance(event, ev.Acked):
                    acked[queue, partition] |= versions
    logged = {(q, p, v) for (q, p), versions in acked.items() for v in versions}
    assert logged == books.acked
    assert logged | books.parked | books.perhaps_parked >= set(books.stored.values())


def judge_load(books, patience, rounds):
    """The kills happened, messages flowed between them, and clients felt it."""
    assert books.kills.total() == rounds
    assert len(books.flowed) == rounds + 1
    assert all(min(flow) >= MESSAGES_A_ROUND for flow in books.flowed)
    assert patience.retries > 0
    assert books.came_back == []


async def live_and_judge(served, patience, bury, seed, rounds, *, whole_log):
    """One life under fire, then the judgement."""
    await asyncio.to_thread(served.start)
    load = Load(served.url, patience)
    await load.run(Killer(served, patience, bury, seed, rounds))
    judge_load(load.books, patience, rounds)
    served.kill()
    with EmbeddedPostgres(served.data) as postgres:
        result = await audit.run(postgres.url)
        assert result.differences == []
        assert result.messages == len(load.books.stored)
        with psycopg.connect(postgres.url) as conn:
            judge_messages(conn, load.books)
            judge_dead_letters(conn, load.books)
            if whole_log:
                judge_control_log(conn, load.books)
            else:
                assert conn.execute("SELECT count(*) FROM spillway.checkpoint").fetchone()[0] > 0
    return load.books


@pytest.mark.timeout(150)
async def test_kills_under_load_lose_and_double_nothing(serve, patience, bury):
    """Broker and PostgreSQL are killed five ways; the whole control log agrees with every reply."""
    served = serve(num_shards=2, checkpoint_interval_s=3600)
    await live_and_judge(served, patience, bury, seed=1, rounds=5, whole_log=True)


@pytest.mark.timeout(150)
async def test_kills_beside_checkpoints_and_trimming(serve, patience, bury):
    """The same while checkpoints are written and the control log is trimmed all the time."""
    served = serve(
        num_shards=2, checkpoint_interval_s=0.2, checkpoint_events_min=1, lane_idle_s=0.5
    )
    await live_and_judge(served, patience, bury, seed=2, rounds=3, whole_log=False)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(100, 110))
@pytest.mark.parametrize("whole_log", [True, False], ids=["log", "checkpoints"])
async def test_kills_under_load_through_the_night(serve, patience, bury, seed, whole_log):
    """Many more of them."""
    settings = {} if whole_log else {"checkpoint_events_min": 1}
    interval_s = 3600 if whole_log else 0.2
    served = serve(checkpoint_interval_s=interval_s, **settings)
    await live_and_judge(served, patience, bury, seed, rounds=20, whole_log=whole_log)
