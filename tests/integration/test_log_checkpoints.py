"""Checkpoints of a group's state, and the fold of what came after."""

import pytest

from spillway.core import commands as cmd
from spillway.log import checkpoints, stored
from spillway.log.checkpoints import CheckpointDamagedError, CheckpointItem, LogDamagedError
from spillway.log.connect import connect

DAMAGES = {
    "bit flip": "UPDATE spillway.checkpoint SET state = set_bit(state, 77, 1 - get_bit(state, 77))",
    "truncated": "UPDATE spillway.checkpoint SET state = substring(state, 1, length(state) - 1)",
    "empty": "UPDATE spillway.checkpoint SET state = ''",
    "missing part": "UPDATE spillway.checkpoint SET parts = 2",
    "misplaced part": "UPDATE spillway.checkpoint SET part = 1",
}


@pytest.fixture
async def conn(written_log):
    """A connection as the broker has it."""
    connection = await connect(written_log.url)
    yield connection
    await connection.close()


async def keep(conn, log, epoch=1):
    return await checkpoints.write(conn, 0, epoch, [log.item()])


async def refold(conn, log):
    loaded = await checkpoints.load(conn, [log.lane_id])
    return (await checkpoints.fold(conn, [log.lane_id], loaded))[log.lane_id, "default"]


async def test_fold_from_the_start_is_the_state_that_was_decided(conn, written_log):
    """Without any checkpoint the control log alone gives the state back."""
    written_log.live(30)
    folded = await refold(conn, written_log)
    assert checkpoints.encode(folded.state) == checkpoints.encode(written_log.state)
    assert folded.seq == written_log.seq
    assert folded.events >= written_log.seq
    assert folded.problems == []


async def test_fold_is_the_same_from_every_checkpoint(conn, written_log):
    """Wherever a checkpoint stands, the fold behind it ends in the same state."""
    for seed in range(5):
        written_log.live(5, seed)
        assert await keep(conn, written_log)
        folded = await refold(conn, written_log)
        assert folded.events == 0
        written_log.live(2, seed)
        folded = await refold(conn, written_log)
        assert checkpoints.encode(folded.state) == checkpoints.encode(written_log.state)
        assert folded.seq == written_log.seq


async def test_two_checkpoints_are_kept_and_the_log_behind_the_older(conn, written_log):
    """The third checkpoint sends the first one away, and the control log up to the second."""
    seqs = []
    for seed in range(3):
        written_log.live(4, seed)
        assert await keep(conn, written_log)
        seqs.append(written_log.seq)
    kept = written_log.conn.execute("SELECT seq FROM spillway.checkpoint ORDER BY seq").fetchall()
    assert [seq for (seq,) in kept] == seqs[1:]
    first = written_log.conn.execute("SELECT min(seq) FROM spillway.control_event").fetchone()
    assert first == (seqs[1] + 1,)


@pytest.mark.parametrize("damage", DAMAGES)
async def test_damaged_newest_checkpoint_falls_back_to_the_older(conn, written_log, damage):
    """Whatever happened to the newest checkpoint, the older one gives the same state."""
    for seed in range(3):
        written_log.live(4, seed)
        assert await keep(conn, written_log)
    written_log.conn.execute(f"{DAMAGES[damage]} WHERE seq = {written_log.seq}")
    written_log.live(2)
    folded = await refold(conn, written_log)
    assert checkpoints.encode(folded.state) == checkpoints.encode(written_log.state)
    assert len(folded.problems) == 1
    assert "checkpoint at seq" in folded.problems[0]


async def test_unknown_schema_falls_back(conn, written_log):
    """A checkpoint of a later release is stepped over, and named."""
    written_log.live(4)
    assert await keep(conn, written_log)
    data = stored.msgspec.msgpack.encode([99, "what a later release may write"])
    written_log.conn.execute(
        "UPDATE spillway.checkpoint SET state = %s, crc = %s", (data, stored.crc32(data))
    )
    folded = await refold(conn, written_log)
    assert checkpoints.encode(folded.state) == checkpoints.encode(written_log.state)
    assert "schema 99" in folded.problems[0]


@pytest.mark.parametrize("damage", DAMAGES)
async def test_every_checkpoint_damaged_folds_from_the_start(conn, written_log, damage):
    """With a log back to seq 1 no checkpoint is needed at all."""
    written_log.live(4)
    assert await keep(conn, written_log)
    written_log.conn.execute(DAMAGES[damage])
    loaded = await checkpoints.load(conn, [written_log.lane_id])
    assert loaded[written_log.lane_id, "default"].seq == 0
    folded = await refold(conn, written_log)
    assert checkpoints.encode(folded.state) == checkpoints.encode(written_log.state)


