"""Write-behind: answered first, written a moment later, lost only by a kill or a dead disk."""

import asyncio
import time

import pytest
from structlog.testing import capture_logs

from spillway.core.errors import SpoolFullError
from spillway.spool import behind as behinds
from spillway.spool.behind import Behind

NEVER_MS = 3_600_000


class Sink:
    """Takes what is written; full while the test says so, and as slow as it says."""

    def __init__(self) -> None:
        self.batches: list[list[bytes]] = []
        self.tries = 0
        self.full = False
        self.tried = asyncio.Event()
        self.free = asyncio.Event()
        self.free.set()

    async def write(self, lines: list[bytes]) -> None:
        self.tries += 1
        self.tried.set()
        await self.free.wait()
        if self.full:
            raise SpoolFullError("full")
        self.batches.append(lines)

    async def next_try(self) -> None:
        self.tried.clear()
        async with asyncio.timeout(10):
            await self.tried.wait()
        await asyncio.sleep(0)


@pytest.fixture
async def sink():
    """Where the lines go."""
    return Sink()


async def test_lines_are_written_after_a_moment(sink):
    """Together, in order, with nobody asking."""
    behind = Behind(sink.write, 1, 1000)
    behind.accept([b"1", b"2"])
    behind.accept([b"3"])
    assert (behind.pending, sink.batches) == (3, [])
    await sink.next_try()
    assert (behind.pending, sink.batches) == (0, [[b"1", b"2", b"3"]])
    behind.accept([b"4"])
    await sink.next_try()
    assert sink.batches[1:] == [[b"4"]]


async def test_many_lines_are_written_at_once(sink):
    """As many as a batch holds do not wait for the clock; one less does."""
    behind = Behind(sink.write, NEVER_MS, 3)
    behind.accept([b"1", b"2"])
    for _ in range(5):
        await asyncio.sleep(0)
    assert sink.tries == 0
    behind.accept([b"3"])
    await sink.next_try()
    assert sink.batches == [[b"1", b"2", b"3"]]


async def test_what_is_being_written_does_not_fill_the_next_batch(sink):
    """Or each line that comes meanwhile would be written by itself."""
    behind = Behind(sink.write, NEVER_MS, 3)
    sink.free.clear()
    behind.accept([b"1", b"2", b"3"])
    await sink.next_try()
    behind.accept([b"4"])
    sink.free.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert (sink.batches, behind.pending) == ([[b"1", b"2", b"3"]], 1)
    await behind.close()
    assert sink.batches[1:] == [[b"4"]]


async def test_what_comes_during_a_write_waits_no_longer_than_that(sink, monkeypatch):
    """The moment counts from when the write began: a slow disk does not add to it."""
    loop = asyncio.get_running_loop()
    behind = Behind(sink.write, NEVER_MS, 2)
    sink.free.clear()
    behind.accept([b"1", b"2"])
    await sink.next_try()
    behind.accept([b"3"])
    monkeypatch.setattr(loop, "time", lambda: time.monotonic() + NEVER_MS / 1000)
    sink.free.set()
    await sink.next_try()
    assert sink.batches == [[b"1", b"2"], [b"3"]]


async def test_what_is_being_written_could_still_be_lost(sink, monkeypatch):
    """It counts as pending, and takes its room, until it is durable."""
    monkeypatch.setattr(behinds, "PENDING_BYTES_MAX", 10)
    behind = Behind(sink.write, 1, 1000)
    sink.free.clear()
    behind.accept([b"12345678"])
    await sink.next_try()
    assert behind.pending == 1
    with pytest.raises(SpoolFullError):
        behind.accept([b"123"])
    behind.accept([b"12"])
    assert behind.pending == 2
    sink.free.set()
    await behind.close()
    assert (behind.pending, behind.lost) == (0, 0)
    assert sink.batches == [[b"12345678"], [b"12"]]


async def test_a_failed_write_keeps_its_lines(sink):
    """They are tried again before those that came later, and none is lost."""
    behind = Behind(sink.write, 1, 1000)
    sink.full = True
    behind.accept([b"1", b"2"])
    with capture_logs() as logs:
        await sink.next_try()
        behind.accept([b"3"])
        await sink.next_try()
    assert {log["event"] for log in logs} == {"spool_qos0_waits"}
    assert (behind.pending, sink.batches, behind.lost) == (3, [], 0)
    sink.full = False
    await sink.next_try()
    assert (behind.pending, sink.batches) == (0, [[b"1", b"2", b"3"]])


async def test_more_than_the_memory_for_it_is_refused(sink, monkeypatch):
    """While the disk is full; once it is not, there is room again."""
    monkeypatch.setattr(behinds, "PENDING_BYTES_MAX", 10)
    behind = Behind(sink.write, 1, 1000)
    sink.full = True
    behind.accept([b"12345"])
    await sink.next_try()
    behind.accept([b"12345"])
    with pytest.raises(SpoolFullError) as caught:
        behind.accept([b"1"])
    assert "2 events" in caught.value.message
    assert behind.pending == 2
    sink.full = False
    await sink.next_try()
    behind.accept([b"1234567890"])
    await behind.close()
    assert sink.batches == [[b"12345", b"12345"], [b"1234567890"]]


async def test_closing_writes_the_rest_at_once(sink):
    """Without waiting for the clock, and also what came while it was writing."""
    behind = Behind(sink.write, NEVER_MS, 1000)
    behind.accept([b"1"])
    await behind.close()
    assert (sink.batches, behind.lost) == ([[b"1"]], 0)
    await Behind(sink.write, NEVER_MS, 1000).close()


async def test_what_closing_cannot_write_is_counted_as_lost(sink):
    """Loudly, and without trying for ever."""
    behind = Behind(sink.write, NEVER_MS, 1000)
    sink.full = True
    behind.accept([b"1", b"2"])
    with capture_logs() as logs:
        await behind.close()
    assert (behind.lost, behind.pending, sink.tries) == (2, 0, 1)
    [log] = logs
    assert (log["event"], log["events"], log["log_level"]) == ("spool_qos0_lost", 2, "critical")


async def test_closing_while_a_write_fails_loses_nothing_twice(sink):
    """What was under way and what came meanwhile are both counted, once each."""
    behind = Behind(sink.write, 1, 1000)
    sink.full = True
    sink.free.clear()
    behind.accept([b"1"])
    await sink.next_try()
    behind.accept([b"2", b"3"])
    closing = asyncio.create_task(behind.close())
    await asyncio.sleep(0)
    sink.free.set()
    with capture_logs():
        await closing
    assert (behind.lost, behind.pending) == (3, 0)
