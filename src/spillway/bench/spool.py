"""The scenarios `spool` and `replay`: into the files as fast as it goes, and out of them."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from spillway.bench import control
from spillway.bench.backlog import Books, Replayed, emptied, held, replayed, watched
from spillway.bench.errors import BenchError
from spillway.bench.plan import Push
from spillway.bench.report import Report
from spillway.bench.run import Load, Run
from spillway.bench.samples import in_ms, percentile

FILL_BATCH = 1000
LIVE_MESSAGES_MAX = 1_000_000
_NORMAL_S = 10.0
_WARMUP_S = 1.0
_SETTLING_S = 2.0


def spool(run: Run) -> Report:
    """Producers push as fast as they are answered, and every push goes to files."""
    work, books = run.workload, Books(run)
    run.make_queue()
    with held(run):
        run.say(f"pushing batches of {work.batch} over {work.connections} connections, to files")
        found = run.drive(
            note="push",
            producers=work.connections,
            batch=work.batch,
            messages=work.messages,
            seconds=work.seconds,
            buffered=True,
        )
        books.enter(run.queue, work.batch, found)
        begun_at = time.perf_counter()
    if found.stored:
        raise BenchError(f"{found.stored} messages were answered `stored` in maintenance mode")
    run.facts["messages_in_all"] = found.buffered
    seen = _replay(run, found.buffered, begun_at)
    run.facts["replay_messages_per_s"] = round(seen.as_spread().messages_per_s, 1)
    return run.report(found.push, **books.balance())


def replay(run: Run) -> Report:
    """Files are given free; once while nobody pushes, once beside pushes by schedule."""
    books = Books(run)
    run.make_queue()
    alone = _alone(run, books)
    live = _beside_live_pushes(run, books) if run.workload.rate else {}
    return run.report(alone.as_spread(), **live, **books.balance())


def _alone(run: Run, books: Books) -> Replayed:
    begun_at = _fill(run, books, run.workload.messages)
    before = run.site.usage().broker_rss_mb
    seen = _replay(run, run.workload.messages, begun_at)
    run.facts["cpu_s"] = seen.cpu_s | {"wall": round(seen.ended_at - begun_at, 2)}
    time.sleep(_SETTLING_S)
    after = run.site.usage().broker_rss_mb
    if before and after and seen.rss_mb_max:
        run.facts |= {
            "broker_rss_mb_before": before,
            "broker_rss_mb_after": after,
            "rss_growth_mb": round(max(after, seen.rss_mb_max) - before, 1),
        }
    return seen


def _fill(run: Run, books: Books, messages: int) -> float:
    """Into files; the answer is when they were given free."""
    with held(run):
        found = run.fill(messages, first_batch=books.next_batch, buffered=True)
        books.enter(run.queue, FILL_BATCH, found)
        return time.perf_counter()


def _replay(run: Run, messages: int, begun_at: float) -> Replayed:
    run.say(f"replaying {messages:,} messages")
    return replayed(run, messages, begun_at)


def _beside_live_pushes(run: Run, books: Books) -> dict[str, float | None]:
    """The same pushes while the spool is empty, and while it is being emptied."""
    work = run.workload
    queue = run.queue if work.into_backlog else f"{run.queue}-live"
    if not work.into_backlog:
        control.make_queue(run.site.address, queue)
    run.say(f"pushing {work.rate:g}/s by schedule while the spool is empty")
    with _live(run, books, queue) as load:
        watched(run, _NORMAL_S)
        normal = load.stop()
    books.enter(queue, 1, normal)
    messages = min(work.messages, LIVE_MESSAGES_MAX)
    begun_at = _fill(run, books, messages)
    with _live(run, books, queue) as load:
        run.say(f"replaying {messages:,} messages beside them")
        ended_at = emptied(run, messages)
        beside = load.stop()
    books.enter(queue, 1, beside)
    run.facts |= {
        "live_replay_messages_per_s": round(messages / (ended_at - begun_at), 1),
        "live_pushes": beside.accepted,
        "live_buffered": beside.buffered,
    }
    return {
        "live_p99_normal_ms": p99_ms(normal.diary, normal.diary[0].due_at + _WARMUP_S),
        "live_p99_ms": p99_ms(beside.diary, begun_at, ended_at),
    }


@contextmanager
def _live(run: Run, books: Books, queue: str) -> Iterator[Load]:
    with run.load(
        queue=queue,
        producers=run.workload.connections,
        rate=run.workload.rate,
        seconds=run.workload.seconds_max,
        first_batch=books.next_batch,
        buffered=True,
        diary=True,
    ) as load:
        yield load


def p99_ms(diary: Sequence[Push], start: float, end: float = float("inf")) -> float | None:
    """Of the pushes that were due between these moments."""
    took = sorted(push.answered_at - push.due_at for push in diary if start <= push.due_at <= end)
    return in_ms(percentile(took, 0.99))
