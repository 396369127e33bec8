"""The hot statements use their index on tables of some size, whether PostgreSQL plans for the
parameters at hand (custom) or once for all (generic, as for a statement prepared long ago).
"""

import re
from collections.abc import Iterator

import psycopg
import pytest

from spillway.log.queries import QUERIES

_PARAMETER = re.compile(r"%\((\w+)\)[sbt]")
BIG = {"message_batch", "control_event", "dead_letter"}
PLANS = ("force_custom_plan", "force_generic_plan")
LANES, DEAD_ID = "ARRAY[7, 8]::bigint[]", "ARRAY[70, 71]::bigint[]"

# 40 lanes of 10 queues; of each 500 batches of 10 messages, 500 rows of events in 2 groups,
# 250 dead letters; one batch in 100 has times.
FILL = """
INSERT INTO spillway.org VALUES ('default');
INSERT INTO spillway.shard (shard_id, epoch) SELECT generate_series(0, 3), 1;
INSERT INTO spillway.queue (org, name, options)
    SELECT 'default', 'q' || i, '{}' FROM generate_series(1, 10) AS i;
INSERT INTO spillway.lane (queue_id, partition, priority, enqueue_shard, shard_id)
    SELECT q, 'p' || p, 2, 0, p % 4 FROM generate_series(1, 10) AS q, generate_series(1, 4) AS p;
INSERT INTO spillway.message_batch
    (lane_id, base_version, count, appended_at, transaction_ids, payloads, deliver_at)
    SELECT lane, 1 + 10 * i, 10, now() - interval '1 day' + i * interval '1 s',
        array_fill('t'::text, ARRAY[10]), array_fill('\\x7b7d'::bytea, ARRAY[10]),
        CASE WHEN i % 100 = 0 THEN array_fill(now(), ARRAY[10]) END
    FROM generate_series(1, 40) AS lane, generate_series(0, 499) AS i;
INSERT INTO spillway.control_event
    SELECT lane, 'g' || g, i, '\\x00'::bytea, now()
    FROM generate_series(1, 40) AS lane, generate_series(1, 2) AS g, generate_series(1, 250) AS i;
INSERT INTO spillway.dead_letter (queue_id, lane_id, "group", version, transaction_id, payload,
        content_type, attempts, cause, enqueued_at, dead_at)
    SELECT 1 + (lane - 1) / 4, lane, 'g' || v % 2, v, 't', '{}', 0, 5, 'exhausted', now(), now()
    FROM generate_series(1, 40) AS lane, generate_series(1, 250) AS v;
ANALYZE
"""

# Statement, parameters in words, the indexes of the big tables that it must use and no others.
GUARDED = {
    "batches_from": (
        {"lane_id": "7", "start": "2000", "end": "2500", "bytes": "4000000"},
        {"message_batch_pkey"},
    ),
    "ids_before": (
        {
            "lane_id": "7",
            "before": "4000",
            "since_ms": "1700000000000",
            "limit": "100",
            "bytes": "4000000",
        },
        {"message_batch_pkey"},
    ),
    "times_behind": ({"lane_id": "7", "after": "2000", "limit": "100"}, {"message_batch_timed"}),
    "lane_tails": ({"lane_ids": LANES}, {"message_batch_pkey"}),
    "control_since": (
        {
            "from_lane_ids": LANES,
            "from_groups": "ARRAY['g1', 'g1']",
            "from_seqs": "ARRAY[200, 200]::bigint[]",
            "lane_ids": LANES,
        },
        {"control_event_pkey"},
    ),
    "prune": (
        {
            "shard_id": "0",
            "epoch": "1",
            "lane_id": "7",
            "end": "500",
            "groups": "ARRAY['g1', 'g2']",
        },
        {"message_batch_pkey"},
    ),
    "prune_end": (
        {"lane_id": "7", "through": "500", "before_ms": "1700000000000", "batches": "500"},
        {"message_batch_pkey"},
    ),
    "lanes_oldest": (
        {"shard_ids": "ARRAY[0, 1]", "after": "3", "limit": "10"},
        {"message_batch_pkey"},
    ),
    "dead_page": ({"ids": DEAD_ID, "bytes": "4000000"}, {"dead_letter_pkey"}),
    "dead_bodies": ({"ids": DEAD_ID}, {"dead_letter_pkey"}),
    "lane_empty": (
        {"shard_id": "0", "epoch": "1", "lane_id": "7", "batches": "500"},
        {"message_batch_pkey"},
    ),
    "versions_at": ({"at": "now()", "lane_ids": LANES}, {"message_batch_pkey"}),
    "appended_at": ({"lane_ids": LANES, "versions": "ARRAY[9, 9]"}, {"message_batch_pkey"}),
}
NO_FILTER = dict.fromkeys(
    ("group", "partition", "key", "error", "before", "ids", "partitions", "versions"), "NULL"
)
OF_A_QUEUE = NO_FILTER | {"queue_id": "3", "after": "0", "limit": "1000"}


