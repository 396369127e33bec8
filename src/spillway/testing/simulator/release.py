"""Stored forms of a release before this one, and the upcasters that read them.

An upgrade in mid-run must fold what the old release wrote. Version 0 stands for "before the first",
so the real tables of the core never hold it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from spillway.core import checkpoint
from spillway.core import events as ev
from spillway.core.state import GroupState

Record = tuple[Any, ...]


class Release:
    """How a broker of one release writes; every release reads all that came before it."""

    def __init__(self) -> None:
        self.is_old = False

    def event_bytes(self, event: ev.Event) -> bytes:
        """An event as this release stores it."""
        record = ev.to_record(event)
        if self.is_old and isinstance(event, ev.Leased | ev.Nacked):
            record = _OLD_EVENT[record[0]](record)
        return msgspec.msgpack.encode(record)

    def checkpoint_bytes(self, state: GroupState) -> bytes:
        """A state as this release stores it."""
        record = checkpoint.to_record(state)
        return msgspec.msgpack.encode((0, *_without_kind(record)) if self.is_old else record)


def event_of(stored: bytes) -> ev.Event:
    """The event behind its bytes, whatever release wrote them."""
    return ev.from_record(msgspec.msgpack.decode(stored))


def state_of(stored: bytes) -> GroupState:
    """The state behind the bytes of a checkpoint; raises when they are damaged."""
    try:
        record = msgspec.msgpack.decode(stored)
    except msgspec.DecodeError as error:
        raise checkpoint.UnknownCheckpointError("not a checkpoint at all") from error
    return checkpoint.from_record(record)


def _without_kind(record: Record) -> Record:
    """Before there were kinds, all groups were of one."""
    return (record[1], *record[3:])


def _old_lease(record: Record) -> Record:
    _, _, lease_id, ranges, deadline_ms, consumer, at_ms = record
    borders = [version for run in ranges for version in run]
    return ("L", 0, deadline_ms, lease_id, borders, consumer, at_ms)


def _old_nack(record: Record) -> Record:
    _, _, lease_id, runs, error, returned = record
    return ("N", 0, lease_id, returned, runs, error)


_OLD_EVENT = {"L": _old_lease, "N": _old_nack}


def _lift_lease(old: Record) -> Record:
    deadline_ms, lease_id, borders, consumer, at_ms = old
    ranges = list(zip(borders[::2], borders[1::2], strict=True))
    return (lease_id, ranges, deadline_ms, consumer, at_ms)


def _lift_nack(old: Record) -> Record:
    lease_id, returned, runs, error = old
    return (lease_id, runs, error, returned)


@contextmanager
def old_forms_readable() -> Iterator[None]:
    """While the simulation runs, the core knows the release before the first."""
    ev.UPCASTERS["L", 0], ev.UPCASTERS["N", 0] = _lift_lease, _lift_nack
    checkpoint.UPCASTERS[0] = lambda old: (checkpoint.SCHEMA, old[1], "lease", *old[2:])
    try:
        yield
    finally:
        del ev.UPCASTERS["L", 0], ev.UPCASTERS["N", 0], checkpoint.UPCASTERS[0]
