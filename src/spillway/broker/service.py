"""The broker: everything that the skins may ask, and the duties behind it.

`Broker` owns no rule of its own; it puts the parts together and starts and stops them.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version

import structlog

from spillway.broker.awakening import Awakening
from spillway.broker.bodies import Bodies
from spillway.broker.breaker import Breaker
from spillway.broker.buffering import Buffering
from spillway.broker.census import Census
from spillway.broker.checkpointer import Checkpointer
from spillway.broker.clock import Clock
from spillway.broker.counters import Counters
from spillway.broker.delivery import Delivery
from spillway.broker.dispatch import Dispatch
from spillway.broker.duty import Duty
from spillway.broker.evictor import Evictor
from spillway.broker.facts import Facts
from spillway.broker.handover import Handover
from spillway.broker.insights import Insights
from spillway.broker.intake import Intake, ItemLimits
from spillway.broker.keys import Keys
from spillway.broker.lanes import LaneEntry
from spillway.broker.metrics import Metrics
from spillway.broker.operations import Operations
from spillway.broker.owner import Owner
from spillway.broker.ownership import AT_ONCE, Ownership
from spillway.broker.pruner import Pruner
from spillway.broker.reception import Reception
from spillway.broker.replay import Replay
from spillway.broker.revival import Revival
from spillway.broker.settlement import Settlement
from spillway.broker.shard import Shard, ShardConfig
from spillway.broker.spoolkeeping import Spoolkeeping
from spillway.broker.spoolmetrics import SpoolMetrics
from spillway.broker.sweeper import Sweeper
from spillway.core.errors import DatabaseUnavailableError, ShuttingDownError, SpillwayError
from spillway.core.metrics import Family
from spillway.log.database import Database
from spillway.spool.faultpoints import Reached, nobody
from spillway.spool.folder import KEYS
from spillway.spool.spool import Spool, SpoolConfig
from spillway.warm.memory import Budget
from spillway.wire import (
    HealthReply,
    LeaseReply,
    LeaseRequest,
    Message,
    PushItem,
    PushResult,
    SettleReply,
    SettleRequest,
    SpoolHealth,
    SpoolTaken,
)

log = structlog.get_logger(__name__)

OPERATORS_MAX = 3
"""Connections for what operators ask, and for counting: such questions may take seconds."""
START_PATIENCE_S = 2.5
"""How long a start waits for PostgreSQL before it goes on without."""


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """What a broker is told at its start."""

    broker_id: str
    spool: SpoolConfig
    shard: ShardConfig
    address: str = ""
    secret: str = field(default_factory=secrets.token_urlsafe, repr=False)
    """What other brokers must know, from PostgreSQL, to hand their spools over to this one."""
    items: ItemLimits = field(default_factory=ItemLimits)
    lease_bytes_max: int = 16 * 1024 * 1024
    auto_create_queues: bool = True
    queues_per_org_max: int = 10_000
    groups_per_queue_max: int = 1_000
    checkpoint_interval_s: float = 60.0
    checkpoint_events_min: int = 64
    prune_interval_s: float = 60.0
    lane_idle_s: float = 300.0
    lanes_in_memory_max: int = 50_000
    drain_timeout_s: float = 10.0


class Broker:
    """One broker process."""

    def __init__(
        self,
        database: Database,
        config: BrokerConfig,
        prepare: Callable[[], Awaitable[int]],
        *,
        more_duties: Iterable[Duty] = (),
        reached: Reached = nobody,
    ) -> None:
        self.config = config
        self._more_duties = more_duties
        self.database = database
        self._operators = database.beside(OPERATORS_MAX)
        self._prepare = prepare
        self.clock = Clock()
        self.started_at = time.monotonic()
        self.budgets: dict[int, Budget] = {}
        self.shards: list[Shard] = []
        """None before PostgreSQL has been asked how many there are."""
        self.facts = Facts(
            database, self.shards, config.queues_per_org_max, config.groups_per_queue_max
        )
        self.dispatch = Dispatch()
        self.breaker = Breaker()
        # Whoever only looks is told at once that there is nothing to see.
        self._operators.on_ask = self.breaker.check
        self.keys = Keys(database, self.breaker, config.spool.folder / KEYS)
        self._man_the_spool(reached)
        self.delivery = Delivery(
            self.facts,
            self.shards,
            self.dispatch,
            Bodies(database, self.breaker),
            self.breaker,
            bytes_max=config.lease_bytes_max,
        )
        self.settlement = Settlement(self.facts, self.shards, self.breaker)
        self.counters = Counters()
        self._hire()
        self.insights = Insights(self.facts, self.shards, self._operators, self.census)
        self.operations = Operations(
            facts=self.facts,
            shards=self.shards,
            dispatch=self.dispatch,
            database=self._operators,
            budgets=self.budgets,
            insights=self.insights,
            now_ms=self.clock.now_ms,
        )
        self._metrics = Metrics(
            facts=self.facts,
            shards=self.shards,
            dispatch=self.dispatch,
            budgets=self.budgets,
            census=self.census,
            counters=self.counters,
            totals=self._totals(),
            spool=self._spool_metrics(),
            now_ms=self.clock.now_ms,
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._requests = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopping = False
        self._hurried = False
        self.breaker.on_trip = self._part
        self.breaker.on_reset = self.replay.nudge

    def _man_the_spool(self, reached: Reached) -> None:
        """The way of a push: into the log or into files, and from there back."""
        self.spool = Spool(self.config.spool, self.clock.now_ms, reached)
        self.buffering = Buffering(self.spool, self.breaker)
        self.intake = Intake(
            self.facts,
            self.shards,
            self.config.items,
            self.buffering,
            self.breaker,
            auto_create=self.config.auto_create_queues,
            now_ms=self.clock.now_ms,
        )
        handover = Handover(self.intake, self.shards, self.database, self.clock.now_ms)
        self.owner = Owner(self.database, lambda: self.ownership.stands_by)
        self.reception = Reception(self.spool, handover, self.config.secret)
        self.replay = Replay(self.spool, handover, self.owner, self.breaker)
        self.intake.on_live = self.replay.note_push
        self.revival = Revival(self.spool, handover, self.owner, self.breaker)
        self.spoolkeeping = Spoolkeeping(
            self.spool,
            self.replay,
            self.revival,
            self.owner,
            self.breaker,
            is_connected=self._is_connected,
            now_ms=self.clock.now_ms,
        )

    def _hire(self) -> None:
        """The duties that look after shards and lanes."""
        self.sweeper = Sweeper(self.shards, self.clock)
        self.checkpointer = Checkpointer(
            self.shards,
            self.database,
            interval_s=self.config.checkpoint_interval_s,
            events_min=self.config.checkpoint_events_min,
        )
        self.pruner = Pruner(
            self.facts,
            self.shards,
            self.database,
            self.clock,
            spool=self.spool,
            interval_s=self.config.prune_interval_s,
        )
        self.ownership = Ownership(
            self.shards,
            self.database.beside(AT_ONCE),
            self.breaker,
            self._make_shards,
            broker_id=self.config.broker_id,
            address=self.config.address,
            secret=self.config.secret,
            lease_s=self.config.shard.lease_s,
        )
        self.awakening = Awakening(self.shards, self.facts, self.dispatch, self.database)
        self.sweeper.on_away_due = self.awakening.ring
        self.census = Census(self.facts, self.shards, self._operators)
        self.evictor = Evictor(
            self.shards,
            self.clock,
            self.checkpointer,
            self.census,
            self.sweeper,
            lane_idle_s=self.config.lane_idle_s,
            lanes_max=self.config.lanes_in_memory_max,
        )

    def _part(self) -> None:
        """PostgreSQL is away: whoever waits for a message hears it, and ownership keeps asking."""
        self.dispatch.look_again()
        self.ownership.nudge()

    async def _make_shards(self) -> None:
        for shard_id in range(await self._prepare()):
            config = self.config
            shard = Shard(
                shard_id, config.broker_id, self.database, self.clock, config.shard, self.budgets
            )
            shard.on_away = self.breaker.trip
            shard.on_ready = self._announce
            shard.on_alarm = self.sweeper.set_alarm
            shard.on_taking = self._take_facts
            shard.on_acquired = self.awakening.note
            shard.on_counts = self.counters.add
            shard.on_commit = self.counters.commit
            self.shards.append(shard)
            self._spawn(shard.run(), f"shard-{shard_id}")

    # ------------------------------------------------------------ life

    @property
    def duties(self) -> list[Duty]:
        """The background duties."""
        return [
            self.ownership,
            self.awakening,
            self.sweeper,
            self.checkpointer,
            self.evictor,
            self.pruner,
            self.census,
            self.replay,
            self.revival,
            *self._more_duties,
        ]

    async def start(self, patience_s: float = START_PATIENCE_S) -> None:
        """Take the shards that are free and begin the duties; pushes are taken without them too."""
        await self.spool.open()
        await self.keys.open()
        try:
            async with asyncio.timeout(patience_s):
                await self.ownership.run_once()
        except TimeoutError:
            self.breaker.trip(DatabaseUnavailableError("PostgreSQL does not answer"))
        except SpillwayError as exc:
            if not exc.transient:
                await self.spool.close()
                raise
            log.warning("started_without_database", error=exc.message)
        for duty in self.duties:
            self._spawn(duty.run(), duty.name)

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.append(task)
        task.add_done_callback(partial(_report, name))

    def drain(self) -> None:
        """Refuse new work and let those who wait for messages go."""
        self._stopping = True
        self.dispatch.stop()

    def hurry(self) -> None:
        """Do not wait for what is under way."""
        self._hurried = True

    async def stop(self) -> None:
        """Finish what is under way, save, let the shards go."""
        self.drain()
        if not self._hurried:
            await self._finish()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for shard in self.shards:
            shard.close()
        await self.keys.close()
        await self.spool.close()

    async def _finish(self) -> None:
        try:
            async with asyncio.timeout(self.config.drain_timeout_s):
                await self._idle.wait()
                await self._save_all()
        except (TimeoutError, SpillwayError) as exc:
            log.warning("drain_incomplete", requests=self._requests, error=repr(exc))

    async def _save_all(self) -> None:
        for shard in self.shards:
            try:
                if shard.owned:
                    await self.checkpointer.save(shard, 1)
                await shard.release()
            except SpillwayError as exc:
                log.warning("shard_not_saved", shard=shard.shard_id, error=repr(exc))

    def _announce(self, entry: LaneEntry) -> None:
        self.dispatch.announce(entry.facts)

    async def _take_facts(self) -> None:
        """Whoever wrote before may have changed queues: know them as they are now."""
        await self.facts.refresh()
        self.dispatch.look_again()

    def _takes_pushes(self, *, is_whole: bool) -> bool:
        """A broker that others stand in for refuses pushes; one without a database has files, and
        refuses them when those are full.
        """
        if self._stopping or not (is_whole or self.breaker.is_open):
            return False
        return not (self.spool.is_full and self.buffering.takes_all())

    def _is_connected(self) -> bool:
        return self.ownership.database_answers and not self.breaker.is_open

    async def health(self) -> HealthReply:
        """How this broker is: ok while it holds its shards and PostgreSQL answers."""
        owned = sum(shard.owned for shard in self.shards)
        connected = self._is_connected()
        whole = connected and owned == len(self.shards)
        return HealthReply(
            status="ok" if whole and not self._stopping else "degraded",
            ready=self._takes_pushes(is_whole=whole),
            database="connected" if connected else "disconnected",
            version=version("spillway"),
            uptime_s=round(time.monotonic() - self.started_at, 3),
            shards_owned=owned,
            shards_total=len(self.shards),
            spool=SpoolHealth(
                pending=self.spool.pending,
                bytes=self.spool.bytes,
                oldest_s=round(self.spool.oldest_s, 3),
                failed=self.spool.quarantined,
                held=self.spool.hold is not None,
                breaker="open" if self.breaker.is_open else "closed",
                disk_free_bytes=await self.spool.disk_free(),
                replay_rate=round(self.replay.rate, 1),
                owner_unreachable=self.owner.trouble is not None,
                full=self.spool.is_full,
            ),
        )

    async def metrics(self, by: Iterable[str] = ()) -> list[Family]:
        """Every metric family, read from state now."""
        return await self._metrics.collect(by)

    def _spool_metrics(self) -> SpoolMetrics:
        return SpoolMetrics(
            self.spool,
            self.replay,
            self.revival,
            self.breaker,
            self.spoolkeeping,
            owner=self.owner,
            is_connected=self._is_connected,
        )

    def _totals(self) -> dict[str, Callable[[], int]]:
        """What the duties count themselves."""
        return {
            "spillway_queue_snapshot_oversize_skipped_total": lambda: self.checkpointer.split,
            "spillway_checkpoints_written_total": lambda: self.checkpointer.written,
            "spillway_checkpoint_fallbacks_total": lambda: sum(s.fallbacks for s in self.shards),
            "spillway_pruned_messages_total": lambda: self.pruner.pruned_messages,
        }

    # ------------------------------------------------------------ messages

    def _enter(self) -> None:
        if self._stopping:
            raise ShuttingDownError
        self._requests += 1
        self._idle.clear()

    def _leave(self) -> None:
        self._requests -= 1
        if not self._requests:
            self._idle.set()

    async def push(self, org: str, items: list[PushItem], *, qos: int = 1) -> list[PushResult]:
        """Store messages; one result an item, in order. With `qos` 0 they are answered first."""
        self._enter()
        try:
            return await self.intake.push(org, items, qos=qos)
        finally:
            self._leave()

    async def lease(self, org: str, queue: str, request: LeaseRequest) -> LeaseReply:
        """Hand out messages."""
        self._enter()
        try:
            return await self.delivery.lease(org, queue, request)
        finally:
            self._leave()

    async def settle(self, org: str, request: SettleRequest) -> SettleReply:
        """Take settlements, and hand out more where asked."""
        self._enter()
        try:
            if self.breaker.is_open:
                raise DatabaseUnavailableError
            if request.lease is not None:
                await self.facts.queue(org, request.lease.queue)
            settled = await self.settlement.settle(org, request)
            reply = SettleReply(results=settled.results)
            if request.lease is not None:
                leased = await self.delivery.lease(org, request.lease.queue, request.lease)
                reply.messages, reply.reason = leased.messages, leased.reason
            try:
                for ticket in settled.tickets:
                    await self.breaker.landed(ticket)
            except BaseException:
                self.give_back(reply.messages or ())
                raise
            return reply
        finally:
            self._leave()

    def is_broker(self, secret: bytes) -> bool:
        """Whether a caller is a broker of the same database."""
        return self.reception.admits(secret)

    async def take(self, source: str, body: bytes, *, aside: bool) -> SpoolTaken:
        """Take events of another broker's spool into the log."""
        self._enter()
        try:
            return await self.reception.take(source, body, aside=aside)
        finally:
            self._leave()

    def give_back(self, messages: Iterable[Message]) -> None:
        """The caller left before these reached it: they are ready again, no attempt spent."""
        self.delivery.give_back(message.receipt for message in messages)


def _report(name: str, task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.critical("duty_died", duty=name, exc_info=task.exception())
