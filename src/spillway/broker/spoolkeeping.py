"""The operator's work on the spool: look, mend, try again, throw away, hold, release.

All but a retry goes on without PostgreSQL: the spool belongs to this broker and lies on its disk.
Whoever changes files holds `spool.working`, so the replay is never in the same file.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import structlog

from spillway.broker.breaker import Breaker
from spillway.broker.delivery import rfc3339
from spillway.broker.docket import Held
from spillway.broker.mending import accepted, mended
from spillway.broker.owner import Owner
from spillway.broker.replay import Replay
from spillway.broker.revival import Revival
from spillway.broker.spoolpages import SpoolPages
from spillway.core.errors import (
    DamagedLineError,
    DatabaseUnavailableError,
    OverloadedError,
    SpoolFileNotFoundError,
    SpoolFolderError,
    SpoolFullError,
    SpoolHeldError,
    SpoolLineNotFoundError,
)
from spillway.spool import folder as disk
from spillway.spool import names
from spillway.spool.actions import Action, record
from spillway.spool.event import DamagedLine, Failed
from spillway.spool.folder import BufferFile
from spillway.spool.quarantine import mark
from spillway.spool.spool import Hold, Spool
from spillway.wire import (
    ErrorDetail,
    SpoolDiscardRequest,
    SpoolEventsReply,
    SpoolFilesReply,
    SpoolHold,
    SpoolHoldRequest,
    SpoolLane,
    SpoolOwner,
    SpoolPlace,
    SpoolQueue,
    SpoolRepairRequest,
    SpoolReply,
    SpoolRetryReply,
    SpoolRetryRequest,
    SpoolStuck,
    SpoolVerifyReply,
    SpoolVerifyRequest,
    VerbReply,
)

T = TypeVar("T")
log = structlog.get_logger(__name__)

QUEUES_SHOWN_MAX = 100
BUSY_S = 5.0
"""How long an operator waits for the file that is being replayed."""
WAITS = (
    "it is replayed by itself; `spillway spool hold` stops that, "
    "`spillway spool discard FILE --waiting` throws its events away"
)
RETRY_S = 5.0
"""How long a retry by hand goes on; the rest is left to the next ones."""


class Spoolkeeping:
    """Looks after the spool."""

    def __init__(
        self,
        spool: Spool,
        replay: Replay,
        revival: Revival,
        owner: Owner,
        breaker: Breaker,
        *,
        is_connected: Callable[[], bool],
        now_ms: Callable[[], int],
    ) -> None:
        self._spool = spool
        self._replay = replay
        self._revival = revival
        self._owner = owner
        self._breaker = breaker
        self._is_connected = is_connected
        self._now_ms = now_ms
        self._pages = SpoolPages(
            spool.config.folder, lambda: {file.name: file for file in spool.files}
        )
        self._checking = asyncio.Lock()
        self.discarded = 0

    # ------------------------------------------------------------ looking

    async def status(self) -> SpoolReply:
        """What waits, since when, and what stands in its way."""
        spool, hold = self._spool, self._spool.hold
        return SpoolReply(
            folder=str(spool.config.folder),
            pending=spool.pending,
            counting=not spool.gate.is_known,
            unwritten=spool.unwritten,
            bytes=spool.bytes,
            bytes_max=spool.config.bytes_max,
            oldest_s=round(spool.oldest_s, 3),
            age_max_s=spool.config.age_max_s,
            disk_free=await spool.disk_free(),
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
            stuck=[
                SpoolStuck(file, trouble.code, trouble.message, trouble.hint)
                for file, trouble in self._replay.troubles.items()
            ],
            owner=self._standby(),
            queues_more=max(0, sum(n > 0 for n in spool.by_queue.values()) - QUEUES_SHOWN_MAX),
        )

    def _standby(self) -> SpoolOwner | None:
        """To whom the events go, where this broker stands by."""
        if not self._owner.is_another:
            return None
        trouble = self._owner.trouble
        return SpoolOwner(
            address=self._owner.address,
            trouble=None
            if trouble is None
            else ErrorDetail(code=trouble.code, message=trouble.message, hint=trouble.hint),
        )

    def _queues(self) -> list[SpoolQueue]:
        most = self._spool.by_queue.most_common(QUEUES_SHOWN_MAX)
        return [SpoolQueue(org=org, queue=queue, events=n) for (org, queue), n in most if n > 0]

    async def files(self, place: SpoolPlace, after: str | None, limit: int) -> SpoolFilesReply:
        """A page of files, oldest first."""
        return await _read(lambda: self._pages.files(place, after=after, limit=limit))

    async def events(
        self, file: str, place: SpoolPlace, from_line: int, limit: int
    ) -> SpoolEventsReply:
        """A page of the events of a file."""
        return await _read(
            lambda: self._pages.events(file, place, from_line=from_line, limit=limit)
        )

    async def verify(self, request: SpoolVerifyRequest) -> SpoolVerifyReply:
        """Check files; one check at a time, for it reads everything."""
        async with self._checking:
            return await _read(lambda: self._pages.verify(request.file))

    # ------------------------------------------------------------ failed events

    async def repair(self, request: SpoolRepairRequest, actor: str) -> VerbReply:
        """Give a failed event other fields, or a damaged line another event."""
        file, line = request.file, request.line
        async with self._alone():
            old = await self._failed(file, line)
            fields = request.event
            new = accepted(old) if fields is None else mended(old, fields, self._now_ms())

            def replaced(at: int, record: Failed) -> Failed:
                return new if at == line - 1 else record

            await _write(self._spool.forget_origin(file, {mark(old)}))
            await _write(asyncio.to_thread(self._spool.quarantine.change, file, replaced))
            await self._record("repair", actor, request.reason, file=file, line=line)
        return VerbReply(verb="repair", affected=1, remaining=self._spool.quarantined)

    async def _failed(self, file: str, line: int) -> Failed:
        """The failed event at a line."""
        records = await self._records(file)
        found = records[line - 1] if line <= len(records) else None
        if found is None:
            raise SpoolLineNotFoundError(f"the failed file {file!r} has no event at line {line}")
        return found

    async def _records(self, file: str) -> list[Failed | None]:
        """What a failed file holds; whoever means one that waits is told so."""
        try:
            return await _read(lambda: self._spool.quarantine.read(file))
        except SpoolFileNotFoundError:
            if await _read(lambda: self._pages.waits(file)):
                raise SpoolFileNotFoundError(
                    f"{file!r} has not failed: it waits", hint=WAITS
                ) from None
            raise

    async def retry(self, request: SpoolRetryRequest, actor: str) -> SpoolRetryReply:
        """Try failed events now and, unless a file is named, the lanes that were passed over.

        What is gone because it went in a moment ago is no error: that was what was wanted.
        """
        if self._spool.hold is not None:
            raise SpoolHeldError(f"{self._spool.hold.actor} holds the spool")
        if self._breaker.is_open:
            raise DatabaseUnavailableError
        before, until_s = self._revival.revived, asyncio.get_running_loop().time() + RETRY_S
        earlier = self._revival.lately(request.file, request.line)
        try:
            files = await self._to_retry(request)
        except (SpoolFileNotFoundError, SpoolLineNotFoundError):
            earlier = self._revival.lately(request.file, request.line)
            if not earlier:
                raise
            files = []
        if request.file is None:
            self._replay.look_again()
        for file in files:
            async with self._alone():
                await self._retry_file(file, request.line)
            if asyncio.get_running_loop().time() > until_s:
                break
        revived = self._revival.revived - before
        what = {"file": request.file, "line": request.line, "revived": revived}
        await self._record("retry", actor, request.reason, **what)
        return SpoolRetryReply(
            verb="retry", affected=revived, remaining=self._spool.quarantined, earlier=earlier
        )

    async def _retry_file(self, file: str, line: int | None) -> None:
        try:
            await _write(self._revival.retry(file, line))
        except DatabaseUnavailableError as error:
            self._breaker.trip(error)
            raise

    async def _to_retry(self, request: SpoolRetryRequest) -> list[str]:
        if request.file is None:
            return await _read(self._spool.quarantine.files)
        if request.line is not None:
            found = await self._failed(request.file, request.line)
            if isinstance(found, DamagedLine):
                raise DamagedLineError(f"line {request.line} of {request.file!r} is damaged")
        else:
            await self._records(request.file)
        return [request.file]

    # ------------------------------------------------------------ throwing away

    async def discard(self, request: SpoolDiscardRequest, actor: str) -> VerbReply:
        """Throw events away for good: those of a file, or one line of it."""
        discard = self._discard_failed if request.state == "failed" else self._discard_waiting
        async with self._alone():
            gone, remaining = await discard(request)
            if not request.dry_run:
                self.discarded += gone
                what = {"file": request.file, "line": request.line, "state": request.state}
                await self._record("discard", actor, request.reason, **what, events=gone)
        return VerbReply(
            verb="discard", affected=gone, dry_run=request.dry_run, remaining=remaining
        )

    async def _discard_failed(self, request: SpoolDiscardRequest) -> tuple[int, int]:
        """How many events go, and how many of the file stay."""
        spool, file, line = self._spool, request.file, request.line
        records = await self._records(file)
        events = len(records) - records.count(None)
        chosen = records if line is None else [await self._failed(file, line)]
        marks = {mark(one) for one in chosen if one is not None}
        gone = events if line is None else 1
        if not request.dry_run:
            await _write(spool.forget_origin(file, marks))
            if line is None:
                await _write(asyncio.to_thread(spool.quarantine.remove, file))
            else:
                await _write(asyncio.to_thread(spool.quarantine.erase, file, line - 1))
            spool.quarantined -= gone
        return gone, events - gone

    async def _discard_waiting(self, request: SpoolDiscardRequest) -> tuple[int, int]:
        spool, line = self._spool, request.line
        file = await self._complete(request.file)
        left = file.left
        text = b"" if line is None else await self._waiting(file, line)
        gone = left if line is None else 1
        if not request.dry_run:
            if line is None:
                await _write(spool.discard(file))
            else:
                await _write(spool.discard_line(file, line, text))
        return gone, left - gone

    async def _complete(self, name: str) -> BufferFile:
        """A file that waits; one that is being written ends here."""
        if names.is_open(name):
            await _write(self._spool.rotate())
            name = name.removesuffix(names.OPEN) + names.COMPLETE
        return self._spool.file(name)

    async def _waiting(self, file: BufferFile, line: int) -> bytes:
        """The text of a line that is still to be replayed."""

        def find() -> bytes | None:
            return next((text for at, text in disk.numbered(file.path) if at == line), None)

        text = await _read(find)
        if text is None or file.is_done(line - 1):
            raise SpoolLineNotFoundError(f"no event waits at line {line} of {file.name!r}")
        return text

    # ------------------------------------------------------------ maintenance

    async def hold(self, request: SpoolHoldRequest, actor: str) -> SpoolReply:
        """Pushes go to files, nothing is replayed, until the release; a restart changes nothing.

        The answer comes when nothing is on its way to the log any more.
        """
        before = self._spool.hold
        since = before.since if before and before.since else rfc3339(self._now_ms())
        await _write(self._spool.begin_hold(Hold(actor, request.reason, since)))
        await self._record("hold", actor, request.reason)
        await self._wait_for_commits()
        return await self.status()

    async def _wait_for_commits(self) -> None:
        """What was replayed or pushed as the hold began is the last to reach PostgreSQL."""
        try:
            async with asyncio.timeout(BUSY_S):
                async with self._spool.working:
                    pass
                if not self._breaker.is_open:
                    await self._replay.settle()
        except TimeoutError:
            raise OverloadedError(
                f"the hold has begun, but commits from before it take more than {BUSY_S:.0f} s",
                hint="ask again: `spillway spool hold` answers when the last of them is over",
            ) from None

    async def release(self, request: SpoolHoldRequest, actor: str) -> SpoolReply:
        """Replay, and let pushes through again."""
        if self._spool.hold is not None:
            await _write(self._spool.end_hold())
            await self._record("release", actor, request.reason)
            self._replay.nudge()
        return await self.status()

    # ------------------------------------------------------------ care

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Nobody else is in the files."""
        working = self._spool.working
        try:
            async with asyncio.timeout(BUSY_S):
                await working.acquire()
        except TimeoutError:
            raise OverloadedError(
                f"a file has been in replay for {BUSY_S:.0f} s",
                hint="try again, or hold the spool first: `spillway spool hold`",
            ) from None
        try:
            if not self._spool.gate.is_known:
                raise OverloadedError(
                    "what earlier runs left in the spool is still being counted",
                    hint="try again when `spillway spool status` has stopped counting",
                )
            yield
        finally:
            working.release()

    async def _record(self, verb: str, actor: str, reason: str | None, **what: Any) -> None:
        """The action is done: where the disk has no room for a word about it, the log has."""
        action = Action(rfc3339(self._now_ms()), actor, verb, what, reason)
        log.info("spool_action", actor=actor, verb=verb, reason=reason, **what)
        try:
            await asyncio.to_thread(record, self._spool.config.folder, action)
        except OSError as error:
            log.critical("spool_action_unrecorded", verb=verb, error=str(error))


async def _read(work: Callable[[], T]) -> T:
    """File work in a thread; a disk that cannot be read is told as such."""
    try:
        return await asyncio.to_thread(work)
    except OSError as error:
        raise SpoolFolderError(f"the spool folder cannot be read: {error}") from error


async def _write(work: Awaitable[T]) -> T:
    """Its outcome; a disk that takes nothing is told as such."""
    try:
        return await work
    except OSError as error:
        raise SpoolFullError(
            f"the spool folder cannot be written: {error}",
            hint="nothing was changed; `spillway spool status` tells how full the disk is",
        ) from error


def _hold(hold: Hold) -> SpoolHold:
    return SpoolHold(actor=hold.actor, reason=hold.reason, since=hold.since or None)


def _lane(held: Held) -> SpoolLane:
    lane, reason = held.lane, held.reason
    return SpoolLane(
        org=lane.org,
        queue=lane.queue,
        partition=lane.partition or "",
        code=reason.code,
        message=reason.message,
        hint=reason.hint,
    )
