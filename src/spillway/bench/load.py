"""The load process: reads a plan on stdin, drives the broker, prints its findings on stdout.

A process of its own, so that its work is not the broker's. It keeps one request in flight a
connection, sends prepared bytes and reads only what it must.
"""

import asyncio
import gc
import resource
import signal
import sys
import time
from collections.abc import Sequence

import msgspec
import uvloop

from spillway.bench.connection import Connection
from spillway.bench.consumer import Consumer
from spillway.bench.course import Course
from spillway.bench.ledger import Accepted, Account, account
from spillway.bench.orders import Shape
from spillway.bench.plan import LoadFindings, LoadPlan
from spillway.bench.producer import Producer
from spillway.bench.samples import Samples, Spread, measured_from

_CONNECT_S = 10.0
_WATCH_S = 0.2


async def drive(plan: LoadPlan) -> LoadFindings:
    """Run the load to its end."""
    course = Course(plan)
    connections = await _connect(course)
    cpu = time.process_time()
    callers = _callers(course, connections)
    course.begin()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, course.stop_pushing)
    for caller in callers:
        caller.begin()
    try:
        await _watch(course)
    finally:
        for connection in connections:
            connection.close()
    return findings(course, time.process_time() - cpu)


async def _connect(course: Course) -> list[Connection]:
    plan, loop = course.plan, asyncio.get_running_loop()
    connections: list[Connection] = []
    async with asyncio.timeout(_CONNECT_S):
        for _ in range(plan.producers + plan.consumers):
            _, connection = await loop.create_connection(
                lambda: Connection(course.fail), plan.host, plan.port
            )
            connections.append(connection)
    return connections


def _callers(course: Course, connections: Sequence[Connection]) -> list[Producer | Consumer]:
    """Consumers begin first, so that nothing is pushed before somebody waits for it."""
    plan = course.plan
    shape = Shape(
        queue=plan.queue,
        batch=plan.batch,
        payload_bytes=plan.payload_bytes,
        transaction_ids=plan.transaction_ids,
        host=f"{plan.host}:{plan.port}",
        seed=plan.seed,
    )
    leasing, pushing = connections[: plan.consumers], connections[plan.consumers :]
    return [
        *(Consumer(course, connection, i) for i, connection in enumerate(leasing)),
        *(Producer(course, connection, shape, i) for i, connection in enumerate(pushing)),
    ]


async def _watch(course: Course) -> None:
    """Ends what would not end by itself: the time is up, or nothing moves any more."""
    plan = course.plan
    if plan.seconds and course.pushing:
        asyncio.get_running_loop().call_later(plan.seconds, course.stop_pushing)
    while not (await asyncio.wait([course.over], timeout=_WATCH_S))[0]:
        now = time.perf_counter()
        if now - course.start > plan.seconds_max or now - course.progress_at > plan.stall_s:
            course.arrivals.stop()
            course.finish()
    course.over.result()


def findings(course: Course, cpu_s: float) -> LoadFindings:
    verdict = _verdict(course)
    settled = _spread(course, course.settles)
    pushed = _spread(course, course.pushes)
    return LoadFindings(
        stored=course.accepted - course.buffered,
        buffered=course.buffered,
        duplicates_refused=course.duplicates_refused,
        acked=course.acked,
        seconds=time.perf_counter() - course.start,
        push=pushed,
        settle=settled,
        delivery=_spread(course, course.deliveries),
        lost=verdict.lost if verdict else None,
        duplicated=verdict.duplicated if verdict else None,
        out_of_order=verdict.out_of_order if verdict and course.plan.in_order else None,
        complete=course.complete,
        errors=dict(course.errors),
        cpu_s=round(cpu_s, 3),
        late_ms_max=round(course.open.late_s_max * 1000, 3) if course.open else None,
        diary=course.diary,
    )


def _spread(course: Course, samples: Samples) -> Spread | None:
    end = samples.last_end()
    if end is None:
        return None
    plan = course.plan
    if plan.seconds and samples is not course.settles:
        end = min(end, course.start + plan.seconds)
    return samples.spread(measured_from(course.start, end, plan.warmup_s), end)


def _verdict(course: Course) -> Account | None:
    """Only when the course ended: what had no time to arrive is not lost."""
    plan = course.plan
    stalled = time.perf_counter() - course.progress_at > plan.stall_s
    if not (plan.consumers and plan.verify and (course.complete or stalled)):
        return None
    earlier = [
        Accepted(range(part.first_batch, part.first_batch + part.batches), part.batch)
        for part in plan.waiting
    ]
    pushed = Accepted(course.accepted_batches, plan.batch)
    return account([pushed, *earlier] if plan.producers else earlier, course.streams)


def main() -> None:
    """Entry point of `python -m spillway.bench.load`."""
    plan = msgspec.json.decode(sys.stdin.buffer.read(), type=LoadPlan)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    # Nothing here makes cycles, and a collection would show up as a latency of the broker.
    gc.disable()
    found = uvloop.run(drive(plan))
    sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")


if __name__ == "__main__":
    main()
