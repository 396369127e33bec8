"""The folder: ours alone, and what a crash left in it is taken in without losing a whole line."""

import errno
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from spillway.core.errors import SpoolFolderError
from spillway.spool import event
from spillway.spool import folder as disk
from spillway.spool.folder import BufferFile, Folder
from spillway.spool.names import FAILOVER, QOS0, Names


@pytest.fixture(autouse=True)
def _the_clock_stands_still(monkeypatch):
    """So that only what is known of other names moves the next one on."""
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_000_000_000)


@pytest.fixture
def leave(tmp_path):
    """Leaves a file in the folder, as a writer that died would; returns its path."""
    given = Names()

    def leave(text: bytes, stream: str = FAILOVER, *, is_open: bool = True):
        name = given.next(stream)
        path = tmp_path / (name if is_open else name.removesuffix(".tmp"))
        path.write_bytes(text)
        return path

    return leave


@pytest.fixture
def folder(tmp_path):
    """The folder, locked."""
    folder = Folder(tmp_path)
    folder.lock()
    yield folder
    folder.release()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def ended(path):
    return path.with_name(path.name.removesuffix(".tmp"))


# ---------------------------------------------------------------- the lock


def test_a_second_broker_is_refused(tmp_path, folder):
    """It is told whose folder it is and what to do; once the first is gone it may have it."""
    with pytest.raises(SpoolFolderError) as caught:
        Folder(tmp_path).lock()
    assert "another broker" in caught.value.message
    assert "FILE_BUFFER_DIR" in caught.value.hint
    folder.release()
    folder.release()
    other = Folder(tmp_path)
    other.lock()
    other.release()


def test_a_refused_lock_keeps_nothing_open(tmp_path, folder):
    """It may be tried again and again."""
    before = open_files()
    for _ in range(5):
        with pytest.raises(SpoolFolderError):
            Folder(tmp_path).lock()
    assert open_files() == before


def test_the_lock_goes_with_its_process(tmp_path):
    """A broker that was killed holds nothing back."""
    script = (
        "import os, signal, sys; from pathlib import Path\n"
        "from spillway.spool.folder import Folder\n"
        "Folder(Path(sys.argv[1])).lock()\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    died = subprocess.run([sys.executable, "-c", script, tmp_path], check=False)
    assert died.returncode == -9
    heir = Folder(tmp_path)
    heir.lock()
    heir.release()


def test_the_folder_is_made_for_us_alone(tmp_path):
    """Payloads are nobody else's business."""
    folder = Folder(tmp_path / "a" / "b")
    folder.lock()
    folder.release()
    assert (folder.path / "failed").stat().st_mode & 0o077 == 0
    assert (folder.path / "spool.lock").stat().st_mode & 0o077 == 0
    assert sorted(path.name for path in folder.path.iterdir()) == ["failed", "spool.lock"]


def test_a_new_folder_is_durable(tmp_path, monkeypatch):
    """With all that had to be made above it; one that is there costs nothing."""
    synced, really = [], os.fsync

    def fsync(number: int) -> None:
        synced.append(Path(f"/proc/self/fd/{number}").readlink())
        really(number)

    monkeypatch.setattr(os, "fsync", fsync)
    disk.make(tmp_path / "a" / "b" / "failed")
    assert sorted(synced) == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]
    disk.make(tmp_path / "a" / "b" / "failed")
    assert len(synced) == 3


