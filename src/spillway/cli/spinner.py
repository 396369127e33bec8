"""Something that turns while a single answer takes its time."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def spinning(text: str) -> Iterator[None]:
    """On stderr, when somebody looks; it leaves nothing behind."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.markup import escape  # noqa: PLC0415

    with Console(stderr=True).status(escape(text)):
        yield
