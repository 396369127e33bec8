"""The oracle: a consumer group told message by message, with no ranges and no events.

It says the rules of delivery again in the plainest words there are, and the two must agree:
one record for each message, every rule a loop over all of them. Slow, obvious, and independent of
`spillway.core` but for the policy. `tests/property` walks both side by side.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby

from spillway.core.policy import LEASE_AGE_MS_MAX, Policy

FREE = "free"


@dataclass(slots=True)
class Message:
    """One message, as its group sees it."""

    version: int
    deliver_ms: int = 0
    expires_ms: int | None = None
    place: str = FREE
    attempts: int = 0
    due_ms: int = 0
    lease_id: int = 0


@dataclass(slots=True)
class Term:
    """How long a lease runs."""

    since_ms: int
    deadline_ms: int


@dataclass(slots=True)
class Oracle:
    """A group on a lane, message by message."""

    policy: Policy
    messages: list[Message] = field(default_factory=list)
    leases: dict[int, Term] = field(default_factory=dict)
    leases_given: int = 0
    seen_to: int = 0
    """The last version that a lease took or stepped over: what lies behind it is new."""

    def push(self, deliver_ms: int = 0, expires_ms: int | None = None) -> None:
        """A message arrives."""
        version = len(self.messages) + 1
        self.messages.append(Message(version, deliver_ms, expires_ms, due_ms=deliver_ms))

    def at(self, versions: Iterable[int]) -> list[Message]:
        """The messages with these versions, in order, each once; what is not there is left out."""
        return [self.messages[v - 1] for v in sorted(set(versions)) if v <= len(self.messages)]

    def held_by(self, lease_id: int) -> list[Message]:
        """What a lease holds."""
        return [m for m in self.messages if m.lease_id == lease_id and m.place == "leased"]

    # ------------------------------------------------------------ the clock

    def sweep(self, now_ms: int, jitter: float) -> None:
        """The clock acts: what is past its deadline comes back, what is past its time goes."""
        for lease_id, term in sorted(self.leases.items()):
            if term.deadline_ms <= now_ms:
                for message in self.held_by(lease_id):
                    self._fail(message, now_ms, None, jitter)
        for message in self.messages:
            expires_ms = message.expires_ms
            if message.place == FREE and expires_ms is not None and expires_ms <= now_ms:
                message.place = "dropped"
        self._close()

    def _fail(self, message: Message, now_ms: int, delay_ms: int | None, jitter: float) -> None:
        policy = self.policy
        if message.attempts >= policy.max_attempts:
            ends = {"park": "parked", "block": "blocked", "drop": "dropped"}
            message.place = ends[policy.on_exhausted]
            return
        ceiling = min(policy.backoff_cap_ms, policy.backoff_base_ms * 2 ** (message.attempts - 1))
        message.place = FREE
        message.due_ms = now_ms + (int(ceiling * jitter) if delay_ms is None else delay_ms)

    def _close(self) -> None:
        self.leases = {i: term for i, term in self.leases.items() if self.held_by(i)}

    # ------------------------------------------------------------ a holder

    def lease(self, count: int, visibility_ms: int, now_ms: int) -> list[tuple[int, int]]:
        """(version, attempt) of what is handed out."""
        taken: list[Message] = []
        seen_to = self.seen_to
        for message in self._on_offer(now_ms):
            if len(taken) == count:
                break
            seen_to = max(seen_to, message.version)
            if message.due_ms <= now_ms:
                taken.append(message)
        if not taken:
            return []
        self.seen_to = seen_to
        self.leases_given += 1
        deadline_ms = now_ms + min(visibility_ms, LEASE_AGE_MS_MAX)
        self.leases[self.leases_given] = Term(now_ms, deadline_ms)
        for message in taken:
            message.place, message.lease_id = "leased", self.leases_given
            message.attempts += 1
        return [(message.version, message.attempts) for message in taken]

    def _on_offer(self, now_ms: int) -> Iterator[Message]:
        """What a lease looks at, in order: what came back and is due, then what is new."""
        limit = self._limit(now_ms)
        free = [m for m in self.messages if m.place == FREE and m.version <= limit]
        yield from (m for m in free if m.version <= self.seen_to and m.due_ms <= now_ms)
        if self._holes(now_ms) <= self.policy.max_ack_holes:
            yield from (m for m in free if m.version > self.seen_to)

    def _limit(self, now_ms: int) -> int:
        """In an ordered lane, how far one may look."""
        if self.policy.order == "none":
            return len(self.messages)
        if self.leases:
            return 0
        stops = [m.version for m in self.messages if m.place == "blocked" or self._tried(m, now_ms)]
        return min(stops) - 1 if stops else len(self.messages)

    def _tried(self, message: Message, now_ms: int) -> bool:
        return message.place == FREE and message.attempts > 0 and message.due_ms > now_ms

    def _holes(self, now_ms: int) -> int:
        """Gaps below the last settled message, without those that wait for their own time."""
        done = [m.place in {"settled", "parked", "dropped"} for m in self.messages]
        last = max((i for i, is_done in enumerate(done) if is_done), default=-1)
        gaps = sum(not is_done for is_done, _ in groupby(done[: last + 1]))
        scheduled = [
            m.place == FREE and not m.attempts and m.due_ms > now_ms
            for m in self.messages[: self.seen_to]
        ]
        return gaps - sum(waits for waits, _ in groupby(scheduled))

    def ack(self, lease_id: int, versions: Iterable[int]) -> tuple[set[int], set[int]]:
        """(done now, refused)."""
        asked = self.at(versions)
        done = [m for m in asked if m.place == "leased" and m.lease_id == lease_id]
        refused = {m.version for m in asked if m not in done and m.place != "settled"}
        for message in done:
            message.place = "settled"
        self._close()
        return {m.version for m in done}, refused

    def nack(
        self,
        lease_id: int,
        versions: Iterable[int],
        now_ms: int,
        jitter: float,
        *,
        delay_ms: int | None = None,
        park: bool = False,
    ) -> tuple[set[int], set[int]]:
        """(given back or up, refused)."""
        asked = self.at(versions)
        held = [m for m in asked if m.place == "leased" and m.lease_id == lease_id]
        for message in held:
            if park:
                message.place = "parked"
            else:
                self._fail(message, now_ms, delay_ms, jitter)
        self._close()
        return {m.version for m in held}, {m.version for m in asked if m not in held}

    def give_back(self, lease_id: int, now_ms: int) -> None:
        """A lease that never reached its holder."""
        for message in self.held_by(lease_id):
            message.place, message.due_ms = FREE, now_ms
            message.attempts -= 1
        self._close()

    def extend(self, lease_id: int, visibility_ms: int, now_ms: int) -> int | None:
        """The deadline then."""
        term = self.leases.get(lease_id)
        if term is None:
            return None
        latest = term.since_ms + LEASE_AGE_MS_MAX
        term.deadline_ms = max(term.deadline_ms, min(now_ms + visibility_ms, latest))
        return term.deadline_ms

    # ------------------------------------------------------------ an operator

    def park(self, versions: Iterable[int]) -> None:
        """Give up on what is not done."""
        for message in self.at(versions):
            if message.place in {FREE, "leased", "blocked"}:
                message.place = "parked"
        self._close()

    def unblock(self, versions: Iterable[int], action: str, now_ms: int) -> None:
        """Let blocked messages go."""
        for message in self.at(versions):
            if message.place == "blocked":
                message.place = {"retry": FREE, "skip": "settled", "park": "parked"}[action]
                message.attempts, message.due_ms = 0, now_ms

    def purge(self, versions: Iterable[int], *, dead: bool = False) -> None:
        """Settle what waits, or the dead letters."""
        for message in self.at(versions):
            if message.place == ("parked" if dead else FREE):
                message.place = "settled"

    def redrive(self, versions: Iterable[int]) -> None:
        """Dead letters leave."""
        self.purge(versions, dead=True)

    def seek(self, after: int) -> None:
        """Start again behind a version; dead letters stay."""
        after = min(after, len(self.messages))
        for message in self.messages:
            if message.place == "parked":
                continue
            if message.version > after:
                message.place = FREE
                message.attempts, message.due_ms = 0, message.deliver_ms
            elif message.place != "dropped":
                message.place = "settled"
        self.leases.clear()
        self.seen_to = after

    def start_over(self, after: int) -> None:
        """Deleted and created again."""
        for message in self.messages:
            message.place = FREE
        self.seek(after)

    # ------------------------------------------------------------ to compare

    def places(self, now_ms: int) -> list[str]:
        """The state of each message, by the seven names."""
        return [self._name(message, now_ms) for message in self.messages]

    def _name(self, message: Message, now_ms: int) -> str:
        if message.place != FREE:
            return message.place
        return "ready" if message.due_ms <= now_ms else "deferred"

    def holders(self) -> dict[int, int]:
        """Which lease holds each version."""
        return {m.version: m.lease_id for m in self.messages if m.place == "leased"}

    def attempts(self) -> dict[int, int]:
        """How often each version was tried, of what is not done."""
        return {
            m.version: m.attempts for m in self.messages if m.place in {FREE, "leased", "blocked"}
        }
