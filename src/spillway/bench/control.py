"""The few plain calls around a measurement: readiness, queues, one lease."""

import http.client
import json
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from spillway.bench.errors import BenchError

_TIMEOUT_S = 30.0
_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class Address:
    """Where a broker listens."""

    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> "Address":
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or parts.path.strip("/"):
            raise BenchError(
                f"{url!r} is not the address of a broker, such as http://127.0.0.1:6632"
            )
        return cls(parts.hostname, parts.port or 6632)


@dataclass(frozen=True, slots=True)
class Answer:
    """Status and decoded body."""

    status: int
    body: Any


def call(address: Address, method: str, path: str, body: object = None) -> Answer:
    """One request over a connection of its own."""
    connection = http.client.HTTPConnection(address.host, address.port, timeout=_TIMEOUT_S)
    try:
        encoded = None if body is None else json.dumps(body)
        connection.request(method, path, encoded, {"content-type": "application/json"})
        response = connection.getresponse()
        text = response.read()
        return Answer(response.status, json.loads(text) if text else None)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise BenchError(f"{method} {path} was not answered: {error!r}") from error
    finally:
        connection.close()


def is_ready(address: Address) -> bool:
    try:
        return call(address, "GET", "/health/ready").status == 200
    except BenchError:
        return False


def make_queue(address: Address, queue: str, **options: object) -> None:
    answer = call(address, "PUT", f"/v1/queues/{queue}", options)
    if answer.status not in (200, 201):
        raise BenchError(f"the broker refused to make queue {queue}: {answer.body}")


def delete_queue(address: Address, queue: str) -> None:
    call(address, "DELETE", f"/v1/queues/{queue}")


def waiting(address: Address, queue: str) -> int:
    """How many messages the default group has left to lease."""
    answer = call(address, "GET", f"/v1/queues/{queue}")
    if answer.status != 200:
        raise BenchError(f"the broker does not show queue {queue}: {answer.body}")
    body = answer.body
    ready = [group["ready"] for group in body["groups"] if group["group"] == "default"]
    return int(ready[0] if ready else body["tail"])


def hold(address: Address) -> None:
    """Pushes go to files from now on, and nothing of them into the log."""
    _order(address, "hold")


def release(address: Address) -> None:
    """What went to files goes into the log now."""
    _order(address, "release")


def _order(address: Address, verb: str) -> None:
    answer = call(address, "POST", f"/v1/spool/{verb}", {"reason": "bench"})
    if answer.status != 200:
        raise BenchError(f"the broker refused to {verb} its spool: {answer.body}")


def spooled(address: Address) -> int:
    """How many pushes are in files and not in the log."""
    return int(call(address, "GET", "/health").body["spool"]["pending"])


def lease(address: Address, queue: str, *, count: int) -> list[dict[str, Any]]:
    """What one lease hands out now."""
    answer = call(address, "POST", f"/v1/queues/{queue}/lease", {"max": count})
    return list(answer.body["messages"]) if answer.status == 200 else []


def first_lease_at(address: Address, queue: str, deadline: float) -> float:
    """When a lease was first answered with a message; the broker may not even listen yet."""
    while time.perf_counter() < deadline:
        try:
            messages = lease(address, queue, count=1)
        except BenchError:
            time.sleep(_POLL_S)
            continue
        if messages:
            return time.perf_counter()
        time.sleep(_POLL_S)
    raise BenchError(f"no message of {queue} could be leased in time")
