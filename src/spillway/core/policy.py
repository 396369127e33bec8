"""The options of a queue that rule delivery, as the core sees them."""

from dataclasses import dataclass

LEASE_AGE_MS_MAX = 24 * 3_600_000
"""However often it is extended, a lease ends after a day: no looping holder keeps a message."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How a queue delivers, retries and gives up."""

    order: str = "none"
    max_attempts: int = 5
    on_exhausted: str = "park"
    visibility_ms: int = 30_000
    backoff_base_ms: int = 1_000
    backoff_cap_ms: int = 300_000
    max_ack_holes: int = 10_000
