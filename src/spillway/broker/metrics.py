"""The metrics of this broker, read from its state while the scrape is answered.

Nothing is asked of PostgreSQL: what is in memory is counted now, what is not was counted by the
census. A deleted queue is not there to be read, so its series vanish.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from spillway.broker.census import Census, LaneCount, Tally
from spillway.broker.counters import COUNTED, Counters
from spillway.broker.dispatch import Dispatch
from spillway.broker.facts import Facts, QueueFacts
from spillway.broker.shard import Shard
from spillway.broker.spoolmetrics import SpoolMetrics
from spillway.core.metrics import OTHER, Family, Sample, family
from spillway.core.state import BLOCKED, DEFERRED, LEASED, PARKED, READY
from spillway.warm.memory import Budget

BY = ("group", "partition")
SERIES_MAX = 2_000
"""Most (queue, partition, group) with series of their own; the rest is summed up as `other`."""

Labels = tuple[tuple[str, str], ...]
OTHER_LABELS: Labels = (("org", ""), ("queue", OTHER))


@dataclass(slots=True)
class Sum:
    """Lanes added up for one series."""

    tally: Tally = field(default_factory=Tally)
    tail: int = 0


GAUGES: dict[str, Callable[[Tally], float]] = {
    "spillway_queue_depth": lambda tally: tally.depth,
    "spillway_queue_ready": lambda tally: tally.counts[READY],
    "spillway_queue_deferred": lambda tally: tally.counts[DEFERRED],
    "spillway_queue_in_flight": lambda tally: tally.counts[LEASED],
    "spillway_queue_blocked": lambda tally: tally.counts[BLOCKED],
    "spillway_queue_parked": lambda tally: tally.counts[PARKED],
    "spillway_queue_ack_hole_ranges": lambda tally: tally.holes,
}
TOTALS = (
    "spillway_checkpoints_written_total",
    "spillway_checkpoint_fallbacks_total",
    "spillway_queue_snapshot_oversize_skipped_total",
    "spillway_pruned_messages_total",
)
"""What the duties count themselves."""


class Sums:
    """Lanes added up, one by one, into the gauges of the queues."""

    def __init__(self, labels: Mapping[int, Labels], by: frozenset[str]) -> None:
        self.backlog: Counter[int] = Counter()
        self._labels = labels
        self._by = by
        self._by_group: dict[Labels, Sum] = {}
        self._by_lane: dict[Labels, Sum] = {one: Sum() for one in labels.values()}
        if not by:
            # A queue nobody has pushed to is empty, not absent.
            self._by_group = {one: Sum() for one in labels.values()}

    def add(self, count: LaneCount) -> None:
        """A lane."""
        queue_id, partition = count.lane.queue.queue_id, count.lane.partition
        own = self._labels.get(queue_id, OTHER_LABELS)
        self._sum(self._by_lane, own, partition=partition).tail += count.tail
        for group, tally in count.groups.items():
            self._sum(self._by_group, own, partition=partition, group=group).tally.add(tally)
        self.backlog[queue_id] += count.backlog

    def _sum(self, sums: dict[Labels, Sum], own: Labels, **facts: str) -> Sum:
        wanted = _with(own, self._by, **facts) if self._by else own
        at = _bounded(sums, own, wanted)
        known = sums.get(at)
        if known is None:
            known = sums[at] = Sum()
        return known

    def gauges(self, now_ms: int) -> Iterator[Family]:
        """The families."""
        by_group = self._by_group
        for name, value in GAUGES.items():
            yield family(name, [Sample(dict(at), value(s.tally)) for at, s in by_group.items()])
        ages = [Sample(dict(at), _age_s(s.tally, now_ms)) for at, s in by_group.items()]
        yield family("spillway_queue_oldest_ready_seconds", ages)
        tails = [Sample(dict(at), lane.tail) for at, lane in self._by_lane.items()]
        yield family("spillway_queue_tail", tails)


class Metrics:
    """Collects families."""

    def __init__(
        self,
        *,
        facts: Facts,
        shards: list[Shard],
        dispatch: Dispatch,
        budgets: Mapping[int, Budget],
        census: Census,
        counters: Counters,
        totals: Mapping[str, Callable[[], int]],
        spool: SpoolMetrics,
        now_ms: Callable[[], int],
    ) -> None:
        self._facts = facts
        self._shards = shards
        self._dispatch = dispatch
        self._budgets = budgets
        self._census = census
        self._counters = counters
        self._totals = totals
        self._spool = spool
        self._now_ms = now_ms
        self._walking = asyncio.Lock()

    async def collect(self, by: Iterable[str] = ()) -> list[Family]:
        """Every family. `by` adds the labels `group`, `partition` or both to the queues' gauges."""
        # One walk at a time: two would take twice as long of each turn of the loop.
        async with self._walking:
            queues = {queue.queue_id: queue for queue in self._facts.cached_queues()}
            shown = self._counters.show(queues)
            labels = {i: _labels(queue) for i, queue in queues.items() if i in shown}
            sums = Sums(labels, frozenset(by))
            async for some in self._census.counted():
                for count in some:
                    sums.add(count)
        return [
            *sums.gauges(self._now_ms()),
            *self._queue_facts(sums.backlog, queues, labels),
            *self._queue_counters(labels, has_other=len(labels) < len(queues)),
            *self._broker_families(),
            *await self._spool.collect(),
        ]

    # ------------------------------------------------------------ queues

    def _queue_facts(
        self,
        backlog: Mapping[int, int],
        queues: Mapping[int, QueueFacts],
        labels: Mapping[int, Labels],
    ) -> Iterator[Family]:
        warm = {i: self._budgets[i].used if i in self._budgets else 0 for i in queues}
        cold = {i: max(0, backlog.get(i, 0) - warm[i]) for i in queues}
        waiting = {i: sum(line.waiting for line in self._dispatch.lines(i)) for i in queues}
        yield _by_queue("spillway_warm_messages", warm, labels)
        yield _by_queue("spillway_cold_messages", cold, labels)
        yield _by_queue("spillway_waiting_consumers", waiting, labels)

    def _queue_counters(self, labels: Mapping[int, Labels], *, has_other: bool) -> Iterator[Family]:
        for name in COUNTED:
            samples = [
                Sample(dict(at), self._counters.of_queue(queue_id, name))
                for queue_id, at in labels.items()
            ]
            if has_other:
                samples.append(Sample(dict(OTHER_LABELS), self._counters.other(name)))
            yield family(f"spillway_queue_{name}_total", samples)

    # ------------------------------------------------------------ the broker

    def _broker_families(self) -> Iterator[Family]:
        yield self._by_shard("spillway_shard_owned", lambda shard: int(shard.owned))
        yield self._by_shard("spillway_shard_epoch", lambda shard: shard.epoch)
        yield self._by_shard("spillway_draft_messages", lambda shard: shard.draft_messages)
        yield self._by_shard("spillway_lanes_in_memory", lambda shard: len(shard.entries))
        yield family("spillway_lanes_uncounted", [Sample({}, self._census.uncounted)])
        yield family("spillway_commit_seconds", self._counters.commit_seconds.samples())
        yield family("spillway_commit_messages", self._counters.commit_messages.samples())
        for name in TOTALS:
            total = self._totals.get(name)
            yield family(name, [Sample({}, 0 if total is None else total())])

    def _by_shard(self, name: str, value: Callable[[Shard], float]) -> Family:
        samples = [Sample({"shard": str(s.shard_id)}, value(s)) for s in self._shards]
        return family(name, samples)


def _age_s(tally: Tally, now_ms: int) -> float:
    oldest_ms = tally.oldest_ready_ms
    return 0.0 if oldest_ms is None else max(0, now_ms - oldest_ms) / 1000


def _labels(queue: QueueFacts) -> Labels:
    return (("org", queue.org), ("queue", queue.name))


def _with(own: Labels, by: frozenset[str], **facts: str) -> Labels:
    """More labels, where asked for; `other` stays one series."""
    if own == OTHER_LABELS:
        return own
    return (*own, *((name, value) for name, value in sorted(facts.items()) if name in by))


def _bounded(sums: Mapping[Labels, Sum], own: Labels, wanted: Labels) -> Labels:
    """The labels wanted, or those of the rest once there are too many."""
    if wanted in sums or len(sums) < SERIES_MAX:
        return wanted
    return (*own, *((name, OTHER) for name, _ in wanted[len(own) :]))


def _by_queue(name: str, values: Mapping[int, float], labels: Mapping[int, Labels]) -> Family:
    sums: dict[Labels, float] = {}
    for queue_id, value in values.items():
        at = labels.get(queue_id, OTHER_LABELS)
        sums[at] = sums.get(at, 0) + value
    return family(name, [Sample(dict(at), value) for at, value in sums.items()])
