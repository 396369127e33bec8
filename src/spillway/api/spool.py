"""The spool of this broker. It holds the pushes of every org, so it belongs to none of them."""

from spillway.api.call import Call
from spillway.api.ports import Spoolkeeping
from spillway.api.response import Response
from spillway.core.errors import ForbiddenError
from spillway.wire import SpoolHoldRequest

OPERATING_ORG = "default"


def _spool(call: Call) -> Spoolkeeping:
    """The spool, for whoever may touch it."""
    if call.has_key and call.org != OPERATING_ORG:
        raise ForbiddenError(
            f"the spool belongs to the broker, not to org {call.org!r}",
            hint=f"use an API key of org {OPERATING_ORG!r}",
        )
    return call.broker.spoolkeeping


async def status(call: Call) -> Response:
    return call.reply(await _spool(call).status())


async def hold(call: Call) -> Response:
    spool, request = _spool(call), await call.read_or_default(SpoolHoldRequest)
    return call.reply(await spool.hold(request, call.actor))


async def release(call: Call) -> Response:
    spool, request = _spool(call), await call.read_or_default(SpoolHoldRequest)
    return call.reply(await spool.release(request, call.actor))
