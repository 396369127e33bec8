"""The writing side: what is told durable is on disk, what is refused left no trace there."""

import asyncio
import gc
import os
import shutil
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from spillway.core.errors import SpoolFullError
from spillway.spool import journal as journals
from spillway.spool.folder import Folder
from spillway.spool.journal import FileWriter, Journal
from spillway.spool.names import FAILOVER

NO_ROOM = OSError(28, "No space left on device")


def writer_in(path, events_per_file: int = 3, reached=lambda _: None) -> FileWriter:
    return FileWriter(Folder(path), FAILOVER, events_per_file, reached)


def on_disk(path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def text_on_disk(path) -> bytes:
    return b"".join(text for _, text in sorted(on_disk(path).items()))


def remove(path, _away):
    path.unlink()


def move(path, away):
    path.rename(away / path.name)


def replace(path, away):
    """As an editor does."""
    (away / "edited").write_bytes(b"edited\n")
    (away / "edited").replace(path)


@pytest.fixture
def failing(monkeypatch):
    """Makes a call of `os` fail: from its `after`-th call on, until `heal`."""

    class Failing:
        def call(self, name: str, after: int = 0, error: OSError = NO_ROOM) -> None:
            really, left = getattr(os, name), [after]

            def fails(*args, **named):
                if left[0] == 0:
                    raise error
                left[0] -= 1
                return really(*args, **named)

            monkeypatch.setattr(os, name, fails)

        def write_after(self, size: int) -> None:
            """As on a full disk: so many bytes go, the next ones do not."""
            really, left = os.write, [size]

            def write(number, text):
                if not left[0]:
                    raise NO_ROOM
                done = really(number, text[: left[0]])
                left[0] -= done
                return done

            monkeypatch.setattr(os, "write", write)

        def heal(self) -> None:
            monkeypatch.undo()

    return Failing()


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("take", [remove, move, replace])
@pytest.mark.parametrize("more", [0, 1, 4])
def test_an_open_file_that_somebody_takes_away_is_put_back(
    tmp_path, tmp_path_factory, make_lines, take, more
):
    """What is in it was promised, and so is what comes then; whoever moved it has a copy."""
    writer, lines = writer_in(tmp_path), make_lines(*range(2 + more))
    writer.write(lines[:2])
    [path] = tmp_path.iterdir()
    take(path, tmp_path_factory.mktemp("away"))
    if more:
        writer.write(lines[2:])
        assert text_on_disk(tmp_path) == b"".join(lines)
    writer.complete()
    assert text_on_disk(tmp_path) == b"".join(lines)
    assert all(name.endswith(".buf") for name in on_disk(tmp_path))


def test_a_folder_that_somebody_takes_away_takes_nothing_more(tmp_path, make_lines):
    """Refused, not promised; put back, it goes on, and nothing that was promised is missing."""
    folder = tmp_path / "spool"
    folder.mkdir()
    writer, lines = writer_in(folder), make_lines(1, 2, 3)
    writer.write(lines[:1])
    shutil.rmtree(folder)
    with pytest.raises(SpoolFullError):
        writer.write(lines[1:2])
    with capture_logs() as said:
        assert [writer.complete(), writer.complete()] == [[], []]
    assert [one["event"] for one in said] == ["spool_rename_failed"]
    folder.mkdir()
    [first] = writer.complete()
    assert (first.events, text_on_disk(folder)) == (1, lines[0])
    writer.write(lines[2:])
    assert text_on_disk(folder) == lines[0] + lines[2]


@settings(max_examples=30)
@given(per_file=st.integers(1, 5), sizes=st.lists(st.integers(1, 13), max_size=8))
def test_every_file_holds_as_many_events_as_it_may(tmp_path_factory, make_lines, per_file, sizes):
    """Not one more, and less in the last one only, however they come."""
    path, count, complete = tmp_path_factory.mktemp("spool"), 0, []
    writer = writer_in(path, per_file)
    for size in sizes:
        complete += writer.write(make_lines(*range(count, count + size)))
        count += size
        assert [file.events for file in complete] == [per_file] * (count // per_file)
    complete += writer.complete()
    assert sum(file.events for file in complete) == count
    for file in complete:
        text = file.path.read_bytes()
        assert (text.count(b"\n"), len(text)) == (file.events, file.bytes)
    assert text_on_disk(path) == b"".join(make_lines(*range(count)))
    assert writer.complete() == []


def test_a_file_ends_at_its_bytes_too(tmp_path, make_lines, monkeypatch):
    """Payloads may be large."""
    lines = make_lines(1, 2, 3)
    monkeypatch.setattr(journals, "FILE_BYTES_MAX", len(lines[0]) + 1)
    writer = writer_in(tmp_path, 100)
    assert writer.write(lines[:1]) == []
    [file] = writer.write(lines[1:2])
    assert (file.events, file.path.name.endswith(".buf")) == (2, True)


def test_a_file_is_open_until_it_is_complete(tmp_path, make_lines):
    """Its name says which; only complete ones are replayed."""
    writer = writer_in(tmp_path)
    writer.write(make_lines(1))
    assert [name.endswith(".buf.tmp") for name in on_disk(tmp_path)] == [True]
    [file] = writer.complete()
    assert list(on_disk(tmp_path)) == [file.name]
    assert file.name.endswith(".buf")
    assert file.oldest_ms == 1_767_225_600_000
    assert file.path.stat().st_mode & 0o077 == 0


def test_lines_are_durable_before_it_is_told(tmp_path, make_lines, monkeypatch):
    """Each file is fsynced after its lines, and the folder after a new name in it."""
    seen = []

    def spy(name):
        really = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *args: (seen.append(name), really(*args))[1])

    for name in ("write", "fdatasync", "fsync"):
        spy(name)
    writer = writer_in(tmp_path, 3, seen.append)
    writer.write(make_lines(1))
    assert seen == [
        "before_write",
        "write",
        "before_fsync",
        "fdatasync",
        "before_directory_fsync",
        "fsync",
        "after_fsync_before_reply",
    ]
    seen.clear()
    writer.write(make_lines(2))
    assert seen == [
        "before_write",
        "write",
        "before_fsync",
        "fdatasync",
        "after_fsync_before_reply",
    ]
    seen.clear()
    writer.write(make_lines(3, 4, 5, 6, 7))
    assert seen == [
        "before_write",
        *["write"] * 3,
        "before_fsync",
        *["fdatasync"] * 3,
        "before_directory_fsync",
        "fsync",
        "after_fsync_before_reply",
        *["after_rename"] * 2,
    ]


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("call", "after", "already", "more"),
    [
        ("open", 0, 0, 1), ("open", 0, 2, 8), ("open", 1, 1, 8),
        ("write", 0, 0, 1), ("write", 0, 1, 1), ("write", 1, 0, 4), ("write", 2, 2, 8),
        ("fdatasync", 0, 0, 1), ("fdatasync", 0, 2, 1), ("fdatasync", 1, 2, 8),
        ("fdatasync", 3, 2, 8), ("fsync", 0, 0, 1), ("fsync", 0, 1, 8),
    ],
)  # fmt: skip
def test_a_refused_call_leaves_no_trace(tmp_path, make_lines, failing, call, after, already, more):  # noqa: PLR0917 (a table)
    """Whatever of it failed, over however many files it went; the next one is taken."""
    writer, kept = writer_in(tmp_path), make_lines(*range(already))
    if kept:
        writer.write(kept)
    before = on_disk(tmp_path)
    failing.call(call, after)
    with pytest.raises(SpoolFullError, match="No space left"):
        writer.write(make_lines(*range(10, 10 + more)))
    assert on_disk(tmp_path) == before
    failing.heal()
    complete = writer.write(make_lines(1, 2, 3, 4)) + writer.complete()
    assert text_on_disk(tmp_path) == b"".join(kept + make_lines(1, 2, 3, 4))
    # A file whose cut could not be synced ends with it.
    ends = call == "fdatasync" and kept
    assert [file.events for file in complete] == ([already, 3, 1] if ends else [3, already + 1])


