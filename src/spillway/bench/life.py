"""The `wal` scenario: what a message costs PostgreSQL from its push until nothing is left of it."""

import time

from spillway.bench.database import Counters, Database
from spillway.bench.errors import BenchError
from spillway.bench.orders import BATCHES_MAX
from spillway.bench.plan import LoadFindings
from spillway.bench.report import Report
from spillway.bench.run import Run

_PRUNED_S = 200.0
_CHECKPOINTED_S = 3.0
_TRICKLES = 2
_TRICKLE_MESSAGES = 200


def wal(run: Run) -> Report:
    """Push, lease, ack, checkpoint, trim, prune; WAL and dead tuples are counted over all of it."""
    if run.site.database_url is None:
        raise BenchError("the wal scenario counts inside PostgreSQL: give --database-url")
    database = Database(run.site.database_url)
    try:
        return _measure(run, database)
    finally:
        database.close()


def _measure(run: Run, database: Database) -> Report:
    run.make_queue(retention_ms=0, dedupe_window_ms=1_000)
    database.checkpoint()
    with database.autovacuum_held():
        before, begun = database.settled_counters(), time.monotonic()
        found = _live(run)
        run.say("waiting until checkpoints, trimming and pruning are through")
        messages = found.stored + _trickle(run)
        run.facts["pruned"] = database.wait_until_pruned(_PRUNED_S)
        spent = database.settled_counters().since(before)
    run.facts["life_s"] = round(time.monotonic() - begun, 1)
    run.facts["control_rows_left"] = database.control_rows()
    run.facts["messages_in_all"] = messages
    run.facts |= per_message(spent, messages)
    return run.report(
        found.settle,
        wal_bytes_per_message=round(spent.wal_bytes / messages, 2),
        dead_tuples_per_message=round(max(spent.dead, 0) / messages, 5),
        lost=found.lost,
        duplicated=found.duplicated,
        out_of_order=found.out_of_order,
    )


def _live(run: Run) -> LoadFindings:
    work = run.workload
    run.say(f"pushing, leasing and acking {work.messages:,} messages by {work.batch}")
    found = run.drive(
        note="life",
        producers=work.connections,
        consumers=work.consumers,
        batch=work.batch,
        messages=work.messages,
        lease_max=work.batch,
        lease_wait_ms=20,
    )
    if not found.complete:
        raise BenchError(f"only {found.acked} of {found.stored} messages came to their end")
    return found


def _trickle(run: Run) -> int:
    """The control log is trimmed to the last checkpoint but one: it takes two more to get there."""
    stored = 0
    for number in range(_TRICKLES):
        time.sleep(_CHECKPOINTED_S)
        first = BATCHES_MAX - (number + 1) * _TRICKLE_MESSAGES
        found = run.drive(
            producers=1,
            consumers=1,
            messages=_TRICKLE_MESSAGES,
            first_batch=first,
            lease_max=1,
            lease_wait_ms=20,
        )
        stored += found.stored
    time.sleep(_CHECKPOINTED_S)
    return stored


def per_message(spent: Counters, messages: int) -> dict[str, float]:
    """`updates_and_deletes` is the plain count; pruning within a page may hide some dead tuples."""
    return {
        "updates_and_deletes_per_message": round((spent.updated + spent.deleted) / messages, 5),
        "rows_inserted_per_message": round(spent.inserted / messages, 5),
        "wal_records_per_message": round(spent.wal_records / messages, 4),
        "wal_full_pages": spent.wal_full_pages,
    }
