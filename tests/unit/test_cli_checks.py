"""Looking after a broker: doctor, top, audit and schema, against a scripted broker."""

import io
import json

import msgspec
import pytest
from rich.console import Console

from spillway.cli import frames, top
from spillway.cli.frames import Look
from spillway.client.errors import BrokerUnreachableError
from spillway.client.scripted import refusal, reply
from spillway.wire import HealthReply, QueueReply

COUNTS = {
    "depth": 3, "ready": 3, "deferred": 0, "leased": 0, "blocked": 0, "parked": 0, "dropped": 0,
    "settled": 7, "ack_hole_ranges": 0, "oldest_ready_at": None, "paused": False,
}  # fmt: skip
GROUP = {"group": "default", **COUNTS}
QUEUE = {
    "queue": "orders", "org": "default", "created_at": "2026-01-01T00:00:00Z", "paused": False,
    "options": {}, "lanes": 1, "tail": 10, "groups": [GROUP],
}  # fmt: skip
HEALTH = {
    "status": "ok", "database": "connected", "version": "1", "uptime_s": 5.0, "shards_owned": 4,
    "shards_total": 4,
    "ready": True,
    "spool": {
        "pending": 0, "bytes": 0, "oldest_s": 0.0, "failed": 0, "held": False, "breaker": "closed",
        "disk_free_bytes": 2**40, "replay_rate": 0.0,
    },
}  # fmt: skip
WAITING = {
    "pending": 1200, "bytes": 9, "oldest_s": 180.0, "failed": 2, "held": True, "breaker": "open",
    "disk_free_bytes": 2**40, "replay_rate": 12.5,
}  # fmt: skip
CLEAR = {
    "folder": "/spool", "pending": 0, "counting": False, "unwritten": 0, "bytes": 0,
    "bytes_max": 10**9, "oldest_s": 0.0, "age_max_s": 604800.0, "disk_free": 2**40, "files": 0,
    "failed": 0, "lost": 0, "accepted": 0, "refused": 0, "replayed": 0, "revived": 0,
    "discarded": 0, "rate": 0.0, "database": "connected", "breaker": "closed", "foreign": [],
    "hold": None, "queues": [], "held": [], "stuck": [], "queues_more": 0,
}  # fmt: skip
SHARD = {
    "shard": 0, "epoch": 1, "owner": "a", "owned_here": True, "lease_until": None, "commit_seq": 1,
}  # fmt: skip
TOPOLOGY = {"num_shards": 1, "shards": [SHARD], "brokers": []}
AUDIT = {
    "balanced": True, "lanes": 1, "groups": 1, "messages": 10, "totals": {"settled": 10},
    "differences": [],
}  # fmt: skip


def test_doctor_of_a_well_broker(run):
    """Nothing wrong: every line OK, exit code 0."""
    result = run("doctor", reply(HEALTH), reply(TOPOLOGY), reply({"queues": [QUEUE]}), reply(CLEAR))
    assert result.exit_code == 0
    assert {line.split()[0] for line in result.stdout.splitlines()} == {"OK"}


def test_doctor_names_the_command_for_each_trouble(run):
    """Blocked, dead, paused and old messages each come with what frees them."""
    sick = {**GROUP, "blocked": 1, "parked": 2, "oldest_ready_at": "2026-01-01T00:00:00Z"}
    paused = {**GROUP, "group": "g", "paused": True}
    queue = {**QUEUE, "groups": [sick, paused]}
    orphan = {"num_shards": 1, "shards": [{**SHARD, "owner": None}], "brokers": []}
    result = run("doctor", reply(HEALTH), reply(orphan), reply({"queues": [queue]}), reply(CLEAR))
    assert result.exit_code == 1
    for command in (
        "spillway blocked unblock orders -g default --all",
        "spillway dead redrive orders -g default --all",
        "spillway queue resume orders -g g",
        "→ add consumers",
        "spillway serve",
    ):
        assert command in result.stdout
    assert "purge" not in result.stdout


@pytest.mark.parametrize(("cap", "is_told"), [(100, True), (10_000, False)])
def test_doctor_knows_how_many_holes_a_queue_may_have(run, cap, is_told):
    """Half of the queue's own cap is worth a warning."""
    holed = {**GROUP, "ack_hole_ranges": 60}
    queue = {**QUEUE, "options": {"max_ack_holes": cap}, "groups": [holed]}
    result = run("doctor", reply(HEALTH), reply(TOPOLOGY), reply({"queues": [queue]}), reply(CLEAR))
    assert ("60 gaps between acked messages; a lane may have 100" in result.stdout) == is_told


def test_doctor_of_a_dead_database(run):
    """A database that is away is a dependency that is down; what hangs on it is not asked."""
    away = {**HEALTH, "status": "degraded", "database": "disconnected"}
    result = run("doctor", reply(away), reply(CLEAR))
    assert result.exit_code == 3
    assert "pushes go to files" in result.stdout
    assert "start PostgreSQL again" in result.stdout


