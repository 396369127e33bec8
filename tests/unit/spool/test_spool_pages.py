"""The files of a spool as people read them, without a broker."""

import pytest

from spillway.broker import spoolpages
from spillway.broker.spoolpages import SpoolPages
from spillway.core.errors import SpoolFileNotFoundError
from spillway.spool import event
from spillway.spool import folder as disk
from spillway.spool.folder import BufferFile
from spillway.spool.names import FAILOVER, QOS0, Names
from spillway.spool.quarantine import Quarantine


@pytest.fixture
def leave(tmp_path, make_lines):
    """Leaves a file of these numbers; returns its name."""
    given = Names()
    (tmp_path / disk.FAILED).mkdir()

    def leave(*numbers, stream=FAILOVER, is_open=False):
        name = given.next(stream)
        name = name if is_open else name.removesuffix(".tmp")
        (tmp_path / name).write_bytes(b"".join(make_lines(*numbers)))
        return name

    return leave


@pytest.fixture
def pages(tmp_path) -> SpoolPages:
    """The pages of the test's folder."""
    return SpoolPages(tmp_path)


def names_of(reply):
    return [file.file for file in reply.files]


def test_files_come_in_pages_oldest_first(pages, leave):
    """Of both streams; the last page says no more."""
    left = [leave(1), leave(2, stream=QOS0), leave(3), leave(4, is_open=True)]
    first = pages.files("waiting", after=None, limit=3)
    assert (names_of(first), first.next) == (left[:3], left[2])
    rest = pages.files("waiting", after=first.next, limit=3)
    assert (names_of(rest), rest.next, rest.files[0].state) == (left[3:], None, "open")
    whole = pages.files("waiting", after=None, limit=4)
    assert (len(whole.files), whole.next) == (4, None)
    assert [file.stream for file in whole.files] == ["failover", "qos0", "failover", "failover"]


def test_what_a_broker_knows_need_not_be_counted(tmp_path, leave):
    """And only the broker knows what is done."""
    name = leave(1, 2, 3)
    known = BufferFile(tmp_path / name, 3, 99, 0)
    known.finish_all([1])
    pages = SpoolPages(tmp_path, lambda: {name: known})
    [file] = pages.files("waiting", after=None, limit=1).files
    assert (file.events, file.left, file.bytes, file.oldest_at[:4]) == (3, 2, 99, "1970")
    events = pages.events(name, "waiting", from_line=1, limit=9).events
    assert [one.done for one in events] == [False, True, False]


def test_events_come_in_pages_by_line(pages, leave):
    """The next page begins where this one ends."""
    name = leave(1, 2, 3)
    first = pages.events(name, "waiting", from_line=1, limit=2)
    assert ([one.line for one in first.events], first.next) == ([1, 2], 3)
    rest = pages.events(name, "waiting", from_line=3, limit=2)
    assert ([one.seq for one in rest.events], rest.next) == ([3], None)


def test_a_page_of_large_events_is_short(pages, leave, monkeypatch):
    """One at least, however large."""
    name = leave(1, 2, 3)
    monkeypatch.setattr(spoolpages, "PAGE_BYTES", 1)
    page = pages.events(name, "waiting", from_line=1, limit=9)
    assert (len(page.events), page.next) == (1, 2)


def test_taken_out_lines_leave_the_numbers_of_the_others(pages, leave, tmp_path):
    """They are not shown, and not counted."""
    name = leave(1, 2, 3)
    disk.erase(tmp_path / name, {1})
    events = pages.events(name, "waiting", from_line=1, limit=9).events
    assert [(one.line, one.seq) for one in events] == [(1, 1), (3, 3)]
    assert pages.files("waiting", after=None, limit=1).files[0].events == 2


