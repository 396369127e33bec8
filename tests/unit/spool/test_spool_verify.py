"""The check of buffer files: every damage is counted, with its line."""

import pytest

from spillway.spool import event, verify
from spillway.spool import folder as disk
from spillway.spool.names import FAILOVER, QOS0, Names


@pytest.fixture
def leave(tmp_path, make_event):
    """Leaves a complete file with these numbers; returns its path."""

    def leave(given: Names, *numbers: int, stream: str = FAILOVER):
        path = tmp_path / given.next(stream).removesuffix(".tmp")
        path.write_bytes(b"".join(event.lines([make_event(number) for number in numbers])))
        return path

    return leave


def checked(folder):
    """All buffer files of a folder, in their order."""
    last: dict[str, int] = {}
    return [verify.check_file(path, last) for path in disk.entries(folder)[0]]


def flip(path, line: int) -> None:
    """One bit in the middle of a line."""
    lines = path.read_bytes().split(b"\n")
    middle = len(lines[line - 1]) // 2
    changed = bytearray(lines[line - 1])
    changed[middle] ^= 1
    lines[line - 1] = bytes(changed)
    path.write_bytes(b"\n".join(lines))


def test_what_was_written_is_sound(tmp_path, leave):
    """Numbers go on from file to file; each source has its own."""
    one, next_run = Names(), Names()
    leave(one, 1, 2, 5)
    leave(one, 6, 9)
    last = leave(one, 3, 4, stream=QOS0)
    next_run.note(last.name)  # as every run does: within a millisecond the clock does not tell
    leave(next_run, 1, 2)
    found = checked(tmp_path)
    assert [check.events for check in found] == [3, 2, 2, 2]
    assert not any(check.damaged or check.out_of_order or check.problems for check in found)


def test_a_flipped_bit_is_found(tmp_path, leave):
    """In each line where there is one, and nowhere else."""
    path = leave(Names(), 1, 2, 3, 4)
    flip(path, 2)
    flip(path, 4)
    before = path.read_bytes()
    [check] = checked(tmp_path)
    assert (check.file, check.events, check.damaged, check.out_of_order) == (path.name, 4, 2, 0)
    assert [problem.partition(":")[0] for problem in check.problems] == ["line 2", "line 4"]
    assert path.read_bytes() == before


def test_a_number_out_of_order_is_found(tmp_path, leave):
    """Within a file and from one file to the next; a repeated one too."""
    one = Names()
    leave(one, 1, 5, 3, 6, 6)
    leave(one, 4, 7)
    first, second = checked(tmp_path)
    assert (first.out_of_order, first.problems) == (
        2,
        ["line 3: seq 3 comes after 5", "line 5: seq 6 comes after 6"],
    )
    assert (second.out_of_order, second.problems) == (1, ["line 1: seq 4 comes after 6"])


def test_a_blank_line_is_nothing(tmp_path, leave):
    """An event was taken out there: it is no damage, and the others keep their numbers."""
    path = leave(Names(), 1, 2, 3)
    disk.erase(path, {1})
    flip(path, 3)
    [check] = checked(tmp_path)
    assert (check.events, check.damaged, check.out_of_order) == (2, 1, 0)
    assert check.problems[0].startswith("line 3:")


def test_a_torn_line_is_damaged(tmp_path, leave):
    """Also the last one."""
    path = leave(Names(), 1, 2)
    path.write_bytes(path.read_bytes()[:-9])
    [check] = checked(tmp_path)
    assert (check.events, check.damaged) == (2, 1)


def test_all_problems_are_counted_and_the_first_told(tmp_path, leave):
    """A file that is all damage does not fill the screen."""
    path = leave(Names(), *range(1, 51))
    path.write_bytes(path.read_bytes().replace(b"orders", b"0rders"))
    [check] = checked(tmp_path)
    assert check.damaged == 50
    assert len(check.problems) == verify.PROBLEMS_MAX
    assert check.problems[-1].startswith("line 20:")


def test_lines_are_numbered_over_all_windows(tmp_path, leave, monkeypatch):
    """A line's number is that of an editor, however large the file."""
    path = leave(Names(), *range(1, 11))
    flip(path, 9)
    monkeypatch.setattr(disk, "WINDOW_BYTES", 64)
    [check] = checked(tmp_path)
    assert (check.events, [problem[:6] for problem in check.problems]) == (10, ["line 9"])


def test_a_line_without_a_number_is_in_no_order(tmp_path, leave):
    """A damaged line that was taken as it reads has none; the others keep their order."""
    leave(Names(), 0, 2, 0, 3, 2)
    [check] = checked(tmp_path)
    assert (check.events, check.damaged, check.out_of_order) == (5, 0, 1)
    assert check.problems == ["line 5: seq 2 comes after 3"]


def test_the_torn_end_of_an_open_file_is_told(tmp_path, leave):
    """How many bytes the next start will cut off; it is no damage."""
    path = leave(Names(), 1, 2)
    opened = path.rename(f"{path}.tmp")
    opened.write_bytes(opened.read_bytes() + b'{"torn')
    [check] = checked(tmp_path)
    assert (check.events, check.damaged) == (2, 0)
    [told] = check.problems
    assert "cuts 6 bytes off" in told
