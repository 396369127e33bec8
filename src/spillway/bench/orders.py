"""The messages of the load: orders as JSON of fixed width, renumbered in place.

Encoding a request for each batch would cost the load more CPU than the broker spends on it. So a
connection keeps one encoded request, and only the digits that differ from its last batch are
written, for all items of the batch at once, by strided slice assignment.

An order id is `1PPPBBBBBBBIIII`: the producer, the batch, the position in the batch. It fits a
double, names its message, and tells whether two orders of one producer came in order.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass

BATCH_MAX = 10_000
BATCHES_MAX = 10**7
PRODUCERS_MAX = 1000
PAYLOAD_BYTES_MIN = 64

_SPAN = BATCH_MAX * BATCHES_MAX
_ALPHABET = "ABCDEFGHJKMNPQRSTVWXYZ"
_WORDS = ("call", "before", "noon", "leave", "with", "neighbour", "gift", "wrap", "fragile", "none")
_NOTE = ',"note":"'


@dataclass(frozen=True, slots=True)
class Order:
    """Which message an order id names."""

    producer: int
    batch: int
    position: int

    @property
    def id(self) -> int:
        return ((1000 + self.producer) * BATCHES_MAX + self.batch) * BATCH_MAX + self.position


def sequence_of(order_id: int) -> tuple[int, int]:
    """(batch, position): what grows with every message of one producer."""
    return divmod(order_id % _SPAN, BATCH_MAX)


def payload(order: Order, size: int, chance: random.Random) -> bytes:
    """A JSON order of exactly `size` bytes."""
    head = f'{{"order_id":{order.id}'
    for field in _fields(chance):
        if len(head) + len(field) + len(_NOTE) + 2 <= size:
            head += field
    room = size - len(head) - len(_NOTE) - 2
    note = " ".join(chance.choices(_WORDS, k=room // 4 + 1))[:room]
    return f'{head}{_NOTE}{note}"}}'.encode()


def _fields(chance: random.Random) -> tuple[str, ...]:
    return (
        f',"customer":{chance.randrange(10_000, 100_000)}',
        f',"sku":"{chance.choice(_ALPHABET)}-{chance.randrange(1000, 10_000)}"',
        f',"quantity":{chance.randrange(1, 10)}',
        f',"price":{chance.randrange(10, 100)}.{chance.randrange(10, 100)}',
    )


def payloads(count: int, size: int, batch: int, chance: random.Random) -> Iterable[bytes]:
    """The same messages as plain payloads, for the baseline."""
    for i in range(count):
        yield payload(Order(0, i // batch, i % batch), size, chance)


class _Digits:
    """The decimal digits of one number, at the same place of every item of a request."""

    def __init__(self, first: int, stride: int, items: int, width: int) -> None:
        stops = [first + i + stride * (items - 1) + 1 for i in range(width)]
        self._slices = [slice(first + i, stop, stride) for i, stop in enumerate(stops)]
        self._fill = [bytes([48 + digit]) * items for digit in range(10)]
        self._format = f"%0{width}d"
        self._written = "0" * width

    def write(self, request: bytearray, number: int) -> None:
        digits = self._format % number
        for place, old, new in zip(self._slices, self._written, digits, strict=True):
            if old != new:
                request[place] = self._fill[ord(new) - 48]
        self._written = digits


_BATCH_DIGITS = 7
_TRANSACTION_DIGITS = 10
_TRANSACTION_WIDTH = 22


@dataclass(frozen=True, slots=True)
class Shape:
    """What a producer's requests look like."""

    queue: str
    batch: int
    payload_bytes: int
    transaction_ids: bool
    host: str
    seed: str


class PushRequest:
    """One encoded `POST /v1/messages`, whose batch number can be changed."""

    def __init__(self, shape: Shape, producer: int) -> None:
        items, stride = _items(shape, producer)
        body = b'{"items":[' + b",".join(items) + b"]}"
        head = post_head(shape.host, "/v1/messages", len(body))
        self.encoded = bytearray(head + body)
        first = len(head) + len(b'{"items":[')
        order_at = first + items[0].index(b'"order_id":') + len(b'"order_id":1000')
        self._fields = [_Digits(order_at, stride, shape.batch, _BATCH_DIGITS)]
        if shape.transaction_ids:
            at = first + items[0].index(_transaction_field(shape, producer)) + _counter_at(shape)
            self._fields.append(_Digits(at, stride, shape.batch, _TRANSACTION_DIGITS))

    def number(self, batch: int) -> None:
        for digits in self._fields:
            digits.write(self.encoded, batch)


def post_head(host: str, path: str, length: int) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        f"content-length: {length}\r\n\r\n"
    ).encode()


def _items(shape: Shape, producer: int) -> tuple[list[bytes], int]:
    """The items of batch 0 and the distance from one to the next."""
    chance = random.Random(f"{shape.seed}-{producer}")
    field = _transaction_field(shape, producer) if shape.transaction_ids else b""
    items = [
        b'{"queue":"%b","payload":%b%b}'
        % (
            shape.queue.encode(),
            payload(Order(producer, 0, i), shape.payload_bytes, chance),
            _numbered(field, i),
        )
        for i in range(shape.batch)
    ]
    return items, len(items[0]) + 1


def _transaction_field(shape: Shape, producer: int) -> bytes:
    """`<22 characters>-<position>` as the real client has it; the 22 end in the batch number."""
    prefix = _prefix(shape, producer)
    return b',"transaction_id":"' + prefix.encode() + b"0" * _TRANSACTION_DIGITS + b"-"


def _prefix(shape: Shape, producer: int) -> str:
    width = _TRANSACTION_WIDTH - _TRANSACTION_DIGITS
    return f"{shape.seed}{producer:03d}".rjust(width, "x")[-width:]


def _counter_at(shape: Shape) -> int:
    return len(b',"transaction_id":"') + len(_prefix(shape, 0))


def _numbered(field: bytes, position: int) -> bytes:
    """Blanks after the value make all items equally long: JSON allows what the stride needs."""
    if not field:
        return b""
    digits = b'%d"' % position
    return field + digits.ljust(len(str(BATCH_MAX)) + 1)
