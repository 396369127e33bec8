"""What stands in the way of the spool, and for each trouble the command that frees it.

`spillway spool status`, `doctor` and `top` all tell it in these words.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from spillway.cli.outcome import counted
from spillway.cli.output import age, duration, size

if TYPE_CHECKING:
    from spillway.wire import SpoolHealth, SpoolLane, SpoolReply

LANES_SHOWN = 10
NEARLY_FULL = 0.8
DISK_FREE_LOW = 1024**3
RELEASE = "spillway spool release"
DOCTOR = "; spillway doctor"
"""Where to look further; doctor itself leaves it out."""
FREES = {
    "queue_full": "add consumers, or spillway queue update {queue} --max-depth N",
}
"""By the code of what holds a lane."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong, and what to type. `grave`: pushes are refused, or soon will be."""

    text: str
    free: str
    grave: bool = False


def glance(spool: "SpoolHealth") -> str | None:
    """The spool in a few words; None: it is empty, and nothing is in its way."""
    words = []
    if spool.pending:
        words.append(f"{spool.pending:,} waiting for {duration(spool.oldest_s)}")
    if spool.failed:
        words.append(f"{spool.failed:,} failed")
    if spool.full:
        words.append("full")
    if spool.held:
        words.append("held")
    if spool.breaker == "open":
        words.append("breaker open")
    if spool.owner_unreachable:
        words.append("owner unreachable")
    return ", ".join(words) or None


def troubles(now: "SpoolReply", at: datetime | None = None) -> Iterator[Trouble]:
    """Everything that stands in the way."""
    if now.hold is not None:  # first: what else is wrong may end with it
        since = age(now.hold.since, at or datetime.now(UTC))
        why = f": {now.hold.reason}" if now.hold.reason else ""
        yield Trouble(f"{now.hold.actor} holds the spool, since {since}{why}", RELEASE)
    yield from _limits(now)
    if now.database != "connected":
        text = "PostgreSQL is away: pushes go to files, and by themselves into the log later"
        yield Trouble(text, f"start PostgreSQL again{DOCTOR}")
    if now.owner is not None and now.owner.trouble is not None:
        cause = now.owner.trouble
        text = "this broker stands by, and the owner of the shards takes none of its events"
        yield Trouble(f"{text}: {cause.message} [{cause.code}]", cause.hint)
    for lane in now.held[:LANES_SHOWN]:
        yield _held(lane)
    if len(now.held) > LANES_SHOWN:
        text = f"{counted(len(now.held) - LANES_SHOWN, 'more lane')} passed over"
        yield Trouble(text, "spillway spool status --json")
    for file in now.stuck[:LANES_SHOWN]:
        yield Trouble(f"{file.file} is passed over: {file.message} [{file.code}]", file.hint)
    if now.foreign:
        named = ", ".join(now.foreign[:LANES_SHOWN])
        more = len(now.foreign) - LANES_SHOWN
        text = f"no files of the spool, left alone: {named}" + (
            f" and {more} more" if more > 0 else ""
        )
        yield Trouble(text, f"move them out of {now.folder}")
    if now.failed:
        text = f"{counted(now.failed, 'failed event')}, set aside with the reason"
        yield Trouble(text, "spillway spool list --failed, then show, repair, retry or discard")


def _held(lane: "SpoolLane") -> Trouble:
    text = f"{lane.queue}/{lane.partition} is passed over: {lane.message} [{lane.code}]"
    free = FREES.get(lane.code, lane.hint).format(queue=lane.queue)
    return Trouble(text, f"{free}; then spillway spool retry")


def _limits(now: "SpoolReply") -> Iterator[Trouble]:
    first = "" if now.hold is None else f"{RELEASE}, or "
    if now.bytes > now.bytes_max * NEARLY_FULL:
        text = f"{size(now.bytes)} of {size(now.bytes_max)} are used: then pushes are refused"
        yield Trouble(text, f"{first}raise FILE_BUFFER_BYTES_MAX and restart", grave=True)
    if now.oldest_s > now.age_max_s * NEARLY_FULL:
        text = f"the oldest waits for {duration(now.oldest_s)} of {duration(now.age_max_s)}"
        yield Trouble(text, f"{first}raise FILE_BUFFER_AGE_MAX_S and restart", grave=True)
    if now.disk_free < DISK_FREE_LOW:
        text = f"the disk of the spool has {size(now.disk_free)} left"
        yield Trouble(text, f"make room below {now.folder}", grave=True)
