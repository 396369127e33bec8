"""The line of a (queue, group): a fair wheel of lanes, and wakes that are never lost."""

import asyncio
from datetime import UTC, datetime

import pytest

from spillway.broker.dispatch import Dispatch, Line
from spillway.broker.facts import LaneFacts, QueueFacts
from spillway.wire import QueueOptions

LONG_S = 20.0


def queue_of(queue_id: int = 1) -> QueueFacts:
    made = datetime(2026, 1, 1, tzinfo=UTC)
    return QueueFacts(queue_id, "default", "orders", QueueOptions(), paused=False, created_at=made)


def lane(lane_id: int, partition: str = "Default", queue: QueueFacts | None = None) -> LaneFacts:
    return LaneFacts(lane_id, queue or queue_of(), partition, 2, 0, 0)


def line_of(*lanes: LaneFacts) -> Line:
    line = Line()
    for each in lanes:
        line.add(each)
    return line


async def waiting(line: Line, *partitions: list[str] | None) -> list[asyncio.Task[None]]:
    """Tasks that wait in this order, each for its partitions."""
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(line.wait(LONG_S, wanted)) for wanted in partitions]
    await asyncio.sleep(0)
    return tasks


async def done(tasks: list[asyncio.Task[None]]) -> list[bool]:
    """Which of them have been woken, once the loop has turned."""
    for _ in range(3):
        await asyncio.sleep(0)
    return [task.done() for task in tasks]


@pytest.fixture(autouse=True)
async def _leave_nobody_waiting():
    yield
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# ---------------------------------------------------------------- candidates


def test_lanes_take_turns():
    """A lane that was asked goes behind the others: a busy one starves nobody."""
    line = line_of(lane(1), lane(2), lane(3))
    turns = []
    for _ in range(6):
        first = line.next_lanes(1, None)[0].lane_id
        turns.append(first)
        line.candidates.move_to_end(first)
    assert turns == [1, 2, 3, 1, 2, 3]


def test_a_lane_that_calls_again_keeps_its_place():
    """Pushing more to a lane neither doubles it nor moves it to the front or the end."""
    line = line_of(lane(1), lane(2), lane(1))
    assert [each.lane_id for each in line.next_lanes(9, None)] == [1, 2]


def test_only_wanted_partitions_are_looked_at():
    """Who asks for some partitions gets their lanes, in turn, up to the count."""
    line = line_of(lane(1, "a"), lane(2, "b"), lane(3, "c"), lane(4, "a"))
    asked = [(9, ["a"]), (1, ["a"]), (9, ["c", "b"]), (9, ["z"]), (2, None)]
    found = [[each.lane_id for each in line.next_lanes(*ask)] for ask in asked]
    assert found == [[1, 4], [1], [2, 3], [], [1, 2]]


# ---------------------------------------------------------------- waiters


async def test_one_message_wakes_one():
    """A thousand waiting workers do not all run for one message: the longest waiting does."""
    line = Line()
    tasks = await waiting(line, None, None, None)
    line.add(lane(1))
    assert await done(tasks) == [True, False, False]
    line.add(lane(2))
    assert await done(tasks) == [True, True, False]
    assert line.waiting == 1


async def test_a_wake_goes_to_one_who_takes_from_that_partition():
    """Who waits for another partition sleeps on, however long it has waited already."""
    line = Line()
    tasks = await waiting(line, ["a"], ["b", "c"], None, ["c"])
    line.add(lane(1, "c"))
    assert await done(tasks) == [False, True, False, False]
    line.add(lane(1, "c"))
    line.add(lane(1, "c"))
    assert await done(tasks) == [False, True, True, True]


async def test_a_wake_for_nobody_in_particular_goes_to_the_longest_waiting():
    """A queue that goes on after a pause wakes its waiters one after another."""
    line = Line()
    tasks = await waiting(line, ["a"], None)
    line.wake()
    assert await done(tasks) == [True, False]


async def test_a_woken_waiter_that_left_hands_its_wake_on():
    """Woken and cancelled in one turn: the next one who takes from that partition is woken."""
    line = Line()
    tasks = await waiting(line, ["b"], ["a"], ["b"])
    line.add(lane(1, "b"))
    tasks[0].cancel()
    assert await done(tasks) == [True, False, True]
    assert tasks[0].cancelled()


async def test_a_waiter_that_leaves_unwoken_wakes_nobody():
    """Leaving is no news to the others."""
    line = Line()
    tasks = await waiting(line, None, None)
    tasks[0].cancel()
    assert await done(tasks) == [True, False]
    line.wake()
    assert await done(tasks) == [True, True]


async def test_waiting_ends_with_its_time():
    """Without a wake the wait is over in time, and nothing is left of it."""
    line = Line()
    await line.wait(0.001)
    assert (line.waiting, len(line._waiters)) == (0, 0)


async def test_polling_an_idle_line_leaves_nothing_behind():
    """Workers that come back again and again while nothing is pushed cost no memory."""
    line = Line()
    for _ in range(50):
        await line.wait(0)
    assert len(line._waiters) == 0


async def test_everybody_can_be_woken():
    """When lanes come to this broker all look again, whatever they wait for."""
    line = Line()
    tasks = await waiting(line, None, ["a"], None)
    line.wake_all()
    assert await done(tasks) == [True, True, True]


def test_wakes_are_counted_though_nobody_waits():
    """Whoever is just looking can tell that something came meanwhile."""
    line = line_of(lane(1), lane(1))
    line.wake_all()
    assert line.wakes == 3


# ---------------------------------------------------------------- all lines


async def test_an_announcement_reaches_every_group_of_its_queue_alone():
    """A push is news for each group of that queue, and for no other queue."""
    dispatch, orders, others = Dispatch(), queue_of(1), queue_of(2)
    lines = [dispatch.line(orders, "a"), dispatch.line(orders, "b"), dispatch.line(others, "a")]
    dispatch.announce(lane(7, queue=orders))
    assert [list(line.candidates) for line in lines] == [[7], [7], []]
    assert dispatch.line(orders, "a") is lines[0]


async def test_lines_begin_anew_when_lanes_come():
    """Every line is primed again, and everybody looks."""
    dispatch = Dispatch()
    line = dispatch.line(queue_of(), "a")
    line.primed = True
    tasks = await waiting(line, None)
    dispatch.look_again()
    assert (line.primed, await done(tasks)) == (False, [True])


async def test_who_waits_for_what_is_gone_finds_out():
    """A deleted group wakes its own waiters, a deleted queue those of all its groups."""
    dispatch, queue = Dispatch(), queue_of()
    first, second = dispatch.line(queue, "a"), dispatch.line(queue, "b")
    tasks = [*await waiting(first, None), *await waiting(second, None)]
    dispatch.forget_group(1, "a")
    dispatch.forget_group(1, "unknown")
    assert await done(tasks) == [True, False]
    dispatch.forget_queue(1)
    assert await done(tasks) == [True, True]
    assert list(dispatch.lines(1)) == []


async def test_nobody_waits_for_a_broker_that_stops():
    """A stop wakes all, and says so to whoever asks."""
    dispatch = Dispatch()
    tasks = [
        *await waiting(dispatch.line(queue_of(1), "a"), None, ["p"]),
        *await waiting(dispatch.line(queue_of(2), "a"), None),
    ]
    dispatch.stop()
    assert (dispatch.stopped, await done(tasks)) == (True, [True, True, True])