@pytest.mark.parametrize("size", [0, 1, 300, 700, 1500])
def test_a_disk_that_fills_up_within_a_line(tmp_path, make_lines, failing, size):
    """What went before it was full goes too."""
    writer = writer_in(tmp_path)
    writer.write(make_lines(1))
    before = on_disk(tmp_path)
    failing.write_after(size)
    with pytest.raises(SpoolFullError):
        writer.write(make_lines(*range(10, 20)))
    assert on_disk(tmp_path) == before
    failing.heal()
    writer.write(make_lines(2))
    assert text_on_disk(tmp_path) == b"".join(make_lines(1, 2))


def test_a_write_may_take_less_than_it_was_given(tmp_path, make_lines, monkeypatch):
    """The rest follows."""
    really = os.write
    monkeypatch.setattr(os, "write", lambda number, text: really(number, text[:50]))
    writer_in(tmp_path).write(make_lines(1, 2))
    assert text_on_disk(tmp_path) == b"".join(make_lines(1, 2))


def test_one_file_that_cannot_be_undone_does_not_keep_the_others(tmp_path, make_lines, failing):
    """As much as can be taken back is, and what cannot is told."""
    writer = writer_in(tmp_path)
    writer.write(make_lines(1))
    [kept] = on_disk(tmp_path)
    failing.call("fdatasync")
    failing.call("ftruncate")
    with capture_logs() as logs, pytest.raises(SpoolFullError):
        writer.write(make_lines(*range(10, 18)))
    assert list(on_disk(tmp_path)) == [kept]
    [log] = logs
    assert (log["event"], log["file"]) == ("spool_undo_failed", str(tmp_path / kept))


