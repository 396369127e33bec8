"""`failed/`: nothing leaves it unnamed, and a damaged line is shown as one."""

import os
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from spillway.core.errors import SpoolFileNotFoundError
from spillway.spool import event
from spillway.spool import folder as disk
from spillway.spool.event import DamagedLine, FailedEvent, Trouble
from spillway.spool.names import FAILOVER, Names
from spillway.spool.quarantine import Quarantine

AT = datetime(2026, 1, 1, tzinfo=UTC)
TROUBLE = Trouble("queue_missing", "no such queue", "make it")


@pytest.fixture
def failed(make_event):
    """Makes failed events of numbers."""
    return lambda *numbers: [event.failed(make_event(n), TROUBLE, AT) for n in numbers]


@pytest.fixture
def quarantine(tmp_path):
    """A quarantine of its own."""
    return Quarantine(tmp_path)


@pytest.fixture
def name() -> str:
    """A name that a buffer file may have."""
    return Names().next(FAILOVER).removesuffix(".tmp")


def seqs(records) -> list[int | bytes]:
    """What stands where: the number, the damaged bytes, None where something was."""
    return [
        record.damaged if isinstance(record, DamagedLine) else record and record.seq
        for record in records
    ]


def test_what_is_added_is_read(quarantine, failed, name):
    """In its order, with its reason, over several calls."""
    quarantine.add(name, failed(1, 2))
    quarantine.add(name, [*failed(3), DamagedLine(b"\xff\n", TROUBLE, AT)])
    records = quarantine.read(name)
    assert seqs(records) == [1, 2, 3, b"\xff\n"]
    assert {record.error.code for record in records} == {"queue_missing"}
    assert isinstance(records[0], FailedEvent)


def test_records_are_told_from_each_other(quarantine, failed, name):
    """By their numbers, and damaged ones by their bytes; no file has none."""
    assert quarantine.marks(name) == set()
    quarantine.add(name, [*failed(1, 2), DamagedLine(b"\xff", TROUBLE, AT)])
    assert quarantine.marks(name) == {1, 2, b"\xff"}


def test_files_are_named_oldest_first(tmp_path, quarantine, failed):
    """And only ours."""
    given = Names()
    older, newer = (given.next(FAILOVER).removesuffix(".tmp") for _ in range(2))
    quarantine.add(newer, failed(2))
    quarantine.add(older, failed(1))
    (tmp_path / "notes.txt").write_text("mine")
    assert quarantine.files() == [older, newer]


def test_no_folder_yet_is_nothing_failed(tmp_path):
    """Nothing is made by looking."""
    assert Quarantine(tmp_path / "failed").files() == []
    assert not (tmp_path / "failed").exists()


def test_adding_is_durable(tmp_path, quarantine, failed, name, monkeypatch):
    """The file is fsynced each time, its folder when the file is new."""
    synced, really = [], os.fsync

    def fsync(number: int) -> None:
        synced.append(Path(f"/proc/self/fd/{number}").readlink())
        really(number)

    monkeypatch.setattr(os, "fsync", fsync)
    quarantine.add(name, failed(1))
    assert synced == [tmp_path / name, tmp_path]
    quarantine.add(name, failed(2))
    assert synced[2:] == [tmp_path / name]


def test_records_are_changed_and_removed_by_their_place(quarantine, failed, name):
    """What is not named stays as it was."""
    quarantine.add(name, failed(1, 2, 3))

    def mended(index, record):
        if index == 0:
            return None
        return msgspec.structs.replace(record, seq=9) if index == 1 else record

    assert quarantine.change(name, mended) == 1
    assert seqs(quarantine.read(name)) == [None, 9, 3]
    assert quarantine.change(name, lambda _, record: record) == 0
    quarantine.add(name, failed(4))
    assert seqs(quarantine.read(name)) == [None, 9, 3, 4]


def test_a_file_goes_with_its_last_record(tmp_path, quarantine, failed, name):
    """And nothing else stays of it."""
    quarantine.add(name, failed(1, 2))
    assert quarantine.change(name, lambda *_: None) == 2
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SpoolFileNotFoundError):
        quarantine.read(name)


