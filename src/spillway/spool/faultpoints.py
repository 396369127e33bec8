"""The named places in the life of a spooled event at which a test may end the process.

In production nobody is told. `spillway.testing.faults` runs a broker that dies at one of them.
"""

from collections.abc import Callable
from typing import Literal, get_args

Point = Literal[
    "before_write",
    "before_fsync",
    "before_directory_fsync",
    "after_fsync_before_reply",
    "after_rename",
    "mid_recovery",
    "mid_batch",
    "after_commit_before_delete",
    "after_answer_of_owner",
    "after_delete",
    "mid_shortening",
    "after_shortening",
    "mid_quarantine",
    "mid_revival",
]
POINTS: tuple[Point, ...] = get_args(Point)

Reached = Callable[[Point], None]
"""Told where the work has come to."""


def nobody(_: Point) -> None:
    """Who is told in production."""
