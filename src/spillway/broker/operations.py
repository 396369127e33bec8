"""The operator's verbs: durable before they are answered, and audited with actor and reason.

Each verb takes the shard's ticket in the turn of its decision and waits for it; a bulk verb is
many such steps, and what it did stays done if it breaks off.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from spillway.broker import lifecycle
from spillway.broker.actions import Actions, Deed
from spillway.broker.deadletters import LETTERS_AT_ONCE_MAX, DeadLetters
from spillway.broker.dispatch import Dispatch
from spillway.broker.facts import GROUP_DEFAULT, Facts, QueueFacts
from spillway.broker.handwork import PAGE_VERSIONS, Handwork, Task
from spillway.broker.insights import Insights
from spillway.broker.lifecycle import Lifecycle, patched
from spillway.broker.places import UNSETTLED, WAITING
from spillway.broker.positions import Positions, normal_start
from spillway.broker.selection import dead_filter, detail, require
from spillway.broker.shard import Shard
from spillway.core import commands as cmd
from spillway.core.errors import BadRequestError, GroupConflictError, InvalidNameError
from spillway.core.ranges import Range
from spillway.core.state import BLOCKED
from spillway.log.database import Database
from spillway.warm.memory import Budget
from spillway.wire import (
    DeletedReply,
    GroupCounts,
    GroupOptions,
    ParkRequest,
    PauseRequest,
    PurgeRequest,
    QueueOptions,
    QueuePatch,
    QueueReply,
    RedriveRequest,
    SeekRequest,
    Selection,
    UnblockRequest,
    VerbReply,
    is_name,
)


class Operations:
    """What people do by hand."""

    def __init__(
        self,
        *,
        facts: Facts,
        shards: list[Shard],
        dispatch: Dispatch,
        database: Database,
        budgets: dict[int, Budget],
        insights: Insights,
        now_ms: Callable[[], int],
    ) -> None:
        self._facts = facts
        self._dispatch = dispatch
        self._insights = insights
        self._actions = Actions(database)
        self._handwork = Handwork(facts, shards, database)
        self._dead = DeadLetters(facts, shards, database, now_ms)
        self._positions = Positions(facts, shards, database, self._dead)
        self._lifecycle = Lifecycle(facts, shards, dispatch, budgets)

    # ------------------------------------------------------------ queues

    async def put_queue(
        self, org: str, name: str, options: QueueOptions, actor: str
    ) -> tuple[bool, QueueReply]:
        """Make a queue, or set all its options. True: it was made by this call."""
        _check_name("queue", name)
        lifecycle.check(options)
        made, queue = await self._facts.create_queue(org, name, options)
        if made:
            async with self._actions.audited(queue, "create_queue", actor, None) as deed:
                deed.affected = 1
        else:
            await self._change(queue, options, actor)
        return made, await self._insights.get_queue(org, name)

    async def patch_queue(self, org: str, name: str, patch: QueuePatch, actor: str) -> QueueReply:
        """Change some options."""
        queue = await self._queue(org, name)
        await self._change(queue, patched(queue.options, patch), actor)
        return await self._insights.get_queue(org, name)

    async def _queue(self, org: str, name: str) -> QueueFacts:
        """The queue of a verb. Only the owner carries verbs out: nobody else would tell it."""
        self._facts.check_owned()
        return await self._facts.queue(org, name)

    async def _change(self, queue: QueueFacts, options: QueueOptions, actor: str) -> None:
        changes = lifecycle.difference(queue.options, options)
        lifecycle.check(options, queue.options)
        if not changes:
            return
        async with self._actions.audited(queue, "update_queue", actor, None, **changes) as deed:
            await self._lifecycle.change(queue, options, changes, actor, deed)

    async def delete_queue(
        self, org: str, name: str, actor: str, reason: str | None
    ) -> DeletedReply:
        """Delete a queue with all its messages and groups."""
        queue = await self._queue(org, name)
        await self._lifecycle.delete(queue, actor, plain(reason))
        return DeletedReply(deleted=name)

    async def pause(
        self, org: str, queue_name: str, request: PauseRequest, actor: str
    ) -> VerbReply:
        """Stop leasing."""
        return await self._pause(org, queue_name, request, actor, paused=True)

    async def resume(
        self, org: str, queue_name: str, request: PauseRequest, actor: str
    ) -> VerbReply:
        """Lease again."""
        return await self._pause(org, queue_name, request, actor, paused=False)

    async def _pause(
        self, org: str, queue_name: str, request: PauseRequest, actor: str, *, paused: bool
    ) -> VerbReply:
        queue = await self._queue(org, queue_name)
        verb = "pause" if paused else "resume"
        reason, group = plain(request.reason), request.group
        async with self._actions.audited(queue, verb, actor, reason, group) as deed:
            deed.affected = await self._lifecycle.pause(queue, group, paused=paused)
        return VerbReply(verb=verb, affected=deed.affected)

    # ------------------------------------------------------------ groups

    async def put_group(
        self, org: str, queue_name: str, group: str, options: GroupOptions, actor: str
    ) -> tuple[bool, GroupCounts]:
        """Make a group that begins at `start`. True: it was made by this call.

        Its positions come before its row: a creation that breaks off in between is simply repeated.
        """
        _check_name("group", group)
        queue = await self._queue(org, queue_name)
        start = normal_start(options.start)
        made = group not in queue.groups
        if made:
            with queue.group_change(group):
                if start != "earliest":
                    await self._positions.begin(queue, group, start, actor)
                made, _ = await self._facts.ensure_group(queue, group, start)
            self._dispatch.forget_group(queue.queue_id, group)
        known = self._facts.group(queue, group)
        if known.start != start:
            raise GroupConflictError(f"group {group!r} began at {known.start}, not at {start}")
        if made:
            async with self._actions.audited(queue, "create_group", actor, None, group) as deed:
                deed.affected = 1
        return made, await self._insights.get_group(org, queue_name, group)

    async def delete_group(self, org: str, queue_name: str, group: str, actor: str) -> DeletedReply:
        """Forget a group: its positions, its dead letters, then its row."""
        queue = await self._queue(org, queue_name)
        self._facts.group(queue, group)
        async with self._actions.audited(queue, "delete_group", actor, None, group) as deed:
            with queue.group_change(group):
                await self._positions.end(queue, group, actor, deed)
                await self._facts.delete_group(queue, group)
                self._dispatch.forget_group(queue.queue_id, group)
        return DeletedReply(deleted=group)

    async def seek(self, org: str, queue_name: str, request: SeekRequest, actor: str) -> VerbReply:
        """Move a group, on all lanes or on those of one partition."""
        queue = await self._queue_with_group(org, queue_name, request.group)
        reason, group, to = plain(request.reason), request.group, request.to
        said = {"to": to, "partition": request.partition}
        async with self._actions.audited(queue, "seek", actor, reason, group, **said) as deed:
            await self._positions.seek(
                queue, group, to, partition=request.partition, by=(actor, reason), deed=deed
            )
        return VerbReply(verb="seek", affected=deed.affected)

    async def _queue_with_group(self, org: str, queue_name: str, group: str) -> QueueFacts:
        """The queue of a verb. `default` is made by its first use, other groups must exist."""
        queue = await self._queue(org, queue_name)
        if group == GROUP_DEFAULT:
            await self._facts.ensure_group(queue, group)
        self._facts.group(queue, group)
        return queue

    # ------------------------------------------------------------ messages in their lanes

    async def unblock(
        self, org: str, queue_name: str, request: UnblockRequest, actor: str
    ) -> VerbReply:
        """Let blocked messages go."""
        reason = plain(request.reason)

        def command(ranges: tuple[Range, ...]) -> cmd.Command:
            return cmd.Unblock(ranges, request.action, actor, reason)

        queue = await self._queue_with_group(org, queue_name, request.group)
        task = Task(queue, request, BLOCKED, command)
        if request.action == "park":
            task = replace(task, page_versions=PAGE_VERSIONS)
        return await self._do("unblock", task, actor, action=request.action)

    async def park(self, org: str, queue_name: str, request: ParkRequest, actor: str) -> VerbReply:
        """Give up on messages, wherever they are."""
        reason = plain(request.reason)

        def command(ranges: tuple[Range, ...]) -> cmd.Command:
            return cmd.Park(ranges, actor, reason)

        queue = await self._queue_with_group(org, queue_name, request.group)
        task = Task(queue, request, UNSETTLED, command, PAGE_VERSIONS, begins_group=True)
        return await self._do("park", task, actor)

    async def purge(
        self, org: str, queue_name: str, request: PurgeRequest, actor: str
    ) -> VerbReply:
        """Settle what waits, or delete dead letters."""
        if request.what == "dead":
            return await self._with_dead("purge", org, queue_name, request, actor)
        if request.ids is not None:
            raise BadRequestError("ids name dead letters", hint='say "what": "dead", or messages')
        reason = plain(request.reason)

        def command(ranges: tuple[Range, ...]) -> cmd.Command:
            return cmd.Purge(ranges, actor=actor, reason=reason)

        queue = await self._queue_with_group(org, queue_name, request.group)
        task = Task(queue, request, WAITING, command, begins_group=True)
        return await self._do("purge", task, actor, what="waiting")

    async def _do(self, verb: str, task: Task, actor: str, **said: Any) -> VerbReply:
        request = task.request
        require(request)
        deed = Deed()
        if request.dry_run:
            await self._handwork.do(task, deed)
        else:
            said |= detail(request)
            reason, group = plain(request.reason), request.group
            async with self._actions.audited(
                task.queue, verb, actor, reason, group, **said
            ) as deed:
                await self._handwork.do(task, deed)
        return _reply(verb, request, deed)

    # ------------------------------------------------------------ dead letters

    async def redrive(
        self, org: str, queue_name: str, request: RedriveRequest, actor: str
    ) -> VerbReply:
        """Dead letters back to their lanes, with fresh attempts."""
        return await self._with_dead("redrive", org, queue_name, request, actor)

    async def _with_dead(
        self,
        verb: str,
        org: str,
        queue_name: str,
        request: RedriveRequest | PurgeRequest,
        actor: str,
    ) -> VerbReply:
        require(request, request.ids)
        queue = await self._queue(org, queue_name)
        chosen = dead_filter(queue, request, request.ids)
        count = await self._dead.count(chosen)
        limit = min(request.limit or LETTERS_AT_ONCE_MAX, count)
        deed = Deed(limit)
        if not request.dry_run:
            act = self._dead.redrive if verb == "redrive" else self._dead.purge
            reason, said = plain(request.reason), detail(request)
            async with self._actions.audited(
                queue, verb, actor, reason, request.group, **said
            ) as deed:
                await act(chosen, limit, deed, actor, reason)
        deed.remaining = max(0, count - deed.affected)
        return _reply(verb, request, deed)


def _reply(verb: str, request: Selection, deed: Deed) -> VerbReply:
    return VerbReply(
        verb=verb, affected=deed.affected, dry_run=request.dry_run, remaining=deed.remaining
    )


def _check_name(what: str, name: str) -> None:
    if not is_name(name):
        raise InvalidNameError(f"{what} name {name[:64]!r} is outside the pattern")


def plain(text: str | None) -> str | None:
    """A text that PostgreSQL can store: its text type has no NUL."""
    return None if text is None else text.replace("\0", "�")
