"""The audit finds what is wrong with a log, and nothing where all is well."""

import asyncio
from random import Random

import msgspec
import psycopg
import pytest

from spillway import wire
from spillway.core import commands as cmd
from spillway.core.errors import SpillwayError
from spillway.core.state import GroupState, Moment, counts
from spillway.log import audit, checkpoints
from spillway.log.connect import connect


async def checkpoint(log):
    conn = await connect(log.url)
    assert await checkpoints.write(conn, 0, 1, [log.item()])
    await conn.close()


async def whats(log):
    """What the audit has to say, in one line each."""
    found = await audit.run(log.url)
    assert found.balanced == (not found.differences)
    return [difference.what for difference in found.differences]


@pytest.fixture
def parked_log(written_log):
    """A log in which every state but `blocked` occurs."""
    written_log.live(25, seed=3)
    written_log.do(cmd.LeaseMessages(2, visibility_ms=900_000))
    written_log.do(cmd.Park(((38, 39),), "tester"))
    assert written_log.state.parked.total > 2
    return written_log


async def test_sound_log_balances(parked_log):
    """The totals are those of the state that was decided, and they are the tail."""
    found = await audit.run(parked_log.url)
    assert found.differences == []
    assert (found.lanes, found.groups, found.messages) == (1, 1, 40)
    moment = Moment(parked_log.now_ms + 10**9, parked_log.policy, parked_log.lane)
    assert found.totals == counts(parked_log.state, moment)
    assert sum(found.totals.values()) == 40


async def test_reply_has_the_shape_of_the_wire(parked_log):
    """What the audit returns goes out as `wire.AuditReply` as it is."""
    parked_log.conn.execute("DELETE FROM spillway.dead_letter")
    reply = msgspec.convert(await audit.run(parked_log.url), wire.AuditReply, from_attributes=True)
    assert not reply.balanced
    assert reply.differences[0].queue == "orders"


async def test_sound_log_balances_behind_checkpoints(parked_log):
    """A trimmed log is folded from the older checkpoint, and the newer one agrees."""
    for seed in range(3):
        await checkpoint(parked_log)
        parked_log.live(3, seed)
    assert await whats(parked_log) == []


async def test_group_that_never_came_has_everything_before_it(written_log):
    """A consumer without events on a lane counts the whole lane as ready."""
    written_log.conn.execute("DELETE FROM spillway.control_event")
    found = await audit.run(written_log.url)
    assert found.differences == []
    assert found.totals["ready"] == 40


async def test_deferred_messages_are_told_apart(written_log):
    """Messages whose `deliver_at` is to come are deferred, not ready."""
    written_log.conn.execute(
        "UPDATE spillway.message_batch SET deliver_at = array_fill(now() + '1 h', ARRAY[count])"
        " WHERE base_version = 26"
    )
    found = await audit.run(written_log.url)
    assert (found.totals["ready"], found.totals["deferred"]) == (25, 15)


async def test_pruned_lane_balances(written_log):
    """What was settled and pruned is still part of the tail."""
    leased = written_log.do(cmd.LeaseMessages(25)).reply
    written_log.do(cmd.Ack(leased.lease_id, ((1, 25),)))
    written_log.conn.execute("DELETE FROM spillway.message_batch WHERE base_version = 1")
    written_log.conn.execute("UPDATE spillway.lane SET pruned_to = 25")
    found = await audit.run(written_log.url)
    assert (found.differences, found.totals["settled"], found.totals["ready"]) == ([], 25, 15)


PASSED_OVER = "messages were pruned before the group came to them, up to version"


def prune(log, at):
    """What a pruner does, whoever it forgets."""
    log.conn.execute("DELETE FROM spillway.message_batch WHERE base_version = 1")
    log.conn.execute(f"UPDATE spillway.lane SET pruned_to = 25, pruned_at = {at}")


@pytest.mark.parametrize(
    ("pruned", "expected"),
    [
        ("now() + interval '1 hour'", [(PASSED_OVER, 25)]),
        ("now() - interval '1 hour'", []),
    ],
    ids=["under a group that waits", "before the group was made"],
)
async def test_a_group_that_waits_misses_what_is_pruned(written_log, pruned, expected):
    """A group that never came has lost what was pruned since it was made, and nothing else."""
    leased = written_log.do(cmd.LeaseMessages(25)).reply
    written_log.do(cmd.Ack(leased.lease_id, ((1, 25),)))
    written_log.conn.execute(
        "INSERT INTO spillway.consumer (queue_id, \"group\") VALUES (%s, 'late')",
        [written_log.queue_id],
    )
    prune(written_log, pruned)
    found = await audit.run(written_log.url)
    assert [(d.group, d.what, d.found) for d in found.differences] == [
        ("late", *finding) for finding in expected
    ]


