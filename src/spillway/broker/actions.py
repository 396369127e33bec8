"""The audit of what people did by hand: one row for each verb that changed something."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from spillway.broker.facts import QueueFacts
from spillway.log.database import Database


@dataclass(slots=True)
class Deed:
    """What a verb has done so far."""

    affected: int = 0
    remaining: int = 0


@dataclass(frozen=True, slots=True)
class Actions:
    """Writes the audit.

    The row follows the commits of the verb and comes before its answer. It cannot share their
    transaction: a bulk verb has many, and each belongs to the shard's writer. The events of those
    commits carry actor and reason too, so a crash in between loses the summary, not the fact. Only
    what deletes a queue is written with the deed: its events go with it.
    """

    database: Database

    @asynccontextmanager
    async def audited(
        self,
        queue: QueueFacts,
        verb: str,
        actor: str,
        reason: str | None,
        group: str | None = None,
        /,
        **detail: Any,
    ) -> AsyncIterator[Deed]:
        """Record what was done inside the block, all the more so if it broke off half-way."""
        deed = Deed()

        async def record(**more: Any) -> None:
            said = {"affected": deed.affected, **detail, **more}
            row = action_row(queue, verb, actor, reason, group, **said)
            await self.database.rows("operator_action_insert", **row)

        try:
            yield deed
        except BaseException as error:
            if deed.affected:
                await record(broke_off=type(error).__name__)
            raise
        await record()


def action_row(
    queue: QueueFacts,
    verb: str,
    actor: str,
    reason: str | None,
    group: str | None = None,
    /,
    **detail: Any,
) -> dict[str, Any]:
    """A row of the audit."""
    return {
        "org": queue.org,
        "queue": queue.name,
        "group": group,
        "verb": verb,
        "actor": actor,
        "reason": reason,
        "detail": msgspec.json.encode(detail).decode(),
    }
