"""The sweeper's alarms, on a shard that only notes what is asked of it."""

import asyncio
from types import SimpleNamespace

import pytest

from spillway.broker.sweeper import POSTPONED_MS, SWEPT_A_ROUND_MAX, Sweeper
from spillway.core import commands as cmd
from spillway.core.errors import NotOwnerError, OverloadedError

NOW_MS = 1_700_000_000_000


class NotingShard:
    """A shard whose lanes do nothing when they are swept, or fail as the test says."""

    def __init__(self) -> None:
        self.on_alarm = None
        self.swept: list[int] = []
        self.error: Exception | None = None
        self.entries: dict[int, SimpleNamespace] = {}

    def lane(self, lane_id: int) -> SimpleNamespace:
        facts = SimpleNamespace(lane_id=lane_id, shard_id=0)
        entry = SimpleNamespace(facts=facts, alarm_ms=None, dead=False)
        return self.entries.setdefault(lane_id, entry)

    def ring(self, entry: SimpleNamespace, at_ms: int) -> None:
        entry.alarm_ms = at_ms
        self.on_alarm(entry, at_ms)

    def sweep(self, entry: SimpleNamespace) -> None:
        entry.alarm_ms = None
        self.swept.append(entry.facts.lane_id)
        if self.error is not None:
            raise self.error

    def postpone(self, entry: SimpleNamespace, at_ms: int) -> None:
        self.ring(entry, at_ms)


@pytest.fixture
def shard():
    return NotingShard()


@pytest.fixture
def clock():
    clock = SimpleNamespace(ms=NOW_MS)
    clock.now_ms = lambda: clock.ms
    return clock


@pytest.fixture
def sweeper(shard, clock):
    sweeper = Sweeper([shard], clock)
    shard.on_alarm = sweeper.set_alarm
    return sweeper


async def test_the_earliest_alarm_rings_first(sweeper, shard):
    """Lanes are swept in the order of their alarms, and none before its time."""
    for lane_id, wait_ms in ((1, 0), (2, -20), (3, 1), (4, -10)):
        shard.ring(shard.lane(lane_id), NOW_MS + wait_ms)
    assert await sweeper.run_once() == 3
    assert shard.swept == [2, 4, 1]


async def test_alarms_of_one_moment_ring_as_they_were_set(sweeper, shard):
    """Lanes of the same millisecond are no reason to compare lanes."""
    for lane_id in (3, 1, 2):
        shard.ring(shard.lane(lane_id), NOW_MS)
    await sweeper.run_once()
    assert shard.swept == [3, 1, 2]


async def test_a_stale_alarm_is_ignored(sweeper, shard):
    """A lane that got an earlier alarm rings once, and one that left memory not at all."""
    moved, gone, back = shard.lane(1), shard.lane(2), shard.lane(3)
    shard.ring(moved, NOW_MS)
    shard.ring(moved, NOW_MS - 5)
    shard.ring(gone, NOW_MS)
    del shard.entries[gone.facts.lane_id]
    shard.ring(back, NOW_MS)
    shard.entries[3] = SimpleNamespace(facts=back.facts, alarm_ms=NOW_MS + 5, dead=False)
    assert await sweeper.run_once() == 1
    assert shard.swept == [1]
    assert await sweeper.run_once() == 0


async def test_it_sleeps_until_the_earliest_alarm(sweeper, shard):
    """A second at the most, a millisecond at the least."""
    assert sweeper.wait_s() == 1.0
    shard.ring(shard.lane(1), NOW_MS + 5_000)
    assert sweeper.wait_s() == 1.0
    shard.ring(shard.lane(2), NOW_MS + 250)
    assert sweeper.wait_s() == 0.25
    shard.ring(shard.lane(3), NOW_MS - 250)
    assert sweeper.wait_s() == 0.001


async def test_an_earlier_alarm_wakes_it(sweeper, shard, clock):
    """An alarm before the end of its sleep is not slept through; a later one disturbs nobody."""
    shard.ring(shard.lane(1), NOW_MS + 500)
    sweeper.wait_s()
    shard.ring(shard.lane(2), NOW_MS + 500)
    assert not sweeper._nudged.is_set()
    shard.ring(shard.lane(3), NOW_MS + 499)
    assert sweeper._nudged.is_set()


async def test_the_loop_sweeps_what_falls_due_while_it_sleeps(sweeper, shard, clock):
    """End to end: asleep for a second, woken by an alarm that is due now."""
    task = asyncio.create_task(sweeper.run())
    await asyncio.sleep(0)
    shard.ring(shard.lane(1), NOW_MS)
    for _ in range(5):
        await asyncio.sleep(0)
    task.cancel()
    assert (shard.swept, sweeper.failures) == ([1], 0)