async def test_state_that_cannot_be_derived_is_an_error_of_its_group_alone(conn, written_log):
    """No checkpoint and a trimmed log: the fold succeeds, touching the state raises."""
    for seed in range(3):
        written_log.live(4, seed)
        assert await keep(conn, written_log)
    written_log.conn.execute(DAMAGES["bit flip"])
    written_log.conn.execute(
        "INSERT INTO spillway.control_event"
        " SELECT lane_id, 'sound', seq - (SELECT min(seq) FROM spillway.control_event) + 1,"
        " events, at FROM spillway.control_event ORDER BY seq LIMIT 1"
    )
    loaded = await checkpoints.load(conn, [written_log.lane_id])
    folds = await checkpoints.fold(conn, [written_log.lane_id], loaded)
    assert set(folds) == {(written_log.lane_id, g) for g in ("default", "sound")}
    with pytest.raises(LogDamagedError, match="control log goes from seq 0 to"):
        _ = folds[written_log.lane_id, "default"].state


async def test_gap_in_the_control_log_is_refused(conn, written_log):
    """A dropped row is noticed by its number, not by luck."""
    written_log.live(6)
    written_log.conn.execute("DELETE FROM spillway.control_event WHERE seq = 4")
    folded = await refold(conn, written_log)
    assert folded.seq == 3
    with pytest.raises(LogDamagedError, match="from seq 3 to 5"):
        _ = folded.state


async def test_flipped_event_is_refused(conn, written_log):
    """Stored events carry a crc32: a flipped bit cannot become another, lawful event."""
    written_log.live(3)
    written_log.conn.execute(
        "UPDATE spillway.control_event SET events = set_bit(events, 30, 1 - get_bit(events, 30))"
        " WHERE seq = 2"
    )
    with pytest.raises(LogDamagedError, match="seq 2 of the control log: crc32"):
        _ = (await refold(conn, written_log)).state


async def test_deposed_broker_writes_no_checkpoint(conn, written_log):
    """Another epoch: nothing is written, nothing is trimmed."""
    written_log.live(3)
    assert not await keep(conn, written_log, epoch=7)
    assert not await checkpoints.write(conn, 99, 1, [written_log.item()])
    assert written_log.conn.execute("SELECT count(*) FROM spillway.checkpoint").fetchone() == (0,)


async def test_damaged_previous_checkpoint_keeps_the_log(conn, written_log):
    """The log is trimmed only behind a checkpoint that can still be read."""
    written_log.live(4)
    assert await keep(conn, written_log)
    written_log.conn.execute(DAMAGES["bit flip"])
    written_log.live(4, 1)
    assert await keep(conn, written_log)
    assert (await refold(conn, written_log)).problems == []
    first = written_log.conn.execute("SELECT min(seq) FROM spillway.control_event").fetchone()
    assert first == (1,)


async def test_damaged_checkpoint_is_written_anew_at_its_own_seq(conn, written_log):
    """A group that stands still gets a sound checkpoint in place of the damaged one."""
    written_log.live(4)
    assert await keep(conn, written_log)
    written_log.conn.execute(DAMAGES["bit flip"])
    assert await keep(conn, written_log)
    assert (await refold(conn, written_log)).problems == []


async def test_item_that_does_not_read_back_stops_the_write(conn, written_log):
    """Bytes that are no state are noticed before anything is trimmed."""
    written_log.live(3)
    bad = CheckpointItem(written_log.lane_id, "default", written_log.seq, 0, b"\x93\x01\x02\x03")
    with pytest.raises(CheckpointDamagedError):
        await checkpoints.write(conn, 0, 1, [bad])
    assert written_log.conn.execute("SELECT count(*) FROM spillway.checkpoint").fetchone() == (0,)


async def test_large_checkpoint_is_split_and_put_together(conn, written_log, monkeypatch):
    """Parts come back as one, and a lost one is missed."""
    monkeypatch.setattr(stored, "PART_BYTES_MAX", 4)
    for seed in range(2):
        written_log.live(8, seed)
        assert len(checkpoints.split(written_log.item().data)) > 3
        assert await keep(conn, written_log)
    assert (await refold(conn, written_log)).problems == []
    written_log.conn.execute(
        "DELETE FROM spillway.checkpoint WHERE part = 1 AND seq = %s", (written_log.seq,)
    )
    folded = await refold(conn, written_log)
    assert checkpoints.encode(folded.state) == checkpoints.encode(written_log.state)
    assert "parts are there" in folded.problems[0]


async def test_many_groups_at_once(conn, written_log):
    """One call writes and one reads whatever the number of groups."""
    written_log.live(5)
    data = written_log.item().data
    lanes = range(1000, 1300)
    items = [CheckpointItem(lane, "g", 5, 0, data) for lane in lanes]
    assert await checkpoints.write(conn, 0, 1, items)
    loaded = await checkpoints.load(conn, list(lanes))
    assert {lane for lane, _ in loaded} == set(lanes)
    assert all(found.seq == 5 and not found.problems for found in loaded.values())


async def test_commits_do_not_wait_for_a_checkpoint(conn, written_log):
    """The fence is locked last: until then a commit of the same shard goes through."""
    written_log.live(4)
    async with conn.transaction():
        await checkpoints._insert(conn, [written_log.item()])
        written_log.conn.execute("SET lock_timeout = '2s'")
        written_log.do(cmd.LeaseMessages(1))
