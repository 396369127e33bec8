"""Bodies at hand against a model that is too simple to be wrong: a dict of versions."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from spillway.core.message import RecordBatch
from spillway.warm import memory
from spillway.warm.memory import Budget, Window


def batch(base: int, count: int) -> RecordBatch:
    return RecordBatch(1, base, 0, [""] * count, [b"{}"] * count, payload_bytes=2 * count)


def window_of(*batches: RecordBatch, limit: int = 100) -> tuple[Window, Budget]:
    budget = Budget(limit)
    window = Window(budget)
    window.fill(list(batches))
    return window, budget


def test_a_version_finds_the_batch_that_holds_it():
    """The first and the last version of a batch find it; gaps and ends find nothing."""
    first, second = batch(1, 3), batch(6, 2)
    window, _ = window_of(second, first)
    found = {v: window.find(v) for v in range(9)}
    holders = {1: first, 2: first, 3: first, 6: second, 7: second}
    assert found == {v: holders.get(v) for v in range(9)}
    assert (window.last_version, len(window)) == (7, 5)


def test_a_growing_batch_is_counted_as_it_is():
    """A batch is offered empty; what it grows to is taken off the budget, once."""
    window, budget = window_of(limit=10)
    fresh = batch(1, 0)
    window.offer(fresh, tail=0)
    fresh.payloads += [b"{}"] * 4
    window.recount(fresh)
    window.recount(fresh)
    assert (budget.used, budget.room, len(window)) == (4, 6, 4)


def test_a_batch_without_room_or_contact_is_let_pass():
    """Behind a gap, or where the queue has no room, a new batch is left to the log."""
    window, budget = window_of(batch(1, 3), limit=5)
    behind_a_gap = batch(9, 1)
    window.offer(behind_a_gap, tail=8)
    window.recount(behind_a_gap)
    window.fill([batch(4, 2)])
    no_room = batch(6, 0)
    window.offer(no_room, tail=5)
    no_room.payloads.append(b"{}")
    window.recount(no_room)
    assert [window.find(v) for v in (6, 9)] == [None, None]
    assert (budget.used, budget.room) == (5, 0)


def test_what_is_read_twice_is_kept_once():
    """Two readers may bring the same batch: the first copy stays, and counts once."""
    first = batch(1, 3)
    window, budget = window_of(first)
    window.fill([batch(1, 3), batch(4, 1)])
    assert window.find(2) is first
    assert budget.used == 4


def test_a_batch_is_forgotten_as_a_whole():
    """A batch of which one message may still be asked for stays."""
    window, budget = window_of(batch(1, 3), batch(4, 3))
    window.forget(5)
    assert (window.find(3), window.find(4) is not None, budget.used) == (None, True, 3)
    window.forget(6)
    assert (len(window), budget.used, window.last_version) == (0, 0, 0)


def test_what_is_read_and_has_no_room_is_not_kept():
    """The first ones stay, up to the limit; a queue that keeps nothing keeps nothing of it."""
    window, budget = window_of(batch(1, 3), batch(4, 3), batch(7, 3), limit=4)
    assert [window.find(v) is not None for v in (1, 4, 7)] == [True, True, False]
    assert (budget.used, budget.room) == (6, 0)
    window, budget = window_of(batch(1, 3), limit=0)
    assert (len(window), budget.used) == (0, 0)


def test_few_but_heavy_bodies_fill_the_memory_too(monkeypatch):
    """Whatever the count allows: beyond so many bytes nothing more is kept, until some go."""
    monkeypatch.setattr(memory, "BYTES_MAX", 8)
    window, budget = window_of(batch(1, 2), batch(3, 2), batch(5, 2))
    assert (len(window), budget.bytes, budget.room) == (4, 8, 0)
    grown = batch(5, 0)
    window.offer(grown, tail=4)
    window.forget(2)
    window.offer(grown, tail=4)
    grown.payloads += [b"{}"] * 3
    grown.payload_bytes += 6
    window.recount(grown)
    assert (len(window), budget.bytes, budget.room) == (5, 10, 0)
    window.clear()
    assert (budget.used, budget.bytes, budget.room) == (0, 0, 100)


def test_lanes_of_a_queue_share_its_budget():
    """What one lane keeps, another has not; what it lets go, another may have."""
    budget = Budget(4)
    greedy, late = Window(budget), Window(budget)
    greedy.fill([batch(1, 6)])
    assert (greedy.room, late.room, budget.used) == (0, 0, 6)
    late.offer(batch(1, 1), tail=0)
    assert len(late) == 0
    greedy.clear()
    late.offer(batch(1, 1), tail=0)
    assert (len(late), late.room) == (1, 3)


class OneLane:
    """A lane's log, what the model thinks its window holds, and its window."""

    def __init__(self, budget: Budget) -> None:
        self.window = Window(budget)
        self.log: list[RecordBatch] = []
        self.model: dict[int, RecordBatch] = {}
        self.open: RecordBatch | None = None

    @property
    def tail(self) -> int:
        return self.log[-1].last_version if self.log else 0

    @property
    def held(self) -> int:
        return sum(b.count for b in self.model.values())


