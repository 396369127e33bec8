"""Did each message arrive once, and in order? Counted after the run, from the ids as they came."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spillway.bench.orders import BATCH_MAX, BATCHES_MAX, sequence_of

_SPAN = BATCH_MAX * BATCHES_MAX


@dataclass(frozen=True, slots=True)
class Account:
    """What became of the messages that were accepted."""

    lost: int
    duplicated: int
    out_of_order: int


@dataclass(frozen=True, slots=True)
class Accepted:
    """Messages that must arrive: whole batches of one size."""

    batches: Sequence[int]
    size: int


def account(accepted: Sequence[Accepted], streams: Iterable[Sequence[int]]) -> Account:
    """Compare what was accepted with what each consumer received."""
    seen = _Seen(accepted)
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
    def __init__(self, accepted: Sequence[Accepted]) -> None:
        self._accepted = [part for part in accepted if part.batches]
        self._first = min((min(part.batches) for part in self._accepted), default=0)
        last = max((max(part.batches) for part in self._accepted), default=0)
        self._width = max((part.size for part in self._accepted), default=1)
        self._marks = bytearray((last - self._first + 1) * self._width)
        self.repeated = 0

    def count(self, stream: Sequence[int]) -> None:
        marks, first, width = self._marks, self._first, self._width
        for order_id in stream:
            batch, position = sequence_of(order_id)
            place = (batch - first) * width + position
            if 0 <= place < len(marks):
                self.repeated += marks[place]
                marks[place] = 1

    def missing(self) -> int:
        return sum(
            part.size - self._marks.count(1, at, at + part.size)
            for part in self._accepted
            for batch in part.batches
            for at in [(batch - self._first) * self._width]
        )
