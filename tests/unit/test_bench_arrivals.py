"""When the bench sends: closed loop, and open loop by schedule."""

from spillway.bench.arrivals import ClosedLoop, OpenLoop


class Sender:
    """A producer that remembers what it was told to send."""

    def __init__(self):
        self.sent = []

    def push(self, number, due_at):
        self.sent.append((number, due_at))


def open_loop(rate=100.0, batches=10, start=50.0):
    loop = OpenLoop(0, rate, batches)
    loop._start = start
    return loop


def test_closed_loop_sends_each_batch_once_and_ends():
    """Batches are numbered without gaps, and after the last one nothing is sent."""
    loop, sender = ClosedLoop(7, 3), Sender()
    for _ in range(5):
        loop.ready(sender.push)
    assert [number for number, _ in sender.sent] == [7, 8, 9]


def test_closed_loop_stops_when_told():
    """The end of the time is the end of the pushes."""
    loop, sender = ClosedLoop(0, 100), Sender()
    loop.ready(sender.push)
    loop.stop()
    loop.ready(sender.push)
    assert len(sender.sent) == 1


def test_schedule_is_fixed_by_the_rate():
    """Batch k is due k / rate after the start, whatever happened before."""
    loop = open_loop()
    assert [loop.due_at(k) for k in (0, 1, 9)] == [50.0, 50.01, 50.09]


def test_a_batch_that_waits_for_a_free_producer_keeps_its_due_time():
    """A slow broker cannot hide its delay by slowing the sender down (coordinated omission)."""
    loop, sender = open_loop(), Sender()
    loop.ready(sender.push)
    for number in range(3):
        loop.arrive(number)
    assert sender.sent == [(0, 50.0)]
    loop.ready(sender.push)  # the first reply came late: the waiting ones go out now
    loop.ready(sender.push)
    assert sender.sent == [(0, 50.0), (1, 50.01), (2, 50.02)]


def test_latency_of_a_stall_counts_for_every_batch_that_was_due():
    """One stall of a second makes a hundred late batches at 100/s, not one."""
    loop, latencies = open_loop(batches=100), []
    answered_at = 51.0
    for number in range(100):
        loop.arrive(number)
    for _ in range(100):
        loop.ready(lambda _, due_at: latencies.append(answered_at - due_at))
    assert sum(latency > 0.5 for latency in latencies) == 50


def test_nothing_is_sent_after_the_stop():
    """Arrivals and waiting batches are dropped once the course is over."""
    loop, sender = open_loop(), Sender()
    loop.arrive(0)
    loop.stop()
    loop.ready(sender.push)
    loop.arrive(1)
    assert sender.sent == []
