"""What a broker that stands by took into its files goes to the owner: once, and in order."""

import asyncio
import socket

import httpx
import msgspec
import pytest

from spillway import wire
from spillway.api.limits import Limits
from spillway.broker import courier, owner
from spillway.broker.handover import Handover
from spillway.client.errors import BrokerUnreachableError
from spillway.core.errors import SpoolOwnerUnreachableError
from spillway.core.routing import partition_of
from spillway.log.writer import Writer

NO_DEDUPE = {"dedupe_window_ms": 0, "dedupe_count": 0}
"""Nothing but marks tells a repeat then."""
DEDUPES = pytest.mark.parametrize("dedupe", [{}, NO_DEDUPE], ids=["dedupe", "no dedupe"])
EXCHANGE = owner._exchange


def numbered(name, count, start=0):
    return [f"{name}-{number}" for number in range(start, start + count)]


def set_aside(desk):
    """(payload, code) of what a broker set aside."""
    quarantine = desk.broker.spool.quarantine
    found = [one for file in quarantine.files() for one in quarantine.read(file) if one]
    return [(msgspec.json.decode(one.payload), one.error.code) for one in found]


async def marks(database):
    return await database.execute("SELECT source, lane_id, seq FROM spillway.replayed")


@pytest.fixture(autouse=True)
def small_requests(monkeypatch):
    """A request has a few lines."""
    monkeypatch.setattr(courier, "BYTES_MAX", 2_000)


# ---------------------------------------------------------------- once, and in order


async def test_both_take_pushes_in_an_outage_and_nothing_waits_afterwards(
    open_pair, database, drained
):
    """Whichever broker has the shards then, the other hands it what it took, and stands by."""
    async with open_pair() as (first, second):
        await first.queue()
        async with database.away():
            for at in range(100):
                for name, desk in (("a", first), ("b", second)):
                    (status,) = await desk.told(f"{name}-{at}", partition=f"p{at % 3}")
                    assert status == "buffered"
        await drained(first)
        await drained(second)
        for lane in range(3):
            log = await database.log(partition=f"p{lane}")
            for name in "ab":
                mine = [one for one in log if one.startswith(name)]
                assert mine == [f"{name}-{at}" for at in range(lane, 100, 3)]
            assert len(log) == len(set(log))
        owned = [sum(shard.owned for shard in desk.broker.shards) for desk in (first, second)]
        assert sorted(owned) == [0, 2]
        for desk in (first, second):
            await desk.broker.replay.run_once()
        assert await marks(database) == []


async def test_events_of_many_windows_keep_their_order(open_pair, database, drained):
    """Many requests, two lanes, two files; and a push with qos 0 goes the same way."""
    async with open_pair(file_buffer_events_per_file=150) as (first, second):
        await first.queue()
        for at in range(0, 300, 50):
            await second.buffer(*numbered("one", 50, at), partition="one")
            await second.buffer(*numbered("two", 50, at), partition="two")
        await second.buffer("quick", qos=0, partition="three")
        await second.release()
        await drained(second)
        assert await database.log(partition="one") == numbered("one", 300)
        assert await database.log(partition="two") == numbered("two", 300)
        assert await database.log(partition="three") == ["quick"]
        assert second.broker.ownership.stands_by
        assert second.broker.replay.replayed == 601
        assert second.broker.spool.pending == 0
        status = await second.broker.spoolkeeping.status()
        assert (status.owner.address, status.owner.trouble) == (
            first.broker.ownership.address,
            None,
        )
        assert (await first.broker.spoolkeeping.status()).owner is None


@DEDUPES
async def test_a_request_whose_answer_is_lost_is_repeated_without_effect(
    open_pair, database, drained, monkeypatch, dedupe
):
    """The owner knows by the marks of the file what it has; no window is asked."""
    lost = 0

    async def lose_answers(address, request):
        nonlocal lost
        answer = await EXCHANGE(address, request)
        if lost < 3:
            lost += 1
            raise BrokerUnreachableError("the cable was cut", sent=True)
        return answer

    async with open_pair() as (first, second):
        await first.queue(**dedupe)
        await second.buffer(*numbered("n", 100))
        monkeypatch.setattr(owner, "_exchange", lose_answers)
        await second.release()
        await drained(second)
        assert lost == 3
        assert await database.log() == numbered("n", 100)


