"""The composition root: the only module that knows every concrete class."""

import asyncio
import os
import socket
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from spillway.broker.intake import ItemLimits
from spillway.broker.service import Broker, BrokerConfig
from spillway.broker.shard import ShardConfig
from spillway.log.database import Database
from spillway.log.embedded import EmbeddedPostgres
from spillway.log.migrations import migrate
from spillway.settings import Settings, load


def broker_config(settings: Settings, broker_id: str, address: str) -> BrokerConfig:
    """What a broker is told, from the settings."""
    return BrokerConfig(
        broker_id=broker_id,
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
        auto_create_queues=settings.auto_create_queues,
        queues_per_org_max=settings.queues_per_org_max,
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


async def make_broker(
    database_url: str, settings: Settings | None = None, *, address: str = ""
) -> Broker:
    """A broker on a migrated database; not started yet."""
    settings = settings or load()
    await migrate(database_url)
    database = Database(database_url)
    await database.open()
    await database.rows("shards_make", num_shards=settings.num_shards)
    num_shards = len(await database.rows("shards"))
    return Broker(database, broker_config(settings, new_broker_id(), address), num_shards)


@asynccontextmanager
async def running_broker(
    database_url: str, settings: Settings | None = None, *, address: str = ""
) -> AsyncIterator[Broker]:
    """A broker that runs inside the block and stops in order behind it."""
    broker = await make_broker(database_url, settings, address=address)
    try:
        await broker.start()
        yield broker
    finally:
        await broker.stop()
        await broker.database.close()


@asynccontextmanager
async def database(settings: Settings) -> AsyncIterator[str]:
    """The URL of the database to use: the given one, or that of an embedded PostgreSQL."""
    if settings.database_url is not None:
        yield settings.database_url.get_secret_value()
        return
    embedded = EmbeddedPostgres(Path(settings.data))
    url = await asyncio.to_thread(embedded.start)
    try:
        (Path(settings.data) / "database-url").write_text(url)
        yield url
    finally:
        await asyncio.to_thread(embedded.stop)
