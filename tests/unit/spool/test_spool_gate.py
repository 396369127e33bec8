"""The gate: who has something waiting in files."""

import itertools

import pytest

from spillway.spool import gate as gates
from spillway.spool.event import Address
from spillway.spool.gate import Gate

A, B = Address("default", "orders", "a"), Address("default", "orders", "b")
ANY = Address("default", "orders", None)
ELSEWHERE = Address("default", "returns", "a")


@pytest.fixture
def gate(monkeypatch):
    """A gate that knows its files; each address has a bucket of its own."""
    seen = itertools.count()
    buckets: dict[Address, int] = {}
    monkeypatch.setattr(gates, "_bucket", lambda a: buckets.setdefault(a, next(seen)))
    gate = Gate()
    gate.is_known = True
    return gate


def test_everything_is_held_until_the_files_were_looked_at():
    """Anything may have something waiting."""
    gate = Gate()
    assert gate.holds(A)
    assert gate.holds(Address("other", "any", None))
    gate.is_known = True
    assert not gate.holds(A)


def test_an_order_is_held_until_the_last_of_it_is_gone(gate):
    """And no other one."""
    gate.add(A, 3)
    assert [gate.holds(a) for a in (A, B, ELSEWHERE, ANY)] == [True, False, False, False]
    gate.add(A, -2)
    assert gate.holds(A)
    gate.add(A, -1)
    assert not gate.holds(A)


def test_an_unknown_partition_holds_the_whole_queue(gate):
    """It may turn out to be any of its lanes."""
    gate.add(ANY)
    assert [gate.holds(a) for a in (A, B, ELSEWHERE, ANY)] == [True, True, False, True]
    gate.add(ANY, -1)
    assert not gate.holds(A)


def test_orders_that_share_a_bucket_wait_for_each_other(gate, monkeypatch):
    """Never wrong: none is let through while its own events wait."""
    monkeypatch.setattr(gates, "_bucket", lambda _: 7)
    gate.add(A)
    gate.add(ELSEWHERE)
    gate.add(A, -1)
    assert gate.holds(A)
    gate.add(ELSEWHERE, -1)
    assert not gate.holds(A)


def test_orders_are_told_apart_by_all_of_their_address():
    """Organisation, queue and partition."""
    gate = Gate()
    gate.is_known = True
    gate.add(A)
    others = [Address(f"o{n}", "orders", "a") for n in range(100)]
    others += [Address("default", f"q{n}", "a") for n in range(100)]
    others += [Address("default", "orders", f"p{n}") for n in range(100)]
    assert sum(gate.holds(other) for other in others) < 10
