"""doctor, top, audit and schema: is it well, and if not, what is the matter."""

import json
import os
import pty
import select
import termios
from pathlib import Path

import psycopg
import pytest

from spillway.client.sync_client import Client

LINE = {
    "queue", "group", "ready", "leased", "deferred", "blocked", "dead", "in_per_s", "out_per_s",
    "oldest_ready_at", "paused",
}  # fmt: skip
AUDIT = {"balanced", "lanes", "groups", "messages", "totals", "differences", "ungrouped"}


@pytest.fixture
def own(stand, database_url, terminal_of):
    """A broker that may be hurt, on a database of its own: (terminal, database url)."""
    broker = stand("--database-url", database_url, num_shards=2)
    yield terminal_of(broker.url), database_url
    broker.stop()


def findings(outcome, check):
    """What doctor found about something."""
    return [one for one in outcome.json if one["check"] == check]


# ---------------------------------------------------------------- doctor


def test_doctor_of_a_well_broker(own):
    """A line for each check, exit code 0."""
    cli, _ = own
    cli("push orders 1")
    well = cli("doctor")
    assert [row.split()[:2] for row in well.out.splitlines()] == [
        ["OK", "broker"], ["OK", "database"], ["OK", "shards"], ["OK", "queues"], ["OK", "spool"],
        ["OK", "disk"],
    ]  # fmt: skip
    assert "1 queue\n" in well.out
    assert well.err == "all is well\n"
    assert {one["level"] for one in cli("doctor --json").json} == {"OK"}


def test_doctor_names_the_command_that_frees(own):
    """Blocked messages fail; dead letters warn; both commands work as they are printed."""
    cli, _ = own
    cli("queue create stuck --max-attempts 1 --on-exhausted block")
    cli("push stuck 1 2")
    first, second = cli("lease --json -n 2 stuck").lines
    cli("settle nack --error no", first["receipt"])
    cli("settle park --error no", second["receipt"])
    sick = cli("doctor --json", exits=1)
    (blocked,), (dead,) = findings(sick, "blocked"), findings(sick, "dead")
    assert (blocked["level"], dead["level"]) == ("FAIL", "WARN")
    assert sick.err == "1 failure, 1 warning\n"
    cli(blocked["free"].removeprefix("spillway "))
    cli("queue purge stuck --all")
    cli(dead["free"].removeprefix("spillway ").partition("   ")[0])
    assert cli("doctor").err == "all is well\n"


def test_doctor_of_a_paused_queue(own):
    """A warning, which is no failure; the command that resumes it works."""
    cli, _ = own
    cli("queue create orders")
    cli("queue pause orders")
    cli("push orders 1")
    (paused,) = findings(cli("doctor --json"), "paused")
    assert paused["level"] == "WARN"
    cli(paused["free"].removeprefix("spillway "))
    assert findings(cli("doctor --json"), "paused") == []


def test_doctor_when_the_database_is_away(stand, fragile, terminal_of, eventually):
    """Exit code 3, for the broker answers but cannot deliver; well again once it is back."""
    broker = stand("--database-url", fragile.url, num_shards=1)
    cli = terminal_of(broker.url)
    cli("push orders 1")
    fragile.stop()
    with Client(broker.url, retries=0) as client:
        eventually(lambda: client.health().database == "disconnected", within_s=20)
        assert "FAIL  database" in cli("doctor", exits=3).out
        (cause,) = findings(cli("doctor --json", exits=3), "database")
        assert "start PostgreSQL again" in cause["free"]
        fragile.start()
        eventually(lambda: client.health().status == "ok", within_s=20)
    assert cli("doctor").err == "all is well\n"
    broker.stop()


def test_doctor_looks_at_the_disk_it_is_shown(own, tmp_path):
    """--data names the folder; the room left is told."""
    cli, _ = own
    (disk,) = findings(cli("doctor --json --data", str(tmp_path)), "disk")
    assert "GiB free" in disk["text"]


# ---------------------------------------------------------------- top


def test_top_prints_one_frame(cli, queue):
    """A table for people; with --json a line for each queue and group."""
    cli("push", queue, "1", "2")
    cli("lease", queue)
    lines = cli("top --once --json --interval 0.1").lines
    (line,) = [one for one in lines if one["queue"] == queue]
    assert set(line) == LINE
    assert (line["ready"], line["leased"], line["in_per_s"]) == (1, 1, 0.0)
    assert queue in cli("top --once --interval 0.1").out


def test_top_where_nobody_looks_prints_one_frame(cli, queue):
    """Without a terminal there is nothing to be live on."""
    watching = cli.spawn("top --interval 0.1")
    out, _ = watching.communicate(timeout=10)
    assert (watching.returncode, queue in out) == (0, True)


# ---------------------------------------------------------------- audit


