"""PostgreSQL, played: messages, control log, two checkpoints, dead letters, and the fence."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from spillway.core import events as ev
from spillway.core.checkpoint import UnknownCheckpointError
from spillway.core.errors import NotOwnerError
from spillway.core.fold import evolve
from spillway.core.state import GroupState
from spillway.testing.simulator.release import event_of, state_of

OWNERSHIP_MS = 150


@dataclass(frozen=True, slots=True)
class Stored:
    """A message, written once."""

    transaction_id: str
    deliver_ms: int | None = None
    expires_ms: int | None = None


@dataclass(slots=True)
class Batch:
    """What one commit writes, and who waits for it."""

    base_version: int
    messages: list[Stored] = field(default_factory=list)
    events: list[tuple[int, ev.Event, bytes]] = field(default_factory=list)
    dead: set[int] = field(default_factory=set)
    buried: set[int] = field(default_factory=set)
    answers: list[tuple[Callable[..., None], object]] = field(default_factory=list)


class DuplicateKeyError(Exception):
    """A second row for the same version: the primary key of the message table says no."""


class Storage:
    """The only truth. Whoever writes must own the shard at that very moment."""

    def __init__(self, on_commit: Callable[[Batch], None]) -> None:
        self.epoch = 0
        self.owner = ""
        self.owned_until_ms = 0
        self.commit_seq = 0
        self.messages: list[Stored] = []
        self.dead: set[int] = set()
        self.events: list[bytes] = []
        self.trimmed_to = 0
        self.checkpoints: list[tuple[int, bytes]] = []
        self.seen: Counter[str] = Counter()
        self._on_commit = on_commit

    def acquire(self, broker: str, now_ms: int) -> int | None:
        """A new epoch for a broker, if nobody else owns the shard."""
        if self.owner != broker and now_ms < self.owned_until_ms:
            return None
        self.epoch += 1
        self.owner = broker
        self.owned_until_ms = now_ms + OWNERSHIP_MS
        return self.epoch

    def renew(self, epoch: int, now_ms: int) -> None:
        """The owner lives."""
        self.check_fence(epoch)
        self.owned_until_ms = now_ms + OWNERSHIP_MS

    def check_fence(self, epoch: int) -> None:
        """Refuse a broker that was deposed."""
        if epoch != self.epoch:
            self.seen["fenced"] += 1
            raise NotOwnerError

    def commit(self, epoch: int, batch: Batch) -> None:
        """All of a batch, or nothing."""
        self.check_fence(epoch)
        if batch.messages and batch.base_version != len(self.messages) + 1:
            raise DuplicateKeyError(f"version {batch.base_version} is there already")
        self.commit_seq += 1
        self.messages.extend(batch.messages)
        self.events.extend(stored for _, _, stored in batch.events)
        self.dead = (self.dead | batch.dead) - batch.buried
        self._on_commit(batch)

    def save_checkpoint(self, epoch: int, stored: bytes) -> None:
        """Keep two that can be read, and trim the control log to the older one."""
        self.check_fence(epoch)
        readable = [entry for entry in self.checkpoints if _is_readable(entry[1])]
        self.checkpoints = [*readable[-1:], (len(self.events), stored)]
        if len(self.checkpoints) > 1 and _is_readable(stored):
            self.trimmed_to = self.checkpoints[0][0]
            self.seen["trims"] += 1

    def restore(self) -> GroupState:
        """The newest checkpoint that can be read, or nothing, and the fold of the rest."""
        for seq, stored in reversed(self.checkpoints):
            if seq >= self.trimmed_to and _is_readable(stored):
                self.seen["checkpoints used"] += 1
                return self._fold(state_of(stored), seq)
            self.seen["checkpoints rotten"] += 1
        if self.trimmed_to:
            raise UnknownCheckpointError("the log is trimmed and no checkpoint can be read")
        return self._fold(GroupState(), 0)

    def _fold(self, state: GroupState, seq: int) -> GroupState:
        for stored in self.events[seq:]:
            evolve(state, event_of(stored))
        return state

    def rot(self) -> None:
        """The newest checkpoint goes bad, as long as that loses nothing."""
        others = any(_is_readable(stored) for _, stored in self.checkpoints[:-1])
        if self.checkpoints and (others or not self.trimmed_to):
            seq, stored = self.checkpoints[-1]
            self.checkpoints[-1] = (seq, stored[: len(stored) // 2])

    def fold_from_start(self) -> GroupState:
        """What the whole history says; a real log is trimmed, this one only pretends to be."""
        return self._fold(GroupState(), 0)


def _is_readable(stored: bytes) -> bool:
    try:
        state_of(stored)
    except UnknownCheckpointError:
        return False
    return True
