"""Pushes batches over one connection, one at a time."""

import asyncio

from spillway.bench.connection import Connection
from spillway.bench.course import Course
from spillway.bench.orders import PushRequest, Shape

_RETRY_S = 0.05


class Producer:
    def __init__(self, course: Course, connection: Connection, shape: Shape, number: int) -> None:
        self._course = course
        self._connection = connection
        self._request = PushRequest(shape, number)
        self._batch = 0
        self._due_at = 0.0
        self._repeats = False
        connection.caller = self

    def begin(self) -> None:
        self._course.arrivals.ready(self.push)

    def push(self, batch: int, due_at: float) -> None:
        self._batch = batch
        self._due_at = due_at
        self._repeats = False
        self._request.number(batch)
        self._course.in_flight += 1
        self._send()

    def replied(self, status: int, body: bytes) -> None:
        plan = self._course.plan
        repeated = body.count(b'"duplicate"') if self._repeats else 0
        buffered = body.count(b'"buffered"') if plan.buffered else 0
        if status == 201 and body.count(b'"stored"') + repeated + buffered == plan.batch:
            self._course.pushed(self._batch, self._due_at, repeated, buffered)
            self._course.arrivals.ready(self.push)
        else:
            self._course.refused(status, body)
            self._repeats = True
            asyncio.get_running_loop().call_later(_RETRY_S, self._send)

    def _send(self) -> None:
        self._connection.send(self._request.encoded)
