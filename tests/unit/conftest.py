"""A shard without PostgreSQL, for tests of the parts around it."""

from datetime import UTC, datetime
from typing import Any

import pytest

from spillway.broker.facts import LaneFacts, QueueFacts
from spillway.broker.lanes import LaneEntry
from spillway.broker.shard import Shard, ShardConfig
from spillway.core.lane import Lane
from spillway.warm.memory import Budget, Window
from spillway.wire import QueueOptions


class SetClock:
    """The broker's clock, set by the test."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms

    def anchor(self, database_s: float) -> None:
        """PostgreSQL is not asked here."""


class LoneShard:
    """A shard that owns its lanes and decides; what it would commit gathers in its draft."""

    def __init__(self) -> None:
        self.clock = SetClock()
        self.shard = Shard(0, "me", None, self.clock, ShardConfig(), {})
        self.shard.owned = True

    @property
    def draft(self):
        return self.shard._drafts.gathering

    def queue(self, **options: Any) -> QueueFacts:
        made = datetime(2026, 1, 1, tzinfo=UTC)
        queue = QueueFacts(1, "default", "orders", QueueOptions(), paused=False, created_at=made)
        queue.set_options(QueueOptions(**options))
        return queue

    def lane(
        self,
        lane_id: int = 1,
        partition: str = "Default",
        queue: QueueFacts | None = None,
        tail: int = 0,
        pruned_to: int = 0,
        **options: Any,
    ) -> LaneEntry:
        """A lane in memory, empty unless it has a tail."""
        facts = LaneFacts(lane_id, queue or self.queue(**options), partition, 2, 0, 0)
        budget = Budget(facts.queue.options.in_memory_queue_size)
        entry = LaneEntry(facts, Lane(tail, pruned_to), Window(budget), tail)
        facts.queue.lanes[partition] = facts
        self.shard.entries[lane_id] = entry
        return entry


@pytest.fixture
def lone() -> LoneShard:
    """A shard of its own for this test."""
    return LoneShard()


@pytest.fixture(scope="session")
def make_lone() -> type[LoneShard]:
    """For tests that need a fresh one for each of their examples."""
    return LoneShard
