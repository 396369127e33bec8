"""Memory and processor time of the processes under measurement, from /proc."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Process:
    """One reading of a process."""

    pid: int
    parent: int
    cpu_s: float
    rss_mb: float


def read(pid: int) -> Process | None:
    """None when it is gone (or this is no Linux)."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The name stands in brackets and may contain anything.
    values = stat[stat.rindex(")") + 2 :].split()
    own_and_reaped = sum(int(ticks) for ticks in values[11:15])
    pages = int(values[21])
    return Process(
        pid=pid,
        parent=int(values[1]),
        cpu_s=own_and_reaped / _TICKS_PER_S,
        rss_mb=pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
    )


def tree(root: int, *, without: int | None = None) -> Iterator[Process]:
    """The process and its descendants, but not those below `without`."""
    readings = [reading for pid in _pids() if (reading := read(pid)) is not None]
    members = {root}
    # A child may come before its parent in /proc: repeat until nothing is added.
    while grown := {r.pid for r in readings if r.parent in members} - members - {without}:
        members |= grown
    return (reading for reading in readings if reading.pid in members)


def _pids() -> list[int]:
    try:
        return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
    except OSError:
        return []