@pytest.mark.parametrize("below", ["file/spool", "file"])
def test_a_folder_that_cannot_be_is_refused(tmp_path, below):
    """A file stands in the way: not even root can write there."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SpoolFolderError) as caught:
        Folder(tmp_path / below).lock()
    assert str(tmp_path) in caught.value.message


def test_a_full_disk_is_no_reason_not_to_start(tmp_path, monkeypatch):
    """What waits there is what fills it, and replay makes room; any other refusal counts."""
    for number, refused in ((errno.ENOSPC, False), (errno.EDQUOT, False), (errno.EROFS, True)):
        folder = Folder(tmp_path)
        with monkeypatch.context() as patched:
            patched.setattr(Path, "touch", _failing(number))
            with pytest.raises(SpoolFolderError) if refused else nullcontext():
                folder.lock()
        folder.release()


def _failing(number):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs the /proc of Linux")
def test_a_folder_that_cannot_be_written_is_refused():
    """/proc refuses new files even to root."""
    with pytest.raises(SpoolFolderError):
        Folder(Path("/proc/self")).lock()


# ---------------------------------------------------------------- what a crash left


def recovered(folder):
    """What was found, with its files counted, and what was told."""
    with capture_logs() as logs:
        found = folder.recover()
        assert found.bytes == sum(path.stat().st_size for path in found.files)
        found.files = [disk.describe(path) for path in found.files]
    return found, [log["event"] for log in logs]


@pytest.mark.parametrize("cut", [1, 5, 100])
def test_a_torn_tail_is_cut_off(folder, leave, make_lines, numbers_in, cut):
    """Its lines before are whole and stay; the file is complete now."""
    lines = make_lines(1, 2, 3)
    path = leave(b"".join(lines)[:-cut])
    found, told = recovered(folder)
    assert told == ["spool_torn_tail"]
    [file] = found.files
    assert (file.path, file.events, file.left) == (ended(path), 2, 2)
    assert file.path.read_bytes() == b"".join(lines[:2])
    assert file.bytes == len(b"".join(lines[:2]))
    assert not path.exists()
    assert numbers_in(file.path) == [1, 2]


def test_a_whole_file_that_was_open_is_kept_as_it_is(folder, leave, make_lines):
    """Its writer died between two pushes."""
    path = leave(b"".join(make_lines(1, 2)))
    found, told = recovered(folder)
    assert told == []
    assert [(file.path, file.events) for file in found.files] == [(ended(path), 2)]


@pytest.mark.parametrize("text", [b"", b"\0" * 4096, b'{"queue":'])
def test_an_open_file_without_an_ended_line_goes(folder, leave, text):
    """Nobody was told that anything in it was accepted."""
    path = leave(text)
    found, told = recovered(folder)
    assert (found.files, told) == ([], ["spool_torn_tail"] if text else [])
    assert not path.exists()
    assert not ended(path).exists()


@pytest.mark.parametrize("torn", [b"", b'{"torn', b"\0" * 4096])
@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_a_damaged_line_of_an_open_file_is_kept(folder, leave, make_lines, damaged, torn):
    """Wherever it stands, it was ended, so it may have been answered: no tail takes it along."""
    lines = make_lines(1, 2, 3)
    lines[damaged] = lines[damaged].replace(b"orders", b"0rders")
    leave(b"".join(lines) + torn)
    found, told = recovered(folder)
    [file] = found.files
    assert (file.events, told) == (3, ["spool_torn_tail"] if torn else [])
    assert file.path.read_bytes() == b"".join(lines)


@pytest.mark.parametrize("text", [b"garbage\nmore of it\n", b"\0" * 4096 + b"\n"])
def test_an_open_file_of_damaged_lines_alone_is_kept(folder, leave, text):
    """Once they were events."""
    path = leave(text)
    found, told = recovered(folder)
    assert [(file.path, file.events) for file in found.files] == [(ended(path), text.count(b"\n"))]
    assert (told, ended(path).read_bytes()) == ([], text)


def test_the_end_of_the_lines_is_found_before_a_long_torn_tail(
    folder, leave, make_lines, monkeypatch
):
    """However many windows it fills."""
    monkeypatch.setattr(disk, "WINDOW_BYTES", 16)
    text = b"".join(make_lines(1, 2))
    leave(text + b"x" * 100)
    found, _ = recovered(folder)
    assert [file.path.read_bytes() for file in found.files] == [text]


@pytest.mark.parametrize("text", [b"", b"\n", b" \n" * 3])
def test_nothing_waits_in_an_empty_file(folder, leave, text):
    """The replay will remove it."""
    path = leave(text, is_open=False)
    found, told = recovered(folder)
    assert ([(file.path, file.left) for file in found.files], told) == ([(path, 0)], [])


def test_a_cut_complete_file_is_not_touched(folder, leave, make_lines):
    """It was whole once: what is left of its last line is an event that somebody has to see."""
    text = b"".join(make_lines(1, 2, 3))[:-9]
    path = leave(text, is_open=False)
    found, _ = recovered(folder)
    assert [(file.path, file.events, file.bytes) for file in found.files] == [(path, 3, len(text))]
    assert path.read_bytes() == text
    assert [len(texts) for texts in disk.windows(path)] == [3]


def test_files_are_found_in_the_order_in_which_they_were_begun(folder, leave, make_lines):
    """Of both streams, open or not."""
    text = b"".join(make_lines(1))
    left = [
        leave(text, FAILOVER, is_open=False),
        leave(text, QOS0),
        leave(text, FAILOVER),
        leave(text, QOS0, is_open=False),
    ]
    found, _ = recovered(folder)
    assert [file.path for file in found.files] == [ended(path) for path in left]
    assert disk.age(folder.names.next(QOS0)) > disk.age(left[-1].name)


def test_foreign_files_are_told_and_left_alone(tmp_path, folder, leave, make_lines):
    """Whatever somebody else put there."""
    leave(b"".join(make_lines(1)))
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "failover_old.buf").write_bytes(b"")
    (tmp_path / "backup").mkdir()
    (tmp_path / "hold.json").write_bytes(b"{}")
    found, told = recovered(folder)
    assert found.foreign == ["backup", "failover_old.buf", "notes.txt"]
    assert (len(found.files), told) == (1, ["spool_foreign_files"])
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / "backup").is_dir()


def test_a_link_is_foreign(tmp_path, folder, leave):
    """Whatever its name: what it leads to is neither read nor removed, nor written to."""
    secret = tmp_path / "secret"
    secret.write_text("mine")
    for place in (tmp_path, tmp_path / disk.FAILED):
        place.mkdir(exist_ok=True)
        link = place / Names().next(FAILOVER).removesuffix(".tmp")
        link.symlink_to(secret)
        assert not disk.is_ours(link)
        with pytest.raises(OSError, match="symbolic"):
            disk.append(link, b"more")
    found, _ = recovered(folder)
    assert (found.files, found.failed) == ([], [])
    assert len(found.foreign) == 2
    assert secret.read_text() == "mine"


def test_files_that_grow_are_for_us_alone(tmp_path):
    """What operators did and what failed holds as much as what waits."""
    path = tmp_path / "actions.jsonl"
    before = os.umask(0)
    try:
        disk.append(path, b"{}\n")
    finally:
        os.umask(before)
    disk.append(path, b"[]\n")
    assert path.read_bytes() == b"{}\n[]\n"
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_a_crash_left_half_written_goes(tmp_path, folder, leave, make_lines):
    """What it was to replace is as it was; what only looks like it is somebody's own."""
    path = leave(b"".join(make_lines(1)), is_open=False)
    failed = tmp_path / "failed" / path.name
    failed.write_bytes(b"".join(make_lines(2)))
    (tmp_path / "hold.json").write_bytes(b"{}")
    for stays in (path, failed, tmp_path / "hold.json"):
        stays.with_name(f"{stays.name}.new").write_bytes(b"half")
    (tmp_path / ".probe-4711").write_bytes(b"")
    (tmp_path / "notes.new").write_bytes(b"mine")
    found, _ = recovered(folder)
    assert (len(found.files), found.failed, found.foreign) == (1, [failed], ["notes.new"])
    assert sorted(one.name for one in tmp_path.rglob("*") if one.is_file()) == sorted([
        path.name, path.name, "hold.json", "notes.new", "spool.lock",
    ])  # fmt: skip


