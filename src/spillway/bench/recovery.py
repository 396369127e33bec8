"""The `recovery` scenario: a broker with a full queue is killed and must soon lease again.

Each partition is a lane with a control log of its own that must be read again.
"""

import time

from spillway.bench import control
from spillway.bench.database import Database
from spillway.bench.errors import BenchError
from spillway.bench.plan import Waiting
from spillway.bench.report import Report
from spillway.bench.run import Run
from spillway.bench.samples import Spread
from spillway.bench.site import OwnSite

_FIRST_LEASE_S = 120.0
_SETTLING_S = 3.0


def recovery(run: Run) -> Report:
    """From the start of the process after a kill -9 to the first answered lease."""
    site = run.site
    if not isinstance(site, OwnSite):
        raise BenchError("the recovery scenario kills its broker: it does not take --url")
    _prepare(run)
    before = site.usage().broker_rss_mb
    run.say("killing the broker and starting it again")
    site.kill()
    started_at = site.spawn()
    first_lease_s = _first_lease_at(run, started_at) - started_at
    run.facts["all_lanes_s"] = round(_all_lanes_at(run) - started_at, 3)
    site.wait_until_ready()
    time.sleep(_SETTLING_S)
    after = site.usage().broker_rss_mb
    run.facts |= {"broker_rss_mb_before": before, "broker_rss_mb_after": after}
    return run.report(
        _as_spread(run.facts["waiting"], first_lease_s),
        first_lease_s=round(first_lease_s, 3),
        broker_rss_mb=max(before or 0.0, after or 0.0),
    )


def _prepare(run: Run) -> None:
    """Each connection acks one by one on a lane of its own: many control rows a commit.

    Where there are more lanes than connections, the wheel of the queue takes all to every lane.
    """
    work = run.workload
    run.make_queue(visibility_ms=3_600_000)
    run.fill(work.messages + work.control_rows)
    run.say(f"writing {work.control_rows:,} control rows")
    run.drive(
        consumers=min(work.consumers, work.partitions),
        waiting=[Waiting(work.control_rows)],
        lease_max=1,
        own_partitions=work.partitions <= work.consumers,
        verify=False,
        stall_s=5.0,
    )
    run.facts["waiting"] = control.waiting(run.site.address, run.queue)
    assert run.site.database_url is not None
    database = Database(run.site.database_url)
    try:
        run.facts["control_rows_at_kill"] = database.control_rows()
        run.facts["lanes_at_kill"] = database.lanes_with_control_rows()
    finally:
        database.close()


def _first_lease_at(run: Run, started_at: float) -> float:
    deadline = started_at + _FIRST_LEASE_S
    return control.first_lease_at(run.site.address, run.queue, deadline)


def _all_lanes_at(run: Run) -> float:
    """When every lane was asked: the wheel turns one lane further with each lease of one."""
    seen: set[str] = set()
    while len(seen) < run.facts["lanes_at_kill"]:
        messages = control.lease(run.site.address, run.queue, count=1)
        if not messages:
            break  # a small run: some lanes were empty at the kill
        seen.update(message["partition"] for message in messages)
    return time.perf_counter()


def _as_spread(waiting: int, seconds: float) -> Spread:
    return Spread(
        samples=1,
        messages=waiting,
        seconds=seconds,
        messages_per_s=waiting / seconds,
        p50_ms=None,
        p99_ms=None,
        max_ms=None,
    )
