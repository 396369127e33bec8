"""Percentiles, windows and warm-up of the bench."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.bench.samples import Samples, measured_from, percentile


@pytest.mark.parametrize(
    ("quantile", "expected"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.0, 1), (0.001, 1)]
)
def test_percentile_is_the_nearest_rank(quantile, expected):
    """A percentile is a sample that was seen, never a mean of two."""
    assert percentile(range(1, 101), quantile) == expected


def test_percentile_of_nothing_is_not_a_number():
    """Without samples there is no percentile to report."""
    assert math.isnan(percentile([], 0.5))


@given(
    st.lists(st.floats(0, 1e6), min_size=1),
    st.floats(0, 1),
)
def test_enough_samples_do_not_exceed_the_percentile(values, quantile):
    """At least the asked share of samples is not above it."""
    ordered = sorted(values)
    found = percentile(ordered, quantile)
    assert sum(value <= found for value in ordered) >= quantile * len(ordered)


def test_one_slow_request_in_fifty_shows_in_p99():
    """Percentiles come from all samples, so a rare stall is not averaged away."""
    samples = Samples()
    for i in range(100):
        samples.add(ended_at=i / 100, took=1.0 if i % 50 == 49 else 0.001, messages=1)
    spread = samples.spread(-1, 1)
    assert (spread.p50_ms, spread.p99_ms, spread.max_ms) == (1.0, 1000.0, 1000.0)


def test_only_what_ended_in_the_window_counts():
    """The warm-up and what ended too late are left out of rate and latency."""
    samples = Samples()
    for ended_at, took in [(0.5, 9.0), (1.5, 0.1), (2.0, 0.1), (2.5, 9.0)]:
        samples.add(ended_at, took, 10)
    spread = samples.spread(1.0, 2.0)
    assert (spread.messages, spread.messages_per_s, spread.max_ms) == (20, 20.0, 100.0)


def test_empty_polls_are_no_latency():
    """A poll that brought nothing says nothing about how long a message takes."""
    samples = Samples()
    samples.add(1.0, 5.0, 0)
    samples.add(1.0, 0.1, 3)
    assert samples.spread(0, 2).max_ms == 100.0
    assert samples.last_end() == 1.0


@pytest.mark.parametrize(("end", "expected"), [(10.0, 1.0), (2.0, 0.5), (0.0, 0.0)])
def test_warm_up_is_never_more_than_a_quarter(end, expected):
    """A short run keeps most of its samples."""
    assert measured_from(0.0, end, 1.0) == expected
