"""A log written by hand, the way a shard writes it, and a desk before a broker that runs."""

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import psycopg
import pytest

from spillway import wire, wiring
from spillway.broker.service import Broker
from spillway.core import commands as cmd
from spillway.core import events as ev
from spillway.core.errors import DatabaseUnavailableError
from spillway.core.group import handle
from spillway.core.lane import Lane
from spillway.core.policy import Policy
from spillway.core.state import GroupState, Moment
from spillway.log import events as codec
from spillway.log.checkpoints import CheckpointItem, encode
from spillway.settings import Settings
from spillway.wiring import running_broker

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


# ---------------------------------------------------------------- a broker


@pytest.fixture(autouse=True)
def spool_folders(tmp_path) -> Iterator[None]:
    """Each broker of a test has a spool of its own, unless it says which."""
    count = itertools.count()

    def folder(settings: Settings) -> Path:
        return settings.file_buffer_dir or tmp_path / f"spool-{next(count)}"

    # Not the test's own monkeypatch: what it patches must be undone before its broker stops.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wiring, "spool_folder", folder)
        yield


class Desk:
    """A broker with short words for what tests do all the time; the queue is `orders`."""

    def __init__(self, broker: Broker, url: str) -> None:
        self.broker = broker
        self.url = url
        self.operations = broker.operations
        self.insights = broker.insights

    async def queue(self, name: str = "orders", **options: Any) -> wire.QueueReply:
        made = wire.QueueOptions(**({"backoff_base_ms": 0} | options))
        return (await self.operations.put_queue("default", name, made, "ann"))[1]

    async def push(self, *payloads: Any, queue: str = "orders", **item: Any) -> list[int]:
        """The versions of the messages."""
        items = [
            wire.PushItem(
                queue=queue,
                payload=p if isinstance(p, bytes) else msgspec.Raw(msgspec.json.encode(p)),
                **item,
            )
            for p in payloads
        ]
        results = await self.broker.push("default", items)
        assert [result.error for result in results] == [None] * len(items)
        return [result.version for result in results]

    def items(self, *payloads: Any, queue: str = "orders", **item: Any) -> list[wire.PushItem]:
        """Items of a push, each with a transaction id: the payload, if that is a string."""
        return [
            wire.PushItem(
                queue=queue,
                payload=msgspec.Raw(msgspec.json.encode(p)),
                **{"transaction_id": p if isinstance(p, str) else None} | item,
            )
            for p in payloads
        ]

    async def told(self, *payloads: Any, queue: str = "orders", **item: Any) -> list[str]:
        """What is said to a push: the status of each item, or the code of its error."""
        results = await self.broker.push("default", self.items(*payloads, queue=queue, **item))
        return [result.error.code if result.error else result.status for result in results]

    async def buffer(self, *payloads: Any, qos: int = 1, **item: Any) -> None:
        """Push into the files of the broker, which keeps them until `release`."""
        if self.broker.spool.hold is None:
            await self.broker.spoolkeeping.hold(wire.SpoolHoldRequest(), "ann")
        self.broker.breaker.trip(DatabaseUnavailableError("for the test"))
        items = self.items(*payloads, **item)
        results = await self.broker.push("default", items, qos=qos)
        assert {result.status for result in results} == {"buffered"}

    async def release(self) -> None:
        """End the hold of the spool."""
        await self.broker.spoolkeeping.release(wire.SpoolHoldRequest(), "ann")

    async def lease(
        self, count: int = 1, group: str = "default", queue: str = "orders", **more: Any
    ) -> list[wire.Message]:
        request = wire.LeaseRequest(group=group, max=count, **more)
        return (await self.broker.lease("default", queue, request)).messages

    async def ack(self, *messages: wire.Message) -> list[str]:
        request = wire.SettleRequest(ack=[message.receipt for message in messages])
        reply = await self.broker.settle("default", request)
        return [result.status for result in reply.results]

    async def nack(self, *messages: wire.Message, **more: Any) -> list[str]:
        nacks = [wire.Nack(receipt=message.receipt, **more) for message in messages]
        reply = await self.broker.settle("default", wire.SettleRequest(nack=nacks))
        return [result.status for result in reply.results]

    async def die(self, count: int = 1, error: str = "poison", **more: Any) -> list[wire.Message]:
        """Lease messages and park them."""
        messages = await self.lease(count, **more)
        assert await self.nack(*messages, park=True, error=error) == ["parked"] * len(messages)
        return messages

    async def counts(self, group: str = "default", queue: str = "orders") -> dict[str, int]:
        """Where the messages are; states without any are left out."""
        found = await self.insights.get_group("default", queue, group)
        states = ("ready", "deferred", "leased", "blocked", "parked", "dropped", "settled")
        return {name: n for name in states if (n := getattr(found, name))}

    async def do(self, verb: str, queue: str = "orders", **request: Any) -> wire.VerbReply:
        """An operator's verb."""
        kind = getattr(wire, f"{verb.capitalize()}Request", wire.PauseRequest)
        act = getattr(self.operations, verb)
        return await act("default", queue, kind(**request), "ann")

    async def dead(self, queue: str = "orders", limit: int = 100, **filters: Any) -> wire.DeadReply:
        none = dict.fromkeys(("group", "partition", "key", "error_contains", "before", "after"))
        asked = none | filters
        return await self.insights.dead("default", queue, limit=limit, **asked)

    async def browse(self, queue: str = "orders", limit: int = 100, **query: Any) -> Any:
        none = dict.fromkeys(("partition", "from_version", "state", "next"))
        asked = none | {"group": "default"} | query
        return await self.insights.browse("default", queue, limit=limit, **asked)

    async def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """What PostgreSQL says, seen from outside."""
        async with await psycopg.AsyncConnection.connect(self.url) as conn:
            return await (await conn.execute(statement)).fetchall()

    async def balanced(self) -> bool:
        """Whether the books balance, read from the log alone."""
        return (await self.insights.audit()).balanced

    def forget(self) -> None:
        """Let every lane leave memory, as if the broker had just started; all is in the log."""
        for shard in self.broker.shards:
            for entry in list(shard.entries.values()):
                shard.evict(entry)


@pytest.fixture
def open_desk(database_url: str) -> Callable[..., Any]:
    """Opens a desk before a broker with settings of its own; at its end the books must balance."""

    @asynccontextmanager
    async def opened(**settings: Any) -> AsyncIterator[Desk]:
        async with running_broker(database_url, Settings(**{"num_shards": 2} | settings)) as broker:
            yield (desk := Desk(broker, database_url))
            assert await desk.balanced()

    return opened


@pytest.fixture
async def desk(open_desk: Callable[..., Any]) -> AsyncIterator[Desk]:
    """A desk before a fresh broker; afterwards the books must balance."""
    async with open_desk() as desk:
        yield desk
