"""Planted bugs of the spool: the machine that plays it beside a list must find each of them."""

import importlib.util
from pathlib import Path

import pytest

from spillway.spool import event, names
from spillway.spool import folder as disk
from spillway.spool.folder import BufferFile, Folder
from spillway.spool.quarantine import Quarantine
from spillway.spool.spool import Spool

MACHINE = Path(__file__).parents[1] / "property/test_spool_machine.py"
EXAMPLES = 400
BUGS = {}


def bug(plant):
    """A bug, named by its function, described by its docstring."""
    BUGS[plant.__name__] = plant
    return plant


@bug
def count_nothing_after_a_crash(patch):
    """The files of earlier runs are known, and what waits in them is not."""

    async def index(self):
        await honest(self)
        self.pending = sum(opened.events for opened in self._open.values())

    honest = Spool.index
    patch.setattr(Spool, "index", index)


@bug
def cut_damaged_lines_off(patch):
    """What stands behind the last whole line is taken for a torn tail."""

    def ended(file, size):
        lines = disk.os.pread(file.fileno(), size, 0).splitlines(keepends=True)
        while lines and not event.is_whole(lines[-1]):
            lines.pop()
        return sum(map(len, lines))

    patch.setattr(disk, "_ended", ended)


@bug
def keep_the_torn_tail(patch):
    """A half line stays at the end of a file that is complete."""
    patch.setattr(disk, "_ended", lambda file, size: size)


@bug
def shorten_one_event_too_many(patch):
    """The first event that waits goes with those that are done."""

    def shorten(self, file):
        done = bytearray(file.done)
        done[done.index(0)] = 1
        return honest(self, BufferFile(file.path, file.events, file.bytes, file.oldest_ms, done))

    honest = Folder.shorten
    patch.setattr(Folder, "shorten", shorten)


@bug
def move_the_places_up(patch):
    """A shorter file has no blank lines: what is left stands at other places."""

    def write_whole(path, text, *rest):
        honest(path, b"".join(t for t in text.splitlines(keepends=True) if t.strip()), *rest)

    honest = disk.write_whole
    patch.setattr(disk, "write_whole", write_whole)


@bug
def leave_the_bytes_of_a_shorter_file(patch):
    """The room of what went stays taken."""

    async def shorten(self, file):
        before = self.bytes
        await honest(self, file)
        self.bytes = before

    honest = Spool._shorten
    patch.setattr(Spool, "_shorten", shorten)


@bug
def finish_twice(patch):
    """An event that is done is done again."""

    def finish_all(self, indexes):
        honest(self, indexes)
        return len(indexes)

    honest = BufferFile.finish_all
    patch.setattr(BufferFile, "finish_all", finish_all)


@bug
def count_twice_what_is_discarded(patch):
    """A discard takes what was done before along."""

    async def discard(self, file):
        done, file.left = file.events - file.left, file.events
        return await honest(self, file) - done

    honest = Spool.discard
    patch.setattr(Spool, "discard", discard)


@bug
def forget_who_is_aside(patch):
    """After a crash an event is set aside once more."""
    patch.setattr(Quarantine, "marks", lambda self, file: set())


@bug
def begin_names_anew(patch):
    """A new run does not look at the names that are there, and its clock is behind."""
    patch.setattr(names.Names, "note", lambda self, name: None)
    patch.setattr(names.time, "time_ns", iter(range(10**18, 0, -(10**9))).__next__)


@bug
def hold_nobody(patch):
    """The gate forgets one of those that wait."""

    def count(self, stream, address, count):
        honest(self, stream, address, count - (count > 1))
        self.by_queue[address.org, address.queue] += count > 1

    honest = Spool._count
    patch.setattr(Spool, "_count", count)


@pytest.fixture
def play():
    """Plays so many walks through the spool; each of them is the same every time."""
    spec = importlib.util.spec_from_file_location(MACHINE.stem, MACHINE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.play


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name, play, monkeypatch):
    """The machine fails, at the latest in the last of so many walks."""
    BUGS[name](monkeypatch)
    with pytest.raises(Exception):  # noqa: B017, PT011 (an assertion, or what the bug makes of it)
        play(EXAMPLES, shrink=False)
