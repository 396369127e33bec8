"""A shard: the single writer of its lanes.

Commands are decided in memory in the order they arrive. What was decided while a commit was in
flight gathers in a draft and goes out as the next one; a lone push waits for nobody, a thousand
share one fsync. Replies wait for the commit. When a commit fails, the state that ran ahead of it
is thrown away and comes back from the log: nobody ever sees it.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import psycopg
import structlog

from spillway.broker.aftermath import FREES, count, dead_letters
from spillway.broker.clock import Clock
from spillway.broker.draft import Draft, Drafts
from spillway.broker.facts import LaneFacts
from spillway.broker.lanes import GroupEntry, LaneEntry, Loader, load_dedupe
from spillway.core import commands as cmd
from spillway.core import events as ev
from spillway.core.errors import (
    DatabaseUnavailableError,
    NotOwnerError,
    ShardReloadingError,
    ShuttingDownError,
    SpillwayError,
)
from spillway.core.group import decide, evolve, is_due
from spillway.core.state import Moment, next_wake_ms
from spillway.log.checkpoints import CheckpointItem, encode
from spillway.log.connect import classify
from spillway.log.database import Database
from spillway.log.queries import QUERIES
from spillway.log.writer import ControlRow, Writer
from spillway.warm.memory import Budget

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ShardConfig:
    """The limits of a shard."""

    commit_timeout_s: float
    draft_messages_max: int
    draft_bytes_max: int
    lease_s: float
    outcome_wait_s: float = 5.0


class Shard:
    """The lanes of one shard, and the loop that commits what is decided about them."""

    def __init__(  # noqa: PLR0917 (made in one place)
        self,
        shard_id: int,
        owner: str,
        database: Database,
        clock: Clock,
        config: ShardConfig,
        budgets: dict[int, Budget],
    ) -> None:
        self.shard_id = shard_id
        self.epoch = 0
        self.commit_seq = 0
        self.owned = False
        self.commits = 0
        self.fallbacks = 0
        self.entries: dict[int, LaneEntry] = {}
        self.on_ready: Callable[[LaneEntry], None] = lambda _: None
        self.on_alarm: Callable[[LaneEntry, int], None] = lambda _entry, _ms: None
        self.on_away: Callable[[SpillwayError], None] = lambda _: None
        self.on_taking: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(0)
        self.on_acquired: Callable[[int], None] = lambda _: None
        self.on_counts: Callable[[Iterable[tuple[tuple[int, str], int]]], None] = lambda _: None
        self.on_commit: Callable[[float, int], None] = lambda _seconds, _messages: None
        self._owner = owner
        self._database = database
        self._clock = clock
        self._config = config
        self._loader = Loader(database, budgets)
        self._writer: Writer | None = None
        self._drafts = Drafts()
        self._work = asyncio.Event()
        self._acquiring = asyncio.Lock()
        self._closing = False
        self.released = False
        self._certain_until_s = float("-inf")
        self._absent: SpillwayError = NotOwnerError(f"shard {shard_id} is not (yet) owned here")
        self._random = random.Random()

    # ------------------------------------------------------------ ownership

    async def acquire(self) -> bool:
        """Try to become the writer. False: another broker holds the shard."""
        async with self._acquiring:
            if self.released:
                return False  # let go on purpose: not to be taken again on the way out
            try:
                return self.owned or await self._acquire()
            except (SpillwayError, psycopg.Error, OSError) as exc:
                self._absent = classify(exc)
                raise self._absent from exc

    async def _acquire(self) -> bool:
        asked_s = time.monotonic()
        conn = await self._database.dedicated(f"shard {self.shard_id}")
        try:
            row = await self._take(conn)
            if row is None:
                await conn.close()
                self._absent = self._taken()
                return False
            writer = await Writer.open(conn)
            await self.on_taking()
        except BaseException:
            await conn.close()
            raise
        self._writer = writer
        # What another broker left is dated by that one's clock: ours may not be behind it.
        set_clock = self._clock.anchor if row[0] == self.epoch + 1 else self._clock.set
        self.epoch, self.commit_seq, now_s = row
        set_clock(now_s)
        self._certain_until_s = asked_s + self._config.lease_s
        self.owned = True
        log.info("shard_acquired", shard=self.shard_id, epoch=self.epoch)
        self.on_acquired(self.shard_id)
        return True

    async def _take(self, conn: psycopg.AsyncConnection) -> tuple[int, int, float] | None:
        params = {"shard_id": self.shard_id, "owner": self._owner, "lease_s": self._config.lease_s}
        cursor = await conn.execute(QUERIES["shard_acquire"].sql, params)
        row: tuple[int, int, float] | None = await cursor.fetchone()
        return row

    async def renew(self, database: Database) -> None:
        """Keep the lease on the shard, or find out that it was lost."""
        asked_s, epoch = time.monotonic(), self.epoch
        params = {"shard_id": self.shard_id, "epoch": epoch, "lease_s": self._config.lease_s}
        row = await database.row("shard_renew", **params)
        if self.epoch != epoch:
            return  # lost and taken again meanwhile: this answer is about the past
        if row is None:
            self.depose("another broker raised the epoch")
        else:
            self._clock.anchor(row[0])
            self._certain_until_s = asked_s + self._config.lease_s

    def depose(self, why: str) -> None:
        """Stop writing; what was decided ahead of the log is thrown away."""
        if not self.owned:
            return
        log.warning("shard_lost", shard=self.shard_id, epoch=self.epoch, why=why)
        self._lose(self._taken())

    def _taken(self) -> NotOwnerError:
        return NotOwnerError(f"shard {self.shard_id} is owned by another broker")

    def _lose(self, why: SpillwayError) -> None:
        """Memory is not what the log says, or not for long: it begins anew when it is acquired."""
        self._absent = why
        self._forget_all()
        self._drafts.fail(why)
        self._drop_writer()

    def _forget_all(self) -> None:
        self.owned = False
        for entry in self.entries.values():
            entry.dead = True
            entry.window.clear()
        self.entries.clear()

    def _drop_writer(self) -> None:
        writer, self._writer = self._writer, None
        # One that is in the middle of a commit is closed by the loop that waits for it.
        if writer is not None and self._drafts.in_flight is None:
            writer.abandon()

    async def release(self) -> None:
        """Finish what is decided and let the shard go."""
        self._closing = True
        if self.owned:
            await self.flush()
        async with self._acquiring:
            self.released = True
            if self.owned:
                await self._database.rows("shard_release", shard_id=self.shard_id, epoch=self.epoch)
                self._forget_all()
            self._drop_writer()

    def close(self) -> None:
        """Be gone, whatever is under way; the log has what was answered."""
        self._closing = self.released = True
        self._forget_all()
        self._drop_writer()

    # ------------------------------------------------------------ lanes in memory

    def check_owned(self) -> None:
        """Only the owner decides."""
        if self._closing:
            raise ShuttingDownError
        if not self.owned:
            raise type(self._absent)(self._absent.message)

    async def lanes(self, facts: list[LaneFacts]) -> list[LaneEntry]:
        """These lanes in memory, loaded from the log where they are not."""
        self.check_owned()
        epoch = self.epoch
        if any(lane.lane_id not in self.entries for lane in facts):
            await self._loader.load(facts, self.entries, partial(self._admit, epoch))
        self._check_same(epoch)
        found = [self.entries[lane.lane_id] for lane in facts if lane.lane_id in self.entries]
        for entry in found:
            entry.used_ms = self._clock.now_ms()
        return found

    def _check_same(self, epoch: int) -> None:
        """What was read under another epoch may be old, and what was not found may be there."""
        self.check_owned()
        if self.epoch != epoch:
            raise NotOwnerError(f"shard {self.shard_id} changed hands while it was read")

    def _admit(self, epoch: int, loaded: list[LaneEntry]) -> None:
        # A shard that was lost meanwhile has another writer: what was read may be old.
        if self.owned and self.epoch == epoch:
            for entry in loaded:
                entry.used_ms = self._clock.now_ms()
                self.entries[entry.facts.lane_id] = entry
                self.fallbacks += entry.fallbacks
                self.set_alarm(entry)

    async def know_recent(self, entry: LaneEntry, as_of_ms: int) -> None:
        """Have the dedupe window of a lane at hand, as it was at that moment."""
        if entry.lane.dedupe is None:
            await load_dedupe(self._database, entry, as_of_ms)

    def snapshot(self, entry: LaneEntry, group: str) -> CheckpointItem:
        """The state of a group, to be saved once the log has all of it.

        What is decided from here on goes to a row behind the snapshot's seq.
        """
        target = entry.groups[group]
        if target.open_row is not None:
            self._drafts.seal()
        data = encode(target.state)
        return CheckpointItem(entry.facts.lane_id, group, target.seq, target.state.trim, data)

    def evict(self, entry: LaneEntry) -> None:
        """Forget a lane; it comes back from the log."""
        entry.dead = True
        entry.window.clear()
        if self.entries.get(entry.facts.lane_id) is entry:
            del self.entries[entry.facts.lane_id]

    # ------------------------------------------------------------ decisions

    def moment(self, entry: LaneEntry) -> Moment:
        """What a decision about this lane may look at."""
        return Moment(
            self._clock.now_ms(), entry.facts.queue.policy, entry.lane, self._random.random()
        )

    def draft_for(self, entry: LaneEntry) -> Draft:
        """The commit that is gathering, for a change of this lane."""
        self.check_owned()
        self.check_alive(entry)
        self._drafts.check_room(self._config.draft_messages_max, self._config.draft_bytes_max)
        draft = self._drafts.seal() if self.is_draft_full else self._drafts.gathering
        draft.touched[entry.facts.lane_id] = entry
        self._work.set()
        return draft

    def check_alive(self, entry: LaneEntry) -> None:
        """A lane that left memory between being found and being used is to be found again."""
        if entry.dead:
            raise NotOwnerError(f"a lane of shard {self.shard_id} was reloaded meanwhile")

    def seal(self) -> None:
        """What is decided from here on does not share its fate with what was decided so far."""
        if self._drafts.gathering:
            self._drafts.seal()

    @property
    def is_draft_full(self) -> bool:
        """Whether what is decided next goes into another commit."""
        return self._drafts.gathering.is_full

    @property
    def draft_messages(self) -> int:
        """How many messages are decided and wait for their commit to begin."""
        return self._drafts.messages

    def handle(self, entry: LaneEntry, group: str, command: cmd.Command) -> Any:  # noqa: ANN401 (each command has its own reply)
        """Decide a command about a group of a lane; the reply holds once `durable` returns."""
        self.check_alive(entry)
        moment = self.moment(entry)
        target = entry.group(group)
        if is_due(target.state, moment):
            self._apply(entry, group, target, decide(target.state, cmd.Sweep(), moment), moment)
        decision = decide(target.state, command, moment)
        self._apply(entry, group, target, decision, moment)
        entry.used_ms = moment.now_ms
        wake_ms = next_wake_ms(target.state, moment)
        if wake_ms is not None:
            self._alarm(entry, wake_ms)
        return decision.reply

    def set_alarm(self, entry: LaneEntry) -> None:
        """Note when the clock alone will change something on this lane."""
        earliest = entry.wakes_ms(self.moment(entry))
        if earliest is not None:
            self._alarm(entry, earliest)

    def _alarm(self, entry: LaneEntry, at_ms: int) -> None:
        if entry.alarm_ms is None or at_ms < entry.alarm_ms:
            entry.alarm_ms = at_ms
            self.on_alarm(entry, at_ms)

    def postpone(self, entry: LaneEntry, at_ms: int) -> None:
        """Look at a lane again then: it could not be swept now."""
        entry.alarm_ms = None
        self._alarm(entry, at_ms)

    def sweep(self, entry: LaneEntry) -> None:
        """Let the clock act on a lane, for every group of it."""
        entry.alarm_ms = None
        # Whether or not a group is there to notice: what has passed is no alarm again.
        entry.lane.schedule.ripen(self._clock.now_ms())
        for name, group in entry.groups.items():
            if group.state.exists and is_due(group.state, self.moment(entry)):
                self.handle(entry, name, cmd.Sweep())
        self.set_alarm(entry)
        self.on_ready(entry)

    def _apply(
        self,
        entry: LaneEntry,
        group: str,
        target: GroupEntry,
        decision: cmd.Decision,
        moment: Moment,
    ) -> None:
        if not decision.events:
            return
        if entry.open_batch and any(isinstance(event, ev.Parked) for event in decision.events):
            # A dead letter copies its body out of the log: the message must be there before it.
            self._drafts.seal()
        draft = self.draft_for(entry)
        row = self._open_row(draft, entry, group, target)
        count(draft, entry, decision.events)
        for event in decision.events:
            if isinstance(event, ev.Parked):
                draft.commit.dead.extend(dead_letters(entry, group, target.state, event, moment))
            evolve(target.state, event)
            row.events.append((moment.now_ms, event))
        target.unsaved_events += len(decision.events)
        if target.held_back or any(type(event) in FREES for event in decision.events):
            target.held_back = False
            self.on_ready(entry)

    def _open_row(
        self, draft: Draft, entry: LaneEntry, group: str, target: GroupEntry
    ) -> ControlRow:
        if target.open_row is None:
            target.seq += 1
            target.open_row = ControlRow(entry.facts.lane_id, group, target.seq)
            draft.commit.controls.append(target.open_row)
        return target.open_row

    # ------------------------------------------------------------ commits

    def ticket(self) -> asyncio.Future[None]:
        """Done once everything decided so far is in the log; take it before anything is awaited."""
        draft = self._drafts.last
        if draft is None:
            draft = self._drafts.gathering
            if time.monotonic() < self._certain_until_s:
                waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                waiter.set_result(None)
                return waiter
            # Nothing to write, but whoever was paused for so long may not be the owner any more.
            self._work.set()
        return draft.waiter()

    def ticket_apart(self) -> asyncio.Future[None]:
        """As `ticket`, for whoever sealed before: what was decided since is theirs alone."""
        draft, waiter = self._drafts.gathering, self.ticket()
        if draft:
            draft.author = waiter
            self._drafts.seal()
        return waiter

    async def flush(self) -> None:
        """Wait until the log has all of it, and prove that this broker may still write."""
        self._work.set()
        await self._drafts.gathering.waiter()

    async def run(self) -> None:
        """Commit drafts, one after another, until cancelled."""
        while True:
            await self._work.wait()
            # One turn of the loop: what arrived together is committed together.
            await asyncio.sleep(0)
            self._work.clear()
            while self._drafts:
                await self._commit(self._drafts.take())

    async def _commit(self, draft: Draft) -> None:
        writer = self._writer
        if writer is None or not self.owned:
            draft.fail(self._absent)
            return
        self._drafts.begin(draft)
        try:
            await self._write(writer, draft)
        except Exception as exc:
            log.critical("shard_failed", shard=self.shard_id, exc_info=exc)
            draft.fail_unknown()
            self._drafts.in_flight = None
            self._lose(ShardReloadingError())
        finally:
            self._drafts.in_flight = None
            if writer is not self._writer:
                writer.abandon()

    async def _write(self, writer: Writer, draft: Draft) -> None:
        started = time.monotonic()
        epoch, commit_seq = self.epoch, self.commit_seq + 1
        try:
            passed = await writer.write(
                self.shard_id, epoch, commit_seq, draft.commit, self._config.commit_timeout_s
            )
        except Exception as exc:  # noqa: BLE001 (whatever it is, memory is ahead of the log now)
            await self._recover(draft, exc, epoch, commit_seq)
            return
        if passed:
            self.on_commit(time.monotonic() - started, draft.messages)
            self._landed(draft)
            if self.epoch == epoch:
                self.commit_seq = commit_seq
        else:
            draft.fail(self._taken())
            if self.epoch == epoch:
                self.depose("the fence refused a commit")

    def _landed(self, draft: Draft) -> None:
        self.commits += 1
        draft.resolve()
        self.on_counts(draft.counts.items())

    def _undo(self, draft: Draft, error: SpillwayError) -> None:
        """PostgreSQL said no: what was decided in this commit and behind it is thrown away."""
        behind = self._drafts.fail(ShardReloadingError())
        for entry in (*draft.touched.values(), *behind):
            self.evict(entry)
        draft.refuse(error)
        self.on_acquired(self.shard_id)

    async def _recover(self, draft: Draft, cause: Exception, epoch: int, commit_seq: int) -> None:
        """A commit's outcome is unknown: ask the log, whose `commit_seq` knows, then answer."""
        error = classify(cause)
        log.warning("commit_failed", shard=self.shard_id, error=repr(cause))
        if getattr(cause, "sqlstate", None) and not error.transient and self.epoch == epoch:
            self._undo(draft, error)
            return
        if isinstance(error, DatabaseUnavailableError):
            self.on_away(error)
        if self.epoch == epoch:
            self._lose(DatabaseUnavailableError("PostgreSQL went away inside a commit"))
        try:
            async with asyncio.timeout(self._config.outcome_wait_s):
                await self._reacquire()
        except TimeoutError:
            draft.fail_unknown()
            return
        if self.commit_seq < commit_seq:
            draft.refuse(error)
        elif self.epoch == epoch + 1:
            self._landed(draft)
        else:
            # Others wrote in between: the number may be theirs.
            draft.fail_unknown()

    async def _reacquire(self) -> None:
        while not self.owned:
            try:
                if await self.acquire():
                    return
            except SpillwayError as exc:
                log.debug("shard_reacquire_failed", shard=self.shard_id, error=str(exc))
            await asyncio.sleep(0.1)
