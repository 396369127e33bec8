"""A lane comes back from the log with all that it knew: the times and the ids of its messages."""

from spillway.log import reader


async def test_a_seek_after_a_restart_wakes_nothing_that_is_over(desk):
    """Behind what is settled too, a message that is past its time to live stays dropped."""
    await desk.queue()
    await desk.push("long over", ttl_ms=1)
    await desk.push("lasting")
    await desk.ack(*await desk.lease(2))
    desk.forget()
    await desk.do("seek", group="default", to="earliest")
    assert [m.version for m in await desk.lease(5)] == [2]


async def test_a_late_group_after_a_restart_waits_like_the_first(desk):
    """What one group purged before its time is not delivered early to the next."""
    await desk.queue()
    await desk.push("tomorrow", delay_ms=86_400_000)
    await desk.push("now")
    await desk.ack(*await desk.lease(5))
    await desk.do("purge", what="waiting", all=True)
    desk.forget()
    await desk.push("later")
    assert [m.version for m in await desk.lease(5, group="late")] == [2, 3]
    assert await desk.counts("late") == {"deferred": 1, "leased": 2}


async def test_the_times_of_many_batches_come_in_pages(desk, monkeypatch):
    """None is left out, however few are read at a time."""
    monkeypatch.setattr(reader, "BATCHES_TIMED_MAX", 2)
    await desk.queue()
    for at in range(5):
        await desk.push(at, delay_ms=3_600_000)
    desk.forget()
    assert await desk.lease(5) == []
    assert await desk.counts() == {"deferred": 5}


async def test_the_dedupe_window_comes_back_in_pieces(desk, monkeypatch):
    """Whole, and in its order: what is beyond the count is forgotten, the oldest first."""
    monkeypatch.setattr(reader, "BATCHES_RECENT_MAX", 2)
    await desk.queue(dedupe_count=5)
    for at in range(7):
        await desk.push(at, transaction_id=f"tx-{at}")
    desk.forget()
    assert [await desk.push(at, transaction_id=f"tx-{at}") for at in range(6, 1, -1)] == [
        [7],
        [6],
        [5],
        [4],
        [3],
    ]
    assert await desk.push("new", transaction_id="tx-7") == [8]
    assert await desk.push(2, transaction_id="tx-2") == [9]
    assert await desk.told("another", transaction_id="tx-7") == ["transaction_conflict"]
