"""What is counted when events are decided."""

import pytest

from spillway.core import commands as cmd

GROUP = "default"
GIVEN_UP = {"park": "parked", "block": "blocked", "drop": "dropped"}


def lease(lone, entry, count: int, visibility_ms: int = 1_000):
    return lone.shard.handle(entry, GROUP, cmd.LeaseMessages(count, visibility_ms=visibility_ms))


def begin(lone, **options):
    """A lane of three messages with a group on it."""
    entry = lone.lane(tail=3, backoff_base_ms=0, **options)
    lone.shard.handle(entry, GROUP, cmd.CreateGroup())
    return entry


def counts(lone, entry, since_ms: int = 2_000) -> dict[str, int]:
    """What the clock does after so long, counted."""
    lone.shard._drafts.seal()
    lone.clock.ms += since_ms
    lone.shard.sweep(entry)
    return {name: number for (_, name), number in lone.draft.counts.items()}


@pytest.mark.parametrize("rule", GIVEN_UP)
def test_a_lease_that_expires_on_its_last_attempt_counts_as_expired(lone, rule):
    """One lease of three messages; what became of them is counted beside it."""
    entry = begin(lone, max_attempts=1, on_exhausted=rule)
    lease(lone, entry, 3)
    assert counts(lone, entry) == {GIVEN_UP[rule]: 3, "expired_leases": 1}


@pytest.mark.parametrize("rule", GIVEN_UP)
def test_a_lease_that_ends_in_two_events_counts_once(lone, rule):
    """One of its messages was on its last attempt, two get another."""
    entry = begin(lone, max_attempts=2, on_exhausted=rule)
    lease(lone, entry, 1)
    assert counts(lone, entry) == {"redelivered": 1, "expired_leases": 1}
    lease(lone, entry, 3)
    assert counts(lone, entry) == {GIVEN_UP[rule]: 1, "redelivered": 2, "expired_leases": 1}


def test_every_lease_that_expires_counts(lone):
    """Three end in one sweep, each by itself."""
    entry = begin(lone, max_attempts=1)
    for _ in range(3):
        lease(lone, entry, 1)
    assert counts(lone, entry) == {"parked": 3, "expired_leases": 3}


@pytest.mark.parametrize("rule", GIVEN_UP)
def test_giving_up_for_another_reason_is_no_expiry(lone, rule):
    """The consumer said no in time."""
    entry = begin(lone, max_attempts=1, on_exhausted=rule)
    held = lease(lone, entry, 3)
    lone.shard._drafts.seal()
    lone.shard.handle(entry, GROUP, cmd.Nack(held.lease_id, ((1, 3),)))
    assert lone.draft.counts == {(1, GIVEN_UP[rule]): 3}
