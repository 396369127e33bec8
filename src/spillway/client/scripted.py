"""A transport that answers from a script: clients run without a broker, in tests and rehearsals."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from spillway.client.http1 import Response


@dataclass(frozen=True, slots=True)
class Sent:
    """A request as it would have left."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any

    @property
    def call(self) -> str:
        return f"{self.method} {self.path}"


Answer = Response | Exception | Callable[[Sent], Response]


def reply(value: object, status: int = 200, **headers: str) -> Response:
    """An answer with this JSON body."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Response(status, msgspec.json.encode(value), named)


def refusal(code: str, status: int, message: str = "no", **headers: str) -> Response:
    """An answer with this error."""
    return reply({"error": {"code": code, "message": message, "hint": ""}}, status, **headers)


class Script:
    """Answers in order, and everything that was sent. The last answer may be made to repeat."""

    def __init__(self, *answers: Answer, repeat_last: bool = False) -> None:
        self.sent: list[Sent] = []
        self.closed = 0
        self._answers = deque(answers)
        self._repeat_last = repeat_last

    def send(self, data: bytes, timeout_s: float) -> Response:  # noqa: ARG002 (never waits)
        sent = read_request(data)
        self.sent.append(sent)
        if not self._answers:
            raise AssertionError(f"the script has no answer to {sent.call}")
        repeats = self._repeat_last and len(self._answers) == 1
        answer = self._answers[0] if repeats else self._answers.popleft()
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, Response) else answer(sent)

    def close(self) -> None:
        self.closed += 1

    @property
    def calls(self) -> list[str]:
        return [sent.call for sent in self.sent]


class AsyncScript:
    """The same script for an AsyncClient."""

    def __init__(self, script: Script) -> None:
        self._script = script

    async def send(self, data: bytes, timeout_s: float) -> Response:
        return self._script.send(data, timeout_s)

    async def close(self) -> None:
        self._script.close()


def read_request(data: bytes) -> Sent:
    """The request that these bytes are."""
    head, _, body = data.partition(b"\r\n\r\n")
    start, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = start.split(" ")
    headers = dict(line.split(": ", 1) for line in lines)
    return Sent(method, path, headers, msgspec.json.decode(body) if body else None)
