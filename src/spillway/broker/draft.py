"""What a shard has decided but not yet written, and who waits for it."""

import asyncio
import time
from collections import Counter, deque
from dataclasses import dataclass, field

from spillway.broker.lanes import LaneEntry
from spillway.core.errors import (
    CommitRefusedError,
    DatabaseUnavailableError,
    OverloadedError,
    SpillwayError,
)
from spillway.log.writer import Commit

MESSAGES_MAX = 2000
BYTES_MAX = 4 * 1024 * 1024
"""A larger draft is split: while PostgreSQL writes one part, the next requests are read."""
LATE_S = 1.0
"""A commit that takes longer is not one that PostgreSQL is busy with, as far as one can tell."""


@dataclass(slots=True)
class Draft:
    """The next commit. Everything decided while the last one was in flight gathers here."""

    commit: Commit = field(default_factory=Commit)
    waiters: list[asyncio.Future[None]] = field(default_factory=list)
    touched: dict[int, LaneEntry] = field(default_factory=dict)
    tails: dict[int, int] = field(default_factory=dict)
    counts: Counter[tuple[int, str]] = field(default_factory=Counter)
    messages: int = 0
    payload_bytes: int = 0
    author: asyncio.Future[None] | None = None
    """Who waits for it and decided all of it, where that is known."""
    begun_s: float = 0.0

    def __bool__(self) -> bool:
        commit = self.commit
        return bool(
            commit.batches or commit.controls or commit.dead or commit.redriven_ids or self.waiters
        )

    @property
    def is_full(self) -> bool:
        """Whether what is decided next goes into another one."""
        return self.messages >= MESSAGES_MAX or self.payload_bytes >= BYTES_MAX

    def waiter(self) -> asyncio.Future[None]:
        """Done once it is in the log."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiters.append(waiter)
        return waiter

    def close(self) -> None:
        """No more may be added to the rows of this commit."""
        for entry in self.touched.values():
            self.tails[entry.facts.lane_id] = entry.lane.tail
            entry.open_batch = None
            for group in entry.groups.values():
                group.open_row = None

    def resolve(self) -> None:
        """It is in the log: tell everyone who waits."""
        for lane_id, entry in self.touched.items():
            entry.durable_tail = self.tails[lane_id]
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)

    def fail(self, error: Exception) -> None:
        """It is not in the log (or nobody can say): tell everyone who waits."""
        for waiter in self.waiters:
            _tell(waiter, error)

    def refuse(self, error: SpillwayError) -> None:
        """PostgreSQL refuses something in it for good. Its author is to blame, or whoever was alone
        in it; the others are told to try again.
        """
        author = self.author or (self.waiters[0] if len(self.waiters) == 1 else None)
        if author is not None and not error.transient:
            _tell(author, error)
        self.fail(error if error.transient else CommitRefusedError())

    def fail_unknown(self) -> None:
        """Nobody can say whether it is in the log."""
        self.fail(
            DatabaseUnavailableError(
                "PostgreSQL went away inside the commit: it may or may not have landed",
                hint="retry with the same transaction ids, or settle again; both are safe",
            )
        )


def _tell(waiter: asyncio.Future[None], error: Exception) -> None:
    if not waiter.done():
        waiter.set_exception(error)
        # Whoever waited may have left; that is no reason for a warning about the future.
        waiter.exception()


class Drafts:
    """The commits of a shard that are not in the log yet: one gathers, some wait, one is out."""

    def __init__(self) -> None:
        self.gathering = Draft()
        self.in_flight: Draft | None = None
        self._sealed: deque[Draft] = deque()

    def __bool__(self) -> bool:
        return bool(self._sealed or self.gathering)

    @property
    def messages(self) -> int:
        """How many messages are decided and wait for their commit to begin."""
        return self.gathering.messages + sum(draft.messages for draft in self._sealed)

    @property
    def payload_bytes(self) -> int:
        """How many bytes those are."""
        return self.gathering.payload_bytes + sum(draft.payload_bytes for draft in self._sealed)

    @property
    def last(self) -> Draft | None:
        """The commit after which everything decided so far is in the log; None: it is already."""
        if self.gathering:
            return self.gathering
        return self._sealed[-1] if self._sealed else self.in_flight

    def check_room(self, messages_max: int, bytes_max: int) -> None:
        """Refuse more than may wait. Where the commit that all of it waits for is late, it is not
        too much for PostgreSQL: PostgreSQL is away, and there is no room to wait for the proof.
        """
        messages, size = self.messages, self.payload_bytes
        if messages < messages_max and size < bytes_max:
            return
        waiting = f"{messages} messages ({size} bytes) wait for their commit"
        out = self.in_flight
        if out is not None and time.monotonic() - out.begun_s > LATE_S:
            raise DatabaseUnavailableError(
                f"{waiting}, and PostgreSQL does not answer the last one"
            )
        raise OverloadedError(waiting)

    def begin(self, draft: Draft) -> None:
        """It goes out."""
        self.in_flight, draft.begun_s = draft, time.monotonic()

    def seal(self) -> Draft:
        """What is decided from here on goes into a commit of its own."""
        self.gathering.close()
        self._sealed.append(self.gathering)
        self.gathering = Draft()
        return self.gathering

    def take(self) -> Draft:
        """The next commit, closed."""
        if not self._sealed:
            self.seal()
        return self._sealed.popleft()

    def fail(self, error: Exception) -> list[LaneEntry]:
        """None of those that are not out will be written; the lanes that they had changed."""
        touched: list[LaneEntry] = []
        while self:
            draft = self.take()
            draft.fail(error)
            touched += draft.touched.values()
        return touched
