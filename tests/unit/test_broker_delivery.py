"""Leasing over many lanes, without PostgreSQL: who is asked, who waits, who is let go on."""

import asyncio
from functools import partial
from types import SimpleNamespace

import msgspec
import pytest

from spillway.broker import delivery
from spillway.broker.append import Arrivals, append
from spillway.broker.bodies import Bodies, MissingBodyError
from spillway.broker.breaker import Breaker
from spillway.broker.delivery import Delivery, rfc3339
from spillway.broker.dispatch import Dispatch
from spillway.core import commands as cmd
from spillway.core.errors import NotOwnerError
from spillway.core.state import counts
from spillway.log.checkpoints import LogDamagedError
from spillway.wire import LeaseRequest, PushItem

GROUP = "default"


class Scene:
    """A queue with lanes on one shard whose commits land at once."""

    def __init__(self, lone, partitions: int, **options) -> None:
        self.lone, self.shard = lone, lone.shard
        self.dispatch = Dispatch()
        self.queue = lone.queue(**options)
        self.entries = [lone.lane(i, f"p{i}", self.queue) for i in range(1, partitions + 1)]
        self.shard.on_ready = lambda entry: self.dispatch.announce(entry.facts)
        self.shard.ticket = self.landed
        facts = SimpleNamespace(
            queue=self._queue, ensure_group=self._group, lanes=self._lanes, cached_lane=None
        )
        breaker = Breaker()
        self.bodies = Bodies(None, breaker)
        self.delivering = partial(
            Delivery, facts, [self.shard], self.dispatch, self.bodies, breaker
        )
        self.delivery = self.delivering()
        self.looks = 0
        self.attempts = []

    def landed(self) -> asyncio.Future[None]:
        future = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future

    async def _queue(self, org, name):
        self.looks += 1
        return self.queue

    async def _group(self, queue, name):
        return False, queue.groups.setdefault(name, SimpleNamespace(paused=False))

    async def _lanes(self, queue):
        return list(queue.lanes.values())

    def push(self, lane_id: int, *payloads: int) -> None:
        entry = self.entries[lane_id - 1]
        arrivals = Arrivals.at(entry.facts)
        for i, payload in enumerate(payloads):
            raw = msgspec.json.encode(payload)
            arrivals.add(i, PushItem(queue="orders", payload=msgspec.Raw(raw)), raw, f"t{payload}")
        append(self.shard, entry, arrivals, [None] * len(payloads), self.lone.clock.now_ms())

    async def lease(self, count: int = 1, **more):
        """Payloads, or the reason why there are none."""
        request = LeaseRequest(group=GROUP, max=count, **more)
        reply = await self.delivery.lease("default", "orders", request)
        self.attempts += [message.attempt for message in reply.messages]
        return [msgspec.json.decode(m.payload) for m in reply.messages] or reply.reason

    def places(self, entry) -> tuple[int, int]:
        """How many messages of a lane are ready, and how many leased."""
        found = counts(entry.groups[GROUP].state, self.shard.moment(entry))
        return found["ready"], found["leased"]

    def waiting(self, **more) -> asyncio.Task:
        return asyncio.get_running_loop().create_task(self.lease(wait_ms=20_000, **more))


@pytest.fixture
def scene(lone):
    return Scene(lone, partitions=3)


async def turn(times: int = 5) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


async def test_lanes_are_asked_in_turn(scene):
    """Three lanes with three messages each give one after another, not one lane first."""
    for lane_id in (1, 2, 3):
        scene.push(lane_id, *(lane_id * 10 + i for i in range(3)))
    assert [await scene.lease() for _ in range(9)] == [
        [10], [20], [30], [11], [21], [31], [12], [22], [32],
    ]  # fmt: skip
    assert await scene.lease() == "empty"


async def test_a_lease_gathers_from_several_lanes(scene):
    """One request takes what it can get, each lane's messages in order."""
    scene.push(1, 10, 11)
    scene.push(3, 30)
    assert await scene.lease(10) == [10, 11, 30]


async def test_empty_lanes_are_asked_once(scene):
    """A lane that had nothing is no candidate until something comes."""
    assert await scene.lease() == "empty"
    line = scene.dispatch.line(scene.queue, GROUP)
    assert list(line.candidates) == []
    scene.push(2, 20)
    assert list(line.candidates) == [2]


