"""What a replay has under way: bounded in events and bytes, and stopped by what fails."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spillway.broker.handover import Bite
from spillway.broker.underway import BYTES_MAX, EVENTS_MAX, UnderWay
from spillway.core.errors import CommitRefusedError

FILE = cast("Any", "a file")


@pytest.fixture
def shard():
    return cast("Any", SimpleNamespace(shard_id=0, epoch=1, owned=True))


def bite_of(shard, *payloads: bytes) -> Bite:
    """One that waits for its commit."""
    run = cast("Any", SimpleNamespace(indexes=list(range(len(payloads))), payloads=payloads))
    ticket = asyncio.get_running_loop().create_future()
    return Bite([run], shard, shard.epoch, {}, ticket, apart=False)


@pytest.mark.parametrize("most", [[b""] * (EVENTS_MAX - 1), [bytes(BYTES_MAX - 1)]])
async def test_it_is_full_of_events_or_of_bytes(shard, most):
    """Whichever comes first; with the oldest gone there is room again."""
    under_way = UnderWay()
    under_way.add(FILE, bite_of(shard, *most))
    assert not under_way.is_full
    under_way.add(FILE, bite_of(shard, b"x"))
    assert under_way.is_full
    under_way.take()
    assert not under_way.is_full


async def test_the_oldest_is_taken_first(shard):
    """They are awaited in the order in which they were decided."""
    under_way = UnderWay()
    bites = [bite_of(shard, b"1"), bite_of(shard, b"2")]
    for bite in bites:
        under_way.add(FILE, bite)
    assert [under_way.take(), under_way.take()] == [(FILE, bite) for bite in bites]
    assert not under_way


@pytest.mark.parametrize("trouble", ["refused", "lost", "taken again"])
async def test_what_fails_stops_what_follows(shard, trouble):
    """The last one of the shard tells; other shards are asked, too."""
    other = cast("Any", SimpleNamespace(shard_id=1, epoch=1, owned=True))
    under_way = UnderWay()
    first, last = bite_of(shard, b"1"), bite_of(shard, b"2")
    for bite in (first, last, bite_of(other, b"3")):
        under_way.add(FILE, bite)
    first.ticket.set_result(None)
    assert not under_way.is_interrupted
    if trouble == "refused":
        last.ticket.set_exception(CommitRefusedError())
    elif trouble == "lost":
        shard.owned = False
    else:
        shard.epoch = 2
    assert under_way.is_interrupted
    under_way.take()
    assert under_way.is_interrupted
    under_way.take()
    assert not under_way.is_interrupted