@pytest.mark.parametrize(
    ("pruned_ms", "expected"), [(-60_000, [(PASSED_OVER, 25)]), (60_000, [])], ids=["late", "there"]
)
async def test_a_group_that_came_after_the_pruner_missed_it(written_log, pruned_ms, expected):
    """Made, then pruned, then come: the lane was pruned from under it."""
    written_log.conn.execute("DELETE FROM spillway.control_event")
    written_log.conn.execute("UPDATE spillway.consumer SET created_at = 'epoch'")
    written_log.state, written_log.seq = GroupState(), 0
    written_log.lane.pruned_to = 25
    written_log.do(cmd.CreateGroup(after=25))
    prune(written_log, f"to_timestamp({(written_log.now_ms + pruned_ms) / 1000})")
    found = await audit.run(written_log.url)
    assert [(d.what, d.found) for d in found.differences] == expected


DAMAGES = {
    "first batch deleted": (
        "DELETE FROM spillway.message_batch WHERE base_version = 1",
        ["versions are missing from"],
    ),
    "last batch deleted": (
        "DELETE FROM spillway.message_batch WHERE base_version = 26",
        ["states do not add up to the tail", "something is beyond the tail"],
    ),
    "batch moved onto another": (
        "UPDATE spillway.message_batch SET base_version = 20 WHERE base_version = 26",
        ["versions are there twice from"],
    ),
    "column cut": (
        "UPDATE spillway.message_batch SET payloads = payloads[1:10] WHERE base_version = 26",
        ["batch at version 26 has a column of another length"],
    ),
    "dead letter lost": (
        "DELETE FROM spillway.dead_letter WHERE version = 38",
        ["parked messages without a dead letter"],
    ),
    "dead letter made up": (
        "UPDATE spillway.dead_letter SET version = 40 WHERE version = 38",
        ["dead letters of messages that are not parked"],
    ),
    "dead letter doubled": (
        (
            "ALTER TABLE spillway.dead_letter"
            " DROP CONSTRAINT dead_letter_lane_id_group_version_key;"
            "UPDATE spillway.dead_letter SET version = 38 WHERE version = 39"
        ),
        ["a second dead letter of version"],
    ),
    "control row dropped": (
        "DELETE FROM spillway.control_event WHERE seq = 5",
        ["control events are missing from seq"],
    ),
    "first control row dropped": (
        "DELETE FROM spillway.control_event WHERE seq = 1",
        ["no checkpoint reaches to where the control log begins"],
    ),
    "event flipped": (
        (
            "UPDATE spillway.control_event"
            " SET events = set_bit(events, 30, 1 - get_bit(events, 30)) WHERE seq = 5"
        ),
        ["crc32", "at seq"],
    ),
    "control row repeated": (
        (
            "UPDATE spillway.control_event AS e SET events = o.events"
            " FROM spillway.control_event AS o WHERE e.seq = 7 AND o.seq = 5"
        ),
        ["control events that cannot be folded"],
    ),
    "control log lost": (
        "DELETE FROM spillway.control_event",
        ["dead letters without a control log"],
    ),
    "commits forgotten": (
        "UPDATE spillway.shard SET commit_seq = 3",
        ["more control rows than the shard has commits"],
    ),
    "epoch forgotten": (
        "UPDATE spillway.shard SET epoch = 0",
        ["messages of a shard that never committed"],
    ),
    "shard lost": ("DELETE FROM spillway.shard", ["shard that does not exist"]),
    "lane lost": ("DELETE FROM spillway.lane", ["batches of lanes that do not exist"]),
    "transaction id twice": (
        "UPDATE spillway.message_batch SET transaction_ids[3] = 'tx-7' WHERE base_version = 26",
        ["duplicate transaction id, first at version 28"],
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_planted_damage_is_found(parked_log, damage):
    """Each kind of damage is named."""
    statement, expected = DAMAGES[damage]
    parked_log.conn.execute(statement)
    found = "\n".join(await whats(parked_log))
    for words in expected:
        assert words in found


async def test_lost_messages_that_somebody_waits_for_are_counted(written_log):
    """Beside the hole in the log, the audit says how many unsettled messages it took."""
    written_log.conn.execute("DELETE FROM spillway.message_batch WHERE base_version = 1")
    found = await audit.run(written_log.url)
    assert [(d.what, d.group, d.found) for d in found.differences] == [
        ("versions are missing from", "", 26),
        ("unsettled messages that the log does not hold", "default", 25),
    ]


async def test_transaction_ids_may_return_after_the_window(written_log):
    """An id that was pushed again after the dedupe window is no difference."""
    written_log.now_ms += 600_001
    written_log.push(1, ["tx-7"])
    assert await whats(written_log) == []
    written_log.now_ms += 599_000 - 5_000
    written_log.push(1, ["tx-7"])
    assert await whats(written_log) == ["duplicate transaction id, first at version 42"]


async def test_pushes_are_judged_by_options_that_both_of_them_met(written_log):
    """Whatever the window was before: only what came since its last change is judged by it."""
    written_log.push(1, ["tx-7"])
    changed = "UPDATE spillway.queue SET options_at = to_timestamp(%s / 1000.0)"
    written_log.conn.execute(changed, (written_log.now_ms,))
    assert await whats(written_log) == []
    written_log.now_ms += 2_000
    written_log.push(1, ["tx-new"])
    written_log.push(1, ["tx-new"])
    assert await whats(written_log) == ["duplicate transaction id, first at version 43"]


async def test_damaged_checkpoint_is_named_and_stepped_over(parked_log):
    """A checkpoint with a flipped bit is a difference, though the state can still be derived."""
    await checkpoint(parked_log)
    parked_log.conn.execute(
        "UPDATE spillway.checkpoint SET state = set_bit(state, 77, 1 - get_bit(state, 77))"
    )
    found = await audit.run(parked_log.url)
    assert "damaged checkpoint at seq" in found.differences[0].what
    assert sum(found.totals.values()) == 40


async def test_checkpoint_that_tells_another_story_is_found(parked_log):
    """A sound checkpoint is still compared with what the control log says."""
    await checkpoint(parked_log)
    parked_log.conn.execute("UPDATE spillway.checkpoint SET seq = seq - 1")
    (what,) = await whats(parked_log)
    assert "not the fold of the control log" in what


async def test_checkpoint_heals_a_gap_before_it(parked_log):
    """Behind a gap the audit goes on from the next checkpoint, as the broker would."""
    await checkpoint(parked_log)
    parked_log.live(3)
    parked_log.conn.execute("DELETE FROM spillway.control_event WHERE seq = 5")
    found = await audit.run(parked_log.url)
    assert [d.what for d in found.differences] == ["control events are missing from seq"]
    assert sum(found.totals.values()) == 40


async def test_lost_end_of_the_control_log_is_found(parked_log):
    """A checkpoint ahead of the log shows that the log lost its end."""
    await checkpoint(parked_log)
    parked_log.conn.execute("DELETE FROM spillway.control_event WHERE seq > 10")
    (what,) = await whats(parked_log)
    assert "ends before its newest checkpoint" in what


async def test_audit_of_a_living_log_is_one_snapshot(written_log):
    """While messages are pushed, leased and parked, no difference ever shows."""
    stop = asyncio.Event()

    def work():
        random = Random(5)
        while not stop.is_set():
            with written_log.conn.transaction():  # as a shard commits
                written_log.push(3)
                written_log.step(random)

    worker = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        for _ in range(10):
            assert await whats(written_log) == []
    finally:
        stop.set()
        await worker


async def test_differences_are_bounded(written_log):
    """A ruined log does not fill the memory with complaints."""
    written_log.conn.execute(
        "INSERT INTO spillway.message_batch (lane_id, base_version, count, appended_at,"
        " transaction_ids, payloads)"
        " SELECT lane_id, 100 + 2 * i, 1, now(), ARRAY[i::text], ARRAY['{}'::bytea]"
        " FROM spillway.lane, generate_series(1, 1200) AS i"
    )
    found = await audit.run(written_log.url)
    assert len(found.differences) == 1000
    assert found.left_out >= 200


async def test_many_lanes_are_audited_in_portions(written_log, monkeypatch):
    """Pages and portions leave no lane out."""
    monkeypatch.setattr(audit, "LANES_MAX", 7)
    monkeypatch.setattr(audit, "CHECKPOINT_BYTES_MAX", 40)
    await checkpoint(written_log)
    written_log.conn.execute(
        "INSERT INTO spillway.lane (queue_id, partition, priority, enqueue_shard, shard_id)"
        " SELECT queue_id, 'p' || i, 2, 0, 0 FROM spillway.queue, generate_series(1, 30) AS i"
    )
    found = await audit.run(written_log.url)
    assert (found.lanes, found.groups, found.differences) == (31, 31, [])


async def test_database_without_our_schema_is_told(empty_database_url):
    """The hint names the command that applies the schema."""
    with pytest.raises(SpillwayError, match="spillway") as raised:
        await audit.run(empty_database_url)
    assert "schema apply" in raised.value.hint
    assert isinstance(raised.value.__cause__, psycopg.Error)
