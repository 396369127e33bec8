"""The audit: is everything that was ever accepted in exactly one place? Read from the tables alone.

One snapshot for all of it, so it may run beside a working broker. Lanes are taken a page at a time;
what is in memory are their checkpoints and the ranges of their versions, never the messages.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, LiteralString

import psycopg
from psycopg.rows import class_row

from spillway.core.audit import Audit, Finding, LaneCensus, audit_group
from spillway.core.ranges import RangeSet
from spillway.core.state import GroupState
from spillway.log import stored as store
from spillway.log.connect import classify, connect
from spillway.log.queries import sql
from spillway.log.trail import Trail

LANES_MAX = 500
CHECKPOINT_BYTES_MAX = 64 * 1024 * 1024
DEDUPE_SLACK_MS = 1_000
"""A push is judged a moment before its batch is dated."""
GROUP_SLACK_MS = 1_000
"""A group that is made while a lane is pruned may be just too late."""

_LIMIT = sql("statement_limit")
_NOW = sql("audit_now")
_LANES = sql("audit_lanes")
_BATCHES = sql("audit_batches")
_DELIVERIES = sql("audit_deliveries")
_DUPLICATES = sql("audit_duplicates")
_DEAD = sql("audit_dead_letters")
_ORPHANS = sql("audit_orphans")
_CHECKPOINTS = sql("checkpoints_of_lanes")
_CONTROL = sql("control_since")
_FROM_START: dict[str, Any] = {"from_lane_ids": [], "from_groups": [], "from_seqs": []}


@dataclass(frozen=True, slots=True)
class LaneRow:
    """A lane of a live queue, and what is known of it beside its logs."""

    lane_id: int
    org: str
    queue: str
    partition: str
    pruned_to: int
    pruned_ms: int | None
    epoch: int | None
    commit_seq: int | None
    groups: dict[str, int]
    """When each was made."""
    checkpoint_bytes: int

    def place(self, group: str) -> tuple[str, str, str]:
        """How a difference names it."""
        queue = self.queue if self.org == "default" else f"{self.org}/{self.queue}"
        return queue, self.partition, group


@dataclass(slots=True)
class GroupFacts:
    """A group on a lane."""

    trail: Trail = field(default_factory=Trail)
    dead: RangeSet = field(default_factory=RangeSet)
    findings: list[Finding] = field(default_factory=list)


class LaneFacts:
    """Everything that the tables say about a lane."""

    def __init__(self, row: LaneRow) -> None:
        self.row = row
        self.census = LaneCensus(row.pruned_to)
        self.groups = {name: GroupFacts() for name in row.groups}
        self.findings: list[Finding] = []

    def group(self, name: str) -> GroupFacts:
        """A group that some row names, whether or not there is a consumer of that name."""
        return self.groups.setdefault(name, GroupFacts())

    def judge(self, audit: Audit, now_ms: int) -> None:
        """Compare it all."""
        audit.lanes += 1
        audit.messages += self.census.lane.tail
        audit.note(self.row.place(""), [*self.findings, *self.census.findings, *self._unowned()])
        judged = audit.groups
        for name, facts in sorted(self.groups.items()):
            self._judge_group(audit, name, facts, now_ms)
        if audit.groups == judged:
            audit.ungrouped += self.census.lane.tail

    def _unowned(self) -> Iterator[Finding]:
        if self.row.commit_seq is None or self.row.epoch is None:
            yield Finding(
                "the lane belongs to a shard that does not exist, lane", 0, self.row.lane_id
            )
        elif self.census.present and min(self.row.commit_seq, self.row.epoch) < 1:
            yield Finding("messages of a shard that never committed", 0, self.census.present.total)

    def _judge_group(self, audit: Audit, name: str, facts: GroupFacts, now_ms: int) -> None:
        trail = facts.trail
        trail.finish()
        findings = [
            *facts.findings,
            *trail.findings,
            *self._overrun(trail),
            *self._passed_over(name, facts),
        ]
        state = self._state(name, facts)
        if state is not None and state.exists:
            totals, more = audit_group(self.census, state, facts.dead, now_ms)
            audit.add(totals)
            findings += more
        elif not trail.seq and not trail.findings and facts.dead.total:
            findings.append(Finding("dead letters without a control log", 0, facts.dead.total))
        audit.note(self.row.place(name), findings)

    def _state(self, name: str, facts: GroupFacts) -> GroupState | None:
        """A group that has not come to this lane yet has all of it before it."""
        trail = facts.trail
        if not self._waits(name, facts):
            return trail.state
        state = GroupState(exists=True, frontier=self.row.pruned_to)
        if self.row.pruned_to:
            state.settled.add(1, self.row.pruned_to)
        return state

    def _waits(self, name: str, facts: GroupFacts) -> bool:
        seen = facts.trail.seq or facts.trail.findings or facts.dead.total
        return name in self.row.groups and not seen

    def _passed_over(self, name: str, facts: GroupFacts) -> Iterator[Finding]:
        """A group begins behind what is pruned; nothing may be pruned from under one that waits."""
        made_ms, pruned_ms = self.row.groups.get(name), self.row.pruned_ms
        if made_ms is None or pruned_ms is None or made_ms + GROUP_SLACK_MS >= pruned_ms:
            return
        begun_ms = facts.trail.begun_ms
        came_late = begun_ms is not None and begun_ms > pruned_ms + GROUP_SLACK_MS
        if came_late or self._waits(name, facts):
            what = "messages were pruned before the group came to them, up to version"
            yield Finding(what, 0, self.row.pruned_to)

    def _overrun(self, trail: Trail) -> Iterator[Finding]:
        """A commit adds one row to a group at the most."""
        commits = self.row.commit_seq
        if commits is not None and trail.seq > commits:
            yield Finding("more control rows than the shard has commits", commits, trail.seq)


class Inspection:
    """Some lanes, gathered row by row."""

    def __init__(self, rows: list[LaneRow]) -> None:
        self._lanes = {row.lane_id: LaneFacts(row) for row in rows}

    async def run(self, conn: psycopg.AsyncConnection, audit: Audit, now_ms: int) -> None:
        """Read all there is about these lanes, then judge each."""
        lanes = {"lane_ids": list(self._lanes)}
        await store.each(conn, _BATCHES, lanes, self._on_batch)
        await store.each(conn, _DELIVERIES, lanes, self._on_delivery)
        await store.each(conn, _DUPLICATES, {**lanes, "slack_ms": DEDUPE_SLACK_MS}, self._on_double)
        await store.each(conn, _DEAD, lanes, self._on_dead)
        await store.each_checkpoint(conn, _CHECKPOINTS, lanes, self._on_checkpoint)
        await store.each(conn, _CONTROL, {**lanes, **_FROM_START}, self._on_control)
        for lane in self._lanes.values():
            lane.judge(audit, now_ms)

    def _on_batch(self, lane_id: int, base: int, count: int, *lengths: int | None) -> None:
        self._lanes[lane_id].census.add(base, count, lengths)

    def _on_delivery(self, lane_id: int, version: int, deliver_ms: int) -> None:
        self._lanes[lane_id].census.lane.schedule.defer(version, deliver_ms)

    def _on_double(self, lane_id: int, count: int, version: int) -> None:
        what = f"duplicate transaction id, first at version {version}"
        self._lanes[lane_id].findings.append(Finding(what, 0, count))

    def _on_dead(self, lane_id: int, group: str, version: int) -> None:
        facts = self._lanes[lane_id].group(group)
        if version in facts.dead:
            facts.findings.append(Finding("a second dead letter of version", 0, version))
        facts.dead.add(version, version)

    def _on_checkpoint(self, stored: store.Stored) -> None:
        lane_id, group = stored.key
        self._lanes[lane_id].group(group).trail.keep(stored)

    def _on_control(self, lane_id: int, group: str, seq: int, events: bytes) -> None:
        self._lanes[lane_id].group(group).trail.add(seq, events)


async def run(database_url: str, org: str | None = None, statement_s: float = 0) -> Audit:
    """Audit every lane of every live queue, or of those of one org.

    A statement may take so long; 0: as long as it likes.
    """
    conn = await connect(database_url, application_name="spillway audit")
    try:
        await conn.execute(_LIMIT, {"ms": round(statement_s * 1000)})
        await conn.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
        await conn.set_read_only(True)
        async with conn.transaction():
            return await _audit(conn, org)
    except psycopg.Error as error:
        raise classify(error, database_url) from error
    finally:
        await conn.close()


async def _audit(conn: psycopg.AsyncConnection, org: str | None) -> Audit:
    audit = Audit()
    now_ms = await _value(conn, _NOW)
    orphans = 0 if org is not None else await _value(conn, _ORPHANS)  # they are of no org
    if orphans:
        audit.note(("", "", ""), [Finding("batches of lanes that do not exist", 0, orphans)])
    after = 0
    while rows := await _page(conn, org, after):
        for some in _portions(rows):
            await Inspection(some).run(conn, audit, now_ms)
        after = rows[-1].lane_id
    return audit


async def _value(conn: psycopg.AsyncConnection, query: LiteralString) -> int:
    row = await (await conn.execute(query)).fetchone()
    return int(row[0]) if row else 0


async def _page(conn: psycopg.AsyncConnection, org: str | None, after: int) -> list[LaneRow]:
    async with conn.cursor(row_factory=class_row(LaneRow)) as cursor:
        await cursor.execute(_LANES, {"org": org, "after": after, "limit": LANES_MAX})
        return await cursor.fetchall()


def _portions(rows: list[LaneRow]) -> Iterator[list[LaneRow]]:
    """As many lanes at a time as their checkpoints allow."""
    portion: list[LaneRow] = []
    size = 0
    for row in rows:
        size += row.checkpoint_bytes
        if portion and size > CHECKPOINT_BYTES_MAX:
            yield portion
            portion, size = [], row.checkpoint_bytes
        portion.append(row)
    if portion:
        yield portion
