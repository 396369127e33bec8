"""The operator verbs: one handler shape for all of them."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from spillway.api.call import Call
from spillway.api.ports import Broker
from spillway.api.response import Response
from spillway.api.routing import Handler
from spillway.wire import (
    ParkRequest,
    PauseRequest,
    PurgeRequest,
    RedriveRequest,
    SeekRequest,
    UnblockRequest,
    VerbReply,
)

R = TypeVar("R")
Verb = Callable[[Broker], Callable[[str, str, R, str], Awaitable[VerbReply]]]


def _verb(kind: type[R], verb: Verb[R], *, needs_body: bool = False) -> Handler:
    async def handle(call: Call) -> Response:
        request = await (call.read(kind) if needs_body else call.read_or_default(kind))
        return call.reply(
            await verb(call.broker)(call.org, call.params["queue"], request, call.actor)
        )

    return handle


redrive = _verb(RedriveRequest, lambda broker: broker.operations.redrive)
unblock = _verb(UnblockRequest, lambda broker: broker.operations.unblock)
park = _verb(ParkRequest, lambda broker: broker.operations.park)
purge = _verb(PurgeRequest, lambda broker: broker.operations.purge, needs_body=True)
seek = _verb(SeekRequest, lambda broker: broker.operations.seek, needs_body=True)
pause = _verb(PauseRequest, lambda broker: broker.operations.pause)
resume = _verb(PauseRequest, lambda broker: broker.operations.resume)
