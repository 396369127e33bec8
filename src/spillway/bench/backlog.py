"""A spool that is filled, given free and emptied: what the scenarios about it have in common.

Maintenance mode stands for a PostgreSQL that is away: pushes take the same way into files.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from spillway.bench import control
from spillway.bench.errors import BenchError
from spillway.bench.plan import LoadFindings, Waiting
from spillway.bench.run import Run, spent
from spillway.bench.samples import Spread

_LEASE_MAX = 1000
_CONSUMERS = 8
_POLL_S = 0.2
_STALL_S = 60.0
"""Longer than a lease: one whose answer was lost in an outage comes back by itself."""


@contextmanager
def held(run: Run) -> Iterator[None]:
    """Inside the block pushes go to files, and nothing of them into the log."""
    control.hold(run.site.address)
    try:
        yield
    finally:
        control.release(run.site.address)


@dataclass(frozen=True, slots=True)
class Replayed:
    """A replay as it was seen from outside."""

    messages: int
    begun_at: float
    ended_at: float
    rss_mb_max: float | None
    cpu_s: dict[str, float]

    def as_spread(self) -> Spread:
        seconds = max(self.ended_at - self.begun_at, 1e-9)
        return Spread(
            samples=1,
            messages=self.messages,
            seconds=seconds,
            messages_per_s=self.messages / seconds,
            p50_ms=None,
            p99_ms=None,
            max_ms=None,
        )


def replayed(run: Run, messages: int, begun_at: float) -> Replayed:
    """Wait until no push is in a file any more, with an eye on the processes."""
    before = run.site.usage()
    seen = [before]
    ended_at = emptied(run, messages, lambda: seen.append(run.site.usage()))
    rss_max = max(filter(None, (usage.broker_rss_mb for usage in seen)), default=None)
    return Replayed(messages, begun_at, ended_at, rss_max, spent(before, seen[-1]))


def emptied(run: Run, messages: int, look: Callable[[], object] = lambda: None) -> float:
    """Wait until no push is in a file any more; when that was.

    The broker is asked now and then, so as not to disturb. To `look` at processes costs
    milliseconds of a processor: not where those are what is measured.
    """
    pending, moved_at = messages, time.perf_counter()
    while left := control.spooled(run.site.address):
        now = time.perf_counter()
        if left != pending:
            pending, moved_at = left, now
        elif now - moved_at > _STALL_S:
            raise BenchError(f"{left:,} messages stay in the spool")
        time.sleep(_POLL_S)
        look()
    return time.perf_counter()


def watched(run: Run, seconds: float) -> None:
    """Let it go on for so long, and ask the broker as often as while its spool is emptied."""
    end_at = time.perf_counter() + seconds
    while time.perf_counter() < end_at:
        control.spooled(run.site.address)
        time.sleep(_POLL_S)


@dataclass(slots=True)
class Books:
    """Which batches went into which queue; no batch number is used twice, and they ascend."""

    run: Run
    next_batch: int = 0
    queues: dict[str, list[Waiting]] = field(default_factory=lambda: defaultdict(list))

    def enter(self, queue: str, batch: int, found: LoadFindings) -> None:
        """What a load that began with `next_batch` pushed."""
        batches = found.accepted // batch
        self.queues[queue].append(Waiting(batches, batch, self.next_batch))
        self.next_batch += batches

    def balance(self) -> dict[str, int | None]:
        """Lease and ack everything, and look for each order id."""
        sums: dict[str, int | None] = dict.fromkeys(("lost", "duplicated", "out_of_order"), 0)
        for queue, waiting in self.queues.items():
            messages = sum(part.messages for part in waiting)
            self.run.say(f"leasing {messages:,} messages of {queue} and looking for each")
            found = self.run.drive(
                queue=queue,
                consumers=_CONSUMERS,
                waiting=waiting,
                lease_max=_LEASE_MAX,
                stall_s=_STALL_S,
            )
            for name, before in sums.items():
                count = getattr(found, name)
                sums[name] = None if count is None or before is None else before + count
        return sums
