"""Lease and settle: messages out, and what became of them in."""

from collections.abc import Sequence

from spillway.api.attendance import Attendance, ClientGoneError
from spillway.api.call import Call
from spillway.api.limits import check_count
from spillway.api.payloads import dress
from spillway.api.response import RETRY_AFTER, Response
from spillway.core.errors import DatabaseUnavailableError
from spillway.wire import LeaseRequest, Message, SettleRequest


async def lease(call: Call) -> Response:
    request = await call.read_or_default(LeaseRequest)
    with Attendance(call.receive, call.is_hung_up) as caller:
        reply = await call.broker.lease(call.org, call.params["queue"], request)
    _hand_over(call, caller, reply.messages)
    away = reply.reason == DatabaseUnavailableError.code
    return call.reply(reply, headers=RETRY_AFTER if away else ())


async def settle(call: Call) -> Response:
    request = await call.read(SettleRequest)
    count = len(request.ack) + len(request.nack) + len(request.extend)
    check_count(count, call.limits.items_max)
    if request.lease is None:
        return call.reply(await call.broker.settle(call.org, request))
    with Attendance(call.receive, call.is_hung_up) as caller:
        reply = await call.broker.settle(call.org, request)
    _hand_over(call, caller, reply.messages or ())
    return call.reply(reply)


def _hand_over(call: Call, caller: Attendance, messages: Sequence[Message]) -> None:
    if not messages:
        return
    if caller.has_left():
        call.broker.give_back(messages)
        raise ClientGoneError
    dress(messages, call.reply_media)