def test_nothing_is_glued_to_what_could_not_be_taken_back(tmp_path, make_lines, failing):
    """The file ends there; what was refused goes before it is complete, its neighbours wait."""
    writer = writer_in(tmp_path)
    writer.write(make_lines(1))
    failing.write_after(50)
    failing.call("ftruncate")
    with capture_logs() as logs:
        with pytest.raises(SpoolFullError):
            writer.write(make_lines(2))
        failing.heal()
        failing.call("ftruncate")
        assert writer.write(make_lines(3, 4, 5)) == []
    assert [log["event"] for log in logs] == ["spool_undo_failed", "spool_rename_failed"]
    first, second = sorted(on_disk(tmp_path).values(), key=len)
    assert (len(first) - 50, second) == (len(make_lines(1)[0]), b"".join(make_lines(3, 4, 5)))
    failing.heal()
    assert [file.events for file in writer.complete()] == [1, 3]
    assert text_on_disk(tmp_path) == b"".join(make_lines(1, 3, 4, 5))


def test_what_is_taken_back_stays_away(tmp_path, make_lines, monkeypatch):
    """A power cut brings back no line whose push was refused."""
    writer, seen = writer_in(tmp_path), []
    writer.write(make_lines(1, 2))

    def spy(name):
        really = getattr(os, name)

        def called(*args):
            seen.append(name)
            if name == "write" and seen.count("write") == 2:
                raise NO_ROOM
            return really(*args)

        monkeypatch.setattr(os, name, called)

    for name in ("write", "ftruncate", "fdatasync", "unlink", "fsync"):
        spy(name)
    with pytest.raises(SpoolFullError):
        writer.write(make_lines(3, 4, 5))
    assert seen == ["write", "write", "ftruncate", "fdatasync", "unlink", "fsync"]


def test_a_file_that_cannot_be_renamed_is_tried_again(tmp_path, make_lines, failing, monkeypatch):
    """Its events were accepted: they are neither refused now nor forgotten, and keep their turn."""
    writer = writer_in(tmp_path)
    rename = journals.disk.Path.rename

    def fails(*_):
        raise NO_ROOM

    monkeypatch.setattr(journals.disk.Path, "rename", fails)
    with capture_logs() as logs:
        assert writer.write(make_lines(*range(7))) == []
        assert writer.complete() == []
        assert writer.write(make_lines(7)) == []
    assert [log["event"] for log in logs] == ["spool_rename_failed"]  # told once
    assert text_on_disk(tmp_path) == b"".join(make_lines(*range(8)))
    monkeypatch.setattr(journals.disk.Path, "rename", rename)
    assert [file.events for file in writer.complete()] == [3, 3, 1, 1]
    assert all(name.endswith(".buf") for name in on_disk(tmp_path))
    assert text_on_disk(tmp_path) == b"".join(make_lines(*range(8)))


# ---------------------------------------------------------------- group commit


