"""What is blocked: pages of the messages that hold their line until somebody decides."""

from collections.abc import Iterator
from itertools import islice

from msgspec import Struct

from spillway.broker.browse import LANES_A_PAGE, address, decode, encode
from spillway.broker.delivery import rfc3339
from spillway.broker.facts import LaneFacts
from spillway.broker.glance import Glance
from spillway.broker.lanes import LaneEntry
from spillway.broker.places import state_on
from spillway.wire import BlockedMessage, BlockedReply


class Place(Struct, array_like=True):
    """Where the next page begins; opaque to those who carry it."""

    partition: str
    priority: int
    enqueue_shard: int
    group: str = ""
    version: int = 0

    @property
    def lane(self) -> tuple[str, int, int]:
        """The address of its lane."""
        return self.partition, self.priority, self.enqueue_shard


async def page(
    glance: Glance, lanes: list[LaneFacts], groups: list[str], start: str | None, limit: int
) -> BlockedReply:
    """Blocked messages in the order of (partition, group, version), from a place on.

    So many lanes are looked at for one page, full or not.
    """
    place = Place("", 0, 0) if start is None else decode(start, Place)
    ahead = [lane for lane in lanes if address(lane) >= place.lane]
    found: list[BlockedMessage] = []
    async for entries in glance.chunks(ahead[:LANES_A_PAGE]):
        for entry in entries:
            low = place if address(entry.facts) == place.lane else Place(*address(entry.facts))
            found += islice(_blocked(entry, groups, low), limit + 1 - len(found))
            if len(found) > limit:
                beyond = found.pop()
                following = Place(*address(entry.facts), beyond.group, beyond.version)
                await glance.durable(entries)
                return BlockedReply(blocked=found, next=encode(following))
        await glance.durable(entries)
    rest = ahead[LANES_A_PAGE:]
    return BlockedReply(blocked=found, next=encode(Place(*address(rest[0]))) if rest else None)


def _blocked(entry: LaneEntry, groups: list[str], low: Place) -> Iterator[BlockedMessage]:
    """The blocked messages of a lane from a place on."""
    for group in sorted(groups):
        if group < low.group:
            continue
        first = low.version if group == low.group else 0
        for start, end, blocking in state_on(entry, group).blocked:
            for version in range(max(start, first), end + 1):
                yield BlockedMessage(
                    group=group,
                    partition=entry.facts.partition,
                    version=version,
                    attempts=blocking.attempts,
                    error=blocking.error,
                    blocked_at=rfc3339(blocking.at_ms),
                )
