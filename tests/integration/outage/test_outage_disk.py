"""The disk of the spool fails for one file: the others go on, nothing is lost, status tells it."""

import errno
from contextlib import contextmanager

import pytest

from spillway.log.database import Database
from spillway.spool import folder as disk

FORBIDDEN = """
    CREATE FUNCTION forbidden() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = 'permission denied';
    END $$;
    CREATE TRIGGER forbidden BEFORE INSERT ON spillway.message_batch
    FOR EACH ROW EXECUTE FUNCTION forbidden()
"""


@pytest.fixture
def no_room(monkeypatch):
    """`failed/` takes nothing inside the block."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    @contextmanager
    def patched():
        with monkeypatch.context() as patch:
            patch.setattr(disk, "append", full)
            yield

    return patched


@pytest.fixture
def unreadable(monkeypatch):
    """A file that the disk does not give us inside the block."""

    @contextmanager
    def patched(path):
        read_window = disk.read_window

        def broken(wanted, *arguments):
            if wanted == path:
                raise OSError(errno.EIO, "Input/output error")
            return read_window(wanted, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(disk, "read_window", broken)
            yield

    return patched


async def held_back(desk, database, *payloads, file=0, **item):
    """Pushed to a file of their own while PostgreSQL is away."""
    assert set(await desk.told(*payloads, **item)) == {"buffered"}
    await desk.broker.spool.rotate()
    assert len(desk.broker.spool.files) == file + 1
    return desk.broker.spool.files[-1].path


async def stuck(desk):
    return {one.file: one.code for one in (await desk.broker.spoolkeeping.status()).stuck}


async def test_poison_without_room_for_it_holds_its_queue_alone(  # noqa: PLR0917 (fixtures)
    open_desk, database, drained, failed, no_room, eventually_async
):
    """It stays in its file, and so does what stands behind it; with room all of it moves."""
    async with open_desk(num_shards=1, auto_create_queues=False) as desk:
        await desk.queue("orders")
        await desk.queue("doomed")
        async with database.away():
            first = await held_back(desk, database, "d1", "d2", queue="doomed")
            await held_back(desk, database, "1", "2", file=1)
        async with desk.broker.spool.working:
            await database.execute(
                "UPDATE spillway.queue SET deleted_at = now() WHERE name = 'doomed'"
            )
            desk.broker.facts.forget(desk.broker.facts.cached_queue("default", "doomed"))
            room = no_room()
            room.__enter__()
        spool = desk.broker.spool
        await eventually_async(lambda: spool.pending == 2, 20)
        assert await database.log() == ["1", "2"]
        assert await stuck(desk) == {first.name: "spool_full"}
        room.__exit__(None, None, None)
        await drained(desk, failed=2)
        assert failed() == [("d1", "queue_not_found"), ("d2", "queue_not_found")]
        assert await stuck(desk) == {}


async def test_a_file_that_cannot_be_read_is_passed_over(
    open_desk, database, drained, unreadable, eventually_async
):
    """The others go on; what is read of it later is stored, though later ones went before it."""
    async with open_desk(num_shards=1) as desk:
        await desk.queue()
        async with database.away():
            first = await held_back(desk, database, "1", "2")
            await held_back(desk, database, "3", file=1)
            broken = unreadable(first)
            broken.__enter__()
        spool = desk.broker.spool
        await eventually_async(lambda: spool.pending == 2 and len(spool.files) == 1, 20)
        assert await database.log() == ["3"]
        assert await stuck(desk) == {first.name: "spool_folder"}
        broken.__exit__(None, None, None)
        await drained(desk)
        assert await database.log() == ["3", "1", "2"]
        assert await database.execute("SELECT * FROM spillway.replayed") == []


async def test_an_open_file_that_somebody_took_away_is_put_back(
    open_desk, database, drained, folder
):
    """The broker has it still: nothing of it is missing, and nothing waits for it."""
    async with open_desk(num_shards=1) as desk:
        await desk.queue()
        async with database.away():
            assert await desk.told("1", "2") == ["buffered"] * 2
            [path] = folder.glob("*.buf.tmp")
            path.unlink()
            assert await desk.told("3", partition="other") == ["buffered"]
            for path in folder.glob("*.buf.tmp"):
                path.unlink()
        await drained(desk)
        assert await database.log() == ["1", "2"]
        assert await database.log(partition="other") == ["3"]


async def test_a_file_that_somebody_took_away_is_no_obstacle(open_desk, database, drained):
    """What was in it is gone; the rest goes in."""
    async with open_desk(num_shards=1) as desk:
        await desk.queue()
        async with database.away():
            first = await held_back(desk, database, "1", "2")
            await held_back(desk, database, "3", file=1)
            first.unlink()
        await drained(desk)
        assert await database.log() == ["3"]
        assert await desk.told("4") == ["stored"]


@pytest.mark.parametrize(
    ("broken", "mended"),
    [
        (
            "ALTER TABLE spillway.message_batch RENAME TO gone",
            "ALTER TABLE spillway.gone RENAME TO message_batch",
        ),
        (
            "ALTER TABLE spillway.replayed RENAME TO gone",
            "ALTER TABLE spillway.gone RENAME TO replayed",
        ),
        (FORBIDDEN, "DROP TRIGGER forbidden ON spillway.message_batch"),
    ],
    ids=["no batches", "no marks", "no permission"],
)
async def test_what_every_event_would_meet_is_the_fault_of_none(  # noqa: PLR0917 (a table)
    open_desk, database, drained, eventually_async, broken, mended
):
    """A table or a permission is missing: nothing goes to `failed/`, and in once it is there."""
    async with open_desk(num_shards=1) as desk:
        await desk.queue()
        async with database.away():
            await held_back(desk, database, "1", "2")
            hold = desk.broker.spool.working
            await hold.acquire()
        await eventually_async(lambda: not desk.broker.breaker.is_open, 20)
        await database.execute(broken)
        failures = desk.broker.replay.failures
        hold.release()
        await eventually_async(lambda: desk.broker.replay.failures > failures + 1, 20)
        assert desk.broker.spool.quarantined == 0
        assert desk.broker.spool.pending == 2
        await database.execute(mended)
        await drained(desk)
        assert await database.log() == ["1", "2"]


async def test_many_lanes_are_read_together(open_desk, database, drained, monkeypatch):
    """One look at the marks for a file, whatever the number of lanes in it."""
    asked = []
    rows = Database.rows

    async def counted(self, query, **params):
        if query.startswith("replayed_of"):
            asked.append(query)
        return await rows(self, query, **params)

    monkeypatch.setattr(Database, "rows", counted)
    async with open_desk(num_shards=1) as desk:
        await desk.queue()
        async with database.away():
            await desk.told("elsewhere", queue="other")
            for lane in range(20):
                await desk.told(f"{lane}", partition=f"p{lane}")
            asked.clear()
            files = desk.broker.spool.file_count
        await drained(desk)
        assert files == 1
        assert len(asked) <= 2
        for lane in range(20):
            assert await database.log(partition=f"p{lane}") == [f"{lane}"]
