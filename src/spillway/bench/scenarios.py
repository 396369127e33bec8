"""The scenarios of `spillway bench`: each takes a run and returns what it found."""

import time
from collections.abc import Callable, Mapping

from spillway.bench import control
from spillway.bench.life import wal
from spillway.bench.outage import outage
from spillway.bench.plan import Waiting
from spillway.bench.recovery import recovery
from spillway.bench.report import Report
from spillway.bench.run import Run
from spillway.bench.spool import replay, spool
from spillway.bench.workload import Scenario

FILL_BATCH = 1000
_SETTLING_S = 3.0


def produce(run: Run) -> Report:
    """Producers push batches as fast as they are answered."""
    work = run.workload
    run.make_queue()
    run.say(f"pushing batches of {work.batch} over {work.connections} connections")
    found = run.drive(
        note="push",
        producers=work.connections,
        batch=work.batch,
        messages=work.messages,
        seconds=work.seconds,
    )
    run.facts["messages_in_all"] = found.stored
    return run.report(found.push)


def drain(run: Run) -> Report:
    """Consumers empty a full queue: each call acks a batch and leases the next."""
    work = run.workload
    messages = -(-work.messages // FILL_BATCH) * FILL_BATCH
    run.make_queue()
    run.fill(messages)
    run.say(f"leasing and acking {messages:,} messages by {work.batch}")
    found = run.drive(
        note="drain",
        consumers=work.consumers,
        waiting=[Waiting(messages // FILL_BATCH, FILL_BATCH)],
        lease_max=work.batch,
    )
    return run.report(
        found.settle,
        lost=found.lost,
        duplicated=found.duplicated,
        out_of_order=found.out_of_order,
    )


def roundtrip(run: Run) -> Report:
    """Producers and consumers together; the rate is that of the acks."""
    work = run.workload
    run.make_queue()
    run.say(f"{work.connections} producers and {work.consumers} consumers, batches of {work.batch}")
    found = run.drive(
        note="roundtrip",
        producers=work.connections,
        consumers=work.consumers,
        batch=work.batch,
        messages=work.messages,
        seconds=work.seconds,
        lease_max=work.batch,
        lease_wait_ms=20,
    )
    run.facts["messages_in_all"] = found.stored
    return run.report(
        found.settle,
        push_p50_ms=found.push.p50_ms if found.push else None,
        push_p99_ms=found.push.p99_ms if found.push else None,
        lost=found.lost,
        duplicated=found.duplicated,
        out_of_order=found.out_of_order,
    )


def latency(run: Run) -> Report:
    """An open loop: pushes follow a schedule, consumers wait in long polls."""
    work = run.workload
    run.make_queue()
    run.say(f"pushing {work.rate:g}/s by schedule for {work.seconds:g} s")
    found = run.drive(
        note="latency",
        producers=work.connections,
        consumers=work.consumers,
        batch=work.batch,
        rate=work.rate / work.batch,
        messages=work.messages or round(work.rate * work.seconds),
        lease_max=max(10, work.batch),
        lease_wait_ms=2_000,
    )
    run.facts["sender_late_ms_max"] = found.late_ms_max
    delivery = found.delivery
    return run.report(
        found.push,
        push_p50_ms=found.push.p50_ms if found.push else None,
        push_p99_ms=found.push.p99_ms if found.push else None,
        lease_p50_ms=delivery.p50_ms if delivery else None,
        lease_p99_ms=delivery.p99_ms if delivery else None,
        lost=found.lost,
        duplicated=found.duplicated,
        out_of_order=found.out_of_order,
    )


def memory(run: Run) -> Report:
    """How big the broker is while many messages wait."""
    run.make_queue()
    found = run.fill(run.workload.messages)
    time.sleep(_SETTLING_S)
    run.facts["waiting"] = control.waiting(run.site.address, run.queue)
    return run.report(found.push)


BY_NAME: Mapping[Scenario, Callable[[Run], Report]] = {
    "produce": produce,
    "single": produce,
    "drain": drain,
    "roundtrip": roundtrip,
    "latency": latency,
    "wal": wal,
    "recovery": recovery,
    "memory": memory,
    "spool": spool,
    "replay": replay,
    "outage": outage,
}
