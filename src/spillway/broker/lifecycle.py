"""Queues as a whole: made, changed, paused, deleted."""

from collections.abc import Iterator
from typing import Any

from msgspec import UNSET
from msgspec.structs import asdict

from spillway.broker.actions import Deed, action_row
from spillway.broker.dispatch import Dispatch
from spillway.broker.facts import Facts, LaneFacts, QueueFacts
from spillway.broker.lanes import LaneEntry
from spillway.broker.shard import Shard
from spillway.core import commands as cmd
from spillway.core.errors import BadRequestError, UnknownOptionError
from spillway.warm.memory import Budget
from spillway.wire import QueueOptions, QueuePatch

LANES_AT_ONCE = 256


class Lifecycle:
    """Changes queues."""

    def __init__(
        self, facts: Facts, shards: list[Shard], dispatch: Dispatch, budgets: dict[int, Budget]
    ) -> None:
        self._facts = facts
        self._shards = shards
        self._dispatch = dispatch
        self._budgets = budgets

    async def change(
        self,
        queue: QueueFacts,
        options: QueueOptions,
        changes: dict[str, Any],
        actor: str,
        deed: Deed,
    ) -> None:
        """Put new options in force."""
        await self._facts.update_queue(queue, options)
        deed.affected = 1
        budget = self._budgets.get(queue.queue_id)
        if budget is not None:
            budget.limit = options.in_memory_queue_size
        command = cmd.ChangeConfig(tuple(changes.items()), actor)
        for shard, entries in self._loaded(queue):
            for entry in entries:
                self._tell(shard, entry, command)
            await shard.ticket()

    def _tell(self, shard: Shard, entry: LaneEntry, command: cmd.ChangeConfig) -> None:
        """Write the change into the story of a lane; what the old options held back may go now."""
        if entry.dead:
            return
        for name, group in entry.groups.items():
            if group.state.exists:
                shard.handle(entry, name, command)
        self._dispatch.announce(entry.facts)

    def _loaded(self, queue: QueueFacts) -> Iterator[tuple[Shard, list[LaneEntry]]]:
        """The lanes of a queue that are in memory, in chunks."""
        for shard in self._shards:
            own = [e for e in shard.entries.values() if e.facts.queue.queue_id == queue.queue_id]
            for at in range(0, len(own), LANES_AT_ONCE):
                yield shard, own[at : at + LANES_AT_ONCE]

    # ------------------------------------------------------------ pause

    async def pause(self, queue: QueueFacts, group: str | None, *, paused: bool) -> int:
        """Stop or start leasing; how many groups that concerns."""
        if group is not None:
            await self._facts.pause_group(queue, group, paused=paused)
        else:
            await self._facts.pause_queue(queue, paused=paused)
        if not paused:
            self._wake(queue)
        return 1 if group is not None else len(queue.groups)

    def _wake(self, queue: QueueFacts) -> None:
        for line in self._dispatch.lines(queue.queue_id):
            for _ in range(line.waiting):
                line.wake()

    # ------------------------------------------------------------ delete

    async def delete(self, queue: QueueFacts, actor: str, reason: str | None) -> None:
        """The name is free at once. Lanes leave memory, and a deleted one does not come back.

        The tombstone is first: from then on no lane of the queue can be loaded, so a push that was
        on its way fails, or was stored in the queue that is being deleted; it cannot revive it.
        """
        await self._facts.lanes(queue)
        action = action_row(queue, "delete_queue", actor, reason, affected=1)
        await self._facts.delete_queue(queue, action)
        for shard in self._shards:
            own = [lane for lane in queue.lanes.values() if lane.shard_id == shard.shard_id]
            await self._leave(shard, queue, own, cmd.DeleteGroup(actor, reason))
        self._dispatch.forget_queue(queue.queue_id)
        self._budgets.pop(queue.queue_id, None)

    async def _leave(
        self, shard: Shard, queue: QueueFacts, lanes: list[LaneFacts], command: cmd.DeleteGroup
    ) -> None:
        for at in range(0, len(lanes), LANES_AT_ONCE):
            # Waits for lanes that are being read right now: they were found before the tombstone.
            await shard.lanes(lanes[at : at + LANES_AT_ONCE])
        own = [e for e in shard.entries.values() if e.facts.queue.queue_id == queue.queue_id]
        for at in range(0, len(own), LANES_AT_ONCE):
            for entry in own[at : at + LANES_AT_ONCE]:
                _leave_memory(shard, entry, command)
            await shard.ticket()


def _leave_memory(shard: Shard, entry: LaneEntry, command: cmd.DeleteGroup) -> None:
    if entry.dead:
        return
    for name, group in list(entry.groups.items()):
        if group.state.exists:
            shard.handle(entry, name, command)
    shard.evict(entry)


# ---------------------------------------------------------------- options


def difference(old: QueueOptions, new: QueueOptions) -> dict[str, Any]:
    """The options that change, with their new values."""
    before = asdict(old)
    return {name: value for name, value in asdict(new).items() if before[name] != value}


def patched(options: QueueOptions, patch: QueuePatch) -> QueueOptions:
    """Options with some of them replaced."""
    given = {name: value for name, value in asdict(patch).items() if value is not UNSET}
    return QueueOptions(**(asdict(options) | given))


def check(options: QueueOptions, old: QueueOptions | None = None) -> None:
    """Refuse what cannot be enforced: an option that is accepted is in force."""
    if options.order == "key":
        raise UnknownOptionError(
            'order "key" is not available yet',
            hint='use order "partition" and give each key its own partition',
        )
    if old is not None and options.partitions < old.partitions:
        raise BadRequestError(
            f"partitions may only grow: {old.partitions} now, {options.partitions} asked",
            hint="keys would change their lane and lose their order; make a new queue instead",
        )
