"""The options of a queue, as the core sees them."""

from spillway.core.policy import LEASE_AGE_MS_MAX, Policy


def test_defaults_are_the_documented_ones():
    """An unconfigured queue gives parallel leases, five attempts and a dead letter."""
    policy = Policy()
    assert (policy.order, policy.max_attempts, policy.on_exhausted) == ("none", 5, "park")
    assert policy.visibility_ms < LEASE_AGE_MS_MAX


def test_a_policy_is_a_value():
    """Equal options are equal policies, so a change is easy to see."""
    assert Policy(max_attempts=3) == Policy(max_attempts=3) != Policy()
