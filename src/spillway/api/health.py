"""How the broker is, who writes what, and whether the books balance."""

from typing import Literal

from spillway.api.call import Call
from spillway.api.response import RETRY_AFTER, Response
from spillway.wire import Reply


class LiveReply(Reply):
    """The process answers."""

    status: Literal["ok"] = "ok"


async def health(call: Call) -> Response:
    return call.reply(await call.broker.health())


async def live(call: Call) -> Response:
    return call.reply(LiveReply())


async def ready(call: Call) -> Response:
    state = await call.broker.health()
    if state.ready:
        return call.reply(state)
    return call.reply(state, 503, RETRY_AFTER)


async def topology(call: Call) -> Response:
    return call.reply(await call.broker.insights.topology())


async def audit(call: Call) -> Response:
    """Whoever comes with a key hears of its org alone."""
    return call.reply(await call.broker.insights.audit(call.org if call.has_key else None))
