"""The report of a scenario: its fixed fields, its median, its table."""

import json

import pytest

from spillway.bench.report import Report, as_json, headline, median, row

ALWAYS = {
    "scenario", "messages", "seconds", "messages_per_s", "p50_ms", "p99_ms", "settings", "baseline",
}  # fmt: skip


def report(rate=1000.0, **changes):
    fields = {"scenario": "produce", "messages": 10, "seconds": 1.0, "messages_per_s": rate}
    fields |= {"p50_ms": None, "p99_ms": None, "settings": {"batch": 5}, "baseline": None}
    return Report(**{**fields, **changes})


def test_the_fixed_fields_are_always_there():
    """A reader finds null where nothing was measured, not a missing field."""
    assert set(json.loads(as_json(report()))) == ALWAYS


def test_other_fields_come_where_a_scenario_has_them():
    """Zero lost messages is a finding; no count of them is none."""
    found = json.loads(as_json(report(lost=0)))
    assert set(found) == ALWAYS | {"lost"}
    assert found["lost"] == 0


def test_the_median_run_names_all_rates():
    """The run in the middle is reported whole, with the rates of the others."""
    runs = [report(rate, messages=int(rate)) for rate in (30.0, 10.0, 20.0)]
    middle = median(runs)
    assert middle.messages == 20
    assert middle.settings == {
        "batch": 5, "repeat": 3, "rates": [30.0, 10.0, 20.0], "rates_median": 20.0
    }  # fmt: skip


def test_a_single_run_is_reported_as_it_is():
    """Without --repeat there is nothing to add."""
    assert median([report()]) == report()


@pytest.mark.parametrize(
    ("changes", "figure"),
    [
        ({}, 1000.0),
        ({"first_lease_s": 2.5}, 2.5),
        ({"wal_bytes_per_message": 99.0}, 99.0),
        ({"scenario": "latency", "lease_p99_ms": 7.0}, 7.0),
        ({"scenario": "roundtrip", "lease_p99_ms": 7.0}, 1000.0),
    ],
)
def test_runs_are_ranked_by_what_the_scenario_is_about(changes, figure):
    """The median of a recovery is that of its time, not of a rate."""
    assert headline(report(**changes)) == figure


def test_the_table_compares_with_the_baseline():
    """People see the share of plain PostgreSQL at a glance, or a dash."""
    assert row(report(baseline=4000.0))[:3] == ("produce, batch 5", "1,000", "0.25")
    assert row(report())[2] == "-"
