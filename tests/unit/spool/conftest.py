"""Events to spool, and spools in a folder of the test's own."""

from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from spillway.spool import event
from spillway.spool import folder as disk
from spillway.spool.event import Address
from spillway.spool.spool import Spool, SpoolConfig

NOW_MS = 1_767_225_600_000


@pytest.fixture(scope="session")
def push(make_event) -> Callable[..., Any]:
    """Makes what is pushed of numbers to one lane."""

    def parts_of(*numbers: int, queue: str = "orders", partition: str | None = "a"):
        address = Address("default", queue, partition)
        return [(address, [make_event(number, queue, partition) for number in numbers])]

    return parts_of


@pytest.fixture(scope="session")
def make_lines(make_event) -> Callable[..., list[bytes]]:
    """Makes whole lines of numbers, as a writer would leave them."""
    return lambda *numbers: event.lines([make_event(number) for number in numbers])


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
