"""What lies in the tables of checkpoints and control events, read row by row and put together."""

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, LiteralString
from zlib import crc32

import msgspec
import psycopg
from psycopg import capabilities

from spillway.core import checkpoint
from spillway.core.errors import SpillwayError
from spillway.core.state import GroupState

Key = tuple[int, str]
"""(lane, group)"""

PART_BYTES_MAX = 12 * 1024 * 1024
STREAM_ROWS = 200
DAMAGE = (SpillwayError, msgspec.MsgspecError, LookupError, TypeError, ValueError)
"""What reading stored bytes may raise when they are not what was written."""


class CheckpointDamagedError(SpillwayError):
    """A checkpoint is not what was written."""

    code = "checkpoint_damaged"
    hint = "nothing is lost: the state is folded from an older checkpoint or the control log"


def encode(state: GroupState) -> bytes:
    """The stored form of a state; equal states have equal bytes."""
    return msgspec.msgpack.encode(checkpoint.to_record(state))


def decode(data: bytes) -> GroupState:
    """The state behind a stored form."""
    return checkpoint.from_record(msgspec.msgpack.decode(data))


def split(data: bytes) -> list[bytes]:
    """A large checkpoint in parts; an ordinary one is a single part."""
    return [data[at : at + PART_BYTES_MAX] for at in range(0, len(data), PART_BYTES_MAX)] or [data]


def reason(error: BaseException) -> str:
    """What an error has to say."""
    return error.message if isinstance(error, SpillwayError) else repr(error)


@dataclass(slots=True)
class Stored:
    """A checkpoint as it was found."""

    key: Key
    seq: int
    parts: int
    crc: int
    found: list[bytes] = field(default_factory=list)

    @property
    def data(self) -> bytes:
        """The whole of it."""
        return b"".join(self.found)

    def restore(self) -> GroupState:
        """The state in it, or CheckpointDamagedError with the reason."""
        try:
            return self._restore()
        except DAMAGE as error:
            raise CheckpointDamagedError(
                f"checkpoint at seq {self.seq}: {reason(error)}"
            ) from error

    def _restore(self) -> GroupState:
        if len(self.found) != self.parts:
            raise CheckpointDamagedError(f"{len(self.found)} of {self.parts} parts are there")
        data = self.data
        if crc32(data) != self.crc:
            raise CheckpointDamagedError(f"the crc32 of its {len(data)} bytes differs")
        return decode(data)


async def each(
    conn: psycopg.AsyncConnection,
    query: LiteralString,
    params: dict[str, Any],
    handle: Callable[..., None],
) -> None:
    """Call `handle` with the columns of every row as it arrives; a few hundred rows in memory.

    A callback, since a generator left half-way would keep the connection to itself.
    """
    size = STREAM_ROWS if capabilities.has_stream_chunked() else 1
    async with conn.cursor() as cursor:
        rows = cursor.stream(query, params, binary=True, size=size)
        async with aclosing(rows):  # type: ignore[type-var]  # typed as an iterator, is a generator
            async for row in rows:
                handle(*row)


async def each_checkpoint(
    conn: psycopg.AsyncConnection,
    query: LiteralString,
    params: dict[str, Any],
    handle: Callable[[Stored], None],
) -> None:
    """Call `handle` with every checkpoint, its parts put together."""
    parts = _Parts(handle)
    await each(conn, query, params, parts.add)
    parts.flush()


class _Parts:
    """Rows of parts in order → checkpoints. A part out of its place counts as missing."""

    def __init__(self, handle: Callable[[Stored], None]) -> None:
        self._handle = handle
        self._stored: Stored | None = None

    def add(self, *row: Any) -> None:
        lane_id, group, seq, part, parts, crc, data = row
        stored = self._stored
        if stored is None or (*stored.key, stored.seq) != (lane_id, group, seq):
            self.flush()
            stored = self._stored = Stored((lane_id, group), seq, parts, crc)
        if part == len(stored.found):
            stored.found.append(data)

    def flush(self) -> None:
        if self._stored is not None:
            self._handle(self._stored)
            self._stored = None
