"""Who waits for messages, and which lanes may have some: one line for each (queue, group).

A lane is a candidate when it may have something to lease: it was pushed to, something came back,
or nobody has looked since the start. A lease turns the candidates like a wheel, so that one busy
partition cannot starve another, and drops those that turn out to be empty.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from itertools import islice

from spillway.broker.facts import LaneFacts, QueueFacts


class Line:
    """The candidates and the waiters of one (queue, group)."""

    __slots__ = ("_held_back", "_waiters", "candidates", "primed", "wakes")

    def __init__(self) -> None:
        self.candidates: OrderedDict[int, LaneFacts] = OrderedDict()
        self.primed = False
        self.wakes = 0
        """How often something changed: whoever was just looking then must look again."""
        # Lanes that are no candidates though something waits there: what holds it back.
        self._held_back: dict[int, tuple[str, str]] = {}
        # Each with the partitions it asks for (None: all), the one that waits longest first.
        self._waiters: dict[asyncio.Future[str | None], AbstractSet[str] | None] = {}

    def add(self, lane: LaneFacts) -> None:
        """A lane may have something."""
        self._held_back.pop(lane.lane_id, None)
        if lane.lane_id not in self.candidates:
            self.candidates[lane.lane_id] = lane
        self.wake(lane.partition)

    def prime(self, lanes: Iterable[LaneFacts]) -> None:
        """Nobody has looked since the start: every lane may have something."""
        for lane in lanes:
            self.candidates.setdefault(lane.lane_id, lane)
        self.primed = True

    def drop(self, lane: LaneFacts, held_back_by: str | None = None) -> None:
        """A lane has nothing to lease until it is added again."""
        self.candidates.pop(lane.lane_id, None)
        if held_back_by is not None:
            self._held_back[lane.lane_id] = lane.partition, held_back_by
        else:
            self._held_back.pop(lane.lane_id, None)

    def reason(self, partitions: Iterable[str] | None) -> str:
        """Why there is nothing, where no candidate is left."""
        wanted = None if partitions is None else set(partitions)
        held_back = self._held_back.values()
        reasons = (why for name, why in held_back if wanted is None or name in wanted)
        return next(reasons, "empty")

    def next_lanes(self, count: int, partitions: Iterable[str] | None) -> list[LaneFacts]:
        """The candidates whose turn it is."""
        if partitions is None:
            return list(islice(self.candidates.values(), count))
        wanted = set(partitions)
        fitting = (lane for lane in self.candidates.values() if lane.partition in wanted)
        return list(islice(fitting, count))

    def wake(self, partition: str | None = None) -> None:
        """Let the one look again that waits longest, of those that take from this partition."""
        self.wakes += 1
        for waiter, wanted in self._waiters.items():
            takes = partition is None or wanted is None or partition in wanted
            if takes and not waiter.done():
                waiter.set_result(partition)
                return

    def wake_all(self) -> None:
        """Let everybody look again."""
        self.wakes += 1
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, timeout_s: float, partitions: Iterable[str] | None = None) -> None:
        """Wait for a wake, or for the time to be over."""
        waiter: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None if partitions is None else frozenset(partitions)
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            # The wake was meant for somebody who is still there.
            if waiter.done() and not waiter.cancelled():
                self.wake(waiter.result())
            raise
        finally:
            del self._waiters[waiter]

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(not waiter.done() for waiter in self._waiters)


class Dispatch:
    """All lines of this broker."""

    def __init__(self) -> None:
        self._lines: dict[int, dict[str, Line]] = {}
        self.stopped = False

    def line(self, queue: QueueFacts, group: str) -> Line:
        """The line of a (queue, group)."""
        lines = self._lines.setdefault(queue.queue_id, {})
        line = lines.get(group)
        if line is None:
            line = lines[group] = Line()
        return line

    def lines(self, queue_id: int) -> Iterable[Line]:
        """Every line of a queue."""
        return self._lines.get(queue_id, {}).values()

    def announce(self, lane: LaneFacts) -> None:
        """A lane may have something for every group of its queue."""
        for line in self.lines(lane.queue.queue_id):
            line.add(lane)

    def look_again(self) -> None:
        """Lanes may have come to this broker: every line begins anew."""
        for lines in self._lines.values():
            for line in lines.values():
                line.primed = False
                line.wake_all()

    def forget_queue(self, queue_id: int) -> None:
        """The queue is gone: let its waiters find out."""
        for line in self._lines.pop(queue_id, {}).values():
            line.wake_all()

    def forget_group(self, queue_id: int, group: str) -> None:
        """The group came or went: let its waiters find out."""
        line = self._lines.get(queue_id, {}).pop(group, None)
        if line is not None:
            line.wake_all()

    def stop(self) -> None:
        """Nobody waits any longer."""
        self.stopped = True
        for queue_id in list(self._lines):
            self.forget_queue(queue_id)