@DEDUPES
async def test_a_commit_of_unknown_outcome_at_the_owner_is_found(
    open_pair, database, drained, monkeypatch, dedupe
):
    """Its connection dies in the commit that stores them, which landed all the same."""
    write, deaths = Writer.write, 0

    async def break_off(self, *arguments):
        nonlocal deaths
        passed = await write(self, *arguments)
        if arguments[3].replayed and deaths < 3:
            deaths += 1
            raise owner.SpoolOwnerUnreachableError("the connection broke")
        return passed

    async with open_pair() as (first, second):
        await first.queue(**dedupe)
        await second.buffer(*numbered("n", 100))
        monkeypatch.setattr(Writer, "write", break_off)
        await second.release()
        await drained(second)
        assert deaths == 3
        assert await database.log() == numbered("n", 100)


@DEDUPES
async def test_a_standby_that_ends_behind_an_answer_begins_anew(  # noqa: PLR0917 (a table)
    open_served, database, drained, tmp_path, eventually_async, dedupe
):
    """Its file is still whole; the next run of it hands over what is left, and no more."""

    def die(point):
        if point == "after_answer_of_owner":
            raise ConnectionError(point)

    async with open_served(file_buffer_dir=tmp_path / "first") as first:
        await first.queue(**dedupe)
        async with open_served(file_buffer_dir=tmp_path / "second") as second:
            await second.buffer(*numbered("n", 50))
            second.broker.spool.reached = die
            await second.release()
            await eventually_async(lambda: second.broker.replay.failures)
            assert second.broker.spool.pending == 50
            begun = await database.log()
            assert begun == numbered("n", len(begun)) != []
        async with open_served(file_buffer_dir=tmp_path / "second") as second:
            await drained(second)
            assert second.broker.replay.replayed == 50
            assert await database.log() == numbered("n", 50)


@pytest.mark.usefixtures("small_requests")
@DEDUPES
async def test_ownership_that_moves_in_the_middle_changes_nothing(  # noqa: PLR0917 (fixtures)
    open_pair, database, drained, monkeypatch, dedupe, eventually_async
):
    """The standby becomes the owner: its own replay goes on behind what it has handed over."""
    async with open_pair() as (first, second):
        await first.queue(**dedupe)
        await second.buffer(*numbered("n", 100))
        requests = 0

        async def move(address, request):
            nonlocal requests
            answer = await EXCHANGE(address, request)
            requests += 1
            if requests == 3:
                for shard in first.broker.shards:
                    await shard.release()
                raise BrokerUnreachableError("the owner is gone", sent=True)
            return answer

        monkeypatch.setattr(owner, "_exchange", move)
        await second.release()
        await drained(second)
        assert requests >= 3
        await eventually_async(lambda: all(shard.owned for shard in second.broker.shards), 20)
        assert await database.log() == numbered("n", 100)


async def test_a_request_that_outlives_two_owners_stores_nothing(
    open_pair, database, drained, monkeypatch, eventually_async
):
    """It asked the log what was done, others did it meanwhile: it may not go by the answer."""
    asked, late = asyncio.Event(), asyncio.Event()
    marks, requests = Handover.marks, []

    async def dawdle(self, source):
        found = await marks(self, source)
        if not asked.is_set():
            asked.set()
            await late.wait()
        return found

    async def give_up(address, request):
        requests.append(asyncio.ensure_future(EXCHANGE(address, request)))
        await asked.wait()
        raise BrokerUnreachableError("no answer", sent=True)

    async with open_pair() as (first, second):
        await first.queue(**NO_DEDUPE)
        monkeypatch.setattr(Handover, "marks", dawdle)
        monkeypatch.setattr(owner, "_exchange", give_up)
        await second.buffer(*numbered("n", 10))
        await second.release()
        await asked.wait()
        for shard in first.broker.shards:
            shard.released = True  # it lets go, and keeps its hands off
            shard.depose("for the test")
        await drained(second)
        assert await database.log() == numbered("n", 10)
        for desk in (first, second):
            for shard in desk.broker.shards:
                shard.released = desk is second
                shard.depose("for the test")
        await eventually_async(lambda: all(shard.owned for shard in first.broker.shards))
        late.set()
        assert (await requests[0]).status == 503
        assert await database.log() == numbered("n", 10)


# ---------------------------------------------------------------- what does not go in


async def test_poison_is_set_aside_alone_at_the_standby(
    open_pair, database, drained, eventually_async
):
    """The owner finds out which event it is; mended, it goes in through the owner."""
    async with open_pair(num_shards=1) as (first, second):
        await first.queue()
        await database.refuse_poison()
        await second.buffer("1", "2", "poison", "3", "4")
        await second.buffer("other", partition="other")
        await second.release()
        await drained(second, failed=1)
        assert set_aside(second) == [("poison", "internal")]
        assert await database.log() == ["1", "2", "3", "4"]
        assert await database.log(partition="other") == ["other"]
        await database.take_poison()
        await eventually_async(lambda: not second.broker.spool.quarantined, 20)
        assert await database.log() == ["1", "2", "3", "4", "poison"]
        assert second.broker.ownership.stands_by
        assert second.broker.revival.revived == 1


