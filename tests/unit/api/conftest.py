"""A stand-in broker and a driver that calls the ASGI callable directly: tests of the skin alone."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from spillway import wire
from spillway.api.limits import Limits
from spillway.api.server import make_app
from spillway.core.errors import UnauthorizedError

NOW = "2026-01-01T00:00:00Z"
ONE = msgspec.Raw(b"1")
IDLE = {"oldest_ready_at": None, "paused": False}
COUNTS = (
    "depth",
    "ready",
    "deferred",
    "leased",
    "blocked",
    "parked",
    "dropped",
    "settled",
    "ack_hole_ranges",
)
KEYS = {"k-acme": ("acme", "ci")}


def group_counts(group: str) -> wire.GroupCounts:
    return msgspec.convert(dict.fromkeys(COUNTS, 0) | {"group": group} | IDLE, wire.GroupCounts)


def queue_reply(org: str, name: str, options: wire.QueueOptions) -> wire.QueueReply:
    return wire.QueueReply(
        queue=name,
        org=org,
        created_at=NOW,
        paused=False,
        options=options,
        lanes=1,
        tail=0,
        groups=[group_counts("default")],
    )


def leased(version: int, item: wire.PushItem) -> wire.Message:
    return wire.Message(
        receipt=f"r{version}",
        queue=item.queue,
        partition=item.partition or "Default",
        version=version,
        key=item.key,
        payload=item.payload,
        headers=item.headers,
        attempt=1,
        transaction_id=item.transaction_id or f"t{version}",
        enqueued_at=NOW,
        priority=item.priority,
    )


def browsed(version: int, payload: Any = ONE) -> wire.BrowsedMessage:
    return wire.BrowsedMessage(
        partition="Default",
        version=version,
        key=None,
        payload=payload,
        headers=None,
        transaction_id=f"t{version}",
        enqueued_at=NOW,
        priority=2,
        deliver_at=None,
        expires_at=None,
        state="ready",
        attempts=0,
    )


SPOOL = wire.SpoolReply(
    counting=False,
    folder="/spool",
    pending=0,
    unwritten=0,
    bytes=0,
    bytes_max=1,
    oldest_s=0.0,
    age_max_s=1.0,
    disk_free=1,
    files=0,
    failed=0,
    lost=0,
    accepted=0,
    refused=0,
    replayed=0,
    revived=0,
    discarded=0,
    rate=0.0,
    database="connected",
    breaker="closed",
    hold=None,
    queues=[],
    held=[],
    foreign=[],
)


@dataclass
class StandInSpool:
    """The spool of the stand-in broker; it notes with it what it was asked."""

    asked: Callable[..., None]
    events_shown: list[wire.SpoolEvent] = field(default_factory=list)

    async def status(self):
        self.asked("spool")
        return SPOOL

    async def files(self, place, after, limit):
        self.asked("files", place, after, limit)
        return wire.SpoolFilesReply(files=[])

    async def events(self, file, place, from_line, limit):
        self.asked("events", file, place, from_line, limit)
        return wire.SpoolEventsReply(file=file, state=place, events=self.events_shown)

    async def verify(self, request):
        self.asked("verify", request)
        return wire.SpoolVerifyReply(sound=True, files=[])

    async def repair(self, request, actor):
        self.asked("repair", request, actor)
        return wire.VerbReply(verb="repair", affected=1)

    async def retry(self, request, actor):
        self.asked("retry", request, actor)
        return wire.SpoolRetryReply(verb="retry", affected=0)

    async def discard(self, request, actor):
        self.asked("discard", request, actor)
        return wire.VerbReply(verb="discard", affected=0)

    async def hold(self, request, actor):
        self.asked("hold", request, actor)
        return SPOOL

    async def release(self, request, actor):
        self.asked("release", request, actor)
        return SPOOL


@dataclass
class StandIn:
    """Remembers what it was asked, answers something plausible, raises what it is told to."""

    calls: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    pushed: list[wire.PushItem] = field(default_factory=list)
    waiting: list[wire.Message] = field(default_factory=list)
    reason: str = "empty"
    error: BaseException | None = None
    push_errors: dict[int, wire.ErrorDetail] = field(default_factory=dict)
    status: str = "ok"
    families: tuple[Any, ...] = ()
    hold: asyncio.Event | None = None
    holding: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: bool = False

    def __post_init__(self) -> None:
        self.spoolkeeping = StandInSpool(self.asked)

    @property
    def operations(self) -> "StandIn":
        return self

    @property
    def keys(self) -> "StandIn":
        return self

    @property
    def insights(self) -> "StandIn":
        return self

    def asked(self, what: str, *arguments: Any) -> None:
        self.calls.append((what, arguments))
        if self.error is not None:
            raise self.error

    async def held(self) -> None:
        """Stay here until the test lets go, and notice a cancellation."""
        if self.hold is None:
            return
        self.holding.set()
        try:
            await self.hold.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise

    async def authenticate(self, key):
        if key not in KEYS:
            raise UnauthorizedError
        return KEYS[key]

    async def push(self, org, items, *, qos=1):
        self.asked("push", org, items, qos)
        await self.held()
        return [self._pushed(index, item) for index, item in enumerate(items)]

    def _pushed(self, index: int, item: wire.PushItem) -> wire.PushResult:
        if index in self.push_errors:
            error = self.push_errors[index]
            return wire.PushResult(index=index, status="failed", error=error)
        self.pushed.append(item)
        return wire.PushResult(
            index=index, status="stored", partition="Default", version=len(self.pushed)
        )

    async def lease(self, org, queue, request):
        self.asked("lease", org, queue, request)
        await self.held()
        messages, self.waiting = self.waiting, []
        return wire.LeaseReply(messages=messages, reason=None if messages else self.reason)

    def give_back(self, messages):
        self.asked("give_back", list(messages))

    async def settle(self, org, request):
        self.asked("settle", org, request)
        if request.lease is not None:
            await self.held()
        messages, self.waiting = self.waiting, []
        results = [wire.SettleResult(receipt=receipt, status="acked") for receipt in request.ack]
        return wire.SettleReply(results=results, messages=messages if request.lease else None)

    async def put_queue(self, org, name, options, actor):
        self.asked("put_queue", org, name, options, actor)
        return name != "old", queue_reply(org, name, options)

    async def patch_queue(self, org, name, patch, actor):
        self.asked("patch_queue", org, name, patch, actor)
        return queue_reply(org, name, wire.QueueOptions())

    async def get_queue(self, org, name):
        self.asked("get_queue", org, name)
        return queue_reply(org, name, wire.QueueOptions())

    async def list_queues(self, org, after, limit):
        self.asked("list_queues", org, after, limit)
        return wire.QueueListReply(queues=[queue_reply(org, "q", wire.QueueOptions())])

    async def delete_queue(self, org, name, actor, reason):
        self.asked("delete_queue", org, name, actor, reason)
        return wire.DeletedReply(deleted=name)

    async def put_group(self, org, queue, group, options, actor):
        self.asked("put_group", org, queue, group, options, actor)
        return group != "old", group_counts(group)

    async def get_group(self, org, queue, group):
        self.asked("get_group", org, queue, group)
        return group_counts(group)

    async def list_groups(self, org, queue):
        self.asked("list_groups", org, queue)
        return [group_counts("default")]

    async def delete_group(self, org, queue, group, actor):
        self.asked("delete_group", org, queue, group, actor)
        return wire.DeletedReply(deleted=group)

    async def browse(self, org, queue, **query):
        self.asked("browse", org, queue, query)
        messages = [browsed(n, item.payload) for n, item in enumerate(self.pushed, 1)]
        return wire.BrowseReply(messages=messages)

    async def story(self, org, queue, partition, version, group):
        self.asked("story", org, queue, partition, version, group)
        return wire.StoryReply(message=browsed(version), story=[])

    async def dead(self, org, queue, **query):
        self.asked("dead", org, queue, query)
        return wire.DeadReply(dead=[], total=0)

    async def blocked(self, org, queue, *, group, limit, next):  # noqa: A002
        self.asked("blocked", org, queue, group, limit, next)
        return wire.BlockedReply(blocked=[])

    async def health(self):
        return wire.HealthReply(
            status=self.status,
            ready=self.status == "ok",
            database="connected",
            version="0",
            uptime_s=1.0,
            shards_owned=4,
            shards_total=4,
            spool=wire.SpoolHealth(
                pending=0,
                bytes=0,
                oldest_s=0.0,
                failed=0,
                held=False,
                breaker="closed",
                disk_free_bytes=1,
                replay_rate=0.0,
            ),
        )

    def is_broker(self, secret):
        return secret == b"among brokers"

    async def take(self, source, body, *, aside):
        self.asked("take", source, body, aside)
        return wire.SpoolTaken(stored=[0], refused=[], held=[])

    async def metrics(self, by=()):
        return self.families

    async def topology(self):
        self.asked("topology")
        return wire.TopologyReply(num_shards=4, shards=[], brokers=[])

    async def audit(self, org):
        self.asked("audit", org)
        return wire.AuditReply(
            balanced=True, lanes=0, groups=0, messages=0, totals={}, differences=[]
        )


def _verb(name: str) -> Callable[..., Any]:
    async def act(self, org, queue, request, actor):
        self.asked(name, org, queue, request, actor)
        return wire.VerbReply(verb=name, affected=0)

    return act


for _name in ("redrive", "unblock", "park", "purge", "seek", "pause", "resume"):
    setattr(StandIn, _name, _verb(_name))


@dataclass
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def msgpack(self) -> Any:
        return msgspec.msgpack.decode(self.body)

    @property
    def code(self) -> str:
        return self.json["error"]["code"]


class Exchange:
    """The server's side of one request: pieces of body in, the answer out, a cord to pull."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self.pieces = list(pieces) or [b""]
        self.given = 0
        self.gone = asyncio.Event()
        self.sent: list[dict[str, Any]] = []

    async def receive(self) -> dict[str, Any]:
        if self.gone.is_set() or self.given == len(self.pieces):
            await self.gone.wait()
            return {"type": "http.disconnect"}
        piece = self.pieces[self.given]
        self.given += 1
        more = self.given < len(self.pieces)
        return {"type": "http.request", "body": piece, "more_body": more}

    async def send(self, event: dict[str, Any]) -> None:
        self.sent.append(event)
        if not event.get("more_body", True):
            self.gone.set()

    @property
    def answer(self) -> Answer | None:
        if not self.sent:
            return None
        head, *rest = self.sent
        headers = {name.decode(): value.decode() for name, value in head["headers"]}
        body = b"".join(event.get("body", b"") for event in rest)
        assert int(headers["content-length"]) == len(body)
        return Answer(head["status"], headers, body)


