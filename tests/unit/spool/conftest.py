"""Events to spool, and spools in a folder of the test's own."""

from collections.abc import Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from spillway.spool import event
from spillway.spool import folder as disk
from spillway.spool.event import Address, Event
from spillway.spool.spool import Spool, SpoolConfig

ACCEPTED_AT = datetime(2026, 1, 1, tzinfo=UTC)
NOW_MS = 1_767_225_600_000


def event_of(number: int = 1, queue: str = "orders", partition: str | None = "a", **fields: Any):
    """An event whose payload is its number."""
    plain = {
        "transaction_id": f"t-{number}",
        "trace_id": None,
        "namespace": "",
        "task": "",
        "org": "default",
        "key": None,
        "headers": None,
        "priority": 0,
        "deliver_at": None,
        "expires_at": None,
        "accepted_at": ACCEPTED_AT,
        "seq": number,
        "payload": Raw(str(number).encode()),
    }
    return Event(queue=queue, partition=partition, **plain | fields)


def parts_of(*numbers: int, queue: str = "orders", partition: str | None = "a"):
    """A push of these numbers to one lane."""
    address = Address("default", queue, partition)
    return [(address, [event_of(number, queue, partition) for number in numbers])]


@pytest.fixture(scope="session")
def make_event() -> Callable[..., Event]:
    """Makes an event of a number."""
    return event_of


@pytest.fixture(scope="session")
def push() -> Callable[..., Any]:
    """Makes what is pushed of numbers."""
    return parts_of


@pytest.fixture(scope="session")
def make_lines() -> Callable[..., list[bytes]]:
    """Makes whole lines of numbers, as a writer would leave them."""
    return lambda *numbers: event.lines([event_of(number) for number in numbers])


@pytest.fixture(scope="session")
def numbers_in() -> Callable[[Path], list[int]]:
    """The numbers of all events in a file, in its order."""

    def numbers(path: Path) -> list[int]:
        return [int(bytes(event.read(t).payload)) for ts in disk.windows(path) for t in ts]

    return numbers


class Clock:
    """The broker's clock, set by the test; every event is accepted at its start."""

    def __init__(self) -> None:
        self.ms = NOW_MS

    def now_ms(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> Clock:
    """A clock that stands still."""
    return Clock()


@pytest.fixture
def opened(tmp_path, clock):
    """Opens a spool in the test's folder, and closes it behind itself."""

    @asynccontextmanager
    async def opened(folder: Path | None = None, **config: Any):
        spool = Spool(SpoolConfig(folder or tmp_path, **config), clock.now_ms)
        try:
            await spool.open()
            await spool.index()
            yield spool
        finally:
            await spool.close()

    return opened
