"""Ranges of versions, by hand; tests/property compares them with plain sets."""

import pytest

from spillway.core.errors import InvariantError
from spillway.core.ranges import RangeMap, RangeSet, are_ascending, coalesce, merged, total


def test_coalesce_makes_the_fewest_ranges():
    """Neighbours become one range, whatever their order, repeats included."""
    assert coalesce([5, 1, 2, 3, 7, 2]) == [(1, 3), (5, 5), (7, 7)]
    assert coalesce([]) == []


def test_merged_sorts_joins_and_drops_the_impossible():
    """Overlapping and neighbouring ranges become one; empty ones and versions below 1 go."""
    assert merged(((4, 6), (1, 2), (3, 3), (9, 8), (-3, 0))) == ((1, 6),)
    assert merged(((-2, 2),)) == ((1, 2),)
    assert merged(((3, 2),)) == ()
    assert merged(()) == ()


def test_ascending_ranges_are_apart_and_not_empty():
    """Ranges that touch are fine; those that overlap, go back or are empty are not."""
    assert are_ascending([(1, 2), (3, 3, "more")])
    for broken in ([(1, 2), (2, 3)], [(3, 4), (1, 2)], [(2, 1)], [(0, 1)]):
        assert not are_ascending(broken)


def test_adding_joins_neighbours():
    """A range that closes a gap leaves one range."""
    versions = RangeSet([(1, 2), (5, 6)])
    versions.add(3, 4)
    assert list(versions) == [(1, 6)]
    assert versions.total == 6


def test_adding_next_to_a_gap_keeps_the_gap():
    """A version that is not there is never bridged."""
    versions = RangeSet([(1, 2)])
    versions.add(4, 5)
    assert list(versions) == [(1, 2), (4, 5)]
    assert 3 not in versions


def test_discarding_cuts():
    """A range can be cut in the middle, at its ends, and away."""
    versions = RangeSet([(1, 9)])
    versions.discard(4, 5)
    versions.discard(9, 20)
    assert list(versions) == [(1, 3), (6, 8)]
    versions.discard(1, 8)
    assert (len(versions), versions.total, versions.first, versions.last) == (0, 0, None, 0)


def test_prefix_and_holes():
    """The unbroken run from 1, and how many gaps lie below the highest version."""
    versions = RangeSet([(2, 3), (5, 5)])
    assert (versions.prefix_end, versions.holes) == (0, 2)
    versions.add(1, 1)
    assert (versions.prefix_end, versions.holes) == (3, 1)


def test_within_and_gaps_share_a_span_between_them():
    """What is there and what is not, cut at the borders asked for."""
    versions = RangeSet([(2, 4), (7, 9)])
    assert list(versions.within(3, 7)) == [(3, 4), (7, 7)]
    assert list(versions.gaps(1, 10)) == [(1, 1), (5, 6), (10, 10)]
    assert list(versions.gaps(5, 4)) == []


def test_empty_ranges_are_refused():
    """A range that ends before it starts, or starts below 1, is a bug of the caller."""
    for start, end in ((2, 1), (0, 3)):
        with pytest.raises(InvariantError):
            RangeSet().add(start, end)
        with pytest.raises(InvariantError):
            RangeMap().put(start, end, "x")


def test_a_map_joins_equal_neighbours_only():
    """Runs of one value are one run; another value starts another."""
    values = RangeMap([(1, 2, "a"), (4, 4, "a"), (5, 5, "b")])
    values.put(3, 3, "a")
    assert list(values) == [(1, 4, "a"), (5, 5, "b")]


def test_a_map_refuses_a_second_value():
    """A version has one value until it is taken."""
    values = RangeMap([(1, 3, "a")])
    with pytest.raises(InvariantError):
        values.put(3, 4, "b")


def test_taking_returns_what_was_there():
    """Taking cuts runs at the borders and gives the pieces back."""
    values = RangeMap([(1, 4, "a"), (6, 8, "b")])
    assert values.take(3, 6) == [(3, 4, "a"), (6, 6, "b")]
    assert list(values) == [(1, 2, "a"), (7, 8, "b")]
    assert values.take(3, 6) == []
    assert (values.total, values.get(7), values.get(3), values.covered(2, 7)) == (4, "b", None, 2)


def test_total_counts_versions():
    """The total of ranges is the number of versions in them."""
    assert total([(1, 3), (5, 5)]) == 4
