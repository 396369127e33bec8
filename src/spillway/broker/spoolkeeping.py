"""The operator's work on the spool: look, hold, release.

It needs no PostgreSQL: the spool belongs to this broker and lies on its disk.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import structlog

from spillway.broker.breaker import Breaker
from spillway.broker.carrier import Held
from spillway.broker.delivery import rfc3339
from spillway.broker.replay import Replay
from spillway.broker.revival import Revival
from spillway.core.errors import SpoolFullError
from spillway.spool.actions import Action, record
from spillway.spool.spool import Hold, Spool
from spillway.wire import SpoolHold, SpoolHoldRequest, SpoolLane, SpoolQueue, SpoolReply

T = TypeVar("T")
log = structlog.get_logger(__name__)

QUEUES_SHOWN_MAX = 100
SETTLE_S = 5.0
"""How long a hold waits for the replay that is under way."""


class Spoolkeeping:
    """Looks after the spool."""

    def __init__(
        self,
        spool: Spool,
        replay: Replay,
        revival: Revival,
        breaker: Breaker,
        *,
        is_connected: Callable[[], bool],
        now_ms: Callable[[], int],
    ) -> None:
        self._spool = spool
        self._replay = replay
        self._revival = revival
        self._breaker = breaker
        self._is_connected = is_connected
        self._now_ms = now_ms
        self.discarded = 0

    # ------------------------------------------------------------ looking

    async def status(self) -> SpoolReply:
        """What waits, since when, and what stands in its way."""
        spool, hold = self._spool, self._spool.hold
        return SpoolReply(
            folder=str(spool.config.folder),
            pending=spool.pending,
            unwritten=spool.unwritten,
            bytes=spool.bytes,
            bytes_max=spool.config.bytes_max,
            oldest_s=round(spool.oldest_s, 3),
            age_max_s=spool.config.age_max_s,
            disk_free=await asyncio.to_thread(spool.disk_free),
            files=spool.file_count,
            failed=spool.quarantined,
            lost=spool.lost,
            accepted=spool.accepted,
            refused=spool.refused,
            replayed=self._replay.replayed,
            revived=self._revival.revived,
            discarded=self.discarded,
            rate=round(self._replay.rate, 1),
            database="connected" if self._is_connected() else "disconnected",
            breaker="open" if self._breaker.is_open else "closed",
            hold=None if hold is None else _hold(hold),
            queues=self._queues(),
            held=[_lane(held) for held in self._replay.held],
            foreign=spool.foreign,
        )

    def _queues(self) -> list[SpoolQueue]:
        most = self._spool.by_queue.most_common(QUEUES_SHOWN_MAX)
        return [SpoolQueue(org=org, queue=queue, events=n) for (org, queue), n in most if n > 0]

    # ------------------------------------------------------------ maintenance

    async def hold(self, request: SpoolHoldRequest, actor: str) -> SpoolReply:
        """Pushes go to files, nothing is replayed, until the release; a restart changes nothing."""
        before = self._spool.hold
        since = before.since if before and before.since else rfc3339(self._now_ms())
        await _on_disk(self._spool.begin_hold(Hold(actor, request.reason, since)))
        await self._record("hold", actor, request.reason)
        await self._wait_for_replay()
        return await self.status()

    async def _wait_for_replay(self) -> None:
        """What was being replayed as the hold began is the last to reach PostgreSQL."""
        try:
            async with asyncio.timeout(SETTLE_S), self._spool.working:
                pass
        except TimeoutError:
            log.warning("spool_hold_waits", why="a file is still being replayed")

    async def release(self, request: SpoolHoldRequest, actor: str) -> SpoolReply:
        """Replay, and let pushes through again."""
        if self._spool.hold is not None:
            await _on_disk(self._spool.end_hold())
            await self._record("release", actor, request.reason)
            self._replay.nudge()
        return await self.status()

    # ------------------------------------------------------------ audit

    async def _record(self, verb: str, actor: str, reason: str | None, **what: Any) -> None:
        """The action is done: where the disk has no room for a word about it, the log has."""
        action = Action(rfc3339(self._now_ms()), actor, verb, what, reason)
        log.info("spool_action", actor=actor, verb=verb, reason=reason, **what)
        try:
            await asyncio.to_thread(record, self._spool.config.folder, action)
        except OSError as error:
            log.critical("spool_action_unrecorded", verb=verb, error=str(error))


async def _on_disk(work: Awaitable[T]) -> T:
    """Its outcome; a disk that takes nothing is told as such."""
    try:
        return await work
    except OSError as error:
        raise SpoolFullError(f"the spool folder cannot be written: {error}") from error


def _hold(hold: Hold) -> SpoolHold:
    return SpoolHold(actor=hold.actor, reason=hold.reason, since=hold.since or None)


def _lane(held: Held) -> SpoolLane:
    lane, reason = held.lane, held.reason
    return SpoolLane(
        org=lane.queue.org,
        queue=lane.queue.name,
        partition=lane.partition,
        code=reason.code,
        message=reason.message,
        hint=reason.hint,
    )