def test_audit_asks_the_broker_the_folder_or_the_database(cli, broker, queue):
    """Three ways to the same books; they balance."""
    cli("push", queue, "1", "2")
    ways = (
        ["audit --json"],
        ["audit --json --data", str(broker.data)],
        ["audit --json --database-url", broker.database_url],
    )
    for way in ways:
        books = cli(*way).json
        assert set(books) == AUDIT
        assert (books["balanced"], books["differences"]) == (True, [])
        assert books["messages"] >= 2
    said = cli("audit")
    assert "balanced" in said.err
    assert "messages" in said.out


def test_audit_of_a_stopped_broker_starts_its_database(stand, terminal_of):
    """The folder is enough: nothing runs before, nothing runs after."""
    broker = stand(num_shards=1)
    cli = terminal_of(broker.url)
    cli("push orders 1 2 3")
    assert broker.stop() == 0
    assert cli("audit --json --data", str(broker.data)).json["messages"] == 3
    assert not (broker.data / "postgres/postmaster.pid").exists()


def test_audit_counts_what_no_group_reads(own):
    """Messages of a queue without a group are in no state; the figures add up all the same."""
    cli, _ = own
    cli("push lonely 1 2")
    books = cli("audit --json").json
    assert (books["messages"], books["ungrouped"], sum(books["totals"].values())) == (2, 2, 0)
    cli("lease lonely")
    books = cli("audit --json").json
    assert (books["messages"], books["ungrouped"], sum(books["totals"].values())) == (2, 0, 2)
    cli("lease lonely -g second")
    assert "a message counts once for each group" in cli("audit").err


def test_audit_finds_planted_damage(own):
    """A batch is gone, an acked message lies in the dead letters: exit code 1, each one told."""
    cli, url = own
    cli("push orders 1 2")
    cli("lease orders --ack -n 2")
    cli("push orders 3")
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("DELETE FROM spillway.message_batch WHERE base_version = 1")
    for way in (["audit"], ["audit --database-url", url]):
        sick = cli(*way, exits=1)
        assert "NOT balanced" in sick.err
        assert "orders" in sick.out
        damage = cli(*way, "--json", exits=1).json
        assert damage["balanced"] is False
        assert {one["queue"] for one in damage["differences"]} == {"orders"}


def test_audit_of_nothing_says_what_is_missing(cli, tmp_path):
    """A folder without a database is wrong usage; a database that is away is exit code 3."""
    assert "holds no embedded PostgreSQL" in cli("audit --data", str(tmp_path), exits=2).err
    away = cli("audit --database-url postgresql://nobody@127.0.0.1:1/x", exits=3)
    assert "database_unavailable" in away.err
    assert "is PostgreSQL running" in away.err


def test_audit_of_a_bare_database_names_the_next_command(cli, empty_database_url):
    """No schema: `spillway schema apply`."""
    bare = cli("audit --database-url", empty_database_url, exits=1)
    assert "spillway schema apply" in bare.err


# ---------------------------------------------------------------- schema


def test_schema_is_applied_once(cli, empty_database_url):
    """The second time says that there is nothing to do."""
    line = "schema apply --database-url"
    assert cli(line, empty_database_url).err.startswith("applied: 0001")
    assert cli(line, empty_database_url).err == "the schema is up to date\n"
    assert cli("audit --json --database-url", empty_database_url).json["messages"] == 0


def test_a_printed_schema_can_be_applied_by_hand(cli, empty_database_url):
    """Any tool would do; Spillway then finds it done."""
    with psycopg.connect(empty_database_url, autocommit=True) as conn:
        conn.execute(cli("schema print").out)
    line = "schema apply --database-url"
    assert cli(line, empty_database_url).err == "the schema is up to date\n"


def test_schema_apply_needs_to_know_where(cli, broker):
    """--data, --database-url, or ./spillway-data as `spillway serve` makes it."""
    assert "--database-url" in cli("schema apply", exits=2).err
    assert cli("schema apply --data", str(broker.data)).err == "the schema is up to date\n"


def test_reads_stay_data_alone(cli, queue, tmp_path):
    """What a read prints is JSON to the last byte, so that a script may pipe it."""
    cli("push", queue, "1")
    for line in ("queue list --json", "top --once --json --interval 0.1", "doctor --json"):
        out = cli(line).out
        assert out.endswith("\n")
        assert [json.loads(one) for one in out.splitlines()]
    assert list(Path(tmp_path).iterdir()) == []


def test_top_is_live_in_a_terminal(cli, queue):
    """It draws, and q leaves; the terminal is as it was before."""
    ours, its = pty.openpty()
    termios.tcsetwinsize(its, (40, 120))
    before = termios.tcgetattr(its)
    watching = cli.spawn("top --interval 0.1", stdin=its, stdout=its)
    screen = ""
    while queue not in screen:
        screen += os.read(ours, 65536).decode(errors="replace")
    os.write(ours, b"q")
    while watching.poll() is None:
        if select.select([ours], [], [], 0.05)[0]:
            os.read(ours, 65536)
    assert watching.returncode == 0
    assert termios.tcgetattr(its) == before
    os.close(ours)
    os.close(its)