async def test_an_answer_that_is_lost_loses_no_poison(open_pair, database, drained, monkeypatch):
    """Nothing behind it is stored before it is aside: the mark would say that it is done too."""
    lost = 0

    async def lose_answers(address, request):
        nonlocal lost
        answer = await EXCHANGE(address, request)
        if lost < 2:
            lost += 1
            raise BrokerUnreachableError("the cable was cut", sent=True)
        return answer

    async with open_pair(num_shards=1, file_buffer_retry_interval=3600) as (first, second):
        await first.queue(**NO_DEDUPE)
        await first.queue("wary")
        await first.told("1", queue="wary")
        await database.refuse_poison()
        await second.buffer("1", "poison", "2", "poison too", "3")
        await second.buffer("another", queue="wary", transaction_id="1")
        await second.buffer("2", queue="wary")
        monkeypatch.setattr(owner, "_exchange", lose_answers)
        await second.release()
        await drained(second, failed=3)
        assert set(set_aside(second)) == {
            ("poison", "internal"),
            ("poison too", "internal"),
            ("another", "transaction_conflict"),
        }
        assert await database.log() == ["1", "2", "3"]
        assert await database.log("wary") == ["1", "2"]


async def test_what_was_set_aside_is_stored_once_though_answers_are_lost(
    open_pair, database, drained, monkeypatch
):
    """The line says that it was tried, so the owner looks for it; whoever asks by hand hears."""
    async with open_pair(num_shards=1, file_buffer_retry_interval=3600) as (first, second):
        await first.queue(**NO_DEDUPE)
        await database.refuse_poison()
        await second.buffer("1", "poison a", "2", "poison b")
        await second.release()
        await drained(second, failed=2)
        await database.take_poison()

        async def lose(address, request):
            await EXCHANGE(address, request)
            raise BrokerUnreachableError("the cable was cut", sent=True)

        retry = second.broker.spoolkeeping.retry
        with monkeypatch.context() as cut:
            cut.setattr(owner, "_exchange", lose)
            for _ in range(2):
                with pytest.raises(SpoolOwnerUnreachableError, match="the cable was cut"):
                    await retry(wire.SpoolRetryRequest(), "ann")
        assert len(set_aside(second)) == 2
        assert (await retry(wire.SpoolRetryRequest(), "ann")).affected == 2
        assert second.broker.spool.quarantined == 0
        assert await database.log() == ["1", "2", "poison a", "poison b"]


async def test_what_today_refuses_is_durably_aside_before_the_next_is_sent(
    open_pair, database, drained, monkeypatch
):
    """A conflict, and a queue that is not there: a kill between two requests loses neither."""
    at_request = []

    async def look(address, request):
        at_request.append(set_aside(second))
        return await EXCHANGE(address, request)

    async with open_pair(auto_create_queues=False) as (first, second):
        await first.queue()
        await first.told("1")
        await second.buffer("2")
        item = {"transaction_id": "1"}
        await second.buffer("another", **item)
        await second.buffer("3")
        await second.buffer("stranger", queue="nowhere")
        await second.buffer("4")
        monkeypatch.setattr(owner, "_exchange", look)
        await second.release()
        aside = {("another", "transaction_conflict"), ("stranger", "queue_not_found")}
        await drained(second, failed=2)
        assert set(set_aside(second)) == aside
        assert await database.log() == ["1", "2", "3", "4"]
        assert set(at_request[-1]) == aside


async def test_a_full_lane_holds_itself_alone(open_pair, database, drained, eventually_async):
    """The others go on; when there is room its rest comes, in order."""
    async with open_pair() as (first, second):
        await first.queue(max_depth=3)
        await second.buffer(*numbered("full", 5), partition="full")
        await second.buffer(*numbered("free", 3), partition="free")
        await second.release()
        await eventually_async(lambda: second.broker.spool.pending == 2)
        await eventually_async(lambda: second.broker.replay.held)
        (held,) = (await second.broker.spoolkeeping.status()).held
        assert (held.queue, held.partition, held.code) == ("orders", "full", "queue_full")
        assert await database.log(partition="full") == numbered("full", 3)
        assert await database.log(partition="free") == numbered("free", 3)
        while messages := await first.lease(10):
            await first.ack(*messages)
        await drained(second)
        assert await database.log(partition="full") == numbered("full", 5)