def test_a_record_is_erased_by_its_place(tmp_path, quarantine, failed, name):
    """The others keep theirs, so that a second look names the same; the file goes with the last."""
    quarantine.add(name, failed(1, 2, 3))
    size = (tmp_path / name).stat().st_size
    quarantine.erase(name, 1)
    assert seqs(quarantine.read(name)) == [1, None, 3]
    assert ((tmp_path / name).stat().st_size, disk.count_events(tmp_path / name)) == (size, 2)
    quarantine.erase(name, 0)
    quarantine.erase(name, 2)
    assert list(tmp_path.iterdir()) == []


def test_a_whole_file_is_removed(tmp_path, quarantine, failed, name):
    """One of ours, and nothing else."""
    quarantine.add(name, failed(1, 2))
    quarantine.remove(name)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SpoolFileNotFoundError):
        quarantine.remove(name)


@pytest.mark.parametrize("missing", ["nothing.buf", "../secrets", "/etc/passwd", ""])
def test_other_files_are_not_read(quarantine, missing):
    """A name comes from outside: it names one of ours, or nothing."""
    with pytest.raises(SpoolFileNotFoundError):
        quarantine.read(missing)


def test_a_damaged_line_is_shown_and_kept(tmp_path, quarantine, failed, name):
    """All its bytes, also when the lines around it are changed, until a person removes it."""
    quarantine.add(name, failed(1, 2, 3))
    path = tmp_path / name
    damaged = path.read_bytes().split(b"\n")[1].replace(b"orders", b"0rd\xffrs")
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([lines[0], damaged, *lines[2:]]))
    records = quarantine.read(name)
    assert seqs(records) == [1, damaged, 3]
    assert records[1].error.code == "damaged_line"
    assert quarantine.change(name, lambda i, record: None if i == 0 else record) == 1
    again = quarantine.read(name)
    assert seqs(again) == [None, damaged, 3]
    assert quarantine.change(name, lambda _, record: record) == 0
    assert quarantine.read(name) == again


def test_a_torn_tail_takes_no_new_event_with_it(tmp_path, quarantine, failed, name):
    """A crash tore the last line: it stays damaged, and what is added next is whole."""
    quarantine.add(name, failed(1, 2))
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:-20])
    torn = path.read_bytes().split(b"\n")[1]
    quarantine.add(name, failed(3))
    assert seqs(quarantine.read(name)) == [1, torn, 3]
    assert disk.count_events(path) == 3


def test_an_event_that_a_person_wrote_without_a_line_end_stays_whole(
    tmp_path, quarantine, failed, name
):
    """Editors forget it now and then."""
    quarantine.add(name, failed(1))
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:-1])
    quarantine.add(name, failed(2))
    assert seqs(quarantine.read(name)) == [1, 2]


def test_a_failed_write_leaves_nothing(tmp_path, quarantine, failed, name, monkeypatch):
    """Or what is tried again would stand there twice."""
    quarantine.add(name, failed(1))
    before = (tmp_path / name).read_bytes()
    with monkeypatch.context() as patch:
        really = os.write

        def half(number, text):
            if len(text) < 200:
                raise OSError(28, "No space left on device")
            return really(number, text[: len(text) // 2])

        patch.setattr(os, "write", half)
        with pytest.raises(OSError, match="No space left"):
            quarantine.add(name, failed(2, 3))
    assert (tmp_path / name).read_bytes() == before
    quarantine.add(name, failed(2, 3))
    assert seqs(quarantine.read(name)) == [1, 2, 3]


def test_an_empty_file_holds_nothing(tmp_path, quarantine, name):
    """A crash may leave one: it counts as it reads."""
    (tmp_path / name).write_bytes(b"")
    assert quarantine.read(name) == []
    assert disk.count_events(tmp_path / name) == 0
    assert quarantine.change(name, lambda _, record: record) == 0
    assert quarantine.files() == []