async def test_everybody_is_told_what_holds_a_lane_back(lone):
    """Not only who looks first; whoever does not take from that lane is told of his own."""
    scene = Scene(lone, partitions=3, order="partition", backoff_base_ms=60_000)
    scene.push(1, 10, 11)
    scene.push(2, 20, 21)
    assert [await scene.lease(), await scene.lease()] == [[10], [20]]
    assert [await scene.lease() for _ in range(3)] == ["lane_busy"] * 3
    lone.shard.handle(scene.entries[0], GROUP, cmd.Nack(1, ((1, 1),), delay_ms=60_000))
    reasons = [await scene.lease(partitions=[name]) for name in ("p1", "p2", "p3") * 2]
    assert reasons == ["retry_pending", "lane_busy", "empty"] * 2
    assert await scene.lease(partitions=[]) == "empty"
    for entry in scene.entries[:2]:
        lone.shard.handle(entry, GROUP, cmd.Seek(after=9))
    assert [await scene.lease() for _ in range(2)] == ["empty"] * 2


async def test_what_held_a_lane_back_is_forgotten_when_all_lanes_are_looked_at_again(lone):
    """The shard was away meanwhile: what was known of its lanes is old."""
    scene = Scene(lone, partitions=1, order="partition")
    scene.push(1, 10, 11)
    assert [await scene.lease(), await scene.lease()] == [[10], "lane_busy"]
    scene.shard.entries[1] = lone.lane(1, "p1", scene.queue)
    scene.dispatch.look_again()
    assert [await scene.lease() for _ in range(2)] == ["empty"] * 2


@pytest.fixture
def delayed(lone, monkeypatch):
    """A lane whose first two messages are delayed; a lease steps over one at a time."""
    for room in ("order", "group"):
        monkeypatch.setattr(f"spillway.core.{room}.SCAN_RUNS_MAX", 1)
    scene = Scene(lone, partitions=1)
    scene.push(1, 10, 11, 12)
    for version in (1, 2):
        scene.entries[0].lane.schedule.defer(version, lone.clock.ms + 1_000 * version)
    return scene


async def test_what_is_due_behind_many_delayed_messages_is_found(delayed):
    """A lane that was looked at in part only is looked at further, though nobody waits."""
    assert await delayed.lease() == [12]
    assert await delayed.lease() == "empty"


async def test_a_lease_does_not_look_for_ever(delayed, monkeypatch):
    """When its time is over the reason says so, and the next lease goes on behind."""
    monkeypatch.setattr(delivery, "SCAN_S", 0)
    assert [await delayed.lease() for _ in range(3)] == ["scanning", "scanning", [12]]


async def test_what_is_due_behind_many_empty_lanes_is_found(lone, monkeypatch):
    """After a start every lane is looked at before a lease says that nothing is due."""
    monkeypatch.setattr(delivery, "LANES_ASKED_MAX", 2)
    scene = Scene(lone, partitions=9)
    scene.push(9, 90)
    line = scene.dispatch.line(scene.queue, GROUP)
    line.candidates.clear()
    assert await scene.lease() == [90]


async def test_a_message_goes_to_one_who_takes_from_its_partition(scene):
    """Two workers wait, the longer one for another partition: the message finds the other."""
    other, fitting = scene.waiting(partitions=["p1"]), scene.waiting(partitions=["p2"])
    await turn()
    scene.push(2, 20)
    await turn()
    assert (fitting.result(), other.done()) == ([20], False)
    other.cancel()


async def test_what_comes_while_a_worker_looks_is_not_missed(scene):
    """A push to a lane that was asked already, while another lane is being read, is found."""
    read, begun = asyncio.Event(), asyncio.Event()
    slow = scene.shard.entries.pop(2)

    async def lanes(facts):
        begun.set()
        await read.wait()
        scene.shard.entries[2] = slow
        return [slow]

    scene.shard.lanes = lanes
    worker = scene.waiting()
    await begun.wait()
    scene.push(1, 10)
    read.set()
    assert await asyncio.wait_for(worker, 5) == [10]


async def test_a_worker_that_leaves_while_it_looks_lets_others_look(scene):
    """It was woken for a message that it did not take: somebody else gets it."""
    scene.dispatch.line(scene.queue, GROUP).primed = True
    leaves, stays = scene.waiting(), scene.waiting()
    await turn()
    begun, slow = asyncio.Event(), scene.shard.entries.pop(2)

    async def lanes(facts):
        if begun.is_set():
            scene.shard.entries[2] = slow
            return
        begun.set()
        await asyncio.Event().wait()

    scene.shard.lanes = lanes
    scene.push(2, 20)
    await begun.wait()
    leaves.cancel()
    assert await asyncio.wait_for(stays, 5) == [20]


