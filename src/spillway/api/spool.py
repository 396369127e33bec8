"""The spool of this broker. It holds the pushes of every org, so it belongs to none of them."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Annotated

from msgspec import UNSET, Meta

from spillway.api.call import Call
from spillway.api.media import JSON
from spillway.api.payloads import dress, received
from spillway.api.ports import Spoolkeeping
from spillway.api.response import Response
from spillway.core.errors import ForbiddenError, InvalidItemError
from spillway.wire import (
    Request,
    SpoolDiscardRequest,
    SpoolEvent,
    SpoolHoldRequest,
    SpoolPlace,
    SpoolRepairRequest,
    SpoolRetryRequest,
    SpoolVerifyRequest,
)

OPERATING_ORG = "default"

PageSize = Annotated[int, Meta(ge=1, le=1000)]
Source = Annotated[str, Meta(min_length=1, max_length=128)]
LineNumber = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class FilesQuery(Request):
    """Which files to list: those that wait, or those with events that failed."""

    state: SpoolPlace = "waiting"
    limit: PageSize = 100
    after: str | None = None


class EventsQuery(Request):
    """Which events of a file to show."""

    state: SpoolPlace = "waiting"
    from_line: LineNumber = 1
    limit: PageSize = 100


class TakeQuery(Request):
    """Whose events come: those of a buffer file, or what was set `aside` from it."""

    source: Source
    aside: bool = False


def _spool(call: Call) -> Spoolkeeping:
    """The spool, for whoever may touch it."""
    if call.has_key and call.org != OPERATING_ORG:
        raise ForbiddenError(
            f"the spool belongs to the broker, not to org {call.org!r}",
            hint=f"use an API key of org {OPERATING_ORG!r}",
        )
    return call.broker.spoolkeeping


# ---------------------------------------------------------------- looking


async def status(call: Call) -> Response:
    return call.reply(await _spool(call).status())


async def files(call: Call) -> Response:
    spool, query = _spool(call), call.query(FilesQuery)
    return call.reply(await spool.files(query.state, query.after, query.limit))


async def events(call: Call) -> Response:
    spool, query = _spool(call), call.query(EventsQuery)
    reply = await spool.events(call.params["file"], query.state, query.from_line, query.limit)
    if call.reply_media is not JSON:
        _dress(call, reply.events)
    return call.reply(reply)


def _dress(call: Call, shown: Iterable[SpoolEvent]) -> None:
    """Payloads as they were pushed: in a line all of them are JSON text."""
    for one in shown:
        if one.payload is not UNSET:
            with suppress(InvalidItemError):  # then it is the text that it looks like
                one.payload = received(JSON, one.payload)
            dress([one], call.reply_media)


async def verify(call: Call) -> Response:
    spool, request = _spool(call), await call.read_or_default(SpoolVerifyRequest)
    return call.reply(await spool.verify(request))


# ---------------------------------------------------------------- doing


async def repair(call: Call) -> Response:
    spool, request = _spool(call), await call.read(SpoolRepairRequest)
    if request.event is not None and request.event.payload is not UNSET:
        request.event.payload = received(call.media, request.event.payload)
    return call.reply(await spool.repair(request, call.actor))


async def retry(call: Call) -> Response:
    spool, request = _spool(call), await call.read_or_default(SpoolRetryRequest)
    return call.reply(await spool.retry(request, call.actor))


async def discard(call: Call) -> Response:
    spool, request = _spool(call), await call.read(SpoolDiscardRequest)
    return call.reply(await spool.discard(request, call.actor))


async def hold(call: Call) -> Response:
    spool, request = _spool(call), await call.read_or_default(SpoolHoldRequest)
    return call.reply(await spool.hold(request, call.actor))


async def release(call: Call) -> Response:
    spool, request = _spool(call), await call.read_or_default(SpoolHoldRequest)
    return call.reply(await spool.release(request, call.actor))


# ---------------------------------------------------------------- from broker to broker


async def take(call: Call) -> Response:
    """The body is lines of a buffer file, as they stand there. No API key is asked for: the events
    are of any org, and only a broker knows the secret.
    """
    if not call.broker.is_broker(call.headers.get(b"x-spillway-secret", b"")):
        raise ForbiddenError(
            "only brokers of this database may hand over their spools",
            hint="push messages with POST /v1/messages",
        )
    query = call.query(TakeQuery)
    return call.reply(await call.broker.take(query.source, await call.body(), aside=query.aside))
