"""The conservation law, checked: what a lane and its groups must agree on, from facts alone."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from spillway.core.errors import SpillwayError
from spillway.core.lane import Lane
from spillway.core.policy import Policy
from spillway.core.ranges import RangeSet, total
from spillway.core.state import STATES, GroupState, Moment, counts, validate

DIFFERENCES_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it must be."""

    what: str
    expected: int
    found: int


@dataclass(frozen=True, slots=True)
class Difference:
    """A finding and its place. `group` is empty where the lane itself is wrong."""

    queue: str
    partition: str
    group: str
    what: str
    expected: int
    found: int


@dataclass(slots=True)
class Audit:
    """What was looked at, and every difference."""

    lanes: int = 0
    groups: int = 0
    messages: int = 0
    ungrouped: int = 0
    """Of lanes that no group reads: they have no state, so no total counts them."""
    totals: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STATES, 0))
    differences: list[Difference] = field(default_factory=list)
    left_out: int = 0

    @property
    def balanced(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    def note(self, place: tuple[str, str, str], findings: Iterable[Finding]) -> None:
        """Keep the findings of a place; beyond a thousand they are only counted."""
        for finding in findings:
            if len(self.differences) < DIFFERENCES_MAX:
                differs = Difference(*place, finding.what, finding.expected, finding.found)
                self.differences.append(differs)
            else:
                self.left_out += 1

    def add(self, totals: dict[str, int]) -> None:
        """Count a group in."""
        self.groups += 1
        for state, count in totals.items():
            self.totals[state] += count


class LaneCensus:
    """The batches of a lane in version order: dense from the pruned ones to the tail."""

    __slots__ = ("findings", "lane", "present")

    def __init__(self, pruned_to: int) -> None:
        self.lane = Lane(tail=pruned_to, pruned_to=pruned_to)
        self.present = RangeSet()
        self.findings: list[Finding] = []

    def add(self, base: int, count: int, lengths: Iterable[int | None]) -> None:
        """Take the next batch. Columns may be null, but not of another length."""
        due = self.lane.tail + 1
        if base != due:
            what = "versions are missing" if base > due else "versions are there twice"
            self.findings.append(Finding(f"{what} from", due, base))
        for length in lengths:
            if length is not None and length != count:
                what = f"batch at version {base} has a column of another length"
                self.findings.append(Finding(what, count, length))
        if count > 0:
            self.present.add(base, base + count - 1)
            self.lane.tail = max(self.lane.tail, base + count - 1)


def audit_group(
    census: LaneCensus, state: GroupState, dead_versions: RangeSet, now_ms: int
) -> tuple[dict[str, int], list[Finding]]:
    """How many messages are in each state for a group, and what does not add up."""
    tail = census.lane.tail
    totals = counts(state, Moment(now_ms, Policy(), census.lane))
    findings = [
        *_unlawful(tail, sum(totals.values())),
        *_misplaced(state, tail),
        *_unburied(state.parked, dead_versions),
        *_vanished(census, state),
    ]
    return totals, findings


def _unlawful(tail: int, found: int) -> Iterator[Finding]:
    if found != tail:
        yield Finding("the states do not add up to the tail", tail, found)


def _misplaced(state: GroupState, tail: int) -> Iterator[Finding]:
    try:
        validate(state, tail)
    except SpillwayError as error:
        yield Finding(f"the state contradicts itself: {error.message}", 0, 1)


def _unburied(parked: RangeSet, dead: RangeSet) -> Iterator[Finding]:
    missing = total(gap for low, high in parked for gap in dead.gaps(low, high))
    surplus = total(gap for low, high in dead for gap in parked.gaps(low, high))
    if missing:
        yield Finding("parked messages without a dead letter", 0, missing)
    if surplus:
        yield Finding("dead letters of messages that are not parked", 0, surplus)


def _vanished(census: LaneCensus, state: GroupState) -> Iterator[Finding]:
    lost = total(
        gap
        for low, high in state.settled.gaps(1, census.lane.tail)
        for gap in census.present.gaps(low, high)
    )
    if lost:
        yield Finding("unsettled messages that the log does not hold", 0, lost)
