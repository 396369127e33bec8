"""On the way out: shards that were let go say nothing about PostgreSQL."""

from spillway.core.errors import DatabaseUnavailableError


async def test_shards_that_were_let_go_are_no_recovery(open_desk):
    """Nobody asked PostgreSQL for them, so the breaker stays as it was."""
    async with open_desk(num_shards=2) as desk:
        ownership, breaker = desk.broker.ownership, desk.broker.breaker
        for shard in desk.broker.shards:
            await shard.release()
        breaker.trip(DatabaseUnavailableError())
        ownership.database_answers = False
        await ownership.run_once()
        assert breaker.is_open
        assert not ownership.database_answers