def test_what_was_taken_out_stays_out(folder, leave, make_lines, numbers_in):
    """The events behind it keep their places, and those that are left are counted."""
    path = leave(b"".join(make_lines(1, 2, 3)), is_open=False)
    size = path.stat().st_size
    disk.erase(path, {0, 1})
    found, _ = recovered(folder)
    [file] = found.files
    assert (file.events, file.left, file.bytes) == (3, 1, size)
    assert [file.is_done(index) for index in range(3)] == [True, True, False]
    assert [number for number, _ in disk.numbered(path)] == [3]
    assert disk.oldest_ms(path) == 1_767_225_600_000
    disk.erase(path, {2})
    found, _ = recovered(folder)
    assert [(file.events, file.left) for file in found.files] == [(3, 0)]


def test_a_crash_within_an_erasure_leaves_a_damaged_line(leave, make_lines, monkeypatch):
    """Never an event, nor half of one, and its neighbours are whole."""
    lines = make_lines(1, 2, 3)
    path = leave(b"".join(lines), is_open=False)
    really = os.write

    def torn(number, text):
        if len(text) < 30:
            raise OSError(5, "Input/output error")
        return really(number, text[:-20])

    monkeypatch.setattr(os, "write", torn)
    with pytest.raises(OSError, match="Input/output"):
        disk.erase(path, {1})
    first, second, third = (text for some in disk.windows(path) for text in some)
    assert [first + b"\n", third + b"\n"] == [lines[0], lines[2]]
    assert not disk.is_blank(second)
    assert not event.is_whole(second)


def test_an_erasure_is_durable(leave, make_lines, monkeypatch):
    """A crash does not bring back what somebody threw away."""
    path, synced, really = leave(b"".join(make_lines(1, 2)), is_open=False), [], os.fdatasync

    def fdatasync(number: int) -> None:
        synced.append(Path(f"/proc/self/fd/{number}").readlink())
        really(number)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    disk.erase(path, {0})
    assert synced == [path]


def test_failed_lines_are_counted(tmp_path, folder, make_lines):
    """And their names are never given again."""
    given = Names()
    name = [given.next(FAILOVER) for _ in range(3)][-1].removesuffix(".tmp")
    (tmp_path / "failed" / name).write_bytes(b"".join(make_lines(1, 2)) + b" \ntorn")
    (tmp_path / "failed" / "notes.txt").write_bytes(b"a\nb\n")
    found, _ = recovered(folder)
    assert ([disk.count_events(path) for path in found.failed], found.foreign) == ([3], [])
    assert disk.age(folder.names.next(FAILOVER)) > disk.age(name)


