"""A database that goes away and comes back, and what is in the log afterwards."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import psycopg
import pytest

from spillway.api.limits import Limits
from spillway.api.listener import listen
from spillway.api.server import make_app, serve
from spillway.log.embedded import EmbeddedPostgres
from spillway.log.writer import Writer
from spillway.spool import event
from spillway.spool import folder as disk

RETRY_S = 0.2
"""How soon what failed or was passed over is tried again in these tests."""
LOG = """
    SELECT q.name, m.partition, m.version, m.transaction_id, convert_from(m.payload, 'UTF8')
    FROM spillway.message AS m
    JOIN spillway.lane AS l USING (lane_id) JOIN spillway.queue AS q USING (queue_id)
    WHERE q.deleted_at IS NULL ORDER BY 1, 2, 3
"""

CHOOSY = """
    CREATE FUNCTION choosy() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF array_to_string(NEW.transaction_ids, ' ') LIKE '%poison%' THEN
            RAISE EXCEPTION USING ERRCODE = '23514', MESSAGE = 'no poison here';
        END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER choosy BEFORE INSERT ON spillway.message_batch
    FOR EACH ROW EXECUTE FUNCTION choosy()
"""
"""A rule of somebody's own: PostgreSQL refuses the whole commit for one message in it."""
NO_LONGER_CHOOSY = "DROP TRIGGER choosy ON spillway.message_batch"


class Database:
    """The database of a test, which the test may cut off."""

    def __init__(self, server: EmbeddedPostgres, url: str) -> None:
        self._server = server
        self.url = url
        self.name = urlsplit(url).path[1:]

    async def admin(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement from another database of the server."""
        async with await psycopg.AsyncConnection.connect(self._server.url, autocommit=True) as conn:
            cursor = await conn.execute(statement)
            return await cursor.fetchall() if cursor.description else []

    async def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement in it."""
        async with await psycopg.AsyncConnection.connect(self.url, autocommit=True) as conn:
            cursor = await conn.execute(statement)
            return await cursor.fetchall() if cursor.description else []

    async def refuse_poison(self) -> None:
        """Refuse every commit with a message in it whose transaction id says `poison`."""
        await self.execute(CHOOSY)

    async def take_poison(self) -> None:
        """Refuse nothing any more."""
        await self.execute(NO_LONGER_CHOOSY)

    async def kick(self) -> None:
        """End every connection to it."""
        await self.admin(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            f" WHERE datname = '{self.name}'"
        )

    async def go(self) -> None:
        """Be away: no connection lives, none is made."""
        await self.admin(f"ALTER DATABASE {self.name} ALLOW_CONNECTIONS false")
        await self.kick()

    async def come(self) -> None:
        """Be back."""
        await self.admin(f"ALTER DATABASE {self.name} ALLOW_CONNECTIONS true")

    @asynccontextmanager
    async def away(self) -> AsyncIterator[None]:
        """Be away inside the block."""
        await self.go()
        try:
            yield
        finally:
            await self.come()

    async def log(self, queue: str = "orders", partition: str = "Default") -> list[Any]:
        """The payloads of a lane, in order; versions must be dense."""
        rows = [row for row in await self.execute(LOG) if row[:2] == (queue, partition)]
        assert [row[2] for row in rows] == list(range(1, len(rows) + 1))
        return [msgspec.json.decode(row[4]) for row in rows]


@pytest.fixture
def database(postgres: EmbeddedPostgres, database_url: str) -> Database:
    """The database of this test."""
    return Database(postgres, database_url)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The spool folder of this test's brokers, one after the other."""
    return tmp_path / "spool"


@pytest.fixture
def open_desk(open_desk, folder) -> Callable[..., Any]:
    """As `open_desk` of all tests, with the spool in `folder`, and impatient."""
    given = {"file_buffer_dir": folder, "file_buffer_retry_interval": RETRY_S}

    def opened(**settings: Any) -> Any:
        return open_desk(**given | settings)

    return opened


@pytest.fixture
def drained(eventually_async) -> Callable[..., Any]:
    """Comes back when nothing waits in the spool any more; so many failed."""

    async def wait(desk: Any, failed: int = 0) -> None:
        spool = desk.broker.spool
        await eventually_async(lambda: not spool.pending and not spool.files, 20)
        assert spool.quarantined == failed
        assert not any(spool.by_queue.values())

    return wait


@pytest.fixture
def recovered(eventually_async) -> Callable[..., Any]:
    """Comes back when the broker has its database again."""

    async def wait(desk: Any) -> None:
        async def is_well() -> bool:
            return (await desk.broker.health()).status == "ok"

        await eventually_async(is_well, 20)

    return wait


@pytest.fixture
def spooled(folder: Path) -> Callable[[], list[Any]]:
    """The payloads in the buffer files, in their order."""

    def read() -> list[Any]:
        texts = [t for path in disk.entries(folder)[0] for ts in disk.windows(path) for t in ts]
        return [msgspec.json.decode(event.read(text).payload) for text in texts]

    return read


@pytest.fixture
def failed(folder: Path) -> Callable[[], list[tuple[Any, str]]]:
    """(payload, code) of what was set aside, in its order; None for what is damaged."""

    def read() -> list[tuple[Any, str]]:
        paths = disk.entries(folder / disk.FAILED)[0]
        texts = [t for path in paths for ts in disk.windows(path) for t in ts if t.strip()]
        records = [event.read_failed(text) for text in texts]
        return [
            (
                msgspec.json.decode(record.payload)
                if isinstance(record, event.FailedEvent)
                else None,
                record.error.code,
            )
            for record in records
        ]

    return read


@pytest.fixture
def valve(monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[asyncio.Event, asyncio.Event]]:
    """Commits begin, and end once `open` is set."""
    open_, begun = asyncio.Event(), asyncio.Event()
    write = Writer.write

    async def slow(self: Writer, *arguments: Any) -> bool:
        begun.set()
        await open_.wait()
        return await write(self, *arguments)

    def shut() -> tuple[asyncio.Event, asyncio.Event]:
        monkeypatch.setattr(Writer, "write", slow)
        return open_, begun

    return shut


# ---------------------------------------------------------------- two brokers


@pytest.fixture
def open_served(open_desk: Callable[..., Any]) -> Callable[..., Any]:
    """Opens a desk before a broker that answers on HTTP, and says where."""

    @asynccontextmanager
    async def opened(limits: Limits | None = None, **settings: Any) -> AsyncIterator[Any]:
        stop, listening = asyncio.Event(), asyncio.Event()
        async with open_desk(**settings) as desk:

            def note(port: int) -> None:
                desk.broker.ownership.address = f"http://127.0.0.1:{port}"
                listening.set()

            app, sockets = make_app(desk.broker, limits or Limits()), listen("127.0.0.1", 0)
            serving = asyncio.get_running_loop().create_task(
                serve(app, sockets, stop=stop, on_listening=note, grace_s=1)
            )
            await listening.wait()
            await desk.broker.ownership.run_once()
            try:
                yield desk
            finally:
                stop.set()
                await serving

    return opened


@pytest.fixture
def open_pair(open_served: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """Opens desks before two brokers with spools of their own: the owner, and one that waits."""

    @asynccontextmanager
    async def opened(*limits: Limits, **settings: Any) -> AsyncIterator[tuple[Any, Any]]:
        async with (
            open_served(*limits, file_buffer_dir=tmp_path / "first", **settings) as first,
            open_served(*limits, file_buffer_dir=tmp_path / "second", **settings) as second,
        ):
            assert second.broker.ownership.stands_by
            yield first, second

    return opened
