"""The calls beside the message path: queues, groups, looking, operator verbs, health."""

from datetime import datetime
from typing import Any, Literal, TypedDict, TypeVar, Unpack

import msgspec

from spillway.client.errors import ClientUsageError
from spillway.client.protocol import Request, at, get, json_reply, query, send, text_reply
from spillway.core.errors import UnknownOptionError
from spillway.wire import (
    AuditReply,
    BlockedReply,
    BrowseReply,
    DeadReply,
    DeletedReply,
    GroupCounts,
    GroupListReply,
    GroupOptions,
    HealthReply,
    MessageName,
    ParkRequest,
    PauseRequest,
    PurgeRequest,
    QueueListReply,
    QueueOptions,
    QueuePatch,
    QueueReply,
    RedriveRequest,
    SeekRequest,
    StoryReply,
    TopologyReply,
    UnblockRequest,
    VerbReply,
    moment_of,
)

T = TypeVar("T")

_queue = json_reply(QueueReply)
_queues = json_reply(QueueListReply)
_group = json_reply(GroupCounts)
_groups = json_reply(GroupListReply)
_deleted = json_reply(DeletedReply)
_browse = json_reply(BrowseReply)
_story = json_reply(StoryReply)
_dead = json_reply(DeadReply)
_blocked = json_reply(BlockedReply)
_verb = json_reply(VerbReply)
_health = json_reply(HealthReply)
_live = json_reply(dict[str, str])
_topology = json_reply(TopologyReply)
_facts = json_reply(dict[str, Any])
_audit = json_reply(AuditReply)


class Options(TypedDict, total=False):
    """The options of a queue, as keywords."""

    partitions: int
    order: Literal["none", "key", "partition"]
    max_attempts: int
    on_exhausted: Literal["park", "block", "drop"]
    visibility_ms: int
    backoff_base_ms: int
    backoff_cap_ms: int
    max_ack_holes: int
    max_depth: int
    dedupe_window_ms: int
    dedupe_count: int
    retention_ms: int
    in_memory_queue_size: int


class Selected(TypedDict, total=False):
    """Which messages a verb means, as keywords."""

    group: str
    messages: list[MessageName]
    partition: str
    key: str
    error_contains: str
    before: datetime
    all: bool
    limit: int
    dry_run: bool
    reason: str | None


def _start(start: str | datetime) -> str:
    text = start.isoformat() if isinstance(start, datetime) else start
    try:
        moment_of(text)
    except msgspec.ValidationError as error:
        raise ClientUsageError(f"{text!r} is not earliest, latest or a time with a zone") from error
    return text


def options_as(kind: type[T], given: Options) -> T:
    """The keywords as the wire's struct, checked before they travel."""
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise UnknownOptionError(str(error)) from error


# ---------------------------------------------------------------- queues and groups


def queues(*, limit: int | None = None, after: str | None = None) -> Request[QueueListReply]:
    """A page of queues with their counts."""
    return get(at("queues") + query(limit=limit, after=after), _queues)


def queue(name: str) -> Request[QueueReply]:
    """A queue: options, counts by group."""
    return get(at("queues", name), _queue)


def create_queue(name: str, **options: Unpack[Options]) -> Request[QueueReply]:
    """Make a queue with these options; does nothing when it is there with the same ones."""
    checked = options_as(QueueOptions, options)
    given = {option: getattr(checked, option) for option in options}  # the broker fills in the rest
    return send("PUT", at("queues", name), given, _queue, safe=True)


def update_queue(name: str, **options: Unpack[Options]) -> Request[QueueReply]:
    """Change these options of a queue; the others stay."""
    body = options_as(QueuePatch, options)
    return send("PATCH", at("queues", name), body, _queue, safe=True)


def delete_queue(name: str, *, reason: str | None = None) -> Request[DeletedReply]:
    """Delete a queue with all its messages."""
    return Request("DELETE", at("queues", name) + query(reason=reason), _deleted)


def groups(queue: str) -> Request[list[GroupCounts]]:
    """The consumer groups of a queue with their counts."""
    return get(at("queues", queue, "groups"), lambda response: _groups(response).groups)


def create_group(
    queue: str, group: str, *, start: str | datetime = "earliest"
) -> Request[GroupCounts]:
    """Make a consumer group that starts at `earliest`, `latest` or a time."""
    return send(
        "PUT",
        at("queues", queue, "groups", group),
        GroupOptions(start=_start(start)),
        _group,
        safe=True,
    )


def group(queue: str, group: str) -> Request[GroupCounts]:
    """A consumer group with its counts."""
    return get(at("queues", queue, "groups", group), _group)


def delete_group(queue: str, group: str) -> Request[DeletedReply]:
    """Delete a consumer group and its position."""
    return Request("DELETE", at("queues", queue, "groups", group), _deleted)


# ---------------------------------------------------------------- looking