@pytest.fixture(scope="module")
def conn(postgres, _migrated) -> Iterator[psycopg.Connection]:
    """A database with enough rows that a sequential scan would be a mistake."""
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE planned TEMPLATE {_migrated}")
    url = postgres.url.replace("/spillway?", "/planned?")
    with psycopg.connect(url, autocommit=True) as conn:
        for statement in FILL.split(";\n"):
            conn.execute(statement)
        yield conn


def nodes(plan: dict) -> Iterator[dict]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def explain(conn, name: str, values: dict[str, str], mode: str) -> list[dict]:
    """The nodes of the plan of a named statement."""
    statement = QUERIES[name].sql
    names = list(dict.fromkeys(_PARAMETER.findall(statement)))
    numbered = _PARAMETER.sub(lambda m: f"${names.index(m[1]) + 1}", statement)
    return planned(conn, f"AS {numbered}", [values[each] for each in names], mode)


def planned(conn, prepared: str, values: list[str], mode: str) -> list[dict]:
    with conn.transaction(force_rollback=True):
        conn.execute(f"SET LOCAL plan_cache_mode = {mode}")
        conn.execute(f"PREPARE guarded {prepared}")
        explained = conn.execute(f"EXPLAIN (FORMAT JSON) EXECUTE guarded ({', '.join(values)})")
        plan = explained.fetchone()[0][0]["Plan"]
        conn.execute("DEALLOCATE guarded")
    return list(nodes(plan))


def scanned(found: list[dict]) -> list[str]:
    """The big tables that are read from end to end."""
    return [
        n["Relation Name"]
        for n in found
        if n["Node Type"] == "Seq Scan" and n["Relation Name"] in BIG
    ]


def indexes(found: list[dict]) -> set[str]:
    """The indexes of big tables that are used with a condition, not from end to end."""
    used = {n["Index Name"] for n in found if "Index Name" in n and "Index Cond" in n}
    return {name for name in used if name.startswith(tuple(BIG))}


@pytest.mark.parametrize("mode", PLANS)
@pytest.mark.parametrize("name", GUARDED)
def test_the_statement_uses_its_index(conn, name, mode):
    """It finds its lane (or its numbers) by index and reads no big table from end to end."""
    values, expected = GUARDED[name]
    found = explain(conn, name, values, mode)
    assert (scanned(found), indexes(found)) == ([], expected)


@pytest.mark.parametrize("mode", PLANS)
@pytest.mark.parametrize(
    "chosen",
    [{}, {"group": "'g1'"}, {"partition": "'p1'"}, {"ids": DEAD_ID}],
    ids=["all", "group", "partition", "ids"],
)
def test_dead_letters_are_found_by_their_queue(conn, chosen, mode):
    """Whatever the filter: other queues' dead letters are not looked through from end to end."""
    for name in ("dead_select", "dead_count"):
        found = explain(conn, name, OF_A_QUEUE | chosen, mode)
        assert scanned(found) == []
        assert indexes(found) <= {"dead_letter_queue", "dead_letter_pkey"}


@pytest.mark.parametrize("mode", PLANS)
def test_a_commit_reads_by_index_alone(conn, mode):
    """The bodies of dead letters and the letters to delete are found, not searched for."""
    types = (
        "integer, bigint, bigint, spillway.new_batch[], spillway.new_control[],"
        " spillway.new_dead[], bigint[], spillway.new_replayed[]"
    )
    values = [
        "0",
        "1",
        "1",
        "'{}'",
        "'{}'",
        "ARRAY[ROW(1, 7, 'g1', 9, 2, 'nack', NULL, NULL, NULL, now())]::spillway.new_dead[]",
        "'{5}'",
        "ARRAY[ROW(1, 'failover_x', 9)]::spillway.new_replayed[]",
    ]
    found = planned(conn, f"({types}) AS {QUERIES['commit'].sql}", values, mode)
    assert scanned(found) == []
    assert indexes(found) == {"message_batch_pkey", "dead_letter_pkey"}


def test_pruning_looks_no_further_than_it_may_go(conn):
    """The part of a lane that is not settled is not read, however long it is."""
    for name in ("prune_end", "prune"):
        found = explain(conn, name, GUARDED[name][0], "force_generic_plan")
        conditions = [n["Index Cond"] for n in found if n.get("Index Name") == "message_batch_pkey"]
        assert any("base_version <=" in condition for condition in conditions)


@pytest.mark.parametrize("mode", PLANS)
@pytest.mark.parametrize("name", ["lane_tails", "appended_at", "ids_before"])
def test_one_row_is_taken_from_the_index_in_its_order(conn, name, mode):
    """The end of a lane is the first row of a backward scan, not the last of a sorted lane."""
    found = explain(conn, name, GUARDED[name][0], mode)
    assert [n["Scan Direction"] for n in found if n.get("Index Name") == "message_batch_pkey"] == [
        "Backward"
    ]
    assert "Sort" not in {n["Node Type"] for n in found}


def test_a_timed_batch_is_found_among_many(conn):
    """The guard guards: without its index the same statement would be another plan."""
    with conn.transaction(force_rollback=True):
        conn.execute("DROP INDEX spillway.message_batch_timed")
        found = explain(conn, "times_behind", GUARDED["times_behind"][0], PLANS[0])
    assert indexes(found) == {"message_batch_pkey"}
