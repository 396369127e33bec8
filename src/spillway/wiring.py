"""The composition root: the only module that knows every concrete class."""

import asyncio
import os
import socket
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from spillway.broker.intake import ItemLimits
from spillway.broker.keeper import Keeper
from spillway.broker.service import Broker, BrokerConfig
from spillway.broker.shard import ShardConfig
from spillway.log.connect import parse
from spillway.log.database import Database
from spillway.log.embedded import EmbeddedPostgres
from spillway.log.migrations import migrate
from spillway.settings import Settings, load
from spillway.spool.faultpoints import Reached, nobody
from spillway.spool.spool import SpoolConfig


def spool_folder(settings: Settings) -> Path:
    """Where pushes wait while PostgreSQL is away."""
    return settings.file_buffer_dir or settings.data / "spool"


def broker_config(settings: Settings, broker_id: str, address: str) -> BrokerConfig:
    """What a broker is told, from the settings."""
    return BrokerConfig(
        broker_id=broker_id,
        spool=SpoolConfig(
            folder=spool_folder(settings),
            flush_ms=settings.file_buffer_flush_ms,
            max_batch=settings.file_buffer_max_batch,
            events_per_file=settings.file_buffer_events_per_file,
            retry_interval_s=settings.file_buffer_retry_interval,
            startup_recovery_timeout_s=settings.file_buffer_startup_recovery_timeout,
            bytes_max=settings.file_buffer_bytes_max,
            age_max_s=settings.file_buffer_age_max_s,
        ),
        address=address,
        shard=ShardConfig(
            commit_timeout_s=settings.commit_timeout_s,
            draft_messages_max=settings.draft_messages_max,
            draft_bytes_max=settings.draft_bytes_max,
            lease_s=settings.shard_lease_s,
        ),
        items=ItemLimits(
            message_bytes_max=settings.message_bytes_max,
            key_bytes_max=settings.key_bytes_max,
            headers_bytes_max=settings.headers_bytes_max,
            transaction_id_bytes_max=settings.transaction_id_bytes_max,
        ),
        lease_bytes_max=settings.request_bytes_max,
        auto_create_queues=settings.auto_create_queues,
        queues_per_org_max=settings.queues_per_org_max,
        groups_per_queue_max=settings.groups_per_queue_max,
        checkpoint_interval_s=settings.checkpoint_interval_s,
        checkpoint_events_min=settings.checkpoint_events_min,
        prune_interval_s=settings.prune_interval_s,
        lane_idle_s=settings.lane_idle_s,
        lanes_in_memory_max=settings.lanes_in_memory_max,
        drain_timeout_s=settings.drain_timeout_s,
    )


def new_broker_id() -> str:
    """A name for this process in the shard table."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def make_broker(
    database_url: str,
    settings: Settings | None = None,
    *,
    address: str = "",
    keeper: Keeper | None = None,
    reached: Reached = nobody,
) -> Broker:
    """A broker on a database that it migrates as soon as it can; not started yet."""
    settings = settings or load()
    database = Database(database_url)

    async def prepare() -> int:
        await migrate(database_url)
        await database.open()
        await database.rows("shards_make", num_shards=settings.num_shards)
        return len(await database.rows("shards"))

    config = broker_config(settings, new_broker_id(), address)
    keepers = [] if keeper is None else [keeper]
    return Broker(database, config, prepare, more_duties=keepers, reached=reached)


@asynccontextmanager
async def running_broker(
    database_url: str, settings: Settings | None = None, *, address: str = ""
) -> AsyncIterator[Broker]:
    """A broker that runs inside the block and stops in order behind it."""
    broker = make_broker(database_url, settings, address=address)
    try:
        await broker.start()
        yield broker
    finally:
        await broker.stop()
        await broker.database.close()


@asynccontextmanager
async def embedded_postgres(settings: Settings) -> AsyncIterator[Keeper | None]:
    """The keeper of the data folder's PostgreSQL; none where a URL is given."""
    if settings.database_url is not None:
        yield None
        return
    embedded = EmbeddedPostgres(Path(settings.data))
    (Path(settings.data) / "database-url").write_text(await asyncio.to_thread(embedded.claim))
    keeper = Keeper(embedded)
    try:
        await keeper.start()
        yield keeper
    except asyncio.CancelledError:
        embedded.hurry()
        raise
    finally:
        await _stopped(embedded)


async def _stopped(embedded: EmbeddedPostgres) -> None:
    """In order; whoever is cancelled on the way leaves a thread behind that is done soon."""
    try:
        await asyncio.to_thread(embedded.stop)
    except asyncio.CancelledError:
        embedded.hurry()
        raise


def database_url(settings: Settings, keeper: Keeper | None) -> str:
    """The URL of the database to use: that of the embedded PostgreSQL, or the given one."""
    if keeper is not None:
        return keeper.url
    assert settings.database_url is not None
    url = settings.database_url.get_secret_value()
    parse(url)  # refused here, before anything is started that would wait for it
    return url
