"""Replay: what waits in files goes into the log, lane by lane in order, whenever it can.

It goes at full speed while nobody pushes, and in small bites with pauses while somebody does. A
lane that cannot go on (its queue is full, say) is passed over, and the others go on. A broker that
stands by goes the same rounds, and takes what it has to the owner of the shards.
"""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass

import structlog

from spillway.broker.appender import Appender
from spillway.broker.breaker import Breaker
from spillway.broker.carrier import Carrier, Taker
from spillway.broker.courier import Courier
from spillway.broker.docket import Docket, Held
from spillway.broker.duty import Duty
from spillway.broker.handover import Handover
from spillway.broker.owner import Owner
from spillway.core.errors import (
    DatabaseUnavailableError,
    SpillwayError,
    SpoolOwnerUnreachableError,
)
from spillway.spool.event import Trouble
from spillway.spool.folder import BufferFile
from spillway.spool.spool import Spool

log = structlog.get_logger(__name__)

INTERVAL_S = 0.1
LIVE_S = 0.25
"""A push so short ago means that somebody is pushing: replay is polite."""
PAUSE_SHARE = 0.5
"""How long a polite replay pauses after a bite, as a share of the time the bite took."""
PAUSE_S = 0.001
"""The least that the loop can pause: what is shorter it takes for nothing."""
DOOR_EVENTS = 2_000
"""With so few left, pushes to their lanes wait a moment instead of joining them."""
PROGRESS_S = 5.0
LOOK_S = 1.0
STRETCH_S = 0.5
"""So long nobody else gets at the files."""
GONE_FILES = 50
"""So many files go before the log forgets their marks."""
LEAD = 2
"""How many times as much must go out of the spool as comes in, for replay to be polite."""


@dataclass(slots=True)
class Pace:
    """Whether as much comes into the spool as goes out of it: then it would never be empty."""

    looked_s: float = float("-inf")
    came: int = 0
    went: int = 0
    falls_behind: bool = False

    def look(self, now_s: float, came: int, went: int) -> None:
        """Look at both counts; the last second tells, or nothing does."""
        since_s = now_s - self.looked_s
        if since_s < LOOK_S:
            return
        in_time = since_s < 2 * LOOK_S
        self.falls_behind = in_time and (came - self.came) * LEAD > went - self.went
        self.looked_s, self.came, self.went = now_s, came, went


