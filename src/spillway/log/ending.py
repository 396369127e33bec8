"""The end of an embedded PostgreSQL: it is asked, then told, then killed, each within a limit.

A kill costs crash recovery at the next start and nothing else: what was committed is in the WAL.
It also ends what is frozen, which heeds no other signal; left alive, it would stand in the way of
the next start.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import structlog

from spillway.core.errors import EmbeddedPostgresError
from spillway.log import host

log = structlog.get_logger(__name__)

HEED_S = 2.0
"""A healthy postmaster says in its pid file at once that it is stopping."""
FAST_S = 10.0
"""A fast stop writes a checkpoint."""
IMMEDIATE_S = 2.0
HURRIED_S = 0.5
KILL_S = 3.0
ORPHAN_GRACE_S = 5.0
POLL_S = 0.005

StopMode = Literal["smart", "fast", "immediate"]
_SIGNALS: Mapping[StopMode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}


class Ending:
    """Ends the server of one cluster, whose processes carry `name` in their titles."""

    def __init__(self, cluster: Path, name: str) -> None:
        self._cluster = cluster
        self._title = f"postgres: {name}: "
        self._hurried = threading.Event()

    @property
    def is_hurried(self) -> bool:
        """Whether nobody waits for an orderly end any more."""
        return self._hurried.is_set()

    def hurry(self) -> None:
        """Let an end that is under way, and each one after it, take hardly any time."""
        self._hurried.set()

    def end(self, pid: int, mode: StopMode, lives: Callable[[], bool]) -> bool:
        """Whether that postmaster is gone afterwards."""
        if mode != "immediate" and not self.is_hurried:
            _send(pid, _SIGNALS[mode])
            if self._stops(pid, lives):
                return True
        _send(pid, signal.SIGQUIT)
        if self._quits(lives):
            return True
        self.kill(pid)
        return _wait(lambda: not (lives() or self._children()), KILL_S) or not lives()

    def _stops(self, pid: int, lives: Callable[[], bool]) -> bool:
        began_s = time.monotonic()
        while lives():
            waited_s = time.monotonic() - began_s
            limit_s = FAST_S if self._heeds(pid) else HEED_S
            if waited_s > limit_s or self.is_hurried:
                return False
            time.sleep(POLL_S)
        return True

    def _heeds(self, pid: int) -> bool:
        postmaster = host.Postmaster.read(self._cluster)
        # Without its file it has all but ended.
        return postmaster is None or (postmaster.pid, postmaster.status) == (pid, "stopping")

    def _quits(self, lives: Callable[[], bool]) -> bool:
        began_s = time.monotonic()
        while lives():
            if time.monotonic() - began_s > (HURRIED_S if self.is_hurried else IMMEDIATE_S):
                return False
            time.sleep(POLL_S)
        return True

    def kill(self, pid: int) -> None:
        """End a postmaster and its children without asking; a frozen process obeys, too."""
        log.warning("postgres_killed", pid=pid, why="it did not stop", lost="nothing")
        _send(pid, signal.SIGKILL)  # first, so that it makes no more of them
        for child in self._children():
            _send(child, signal.SIGKILL)

    def end_orphans(self, is_given_up: Callable[[], bool]) -> None:
        """Backends end by themselves when their postmaster is gone; a busy one is made to."""
        for send in (None, signal.SIGKILL):
            deadline = time.monotonic() + ORPHAN_GRACE_S
            while orphans := self._children():
                if send is not None:
                    for pid in orphans:
                        _send(pid, send)
                if is_given_up():
                    raise EmbeddedPostgresError("PostgreSQL was not to be started any more")
                if time.monotonic() > deadline:
                    break
                time.sleep(POLL_S)
            else:
                return
        raise EmbeddedPostgresError(
            f"processes of a killed PostgreSQL do not end: {orphans}",
            hint="they may hang on a disk that does not answer; end them, then start again",
        )

    def _children(self) -> list[int]:
        return [pid for pid, line in host.processes() if line.startswith(self._title)]


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _wait(is_so: Callable[[], bool], limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True
