"""Write-behind: pushes of `qos: 0`, answered first and written a moment later, many at once."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from spillway.core.errors import SpoolFullError

log = structlog.get_logger(__name__)

PENDING_BYTES_MAX = 64 * 1024 * 1024


class Behind:
    """Lines in memory, written every `flush_ms` or as soon as `batch_max` of them are there."""

    def __init__(
        self, write: Callable[[list[bytes]], Awaitable[None]], flush_ms: int, batch_max: int
    ) -> None:
        self._write = write
        self._flush_s = flush_ms / 1000
        self._batch_max = batch_max
        self._lines: list[bytes] = []
        self._bytes = 0
        self._writing = 0
        self._enough = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self.lost = 0
        """Events that were answered and could not be written before the process ended."""

    @property
    def pending(self) -> int:
        """How many events a kill would lose now."""
        return len(self._lines)

    def accept(self, lines: list[bytes]) -> None:
        """Take lines; they are not durable yet."""
        size = sum(map(len, lines))
        if self._bytes + size > PENDING_BYTES_MAX:
            raise SpoolFullError(f"{self.pending} events of qos 0 wait to be written")
        self._lines.extend(lines)
        self._bytes += size
        if len(self._lines) - self._writing >= self._batch_max:
            self._enough.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="spool-behind")

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time() + self._flush_s
        while self._lines:
            if not self._closing:
                await self._linger(due_s)
            # What comes while this is being written has begun to wait.
            due_s = loop.time() + self._flush_s
            await self._flush()
        self._task = None

    async def _linger(self, until_s: float) -> None:
        try:
            async with asyncio.timeout_at(until_s):
                await self._enough.wait()
        except TimeoutError:
            pass
        self._enough.clear()

    async def _flush(self) -> None:
        lines, size = self._lines.copy(), self._bytes
        self._writing = len(lines)
        try:
            await self._write(lines)
        except SpoolFullError as error:
            if not self._closing:
                log.warning("spool_qos0_waits", events=len(lines), error=error.message)
                return
            self.lost += len(lines)
            log.critical("spool_qos0_lost", events=len(lines), error=error.message)
        finally:
            self._writing = 0
        # Only now: while they are being written a kill would lose them, and they take room.
        del self._lines[: len(lines)]
        self._bytes -= size

    async def close(self) -> None:
        """Write what is pending."""
        self._closing = True
        self._enough.set()
        if self._task is not None:
            await asyncio.wait({self._task})
