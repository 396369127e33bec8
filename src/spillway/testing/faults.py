"""A real broker that dies by SIGKILL at a named place: a command line in, a dead process out.

    python -m spillway.testing.faults --at before_fsync --nth 3 -- serve --port 6632

runs `spillway serve --port 6632` until the work comes to that place for the third time. The places
are `spillway.spool.faultpoints.POINTS`. Whatever was answered before must be there after a restart.
"""

import os
import signal
import sys
import threading
from argparse import ArgumentParser
from collections.abc import Sequence
from functools import partial
from unittest.mock import patch

from spillway import wiring
from spillway.cli.root import app
from spillway.spool.faultpoints import POINTS, Point


class Fault:
    """Ends this process, with no chance to clean up, when a place is reached for the n-th time."""

    def __init__(self, at: Point, nth: int = 1) -> None:
        self._at = at
        self._left = nth
        self._lock = threading.Lock()
        """The writers of the spool come here in threads of their own."""

    def __call__(self, point: Point) -> None:
        """The work has come to `point`."""
        if point != self._at:
            return
        with self._lock:
            self._left -= 1
            if not self._left:
                os.write(sys.stderr.fileno(), f"fault: killed at {point}\n".encode())
                os.kill(os.getpid(), signal.SIGKILL)


def main(words: Sequence[str] | None = None) -> None:
    """Run the command line behind `--` with the fault in place."""
    parser = ArgumentParser(prog="python -m spillway.testing.faults", description=__doc__)
    parser.add_argument("--at", required=True, choices=POINTS, help="the place to die at")
    parser.add_argument("--nth", type=int, default=1, help="which time it is reached")
    parser.add_argument("command", nargs="+", help="what `spillway` is told, behind --")
    given = parser.parse_args(words)
    if given.nth < 1:
        parser.error(f"--nth is {given.nth}, but counts from 1")
    broken = partial(wiring.make_broker, reached=Fault(given.at, given.nth))
    with patch.object(wiring, "make_broker", broken):
        app(given.command, prog_name="spillway")


if __name__ == "__main__":
    main()
