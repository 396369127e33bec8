"""POST /v1/messages: the whole request in one go, or item by item when one of them is bad."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import msgspec
from msgspec import Raw

from spillway.api.call import Call
from spillway.api.limits import check_count
from spillway.api.media import JSON, UNDECODABLE, Media, check_text, decode, decoder_of, refusal
from spillway.api.payloads import mark_half_pairs, may_hold_bytes, received, shallow
from spillway.api.response import RETRY_AFTER, Response, detail_of
from spillway.core.errors import BadRequestError, InvalidItemError, SpillwayError
from spillway.wire import (
    ErrorDetail,
    PushItem,
    PushReply,
    PushRequest,
    PushResult,
    Request,
)


class PushRefusal(PushReply, kw_only=True):
    """Every item failed: what became of each, and the error of the first."""

    error: ErrorDetail


class _Envelope(Request):
    """A PushRequest whose items are still to be read."""

    items: list[Raw]
    qos: Literal[0, 1] = 1


class _Claim(msgspec.Struct):
    """What can be told of an item that is not right."""

    transaction_id: str | None = None


@dataclass(slots=True)
class _Batch:
    """The items that can be pushed, and by their index the results of those that cannot."""

    items: list[PushItem]
    failed: dict[int, PushResult]
    qos: int


async def push(call: Call) -> Response:
    media = call.media
    batch = _read(media, await call.body(), call.limits.items_max)
    results = await call.broker.push(call.org, batch.items, qos=batch.qos) if batch.items else []
    if batch.failed:
        results = _merged(results, batch.failed)
    if any(result.status != "failed" for result in results):
        return call.reply(PushReply(results=results, durable=batch.qos > 0), 201)
    return _refused(call, results)


# ---------------------------------------------------------------- reading


def _read(media: Media, body: bytes, items_max: int) -> _Batch:
    try:
        check_text(media, body)
        request = decoder_of(media, PushRequest).decode(body)
    except UNDECODABLE:
        return _read_one_by_one(media, body, items_max)
    _check_count(request.items, items_max)
    marked = may_hold_bytes(media, body)
    if not marked and shallow(body, [item.payload for item in request.items]):
        return _Batch(request.items, {}, request.qos)
    batch = _Batch([], {}, request.qos)
    _admit(batch, media, request.items, marked=marked)
    return batch


def _read_one_by_one(media: Media, body: bytes, items_max: int) -> _Batch:
    # In MessagePack every string has a length: broken UTF-8 spoils its item alone.
    half_pair = b""
    try:
        envelope = decode(media, body, _Envelope)
    except BadRequestError:
        body, half_pair = mark_half_pairs(body) if media is JSON else (body, b"")
        if not half_pair:
            raise
        envelope = decode(media, body, _Envelope)
    _check_count(envelope.items, items_max)
    batch = _Batch([], {}, envelope.qos)
    _admit(batch, media, envelope.items, marked=True, half_pair=half_pair)
    return batch


def _check_count(items: Sequence[object], items_max: int) -> None:
    if not items:
        raise BadRequestError("items is empty", hint="push at least one item")
    check_count(len(items), items_max)


def _admit(
    batch: _Batch,
    media: Media,
    items: Iterable[PushItem | Raw],
    *,
    marked: bool,
    half_pair: bytes = b"",
) -> None:
    for index, given in enumerate(items):
        try:
            item = given if isinstance(given, PushItem) else _item(media, given, half_pair)
            item.payload = received(media, item.payload, marked=marked)
            batch.items.append(item)
        except InvalidItemError as error:
            batch.failed[index] = PushResult(
                index=index,
                status="failed",
                transaction_id=_claimed_id(media, given, half_pair),
                error=detail_of(error),
            )


def _item(media: Media, raw: Raw, half_pair: bytes) -> PushItem:
    if half_pair and half_pair in bytes(raw):
        raise InvalidItemError(
            "the item has half a surrogate pair in an escape",
            hint="cut texts between characters, or send them as bytes in payload_base64",
        )
    try:
        return decoder_of(media, PushItem).decode(raw)
    except UNDECODABLE as error:
        raise InvalidItemError(refusal(error).message) from error


def _claimed_id(media: Media, given: PushItem | Raw, half_pair: bytes) -> str | None:
    if isinstance(given, PushItem):
        return given.transaction_id
    try:
        claimed = decoder_of(media, _Claim).decode(given).transaction_id
    except UNDECODABLE:
        return None
    is_whole = not (claimed and half_pair and half_pair.decode() in claimed)
    return claimed if is_whole else None


# ---------------------------------------------------------------- answering


def _merged(results: list[PushResult], failed: dict[int, PushResult]) -> list[PushResult]:
    """Results in the order of the request; the broker only counted the items it was given."""
    pushed = iter(results)
    merged = []
    for index in range(len(results) + len(failed)):
        result = failed.get(index) or next(pushed)
        result.index = index
        merged.append(result)
    return merged


def _refused(call: Call, results: list[PushResult]) -> Response:
    """400, but what one shared cause says better, and 503 where every cause is worth a retry."""
    errors = [result.error for result in results if result.error is not None]
    first = errors[0] if errors else detail_of(SpillwayError())
    causes = [_causes().get(code, BadRequestError) for code in {error.code for error in errors}]
    passing = bool(causes) and all(cause.transient for cause in causes)
    best = causes[0].status if len(causes) == 1 else 503 if passing else 400
    headers = RETRY_AFTER if passing else ()
    status = best if best >= 409 else 400
    return call.reply(PushRefusal(results=results, error=first), status, headers)


@cache
def _causes() -> dict[str, type[SpillwayError]]:
    found: dict[str, type[SpillwayError]] = {}
    todo = [SpillwayError]
    while todo:
        kind = todo.pop()
        found.setdefault(kind.code, kind)
        todo += kind.__subclasses__()
    return found