class Windows(RuleBasedStateMachine):
    """Two lanes of one queue: appending, reading back, forgetting, in any order."""

    @initialize(limit=st.integers(0, 40))
    def begin(self, limit):
        self.budget = Budget(limit)
        self.lanes = [OneLane(self.budget), OneLane(self.budget)]

    @rule(lane=st.integers(0, 1), count=st.integers(1, 9))
    def append(self, lane, count):
        lane = self.lanes[lane]
        if lane.open is None:
            room = self.budget.limit > sum(other.held for other in self.lanes)
            held_to = max((b.last_version for b in lane.model.values()), default=lane.tail)
            lane.open = batch(lane.tail + 1, 0)
            if room and held_to == lane.tail:
                lane.model[lane.open.base_version] = lane.open
            lane.window.offer(lane.open, lane.tail)
            lane.log.append(lane.open)
        lane.open.payloads += [b"{}"] * count
        lane.window.recount(lane.open)

    @rule(lane=st.integers(0, 1))
    def commit(self, lane):
        self.lanes[lane].open = None

    @rule(lane=st.integers(0, 1), start=st.integers(0, 60), count=st.integers(1, 4))
    def read(self, lane, start, count):
        lane = self.lanes[lane]
        stored = [b for b in lane.log if b is not lane.open and b.last_version >= start][:count]
        for b in stored:
            if b.base_version not in lane.model:
                if sum(other.held for other in self.lanes) >= self.budget.limit:
                    break
                lane.model[b.base_version] = b
        lane.window.fill([batch(b.base_version, b.count) for b in stored])

    @rule(lane=st.integers(0, 1), through=st.integers(0, 60))
    def forget(self, lane, through):
        lane = self.lanes[lane]
        lane.model = {v: b for v, b in lane.model.items() if b.last_version > through}
        lane.window.forget(through)

    @rule(lane=st.integers(0, 1))
    def clear(self, lane):
        lane = self.lanes[lane]
        lane.open, lane.model = None, {}
        lane.window.clear()

    @invariant()
    def the_window_holds_what_the_model_holds(self):
        for lane in self.lanes:
            last = max((b.last_version for b in lane.model.values()), default=0)
            assert (len(lane.window), lane.window.last_version) == (lane.held, last)

    @invariant()
    def every_version_finds_its_batch(self):
        for lane in self.lanes:
            held = {v: b for b in lane.model.values() for v in versions(b)}
            for version in range(lane.tail + 2):
                found = lane.window.find(version)
                assert (found is None) == (version not in held)
                assert found is None or found.base_version == held[version].base_version

    @invariant()
    def the_budget_is_what_is_held(self):
        assert self.budget.used == sum(lane.held for lane in self.lanes)
        assert self.budget.room == max(0, self.budget.limit - self.budget.used)


def versions(b: RecordBatch) -> range:
    return range(b.base_version, b.last_version + 1)


test_windows = Windows.TestCase