def browse(
    queue: str,
    *,
    group: str | None = None,
    partition: str | None = None,
    from_version: int | None = None,
    limit: int | None = None,
    state: str | None = None,
    next: str | None = None,  # noqa: A002 (the wire's word)
) -> Request[BrowseReply]:
    """A page of messages, looked at without leasing them."""
    fields = query(
        group=group,
        partition=partition,
        from_version=from_version,
        limit=limit,
        state=state,
        next=next,
    )
    return get(at("queues", queue, "messages") + fields, _browse)


def story(
    queue: str, partition: str, version: int, *, group: str | None = None
) -> Request[StoryReply]:
    """A message and everything that happened to it."""
    return get(at("queues", queue, "messages", partition, version) + query(group=group), _story)


def dead(
    queue: str,
    *,
    group: str | None = None,
    limit: int | None = None,
    after: int | None = None,
    partition: str | None = None,
    key: str | None = None,
    error_contains: str | None = None,
    before: datetime | None = None,
) -> Request[DeadReply]:
    """A page of dead letters, oldest first."""
    fields = query(
        group=group,
        limit=limit,
        after=after,
        partition=partition,
        key=key,
        error_contains=error_contains,
        before=before,
    )
    return get(at("queues", queue, "dead") + fields, _dead)


def blocked(
    queue: str,
    *,
    group: str | None = None,
    limit: int | None = None,
    next: str | None = None,  # noqa: A002 (the name it has on the wire)
) -> Request[BlockedReply]:
    """A page of the messages that hold their line until an operator decides."""
    fields = query(group=group, limit=limit, next=next)
    return get(at("queues", queue, "blocked") + fields, _blocked)


# ---------------------------------------------------------------- operator verbs


def _verb_call(queue: str, verb: str, body: object, *, safe: bool = False) -> Request[VerbReply]:
    return send("POST", at("queues", queue, verb), body, _verb, safe=safe)


def redrive(
    queue: str, *, ids: list[int] | None = None, **selection: Unpack[Selected]
) -> Request[VerbReply]:
    """Dead letters back to their lanes, with fresh attempts."""
    return _verb_call(queue, "redrive", RedriveRequest(ids=ids, **selection))


def unblock(
    queue: str,
    *,
    action: Literal["retry", "skip", "park"] = "retry",
    **selection: Unpack[Selected],
) -> Request[VerbReply]:
    """Free blocked messages: retry with fresh attempts, skip, or park."""
    return _verb_call(queue, "unblock", UnblockRequest(action=action, **selection))


def park(queue: str, **selection: Unpack[Selected]) -> Request[VerbReply]:
    """Give up on waiting messages by hand."""
    return _verb_call(queue, "park", ParkRequest(**selection))


def purge(
    queue: str,
    *,
    what: Literal["waiting", "dead"],
    ids: list[int] | None = None,
    **selection: Unpack[Selected],
) -> Request[VerbReply]:
    """Settle what waits, or delete dead letters."""
    return _verb_call(queue, "purge", PurgeRequest(what=what, ids=ids, **selection))


def seek(
    queue: str,
    to: str | datetime | int,
    *,
    group: str = "default",
    partition: str | None = None,
    reason: str | None = None,
) -> Request[VerbReply]:
    """Move a group to `earliest`, `latest`, a time, or a version of one partition."""
    if isinstance(to, int) and partition is None:
        raise ClientUsageError("a version is a place in one partition: name the partition")
    target = to if isinstance(to, int) else _start(to)
    body = SeekRequest(group=group, to=target, partition=partition, reason=reason)
    return _verb_call(queue, "seek", body, safe=True)


def pause(queue: str, *, group: str | None = None, reason: str | None = None) -> Request[VerbReply]:
    """Stop leasing from a queue, or for one group of it."""
    return _verb_call(queue, "pause", PauseRequest(group=group, reason=reason), safe=True)


def resume(
    queue: str, *, group: str | None = None, reason: str | None = None
) -> Request[VerbReply]:
    """Start leasing again."""
    return _verb_call(queue, "resume", PauseRequest(group=group, reason=reason), safe=True)


# ---------------------------------------------------------------- the broker itself


def health() -> Request[HealthReply]:
    """How the broker is; a degraded one answers all the same."""
    return get("/health", _health)


def live() -> Request[dict[str, str]]:
    """Answers as soon as the process does."""
    return get("/health/live", _live)


def ready() -> Request[HealthReply]:
    """How the broker is, once it serves."""
    return Request("GET", "/health/ready", _health, safe=True, expects=frozenset({503}))


def topology() -> Request[TopologyReply]:
    """Shards, their owners, and the brokers."""
    return get(at("topology"), _topology)


def metrics() -> Request[dict[str, Any]]:
    """The metrics as JSON."""
    return get("/metrics", _facts)


def metrics_text() -> Request[str]:
    """The metrics in the Prometheus text format."""
    return Request("GET", "/metrics", text_reply, headers={"accept": "text/plain"}, safe=True)


def audit() -> Request[AuditReply]:
    """The conservation law, checked by the broker from the log itself."""
    return get(at("audit"), _audit)
