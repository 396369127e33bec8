"""Names of buffer files: they sort as they were given, whatever the clock does."""

import threading
import time
from pathlib import Path

import pytest

from spillway.spool import folder as disk
from spillway.spool import names
from spillway.spool.names import FAILOVER, QOS0, Names

UUID = "0190a000-0000-7abc-8123-456789abcdef"
FOREIGN = [
    "", "spool.lock", "hold.json", "failed", f"failover_{UUID}", f"failover_{UUID}.buf.new",
    f"failover_{UUID}.buf.tmp.tmp", f"failover_{UUID}.buf\n", f"x/failover_{UUID}.buf",
    f"../failover_{UUID}.buf", f"other_{UUID}.buf", f"failover_{UUID.upper()}.buf",
    f"failover_{UUID.replace('-7abc', '-4abc')}.buf", f"failover_{UUID.replace('-8', '-0')}.buf",
    f"failover_{UUID[1:]}.buf", "failover_x.buf",
]  # fmt: skip


@pytest.fixture
def clock(monkeypatch):
    """Sets the milliseconds of the wall clock."""

    def set_ms(ms: int) -> None:
        monkeypatch.setattr(time, "time_ns", lambda: ms * 1_000_000)

    return set_ms


def in_order(given: list[str]) -> bool:
    return given == sorted(set(given), key=disk.age)


def test_names_ascend_while_the_clock_goes_back(clock):
    """Order is by name, and a clock that is set back does not turn it round."""
    one, given = Names(), []
    for ms in (5_000, 6_000, 1, 6_000, 5_999, 6_001, 0, 7_000):
        clock(ms)
        given += [one.next(FAILOVER), one.next(QOS0)]
    assert in_order(given)


def test_names_ascend_within_a_millisecond(clock):
    """More of them than a millisecond has room for."""
    clock(1_000)
    one = Names()
    given = [one.next(FAILOVER) for _ in range(3 * 4096)]
    assert in_order(given)
    clock(1_003)
    assert in_order([*given, one.next(FAILOVER), one.next(FAILOVER)])


def test_names_of_a_new_run_sort_behind_what_exists(clock):
    """Also if the clock is years behind what wrote the files."""
    clock(9_000)
    before = Names()
    old = [before.next(FAILOVER) for _ in range(3)]
    clock(1)
    after = Names()
    for name in (old[2], old[0], "spool.lock", old[1].removesuffix(".tmp")):
        after.note(name)
    assert in_order([*old, after.next(QOS0), after.next(FAILOVER)])


def test_a_name_tells_its_stream_and_its_run(clock):
    """A source is a stream of a run: whoever numbered the events in a file."""
    clock(1_000)
    one, other = Names(), Names()
    given = [one.next(FAILOVER), one.next(FAILOVER), one.next(QOS0), other.next(FAILOVER)]
    assert [names.stream_of(name) for name in given] == [FAILOVER, FAILOVER, QOS0, FAILOVER]
    sources = [names.source_of(name) for name in given]
    assert sources[0] == sources[1] == names.source_of(given[0].removesuffix(".tmp"))
    assert len(set(sources)) == 3


def test_a_name_tells_whether_its_file_is_open():
    """New ones are; the last name of a file says that nothing more comes."""
    name = Names().next(FAILOVER)
    assert names.is_open(name)
    assert name.endswith(".buf.tmp")
    assert not names.is_open(name.removesuffix(".tmp"))
    assert names.stream_of(name.removesuffix(".tmp")) == FAILOVER


@pytest.mark.parametrize("name", FOREIGN)
def test_other_names_are_not_ours(name):
    """What we did not name is neither read, nor moved, nor does it push our names forward."""
    assert names.stream_of(name) is None
    assert names.source_of(name) == ""
    one = Names()
    one.note(name)
    assert one._last == (0, 0)


def test_both_writers_may_ask_at_once(monkeypatch):
    """Neither gives a name that the other's is already ahead of."""
    one, given, told = Names(), [], threading.Event()
    locked: list[bool] = []

    def time_ns() -> int:
        if not told.is_set():
            told.set()
            other = threading.Thread(target=lambda: given.extend(one.next(QOS0) for _ in range(2)))
            others.append(other)
            other.start()
            locked.append(one._lock.locked())
        return 1_000_000_000

    others: list[threading.Thread] = []
    monkeypatch.setattr(time, "time_ns", time_ns)
    first = one.next(FAILOVER)
    others[0].join()
    assert locked == [True]
    assert in_order([first, *given])


def test_a_path_of_ours_is_told_by_its_name(tmp_path):
    """Folders and links to nothing are not files, whatever they are called."""
    (tmp_path / f"failover_{UUID}.buf").mkdir()
    (tmp_path / f"qos0_{UUID}.buf").symlink_to(tmp_path / "nowhere")
    (tmp_path / f"qos0_{UUID}.buf.tmp").write_bytes(b"")
    ours, foreign = disk.entries(Path(tmp_path))
    assert [path.name for path in ours] == [f"qos0_{UUID}.buf.tmp"]
    assert foreign == [f"failover_{UUID}.buf", f"qos0_{UUID}.buf"]
