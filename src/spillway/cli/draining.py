"""How a spool empties, look by look: done, rate, and when it will be empty."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from spillway.cli.outcome import say
from spillway.cli.output import duration

if TYPE_CHECKING:
    from spillway.wire import SpoolReply

ALPHA = 0.3
"""How much the last look weighs in the rate."""


@dataclass(frozen=True, slots=True)
class Stage:
    """How far the draining is."""

    done: int
    total: int
    rate: float | None
    eta_s: float | None
    why: str | None
    """What stands in the way."""


class Draining:
    """Looks at a spool, made into stages."""

    def __init__(self) -> None:
        self._done = 0
        self._rate: float | None = None
        self._last: tuple[float, int] | None = None

    def look(self, now: "SpoolReply", at_s: float) -> Stage:
        """One more look."""
        if self._last is not None:
            seconds, gone = at_s - self._last[0], now.replayed - self._last[1]
            # A broker that was started again counts from nothing.
            gone = gone if gone >= 0 else now.replayed
            self._done += gone
            self._note(gone / seconds if seconds > 0 else 0.0)
        self._last = at_s, now.replayed
        rate = self._rate
        eta_s = now.pending / rate if rate else None
        return Stage(self._done, self._done + now.pending, rate, eta_s, _why(now))

    def _note(self, rate: float) -> None:
        before = self._rate
        self._rate = rate if before is None else before + ALPHA * (rate - before)


def _why(now: "SpoolReply") -> str | None:
    if now.hold is not None:
        return "held"
    if now.breaker == "open" or now.database != "connected":
        return "PostgreSQL is away"
    if now.stuck:
        return "files are passed over"
    if now.owner is not None and now.owner.trouble is not None:
        return "the owner of the shards takes nothing"
    return "lanes are passed over" if now.held else None


def told(stage: Stage) -> str:
    """A stage in words."""
    words = [f"{stage.total - stage.done:,} waiting"]
    if stage.rate:
        words.append(f"{stage.rate:,.0f}/s")
    if stage.eta_s is not None and stage.why is None:
        words.append(f"{duration(stage.eta_s)} to go")
    if stage.why is not None:
        words.append(stage.why)
    return ", ".join(words)


# ---------------------------------------------------------------- views


class View(Protocol):
    """Shows stages."""

    def show(self, stage: Stage) -> None: ...
    def trouble(self, text: str) -> None: ...


class Lines(AbstractContextManager["Lines"]):
    """A line on stderr for each stage that says something new."""

    def __init__(self) -> None:
        self._said = ""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None

    def show(self, stage: Stage) -> None:
        self.trouble(told(stage))

    def trouble(self, text: str) -> None:
        if text != self._said:
            self._said = text
            say(text)


class Bar(AbstractContextManager["Bar"]):
    """A progress bar on a terminal."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn  # noqa: PLC0415

        self._progress: Any = Progress(
            BarColumn(), TaskProgressColumn(), TextColumn("{task.description}")
        )
        self._task = self._progress.add_task("", total=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def show(self, stage: Stage) -> None:
        self._progress.update(
            self._task, completed=stage.done, total=max(stage.total, 1), description=told(stage)
        )

    def trouble(self, text: str) -> None:
        self._progress.update(self._task, description=text)
