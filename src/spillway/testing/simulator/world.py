"""One simulated world from a seed: set up, disturbed, healed, drained and audited."""

from collections import Counter
from dataclasses import dataclass, replace
from random import Random

from spillway.core import checkpoint
from spillway.core import commands as cmd
from spillway.core.errors import SpillwayError
from spillway.core.policy import Policy
from spillway.core.state import Moment, counts, validate
from spillway.testing.simulator.actors import Operator, Producer, Worker
from spillway.testing.simulator.agenda import Agenda
from spillway.testing.simulator.broker import Broker
from spillway.testing.simulator.ledger import BrokenPromiseError, Ledger, promise
from spillway.testing.simulator.release import Release, old_forms_readable
from spillway.testing.simulator.scenario import (
    SCENARIOS,
    START_MS,
    Disturbances,
    Scenario,
    Workload,
)
from spillway.testing.simulator.storage import DuplicateKeyError, Storage

STEPS = 250
DRAIN_STEPS_MAX = 20_000
HEALED = Disturbances(checkpoints=0)
HONEST = Workload(
    nacks=0, crashes=0, forgets=0, late=0, acked_twice=0, extends=0, hang_ups=0, lease_max=50
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run was about, for whoever watches."""

    seed: int
    scenario: str
    steps: int
    simulated_ms: int
    messages: int
    events: int
    deliveries: int
    epochs: int
    seen: Counter[str]


def run(seed: int, steps: int = STEPS, scenario: Scenario | None = None) -> Outcome:
    """Play one seed; raises BrokenPromiseError, with the seed, when a promise was broken."""
    chosen = scenario or SCENARIOS[seed % len(SCENARIOS)]
    with old_forms_readable():
        try:
            return World(seed, chosen).play(steps)
        except (SpillwayError, DuplicateKeyError, BrokenPromiseError) as error:
            again = f"python -m spillway.testing.simulator --seed {seed} --steps {steps}"
            raise BrokenPromiseError(
                f"{chosen.name}, seed {seed}: {error} (again: {again})"
            ) from error


class World:
    """Two brokers on one storage, and everybody who uses them."""

    def __init__(self, seed: int, scenario: Scenario) -> None:
        self.seed = seed
        self.scenario = scenario
        self.random = Random(seed)
        self.agenda = Agenda(START_MS)
        self.policy = self._policy(scenario.workload)
        self.ledger = Ledger(self.policy)
        self.storage = Storage(self.ledger.on_commit)
        self.release = Release()
        self.release.is_old = scenario.disturbances.upgrades > 0
        self.brokers = [self._broker(name) for name in ("A", "B")]
        self.checked = [0, 0]
        self._start(Producer, scenario.workload)
        self._start(Operator, scenario.workload)
        for _ in range(scenario.workload.workers):
            self._start(Worker, scenario.workload)

    def _policy(self, workload: Workload) -> Policy:
        choose = self.random.choice
        return Policy(
            order=choose(workload.orders),
            max_attempts=choose(workload.max_attempts),
            on_exhausted=choose(workload.on_exhausted),
            visibility_ms=workload.visibility_ms,
            backoff_base_ms=20,
            backoff_cap_ms=100,
            max_ack_holes=workload.max_ack_holes,
        )

    def _broker(self, name: str) -> Broker:
        return Broker(
            name,
            storage=self.storage,
            agenda=self.agenda,
            random=self.random,
            policy=self.policy,
            troubles=self.scenario.disturbances,
            release=self.release,
            ledger=self.ledger,
        )

    def _start(self, kind: type[Producer | Operator | Worker], workload: Workload) -> None:
        kind(self.agenda, self.random, self._route, self.ledger, workload).start()

    def _route(self) -> Broker:
        """The owner, as far as one knows; sometimes one knows wrong."""
        owner = self.brokers[self.storage.owner == "B"]
        other = self.brokers[self.storage.owner != "B"]
        return other if self.random.randrange(20) == 0 else owner

    # ------------------------------------------------------------ the run

    def play(self, steps: int) -> Outcome:
        """The troubled time, the healing, and the audit."""
        for _ in range(steps):
            self._step()
            self._disturb()
        taken = steps + self._drain()
        for name in self.scenario.check:
            ENDINGS[name](self)
        return Outcome(
            self.seed, self.scenario.name, taken, self.agenda.now_ms - START_MS,
            len(self.storage.messages), len(self.storage.events), self.ledger.deliveries,
            self.storage.epoch, self.storage.seen,
        )  # fmt: skip

    def _step(self) -> None:
        self.agenda.step()
        for i, broker in enumerate(self.brokers):
            if broker.serves and broker.changed != self.checked[i]:
                self.checked[i] = broker.changed
                self._check(broker)

    def _check(self, broker: Broker) -> None:
        """After every step of a broker: the conservation law, and one holder for each message."""
        moment = Moment(self.agenda.now_ms, self.policy, broker.lane)
        tail = broker.lane.tail
        told = counts(broker.state, moment)
        promise(sum(told.values()) == tail, "not conserved:", tail, told)
        promise(min(told.values()) >= 0, "less than nothing:", told)
        validate(broker.state, tail)
        owns = broker.epoch == self.storage.epoch
        if owns and broker.in_flight is None and not broker.draft.answers:
            self.ledger.compare_counts(broker.state, moment)
            self.ledger.compare_dead_letters(self.storage)

    def _disturb(self) -> None:
        """What happens to the storage, whoever owns it."""
        troubles = self.scenario.disturbances
        if troubles.checkpoint_rots and self.random.randrange(1_000) < troubles.checkpoint_rots:
            self.storage.rot()
        if self.release.is_old and self.random.randrange(1_000) < troubles.upgrades:
            self.release.is_old = False
            self.storage.seen["upgrades"] += 1
            for broker in self.brokers:
                if broker.serves:
                    broker.crash()

    def _drain(self) -> int:
        """Nothing goes wrong any more, honest workers come, blocks are lifted: all must be done."""
        self.release.is_old = False
        for broker in self.brokers:
            broker.troubles = HEALED
        for _ in range(2):
            self._start(Worker, HONEST)
        for step in range(DRAIN_STEPS_MAX):
            self._step()
            if step % 50 == 0 and self._is_done():
                return step
        raise BrokenPromiseError("never done: " + str(self._open()))

    def _is_done(self) -> bool:
        if any(entry.place == "blocked" for entry in self.ledger.entries):
            everything = ((1, len(self.ledger.entries)),)
            self._route().ask(cmd.Unblock(everything, "skip"), lambda _: None)
        return len(self.ledger.accepted) >= self._planned() and not self._open()

    def _planned(self) -> int:
        return self.scenario.workload.messages

    def _open(self) -> list[object]:
        return [e for e in self.ledger.entries if e.place in {"free", "leased", "blocked"}]


# ---------------------------------------------------------------- what must hold in the end


def all_accounted_for(world: World) -> None:
    """Every accepted push is in the log, and done, given up on or dropped."""
    for transaction_id, version in world.ledger.accepted.items():
        stored = world.storage.messages[version - 1]
        promise(stored.transaction_id == transaction_id, "lost:", transaction_id)
        place = world.ledger.entry(version).place
        promise(place in {"settled", "parked", "dropped"}, "left over:", version, place)


def fold_is_the_state(world: World) -> None:
    """The fold from the start, from a checkpoint, and what the owner has in memory are the same."""
    fold = checkpoint.to_record(world.storage.fold_from_start())
    promise(checkpoint.to_record(world.storage.restore()) == fold, "checkpoint and fold differ")
    for broker in world.brokers:
        settled = broker.serves and broker.in_flight is None and not broker.draft.answers
        if settled and broker.epoch == world.storage.epoch:
            promise(checkpoint.to_record(broker.state) == fold, "memory and fold differ")


def nothing_twice(world: World) -> None:
    """One transaction id, one message."""
    ids = [message.transaction_id for message in world.storage.messages]
    promise(len(ids) == len(set(ids)), "stored twice:", sorted(ids))


ENDINGS = {check.__name__: check for check in (all_accounted_for, fold_is_the_state, nothing_twice)}


def busier(scenario: Scenario, factor: int) -> Scenario:
    """The same with more messages, for long runs."""
    workload = replace(scenario.workload, messages=scenario.workload.messages * factor)
    return replace(scenario, workload=workload)
