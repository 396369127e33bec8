"""A simulated broker: the real core, one commit in flight at a time, and a talent for dying."""

from collections.abc import Callable
from random import Random

from spillway.core import commands as cmd
from spillway.core import events as ev
from spillway.core import group
from spillway.core.errors import GroupNotFoundError, NotOwnerError
from spillway.core.lane import DedupeWindow, Lane
from spillway.core.policy import Policy
from spillway.core.state import GroupState, Moment
from spillway.testing.simulator.agenda import Agenda
from spillway.testing.simulator.ledger import Ledger
from spillway.testing.simulator.release import Release
from spillway.testing.simulator.scenario import Disturbances
from spillway.testing.simulator.storage import Batch, Storage, Stored

TICK_MS = 40
COMMIT_MS = 4
RESTART_MS = 60
PAUSE_MS = 400
DEDUPE_MS = 10**9

Answer = Callable[[object], None]
"""Called with the reply, or with None when nobody can say what became of the request."""


class Broker:
    """One writer of the lane, as long as the storage thinks so too."""

    def __init__(
        self,
        name: str,
        *,
        storage: Storage,
        agenda: Agenda,
        random: Random,
        policy: Policy,
        troubles: Disturbances,
        release: Release,
        ledger: Ledger,
    ) -> None:
        self.name = name
        self.storage = storage
        self.agenda = agenda
        self.random = random
        self.policy = policy
        self.troubles = troubles
        self.release = release
        self.ledger = ledger
        self.life = 0
        self.epoch = 0
        self.commit_seq = 0
        self.serves = False
        self.paused_until_ms = 0
        self.in_flight: Batch | None = None
        self.draft = Batch(1)
        self.changed = 0
        self.agenda.after(0, self.tick, self.life)

    # ------------------------------------------------------------ requests

    def push(self, messages: tuple[Stored, ...], answer: Answer) -> None:
        """Append messages that are not there yet; the reply is their versions."""
        if self._is_asleep(self.push, messages, answer):
            return
        if not self.serves:
            answer(None)
            return
        versions = tuple(self._append(message) for message in messages)
        self._write(answer, versions)

    def ask(self, command: cmd.Command, answer: Answer) -> None:
        """Handle a command of the group."""
        if self._is_asleep(self.ask, command, answer):
            return
        if not self.serves:
            answer(None)
            return
        self._handle(command, answer)

    def _is_asleep(self, deed: Callable[..., None], *values: object) -> bool:
        """A stopped process does everything later, as if no time had passed."""
        sleeps = self.agenda.now_ms < self.paused_until_ms
        if sleeps:
            self.agenda.after(self.paused_until_ms - self.agenda.now_ms, deed, *values)
        return sleeps

    def _append(self, message: Stored) -> int:
        known = self.dedupe.find(message.transaction_id)
        if known is not None:
            return known[0]
        self.lane.tail = version = self.lane.tail + 1
        self._remember(version, message)
        self.draft.messages.append(message)
        return version

    def _remember(self, version: int, message: Stored) -> None:
        if message.deliver_ms is not None:
            self.lane.schedule.defer(version, message.deliver_ms)
        if message.expires_ms is not None:
            self.lane.schedule.expire(version, message.expires_ms)
        self.dedupe.add_batch(self.agenda.now_ms, [message.transaction_id], version, [0])

    def _handle(self, command: cmd.Command, answer: Answer) -> None:
        now_ms = self.agenda.now_ms
        moment = Moment(now_ms, self.policy, self.lane, self.random.random())
        try:
            decision = group.handle(self.state, command, moment)
        except GroupNotFoundError:
            self._write(answer, None)
            return
        for event in decision.events:
            self.draft.events.append((now_ms, event, self.release.event_bytes(event)))
            self._bury(event)
        self._write(answer, decision.reply)

    def _bury(self, event: ev.Event) -> None:
        """Dead letters move in the commit of their event."""
        match event:
            case ev.Parked():
                self.draft.dead |= dead_letters(event)
            case ev.Purged(dead=True):
                self.draft.buried |= versions(event.ranges)
            case ev.Redriven():
                self.draft.buried |= versions(event.ranges)
                for version in sorted(versions(event.ranges)):
                    self._append(Stored(f"copy of {version} as {self.lane.tail + 1}"))
            case ev.Deleted():
                under_way = self.in_flight.dead if self.in_flight else set()
                self.draft.buried |= self.storage.dead | under_way | self.draft.dead

    # ------------------------------------------------------------ commits

    def _write(self, answer: Answer, reply: object) -> None:
        """The reply goes out when everything that it rests on is stored."""
        self.draft.answers.append((answer, reply))
        self.changed += 1
        if self.in_flight is None:
            self._begin_commit()

    def _begin_commit(self) -> None:
        self.in_flight = self.draft
        self.draft = Batch(self.lane.tail + 1)
        self.agenda.after(COMMIT_MS, self._finish_commit, self.in_flight, self.life)

    def _finish_commit(self, batch: Batch, life: int) -> None:
        if life != self.life or self._is_asleep(self._finish_commit, batch, life):
            return
        try:
            outcome = self._try_commit(batch)
        except NotOwnerError:
            self._stop(batch)
            return
        if outcome == "stored":
            self._reply(batch)
            self.commit_seq += 1
            self.changed += 1
            self.in_flight = None
            if self.draft.answers:
                self._begin_commit()
        else:
            self._reload_after(batch)

    def _try_commit(self, batch: Batch) -> str:
        """`stored`, or `unknown` when the connection died: before the commit, or just after it."""
        chance = self.random.randrange(100)
        troubles = self.troubles
        if chance < troubles.commit_fails:
            return "unknown"
        self.storage.commit(self.epoch, batch)
        fails = troubles.commit_fails
        return "unknown" if chance < fails + troubles.commit_unknown else "stored"

    def _reply(self, batch: Batch) -> None:
        for answer, reply in batch.answers:
            answer(reply)

    def _reload_after(self, batch: Batch) -> None:
        """Ask the log whether the commit is there; what was decided on top of it is thrown away."""
        dropped = self.draft
        landed = self.storage.commit_seq == self.commit_seq + 1
        self.storage.seen["unknown, stored" if landed else "unknown, lost"] += 1
        if self.storage.epoch != self.epoch:
            self._stop(batch)
            return
        self._load()
        for answer, reply in batch.answers:
            answer(reply if landed else None)
        for answer, _ in dropped.answers:
            answer(None)

    def _stop(self, batch: Batch) -> None:
        """Somebody else owns the lane now: nothing that is in memory means anything."""
        unanswered = [*batch.answers, *self.draft.answers]
        self.serves = False
        self.in_flight = None
        for answer, _ in unanswered:
            answer(None)

    # ------------------------------------------------------------ life

    def _load(self) -> None:
        """Everything from the storage, as after a start."""
        self.state: GroupState = self.storage.restore()
        self.lane = Lane(len(self.storage.messages))
        self.dedupe = DedupeWindow()
        for version, message in enumerate(self.storage.messages, 1):
            self._remember(version, message)
        self.dedupe.slide(self.agenda.now_ms, DEDUPE_MS, 10**6)
        self.draft = Batch(self.lane.tail + 1)
        self.in_flight = None
        self.commit_seq = self.storage.commit_seq
        self.serves = True
        self.ledger.compare_message_by_message(self.state, self.lane, self.agenda.now_ms)
        if not self.storage.events:
            self._handle(cmd.CreateGroup(), _nobody)

    def tick(self, life: int) -> None:
        """The broker's duties: own, sweep, checkpoint. And what befalls it."""
        if life != self.life or self._is_asleep(self.tick, life):
            return
        self.agenda.after(TICK_MS, self.tick, life)
        if self.serves:
            self._keep_going()
            return
        epoch = self.storage.acquire(self.name, self.agenda.now_ms)
        if epoch is not None:
            self.epoch = epoch
            self._load()

    def _keep_going(self) -> None:
        chance, troubles = self.random.randrange(100), self.troubles
        if chance < troubles.broker_crashes:
            self.crash()
        elif chance < troubles.broker_crashes + troubles.broker_pauses:
            self.paused_until_ms = self.agenda.now_ms + PAUSE_MS
        else:
            self._do_duties()

    def _do_duties(self) -> None:
        try:
            self.storage.renew(self.epoch, self.agenda.now_ms)
            if self.in_flight is None and self.random.randrange(100) < self.troubles.checkpoints:
                self.storage.save_checkpoint(self.epoch, self.release.checkpoint_bytes(self.state))
        except NotOwnerError:
            self._stop(self.in_flight or self.draft)
            return
        self._handle(cmd.Sweep(), _nobody)

    def crash(self) -> None:
        """Like kill -9. A commit that was under way may be there or not; nobody was told."""
        if self.in_flight and self.random.random() < 0.5 and self.epoch == self.storage.epoch:
            self.storage.commit(self.epoch, self.in_flight)
        unanswered = [*(self.in_flight.answers if self.in_flight else ()), *self.draft.answers]
        self.life += 1
        self.serves = False
        self.in_flight = None
        self.storage.seen["crashes"] += 1
        self.agenda.after(RESTART_MS, self.tick, self.life)
        for answer, _ in unanswered:
            answer(None)


def versions(ranges: tuple[tuple[int, int], ...]) -> set[int]:
    """The versions of ranges, one by one."""
    return {version for start, end in ranges for version in range(start, end + 1)}


def dead_letters(event: ev.Parked) -> set[int]:
    """The rows that go into the dead-letter table with an event."""
    return versions(event.ranges)


def _nobody(reply: object) -> None:
    """Nobody waits for this answer."""
