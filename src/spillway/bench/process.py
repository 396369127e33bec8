"""A process of the bench: a plan goes in at its start, its findings come out at its end."""

import subprocess
import sys
import time
from types import TracebackType
from typing import Generic, Self, TypeVar

import msgspec

from spillway.bench.errors import BenchError

Found = TypeVar("Found")


class Process(Generic[Found]):
    """Runs inside a `with` block, and never beyond it."""

    def __init__(self, module: str, plan: msgspec.Struct, found: type[Found]) -> None:
        self._module = module
        self._found = found
        self._begun = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"spillway.bench.{module}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(plan))
        self._process.stdin.close()
        self._process.stdin = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def stop(self) -> None:
        """Ask it to come to its end."""
        self._process.terminate()

    def found(self, timeout_s: float) -> Found:
        """What it found, once it has ended."""
        try:
            out, words = self._process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            spent = time.monotonic() - self._begun
            raise BenchError(
                f"the {self._module} process did not end within {spent:.0f} s"
            ) from error
        if self._process.returncode != 0:
            last_lines = words.decode(errors="replace").strip().splitlines()[-3:]
            raise BenchError(f"the {self._module} process failed: " + " | ".join(last_lines))
        return msgspec.json.decode(out, type=self._found)
