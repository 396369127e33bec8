"""Checkpoints: the fold of a control log so far, so that a restart need not begin at seq 1.

They are a cache. Whatever is wrong with one is named, and the next older one, or the log itself,
answers in its place. The control log is trimmed only behind a checkpoint that was read back.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import psycopg

from spillway.core.errors import SpillwayError
from spillway.core.fold import evolve
from spillway.core.state import GroupState
from spillway.log import events as codec
from spillway.log import stored as store
from spillway.log.queries import sql
from spillway.log.stored import (
    DAMAGE,
    CheckpointDamagedError,
    Key,
    Stored,
    decode,
    encode,
    reason,
    split,
)

__all__ = [
    "CheckpointItem",
    "Folded",
    "Loaded",
    "decode",
    "encode",
    "fold",
    "load",
    "split",
    "write",
]

_FENCE = sql("checkpoint_fence")
_CLEAR = sql("checkpoint_clear")
_INSERT = sql("checkpoint_insert")
_OF_GROUPS = sql("checkpoints_of_groups")
_OF_LANES = sql("checkpoints_of_lanes")
_FORGET = sql("checkpoints_forget")
_TRIM = sql("control_trim")
_CONTROL = sql("control_since")


class LogDamagedError(SpillwayError):
    """The control log of a group cannot be folded, and no checkpoint makes up for it."""

    code = "log_damaged"
    hint = "`spillway audit` lists the damage; restore the database from a backup"


@dataclass(frozen=True, slots=True)
class CheckpointItem:
    """A state to keep: the fold of the committed control log up to `seq`."""

    lane_id: int
    group: str
    seq: int
    trim: int
    data: bytes

    @property
    def key(self) -> Key:
        """Whose state it is."""
        return self.lane_id, self.group


@dataclass(slots=True)
class Loaded:
    """The newest state that a checkpoint could give, and what was wrong with newer ones."""

    state: GroupState = field(default_factory=GroupState)
    seq: int = 0
    problems: list[str] = field(default_factory=list)


class Folded:
    """A state and where in the control log it stands; `events` came after its checkpoint."""

    __slots__ = ("_state", "error", "events", "key", "problems", "seq")

    def __init__(self, key: Key, loaded: Loaded | None = None) -> None:
        base = loaded or Loaded()
        self.key = key
        self._state = base.state
        self.seq = base.seq
        self.events = 0
        self.problems = list(base.problems)
        self.error: LogDamagedError | None = None

    @property
    def state(self) -> GroupState:
        """The state; a damaged log raises here, so that it stops its own group and no other."""
        if self.error is not None:
            raise self.error
        return self._state

    def add(self, seq: int, events: bytes) -> None:
        """Fold the next row."""
        if self.error is not None:
            return
        if seq != self.seq + 1:
            self._fail(f"the control log goes from seq {self.seq} to {seq}", None)
            return
        try:
            for _, event in codec.decode(events):
                evolve(self._state, event)
                self.events += 1
        except DAMAGE as error:
            self._fail(f"seq {seq} of the control log: {reason(error)}", error)
        else:
            self.seq = seq

    def _fail(self, why: str, cause: Exception | None) -> None:
        lane_id, group = self.key
        self.problems.append(why)
        self.error = LogDamagedError(f"lane {lane_id}, group {group}: {'; '.join(self.problems)}")
        self.error.__cause__ = cause


# ---------------------------------------------------------------- write


async def write(
    conn: psycopg.AsyncConnection, shard_id: int, epoch: int, items: Sequence[CheckpointItem]
) -> bool:
    """Write, read back, verify, then trim; all or none. False: the shard is no longer ours.

    The fence is locked last: its row is the one that every commit of the shard updates, and
    commits must not wait while checkpoints are written.
    """
    ours = False
    async with conn.transaction() as transaction:
        for chunk in _chunks(items):
            await _insert(conn, chunk)
            await _trim(conn, chunk, await _verify(conn, chunk))
        cursor = await conn.execute(_FENCE, {"shard_id": shard_id, "epoch": epoch})
        ours = await cursor.fetchone() is not None
        if not ours:
            raise psycopg.Rollback(transaction)
    return ours


def _chunks(items: Sequence[CheckpointItem]) -> Iterator[list[CheckpointItem]]:
    """What is written and read back at a time: about one full part, or one larger item."""
    chunk: list[CheckpointItem] = []
    size = 0
    for item in items:
        size += len(item.data)
        if chunk and size > store.PART_BYTES_MAX:
            yield chunk
            chunk, size = [], len(item.data)
        chunk.append(item)
    if chunk:
        yield chunk


async def _insert(conn: psycopg.AsyncConnection, items: list[CheckpointItem]) -> None:
    await conn.execute(_CLEAR, _columns(items))
    async with conn.cursor() as cursor:
        await cursor.executemany(_INSERT, [row for item in items for row in _rows(item)])


def _rows(item: CheckpointItem) -> Iterator[dict[str, Any]]:
    parts = split(item.data)
    for number, part in enumerate(parts):
        yield {
            "lane_id": item.lane_id,
            "group": item.group,
            "seq": item.seq,
            "trim": item.trim,
            "part": number,
            "parts": len(parts),
            "state": part,
            "crc": crc32(item.data),
        }


def _columns(items: list[CheckpointItem]) -> dict[str, list[Any]]:
    return {
        "lane_ids": [item.lane_id for item in items],
        "groups": [item.group for item in items],
        "seqs": [item.seq for item in items],
    }


async def _verify(conn: psycopg.AsyncConnection, items: list[CheckpointItem]) -> dict[Key, int]:
    """Read back what was written; the seq of the newest sound checkpoint before it, else 0."""
    written = {item.key: item for item in items}
    unread = set(written)
    previous = dict.fromkeys(written, 0)

    def compare(stored: Stored) -> None:
        item = written[stored.key]
        if stored.seq == item.seq:
            _check_same(stored, item)
            unread.discard(stored.key)
        elif not previous[stored.key] and _is_sound(stored):
            previous[stored.key] = stored.seq

    await store.each_checkpoint(conn, _OF_GROUPS, _columns(items), compare)
    if unread:
        raise CheckpointDamagedError(f"checkpoints of {sorted(unread)} cannot be read back")
    return previous


def _check_same(stored: Stored, item: CheckpointItem) -> None:
    if encode(stored.restore()) != item.data or stored.data != item.data:
        raise CheckpointDamagedError(
            f"checkpoint of {item.key} at seq {item.seq} reads differently"
        )


def _is_sound(stored: Stored) -> bool:
    try:
        stored.restore()
    except CheckpointDamagedError:
        return False
    return True


async def _trim(
    conn: psycopg.AsyncConnection, items: list[CheckpointItem], previous: dict[Key, int]
) -> None:
    """Two checkpoints stay, and the control log back to the older of them."""
    params = {**_columns(items), "previous": [previous[item.key] for item in items]}
    await conn.execute(_FORGET, params)
    await conn.execute(_TRIM, params)


# ---------------------------------------------------------------- read


async def load(conn: psycopg.AsyncConnection, lane_ids: Sequence[int]) -> dict[Key, Loaded]:
    """The newest sound checkpoint of each (lane, group) that has any; a bad one never raises."""
    found: dict[Key, Loaded] = {}

    def keep_newest(stored: Stored) -> None:
        loaded = found.setdefault(stored.key, Loaded())
        if loaded.seq:
            return
        try:
            loaded.state, loaded.seq = stored.restore(), stored.seq
        except CheckpointDamagedError as error:
            loaded.problems.append(error.message)

    await store.each_checkpoint(conn, _OF_LANES, {"lane_ids": list(lane_ids)}, keep_newest)
    return found


async def fold(
    conn: psycopg.AsyncConnection, lane_ids: Sequence[int], loaded: dict[Key, Loaded]
) -> dict[Key, Folded]:
    """Every (lane, group) with a checkpoint or a control log, up to its last committed event."""
    folded = {key: Folded(key, base) for key, base in loaded.items()}
    params = {
        "lane_ids": list(lane_ids),
        "from_lane_ids": [lane_id for lane_id, _ in loaded],
        "from_groups": [group for _, group in loaded],
        "from_seqs": [base.seq for base in loaded.values()],
    }

    def add(lane_id: int, group: str, seq: int, events: bytes) -> None:
        key = lane_id, group
        if key not in folded:
            folded[key] = Folded(key)
        folded[key].add(seq, events)

    await store.each(conn, _CONTROL, params, add)
    return folded