def test_doctor_tells_what_to_do_with_a_database_that_hangs(run, tmp_path, spool_status):
    """An embedded one is started again only if it died; the folder tells which process to end."""
    away = {**HEALTH, "status": "degraded", "database": "disconnected"}
    spool = reply(spool_status())
    result = run("doctor", reply(away), spool)
    assert "one that hangs must be continued, or killed" in result.stdout
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres/postmaster.pid").write_text("4711\n/data\n")
    result = run(["doctor", "--data", str(tmp_path)], reply(away), spool)
    assert "kill -9 4711" in result.stdout


def test_doctor_names_the_command_for_each_trouble_of_the_spool(run, spool_status):
    """What waits, what is in its way, what is nearly full: a limit that is near is a failure."""
    health = {**HEALTH, "spool": WAITING}
    answers = [reply(health), reply(TOPOLOGY), reply({"queues": []}), reply(spool_status())]
    result = run("doctor", *answers)
    assert result.exit_code == 1
    found = [line.split()[0] for line in result.stdout.splitlines() if " spool " in line]
    assert found.count("FAIL") == 1
    for text in (
        "1,200 waiting for 3m, 2 failed, held, breaker open",
        "spillway spool status",
        "9 B of 10 B are used",
        "ann holds the spool",
        "spillway spool release",
        "orders/p1 is passed over: it is full [queue_full]",
        "spillway queue update orders --max-depth N",
        "spillway spool retry",
        "spillway spool list --failed",
    ):
        assert text in result.stdout


def test_doctor_names_foreign_files(run):
    """Also where the spool is empty: nobody else would tell of them."""
    answers = [reply(HEALTH), reply(TOPOLOGY), reply({"queues": []})]
    result = run("doctor", *answers, reply(CLEAR | {"foreign": ["notes.txt"]}))
    assert result.exit_code == 0
    assert "left alone: notes.txt" in result.stdout
    assert "move them out of /spool" in result.stdout


def test_doctor_does_not_point_to_itself(run):
    """Whoever reads it has asked it."""
    away = {**HEALTH, "database": "disconnected"}
    result = run("doctor", reply(away), reply(CLEAR | {"database": "disconnected"}))
    assert "start PostgreSQL again" in result.stdout
    assert "spillway doctor" not in result.stdout


def test_doctor_with_a_key_of_another_org(run):
    """Whoever may not look into the spool still hears that something is there."""
    health = {**HEALTH, "spool": WAITING}
    answers = [reply(health), reply(TOPOLOGY), reply({"queues": []}), refusal("forbidden", 403)]
    result = run("doctor", *answers)
    assert result.exit_code == 0
    assert "1,200 waiting" in result.stdout


def test_doctor_of_a_broker_that_stands_by(run):
    """As intended: it says who holds the shards, and does not ask what only that one knows."""
    health = {**HEALTH, "status": "degraded", "shards_owned": 0, "shards_total": 1}
    first = {
        "broker": "a", "address": "http://first:1", "started_at": "2026-01-01T00:00:00Z",
        "seen_at": "2026-01-01T00:00:00Z", "alive": True,
    }  # fmt: skip
    shards = [{**SHARD, "owned_here": False}]
    topology = {"num_shards": 1, "shards": shards, "brokers": [first]}
    result = run("doctor", reply(health), reply(topology), reply(CLEAR))
    assert result.exit_code == 0
    assert "standby: another broker (http://first:1) holds them" in result.stdout
    assert {line.split()[0] for line in result.stdout.splitlines()} == {"OK"}


def test_doctor_of_a_standby_that_cannot_hand_its_spool_over(run, spool_status):
    """Why the owner takes nothing, and what to do about it."""
    spool = {**HEALTH["spool"], "pending": 7, "owner_unreachable": True}
    health = {**HEALTH, "status": "degraded", "shards_owned": 0, "spool": spool}
    trouble = {"code": "spool_owner_unreachable", "message": "http://first:1: no", "hint": "look"}
    status = spool_status(owner={"address": "http://first:1", "trouble": trouble})
    topology = {**TOPOLOGY, "shards": [{**SHARD, "owned_here": False}]}
    result = run("doctor", reply(health), reply(topology), reply(status))
    assert "owner unreachable" in result.stdout
    assert "takes none of its events: http://first:1: no [spool_owner_unreachable]" in result.stdout
    assert "→ look" in result.stdout


