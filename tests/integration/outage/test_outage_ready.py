"""Ready means that pushes are taken: not so when they would go to files that are full."""

from spillway import wire

MIB = 1024 * 1024
LARGE = "x" * 50_000


async def seen(desk):
    health = await desk.broker.health()
    return health.ready, health.spool.full


async def test_a_spool_without_room_is_not_ready(open_desk, database, recovered, drained):
    """While PostgreSQL is away nothing can be pushed; when it is back, all is well again."""
    async with open_desk(num_shards=1, file_buffer_bytes_max=MIB) as desk:
        await desk.queue()
        async with database.away():
            assert await desk.told("0") == ["buffered"]
            assert await seen(desk) == (True, False)
            told = [
                (await desk.told(LARGE, transaction_id=None))[0]
                for _ in range(MIB // len(LARGE) + 2)
            ]
            assert (told[0], told[-1]) == ("buffered", "spool_full")
            assert await seen(desk) == (False, True)
        await recovered(desk)
        await drained(desk)
        assert await seen(desk) == (True, False)


async def test_a_push_too_large_for_the_spool_leaves_it_ready(open_desk, database):
    """There is room for others: a load balancer is to go on sending them."""
    async with open_desk(num_shards=1, file_buffer_bytes_max=MIB) as desk:
        await desk.queue()
        async with database.away():
            assert await desk.told("0") == ["buffered"]
            assert set(await desk.told(*[LARGE] * 40, transaction_id=None)) == {"spool_full"}
            assert await seen(desk) == (True, False)
            assert await desk.told("1") == ["buffered"]


async def test_a_spool_with_events_too_old_is_not_ready(open_desk, drained, eventually_async):
    """The age refuses pushes as the bytes do, also while an operator holds the spool."""
    async with open_desk(num_shards=1, file_buffer_age_max_s=1) as desk:
        await desk.queue()
        await desk.broker.spoolkeeping.hold(wire.SpoolHoldRequest(), "ann")
        assert await desk.told("0") == ["buffered"]
        await eventually_async(lambda: desk.broker.spool.is_full)
        assert await seen(desk) == (False, True)
        assert await desk.told("1") == ["spool_full"]
        await desk.broker.spoolkeeping.release(wire.SpoolHoldRequest(), "ann")
        await drained(desk)
        assert await seen(desk) == (True, False)