async def test_an_overloaded_lane_is_swept_later(sweeper, shard, clock):
    """What cannot be swept now is put off by a second; the other lanes do not wait for it."""
    shard.error = OverloadedError()
    shard.ring(shard.lane(1), NOW_MS)
    shard.ring(shard.lane(2), NOW_MS)
    assert await sweeper.run_once() == 2
    shard.error = None
    clock.ms += POSTPONED_MS - 1
    assert await sweeper.run_once() == 0
    clock.ms += 1
    assert await sweeper.run_once() == 2
    assert shard.swept == [1, 2, 1, 2]


async def test_a_lost_lane_is_not_put_off(sweeper, shard, clock):
    """A lane that left with its shard is the next owner's."""
    entry = shard.lane(1)
    entry.dead = False
    shard.ring(entry, NOW_MS)

    def lose(lost):
        lost.dead = True
        raise NotOwnerError

    shard.sweep = lose
    await sweeper.run_once()
    clock.ms += POSTPONED_MS
    assert (await sweeper.run_once(), sweeper._alarms) == (0, [])


async def test_a_round_is_bounded(sweeper, shard):
    """A burst of alarms leaves the loop to others in between, and the rest comes at once."""
    for lane_id in range(SWEPT_A_ROUND_MAX + 3):
        shard.ring(shard.lane(lane_id), NOW_MS)
    assert await sweeper.run_once() == SWEPT_A_ROUND_MAX
    assert sweeper.wait_s() == 0.001
    assert await sweeper.run_once() == 3


async def test_a_lease_that_ends_makes_its_message_leasable(lone):
    """With a real shard: nobody leases, and yet the lane calls when the lease is over."""
    sweeper = Sweeper([lone.shard], lone.clock)
    lone.shard.on_alarm = sweeper.set_alarm
    entry = lone.lane(tail=1, backoff_base_ms=0)
    lone.shard.handle(entry, "g", cmd.CreateGroup())
    lone.shard.handle(entry, "g", cmd.LeaseMessages(1, visibility_ms=50))
    ready = []
    lone.shard.on_ready = ready.append
    lone.clock.ms += 49
    assert (await sweeper.run_once(), ready) == (0, [])
    lone.clock.ms += 1
    await sweeper.run_once()
    assert ready[0] is entry
    assert lone.shard.handle(entry, "g", cmd.LeaseMessages(1)).runs == ((1, 1, 2),)


async def test_a_lane_that_left_memory_is_called_back_once(shard, clock, sweeper):
    """At the moment it was let go with, not at that of an alarm that was out of date."""
    called = []
    sweeper.on_away_due = lambda shard_id, lane_id: called.append((shard_id, lane_id))
    entry = shard.lane(7)
    shard.ring(entry, NOW_MS + 10)
    sweeper.let_go(entry, NOW_MS + 20)
    shard.entries.clear()
    for later_ms, expected in ((10, 0), (20, 1), (30, 0)):
        clock.ms = NOW_MS + later_ms
        assert await sweeper.run_once() == expected
    assert (called, shard.swept) == ([(0, 7)], [])


async def test_a_lane_that_came_back_by_itself_rings_as_ever(shard, clock, sweeper):
    """Its alarm is there still: it is not set again, however often the lane comes and goes."""
    sweeper.on_away_due = lambda *where: pytest.fail(f"called back {where}")
    for _ in range(3):
        entry = shard.lane(7)
        shard.ring(entry, NOW_MS + 10)
        sweeper.let_go(entry, NOW_MS + 10)
        shard.entries.clear()
    shard.ring(shard.lane(7), NOW_MS + 10)
    assert len(sweeper._alarms) == 1
    clock.ms = NOW_MS + 10
    assert await sweeper.run_once() == 1
    assert shard.swept == [7]


async def test_a_lane_that_leaves_with_nothing_ahead_is_not_called_back(shard, clock, sweeper):
    """What it once waited for is done."""
    sweeper.on_away_due = lambda *where: pytest.fail(f"called back {where}")
    entry = shard.lane(7)
    shard.ring(entry, NOW_MS + 10)
    sweeper.let_go(entry, NOW_MS + 10)
    sweeper.let_go(entry, None)
    shard.entries.clear()
    clock.ms = NOW_MS + 10
    assert await sweeper.run_once() == 0