def test_doctor_looks_at_a_disk_that_is_the_brokers(run, tmp_path, monkeypatch):
    """What lies in the folder where somebody types is not the broker's, unless he says so."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spillway-data").mkdir()
    answers = [reply(HEALTH), reply(TOPOLOGY), reply({"queues": [QUEUE]}), reply(CLEAR)]
    told = run("doctor", *answers).stdout
    assert "spillway-data" not in told
    assert "of the broker's spool: 1.0 TiB free" in told
    assert "spillway-data: " in run("doctor --data spillway-data", *answers).stdout
    assert "no such folder" in run("doctor --data nowhere", *answers).stdout


def test_doctor_without_a_broker(run):
    """No broker: one FAIL line, exit code 3, JSON all the same."""
    result = run("doctor --json", BrokerUnreachableError("no connection"))
    assert result.exit_code == 3
    assert json.loads(result.stdout)[0]["level"] == "FAIL"


def test_top_once_makes_rates_of_two_looks(run):
    """One frame: counts of the second look, rates of the difference."""
    later = {**QUEUE, "tail": 110, "groups": [{**GROUP, "settled": 57}]}
    answers = [reply(HEALTH), reply({"queues": [QUEUE]}), reply({"queues": [later]})]
    line = json.loads(run("top --once --json -i 0.1", *answers).stdout)
    assert (line["queue"], line["ready"]) == ("orders", 3)
    assert 0 < line["out_per_s"] < line["in_per_s"] <= 1000
    shown = run("top --once -i 0.1", *answers)
    assert "orders" in shown.stdout
    assert "spool" not in shown.stderr


def screen_of(frame, width, height=30):
    """What a terminal of that size shows."""
    console = Console(width=width, height=height, file=io.StringIO(), color_system=None)
    health = msgspec.convert(HEALTH, HealthReply)
    console.print(top._screen(console, "http://127.0.0.1:6632", health, frame))
    return console.file.getvalue()


def frame_of(*queues):
    """The lines of queues with these counts in their group."""
    made = [{**QUEUE, "queue": name, "groups": [{**GROUP, **counts}]} for name, counts in queues]
    return frames.lines(Look(1.0, msgspec.convert(made, list[QueueReply])), None)


def test_top_cuts_no_number():
    """Narrow: columns of zeros go, numbers get short, names give way; wide: all as it is."""
    frame = frame_of((f"orders-of-{'a' * 60}", {"ready": 25_000, "leased": 1_234_567}))
    wide = screen_of(frame, 160)
    assert "25,000" in wide
    assert "deferred" in wide
    narrow = screen_of(frame, 60)
    assert "25k" in narrow
    assert "1.2M" in narrow
    assert "leased" in narrow
    assert "deferred" not in narrow
    assert max(map(len, narrow.splitlines())) <= 60


def test_top_shows_what_hurts_first_and_counts_the_rest():
    """Blocked, then who waits longest, then the deepest; no more lines than there is room for."""
    frame = frame_of(
        ("idle", {"ready": 0}),
        ("deep", {"ready": 9_000, "oldest_ready_at": "2026-01-01T00:00:02Z"}),
        ("old", {"ready": 1, "oldest_ready_at": "2026-01-01T00:00:01Z"}),
        ("stuck", {"blocked": 1}),
        *[(f"z{number:02}", {"ready": 0}) for number in range(10)],
    )
    assert [line.queue for line in frame[:3]] == ["stuck", "old", "deep"]
    shown = screen_of(frame, 80, height=10)
    assert len(shown.splitlines()) == 10
    assert "stuck" in shown
    assert "+ 10 more" in shown


def test_top_tells_of_a_spool_that_is_not_empty(run):
    """Also where the queues cannot be asked for: the words go first."""
    away = {**HEALTH, "database": "disconnected", "spool": WAITING}
    result = run("top --once", reply(away), refusal("database_unavailable", 503))
    assert result.exit_code == 3
    assert "1,200 waiting for 3m, 2 failed, held, breaker open" in result.stderr
    assert "spillway spool status" in result.stderr


def test_audit_of_a_broker(run):
    """A balanced audit ends with 0; JSON is one document."""
    result = run("audit", reply(AUDIT))
    assert (result.exit_code, result.sent[0].call) == (0, "GET /v1/audit")
    assert json.loads(run("audit --json", reply(AUDIT)).stdout)["balanced"] is True


def test_audit_counts_what_no_group_reads(run):
    """So that the figures add up."""
    result = run("audit", reply({**AUDIT, "messages": 25_012, "ungrouped": 25_002}))
    assert "25,002 in queues without a group" in result.stderr


def test_audit_that_does_not_balance_is_1(run):
    """Differences are a table, and the exit code says so."""
    difference = {
        "queue": "orders", "partition": "Default", "group": "g", "what": "tail", "expected": 10,
        "found": 9,
    }  # fmt: skip
    result = run("audit", reply({**AUDIT, "balanced": False, "differences": [difference]}))
    assert result.exit_code == 1
    assert "orders  Default    g      tail  10        9" in result.stdout


def test_schema_print_needs_no_database(run):
    """The SQL is printed without connecting."""
    result = run("schema print")
    assert result.exit_code == 0
    assert "CREATE TABLE spillway.message_batch" in result.stdout


def test_audit_of_a_folder_without_database(run, tmp_path):
    """A folder that holds no PostgreSQL is wrong usage, and nothing is made in it."""
    assert run(["audit", "--data", str(tmp_path)]).exit_code == 2
    assert list(tmp_path.iterdir()) == []
