"""Nothing is stored twice: repeats by clients, commits of unknown outcome, replays cut off."""

import asyncio

import msgspec
import psycopg
import pytest

from spillway import wire
from spillway.broker import breaker
from spillway.log.writer import Writer

WINDOWS = pytest.mark.parametrize("window_ms", [600_000, 0], ids=["a window", "no window"])


async def push(desk, *ids, payload=None, qos=1, queue="orders"):
    """Push items with these ids; (status, version) of each."""
    items = [
        wire.PushItem(queue, msgspec.Raw(msgspec.json.encode(payload or one)), transaction_id=one)
        for one in ids
    ]
    results = await desk.broker.push("default", items, qos=qos)
    return [(result.status, result.version) for result in results]


# ---------------------------------------------------------------- repeats by clients


async def test_a_repeat_is_known_before_during_and_after_an_outage(open_desk, database, drained):
    """Whichever copy came first is stored; later answers name its version."""
    async with open_desk() as desk:
        assert await push(desk, "early") == [("stored", 1)]
        async with database.away():
            assert await push(desk, "early", "late") == [("buffered", None)] * 2
            assert await push(desk, "late") == [("buffered", None)]
        await drained(desk)
        assert await push(desk, "late", "early") == [("duplicate", 2), ("duplicate", 1)]
        assert await database.log() == ["early", "late"]


async def test_the_window_is_that_of_the_moment_of_acceptance(open_desk, database, drained):
    """A repeat that came in time is one, however long it waited; one that came late is none."""
    async with open_desk(num_shards=1) as desk:
        await desk.queue(dedupe_window_ms=60_000)
        await push(desk, "in time", "late")
        await database.execute(
            "UPDATE spillway.message_batch SET appended_at = appended_at - interval '100 s'"
        )
        desk.forget()
        now_ms = desk.broker.clock.now_ms
        async with database.away():
            await push(desk, "gone", queue="other")
            desk.broker.intake._now_ms = lambda: now_ms() - 50_000
            await push(desk, "in time")
            desk.broker.intake._now_ms = now_ms
            await push(desk, "late")
        await drained(desk)
        assert await database.log() == ["in time", "late", "late"]


async def test_a_repeat_soon_after_the_replay_is_known(open_desk, database, drained):
    """However long the first copy waited: the window opens anew when it is stored."""
    async with open_desk(num_shards=1) as desk:
        await desk.queue(dedupe_window_ms=60_000)
        now_ms = desk.broker.clock.now_ms
        async with database.away():
            desk.broker.intake._now_ms = lambda: now_ms() - 3_600_000
            assert await push(desk, "a") == [("buffered", None)]
            desk.broker.intake._now_ms = now_ms
            assert await push(desk, "a") == [("buffered", None)]
        await drained(desk)
        assert await push(desk, "a") == [("duplicate", 1)]
        assert await database.log() == ["a"]


# ---------------------------------------------------------------- unknown outcomes


@WINDOWS
async def test_commits_that_landed_late_are_stored_once(
    open_desk, database, drained, monkeypatch, window_ms
):
    """Two pushes were given up on while their commits were on their way, one behind the other."""
    answered = asyncio.Event()
    sent = asyncio.Event()
    write = Writer.write

    async def write_and_wait(self, *arguments):
        passed = await write(self, *arguments)
        sent.set()
        await answered.wait()
        return passed

    async with open_desk(num_shards=1) as desk:
        await desk.queue(dedupe_window_ms=window_ms)
        await push(desk, "0")
        monkeypatch.setattr(Writer, "write", write_and_wait)
        monkeypatch.setattr(breaker, "PATIENCE_S", 0.2)
        first = asyncio.ensure_future(push(desk, "1"))
        await sent.wait()
        second = asyncio.ensure_future(push(desk, "2"))
        assert await first == await second == [("buffered", None)]
        assert await push(desk, "3") == [("buffered", None)]
        answered.set()
        monkeypatch.undo()
        await drained(desk)
        assert await database.log() == ["0", "1", "2", "3"]


