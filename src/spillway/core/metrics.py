"""Metric families as plain values: whoever knows a fact states it, a skin renders it.

DECLARED is the whole list, in one place: the reference page is generated from it, and nothing else
can be emitted.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from spillway.core.errors import invariant

Kind = Literal["gauge", "counter", "histogram"]

QUEUE = ("org", "queue")
SHARD = ("shard",)
OTHER = "other"
"""Where the queues beyond the shown ones are summed up (with an empty org, which no queue has)."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One series. A histogram's samples carry the suffixes `_bucket`, `_sum` and `_count`."""

    labels: Mapping[str, str]
    value: float
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """The series of one name; `help` names the trouble that a rise means."""

    name: str
    kind: Kind
    help: str
    samples: tuple[Sample, ...] = ()


@dataclass(frozen=True, slots=True)
class Declaration:
    """What there is to know about a family before it has a value."""

    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


def gauge(text: str, labels: tuple[str, ...] = ()) -> Declaration:
    """A value that goes up and down."""
    return Declaration("gauge", text, labels)


def counter(text: str, labels: tuple[str, ...] = QUEUE) -> Declaration:
    """A count since the start of the process."""
    return Declaration("counter", text, labels)


DECLARED: dict[str, Declaration] = {
    # ------------------------------------------------------------ queues, as they are now
    "spillway_queue_oldest_ready_seconds": gauge(
        "How long a message that could be leased has been due: consumers are few, slow or gone.",
        QUEUE,
    ),
    "spillway_queue_depth": gauge(
        "Messages still to be handled, summed over groups: pushes outrun consumers.", QUEUE
    ),
    "spillway_queue_ready": gauge(
        "Messages that could be leased now: consumers do not keep up.", QUEUE
    ),
    "spillway_queue_deferred": gauge(
        "Messages that wait for a time: failures are being retried, or much is delayed.", QUEUE
    ),
    "spillway_queue_in_flight": gauge(
        "Messages that consumers hold: handling has become slow, or consumers hang.", QUEUE
    ),
    "spillway_queue_blocked": gauge(
        "Messages that hold their line until an operator decides: unblock them.", QUEUE
    ),
    "spillway_queue_parked": gauge(
        "Dead letters: messages that consumers cannot handle; look, mend, redrive.", QUEUE
    ),
    "spillway_queue_tail": gauge(
        "Messages ever pushed: its slope is the rate of pushes; a flat line is a silent producer.",
        QUEUE,
    ),
    "spillway_queue_ack_hole_ranges": gauge(
        "Gaps between settled messages: some are stuck; at max_ack_holes new ones wait.", QUEUE
    ),
    "spillway_warm_messages": gauge(
        "Bodies at hand: memory in use, bounded by in_memory_queue_size.", QUEUE
    ),
    "spillway_cold_messages": gauge(
        "Bodies that will be read from PostgreSQL: the backlog outgrew in_memory_queue_size.", QUEUE
    ),
    "spillway_waiting_consumers": gauge(
        "Leases that wait for a message: more consumers than work.", QUEUE
    ),
    # ------------------------------------------------------------ queues, since the start
    "spillway_queue_produced_total": counter("Messages stored: a rise is more load."),
    "spillway_queue_duplicates_total": counter(
        "Repeated pushes answered with the first version: producers retry, so replies get lost."
    ),
    "spillway_queue_refused_total": counter(
        "Pushes refused at max_depth: consumers are behind and messages stay with producers."
    ),
    "spillway_queue_consumed_total": counter(
        "Messages leased: above acked, the same work is done again."
    ),
    "spillway_queue_acked_total": counter("Messages acked: a fall is the trouble, work stops."),
    "spillway_queue_nacked_total": counter("Messages given back: consumers fail."),
    "spillway_queue_redelivered_total": counter(
        "Messages that came back because a lease expired: consumers crash or are too slow."
    ),
    "spillway_queue_expired_leases_total": counter(
        "Leases that passed their deadline: raise visibility_ms, extend, or mend the consumer."
    ),
    "spillway_queue_parked_total": counter("Messages given up on: poison, or a broken consumer."),
    "spillway_queue_blocked_total": counter("Messages that began to hold their line."),
    "spillway_queue_dropped_total": counter(
        "Messages thrown away by rule: out of attempts on a `drop` queue, or past their ttl."
    ),
    "spillway_queue_redriven_total": counter("Dead letters sent back: somebody repairs by hand."),
    "spillway_queue_purged_total": counter(
        "Messages or dead letters deleted by hand: was it meant?"
    ),
    "spillway_queue_snapshot_oversize_skipped_total": counter(
        "Checkpoints over 12 MiB, split in parts: a group has far too many holes or leases.", ()
    ),
    # ------------------------------------------------------------ the broker
    "spillway_shard_owned": gauge(
        "1 where this broker writes the shard: a fall means that it lost it.", SHARD
    ),
    "spillway_shard_epoch": gauge(
        "How often the shard changed hands: brokers restart, or lose their leases.", SHARD
    ),
    "spillway_draft_messages": gauge(
        "Messages that wait for their commit: PostgreSQL is slower than the pushes.", SHARD
    ),
    "spillway_lanes_in_memory": gauge(
        "Lanes held in memory: more partitions are in use than before.", SHARD
    ),
    "spillway_lanes_uncounted": gauge(
        "Lanes that the gauges above do not know yet: the broker has just started, or is too busy."
    ),
    "spillway_commit_seconds": Declaration(
        "histogram", "Time of a commit: the disk or the network of PostgreSQL has become slow."
    ),
    "spillway_commit_messages": Declaration(
        "histogram", "Messages in a commit: larger ones mean that more requests share each."
    ),
    "spillway_checkpoints_written_total": counter("Checkpoints saved: much is changing.", ()),
    "spillway_checkpoint_fallbacks_total": counter(
        "Checkpoints that could not be used: they are damaged; the log answered instead.", ()
    ),
    "spillway_pruned_messages_total": counter(
        "Messages removed after their retention; while it is flat and pushes go on, disks fill.", ()
    ),
    # ------------------------------------------------------------ the spool, as it is now
    "spillway_spool_pending": gauge(
        "Events that wait in files: PostgreSQL is away, or the spool is held, or lanes cannot go."
    ),
    "spillway_spool_failed": gauge(
        "Events set aside in failed/: the rules refuse them; look, repair, retry or discard."
    ),
    "spillway_spool_db_healthy": gauge(
        "1 while PostgreSQL answers: a fall is the trouble, pushes go to files."
    ),
    "spillway_spool_bytes": gauge(
        "Bytes in files that wait: at FILE_BUFFER_BYTES_MAX pushes are refused with 507."
    ),
    "spillway_spool_files": gauge("Files that wait: the replay does not keep up with the pushes."),
    "spillway_spool_oldest_seconds": gauge(
        "Age of the oldest event that waits: at FILE_BUFFER_AGE_MAX_S pushes are refused with 507."
    ),
    "spillway_spool_replay_rate": gauge(
        "Events a second that go from files into the log: while some wait, zero is the trouble."
    ),
    "spillway_spool_breaker_open": gauge(
        "1 while nobody waits for PostgreSQL: it is away, and pushes go straight to files."
    ),
    "spillway_spool_held": gauge(
        "1 while an operator routes pushes to files on purpose: was the release forgotten?"
    ),
    "spillway_spool_lanes_held": gauge(
        "Lanes that the replay passes over: their queues are full, so give them consumers."
    ),
    "spillway_spool_owner_unreachable": gauge(
        "1 while this broker stands by and the owner of the shards takes none of its events."
    ),
    "spillway_spool_disk_free_bytes": gauge(
        "Bytes free on the disk of the spool: near zero a push has nowhere left to go."
    ),
    "spillway_spool_qos0_unwritten": gauge(
        "Pushes of qos 0 that a kill would lose now: the disk of the spool is slow or full."
    ),
    "spillway_spool_queue_events": gauge(
        "Events of a queue that wait in files: its consumers do not see them yet.", QUEUE
    ),
    # ------------------------------------------------------------ the spool, since the start
    "spillway_spool_accepted_total": counter("Pushes taken into files: PostgreSQL was away.", ()),
    "spillway_spool_flushed_total": counter(
        "Events that went from files into the log: above accepted, those of earlier runs.", ()
    ),
    "spillway_spool_refused_total": counter(
        "Pushes that the spool refused: it, or its disk, is full; they stay with producers.", ()
    ),
    "spillway_spool_revived_total": counter(
        "Failed events that went into the log after all: they come behind later ones.", ()
    ),
    "spillway_spool_discarded_total": counter(
        "Events thrown away by hand: was it meant? actions.jsonl says who and why.", ()
    ),
    "spillway_spool_breaker_trips_total": counter(
        "How often PostgreSQL was found away: it is unstable, or too slow.", ()
    ),
    "spillway_spool_qos0_lost_total": counter(
        "Pushes of qos 0 that were answered and could not be written before the end.", ()
    ),
}
"""name → what it is. Every one of these is emitted (a test proves it), and no other."""


def family(name: str, samples: Iterable[Sample]) -> Family:
    """A declared family with its series."""
    declared = DECLARED.get(name)
    invariant(declared is not None, f"metric {name} is not declared in core.metrics")
    assert declared is not None
    return Family(name, declared.kind, declared.help, tuple(samples))
