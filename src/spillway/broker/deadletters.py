"""Operator verbs on dead letters: back to their lane, or deleted.

The rows tell which ones are meant and what they say; the state of the group decides. Two redrives
of one dead letter therefore cannot both happen: the first takes it out of `parked` in memory, in
the same turn in which the new message gets its version, and the second finds it gone.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from msgspec import Raw

from spillway.broker.actions import Deed
from spillway.broker.append import Arrivals, store
from spillway.broker.draft import Draft
from spillway.broker.facts import Facts
from spillway.broker.lanes import LaneEntry
from spillway.broker.shard import Shard
from spillway.core import commands as cmd
from spillway.core.message import BYTES
from spillway.core.ranges import RangeSet, coalesce
from spillway.log.database import Database
from spillway.wire import PushItem

PAGE_LETTERS = 1_000
PAGE_BYTES = 8 * 1024 * 1024
ORIGIN = "spillway-origin-"
LETTERS_AT_ONCE_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter; its body only where it is needed."""

    dead_id: int
    lane_id: int
    group: str
    version: int
    size: int = 0
    transaction_id: str = ""
    key: str | None = None
    headers: dict[str, str] | None = None
    payload: bytes = b""
    content_type: int = 0
    trace_id: str | None = None
    cause: str = ""


Act = Callable[[Shard, LaneEntry, str, list[Letter]], int]


class DeadLetters:
    """Works on the dead letters of a queue."""

    def __init__(
        self, facts: Facts, shards: list[Shard], database: Database, now_ms: Callable[[], int]
    ) -> None:
        self._facts = facts
        self._shards = shards
        self._database = database
        self._now_ms = now_ms

    async def count(self, chosen: dict[str, Any]) -> int:
        """How many dead letters a filter means."""
        row = await self._database.row("dead_count", **chosen)
        return row[0] if row else 0

    async def redrive(
        self, chosen: dict[str, Any], limit: int, deed: Deed, actor: str, reason: str | None
    ) -> None:
        """Dead letters become new messages at the end of their lanes."""

        def act(shard: Shard, entry: LaneEntry, group: str, letters: list[Letter]) -> int:
            return put_back(shard, entry, group, letters, (actor, reason), now_ms=self._now_ms())

        await self._each(chosen, limit, deed, act, self._with_bodies)

    async def purge(
        self, chosen: dict[str, Any], limit: int, deed: Deed, actor: str, reason: str | None
    ) -> None:
        """Dead letters are deleted."""

        def act(shard: Shard, entry: LaneEntry, group: str, letters: list[Letter]) -> int:
            return delete(shard, entry, group, letters, (actor, reason))

        await self._each(chosen, limit, deed, act, _as_they_are)

    async def _each(
        self,
        chosen: dict[str, Any],
        limit: int,
        deed: Deed,
        act: Act,
        prepare: Callable[[list[Letter]], Awaitable[list[Letter]]],
    ) -> None:
        """Oldest first, page by page; each page is one commit on each shard that it touches."""
        after = 0
        while deed.affected < limit:
            wanted = min(PAGE_LETTERS, limit - deed.affected)
            rows = await self._database.rows("dead_select", **chosen, after=after, limit=wanted)
            if not rows:
                return
            after = rows[-1][0]
            for page in by_weight([Letter(*row) for row in rows]):
                await self._act(await prepare(page), act, deed)

    async def _with_bodies(self, letters: list[Letter]) -> list[Letter]:
        ids = [letter.dead_id for letter in letters]
        return [Letter(*row) for row in await self._database.rows("dead_bodies", ids=ids)]

    async def _act(self, letters: list[Letter], act: Act, deed: Deed) -> None:
        by_shard: dict[int, list[Letter]] = {}
        for letter in letters:
            lane = await self._facts.lane_by_id(letter.lane_id)
            if lane is not None:
                by_shard.setdefault(lane.shard_id, []).append(letter)
        for shard_id, found in by_shard.items():
            await self._act_on(self._shards[shard_id], found, act, deed)

    async def _act_on(self, shard: Shard, letters: list[Letter], act: Act, deed: Deed) -> None:
        lane_ids = {letter.lane_id for letter in letters}
        lanes = [await self._facts.lane_by_id(lane_id) for lane_id in sorted(lane_ids)]
        entries = await shard.lanes([lane for lane in lanes if lane is not None])
        by_lane = {entry.facts.lane_id: entry for entry in entries}
        # From here to the ticket nothing is awaited: one turn, one draft.
        done = 0
        order = sorted(letters, key=lambda letter: (letter.lane_id, letter.group, letter.version))
        for (lane_id, group), some in groupby(order, key=lambda le: (le.lane_id, le.group)):
            if lane_id in by_lane:
                done += act(shard, by_lane[lane_id], group, list(some))
        await shard.ticket()
        deed.affected += done


