"""Queues and their consumer groups: make, change, look, delete."""

from typing import Annotated

from msgspec import Meta

from spillway.api.call import Call
from spillway.api.response import Response
from spillway.wire import (
    GroupListReply,
    GroupOptions,
    QueueOptions,
    QueuePatch,
    Reason,
    Request,
    Text,
)


class ListQuery(Request):
    """Which page of the queues."""

    after: Text | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class ReasonQuery(Request):
    """Why, for the audit."""

    reason: Reason | None = None


# ---------------------------------------------------------------- queues


async def put_queue(call: Call) -> Response:
    options = await call.read_or_default(QueueOptions)
    name = call.params["queue"]
    created, queue = await call.broker.operations.put_queue(call.org, name, options, call.actor)
    return call.reply(queue, 201 if created else 200)


async def patch_queue(call: Call) -> Response:
    patch = await call.read(QueuePatch)
    name = call.params["queue"]
    return call.reply(await call.broker.operations.patch_queue(call.org, name, patch, call.actor))


async def get_queue(call: Call) -> Response:
    return call.reply(await call.broker.insights.get_queue(call.org, call.params["queue"]))


async def delete_queue(call: Call) -> Response:
    reason, name = call.query(ReasonQuery).reason, call.params["queue"]
    return call.reply(await call.broker.operations.delete_queue(call.org, name, call.actor, reason))


async def list_queues(call: Call) -> Response:
    query = call.query(ListQuery)
    return call.reply(await call.broker.insights.list_queues(call.org, query.after, query.limit))


# ---------------------------------------------------------------- groups


async def put_group(call: Call) -> Response:
    options = await call.read_or_default(GroupOptions)
    queue, group = call.params["queue"], call.params["group"]
    created, counts = await call.broker.operations.put_group(
        call.org, queue, group, options, call.actor
    )
    return call.reply(counts, 201 if created else 200)


async def get_group(call: Call) -> Response:
    queue, group = call.params["queue"], call.params["group"]
    return call.reply(await call.broker.insights.get_group(call.org, queue, group))


async def list_groups(call: Call) -> Response:
    groups = await call.broker.insights.list_groups(call.org, call.params["queue"])
    return call.reply(GroupListReply(groups=groups))


async def delete_group(call: Call) -> Response:
    queue, group = call.params["queue"], call.params["group"]
    return call.reply(await call.broker.operations.delete_group(call.org, queue, group, call.actor))
