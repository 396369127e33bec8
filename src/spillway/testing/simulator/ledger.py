"""The auditor of the simulated world: one plain entry for each message, written from what happened.

It believes nothing that the core says about itself. It reads the committed events message by
message, hears what clients were told, and raises `BrokenPromiseError` at the first contradiction.
"""

from collections import Counter
from dataclasses import dataclass, field

from spillway.core import events as ev
from spillway.core.lane import Lane
from spillway.core.policy import Policy
from spillway.core.ranges import Range
from spillway.core.state import GroupState, Moment, attempts_of, counts, state_of, validate
from spillway.testing.simulator.storage import Batch, Storage, Stored


class BrokenPromiseError(AssertionError):
    """Something happened that Spillway promises not to let happen."""


def promise(kept: bool, what: str, *facts: object) -> None:  # noqa: FBT001 (reads as a sentence)
    """Stop at the first broken promise."""
    if not kept:
        raise BrokenPromiseError(" ".join(map(str, (what, *facts))))


@dataclass(slots=True)
class Entry:
    """A message, as its group has it."""

    message: Stored
    place: str = "free"
    attempts: int = 0
    due_ms: int = 0
    lease_id: int = 0
    is_new: bool = True


@dataclass(slots=True)
class Ledger:
    """What was promised to whom, and what became of it."""

    policy: Policy
    entries: list[Entry] = field(default_factory=list)
    deadlines: dict[int, int] = field(default_factory=dict)
    accepted: dict[str, int] = field(default_factory=dict)
    asked: set[tuple[int, int]] = field(default_factory=set)
    believed: dict[int, tuple[int, int]] = field(default_factory=dict)
    newest: int = 0
    revoked_to: int = 0
    deliveries: int = 0

    def entry(self, version: int) -> Entry:
        """The entry of a version."""
        return self.entries[version - 1]

    # ------------------------------------------------------------ what was stored

    def on_commit(self, batch: Batch) -> None:
        """A batch is in the log."""
        self.entries.extend(map(Entry, batch.messages))
        for now_ms, event, _ in batch.events:
            getattr(self, f"_on_{_READ[type(event)]}")(event, now_ms)

    def _each(self, runs: tuple[tuple[int, ...], ...]) -> list[tuple[int, Entry]]:
        return [(v, self.entry(v)) for run in runs for v in range(run[0], run[1] + 1)]

    def _on_leased(self, event: ev.Leased, now_ms: int) -> None:
        taken = self._each(event.ranges)
        if self.policy.order == "partition":
            self._check_line(taken, now_ms)
        for version, entry in taken:
            promise(entry.place == "free", "leased twice, or after its end:", version, entry, event)
            promise(entry.due_ms <= now_ms, "leased before its time:", version, entry)
            self._check_own_times(version, entry, now_ms)
            entry.attempts += 1
            promise(entry.attempts <= self.policy.max_attempts, "one attempt too many:", version)
            if entry.is_new and entry.message.deliver_ms is None:
                promise(version > self.newest, "first deliveries out of order:", version)
                self.newest = version
            entry.place, entry.lease_id, entry.is_new = "leased", event.lease_id, False
        self.deadlines[event.lease_id] = event.deadline_ms

    def _check_own_times(self, version: int, entry: Entry, now_ms: int) -> None:
        message = entry.message
        if message.deliver_ms is not None:
            promise(message.deliver_ms <= now_ms, "delivered before deliver_at:", version)
        if message.expires_ms is not None:
            promise(now_ms < message.expires_ms, "delivered after its time to live:", version)

    def _check_line(self, taken: list[tuple[int, Entry]], now_ms: int) -> None:
        """In an ordered lane nothing is in flight, and nothing before it failed and waits."""
        last = max(version for version, _ in taken)
        versions = {version for version, _ in taken}
        for version, entry in enumerate(self.entries, 1):
            promise(entry.place != "leased", "two leases in an ordered lane:", version)
            if version < last and version not in versions:
                waits = entry.place == "free" and entry.attempts > 0
                promise(not waits and entry.place != "blocked", "overtaken:", version, now_ms)

    def _on_extended(self, event: ev.Extended, _now_ms: int) -> None:
        promise(event.deadline_ms >= self.deadlines[event.lease_id], "an extension shortened")
        self.deadlines[event.lease_id] = event.deadline_ms

    def _check_held(self, version: int, entry: Entry, lease_id: int) -> None:
        held = entry.place == "leased" and entry.lease_id == lease_id
        promise(held, "settled by a stranger:", version, entry, lease_id)

    def _on_acked(self, event: ev.Acked, now_ms: int) -> None:
        for version, entry in self._each(event.ranges):
            self._check_held(version, entry, event.lease_id)
            promise((event.lease_id, version) in self.asked, "nobody acked", version)
            promise(now_ms < self.deadlines[event.lease_id], "acked after the deadline:", version)
            entry.place = "settled"

    def _on_came_back(self, event: ev.Nacked | ev.Expired, now_ms: int) -> None:
        returned = isinstance(event, ev.Nacked) and event.returned
        for _, _, due_ms in event.runs:
            promise(due_ms >= now_ms, "due in the past:", event)
        for start, end, due_ms in event.runs:
            for version, entry in self._each(((start, end),)):
                self._check_held(version, entry, event.lease_id)
                entry.place, entry.due_ms = "free", due_ms
                entry.attempts -= returned

    def _on_given_up(self, event: ev.Parked | ev.Blocked | ev.Dropped, _now_ms: int) -> None:
        place = type(event).__name__.lower()
        for version, entry in self._each(event.ranges):
            promise(entry.place in {"free", "leased", "blocked"}, "given up, done before:", version)
            entry.place = place

    def _on_unblocked(self, event: ev.Unblocked, now_ms: int) -> None:
        for version, entry in self._each(event.ranges):
            promise(entry.place == "blocked", "unblocked, but not blocked:", version)
            entry.place = "free" if event.action == "retry" else "settled"
            entry.attempts, entry.due_ms = 0, now_ms

    def _on_purged(self, event: ev.Purged | ev.Redriven, _now_ms: int) -> None:
        dead = isinstance(event, ev.Redriven) or event.dead
        for version, entry in self._each(event.ranges):
            promise(
                entry.place == ("parked" if dead else "free"), "purged from elsewhere:", version
            )
            entry.place = "settled"

    def _on_sought(self, event: ev.Sought, _now_ms: int) -> None:
        self._begin_again(event.after, keep=("parked",))

    def _on_deleted(self, _event: ev.Deleted, _now_ms: int) -> None:
        self._begin_again(0, keep=())

    def _begin_again(self, after: int, keep: tuple[str, ...]) -> None:
        for version, entry in enumerate(self.entries, 1):
            if entry.place in keep or (version <= after and entry.place == "dropped"):
                continue
            entry.place = "free" if version > after else "settled"
            entry.attempts, entry.due_ms, entry.is_new = 0, 0, True
        self.newest = 0
        self.revoked_to = max(self.deadlines, default=0)
        self.believed.clear()

    def _on_silent(self, _event: ev.Event, _now_ms: int) -> None:
        """Stepping over a message, or making a group, moves nothing here."""

    # ------------------------------------------------------------ what clients were told

    def pushed(self, transaction_id: str, version: int) -> None:
        """A producer was told where its message is."""
        promise(self.accepted.setdefault(transaction_id, version) == version, "two versions")
        promise(version <= len(self.entries), "accepted, not stored:", version)
        stored = self.entry(version).message.transaction_id
        promise(stored == transaction_id, "another message is at", version)

    def granted(
        self, lease_id: int, version: int, attempt: int, until_ms: int, now_ms: int
    ) -> None:
        """A worker was told that it holds a version."""
        if lease_id <= self.revoked_to:
            return  # granted and revoked in one commit: its acks will be refused
        holder, until = self.believed.get(version, (0, 0))
        promise(holder in {0, lease_id} or until <= now_ms, "two holders of", version)
        entry = self.entry(version)
        if entry.lease_id == lease_id and entry.place == "leased":
            promise(entry.attempts == attempt, "attempt", attempt, "is really", entry.attempts)
        self.believed[version] = (lease_id, until_ms)
        self.deliveries += 1

    def extended(self, lease_id: int, until_ms: int) -> None:
        """A worker was told that it may keep a lease for longer."""
        for version, (holder, _) in self.believed.items():
            if holder == lease_id:
                self.believed[version] = (lease_id, until_ms)

    def will_ack(self, lease_id: int, ranges: tuple[Range, ...]) -> None:
        """A worker is about to ack."""
        self.asked |= {(lease_id, version) for s, e in ranges for version in range(s, e + 1)}

    def let_go(self, lease_id: int, ranges: tuple[Range, ...]) -> None:
        """A worker is done with versions, whatever it will hear about them."""
        for version in [v for s, e in ranges for v in range(s, e + 1)]:
            if self.believed.get(version, (0, 0))[0] == lease_id:
                del self.believed[version]

    # ------------------------------------------------------------ comparisons

    def compare_counts(self, state: GroupState, moment: Moment) -> None:
        """The conservation law, for what is stored and known to be."""
        told = counts(state, moment)
        told["free"] = told.pop("ready") + told.pop("deferred")
        mine = Counter(entry.place for entry in self.entries)
        promise({k: n for k, n in told.items() if n} == dict(mine), "counts:", told, dict(mine))

    def compare_message_by_message(self, state: GroupState, lane: Lane, now_ms: int) -> None:
        """After a restart every message is where the log left it."""
        validate(state, lane.tail)
        moment = Moment(now_ms, self.policy, lane)
        for version, entry in enumerate(self.entries, 1):
            place = state_of(state, moment, version)
            place = "free" if place in {"ready", "deferred"} else place
            promise(place == entry.place, "came back", place, "was", version, entry)
            if place in {"free", "leased", "blocked"}:
                promise(attempts_of(state, version) == entry.attempts, "attempts:", version, entry)

    def compare_dead_letters(self, storage: Storage) -> None:
        """Every parked message is a dead letter, and no other."""
        parked = {v for v, entry in enumerate(self.entries, 1) if entry.place == "parked"}
        promise(parked == storage.dead, "dead letters:", parked ^ storage.dead)


_READ: dict[type[ev.Event], str] = {
    ev.GroupCreated: "silent",
    ev.Deferred: "silent",
    ev.Leased: "leased",
    ev.Extended: "extended",
    ev.Acked: "acked",
    ev.Nacked: "came_back",
    ev.Expired: "came_back",
    ev.Parked: "given_up",
    ev.Blocked: "given_up",
    ev.Unblocked: "unblocked",
    ev.Dropped: "given_up",
    ev.Sought: "sought",
    ev.Purged: "purged",
    ev.Redriven: "purged",
    ev.Deleted: "deleted",
}
