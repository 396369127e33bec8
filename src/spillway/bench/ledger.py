"""Did each message arrive once, and in order? Counted after the run, from the ids as they came."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spillway.bench.orders import BATCH_MAX, BATCHES_MAX, sequence_of

_SPAN = BATCH_MAX * BATCHES_MAX


@dataclass(frozen=True, slots=True)
class Account:
    """What became of the messages that were stored."""

    lost: int
    duplicated: int
    out_of_order: int


@dataclass(frozen=True, slots=True)
class Stored:
    """The messages that must arrive: whole batches."""

    batches: Sequence[int]
    size: int


def account(stored: Stored, streams: Iterable[Sequence[int]]) -> Account:
    """Compare what was stored with what each consumer received."""
    seen = _Seen(stored)
    backwards = 0
    for stream in streams:
        seen.count(stream)
        backwards += steps_back(stream)
    return Account(lost=seen.missing(), duplicated=seen.repeated, out_of_order=backwards)


def steps_back(stream: Sequence[int]) -> int:
    """How often a message came after a later one of the same producer."""
    newest: dict[int, int] = {}
    back = 0
    for order_id in stream:
        producer, sequence = divmod(order_id, _SPAN)
        if sequence < newest.get(producer, -1):
            back += 1
        else:
            newest[producer] = sequence
    return back


class _Seen:
    def __init__(self, stored: Stored) -> None:
        self._stored = stored
        self._first = min(stored.batches, default=0)
        count = max(stored.batches, default=0) - self._first + 1
        self._marks = bytearray(count * stored.size)
        self.repeated = 0

    def count(self, stream: Sequence[int]) -> None:
        marks, first, size = self._marks, self._first, self._stored.size
        for order_id in stream:
            batch, position = sequence_of(order_id)
            place = (batch - first) * size + position
            if 0 <= place < len(marks):
                self.repeated += marks[place]
                marks[place] = 1

    def missing(self) -> int:
        size, first = self._stored.size, self._first
        return sum(
            size - self._marks.count(1, (batch - first) * size, (batch - first + 1) * size)
            for batch in self._stored.batches
        )