async def _as_they_are(letters: list[Letter]) -> list[Letter]:
    return letters


def by_weight(letters: Sequence[Letter]) -> Iterator[list[Letter]]:
    """Pages of bounded size: a thousand bodies of a mebibyte each would not fit."""
    page: list[Letter] = []
    size = 0
    for letter in letters:
        if page and size + letter.size > PAGE_BYTES:
            yield page
            page, size = [], 0
        page.append(letter)
        size += letter.size
    if page:
        yield page


# ---------------------------------------------------------------- in one turn of the shard


def delete(
    shard: Shard,
    entry: LaneEntry,
    group: str,
    letters: list[Letter],
    by: tuple[str, str | None],
) -> int:
    """Forget dead letters: the event and the rows in one commit."""
    if not entry.group(group).state.exists:
        return 0
    ranges = tuple(coalesce(letter.version for letter in letters))
    verdict = shard.handle(entry, group, cmd.Purge(ranges, dead=True, actor=by[0], reason=by[1]))
    gone = _of(letters, verdict)
    if gone:
        draft = _draft_of_the_event(shard, entry)
        draft.commit.redriven_ids.extend(letter.dead_id for letter in gone)
    return len(gone)


def put_back(
    shard: Shard,
    entry: LaneEntry,
    group: str,
    letters: list[Letter],
    by: tuple[str, str | None],
    *,
    now_ms: int,
) -> int:
    """New messages, the event and the deleted rows in one commit. `max_depth` is not asked."""
    if not entry.group(group).state.exists:
        return 0
    ranges = tuple(coalesce(letter.version for letter in letters))
    verdict = shard.handle(entry, group, cmd.Redrive(ranges, by[0], by[1]))
    back = _of(letters, verdict)
    if back:
        draft = _draft_of_the_event(shard, entry)
        store(shard, entry, arrivals_of(entry, back), now_ms)
        draft.commit.redriven_ids.extend(letter.dead_id for letter in back)
        draft.counts[entry.facts.queue.queue_id, "produced"] += len(back)
    return len(back)


def _draft_of_the_event(shard: Shard, entry: LaneEntry) -> Draft:
    """Where the event of this turn went; the rows belong with it.

    Asked for after `handle`, never before: what the clock did first may have sealed the draft of
    then. A shard that is full has refused inside `handle`, with nothing decided.
    """
    return shard.draft_for(entry)


def _of(letters: list[Letter], verdict: cmd.Verdict) -> list[Letter]:
    done = RangeSet(verdict.done)
    return [letter for letter in letters if letter.version in done]


def arrivals_of(entry: LaneEntry, letters: list[Letter]) -> Arrivals:
    """Dead letters as messages that arrive. Each gets a new transaction id."""
    arrivals = Arrivals.at(entry.facts)
    arrivals.is_plain = False
    for index, letter in enumerate(letters):
        payload: Any = letter.payload if letter.content_type == BYTES else Raw(letter.payload)
        item = PushItem(
            queue=entry.facts.queue.name,
            payload=payload,
            key=letter.key,
            headers=(letter.headers or {}) | origin(entry, letter),
            trace_id=letter.trace_id,
        )
        arrivals.add(index, item, letter.payload, f"redrive-{letter.dead_id}")
    return arrivals


def origin(entry: LaneEntry, letter: Letter) -> dict[str, str]:
    """Where the message comes from. The headers of an earlier redrive are replaced, but for the
    id: that of the first push stays, whatever happens later.
    """
    first = (letter.headers or {}).get(f"{ORIGIN}transaction-id", letter.transaction_id)
    return {
        f"{ORIGIN}partition": entry.facts.partition,
        f"{ORIGIN}version": str(letter.version),
        f"{ORIGIN}group": letter.group,
        f"{ORIGIN}dead-id": str(letter.dead_id),
        f"{ORIGIN}cause": letter.cause,
        f"{ORIGIN}transaction-id": first,
    }
