"""The `outage` scenario: PostgreSQL goes away under a load that keeps its schedule, and comes back.

The broker is given its PostgreSQL by address, so that it does not start it again by itself: the
outage lasts as long as it was told to.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal, get_args

from spillway.bench import footprint
from spillway.bench.backlog import Books, emptied
from spillway.bench.errors import BenchError
from spillway.bench.plan import Push
from spillway.bench.report import Report
from spillway.bench.run import Run
from spillway.bench.samples import Samples, Spread, in_ms
from spillway.bench.site import OwnSite
from spillway.log.embedded import EmbeddedPostgres

How = Literal["pause", "stop", "kill"]
HOWS: tuple[How, ...] = get_args(How)
_BEFORE_S = 3.0
_AFTER_S = 3.0


@dataclass(frozen=True, slots=True)
class Absence:
    """When PostgreSQL was away."""

    from_at: float
    until_at: float


def outage(run: Run) -> Report:
    """What the producers feel of it, and what the consumers find behind it."""
    site, work = run.site, run.workload
    if not isinstance(site, OwnSite) or site.postgres is None:
        raise BenchError("the outage scenario takes its PostgreSQL away: it does not take --url")
    books = Books(run)
    run.make_queue()
    run.say(f"pushing {work.rate:g}/s by schedule; PostgreSQL: {work.how} for {work.seconds:g} s")
    with run.load(
        producers=work.connections,
        rate=work.rate / work.batch,
        batch=work.batch,
        seconds=work.seconds_max,
        buffered=True,
        diary=True,
    ) as load:
        time.sleep(_BEFORE_S)
        with away(site.postgres, work.how) as from_at:
            time.sleep(work.seconds)
        absence = Absence(from_at, time.perf_counter())
        run.facts["drained_s"] = round(emptied(run, 0) - absence.until_at, 3)
        time.sleep(_AFTER_S)
        found = load.stop()
    books.enter(run.queue, work.batch, found)
    felt = Felt.of(found.diary, absence, work.batch)
    run.facts |= felt.facts | {
        "messages_in_all": found.accepted,
        "buffered": found.buffered,
        "sender_late_ms_max": found.late_ms_max,
    }
    return run.report(
        felt.later,
        first_push_ms=felt.first_push_ms,
        stored_again_s=felt.stored_again_s,
        **books.balance(),
    )


# ---------------------------------------------------------------- away and back


@contextmanager
def away(postgres: EmbeddedPostgres, how: str) -> Iterator[float]:
    """PostgreSQL is away inside the block; since when."""
    leave, come_back = _WAYS[how]
    processes = _processes(postgres)
    from_at = time.perf_counter()
    leave(postgres, processes)
    try:
        yield from_at
    finally:
        come_back(postgres, processes)


def _processes(postgres: EmbeddedPostgres) -> list[int]:
    if postgres.pid is None:
        raise BenchError("PostgreSQL does not run")
    return [process.pid for process in footprint.tree(postgres.pid)]


def _signal(processes: Sequence[int], number: signal.Signals) -> None:
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _stop(postgres: EmbeddedPostgres, _: Sequence[int]) -> None:
    postgres.stop("fast")


def _start(postgres: EmbeddedPostgres, _: Sequence[int]) -> None:
    postgres.start()


def _kill(_: EmbeddedPostgres, processes: Sequence[int]) -> None:
    _signal(processes, signal.SIGKILL)


def _pause(_: EmbeddedPostgres, processes: Sequence[int]) -> None:
    _signal(processes, signal.SIGSTOP)


def _go_on(_: EmbeddedPostgres, processes: Sequence[int]) -> None:
    _signal(processes, signal.SIGCONT)


_Way = Callable[[EmbeddedPostgres, Sequence[int]], None]
_WAYS: Mapping[str, tuple[_Way, _Way]] = {
    "pause": (_pause, _go_on),
    "stop": (_stop, _start),
    "kill": (_kill, _start),
}


# ---------------------------------------------------------------- what the producers felt


@dataclass(frozen=True, slots=True)
class Felt:
    """An outage as the pushes of a schedule tell it."""

    first_push_ms: float | None
    """How long the first push that was due in it took."""
    later: Spread | None
    """The pushes that were due in it after that one was answered."""
    stored_again_s: float | None
    """From PostgreSQL's return until a push that was due after it was answered `stored`."""
    facts: dict[str, float | None]

    @classmethod
    def of(cls, diary: Sequence[Push], absence: Absence, batch: int) -> "Felt":
        within = [push for push in diary if absence.from_at <= push.due_at <= absence.until_at]
        if not within:
            return cls(None, None, None, {})
        first = min(within, key=lambda push: push.due_at)
        took = Samples()
        for push in within:
            if push.due_at > first.answered_at:
                took.add(push.due_at, push.answered_at - push.due_at, batch)
        stored = [p.answered_at for p in diary if p.due_at > absence.until_at and not p.buffered]
        return cls(
            first_push_ms=in_ms(first.answered_at - first.due_at),
            later=took.spread(first.answered_at, absence.until_at) if took.took else None,
            stored_again_s=round(min(stored) - absence.until_at, 3) if stored else None,
            facts={
                "away_s": round(absence.until_at - absence.from_at, 3),
                "push_ms_max": in_ms(max(push.answered_at - push.due_at for push in diary)),
            },
        )
