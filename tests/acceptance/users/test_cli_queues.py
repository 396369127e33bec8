"""queue and seek: what there is, and where its groups stand."""

from datetime import UTC, datetime, timedelta

import pytest

COUNTS = {
    "group", "depth", "ready", "deferred", "leased", "blocked", "parked", "dropped", "settled",
    "ack_hole_ranges", "oldest_ready_at", "paused",
}  # fmt: skip


def ready(cli, queue, group="default"):
    """How many messages wait for a group."""
    return next(
        one["ready"] for one in cli("queue groups --json", queue).lines if one["group"] == group
    )


def test_a_queue_is_made_shown_changed_and_deleted(cli):
    """Options come back as they were given, spans in milliseconds; --yes ends it."""
    made = cli("queue create fresh --max-attempts 3 --visibility 90s --on-exhausted block --json")
    assert made.json["options"]["visibility_ms"] == 90_000
    assert "queue fresh is there" in made.err
    cli("queue update fresh --retention 2h")
    options = cli("queue show fresh --json").json["options"]
    assert (options["max_attempts"], options["retention_ms"]) == (3, 7_200_000)
    assert "retention_ms" in cli("queue show fresh").out
    assert "say --yes" in cli("queue delete fresh", exits=2).err
    assert cli("queue delete fresh --yes --reason done --json").json["deleted"] == "fresh"
    assert "queue_not_found" in cli("queue show fresh", exits=4).err


def test_the_list_has_a_line_for_each_group(cli, queue):
    """Columns for people; with --json a line for each queue with its groups inside."""
    cli("push", queue, "1", "2")
    cli("queue group-create", queue, "audit")
    found = next(one for one in cli("queue list --json").lines if one["queue"] == queue)
    assert found["tail"] == 2
    assert {one["group"]: one["ready"] for one in found["groups"]} == {"audit": 2}
    assert set(found["groups"][0]) == COUNTS
    rows = [row.split()[:3] for row in cli("queue list").out.splitlines()]
    assert [queue, "audit", "2"] in rows


def test_groups_come_and_go(cli, queue):
    """A group starts where it is told to; deleting it needs --yes."""
    cli("push", queue, "1", "2")
    late = cli("queue group-create --start latest --json", queue, "late")
    assert (late.json["group"], late.json["ready"]) == ("late", 0)
    cli("queue group-create --start 1h", queue, "hour")
    assert ready(cli, queue, "hour") == 2
    assert "group_conflict" in cli("queue group-create", queue, "late", exits=4).err
    assert "say --yes" in cli("queue group-delete", queue, "late", exits=2).err
    assert cli("queue group-delete --yes --json", queue, "late").json["deleted"] == "late"


def test_a_paused_queue_leases_nothing(cli, queue):
    """Pausing and resuming, of one group and of the whole queue."""
    cli("push", queue, "1")
    cli("queue group-create", queue, "default")
    assert cli("queue pause --group default --reason lunch --json", queue).json["verb"] == "pause"
    assert "paused" in cli("queue list").out
    assert cli("lease --json", queue).lines == []
    cli("queue resume --group default", queue)
    cli("queue pause", queue)
    assert "paused" in cli("lease", queue).err
    cli("queue resume", queue)
    assert len(cli("lease --json", queue).lines) == 1


def test_purge_needs_a_filter_and_can_be_tried_first(cli, queue):
    """--all or a filter; --dry-run only counts."""
    cli("push", queue, "1", "2", "3")
    refused = cli("queue purge", queue, exits=2)
    assert "selection_required" in refused.err
    assert "--all" in refused.err
    assert cli("queue purge --all --dry-run --json", queue).json["affected"] == 3
    assert ready(cli, queue) == 3
    assert "1 message" in cli("queue purge -m Default/2", queue).err
    cli("queue purge --all --reason test", queue)
    assert ready(cli, queue) == 0


def test_seek_to_anywhere(cli, queue):
    """Back to the start, ahead to the end, to a version, to a time and to a span ago."""
    cli("push", queue, "1", "2", "3")
    cli("seek", queue, "latest")
    assert ready(cli, queue) == 0
    cli("seek --partition Default", queue, "2")
    assert ready(cli, queue) == 2
    assert cli("seek --json --reason again", queue, "earliest").json["verb"] == "seek"
    assert ready(cli, queue) == 3
    cli("seek", queue, (datetime.now(UTC) + timedelta(minutes=1)).isoformat())
    assert ready(cli, queue) == 0
    cli("seek", queue, "1h")
    assert ready(cli, queue) == 3


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("seek Q yesterday", "2h for two hours ago"),
        ("seek Q 3", "--partition NAME"),
        ("queue update Q", "at least one option"),
        ("queue create Q --order sideways", "'none', 'partition'"),
        ("queue create Q --visibility 1y", "write 500ms, 5s"),
        ("queue purge Q -m 7", "PARTITION/VERSION"),
    ],
)
def test_a_wrong_value_is_quoted_with_what_is_right(cli, queue, line, told):
    """Exit code 2, and the way to write it."""
    assert told in cli(line.replace("Q", queue), exits=2).err