class Disk:
    """Stands still in every `fdatasync` until the test lets it go on, and counts them."""

    def __init__(self, monkeypatch) -> None:
        self.calls = 0
        self.entered = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        really = os.fdatasync

        def fdatasync(number: int) -> None:
            self.calls += 1
            self.entered.release()
            self.go.acquire()
            really(number)

        monkeypatch.setattr(os, "fdatasync", fdatasync)

    async def reached(self) -> None:
        """Until the writer stands in its next one."""
        await asyncio.to_thread(self.entered.acquire)


@pytest.fixture
def slow_disk(monkeypatch):
    """A disk whose fsyncs take as long as the test says."""
    disk = Disk(monkeypatch)
    yield disk
    disk.go.release(1000)


@pytest.fixture
async def journal(tmp_path):
    """A journal; `journal.complete_files` are those that it told of."""
    files = []
    journal = Journal(writer_in(tmp_path, 1000), files.extend)
    journal.complete_files = files
    yield journal
    await journal.close()


async def test_who_comes_together_shares_an_fsync(journal, make_lines, slow_disk, tmp_path):
    """And who comes while one is under way shares the next."""
    slow_disk.go.release(2)
    first = [journal.write(make_lines(number)) for number in range(100)]
    await slow_disk.reached()
    second = [journal.write(make_lines(number)) for number in range(100, 200)]
    await asyncio.gather(*first, *second)
    assert slow_disk.calls == 2
    assert text_on_disk(tmp_path) == b"".join(make_lines(*range(200)))


async def test_nobody_is_told_before_the_fsync(journal, make_lines, slow_disk):
    """Not even when its lines stand in the file already."""
    waiter = journal.write(make_lines(1))
    await slow_disk.reached()
    assert not waiter.done()
    slow_disk.go.release()
    await waiter


async def test_a_batch_that_fails_fails_alone(journal, make_lines, failing, tmp_path):
    """All who were in it are told; who comes next is taken."""
    failing.call("fdatasync")
    refused = await asyncio.gather(
        journal.write(make_lines(1)), journal.write(make_lines(2)), return_exceptions=True
    )
    assert [type(error) for error in refused] == [SpoolFullError] * 2
    assert on_disk(tmp_path) == {}
    failing.heal()
    await journal.write(make_lines(3))
    assert text_on_disk(tmp_path) == b"".join(make_lines(3))


async def test_a_refusal_that_nobody_waits_for_is_no_alarm(tmp_path, make_lines, failing):
    """The event loop has nothing to complain of."""
    told = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    failing.call("fdatasync")
    journal = Journal(writer_in(tmp_path), lambda _: None)
    journal.write(make_lines(1))
    await journal.close()
    gc.collect()
    assert told == []


async def test_a_waiter_that_was_cancelled_is_passed_over(journal, make_lines, slow_disk, tmp_path):
    """Its lines are written with the others all the same."""
    waiters = [journal.write(make_lines(number)) for number in (1, 2)]
    await slow_disk.reached()
    waiters[0].cancel()
    slow_disk.go.release()
    await waiters[1]
    assert text_on_disk(tmp_path) == b"".join(make_lines(1, 2))


async def test_nothing_is_durable_at_once(journal):
    """A push of no events waits for no disk."""
    async with asyncio.timeout(5):
        await journal.write([])


async def test_rotating_ends_the_open_file(journal, make_lines, tmp_path):
    """Behind what was given to be written before."""
    await journal.write(make_lines(1))
    await journal.rotate()
    await journal.write(make_lines(2))
    await journal.rotate()
    await journal.rotate()
    assert [file.events for file in journal.complete_files] == [1, 1]
    assert all(name.endswith(".buf") for name in on_disk(tmp_path))


async def test_closing_writes_what_is_pending(tmp_path, make_lines):
    """Also what was given while the last batch was under way."""
    files = []
    journal = Journal(writer_in(tmp_path, 3), files.extend)
    waiters = [journal.write(make_lines(number)) for number in range(4)]
    await journal.close()
    assert all(waiter.done() for waiter in waiters)
    assert [file.events for file in files] == [3, 1]
    assert text_on_disk(tmp_path) == b"".join(make_lines(*range(4)))
