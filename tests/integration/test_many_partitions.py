"""A request with many new partitions is slow work, not an outage."""

import pytest

PARTITIONS = 2_000


def spread(desk, count):
    """An item for each of so many partitions, twice, the second behind the first."""
    items = [desk.items(n, partition=f"room-{n}")[0] for n in range(count)]
    return items + [desk.items(-n, partition=f"room-{n}")[0] for n in range(count)]


async def test_new_partitions_are_made_and_loaded_together(open_desk):
    """All are stored, in order, and PostgreSQL is not taken for away."""
    async with open_desk(items_max=10_000) as desk:
        results = await desk.broker.push("default", spread(desk, PARTITIONS))
        assert {result.status for result in results} == {"stored"}
        assert [result.version for result in results] == [1] * PARTITIONS + [2] * PARTITIONS
        assert desk.broker.breaker.trips == 0
        assert await desk.rows("SELECT count(*) FROM spillway.lane") == [(PARTITIONS,)]


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 257])
async def test_a_partition_that_cannot_be_is_refused_alone(desk, name):
    """The others of the request are stored."""
    items = [*desk.items(1, partition="room"), *desk.items(2, partition=name)]
    results = await desk.broker.push("default", items)
    assert [result.status for result in results] == ["stored", "failed"]
    assert results[1].error.code == "invalid_name"