@WINDOWS
@pytest.mark.parametrize("lands", [True, False], ids=["landed", "lost"])
async def test_a_connection_that_dies_in_the_commit(  # noqa: PLR0917 (a table)
    open_desk, database, drained, monkeypatch, window_ms, lands
):
    """Whether or not the commit is in the log, each message of it is, once and in order."""
    write = Writer.write

    async def break_off(self, *arguments):
        monkeypatch.undo()
        if lands:
            assert await write(self, *arguments)
        raise psycopg.OperationalError("the connection broke")

    async with open_desk(num_shards=1) as desk:
        await desk.queue(dedupe_window_ms=window_ms)
        await push(desk, "0")
        monkeypatch.setattr(Writer, "write", break_off)
        assert await push(desk, "1", "2") == [("buffered", None)] * 2
        await push(desk, "3")
        await drained(desk)
        assert await database.log() == ["0", "1", "2", "3"]


@pytest.mark.parametrize("lands", [True, False], ids=["landed", "lost"])
async def test_nobody_guesses_when_the_spool_is_full_too(
    open_desk, database, recovered, monkeypatch, lands
):
    """It may or may not be stored: so it is said, with the id that makes a repetition safe."""
    write = Writer.write

    async def break_off(self, *arguments):
        monkeypatch.undo()
        if lands:
            assert await write(self, *arguments)
        raise psycopg.OperationalError("the connection broke")

    mib = 1024 * 1024
    large = wire.PushItem("orders", msgspec.Raw(b'"%b"' % (b"x" * (mib - 2))))
    async with open_desk(num_shards=1, file_buffer_bytes_max=mib) as desk:
        await desk.queue()
        monkeypatch.setattr(Writer, "write", break_off)
        (result,) = await desk.broker.push("default", [large])
        assert (result.status, result.error.code) == ("failed", "database_unavailable")
        assert "may or may not have been stored" in result.error.message
        assert "nothing" not in result.error.hint
        await recovered(desk)
        large.transaction_id = result.transaction_id
        (again,) = await desk.broker.push("default", [large])
        assert (again.status, again.version) == ("duplicate" if lands else "stored", 1)
        assert len(await database.log()) == 1


async def test_a_replay_whose_own_commit_dies_goes_on_behind_it(
    open_desk, database, drained, monkeypatch
):
    """The mark in the log, not the memory of the broker, says how far it came."""
    write = Writer.write
    deaths = 0

    async def break_off(self, *arguments):
        nonlocal deaths
        passed = await write(self, *arguments)
        if arguments[3].replayed and deaths < 3:
            deaths += 1
            raise psycopg.OperationalError("the connection broke")
        return passed

    monkeypatch.setattr(Writer, "write", break_off)
    async with open_desk(num_shards=1, file_buffer_max_batch=7) as desk:
        await desk.queue(dedupe_window_ms=0)
        numbers = [str(number) for number in range(100)]
        async with database.away():
            for number in numbers:
                await push(desk, number)
        await drained(desk)
        assert deaths == 3
        assert await database.log() == numbers


# ---------------------------------------------------------------- replays cut off


@WINDOWS
async def test_a_replay_cut_off_by_a_crash_is_repeated_without_effect(
    open_desk, database, drained, window_ms, eventually_async
):
    """Files whose events are in the log are found by a broker that does not know it."""

    def die(point):
        if point == "after_commit_before_delete":
            raise ConnectionError(point)

    numbers = [str(number) for number in range(50)]
    async with open_desk(num_shards=1, file_buffer_max_batch=10) as desk:
        await desk.queue(dedupe_window_ms=window_ms)
        desk.broker.spool.reached = die
        async with database.away():
            for number in numbers:
                await push(desk, number)
        await eventually_async(lambda: desk.broker.replay.failures)
        assert desk.broker.spool.pending
        assert await database.log()
    async with open_desk(num_shards=1) as desk:
        assert desk.broker.spool.accepted == 0
        await push(desk, "last")
        await drained(desk)
        assert await database.log() == [*numbers, "last"]


async def test_what_conflicts_is_set_aside_before_the_commit_of_the_rest(
    open_desk, database, drained, failed
):
    """A kill at any moment finds it in its file or in `failed/`: the mark passes over it."""
    at_commit = []

    def note(point):
        if point == "mid_batch":
            at_commit.append(failed())

    async with open_desk(num_shards=1) as desk:
        await push(desk, "1")
        desk.broker.spool.reached = note
        async with database.away():
            await push(desk, "2")
            await push(desk, "1", payload="other")
            await push(desk, "3")
            await push(desk, "3", payload="another")
            await push(desk, "4")
        conflicts = [("other", "transaction_conflict"), ("another", "transaction_conflict")]
        await drained(desk, failed=2)
        assert at_commit[0] == failed() == conflicts
        assert await database.log() == ["1", "2", "3", "4"]