class Skin:
    """Calls the ASGI callable as a server would."""

    def __init__(self, broker: StandIn, limits: Limits) -> None:
        self.app = make_app(broker, limits)

    async def __call__(self, method, url, body=b"", *, pieces=None, **headers) -> Answer:
        exchange = self.open(method, url, body, pieces=pieces, **headers)
        await self.app(exchange.scope, exchange.receive, exchange.send)
        assert exchange.answer is not None
        return exchange.answer

    def open(self, method, url, body=b"", *, pieces=None, **headers) -> Exchange:
        exchange = Exchange([body] if pieces is None else pieces)
        raw_path, _, query = url.encode().partition(b"?")
        given = [
            (name.replace("_", "-").lower().encode(), value.encode())
            for name, value in headers.items()
        ]
        if body and pieces is None:
            given.append((b"content-length", b"%d" % len(body)))
        exchange.scope = {
            "type": "http",
            "method": method,
            "path": url.partition("?")[0],
            "raw_path": raw_path,
            "query_string": query,
            "headers": given,
            "client": ("192.0.2.7", 4711),
        }
        return exchange


@pytest.fixture
def broker() -> StandIn:
    return StandIn()


@pytest.fixture
def limits() -> Limits:
    return Limits(request_bytes_max=10_000, items_max=20)


@pytest.fixture
def skin(broker: StandIn, limits: Limits) -> Skin:
    return Skin(broker, limits)


@pytest.fixture
def make_message() -> Callable[..., wire.Message]:
    """A leased message with the given payload (`Raw` of JSON text, or bytes)."""

    def make(payload: Any, version: int = 1) -> wire.Message:
        return leased(version, wire.PushItem(queue="q", payload=payload))

    return make
