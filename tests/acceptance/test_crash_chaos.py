"""Brokers and PostgreSQL are killed at random moments under load; the database alone is the judge.

A seed fixes who is killed when. What a client was told is in the books of the traffic, and a push
that went to a file is followed by its transaction id to the log.
"""

import asyncio
import os
import signal
from collections import Counter
from random import Random

import psycopg
import pytest

from spillway.log.embedded import EmbeddedPostgres
from spillway.testing.traffic import Route, Traffic
from spillway.testing.verdict import judge

ROUTES = [
    Route("plain"),
    Route("parts", "north"),
    Route("parts", "south"),
    Route("strict", "Default"),
]
OPTIONS = {"max_attempts": 1000, "visibility_ms": 1_500, "backoff_base_ms": 0}
QUEUES = {"plain": OPTIONS, "parts": OPTIONS, "strict": OPTIONS | {"order": "partition"}}
MESSAGES_A_ROUND = 150
"""How many must be told and acked between two kills: else nothing was tried."""

pytestmark = [pytest.mark.slow]


class Killer:
    """Waits until messages flowed, then a little more by the dice, then kills."""

    def __init__(self, served, traffic, bury, seed, rounds):
        self.served = served
        self.kills = Counter()
        self.flowed = []
        self._traffic = traffic
        self._bury = bury
        self._random = Random(seed)
        # Each kind at least once, in an order of the seed's own.
        kinds = ["broker", "postmaster", "both", "backend", "terminated"]
        self._random.shuffle(kinds)
        self._plan = (kinds * rounds)[:rounds]

    async def run(self):
        for kind in self._plan:
            await self.let_flow()
            await asyncio.to_thread(getattr(self, f"kill_{kind}"))
            self.kills[kind] += 1
        await self.let_flow()

    async def let_flow(self):
        """Enough told and acked since the last kill, or fail."""
        much = MESSAGES_A_ROUND + self._random.randint(0, MESSAGES_A_ROUND)
        self.flowed.append(await self._traffic.flow(told=much, acked=much))

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


async def live_and_judge(served, bury, seed, rounds, *, whole_log):
    """One life under fire, then the judgement."""
    await asyncio.to_thread(served.start)
    async with Traffic(served.url, ROUTES, QUEUES, park_share=0.01) as traffic:
        killer = Killer(served, traffic, bury, seed, rounds)
        await killer.run()
        books = await traffic.finish()
    # The kills happened, messages flowed between them, and clients felt it.
    assert killer.kills.total() == rounds
    assert len(killer.flowed) == rounds + 1
    assert all(min(flow) >= MESSAGES_A_ROUND for flow in killer.flowed)
    assert traffic.retries > 0
    served.kill()
    with EmbeddedPostgres(served.data) as postgres:
        result = await judge(postgres.url, books, whole_log=whole_log)
        assert result.messages == len(books.told)
        if not whole_log:
            with psycopg.connect(postgres.url) as conn:
                query = "SELECT count(*) FROM spillway.checkpoint"
                assert conn.execute(query).fetchone()[0] > 0


@pytest.mark.timeout(150)
async def test_kills_under_load_lose_and_double_nothing(serve, bury):
    """Broker and PostgreSQL are killed five ways; the whole control log agrees with every reply."""
    served = serve(num_shards=2, checkpoint_interval_s=3600)
    await live_and_judge(served, bury, seed=1, rounds=5, whole_log=True)


@pytest.mark.timeout(150)
async def test_kills_beside_checkpoints_and_trimming(serve, bury):
    """The same while checkpoints are written and the control log is trimmed all the time."""
    served = serve(
        num_shards=2, checkpoint_interval_s=0.2, checkpoint_events_min=1, lane_idle_s=0.5
    )
    await live_and_judge(served, bury, seed=2, rounds=3, whole_log=False)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(100, 110))
@pytest.mark.parametrize("whole_log", [True, False], ids=["log", "checkpoints"])
async def test_kills_under_load_through_the_night(serve, bury, seed, whole_log):
    """Many more of them."""
    settings = {} if whole_log else {"checkpoint_events_min": 1}
    interval_s = 3600 if whole_log else 0.2
    served = serve(checkpoint_interval_s=interval_s, **settings)
    await live_and_judge(served, bury, seed, rounds=20, whole_log=whole_log)
