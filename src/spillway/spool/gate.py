"""The gate: which orders have spooled messages, so that a new push must stand behind them.

It counts in a fixed number of buckets, so a million partitions cost what one does. Two orders that
share a bucket wait for each other, which is never wrong, only now and then not needed.
"""

from array import array

from spillway.spool.event import Address

BUCKETS = 1 << 16


class Gate:
    """Spooled messages by bucket."""

    def __init__(self) -> None:
        self._counts = array("q", bytes(8 * BUCKETS))
        self.is_known = False
        """Until every file was looked at, anything may have something waiting."""

    def add(self, address: Address, count: int = 1) -> None:
        """So many more wait, or fewer."""
        self._counts[_bucket(address)] += count

    def clear(self) -> None:
        """Nothing waits any more, whatever was counted."""
        self._counts = array("q", bytes(8 * BUCKETS))

    def holds(self, address: Address) -> bool:
        """Whether a push to there has to stand behind others."""
        if not self.is_known:
            return True
        if self._counts[_bucket(address)] > 0:
            return True
        return self._counts[_bucket(Address(address.org, address.queue, None))] > 0


def _bucket(address: Address) -> int:
    return hash((address.org, address.queue, address.partition)) & (BUCKETS - 1)
