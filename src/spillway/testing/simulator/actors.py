"""Those who use the broker: producers that retry, workers of every kind, and an operator."""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from spillway.core import commands as cmd
from spillway.testing.simulator.agenda import Agenda
from spillway.testing.simulator.broker import Broker
from spillway.testing.simulator.ledger import Ledger
from spillway.testing.simulator.scenario import Workload
from spillway.testing.simulator.storage import Stored

if TYPE_CHECKING:
    from spillway.core.ranges import Range

LATENCY_MS = 8
RETRY_MS = 30
POLL_MS = 25


class Actor:
    """Somebody at the other end of a slow, unreliable line."""

    def __init__(
        self,
        agenda: Agenda,
        random: Random,
        route: Callable[[], Broker],
        ledger: Ledger,
        workload: Workload,
    ) -> None:
        self.agenda = agenda
        self.random = random
        self.route = route
        self.ledger = ledger
        self.workload = workload

    def happens(self, percent: int) -> bool:
        """Whether something with this chance happens now."""
        return self.random.randrange(100) < percent

    def latency_ms(self) -> int:
        """How long a request is under way."""
        return self.random.randrange(1, LATENCY_MS)

    def send(self, command: cmd.Command, answer: Callable[[object], None]) -> None:
        """Ask whichever broker it is that the line leads to when the request arrives."""
        self.agenda.after(self.latency_ms(), self._arrive, command, answer)

    def _arrive(self, command: cmd.Command, answer: Callable[[object], None]) -> None:
        self.route().ask(command, answer)


class Producer(Actor):
    """Pushes its messages in small batches, and again whenever it is not sure."""

    def start(self) -> None:
        """Plan every push."""
        number = 0
        at_ms = 0
        while number < self.workload.messages:
            count = self.random.randrange(1, 5)
            batch = tuple(self._message(number + i, at_ms) for i in range(count))
            self.agenda.after(at_ms, self._push, batch)
            number += count
            at_ms += self.random.randrange(60)

    def _message(self, number: int, at_ms: int) -> Stored:
        now_ms = self.agenda.now_ms + at_ms
        workload = self.workload
        deliver_ms = now_ms + self.random.randrange(300) if self.happens(workload.delayed) else None
        expires_ms = now_ms + self.random.randrange(400) if self.happens(workload.mortal) else None
        return Stored(f"t{number}", deliver_ms, expires_ms)

    def _push(self, batch: tuple[Stored, ...]) -> None:
        self.route().push(batch, lambda reply: self._told(batch, reply))
        if self.happens(self.workload.pushed_twice):
            self.agenda.after(self.random.randrange(200), self._push_again, batch)

    def _push_again(self, batch: tuple[Stored, ...]) -> None:
        """A retry that was not needed, as a network sends them."""
        self.route().push(batch, lambda reply: self._note(batch, reply))

    def _told(self, batch: tuple[Stored, ...], reply: object) -> None:
        self._note(batch, reply)
        if reply is None:
            self.agenda.after(RETRY_MS, self._push, batch)

    def _note(self, batch: tuple[Stored, ...], reply: object) -> None:
        if isinstance(reply, tuple):
            for message, version in zip(batch, reply, strict=True):
                self.ledger.pushed(message.transaction_id, version)


