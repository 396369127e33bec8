"""The broker as this skin sees it."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Protocol

from spillway import wire
from spillway.core.metrics import Family


class Operations(Protocol):
    """What people do by hand: durable and audited before it is answered."""

    async def put_queue(
        self, org: str, name: str, options: wire.QueueOptions, actor: str
    ) -> tuple[bool, wire.QueueReply]:
        """Whether it was made by this call, and the queue."""

    async def patch_queue(
        self, org: str, name: str, patch: wire.QueuePatch, actor: str
    ) -> wire.QueueReply: ...
    async def delete_queue(
        self, org: str, name: str, actor: str, reason: str | None
    ) -> wire.DeletedReply: ...
    async def put_group(
        self, org: str, queue: str, group: str, options: wire.GroupOptions, actor: str
    ) -> tuple[bool, wire.GroupCounts]:
        """Whether it was made by this call, and the group."""

    async def delete_group(
        self, org: str, queue: str, group: str, actor: str
    ) -> wire.DeletedReply: ...
    async def redrive(
        self, org: str, queue: str, request: wire.RedriveRequest, actor: str
    ) -> wire.VerbReply: ...
    async def unblock(
        self, org: str, queue: str, request: wire.UnblockRequest, actor: str
    ) -> wire.VerbReply: ...
    async def park(
        self, org: str, queue: str, request: wire.ParkRequest, actor: str
    ) -> wire.VerbReply: ...
    async def purge(
        self, org: str, queue: str, request: wire.PurgeRequest, actor: str
    ) -> wire.VerbReply: ...
    async def seek(
        self, org: str, queue: str, request: wire.SeekRequest, actor: str
    ) -> wire.VerbReply: ...
    async def pause(
        self, org: str, queue: str, request: wire.PauseRequest, actor: str
    ) -> wire.VerbReply: ...
    async def resume(
        self, org: str, queue: str, request: wire.PauseRequest, actor: str
    ) -> wire.VerbReply: ...


class Insights(Protocol):
    """Questions, which change nothing. `None` for a filter means: do not filter."""

    async def get_queue(self, org: str, name: str) -> wire.QueueReply: ...
    async def list_queues(self, org: str, after: str | None, limit: int) -> wire.QueueListReply: ...
    async def get_group(self, org: str, queue: str, group: str) -> wire.GroupCounts: ...
    async def list_groups(self, org: str, queue: str) -> list[wire.GroupCounts]: ...
    async def browse(
        self,
        org: str,
        queue: str,
        *,
        partition: str | None,
        from_version: int | None,
        limit: int,
        state: str | None,
        group: str,
        next: str | None,  # noqa: A002 (the name it has on the wire)
    ) -> wire.BrowseReply: ...
    async def story(
        self, org: str, queue: str, partition: str, version: int, group: str
    ) -> wire.StoryReply: ...
    async def dead(
        self,
        org: str,
        queue: str,
        *,
        group: str | None,
        partition: str | None,
        key: str | None,
        error_contains: str | None,
        before: datetime | None,
        limit: int,
        after: int | None,
    ) -> wire.DeadReply: ...
    async def blocked(
        self,
        org: str,
        queue: str,
        *,
        group: str | None,
        limit: int,
        next: str | None,  # noqa: A002 (the name it has on the wire)
    ) -> wire.BlockedReply: ...
    async def topology(self) -> wire.TopologyReply: ...
    async def audit(self, org: str | None) -> wire.AuditReply: ...


class Keys(Protocol):
    """Whose request it is."""

    async def authenticate(self, key: str) -> tuple[str, str]:
        """The (org, key name) of an API key; raises UnauthorizedError."""


class Spoolkeeping(Protocol):
    """The operator's work on the spool; it goes on while PostgreSQL is away."""

    async def status(self) -> wire.SpoolReply: ...
    async def files(
        self, place: wire.SpoolPlace, after: str | None, limit: int
    ) -> wire.SpoolFilesReply: ...
    async def events(
        self, file: str, place: wire.SpoolPlace, from_line: int, limit: int
    ) -> wire.SpoolEventsReply: ...
    async def verify(self, request: wire.SpoolVerifyRequest) -> wire.SpoolVerifyReply: ...
    async def repair(self, request: wire.SpoolRepairRequest, actor: str) -> wire.VerbReply:
        """Mend a failed event; its payload is a Raw of JSON text, or `bytes`."""

    async def retry(self, request: wire.SpoolRetryRequest, actor: str) -> wire.SpoolRetryReply: ...
    async def discard(self, request: wire.SpoolDiscardRequest, actor: str) -> wire.VerbReply: ...
    async def hold(self, request: wire.SpoolHoldRequest, actor: str) -> wire.SpoolReply: ...
    async def release(self, request: wire.SpoolHoldRequest, actor: str) -> wire.SpoolReply: ...


class Broker(Protocol):
    """Everything behind a route."""

    @property
    def operations(self) -> Operations: ...
    @property
    def insights(self) -> Insights: ...
    @property
    def keys(self) -> Keys: ...
    @property
    def spoolkeeping(self) -> Spoolkeeping: ...

    async def push(
        self, org: str, items: list[wire.PushItem], *, qos: int = 1
    ) -> list[wire.PushResult]:
        """Store; a payload is a Raw of JSON text, or `bytes` where the caller sent bytes."""

    async def lease(self, org: str, queue: str, request: wire.LeaseRequest) -> wire.LeaseReply:
        """Lease; cancelled when the caller goes away, and then nothing may stay leased."""

    async def settle(self, org: str, request: wire.SettleRequest) -> wire.SettleReply: ...
    def give_back(self, messages: Iterable[wire.Message]) -> None:
        """The caller left before these reached it: ready again, no attempt spent."""

    def is_broker(self, secret: bytes) -> bool:
        """Whether a caller is a broker of the same database; tells nothing by how long it takes."""

    async def take(self, source: str, body: bytes, *, aside: bool) -> wire.SpoolTaken:
        """Take lines of another broker's buffer file into the log."""

    async def health(self) -> wire.HealthReply: ...
    async def metrics(self, by: Iterable[str] = ()) -> Iterable[Family]: ...


Messages = (
    Sequence[wire.Message]
    | Sequence[wire.BrowsedMessage]
    | Sequence[wire.DeadLetter]
    | Sequence[wire.SpoolEvent]
)
