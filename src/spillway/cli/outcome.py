"""Exit codes, and how an error is told: what, the code, the next step; always on stderr."""

import sys

from spillway.cli.hints import hint_of
from spillway.core.errors import SettingsError, SpillwayError

OK, FAILED, USAGE, DEPENDENCY_DOWN, REFUSED, INTERRUPTED = 0, 1, 2, 3, 4, 130

EXIT_CODES = (
    "Exit codes: 0 done; 1 failed, or a check found trouble; 2 wrong usage; 3 a dependency is "
    "down (broker, PostgreSQL, spool folder); 4 not found or refused; 130 interrupted."
)


def exit_code(error: SpillwayError) -> int:
    """The documented exit code of an error."""
    if error.status in {502, 503, 504, 507}:
        return DEPENDENCY_DOWN
    if isinstance(error, SettingsError):
        return USAGE
    if error.status == 400:
        return USAGE if error.code != "push_failed" else FAILED
    return REFUSED if 400 < error.status < 500 else FAILED


def say(text: str) -> None:
    """Talk goes to stderr, so that stdout is data alone."""
    print(text, file=sys.stderr, flush=True)


def tell(error: SpillwayError) -> None:
    say(f"error[{error.code}]: {error.message}")
    if hint := hint_of(error):
        say(f"  hint: {hint}")


def counted(number: int, noun: str) -> str:
    """`1 queue`, `2 queues`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
