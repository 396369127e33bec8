"""A random schedule under load: PostgreSQL and the broker are stopped, killed, paused, restarted.

A seed fixes the schedule. Something befalls PostgreSQL and, while it is away, something befalls the
broker; then both come back. At the end every number that was acknowledged is in the log once and in
order, and consumers saw it in order where that is promised.
"""

import asyncio
import os
import signal
from dataclasses import dataclass
from random import Random

import pytest

from spillway.log.embedded import EmbeddedPostgres
from spillway.testing.traffic import Route, Traffic
from spillway.testing.verdict import judge

ROUTES = [
    Route("plain"),
    Route("parts", "north"),
    Route("parts", "south"),
    Route("keyed", key="a"),
    Route("keyed", key="b"),
    Route("keyed", key="c"),
    Route("strict", "Default"),
]
OPTIONS = {"max_attempts": 1000, "visibility_ms": 1_500, "backoff_base_ms": 0}
QUEUES = {
    "plain": OPTIONS,
    "parts": OPTIONS,
    "keyed": OPTIONS | {"partitions": 4, "order": "partition"},
    "strict": OPTIONS | {"order": "partition"},
}
ACTIONS = ["stop", "kill", "pause", "restart"]
FLOW = 60
HOLD_S_MAX = 2.0
ROUNDS, ROUNDS_AT_NIGHT = 5, 50

pytestmark = [pytest.mark.slow]


@dataclass(frozen=True)
class Round:
    """What happens to whom, and for how long; nothing may happen to one of them."""

    database: str | None
    broker: str | None
    database_hold_s: float
    broker_hold_s: float


def schedule(seed, rounds):
    """Everything befalls both within four rounds; each fifth one leaves one of them in peace."""
    random = Random(seed)
    plan = []
    while len(plan) < rounds:
        of_database, of_broker = (random.sample(ACTIONS, len(ACTIONS)) for _ in range(2))
        pairs = list(zip(of_database, of_broker, strict=True))
        pairs.append(
            random.choice([(random.choice(ACTIONS), None), (None, random.choice(ACTIONS))])
        )
        plan += [
            Round(*pair, random.uniform(0, HOLD_S_MAX), random.uniform(0, HOLD_S_MAX))
            for pair in pairs
        ]
    return plan[:rounds]


class OwnPostgres:
    """A database that the test starts again itself."""

    def __init__(self, fragile):
        self.stop = self.restart = fragile.stop
        self.kill, self.pause = fragile.kill, fragile.freeze
        self._fragile = fragile

    def let_stop(self):
        """It does not end with the broker."""

    def come_back(self):
        self._fragile.thaw()
        self._fragile.start()


class KeptPostgres:
    """The embedded one: whoever ends it, its keeper starts it again."""

    def __init__(self, served, bury):
        self._served = served
        self._bury = bury

    def stop(self):
        self._end(signal.SIGINT)

    restart = stop

    def kill(self):
        self._end(signal.SIGKILL)

    def _end(self, number):
        postmaster = self._served.postmaster
        os.kill(postmaster, number)
        self._bury(postmaster)

    def pause(self):
        self._served.freeze_postgres()

    def let_stop(self):
        """It ends with the broker, in order, so it must be able to."""
        self._served.thaw_postgres()

    come_back = let_stop


class Fate:
    """Carries out a schedule."""

    def __init__(self, served, database, traffic, patience):
        self._served = served
        self._database = database
        self._traffic = traffic
        self._patience = patience

    async def befall(self, this):
        await self._traffic.flow(told=FLOW, acked=FLOW)
        if this.database is not None:
            await asyncio.to_thread(getattr(self._database, this.database))
            if this.database != "restart":
                await self._traffic.flow(told=FLOW)
                await self._patience.last(this.database_hold_s)
        if this.broker is not None:
            await self._hurt_broker(this.broker, this.broker_hold_s)
            await self._traffic.flow(told=FLOW)
        await asyncio.to_thread(self._database.come_back)

    async def _hurt_broker(self, action, hold_s):
        served = self._served
        if action == "pause":
            served.signal(signal.SIGSTOP)
            await self._patience.last(hold_s)
            served.signal(signal.SIGCONT)
            return
        if action == "kill":
            await asyncio.to_thread(served.kill)
        else:
            self._database.let_stop()
            served.signal(signal.SIGTERM)
            assert await asyncio.to_thread(served.wait, 30) == 0, served.talk()
        if action != "restart":
            await self._patience.last(hold_s)
        await asyncio.to_thread(served.start)


async def live_through(served, database, patience, plan):
    """The whole schedule under load; the books of the traffic."""
    await asyncio.to_thread(served.start)
    async with Traffic(served.url, ROUTES, QUEUES, producers_a_route=1, breath_s=0.01) as traffic:
        fate = Fate(served, database, traffic, patience)
        for this in plan:
            await fate.befall(this)
        await traffic.flow(told=FLOW, acked=FLOW)
        books = await traffic.finish(120)
    assert books.statuses["stored"] > 0
    assert books.statuses["buffered"] > 0
    assert not [path for path in served.spool.rglob("*") if ".buf" in path.name]
    return books


async def own(serve, fragile, patience, seed, rounds):
    served = serve("--database-url", fragile.url, num_shards=2, drain_timeout_s=3)
    database = OwnPostgres(fragile)
    books = await live_through(served, database, patience, schedule(seed, rounds))
    await judge(fragile.url, books)


async def kept(serve, bury, patience, seed, rounds):
    served = serve(num_shards=2, drain_timeout_s=3)
    database = KeptPostgres(served, bury)
    books = await live_through(served, database, patience, schedule(seed, rounds))
    served.kill()
    with EmbeddedPostgres(served.data) as postgres:
        await judge(postgres.url, books)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", [1])
async def test_a_database_of_ones_own(serve, fragile, patience, seed):
    """Nobody starts it again but the operator."""
    await own(serve, fragile, patience, seed, ROUNDS)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", [2])
async def test_the_embedded_database(serve, bury, patience, seed):
    """The broker starts it again."""
    await kept(serve, bury, patience, seed, ROUNDS)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(100, 103))
async def test_a_database_of_ones_own_through_the_night(serve, fragile, patience, seed):
    """Many more rounds."""
    await own(serve, fragile, patience, seed, ROUNDS_AT_NIGHT)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(200, 203))
async def test_the_embedded_database_through_the_night(serve, bury, patience, seed):
    """Many more rounds."""
    await kept(serve, bury, patience, seed, ROUNDS_AT_NIGHT)