def test_a_damaged_line_shows_what_is_left_of_it(pages, leave, tmp_path):
    """Its text in any case, its fields if it still reads as an event."""
    name = leave(1, 2)
    path = tmp_path / name
    first, second = path.read_bytes().splitlines()
    path.write_bytes(first.replace(b'"payload":1', b'"payload":9') + b"\n\xff" + second + b"\n")
    reads, broken = pages.events(name, "waiting", from_line=1, limit=9).events
    assert (reads.error.code, bytes(reads.payload)) == ("damaged_line", b"9")
    assert '"payload":9' in reads.damaged
    assert (broken.queue, broken.damaged[:4]) == (None, "\\xff")


def test_a_failed_event_shows_why(pages, leave, tmp_path, make_event):
    """With the moment; a damaged line that was set aside too."""
    name = leave(1)
    trouble = event.Trouble("queue_not_found", "no", "make it")
    at = make_event(1).accepted_at
    records = [event.failed(make_event(1), trouble, at), event.DamagedLine(b"{", trouble, at)]
    Quarantine(tmp_path / disk.FAILED).add(name, records)
    one, other = pages.events(name, "failed", from_line=1, limit=9).events
    assert (one.error.code, one.error.hint, one.seq) == ("queue_not_found", "make it", 1)
    assert one.failed_at == "2026-01-01T00:00:00.000Z"
    assert (other.damaged, other.failed_at, other.queue) == ("{", one.failed_at, None)


def test_a_file_that_goes_meanwhile_is_left_out(pages, leave, tmp_path, monkeypatch):
    """Of the list and of the check; whoever asks for it by name hears that it is gone."""
    gone, kept = leave(1), leave(2)
    found = disk.entries(tmp_path)
    (tmp_path / gone).unlink()
    monkeypatch.setattr(disk, "entries", lambda folder: found if folder == tmp_path else ([], []))
    assert names_of(pages.files("waiting", after=None, limit=9)) == [kept]
    assert [check.file for check in pages.verify().files] == [kept]
    with pytest.raises(SpoolFileNotFoundError, match="no file"):
        pages.verify(gone)
    with pytest.raises(SpoolFileNotFoundError):
        pages.events(gone, "waiting", from_line=1, limit=1)


@pytest.mark.parametrize("name", ["", "x", "../secret", "/etc/passwd", "spool.lock", "failed"])
def test_only_ours_are_shown(pages, leave, name):
    """A name comes from outside."""
    leave(1)
    for place in ("waiting", "failed"):
        with pytest.raises(SpoolFileNotFoundError):
            pages.events(name, place, from_line=1, limit=1)


def test_a_name_does_not_lead_out_of_the_folder(pages, leave, tmp_path):
    """Nor to the file of another spool, though that has a name like ours."""
    name = leave(1)
    (tmp_path / disk.FAILED / name).write_bytes(b"{}")
    for path in (f"failed/{name}", f"failed/../{name}", str(tmp_path / name), f"./{name}"):
        assert not pages.waits(path)
        with pytest.raises(SpoolFileNotFoundError):
            pages.events(path, "waiting", from_line=1, limit=1)
        with pytest.raises(SpoolFileNotFoundError):
            Quarantine(tmp_path).read(path)


def test_a_link_is_not_shown(pages, leave, tmp_path):
    """Though it has the name of a buffer file: it leads out of the spool."""
    secret = leave(1)
    link = tmp_path / secret.replace("failover", "qos0")
    link.symlink_to(tmp_path / secret)
    with pytest.raises(SpoolFileNotFoundError):
        pages.events(link.name, "waiting", from_line=1, limit=1)
    assert names_of(pages.files("waiting", after=None, limit=9)) == [secret]


def test_order_is_checked_over_files_that_wait_and_not_in_failed(pages, leave, tmp_path):
    """What is mended stands anywhere."""
    leave(5, 6)
    leave(4)
    (tmp_path / disk.FAILED / leave(9, 8)).write_bytes((tmp_path / leave(3, 2)).read_bytes())
    found = pages.verify()
    told = [(check.state, check.out_of_order) for check in found.files]
    assert told == [("waiting", 0), ("waiting", 1), ("waiting", 1), ("waiting", 2), ("failed", 0)]
    assert not found.sound
