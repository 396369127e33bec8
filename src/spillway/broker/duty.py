"""The shape of every background duty: defaults → config → `run_once() -> result` → a loop."""

import asyncio
from abc import ABC, abstractmethod

import structlog

from spillway.core.errors import SpillwayError

log = structlog.get_logger(__name__)


class Duty(ABC):
    """Something the broker does again and again. A failure is logged and tried again in time."""

    name = "duty"

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self.runs = 0
        self.failures = 0
        self._nudged = asyncio.Event()
        self._failure = ""

    @abstractmethod
    async def run_once(self) -> object:
        """One round; returns what it did."""

    def nudge(self) -> None:
        """Do the next round now."""
        self._nudged.set()

    async def run(self) -> None:
        """Rounds until cancelled."""
        while True:
            try:
                await self.run_once()
                self.runs += 1
                self._failure = ""
            except Exception as exc:  # noqa: BLE001 (whatever it is, the next round may do better)
                self._fail(exc)
            await self._pause()

    def _fail(self, error: Exception) -> None:
        self.failures += 1
        if repr(error) == self._failure:
            return  # an outage is told once, not ten times a second
        self._failure = repr(error)
        if isinstance(error, SpillwayError | OSError):
            log.warning("duty_failed", duty=self.name, error=str(error))
        else:
            log.critical("duty_failed", duty=self.name, error=repr(error), exc_info=error)

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self.wait_s()):
                await self._nudged.wait()
        except TimeoutError:
            pass
        self._nudged.clear()

    def wait_s(self) -> float:
        """How long until the next round."""
        return self.interval_s
