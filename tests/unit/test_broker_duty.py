"""The loop of every background duty: it goes on whatever happens, until it is cancelled."""

import asyncio

import pytest
from structlog.testing import capture_logs

from spillway.broker.duty import Duty
from spillway.core.errors import DatabaseUnavailableError

LONG_S = 20.0


class Chore(Duty):
    """A duty whose rounds go as the test says: None is well, an error is raised."""

    name = "chore"

    def __init__(self, interval_s: float, *outcomes: Exception | None) -> None:
        super().__init__(interval_s)
        self.outcomes = list(outcomes)
        self.done = asyncio.Event()

    async def run_once(self) -> None:
        outcome = self.outcomes.pop(0) if self.outcomes else None
        if not self.outcomes:
            self.done.set()
        if outcome is not None:
            raise outcome


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_failed_round_is_logged_and_tried_again():
    """Neither our errors nor the network's end a duty."""
    chore = Chore(
        0.001, DatabaseUnavailableError("gone"), ConnectionResetError("reset"), None, None
    )
    with capture_logs() as logs:
        task = asyncio.create_task(chore.run())
        await chore.done.wait()
        await stop(task)
    assert (chore.runs, chore.failures) == (2, 2)
    assert [(log["event"], log["duty"], log["error"]) for log in logs] == [
        ("duty_failed", "chore", "gone"),
        ("duty_failed", "chore", "reset"),
    ]


async def test_a_nudge_begins_the_next_round_at_once():
    """A duty that would sleep for long wakes up."""
    chore = Chore(LONG_S, None, None)
    task = asyncio.create_task(chore.run())
    await asyncio.sleep(0)
    assert chore.runs == 1
    chore.nudge()
    await chore.done.wait()
    await stop(task)
    assert chore.runs == 2


async def test_a_nudge_in_the_middle_of_a_round_is_not_lost():
    """What came too late for this round gets the next one, and only one."""
    chore = Chore(LONG_S, None, None)
    chore.nudge()
    chore.nudge()
    task = asyncio.create_task(chore.run())
    await chore.done.wait()
    for _ in range(5):
        await asyncio.sleep(0)
    await stop(task)
    assert chore.runs == 2


async def test_a_mistake_of_ours_is_told_aloud_and_ends_nothing():
    """An error that nobody foresaw comes with its traceback, once; the next round may do better."""
    chore = Chore(0.001, ZeroDivisionError(), ZeroDivisionError(), None)
    with capture_logs() as logs:
        task = asyncio.create_task(chore.run())
        await chore.done.wait()
        await stop(task)
    assert (chore.runs, chore.failures) == (1, 2)
    assert [(log["event"], log["log_level"]) for log in logs] == [("duty_failed", "critical")]
    assert isinstance(logs[0]["exc_info"], ZeroDivisionError)


async def test_a_cancelled_duty_ends():
    """A stop does not wait for the interval."""
    chore = Chore(LONG_S, None)
    task = asyncio.create_task(chore.run())
    await chore.done.wait()
    await stop(task)
    assert task.cancelled()