class Worker(Actor):
    """Leases, works, settles; and now and then does none of it properly."""

    def start(self) -> None:
        """Begin to poll."""
        self.agenda.after(self.random.randrange(POLL_MS), self._lease)

    def _lease(self) -> None:
        count = self.random.randrange(1, self.workload.lease_max + 1)
        command = cmd.LeaseMessages(count, self.workload.visibility_ms)
        self.send(command, self._granted)

    def _granted(self, grant: object) -> None:
        if not isinstance(grant, cmd.Grant) or not grant.runs:
            self.agenda.after(POLL_MS, self._lease)
            return
        if self.happens(self.workload.hang_ups):
            self.send(cmd.Return(grant.lease_id), self._settled)
            self.agenda.after(POLL_MS, self._lease)
            return
        for start, end, attempt in grant.runs:
            for version in range(start, end + 1):
                now_ms, until_ms = self.agenda.now_ms, grant.deadline_ms
                self.ledger.granted(grant.lease_id, version, attempt, until_ms, now_ms)
        self._work(grant)

    def _work(self, grant: cmd.Grant) -> None:
        workload = self.workload
        if self.happens(workload.crashes):
            self.agenda.after(workload.visibility_ms // 2, self._lease)
            return
        if self.happens(workload.extends):
            self._extend(grant.lease_id)
        late = workload.visibility_ms if self.happens(workload.late) else 0
        done_ms = self.random.randrange(workload.visibility_ms // 2) + late
        self.agenda.after(done_ms, self._settle, grant)

    def _extend(self, lease_id: int) -> None:
        def answer(until_ms: object) -> None:
            if isinstance(until_ms, int):
                self.ledger.extended(lease_id, until_ms)

        self.send(cmd.Extend(lease_id, 2 * self.workload.visibility_ms), answer)

    def _settle(self, grant: cmd.Grant) -> None:
        """One settle for all, or one for each message on lines of different speed."""
        ranges = tuple((start, end) for start, end, _ in grant.runs)
        if self.happens(self.workload.acked_apart):
            ranges = tuple((v, v) for s, e in ranges for v in range(s, e + 1))
            for part in ranges:
                if not self.happens(self.workload.forgets):
                    self._settle_part(grant.lease_id, (part,))
        elif not self.happens(self.workload.forgets):
            self._settle_part(grant.lease_id, ranges)
        self.agenda.after(self.random.randrange(POLL_MS), self._lease)

    def _settle_part(self, lease_id: int, ranges: "tuple[Range, ...]") -> None:
        if self.happens(self.workload.nacks):
            command: cmd.Command = self._nack(lease_id, ranges)
        else:
            command = cmd.Ack(lease_id, ranges)
            self.ledger.will_ack(lease_id, ranges)
        self.ledger.let_go(lease_id, ranges)
        again = 2 if self.happens(self.workload.acked_twice) else 1
        for _ in range(again):
            self.send(command, self._settled)

    def _nack(self, lease_id: int, ranges: "tuple[Range, ...]") -> cmd.Nack:
        delay_ms = self.random.choice((None, None, 0, 50))
        return cmd.Nack(lease_id, ranges, delay_ms, "boom", park=self.happens(10))

    def _settled(self, reply: object) -> None:
        """Refused, or lost: the message comes back by itself."""


class Operator(Actor):
    """Turns every knob that there is."""

    def start(self) -> None:
        """Come by now and then."""
        if self.workload.operator_verbs:
            self.agenda.after(self.random.randrange(150), self._act)

    def _act(self) -> None:
        low = self.random.randrange(1, self.workload.messages)
        ranges = ((low, low + self.random.randrange(4)),)
        match self.random.choice(self.workload.operator_verbs):
            case "park":
                self._send(cmd.Park(ranges, "ann"))
            case "unblock":
                action = self.random.choice(("retry", "skip", "park"))
                self._send(cmd.Unblock(ranges, action, "ann"))
            case "purge":
                self._send(cmd.Purge(ranges, actor="ann"))
            case "purge_dead":
                self._send(cmd.Purge(ranges, dead=True, actor="ann"))
            case "redrive":
                self._send(cmd.Redrive(ranges, "ann"))
            case "seek":
                self._send(cmd.Seek(low, "ann"))
            case "delete":
                self._send(cmd.DeleteGroup("ann"))
                self.agenda.after(LATENCY_MS, self._send, cmd.CreateGroup())
        self.agenda.after(self.random.randrange(50, 250), self._act)

    def _send(self, command: cmd.Command) -> None:
        self.send(command, self._heard)

    def _heard(self, reply: object) -> None:
        """An operator looks at the counts, not at the replies."""
