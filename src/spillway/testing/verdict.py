"""The verdict on traffic: its books and the URL of the database in, nothing out, or an error.

The database alone is the witness. Every message that a producer was told of is there once, where
it was told to be, behind those that it pushed before; every settlement that was answered holds.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from typing import Any

import psycopg

from spillway.core import events as ev
from spillway.core.audit import Audit
from spillway.log import audit
from spillway.log import events as codec
from spillway.testing.traffic import Books, Place

SHOWN_MAX = 5

Row = tuple[str, str, int, str, dict[str, Any], str | None]


async def judge(url: str, books: Books, *, whole_log: bool = False) -> Audit:
    """Everything; `whole_log`: no control event was trimmed, so each one can be looked at."""
    result = await audit.run(url)
    assert result.differences == [], result.differences
    assert not books.wrongs, shown(books.wrongs)
    with psycopg.connect(url) as conn:
        judge_messages(conn, books)
        judge_dead_letters(conn, books)
        if whole_log:
            judge_control_log(conn, books)
    return result


def shown(things: Iterable[object]) -> str:
    """The first of them, and how many there are."""
    everything = sorted(map(str, things))
    return f"{len(everything)}: {', '.join(everything[:SHOWN_MAX])} …"


# ---------------------------------------------------------------- messages


def judge_messages(conn: psycopg.Connection, books: Books) -> None:
    """Every message is there once, where it was said to be, in the order of its producer."""
    rows: list[Row] = [
        (queue, partition, version, transaction_id, json.loads(bytes(payload)), key)
        for queue, partition, version, transaction_id, payload, key in conn.execute(
            "SELECT queue, partition, version, transaction_id, payload, key"
            " FROM spillway.message ORDER BY lane_id, version"
        )
    ]
    found = {row[3]: Place(*row[:3]) for row in rows}
    twice = [tx for tx, count in Counter(row[3] for row in rows).items() if count > 1]
    assert not twice, f"stored twice: {shown(twice)}"
    lost = books.told.keys() - found.keys()
    assert not lost, f"lost: {shown(lost)}"
    unknown = found.keys() - books.told.keys()
    assert not unknown, f"nobody was told of {shown(unknown)}"
    moved = [tx for tx, place in books.told.items() if place not in {None, found[tx]}]
    assert not moved, f"elsewhere than was told: {shown(moved)}"
    _judge_lanes(rows)
    _judge_producers(rows)
    settled = books.acked.keys() | books.parked | books.perhaps_parked
    left = [
        place for place in found.values() if place.queue in books.drained and place not in settled
    ]
    assert not left, f"no consumer settled {shown(left)}"


def _judge_lanes(rows: Collection[Row]) -> None:
    """Versions are dense, and a key has one lane."""
    versions: dict[tuple[str, str], list[int]] = defaultdict(list)
    lanes_of: dict[tuple[str, str], set[str]] = defaultdict(set)
    for queue, partition, version, _, _, key in rows:
        versions[queue, partition].append(version)
        if key is not None:
            lanes_of[queue, key].add(partition)
    for lane, seen in versions.items():
        assert seen == list(range(1, len(seen) + 1)), f"the versions of {lane} are not dense"
    spread = [key for key, lanes in lanes_of.items() if len(lanes) > 1]
    assert not spread, f"keys in more than one partition: {shown(spread)}"


def _judge_producers(rows: Collection[Row]) -> None:
    """Each producer's numbers are all there, in its order."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        numbers[row[4]["by"]].append(row[4]["n"])
    for by, seen in numbers.items():
        wrong = [n for n, m in enumerate(seen) if n != m][:SHOWN_MAX]
        assert not wrong, f"at {wrong} of {by}'s numbers stands {[seen[n] for n in wrong]}"


# ---------------------------------------------------------------- settlements


def judge_dead_letters(conn: psycopg.Connection, books: Books) -> None:
    """Each message that was parked is a dead letter, once, and nothing else is."""
    rows = [
        Place(*row)
        for row in conn.execute(
            "SELECT q.name, l.partition, d.version FROM spillway.dead_letter d"
            " JOIN spillway.lane l USING (lane_id) JOIN spillway.queue q ON q.queue_id = l.queue_id"
        )
    ]
    assert len(set(rows)) == len(rows), "two dead letters of one message"
    assert books.parked <= set(rows) <= books.parked | books.perhaps_parked


def judge_control_log(conn: psycopg.Connection, books: Books) -> None:
    """In the whole log no version is leased after it was acked, and every told ack is there."""
    acked: dict[tuple[str, str], set[int]] = defaultdict(set)
    rows = conn.execute(
        "SELECT q.name, l.partition, e.events FROM spillway.control_event e"
        " JOIN spillway.lane l USING (lane_id) JOIN spillway.queue q USING (queue_id)"
        ' ORDER BY e.lane_id, e."group", e.seq'
    )
    for queue, partition, events in rows:
        for _, event in codec.decode(events):
            if isinstance(event, ev.Acked | ev.Leased):
                versions = {v for start, end in event.ranges for v in range(start, end + 1)}
                again = versions & acked[queue, partition]
                assert not again, f"{event} touches {again}, acked before"
                if isinstance(event, ev.Acked):
                    acked[queue, partition] |= versions
    logged = {Place(q, p, v) for (q, p), versions in acked.items() for v in versions}
    assert logged == books.acked.keys()
