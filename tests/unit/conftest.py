"""A shard without PostgreSQL, and a command line without a broker, for tests of what is around."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import Raw
from typer.testing import CliRunner

from spillway.broker.facts import LaneFacts, QueueFacts
from spillway.broker.lanes import LaneEntry
from spillway.broker.shard import Shard, ShardConfig
from spillway.cli import session as cli_session
from spillway.cli.root import app
from spillway.client.scripted import Script
from spillway.client.sync_client import Client
from spillway.core.lane import Lane
from spillway.spool.event import Event
from spillway.warm.memory import Budget, Window
from spillway.wire import QueueOptions

ACCEPTED_AT = datetime(2026, 1, 1, tzinfo=UTC)
SHARD = ShardConfig(
    commit_timeout_s=2.0, draft_messages_max=200_000, draft_bytes_max=2**27, lease_s=10.0
)


class SetClock:
    """The broker's clock, set by the test."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms

    def anchor(self, database_s: float) -> None:
        """PostgreSQL is not asked here."""

    set = anchor


class LoneShard:
    """A shard that owns its lanes and decides; what it would commit gathers in its draft."""

    def __init__(self) -> None:
        self.clock = SetClock()
        self.shard = Shard(0, "me", None, self.clock, SHARD, {})
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


# ---------------------------------------------------------------- the command line


@pytest.fixture
def run(monkeypatch):
    """Run a command line against a script; returns the result and what was sent."""

    def run_with(line, *answers, stdin=None, env=None):
        script = Script(*answers)
        sessions = []

        def client(self, **_):
            sessions.append(self)
            return Client(transport=script, retries=0, org=self.org)

        monkeypatch.setattr(cli_session.Session, "client", client)
        words = line if isinstance(line, list) else line.split()
        result = CliRunner().invoke(app, words, input=stdin, env=env)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        result.sent, result.sessions = script.sent, sessions
        return result

    return run_with


SPOOL_IN_TROUBLE = {
    "folder": "/spool", "pending": 1200, "counting": False, "unwritten": 0, "bytes": 9,
    "bytes_max": 10, "oldest_s": 180.0, "age_max_s": 604800.0, "disk_free": 2**40, "files": 3,
    "failed": 2,
    "lost": 0, "accepted": 1200, "refused": 0, "replayed": 0, "revived": 0, "discarded": 0,
    "rate": 0.0, "database": "connected", "breaker": "closed", "foreign": [],
    "hold": {"actor": "ann", "reason": "new disk", "since": "2026-01-01T00:00:00Z"},
    "queues": [{"org": "default", "queue": "orders", "events": 1200}],
    "held": [{
        "org": "default", "queue": "orders", "partition": "p1", "code": "queue_full",
        "message": "it is full", "hint": "x",
    }],
    "stuck": [{
        "file": "failover_2.buf", "code": "spool_folder", "message": "it cannot be read",
        "hint": "mend the disk",
    }],
    "queues_more": 7, "owner": None,
}  # fmt: skip


@pytest.fixture(scope="session")
def spool_status():
    """What GET /v1/spool answers when everything stands in the way, with some of it changed."""
    return lambda **changes: SPOOL_IN_TROUBLE | changes


def event_of(number: int = 1, queue: str = "orders", partition: str | None = "a", **fields: Any):
    """An event whose payload is its number."""
    plain = {
        "transaction_id": f"t-{number}",
        "trace_id": None,
        "namespace": "",
        "task": "",
        "org": "default",
        "key": None,
        "headers": None,
        "priority": 0,
        "deliver_at": None,
        "expires_at": None,
        "accepted_at": ACCEPTED_AT,
        "seq": number,
        "payload": Raw(str(number).encode()),
    }
    return Event(queue=queue, partition=partition, **plain | fields)


@pytest.fixture(scope="session")
def make_event() -> Callable[..., Event]:
    """Makes an event of a number."""
    return event_of