async def test_a_wheel_of_empty_lanes_leaves_the_loop_to_others(lone, monkeypatch):
    """However many lanes are empty, between two turns of the wheel others get theirs."""
    monkeypatch.setattr(delivery, "LANES_ASKED_MAX", 2)
    scene = Scene(lone, partitions=20)
    scene.dispatch.line(scene.queue, GROUP).prime(scene.queue.lanes.values())
    worker = scene.waiting()
    await asyncio.sleep(0)
    looks = []
    while scene.dispatch.line(scene.queue, GROUP).candidates:
        looks.append(scene.looks)
        await asyncio.sleep(0)
    assert looks == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    worker.cancel()


async def test_a_paused_queue_gives_nothing(scene):
    """The reason says so; nobody looks at the lanes."""
    scene.push(1, 10)
    scene.queue.paused = True
    assert await scene.lease() == "paused"
    scene.queue.paused = False
    assert await scene.lease() == [10]


async def test_where_nothing_is_owned_somebody_else_is_to_be_asked(scene):
    """A queue whose lanes all belong to others is not called empty."""
    scene.shard.owned = False
    with pytest.raises(NotOwnerError):
        await scene.lease()


async def test_a_stop_answers_who_waits(scene):
    """Nobody waits for a broker that goes."""
    worker = scene.waiting()
    await turn()
    scene.dispatch.stop()
    assert await worker == "empty"


async def test_a_caller_that_leaves_before_the_commit_spends_no_attempt(scene):
    """The lease was decided, its holder is gone: the message is ready again as if never leased."""
    scene.push(1, 10)
    never = asyncio.get_running_loop().create_future()
    scene.shard.ticket = lambda: never
    worker = asyncio.create_task(scene.lease())
    await turn()
    worker.cancel()
    await turn()
    scene.shard.ticket = scene.landed
    request = LeaseRequest(group=GROUP)
    (message,) = (await scene.delivery.lease("default", "orders", request)).messages
    assert (message.attempt, message.version, message.receipt) == (1, 1, "1~2~0~default~1")


# ---------------------------------------------------------------- how much fits


async def test_a_lease_has_a_bound_in_bytes(scene):
    """What does not fit is ready again, as if it had never been leased."""
    scene.delivery = scene.delivering(bytes_max=10)
    scene.push(1, 1000, 1001, 1002)
    scene.push(2, 2000, 2001)
    assert [await scene.lease(9) for _ in range(3)] == [[1000, 1001], [1002, 2000], [2001]]
    assert set(scene.attempts) == {1}
    assert await scene.lease() == "empty"


async def test_a_message_over_the_bound_comes_alone(scene):
    """At least one message is handed out, however large it is."""
    scene.delivery = scene.delivering(bytes_max=3)
    scene.push(1, 1000, 1001)
    assert [await scene.lease(9) for _ in range(2)] == [[1000], [1001]]


# ---------------------------------------------------------------- what cannot be delivered


async def test_a_missing_body_holds_back_nothing_else(scene):
    """Its neighbours and the other lanes of the lease are ready again, itself it stays leased."""

    async def find(entry, runs, bytes_max):
        raise MissingBodyError(2, 2)

    scene.push(1, 10)
    scene.push(2, 20, 21, 22)
    scene.push(3, 30)
    scene.entries[1].window.clear()
    scene.bodies.find = find
    with pytest.raises(MissingBodyError):
        await scene.lease(9)
    assert [scene.places(entry) for entry in scene.entries] == [(1, 0), (2, 1), (1, 0)]


async def test_one_that_cannot_be_given_back_does_not_stop_the_others(scene):
    """A lane with a broken control log keeps its lease until it runs out; the next one does not."""
    never = asyncio.get_running_loop().create_future()
    scene.shard.ticket = lambda: never
    scene.push(1, 10)
    scene.push(2, 20)
    worker = asyncio.create_task(scene.lease(9))
    await turn()
    scene.entries[0].groups[GROUP].error = LogDamagedError("broken")
    worker.cancel()
    await turn()
    scene.shard.ticket = scene.landed
    assert await scene.lease(partitions=["p2"]) == [20]


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "1970-01-01T00:00:00.000Z"), (1_700_000_000_007, "2023-11-14T22:13:20.007Z")],
)
def test_moments_travel_with_milliseconds(ms, text):
    """RFC 3339, UTC, three digits, always."""
    assert rfc3339(ms) == text
