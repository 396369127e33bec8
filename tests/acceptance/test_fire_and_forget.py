"""kill -9 under pushes of qos 0: lost is what was accepted in the last moment, and nothing else."""

import asyncio
import signal
import time

import psycopg
import pytest

from spillway import AsyncClient, SpillwayError

WINDOW_S = 1.0
WRITES_S = 1.5
"""What two writes may take on a machine that is busy with other things."""
WRITES = 6

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture
def served(serve, fragile):
    """A broker that writes by the clock alone."""
    return serve(
        "--database-url",
        fragile.url,
        num_shards=2,
        file_buffer_flush_ms=round(WINDOW_S * 1000),
        file_buffer_max_batch=10_000,
    )


async def push_until_it_dies(url):
    """When each push was answered, and when the first one was not."""
    told_s = []
    async with AsyncClient(url, retries=0) as client:
        while True:
            try:
                result = await client.push("orders", len(told_s), qos=0)
            except SpillwayError:
                return told_s, time.monotonic()
            assert (result.status, result.durable) == ("buffered", False)
            told_s.append(time.monotonic())


@pytest.mark.parametrize("point", ["before_write", "after_fsync_before_reply"])
async def test_a_kill_loses_the_last_moment_alone(served, fragile, patience, point):
    """Killed as the sixth write begins, or is durable: before that nothing is missing."""
    await asyncio.to_thread(served.start, point, WRITES)
    told_s, died_s = await push_until_it_dies(served.url)
    assert await asyncio.to_thread(served.wait) == -signal.SIGKILL
    await asyncio.to_thread(served.start)
    async with AsyncClient(served.url) as client:
        await patience.until(lambda: is_empty(client))
    with psycopg.connect(fragile.url) as conn:
        query = "SELECT convert_from(payload, 'UTF8')::int FROM spillway.message ORDER BY version"
        kept = [n for (n,) in conn.execute(query)]
    assert kept == list(range(len(kept)))
    lost_s = told_s[len(kept) :]
    assert lost_s or point != "before_write"
    assert all(died_s - at_s < WINDOW_S + WRITES_S for at_s in lost_s)
    assert died_s - told_s[0] > (WRITES - 1) * WINDOW_S


async def is_empty(client):
    """Whether nothing waits in files."""
    health = await client.health()
    assert not health.spool.failed
    return health.database == "connected" and not health.spool.pending