def test_a_recovery_may_be_repeated(folder, leave, make_lines):
    """A crash in the middle of it changes nothing."""
    lines = make_lines(1, 2, 3)
    leave(lines[0] + lines[1] + b"torn")
    leave(lines[2])
    first, _ = recovered(folder)
    again, told = recovered(folder)
    assert told == []
    assert [(f.path, f.events, f.bytes) for f in again.files] == [
        (f.path, f.events, f.bytes) for f in first.files
    ]


# ---------------------------------------------------------------- files at a glance


def test_the_age_of_a_file_is_that_of_its_first_event(leave, make_lines):
    """If that cannot be read, it is that of the file."""
    path = leave(b"".join(make_lines(1, 2)))
    assert disk.oldest_ms(path) == 1_767_225_600_000
    path.write_bytes(b"garbage\n")
    os.utime(path, (5, 5))
    assert disk.oldest_ms(path) == 5_000


@pytest.mark.parametrize("size", [1, 7, 300, 1024 * 1024])
def test_windows_cut_at_line_ends(tmp_path, make_lines, size):
    """Whatever their size: every line once, whole, in order."""
    lines = make_lines(*range(20))
    path = tmp_path / "any.buf"
    path.write_bytes(b"".join(lines) + b"torn")
    texts, offset = [], 0
    while text := disk.read_window(path, offset, size):
        texts += disk.split(text)
        offset += len(text)
    assert texts == [line[:-1] for line in lines] + [b"torn"]
    assert disk.survey(path) == (len(texts), [])


@pytest.mark.parametrize("size", [1, 7, 300, 1024 * 1024])
def test_a_window_is_cut_into_parts_at_line_ends(monkeypatch, size):
    """However small: blank lines, the torn one at the end, and any byte in them."""
    monkeypatch.setattr(disk, "SPLIT_BYTES", size)
    text = b"one\n\ntw\x0co\r\n \n" + b"x" * 400 + b"\ntorn"
    for whole in (b"", b"\n\n", text):
        parts = list(disk.parts(whole))
        assert b"".join(parts) == whole
        assert [line for part in parts for line in disk.split(part)] == disk.split(whole)
        assert all(part.endswith(b"\n") for part in parts[:-1])


def test_lines_are_found_by_their_places(tmp_path, make_lines, monkeypatch):
    """In whatever window they stand; a place behind the end has none."""
    monkeypatch.setattr(disk, "WINDOW_BYTES", 64)
    path = tmp_path / "any.buf"
    lines = [line[:-1] for line in make_lines(*range(5))]
    path.write_bytes(b"\n".join(lines))
    assert disk.pick(path, {0, 3, 4, 5}) == {0: lines[0], 3: lines[3], 4: lines[4]}


def test_who_reads_a_file_reads_that_one(tmp_path, make_lines, monkeypatch):
    """Though a shorter one takes its place between two windows."""
    monkeypatch.setattr(disk, "WINDOW_BYTES", 64)
    path, lines = tmp_path / "any.buf", make_lines(*range(5))
    path.write_bytes(b"".join(lines))
    reading = disk.numbered(path)
    first = next(reading)
    disk.write_whole(path, b" \n" * 4 + lines[4])
    assert [first, *reading] == [(n, line[:-1]) for n, line in enumerate(lines, 1)]


def test_blank_lines_count_as_they_are_read(tmp_path):
    """A place in a file is the same for whoever counts and for whoever reads."""
    path = tmp_path / "any.buf"
    for text in (b"", b"\n", b"a", b"a\n", b"a\n\n", b"\n\na", b"a\r\nb\x0b\x85c\n", b"a\n  \nb"):
        path.write_bytes(text)
        lines = [line for some in disk.windows(path) for line in some]
        blank = [at for at, line in enumerate(lines) if not line.strip()]
        assert disk.survey(path) == (len(lines), blank), text
        assert [n - 1 for n, _ in disk.numbered(path)] == [
            at for at in range(len(lines)) if at not in blank
        ]


def test_an_event_is_finished_once(tmp_path):
    """Twice does not count twice."""
    file = BufferFile(tmp_path / "any.buf", 3, 10, 0)
    assert not file.is_done(1)
    assert (file.finish_all([1]), file.finish_all([1]), file.left) == (1, 0, 2)
    assert [file.is_done(index) for index in range(3)] == [False, True, False]


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    """The old one stays until the new one is durable."""
    path = tmp_path / "hold.json"
    disk.write_whole(path, b"old")

    def fails(_):
        assert path.read_bytes() == b"old"
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="Input/output"):
        disk.write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
