"""Sets and maps over versions, held as inclusive ranges: a million settled messages are one pair.

`RangeSet` coalesces neighbours. `RangeMap` also carries a value for each range (attempts, a due
time) and coalesces neighbours of equal value.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from spillway.core.errors import invariant

Range = tuple[int, int]
V = TypeVar("V")


def coalesce(versions: Iterable[int]) -> list[Range]:
    """The fewest ranges that hold exactly these versions."""
    ranges: list[Range] = []
    start = end = 0
    for version in sorted(versions):
        if version == end + 1 and start:
            end = version
        elif version != end or not start:
            if start:
                ranges.append((start, end))
            start = end = version
    if start:
        ranges.append((start, end))
    return ranges


def merged(ranges: tuple[Range, ...]) -> tuple[Range, ...]:
    """The same versions in ascending order, each once; what is empty or below 1 is left out."""
    if len(ranges) == 1 and 1 <= ranges[0][0] <= ranges[0][1]:
        return ranges
    runs: list[Range] = []
    for start, end in sorted(ranges):
        if runs and start <= runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], max(end, runs[-1][1]))
        elif max(start, 1) <= end:
            runs.append((max(start, 1), end))
    return tuple(runs)


def are_ascending(ranges: Iterable[tuple[int, ...]]) -> bool:
    """Whether ranges (or runs) are not empty, in order, and apart from each other."""
    before = 0
    for run in ranges:
        if not before < run[0] <= run[1]:
            return False
        before = run[1]
    return True


def total(ranges: Iterable[Range]) -> int:
    """How many versions the ranges hold."""
    return sum(end - start + 1 for start, end in ranges)


class RangeSet:
    """A set of versions."""

    __slots__ = ("_ends", "_starts", "total")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self.total = 0
        for start, end in ranges:
            self.add(start, end)

    def add(self, start: int, end: int) -> None:
        """Add every version from `start` to `end`."""
        invariant(1 <= start <= end, f"range {start}..{end} is empty or below 1")
        low = bisect_left(self._ends, start - 1)
        high = bisect_right(self._starts, end + 1)
        if low < high:
            removed = sum(self._ends[i] - self._starts[i] + 1 for i in range(low, high))
            start = min(start, self._starts[low])
            end = max(end, self._ends[high - 1])
            self.total -= removed
        self._starts[low:high] = [start]
        self._ends[low:high] = [end]
        self.total += end - start + 1

    def discard(self, start: int, end: int) -> None:
        """Remove every version from `start` to `end` that is there."""
        low = bisect_left(self._ends, start)
        high = bisect_right(self._starts, end)
        if low >= high:
            return
        kept: list[Range] = []
        if self._starts[low] < start:
            kept.append((self._starts[low], start - 1))
        if self._ends[high - 1] > end:
            kept.append((end + 1, self._ends[high - 1]))
        removed = sum(self._ends[i] - self._starts[i] + 1 for i in range(low, high))
        self._starts[low:high] = [s for s, _ in kept]
        self._ends[low:high] = [e for _, e in kept]
        self.total += total(kept) - removed

    def __contains__(self, version: int) -> bool:
        i = bisect_left(self._ends, version)
        return i < len(self._starts) and self._starts[i] <= version

    def covers(self, start: int, end: int) -> bool:
        """Whether every version from `start` to `end` is there."""
        i = bisect_left(self._ends, start)
        return i < len(self._starts) and self._starts[i] <= start and self._ends[i] >= end

    def within(self, start: int, end: int) -> Iterator[Range]:
        """The ranges inside `start..end`, cut at its borders."""
        i = bisect_left(self._ends, start)
        while i < len(self._starts) and self._starts[i] <= end:
            yield max(start, self._starts[i]), min(end, self._ends[i])
            i += 1

    def gaps(self, start: int, end: int) -> Iterator[Range]:
        """The ranges inside `start..end` that are not there."""
        for low, high in self.within(start, end):
            if start < low:
                yield start, low - 1
            start = high + 1
        if start <= end:
            yield start, end

    @property
    def prefix_end(self) -> int:
        """The last version of the unbroken run that begins at 1; 0 without one."""
        return self._ends[0] if self._starts and self._starts[0] == 1 else 0

    @property
    def holes(self) -> int:
        """How many gaps lie below the highest version."""
        return len(self._starts) - (1 if self.prefix_end else 0)

    @property
    def first(self) -> int | None:
        """The lowest version."""
        return self._starts[0] if self._starts else None

    @property
    def last(self) -> int:
        """The highest version; 0 when empty."""
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[Range]:
        return iter(list(zip(self._starts, self._ends, strict=True)))

    def __len__(self) -> int:
        return len(self._starts)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, RangeSet)
            and self._starts == other._starts
            and self._ends == other._ends
        )

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"RangeSet({list(self)})"


class RangeMap(Generic[V]):
    """A value for each version of some ranges."""

    __slots__ = ("_ends", "_starts", "_values", "total")

    def __init__(self, runs: Iterable[tuple[int, int, V]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._values: list[V] = []
        self.total = 0
        for start, end, value in runs:
            self.put(start, end, value)

    def put(self, start: int, end: int, value: V) -> None:
        """Give the versions a value; none of them may have one yet."""
        invariant(1 <= start <= end, f"range {start}..{end} is empty or below 1")
        i = bisect_left(self._starts, start)
        free_before = i == 0 or self._ends[i - 1] < start
        free_after = i == len(self._starts) or self._starts[i] > end
        invariant(free_before and free_after, f"{start}..{end} is there already")
        self.total += end - start + 1
        joins_before = i > 0 and self._ends[i - 1] == start - 1 and self._values[i - 1] == value
        joins_after = (
            i < len(self._starts) and self._starts[i] == end + 1 and self._values[i] == value
        )
        low = i - 1 if joins_before else i
        high = i + 1 if joins_after else i
        if joins_before:
            start = self._starts[low]
        if joins_after:
            end = self._ends[i]
        self._starts[low:high] = [start]
        self._ends[low:high] = [end]
        self._values[low:high] = [value]

    def take(self, start: int, end: int) -> list[tuple[int, int, V]]:
        """Remove and return what lies inside `start..end`."""
        low = bisect_left(self._ends, start)
        high = bisect_right(self._starts, end)
        if low >= high:
            return []
        taken = list(self.within(start, end))
        head = (self._starts[low], start - 1, self._values[low])
        tail = (end + 1, self._ends[high - 1], self._values[high - 1])
        kept = [run for run in (head, tail) if run[0] <= run[1]]
        self._starts[low:high] = [run[0] for run in kept]
        self._ends[low:high] = [run[1] for run in kept]
        self._values[low:high] = [run[2] for run in kept]
        self.total -= sum(e - s + 1 for s, e, _ in taken)
        return taken

    def get(self, version: int) -> V | None:
        """The value of a version, if it has one."""
        i = bisect_left(self._ends, version)
        return self._values[i] if i < len(self._starts) and self._starts[i] <= version else None

    def __contains__(self, version: int) -> bool:
        i = bisect_left(self._ends, version)
        return i < len(self._starts) and self._starts[i] <= version

    def covered(self, start: int, end: int) -> int:
        """How many versions of `start..end` have a value."""
        return sum(e - s + 1 for s, e, _ in self.within(start, end))

    def within(self, start: int, end: int) -> Iterator[tuple[int, int, V]]:
        """The runs inside `start..end`, cut at its borders."""
        i = bisect_left(self._ends, start)
        while i < len(self._starts) and self._starts[i] <= end:
            yield max(start, self._starts[i]), min(end, self._ends[i]), self._values[i]
            i += 1

    @property
    def first(self) -> int | None:
        """The lowest version."""
        return self._starts[0] if self._starts else None

    @property
    def last(self) -> int:
        """The highest version; 0 when empty."""
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[tuple[int, int, V]]:
        return iter(list(zip(self._starts, self._ends, self._values, strict=True)))

    def __len__(self) -> int:
        return len(self._starts)

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RangeMap) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"RangeMap({list(self)})"
