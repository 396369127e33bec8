"""The whole spool: what is accepted, counted, held back, found again and done with."""

import asyncio
import os
from pathlib import Path

import pytest

from spillway.core.errors import SpoolFileNotFoundError, SpoolFolderError, SpoolFullError
from spillway.spool import event, verify
from spillway.spool import folder as disk
from spillway.spool.event import Address, address_of
from spillway.spool.spool import Hold, Spool, SpoolConfig

A, B = Address("default", "orders", "a"), Address("default", "orders", "b")
DAY_MS = 86_400_000


def counts(spool: Spool) -> tuple[int, dict, bool]:
    queues = {queue: count for (_, queue), count in spool.by_queue.items() if count}
    return spool.pending, queues, spool.gate.holds(A)


def bytes_on_disk(spool: Spool) -> int:
    return sum(path.stat().st_size for path in disk.entries(spool.config.folder)[0])


def refuse(monkeypatch) -> None:
    def fails(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", fails)


NOTHING = (0, {}, False)

# ---------------------------------------------------------------- counts


async def test_accepted_events_are_counted(opened, push):
    """By queue and in all, and the lane is held."""
    async with opened() as spool:
        await spool.append(push(1, 2) + push(3, queue="returns"))
        await spool.append(push(4))
        assert counts(spool) == (4, {"orders": 3, "returns": 1}, True)
        assert not spool.gate.holds(B)
        assert (spool.files, spool.accepted, spool.refused) == ([], 4, 0)
        assert spool.bytes == bytes_on_disk(spool)
        await spool.rotate()
        assert ([file.left for file in spool.files], counts(spool)[0]) == ([4], 4)
        assert spool.bytes == bytes_on_disk(spool) == spool.files[0].bytes


async def test_refused_events_are_not_counted(opened, push, monkeypatch):
    """All counts are as if they had never come, but for that of the refused."""
    async with opened() as spool:
        await spool.append(push(1))
        before, size = counts(spool), spool.bytes
        with monkeypatch.context() as patch:
            refuse(patch)
            with pytest.raises(SpoolFullError):
                await spool.append(push(2, 3) + push(4, queue="returns"))
        assert (counts(spool), spool.bytes) == (before, size)
        assert (spool.accepted, spool.refused, spool.file_count) == (1, 3, 1)
        await spool.append(push(5))
        assert spool.bytes == bytes_on_disk(spool)


async def test_who_stops_waiting_changes_nothing(opened, push, tmp_path, numbers_in):
    """The events are written and counted all the same."""
    async with opened() as spool:
        task = asyncio.create_task(spool.append(push(1, 2)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await spool.append(push(3))
        await spool.rotate()
        assert counts(spool) == (3, {"orders": 3}, True)
        assert numbers_in(spool.files[0].path) == [1, 2, 3]
        assert spool.bytes == bytes_on_disk(spool)


async def test_who_stops_waiting_for_a_refusal_changes_nothing(opened, push, monkeypatch):
    """The counts go back although nobody hears of it."""
    async with opened() as spool:
        refuse(monkeypatch)
        task = asyncio.create_task(spool.append(push(1, 2)))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task, spool._journal._task})
        monkeypatch.undo()
        assert (counts(spool), spool.bytes, spool.refused) == (NOTHING, 0, 2)


async def test_no_events_are_accepted_at_once(opened):
    """Nothing is written, and nobody waits."""
    async with opened() as spool:
        async with asyncio.timeout(5):
            await spool.append([])
        assert counts(spool) == NOTHING
        await spool.rotate()
        assert spool.files == []


async def test_counts_are_right_after_a_restart(opened, push, tmp_path, make_lines):
    """Also of what a crash left open."""
    async with opened(events_per_file=2) as spool:
        await spool.append(push(1, 2, 3) + push(4, queue="returns"))
        before = counts(spool), spool.bytes
    name = spool.folder.names.next("failover")
    (tmp_path / name).write_bytes(b"".join(make_lines(5, 6))[:-1])
    async with opened() as again:
        assert counts(again) == (5, {"orders": 4, "returns": 1}, True)
        assert again.bytes == before[1] + len(make_lines(5)[0]) == bytes_on_disk(again)
        assert (again.file_count, len(again.files)) == (3, 3)


async def test_everything_is_held_until_the_files_are_indexed(tmp_path, opened, push, clock):
    """A file of an earlier run may hold anything back."""
    async with opened() as spool:
        await spool.append(push(1))
    again = Spool(SpoolConfig(tmp_path), clock.now_ms)
    await again.open()
    assert again.gate.holds(Address("other", "any", "x"))
    await again.append(push(2, partition="b"))
    await again.rotate()
    await again.index()
    await again.index()
    assert [file.name for file in again.files] == sorted(file.name for file in again.files)
    assert [again.gate.holds(a) for a in (A, B, Address("other", "any", "x"))] == [
        True,
        True,
        False,
    ]
    assert counts(again) == (2, {"orders": 2}, True)
    await again.close()


async def test_a_start_looks_into_no_file(tmp_path, opened, push, clock, monkeypatch):
    """Of a cold disk full of them that would take minutes; each counts as something until then."""
    async with opened(events_per_file=2) as spool:
        await spool.append(push(1, 2, 3))
        name = spool.files[0].name
        aside = event.failed(
            event.read(next(disk.windows(spool.files[0].path))[0]),
            event.Trouble("queue_not_found", "no queue", "make it"),
            event.moment(clock.ms),
        )
        spool.quarantine.add(name, [aside, aside])
    again = Spool(SpoolConfig(tmp_path), clock.now_ms)
    with monkeypatch.context() as patch:
        for reading in ("_texts", "oldest_ms", "survey"):
            patch.setattr(disk, reading, None)
        await again.open()
    assert (again.pending, again.quarantined, again.file_count) == (2, 1, 2)
    assert (again.bytes, again.gate.is_known) == (bytes_on_disk(again), False)
    await again.index()
    assert (again.pending, again.quarantined, again.file_count) == (3, 2, 2)
    assert (again.bytes, again.gate.is_known) == (bytes_on_disk(again), True)
    await again.close()


async def test_an_empty_folder_holds_nobody(tmp_path, clock):
    """There is nothing to look at first."""
    spool = Spool(SpoolConfig(tmp_path), clock.now_ms)
    await spool.open()
    assert not spool.gate.holds(A)
    await spool.close()


async def test_events_of_an_unknown_partition_hold_their_queue(opened, push):
    """Until they are done."""
    async with opened() as spool:
        await spool.append(push(1, partition=None))
        assert spool.gate.holds(A)
        assert spool.gate.holds(B)
        await spool.rotate()
        spool.finish(spool.files[0], [(0, Address("default", "orders", None))])
        assert not spool.gate.holds(A)


# ---------------------------------------------------------------- done with


async def test_finished_events_are_counted_once(opened, push):
    """A replay that is repeated changes nothing."""
    async with opened() as spool:
        await spool.append(push(1, 2, 3))
        await spool.rotate()
        [file] = spool.files
        assert spool.finish(file, [(0, A), (2, A)]) == 2
        assert spool.finish(file, [(0, A), (2, A)]) == 0
        assert (counts(spool), file.left) == ((1, {"orders": 1}, True), 1)
        assert spool.finish(file, [(1, A)]) == 1
        assert counts(spool) == NOTHING
        await spool.remove(file)
        assert (spool.files, spool.bytes, dict(spool.by_queue)) == ([], 0, {})
        assert disk.entries(spool.config.folder) == ([], [])


async def test_a_damaged_line_that_names_no_lane_is_done_with_too(opened, push):
    """It holds nobody back, and still counts as pending until then."""
    async with opened() as spool:
        await spool.append(push(1, 2))
        await spool.rotate()
        path = spool.files[0].path
    path.write_bytes(b"\xff" + path.read_bytes()[1:])
    async with opened() as again:
        assert counts(again) == (2, {"orders": 1}, True)
        [file] = again.files
        texts = disk.split(disk.read_window(file.path, 0))
        assert again.finish(file, enumerate(map(address_of, texts))) == 2
        assert counts(again) == NOTHING


async def test_a_discarded_file_is_gone(opened, push, monkeypatch):
    """What was done before does not count again."""
    monkeypatch.setattr(disk, "WINDOW_BYTES", 64)
    async with opened(events_per_file=3) as spool:
        await spool.append(push(1, 2, 3, 4))
        [file] = spool.files
        spool.finish(file, [(1, A)])
        assert await spool.discard(spool.file(file.name)) == 2
        assert (counts(spool), spool.files) == ((1, {"orders": 1}, True), [])
        assert not file.path.exists()
        with pytest.raises(SpoolFileNotFoundError):
            spool.file(file.name)


async def test_a_file_that_cannot_be_removed_stays(opened, push, monkeypatch):
    """It would come back with the next start: what is known about it must not be forgotten."""
    async with opened(events_per_file=1) as spool:
        await spool.append(push(1))
        [file] = spool.files
        spool.finish(file, [(0, A)])
        with monkeypatch.context() as patched:
            patched.setattr(Path, "unlink", _refuse)
            with pytest.raises(PermissionError):
                await spool.remove(file)
        assert (spool.files, spool.bytes) == ([file], file.bytes)
        await spool.remove(file)
        assert (spool.files, spool.bytes) == ([], 0)


def _refuse(*_, **__):
    raise PermissionError


async def test_qos_0_holds_nobody_back(opened, push):
    """In memory, in a file and after a restart; and what it shares a lane with stays held."""
    async with opened() as spool:
        spool.accept(push(1))
        assert (spool.gate.holds(A), dict(spool.by_queue)) == (False, {("default", "orders"): 1})
        await spool._behind.close()
    async with opened() as spool:
        assert (spool.pending, spool.gate.holds(A)) == (1, False)
        await spool.append(push(2))
        [file] = spool.files
        assert spool.finish(file, [(0, A)]) == 1
        assert counts(spool) == (1, {"orders": 1}, True)


async def test_qos_0_fills_its_file(opened, push, numbers_in):
    """One file for many flushes; it ends when it is full, or when the replay wants it."""
    async with opened(max_batch=1, events_per_file=4) as spool:
        for number in range(1, 7):
            spool.accept(push(number))
            await asyncio.wait({spool._behind._task})
        assert ([numbers_in(file.path) for file in spool.files], spool.file_count) == (
            [[1, 2, 3, 4]],
            2,
        )
        await spool.rotate()
        assert [numbers_in(file.path) for file in spool.files] == [[1, 2, 3, 4], [5, 6]]


async def test_a_file_that_is_passed_over_gets_shorter(opened, push, tmp_path, clock):
    """Once half of it is done: its room is free, what is left keeps its place and its name."""
    async with opened(events_per_file=4) as spool:
        await spool.append(push(1, 2, 3, 4))
        [file] = spool.files
        text, lines = file.path.read_bytes(), dict(disk.numbered(file.path))
        spool.finish(file, [(0, A)])
        await spool.pass_over(file)
        assert file.path.read_bytes() == text
        spool.finish(file, [(2, A)])
        await spool.pass_over(file)
        assert dict(disk.numbered(file.path)) == {n: lines[n] for n in (2, 4)}
        assert spool.bytes == file.bytes == bytes_on_disk(spool) < len(text)
        assert (file.events, file.left, counts(spool)) == (4, 2, (2, {"orders": 2}, True))
        spool.finish(file, [(3, A)])
        await spool.pass_over(file)
        assert list(dict(disk.numbered(file.path))) == [2]
        assert [path.name for path in disk.entries(tmp_path)[0]] == [file.name]


async def test_the_oldest_is_one_that_waits(opened, push, clock):
    """Not one that is done, whether or not it still stands in the file."""
    async with opened() as spool:
        for number in range(1, 5):
            [(address, [one])] = push(number)
            one.accepted_at = event.moment(clock.ms + number * 1000)
            await spool.append([(address, [one])])
        await spool.rotate()
        [file] = spool.files
        clock.ms += 10_000
        for done, oldest_s in ((0, 8), (1, 7), (2, 6)):
            spool.finish(file, [(done, A)])
            await spool.pass_over(file)
            assert spool.oldest_s == oldest_s


async def test_what_is_done_is_not_counted_after_a_restart(opened, push):
    """However little it is: a stop takes it out of the files."""
    async with opened(events_per_file=4) as spool:
        await spool.append(push(1, 2) + push(3, partition="b") + push(4, queue="returns"))
        [file] = spool.files
        spool.finish(file, [(2, B)])
    async with opened() as again:
        [file] = again.files
        assert counts(again) == (3, {"orders": 2, "returns": 1}, True)
        assert (file.events, file.left, file.is_done(2)) == (4, 3, True)
        assert (again.gate.holds(B), again.bytes) == (False, bytes_on_disk(again))


async def test_a_file_that_cannot_get_shorter_stays_as_it_is(opened, push, monkeypatch, tmp_path):
    """A full disk has no room for the shorter one: nothing is lost, and no half of it is left."""
    async with opened() as spool:
        await spool.append(push(1, 2))
        await spool.rotate()
        [file] = spool.files
        spool.finish(file, [(0, A)])
        text = file.path.read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", _refuse)
            await spool.pass_over(file)
        assert (file.path.read_bytes(), spool.bytes) == (text, len(text))
        assert not list(tmp_path.glob("*.new"))
        await spool.pass_over(file)
        assert spool.bytes == bytes_on_disk(spool) < len(text)


@pytest.mark.parametrize("point", ["mid_shortening", "after_shortening"])
async def test_a_crash_while_a_file_gets_shorter(opened, push, tmp_path, clock, point):
    """One of both is there, under its name, with all that waited."""

    class Crashed(BaseException):
        pass

    def crash(reached):
        if reached == point:
            raise Crashed

    spool = Spool(SpoolConfig(tmp_path), clock.now_ms, crash)
    await spool.open()
    await spool.append(push(1, 2, 3))
    await spool.rotate()
    [file] = spool.files
    spool.finish(file, [(0, A), (2, A)])
    with pytest.raises(Crashed):
        await spool.pass_over(file)
    spool.folder.release()
    async with opened() as again:
        assert [file.name for file in again.files] == [file.name]
        assert again.pending == (3 if point == "mid_shortening" else 1)
        assert 2 in dict(disk.numbered(file.path))
        assert again.foreign == []


async def test_a_discarded_line_is_gone_for_good(opened, push, numbers_in):
    """The others keep their places; the file goes with its last one, a restart brings none back."""
    async with opened(events_per_file=3) as spool:
        await spool.append(push(1, 2) + push(3, queue="returns"))
        [file] = spool.files
        lines = dict(disk.numbered(file.path))
        await spool.discard_line(file, 3, lines[3])
        assert counts(spool) == (2, {"orders": 2}, True)
        assert not spool.gate.holds(Address("default", "returns", "a"))
        assert (file.left, [file.is_done(at) for at in range(3)]) == (2, [False, False, True])
        assert spool.bytes == bytes_on_disk(spool)
        await spool.discard_line(file, 1, lines[1])
    async with opened() as again:
        [file] = again.files
        assert counts(again) == (1, {"orders": 1}, True)
        assert (file.events, file.left, list(dict(disk.numbered(file.path)))) == (3, 1, [2])
        await again.discard_line(file, 2, lines[2])
        assert (counts(again), again.bytes, again.files) == (NOTHING, 0, [])
        assert not file.path.exists()


@pytest.mark.parametrize("line", [None, 1])
async def test_what_cannot_be_discarded_is_still_there(opened, push, monkeypatch, line):
    """All counts are as they were: it would be replayed after a restart."""
    async with opened(events_per_file=2) as spool:
        await spool.append(push(1, 2))
        [file] = spool.files
        before = counts(spool), spool.bytes, file.left

        def fails(*_, **__):
            raise OSError(30, "Read-only file system")

        with monkeypatch.context() as patch:
            patch.setattr(disk, "erase", fails)
            patch.setattr(Path, "unlink", fails)
            with pytest.raises(OSError, match="Read-only"):
                await (spool.discard_line(file, line, b"{}") if line else spool.discard(file))
        assert (counts(spool), spool.bytes, file.left) == before
        assert spool.files == [file]


async def test_a_file_that_cannot_go_is_still_counted(opened, push, monkeypatch):
    """All of it is in the log, but it is there: a restart will find it."""
    async with opened(events_per_file=1) as spool:
        await spool.append(push(1))
        [file] = spool.files
        spool.finish(file, [(0, A)])

        def fails(*_, **__):
            raise OSError(30, "Read-only file system")

        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", fails)
            with pytest.raises(OSError, match="Read-only"):
                await spool.remove(file)
        assert (spool.files, spool.bytes) == ([file], bytes_on_disk(spool))
        await spool.remove(file)
        assert (spool.files, spool.bytes) == ([], 0)


async def test_what_left_failed_is_erased_where_it_came_from(opened, push):
    """Of this file alone, and only what is done with: a number says which."""
    async with opened(events_per_file=3) as spool:
        await spool.append(push(1, 2, 3))
        [file] = spool.files
        seqs = [event.read(text).seq for _, text in disk.numbered(file.path)]
        spool.finish(file, [(0, A), (1, A)])
        await spool.forget_origin("failover_other.buf", set(seqs))
        assert len(dict(disk.numbered(file.path))) == 3
        await spool.forget_origin(file.name, {seqs[1], seqs[2]})
        assert list(dict(disk.numbered(file.path))) == [1, 3]


async def test_files_stand_in_the_order_in_which_they_were_begun(opened, push):
    """Of both streams, also when an older one is completed later."""
    async with opened(max_batch=1) as spool:
        await spool.append(push(1))
        spool.accept(push(2))
        await spool._behind.close()
        await spool.rotate()
        names = [file.name for file in spool.files]
        assert [name.partition("_")[0] for name in names] == ["failover", "qos0"]
        assert names == sorted(names, key=disk.age)


async def test_numbers_ascend_over_files_and_runs(opened, push, tmp_path, clock):
    """Whatever was refused in between, and whatever the clock says."""
    for _ in range(2):
        async with opened(events_per_file=2, bytes_max=5_000) as spool:
            await spool.append(push(1, 2, 3))
            with pytest.raises(SpoolFullError):
                await spool.append(push(*range(100)))
            await spool.append(push(4, 5))
        clock.ms -= DAY_MS
    last: dict[str, int] = {}
    checks = [verify.check_file(path, last) for path in disk.entries(tmp_path)[0]]
    assert [check.events for check in checks] == [2, 2, 1] * 2
    assert not any(check.damaged or check.out_of_order for check in checks)


async def test_closing_ends_the_files(opened, push, tmp_path, numbers_in):
    """Everything is durable and complete, of both streams."""
    async with opened(flush_ms=3_600_000) as spool:
        await spool.append(push(1))
        spool.accept(push(2, 3))
        assert spool.unwritten == 2
    paths, _ = disk.entries(tmp_path)
    assert all(path.name.endswith(".buf") for path in paths)
    assert [numbers_in(path) for path in paths] == [[1], [2, 3]]
    assert (spool.unwritten, spool.lost) == (0, 0)


async def test_closing_twice_is_fine(opened, push):
    """A start that failed closes it, and so does the stop behind it."""
    async with opened() as spool:
        await spool.append(push(1))
        await spool.close()
        await spool.close()


async def test_an_unwritable_folder_is_told_at_the_start(tmp_path, opened, clock):
    """And closing what never opened is no error."""
    async with opened():
        other = Spool(SpoolConfig(tmp_path), clock.now_ms)
        with pytest.raises(SpoolFolderError):
            await other.open()
        await other.close()


# ---------------------------------------------------------------- bounds


async def test_a_full_spool_refuses(opened, push):
    """Nothing of the call is accepted; when there is room again, all is well."""
    async with opened(bytes_max=1_000) as spool:
        await spool.append(push(1, 2))
        before, size = counts(spool), bytes_on_disk(spool)
        with pytest.raises(SpoolFullError, match="1000"):
            await spool.append(push(3, 4))
        with pytest.raises(SpoolFullError):
            spool.accept(push(3, 4))
        assert (counts(spool), bytes_on_disk(spool), spool.refused) == (before, size, 4)
        await spool.rotate()
        await spool.discard(spool.files[0])
        await spool.append(push(3, 4))
        assert counts(spool)[0] == 2


async def test_a_spool_that_is_full_for_a_hold_says_how_it_ends(opened, push):
    """The release comes first: room is no remedy for what nobody replays."""
    async with opened(bytes_max=1_000) as spool:
        await spool.append(push(1, 2))
        with pytest.raises(SpoolFullError) as full:
            await spool.append(push(3, 4))
        assert "release" not in full.value.hint
        await spool.begin_hold(Hold("ann", None, ""))
        with pytest.raises(SpoolFullError) as held:
            await spool.append(push(3, 4))
        assert held.value.hint.startswith("`spillway spool release`")


async def test_a_spool_that_is_too_old_refuses(opened, push, clock):
    """Nobody replays it, and somebody should know."""
    async with opened(age_max_s=60) as spool:
        await spool.append(push(1))
        clock.ms += 60_000
        assert spool.oldest_s == 60
        await spool.append(push(2))
        clock.ms += 1
        with pytest.raises(SpoolFullError, match="oldest"):
            await spool.append(push(3))
        await spool.rotate()
        with pytest.raises(SpoolFullError, match="oldest"):
            await spool.append(push(3))
        assert spool.refused == 2
        await spool.discard(spool.files[0])
        assert spool.oldest_s == 0
        await spool.append(push(3))


async def test_memory_for_qos_0_is_bounded_and_refusals_are_counted(opened, push, monkeypatch):
    """As those of the disk are."""
    monkeypatch.setattr("spillway.spool.behind.PENDING_BYTES_MAX", 10)
    async with opened() as spool:
        with pytest.raises(SpoolFullError):
            spool.accept(push(1, 2))
        assert (counts(spool), spool.refused, spool.accepted) == (NOTHING, 2, 0)


# ---------------------------------------------------------------- holding, the door


async def test_a_hold_survives_a_restart(opened):
    """Until it is ended; ending it twice is no error."""
    hold = Hold("eve", "upgrade", "2026-01-01T00:00:00Z")
    async with opened() as spool:
        assert spool.hold is None
        await spool.begin_hold(hold)
    async with opened() as spool:
        assert spool.hold == hold
        await spool.end_hold()
        await spool.end_hold()
        assert spool.hold is None
    async with opened() as spool:
        assert spool.hold is None


async def test_the_end_of_a_hold_is_durable(opened, monkeypatch):
    """A power cut does not bring it back."""
    async with opened() as spool:
        await spool.begin_hold(Hold("eve", None, ""))
        synced = []
        monkeypatch.setattr(disk, "sync_folder", synced.append)
        await spool.end_hold()
        assert synced == [spool.config.folder]


@pytest.mark.parametrize("text", [b"", b"{", b"{}", b'{"actor":"\xff"}', b"\xff"])
async def test_a_hold_that_cannot_be_read_holds(opened, tmp_path, text):
    """What it said is lost, what it meant is not."""
    (tmp_path / "hold.json").write_bytes(text)
    async with opened() as spool:
        assert spool.hold.actor == "unknown"
        assert spool.foreign == []


async def test_the_door(opened):
    """Who waits there is let go when it opens; nobody waits when it is not closed."""
    async with opened() as spool:
        assert await spool.at_door(10) is False
        spool.close_door()
        spool.close_door()
        assert await spool.at_door(0) is False
        waiting = asyncio.create_task(spool.at_door(10))
        await asyncio.sleep(0)
        assert not waiting.done()
        spool.open_door()
        spool.open_door()
        assert await waiting is True
        assert await spool.at_door(10) is False
