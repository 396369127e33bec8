"""The metrics of the spool. They need no PostgreSQL: they matter most while it is away."""

from collections import Counter
from collections.abc import Callable

from spillway.broker.breaker import Breaker
from spillway.broker.owner import Owner
from spillway.broker.replay import Replay
from spillway.broker.revival import Revival
from spillway.broker.spoolkeeping import Spoolkeeping
from spillway.core.metrics import OTHER, Family, Sample, family
from spillway.spool.spool import Spool

QUEUES_SHOWN_MAX = 100
"""Most queues with a series of their own; the rest is summed up as `other`."""


class SpoolMetrics:
    """Reads the spool and who works on it."""

    def __init__(
        self,
        spool: Spool,
        replay: Replay,
        revival: Revival,
        breaker: Breaker,
        spoolkeeping: Spoolkeeping,
        *,
        owner: Owner,
        is_connected: Callable[[], bool],
    ) -> None:
        self._spool = spool
        self._replay = replay
        self._revival = revival
        self._owner = owner
        self._breaker = breaker
        self._spoolkeeping = spoolkeeping
        self._is_connected = is_connected

    async def collect(self) -> list[Family]:
        """Every family of the spool."""
        values = self._gauges() | self._totals()
        values["disk_free_bytes"] = await self._spool.disk_free()
        families = [
            family(f"spillway_spool_{name}", [Sample({}, value)]) for name, value in values.items()
        ]
        return [*families, self._by_queue()]

    def _gauges(self) -> dict[str, float]:
        spool = self._spool
        return {
            "pending": spool.pending,
            "failed": spool.quarantined,
            "db_healthy": int(self._is_connected()),
            "bytes": spool.bytes,
            "files": spool.file_count,
            "oldest_seconds": spool.oldest_s,
            "replay_rate": self._replay.rate,
            "breaker_open": int(self._breaker.is_open),
            "held": int(spool.hold is not None),
            "lanes_held": len(self._replay.held),
            "owner_unreachable": int(self._owner.trouble is not None),
            "qos0_unwritten": spool.unwritten,
        }

    def _totals(self) -> dict[str, float]:
        spool = self._spool
        return {
            "accepted_total": spool.accepted,
            "flushed_total": self._replay.replayed,
            "refused_total": spool.refused,
            "revived_total": self._revival.revived,
            "discarded_total": self._spoolkeeping.discarded,
            "breaker_trips_total": self._breaker.trips,
            "qos0_lost_total": spool.lost,
        }

    def _by_queue(self) -> Family:
        waiting = Counter({queue: n for queue, n in self._spool.by_queue.items() if n > 0})
        shown = waiting.most_common(QUEUES_SHOWN_MAX)
        samples = [Sample({"org": org, "queue": queue}, n) for (org, queue), n in shown]
        if len(waiting) > len(shown):
            rest = waiting.total() - sum(n for _, n in shown)
            samples.append(Sample({"org": "", "queue": OTHER}, rest))
        return family("spillway_spool_queue_events", samples)
