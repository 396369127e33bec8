"""The course of one load: what producers and consumers report to, and when it is over."""

import asyncio
import time
from array import array
from collections import Counter

from spillway.bench.arrivals import Arrivals, ClosedLoop, OpenLoop
from spillway.bench.orders import sequence_of
from spillway.bench.plan import LoadPlan, Push
from spillway.bench.samples import Samples

_ERRORS_MAX = 200


class LoadFailedError(Exception):
    """The broker refuses so much that the measurement means nothing."""


class Course:
    """Counts, samples and the end. All times are of one monotonic clock."""

    def __init__(self, plan: LoadPlan) -> None:
        self.plan = plan
        self.pushes = Samples()
        self.settles = Samples()
        self.deliveries = Samples()
        self.accepted_batches = array("q")
        self.streams = [array("q") for _ in range(plan.consumers)]
        self.errors: Counter[str] = Counter()
        self.diary: list[Push] = []
        self.accepted = self.buffered = self.duplicates_refused = self.leased = self.acked = 0
        self.in_flight = 0
        self.open = OpenLoop(plan.first_batch, plan.rate, plan.batches) if plan.rate else None
        self.arrivals: Arrivals = self.open or ClosedLoop(plan.first_batch, plan.batches)
        self.start = 0.0
        self.progress_at = 0.0
        self.pushing = plan.producers > 0
        self.complete = False
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def begin(self) -> None:
        self.start = self.progress_at = time.perf_counter()
        self.arrivals.begin(self.start)

    @property
    def wanted(self) -> int:
        """How many acks end the course, as far as is known now."""
        return sum(part.messages for part in self.plan.waiting) or self.accepted

    @property
    def more_to_lease(self) -> bool:
        return self.pushing or self.leased < self.wanted

    def pushed(self, batch: int, due_at: float, repeated: int, buffered: int) -> None:
        now = self.progress_at = time.perf_counter()
        if self.plan.diary:
            self.diary.append(Push(due_at, now, buffered > 0))
        self.pushes.add(now, now - due_at, self.plan.batch)
        self.accepted_batches.append(batch)
        self.accepted += self.plan.batch
        self.buffered += buffered
        self.duplicates_refused += repeated
        self.in_flight -= 1
        if len(self.accepted_batches) == self.plan.batches:
            self.stop_pushing()
        elif not self.pushing:
            self._end_when_done()

    def received(self, stream: int, order_ids: list[int]) -> None:
        self.leased += len(order_ids)
        self.streams[stream].extend(order_ids)
        if self.open is not None:
            self._delivered(order_ids)

    def settled(self, sent_at: float, acked: int) -> None:
        now = time.perf_counter()
        self.settles.add(now, now - sent_at, acked)
        if acked:
            self.acked += acked
            self.progress_at = now
            self._end_when_done()

    def refused(self, status: int, body: bytes) -> None:
        self.errors[f"{status} {body[:200].decode(errors='replace')}"] += 1
        if self.errors.total() > _ERRORS_MAX:
            worst, times = self.errors.most_common(1)[0]
            self.fail(LoadFailedError(f"the broker refused {times} requests: {worst}"))

    def fail(self, error: Exception) -> None:
        if not self.over.done():
            self.over.set_exception(error)

    def stop_pushing(self) -> None:
        self.arrivals.stop()
        self.pushing = False
        self._end_when_done()

    def finish(self) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def _delivered(self, order_ids: list[int]) -> None:
        assert self.open is not None
        now = time.perf_counter()
        for order_id in order_ids:
            due_at = self.open.due_at(sequence_of(order_id)[0])
            self.deliveries.add(now, now - due_at, 1)

    def _end_when_done(self) -> None:
        if self.pushing or self.in_flight:
            return
        if self.plan.consumers and self.acked < self.wanted:
            return
        self.complete = True
        self.finish()
