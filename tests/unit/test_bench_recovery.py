"""The recovery scenario with many lanes, before a broker that only hands out what the test says."""

from itertools import cycle
from types import SimpleNamespace

import pytest

from spillway.bench import recovery
from spillway.bench.workload import workload


@pytest.fixture
def run_of(monkeypatch):
    """A run whose loads are noted instead of driven, over a database that says what it is told."""

    def make(partitions, lanes=0):
        database = SimpleNamespace(
            control_rows=lambda: 7, lanes_with_control_rows=lambda: lanes, close=lambda: None
        )
        monkeypatch.setattr(recovery, "Database", lambda _: database)
        monkeypatch.setattr(recovery.control, "waiting", lambda *_: 1)
        run = SimpleNamespace(
            workload=workload("recovery", partitions=partitions),
            site=SimpleNamespace(address=None, database_url="here"),
            queue="orders",
            facts={},
            loads=[],
            say=lambda _: None,
            make_queue=lambda **_: None,
            fill=lambda _: None,
        )
        run.drive = lambda **plan: run.loads.append(plan)
        return run

    return make


@pytest.mark.parametrize(("partitions", "own"), [(1, True), (64, True), (65, False), (1000, False)])
def test_every_lane_gets_a_control_log(run_of, partitions, own):
    """A lane for each connection, or the wheel for all: with own lanes 936 of 1000 had nothing."""
    run = run_of(partitions, lanes=partitions)
    recovery._prepare(run)
    (load,) = run.loads
    assert load["own_partitions"] is own
    assert load["consumers"] == min(64, partitions)
    assert run.facts["lanes_at_kill"] == partitions


def test_all_lanes_are_leased_from(run_of, monkeypatch):
    """It ends with the lane that comes last, not with the number of leases."""
    run = run_of(3)
    run.facts["lanes_at_kill"] = 3
    wheel = cycle([["a"], ["b"], ["a"], ["a"], ["c"]])
    turns = []

    def lease(address, queue, *, count):
        turns.append((queue, count))
        return [{"partition": name} for name in next(wheel)]

    monkeypatch.setattr(recovery.control, "lease", lease)
    recovery._all_lanes_at(run)
    assert turns == [("orders", 1)] * 5


def test_lanes_that_were_empty_are_not_waited_for(run_of, monkeypatch):
    """A run so small that a lane had nothing left at the kill ends all the same."""
    run = run_of(3)
    run.facts["lanes_at_kill"] = 3
    answers = iter([[{"partition": "a"}], []])
    monkeypatch.setattr(recovery.control, "lease", lambda *_, **__: next(answers))
    recovery._all_lanes_at(run)
    assert next(answers, None) is None
