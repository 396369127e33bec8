"""What is removed, and what must not be: groups, the dedupe window, and races in between."""

import pytest

SHORT = {"retention_ms": 0, "dedupe_window_ms": 0}


@pytest.fixture(autouse=True)
def by_hand(desk):
    """Only the test prunes: the duties do nothing by themselves."""
    for task in desk.broker._tasks:
        if not task.get_name().startswith("shard-"):
            task.cancel()


async def versions(desk):
    """What the log still holds."""
    return [v for (v,) in await desk.rows("SELECT version FROM spillway.message ORDER BY 1")]


async def test_the_dedupe_window_outlasts_retention(desk):
    """A window is rebuilt from the log: what it must know stays, however short the retention."""
    await desk.queue(retention_ms=0, dedupe_window_ms=60_000)
    await desk.push(1, transaction_id="once")
    await desk.ack(*await desk.lease())
    assert await desk.broker.pruner.run_once() == 0
    desk.forget()
    assert await desk.push(1, transaction_id="once") == [1]
