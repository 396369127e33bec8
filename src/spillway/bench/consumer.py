"""Leases and acks over one connection; each settle asks for more in the same round trip."""

import asyncio
import time
from collections.abc import Sequence

import msgspec

from spillway.bench.connection import Connection
from spillway.bench.course import Course
from spillway.bench.orders import post_head

_RETRY_S = 0.05
_POLL_S = 0.005


class _Order(msgspec.Struct, gc=False):
    order_id: int


class _Leased(msgspec.Struct, gc=False):
    """A raw receipt goes back as it came, without being decoded and encoded."""

    receipt: msgspec.Raw
    payload: _Order


class _Answer(msgspec.Struct):
    messages: list[_Leased] = []


_decode = msgspec.json.Decoder(_Answer).decode


class Consumer:
    def __init__(self, course: Course, connection: Connection, number: int) -> None:
        plan = course.plan
        self._course = course
        self._connection = connection
        self._number = number
        self._host = f"{plan.host}:{plan.port}"
        self._lease_path = f"/v1/queues/{plan.queue}/lease"
        self._lease = _lease_body(course, number)
        self._lease_more = b'],"lease":{"queue":"%b",%b' % (plan.queue.encode(), self._lease[1:])
        self._request = b""
        self._sent_at = 0.0
        self._acking = 0
        connection.caller = self

    def begin(self) -> None:
        self._ask(self._lease_path, self._lease, 0)

    def replied(self, status: int, body: bytes) -> None:
        if status != 200:
            self._course.refused(status, body)
            asyncio.get_running_loop().call_later(_RETRY_S, self._send)
            return
        answer = _decode(body)
        if answer.messages:
            self._course.received(self._number, [m.payload.order_id for m in answer.messages])
        self._count_acks(body)
        self._go_on([message.receipt for message in answer.messages])

    def _count_acks(self, body: bytes) -> None:
        if not self._acking:
            return
        acked = body.count(b'"acked"')
        if acked != self._acking:
            self._course.refused(200, b"acks were refused: " + body)
        self._course.settled(self._sent_at, acked)

    def _go_on(self, receipts: Sequence[msgspec.Raw]) -> None:
        more = self._course.more_to_lease
        if receipts:
            self._ask("/v1/settle", self._settle_body(receipts, more=more), len(receipts))
        elif more and self._course.plan.lease_wait_ms:
            self.begin()
        elif more:
            self._acking = 0
            asyncio.get_running_loop().call_later(_POLL_S, self.begin)

    def _settle_body(self, receipts: Sequence[msgspec.Raw], *, more: bool) -> bytes:
        ending = self._lease_more + b"}" if more else b"]}"
        return b'{"ack":[' + b",".join(receipts) + ending

    def _ask(self, path: str, body: bytes, acking: int) -> None:
        self._acking = acking
        self._request = post_head(self._host, path, len(body)) + body
        self._send()

    def _send(self) -> None:
        self._sent_at = time.perf_counter()
        self._connection.send(self._request)


def _lease_body(course: Course, number: int) -> bytes:
    plan = course.plan
    body: dict[str, object] = {"group": plan.group, "max": plan.lease_max}
    if plan.lease_wait_ms:
        body["wait_ms"] = plan.lease_wait_ms
    if plan.own_partitions:
        body["partitions"] = [f"p{number}" if number else "Default"]
    return msgspec.json.encode(body)
