"""A log written by hand, the way a shard writes it: what readers of the log are tested on."""

from collections.abc import Iterator
from random import Random

import psycopg
import pytest

from spillway.core import commands as cmd
from spillway.core import events as ev
from spillway.core.group import handle
from spillway.core.lane import Lane
from spillway.core.policy import Policy
from spillway.core.state import GroupState, Moment
from spillway.log import events as codec
from spillway.log.checkpoints import CheckpointItem, encode

GROUP = "default"


class WrittenLog:
    """One queue with one lane and one group on it, decided by the core, stored by plain SQL."""

    def __init__(self, url: str, lane_id: int | None = None) -> None:
        self.url = url
        self.conn = psycopg.connect(url, autocommit=True)
        self.lane_id = lane_id or self._make_lane()
        self.queue_id = self._one("SELECT queue_id FROM spillway.lane WHERE lane_id = %s")
        self.lane = Lane()
        self.policy = Policy(max_attempts=2, backoff_base_ms=0)
        self.state = GroupState()
        self.seq = 0
        self.now_ms = 1_700_000_000_000

    def _make_lane(self) -> int:
        self.conn.execute("INSERT INTO spillway.org VALUES ('default')")
        self.conn.execute("INSERT INTO spillway.shard (shard_id, epoch) VALUES (0, 1)")
        row = self.conn.execute(
            "INSERT INTO spillway.queue (org, name, options)"
            " VALUES ('default', 'orders', '{}') RETURNING queue_id"
        ).fetchone()
        row = self.conn.execute(
            "INSERT INTO spillway.lane (queue_id, partition, priority, enqueue_shard, shard_id)"
            " VALUES (%s, 'Default', 2, 0, 0) RETURNING lane_id",
            row,
        ).fetchone()
        self.conn.execute(
            'INSERT INTO spillway.consumer (queue_id, "group")'
            " SELECT queue_id, 'default' FROM spillway.queue"
        )
        return row[0]

    def _one(self, query: str) -> int:
        return self.conn.execute(query, (self.lane_id,)).fetchone()[0]

    def push(self, count: int, ids: list[str] | None = None) -> None:
        """A batch of messages."""
        base = self.lane.tail + 1
        ids = ids or [f"tx-{base + i}" for i in range(count)]
        self.conn.execute(
            "INSERT INTO spillway.message_batch"
            " (lane_id, base_version, count, appended_at, transaction_ids, payloads)"
            " VALUES (%s, %s, %s, to_timestamp(%s), %s, %s)",
            (self.lane_id, base, count, self.now_ms / 1000, ids, [b"{}"] * count),
        )
        self.lane.tail += count
        self._commit()

    def do(self, command: cmd.Command) -> cmd.Decision:
        """A command, decided and stored."""
        self.now_ms += 1_000
        decision = handle(self.state, command, Moment(self.now_ms, self.policy, self.lane))
        if decision.events:
            self.seq += 1
            self._commit()
            self._store([(self.now_ms, event) for event in decision.events])
        return decision

    def _commit(self) -> None:
        self.conn.execute("UPDATE spillway.shard SET commit_seq = commit_seq + 1")

    def _store(self, rows: list[tuple[int, ev.Event]]) -> None:
        self.conn.execute(
            "INSERT INTO spillway.control_event VALUES (%s, %s, %s, %s, now())",
            (self.lane_id, GROUP, self.seq, codec.encode(rows)),
        )
        for _, event in rows:
            if isinstance(event, ev.Parked):
                for start, end in event.ranges:
                    for version in range(start, end + 1):
                        self.bury(version)

    def bury(self, version: int) -> None:
        """A dead letter."""
        self.conn.execute(
            'INSERT INTO spillway.dead_letter (queue_id, lane_id, "group", version,'
            " transaction_id, payload, content_type, attempts, cause, enqueued_at, dead_at)"
            " VALUES (%s, %s, %s, %s, 'tx', '{}', 0, 2, 'exhausted', now(), now())",
            (self.queue_id, self.lane_id, GROUP, version),
        )

    def live(self, steps: int, seed: int = 0) -> None:
        """Lease, ack, nack and forget, as a worker might."""
        random = Random(seed)
        for _ in range(steps):
            self.step(random)

    def step(self, random: Random) -> None:
        """One turn of a worker."""
        granted = self.do(cmd.LeaseMessages(random.randint(1, 4), visibility_ms=3_000)).reply
        ranges = tuple((start, end) for start, end, _ in granted.runs)
        choice = random.random()
        if ranges and choice < 0.5:
            self.do(cmd.Ack(granted.lease_id, ranges))
        elif ranges and choice < 0.8:
            self.do(cmd.Nack(granted.lease_id, ranges, delay_ms=0, error="no"))

    def item(self) -> CheckpointItem:
        """The state as it is now, to be kept."""
        return CheckpointItem(self.lane_id, GROUP, self.seq, self.state.trim, encode(self.state))


@pytest.fixture
def written_log(database_url: str) -> Iterator[WrittenLog]:
    """A log with forty messages and a group that begins at the first."""
    log = WrittenLog(database_url)
    log.push(25)
    log.push(15)
    log.do(cmd.CreateGroup())
    yield log
    log.conn.close()
