"""Checks buffer files: every checksum, and that `seq` ascends within a source. Changes nothing."""

from pathlib import Path

import msgspec

from spillway.core.errors import DamagedLineError
from spillway.spool import event, names
from spillway.spool import folder as disk

PROBLEMS_MAX = 20


class FileCheck(msgspec.Struct):
    """What a check found in one file."""

    file: str
    events: int = 0
    damaged: int = 0
    out_of_order: int = 0
    problems: list[str] = msgspec.field(default_factory=list)
    """The first of them, with their lines."""

    def note(self, line: int, what: str) -> None:
        """One more problem."""
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(f"line {line}: {what}")


def check_file(path: Path, last: dict[str, int]) -> FileCheck:
    """One file; `last` is the highest number so far of each source."""
    found = FileCheck(path.name)
    source = names.source_of(path.name)
    torn = disk.torn_bytes(path)  # first: a broker that writes may give it another name meanwhile
    for line, text in disk.numbered(path):
        found.events += 1
        try:
            seq = event.read(text).seq
        except DamagedLineError as error:
            found.damaged += 1
            found.note(line, error.message)
            continue
        if seq <= 0:
            continue  # mended from a damaged line: it has no number, so it is in no order
        before = last.get(source, 0)
        if seq <= before:
            found.out_of_order += 1
            found.note(line, f"seq {seq} comes after {before}")
        last[source] = max(seq, before)
    if torn:  # no damage: nobody was answered for it
        tail = f"the last line has no end: the next start of the broker cuts {torn} bytes off"
        found.problems.append(tail)
    return found