class Replay(Duty):
    """Empties the spool."""

    name = "replay"

    def __init__(self, spool: Spool, handover: Handover, owner: Owner, breaker: Breaker) -> None:
        super().__init__(INTERVAL_S)
        self._spool = spool
        self._handover = handover
        self._owner = owner
        self._breaker = breaker
        self._docket = Docket(spool)
        self._carrier = Carrier(spool, self._docket, self._pause_for_others)
        self._appender = Appender(
            spool, handover, self._docket, self._is_live, self._pause_for_others
        )
        self._courier = Courier(spool, owner, self._docket)
        self._took: Taker = self._appender
        """Who took the events of late."""
        self._stuck: set[BufferFile] = set()
        self._retry_at_s = 0.0
        self._pushed_s = float("-inf")
        self._pace = Pace()
        self._said_s = 0.0
        self._empty_at = 0
        """How many events had been replayed when nothing waited."""
        self._alarmed = False
        self._why = ""
        self.rate = 0.0
        """Events a second, of late."""

    def note_push(self) -> None:
        """Somebody's push goes to the log."""
        self._pushed_s = time.monotonic()

    def _is_live(self) -> bool:
        """Whether to be polite: somebody pushes, and the spool gets emptier all the same."""
        now_s = time.monotonic()
        self._pace.look(now_s, self._spool.accepted, self.replayed)
        return now_s - self._pushed_s < LIVE_S and not self._pace.falls_behind

    async def _pause_for_others(self, started_s: float) -> None:
        """The turn of those who push, if anybody does."""
        took_s = time.monotonic() - started_s
        await asyncio.sleep(max(PAUSE_S, took_s * PAUSE_SHARE) if self._is_live() else 0)

    @property
    def replayed(self) -> int:
        """How many events have gone from files into the log."""
        return self._docket.carried

    @property
    def held(self) -> list[Held]:
        """The lanes that were passed over, with the reason."""
        return self._docket.held

    async def settle(self) -> None:
        """Wait for all commits that are under way."""
        await self._handover.settle()

    @property
    def troubles(self) -> dict[str, Trouble]:
        """The files that were passed over for what is wrong with the disk."""
        return {file.name: trouble for file, trouble in self._docket.troubles.items()}

    def look_again(self) -> None:
        """The lanes that were passed over are tried now, not in time."""
        self._retry_at_s = 0.0
        self._owner.look_again()
        self.nudge()

    # ------------------------------------------------------------ rounds

    def _look_again_in_time(self) -> None:
        # Only between two rounds: within one, later files must not overtake what was passed over.
        taker = self._taker()
        changed = taker is not None and taker is not self._took
        self._took = taker or self._took
        if changed or (self._stuck and time.monotonic() >= self._retry_at_s):
            self._stuck.clear()
            self._docket.look_again()

    def _taker(self) -> Taker | None:
        """Who takes events now: we, who own the shards, or the owner."""
        if self._handover.is_owner:
            return self._appender
        return self._courier if self._owner.may_ask else None

    def _left(self) -> int:
        """Events that may go now."""
        stuck = sum(file.left for file in self._stuck)
        return self._spool.pending - self._spool.unwritten - stuck

    def _may_go(self) -> bool:
        steady = self._breaker.is_steady and self._taker() is self._took
        return steady and self._spool.hold is None

    def _may_run(self) -> bool:
        # A file without events is one that could not be removed.
        return self._may_go() and (
            self._left() > 0
            or any(not file.left and file not in self._stuck for file in self._spool.files)
        )

    async def run_once(self) -> int:
        """Returns how many events left the spool."""
        before = self.replayed
        if not self._spool.gate.is_known:
            await self._spool.index()
        self._look_again_in_time()
        try:
            while self._may_run() and await self._round():
                self._look_again_in_time()
            if self._spool.gone and self._breaker.is_steady:
                await self._forget()
        except DatabaseUnavailableError as error:
            self._breaker.trip(error)
        except SpoolOwnerUnreachableError:
            pass  # it was told, and is tried again in time
        except SpillwayError as error:
            if not error.transient:
                raise
            self._interrupted(error)
        finally:
            self._spool.open_door()
        if self.replayed > before:
            self._why = ""
        self._alarm()
        if not self._may_run():
            self.rate = 0.0
        return self.replayed - before

    def _interrupted(self, error: SpillwayError) -> None:
        if error.message != self._why:  # told once, however often it is tried again
            log.info("replay_interrupted", why=error.message)
        self._why = error.message

    async def _round(self) -> int:
        """The oldest files that may go; the open one too when little else is left."""
        spool = self._spool
        before = self.replayed + spool.quarantined
        if sum(file not in self._stuck for file in spool.files) <= 1:
            if self._left() <= DOOR_EVENTS:
                spool.close_door()
            await spool.rotate()
        async with spool.working:
            await self._stretch()
        await self._forget()
        return self.replayed + spool.quarantined - before

    async def _stretch(self) -> None:
        """As many files as go in some time: then it is the turn of others who want the folder."""
        begun: list[BufferFile] = []
        started_s, before = time.monotonic(), self.replayed

        def files() -> Iterator[BufferFile]:
            for file in [file for file in self._spool.files if file not in self._stuck]:
                if not self._may_go() or time.monotonic() - started_s > STRETCH_S:
                    return
                begun.append(file)
                yield file

        await self._carrier.carry(files(), self._took)
        if self.replayed > before:
            self.rate = (self.replayed - before) / max(time.monotonic() - started_s, 1e-3)
        for file in begun:
            if not file.left:
                await self._remove(file)
            elif self._docket.holds(file):
                self._pass_over(file)
                if file not in self._docket.troubles:
                    await self._spool.pass_over(file)
        self._say_progress()

    async def _forget(self) -> None:
        """Durably gone first: a file that came back without its marks would be stored once more."""
        spool = self._spool
        gone = list(spool.gone)
        if gone and (len(gone) >= GONE_FILES or not (spool.pending or spool.files)):
            await spool.sync()
            await self._handover.forget_sources(gone)
            del spool.gone[: len(gone)]

    async def _remove(self, file: BufferFile) -> None:
        if file not in self._spool.files:
            return
        try:
            await self._spool.remove(file)
        except OSError as error:
            log.warning("spool_file_stays", file=file.name, error=str(error))
            self._pass_over(file)
        else:
            log.info("spool_file_replayed", file=file.name, events=file.events)

    def _pass_over(self, file: BufferFile) -> None:
        if not self._stuck:
            self._retry_at_s = time.monotonic() + self._spool.config.retry_interval_s
        self._stuck.add(file)

    # ------------------------------------------------------------ words

    def _say_progress(self) -> None:
        pending, gone = self._spool.pending, self.replayed - self._empty_at
        if not pending:
            if gone:
                log.info("spool_replayed", events=gone, replayed=self.replayed)
            self._empty_at = self.replayed
        elif time.monotonic() - self._said_s > PROGRESS_S:
            self._said_s = time.monotonic()
            log.info(
                "spool_progress",
                replayed=gone,
                total=gone + pending,
                percent=round(100 * gone / (gone + pending), 1),
                rate=round(self.rate),
            )

    def _alarm(self) -> None:
        """What was found at the start should be gone by now."""
        limit_s = self._spool.config.startup_recovery_timeout_s
        late = time.monotonic() - self._spool.opened_s > limit_s
        if late and not self._alarmed and self._spool.oldest_s > limit_s:
            self._alarmed = True
            log.error("spool_recovery_late", pending=self._spool.pending, limit_s=limit_s)