async def test_an_event_of_an_unknown_lane_is_not_overtaken(
    open_pair, database, drained, eventually_async
):
    """Only the owner knows where a key belongs. While one lane is full, what may belong to it
    waits, and what comes behind that in its queue.
    """
    full, free = partition_of("a", 4), partition_of("b", 4)
    assert full != free
    async with open_pair() as (first, second):
        await first.queue(max_depth=2, partitions=4)
        await second.buffer(*numbered("full", 3), partition=full)
        await second.release()
        await eventually_async(lambda: second.broker.replay.held)
        await second.buffer("first", key="b")
        await second.buffer("second", partition=free)
        await second.buffer("beacon", queue="elsewhere")
        await second.release()
        await eventually_async(lambda: second.broker.spool.pending == 3)
        assert await database.log("elsewhere") == ["beacon"]
        assert await database.log(partition=free) == []
        while messages := await first.lease(10):
            await first.ack(*messages)
        await drained(second)
        assert await database.log(partition=free) == ["first", "second"]
        assert await database.log(partition=full) == numbered("full", 3)


async def test_an_event_that_is_too_long_for_the_owner_is_set_aside(open_pair, database, drained):
    """It does not hold up the others for ever."""
    async with open_pair(Limits(request_bytes_max=2_000)) as (first, second):
        await first.queue()
        await second.buffer("1")
        await second.buffer("x" * 3_000, transaction_id="2")
        await second.buffer("3", "4")
        await second.release()
        await drained(second, failed=1)
        assert set_aside(second) == [("x" * 3_000, "request_too_large")]
        assert await database.log() == ["1", "3", "4"]


# ---------------------------------------------------------------- who may, and who is not there


async def test_nobody_hands_events_over_without_the_secret(open_pair, database):
    """Not without one, not with that of another broker; a bad line or name is refused too."""
    async with open_pair() as (first, second):
        url = first.broker.ownership.address + "/v1/spool/events"
        source = "failover_01a1f270-3e23-7000-8784-6132f90d28b8"
        mine, other = first.broker.config.secret, second.broker.config.secret
        async with httpx.AsyncClient() as http:

            async def told(secret, source=source, body=b""):
                headers = {} if secret is None else {"x-spillway-secret": secret}
                params = {"source": source}
                answer = await http.post(url, params=params, headers=headers, content=body)
                return answer.status_code, answer.json().get("error", {}).get("code")

            for secret in (None, "", "guess", other, mine + "x"):
                assert await told(secret) == (403, "forbidden")
            assert await told(mine) == (200, None)
            assert await told(mine, source="../etc/passwd") == (400, "bad_request")
            assert await told(mine, body=b"{}\n") == (400, "bad_request")
        assert await database.execute("SELECT count(*) FROM spillway.message_batch") == [(0,)]
        assert second.broker.ownership.stands_by


async def test_an_owner_that_cannot_be_reached_is_told_and_heals(
    open_pair, database, drained, eventually_async, capsys
):
    """It waits, says why wherever one looks, and goes on by itself."""
    async with open_pair() as (first, second):
        await first.queue()
        right = first.broker.ownership.address
        with socket.socket() as nobody_there:
            nobody_there.bind(("127.0.0.1", 0))
            wrong = f"http://127.0.0.1:{nobody_there.getsockname()[1]}"
            first.broker.ownership.address = wrong
            await first.broker.ownership.run_once()
            await second.buffer("1", "2")
            await second.release()
            await eventually_async(lambda: second.broker.owner.trouble)
            status = await second.broker.spoolkeeping.status()
            assert status.owner.trouble.code == "spool_owner_unreachable"
            assert wrong in status.owner.trouble.message
            assert (await second.broker.health()).spool.owner_unreachable
            families = {one.name: one for one in await second.broker.metrics()}
            (sample,) = families["spillway_spool_owner_unreachable"].samples
            assert sample.value == 1
            second.broker.spool.quarantined += 1  # a retry by hand is answered, too
            with pytest.raises(SpoolOwnerUnreachableError, match=wrong):
                await second.broker.owner.take("failover_x", [])
            second.broker.spool.quarantined -= 1
            assert second.broker.spool.pending == 2
        first.broker.ownership.address = right
        await first.broker.ownership.run_once()
        await drained(second)
        assert await database.log() == ["1", "2"]
        assert second.broker.owner.trouble is None
        assert capsys.readouterr().out.count("spool_owner_unreachable") <= 1


async def test_a_held_owner_takes_nothing_until_it_is_released(
    open_pair, database, drained, eventually_async
):
    """Nothing goes into the log while somebody holds: not from another broker either."""
    async with open_pair() as (first, second):
        await first.queue()
        await second.buffer("1")
        await first.broker.spoolkeeping.hold(wire.SpoolHoldRequest(), "ann")
        await second.release()
        await eventually_async(lambda: second.broker.owner.trouble)
        assert "holds the spool" in second.broker.owner.trouble.message
        assert await database.log() == []
        await first.release()
        await drained(second)
        assert await database.log() == ["1"]
