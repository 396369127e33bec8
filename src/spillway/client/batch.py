"""Items to push, cut into requests that stay under the broker's limits.

Every item leaves with a transaction id, so that any push may be repeated. The ids of one call share
a random prefix and count up, which compresses well wherever they are stored.
"""

import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal, TypedDict, cast

import msgspec

from spillway.client.errors import ClientUsageError, error_of
from spillway.client.http1 import Response
from spillway.client.payload import shape, unknown_number
from spillway.client.protocol import JSON_HEADERS, Request
from spillway.client.pushed import Pushed, PushedReply
from spillway.core.errors import InvalidItemError, SpillwayError
from spillway.wire import ErrorDetail, PushItem

ITEMS_MAX = 5_000
BYTES_MAX = 8 * 1024 * 1024
FAILURE_STATUSES = frozenset(range(400, 600))

_encoder = msgspec.json.Encoder()
_reply_decoder = msgspec.json.Decoder(PushedReply)


@dataclass(frozen=True, slots=True)
class Item:
    """One message to push; without a transaction id the client mints one."""

    queue: str
    payload: Any
    key: str | None = None
    partition: str | None = None
    transaction_id: str | None = None
    headers: dict[str, str] | None = None
    delay_ms: int | None = None
    deliver_at: datetime | None = None
    ttl_ms: int | None = None
    trace_id: str | None = None
    priority: int = 2


class ItemOptions(TypedDict, total=False):
    """What an item may have beside its queue and its payload."""

    key: str | None
    partition: str | None
    transaction_id: str | None
    headers: dict[str, str] | None
    delay_ms: int | None
    deliver_at: datetime | None
    ttl_ms: int | None
    trace_id: str | None
    priority: int


@dataclass(frozen=True, slots=True)
class Batch:
    """One request's worth of items; `start` is the place of its first in the whole call."""

    start: int
    transaction_ids: list[str]
    request: Request[list[Pushed]]


def mint_prefix() -> str:
    """22 characters that nobody else has."""
    return secrets.token_urlsafe(16)


def as_item(item: Item | Mapping[str, Any]) -> Item:
    if isinstance(item, Item):
        return item
    try:
        return Item(**item)
    except TypeError as error:
        raise ClientUsageError(f"{item!r} is no item: {error}") from error


def encode_item(item: Item, transaction_id: str) -> bytes:
    """The JSON of one item."""
    _check_time(item)
    wired = PushItem(
        queue=item.queue,
        payload=cast("msgspec.Raw", shape(item.payload)),  # encoded in the same pass
        partition=item.partition,
        key=item.key,
        transaction_id=transaction_id,
        headers=item.headers,
        priority=item.priority,
        delay_ms=item.delay_ms,
        deliver_at=item.deliver_at,
        ttl_ms=item.ttl_ms,
        trace_id=item.trace_id,
    )
    return _encode(wired, item.payload)


def sealed(item: Item) -> Item:
    """The item as it is now: later changes of its payload are not seen, and it can be sent."""
    _check_time(item)
    return replace(item, payload=encode_payload(item.payload))


def encode_payload(payload: object) -> msgspec.Raw:
    """A payload as it travels."""
    return msgspec.Raw(_encode(shape(payload), payload))


def _check_time(item: Item) -> None:
    if item.deliver_at is not None and item.deliver_at.tzinfo is None:
        raise InvalidItemError("deliver_at has no timezone", hint="use datetime.now(UTC) and kin")


def _encode(value: object, payload: object) -> bytes:
    try:
        data = _encoder.encode(value)
    except (TypeError, ValueError) as error:
        raise InvalidItemError(
            f"the payload cannot be JSON: {error}", hint="push bytes, or values that JSON knows"
        ) from error
    if b"null" in data:
        _check_numbers(payload)
    return data


def _check_numbers(payload: object) -> None:
    number = unknown_number(msgspec.to_builtins(payload, builtin_types=(msgspec.Raw,)))
    if number is not None:
        raise InvalidItemError(
            f"the payload holds {number}, which JSON does not know",
            hint="push None or a text in its place",
        )


def batches(
    items: Iterable[Item | Mapping[str, Any]],
    *,
    qos: Literal[0, 1] = 1,
    items_max: int = ITEMS_MAX,
    bytes_max: int = BYTES_MAX,
) -> Iterator[Batch]:
    """The requests that push these items, in their order."""
    prefix = mint_prefix()
    start, size = 0, 0
    parts: list[bytes] = []
    ids: list[str] = []
    for index, given in enumerate(items):
        item = as_item(given)
        transaction_id = item.transaction_id or f"{prefix}-{index}"
        part = encode_item(item, transaction_id)
        if parts and (len(parts) >= items_max or size + len(part) > bytes_max):
            yield Batch(start, ids, push_request(parts, qos))
            start, size, parts, ids = index, 0, [], []
        parts.append(part)
        ids.append(transaction_id)
        size += len(part) + 1
    if parts:
        yield Batch(start, ids, push_request(parts, qos))


def push_request(parts: list[bytes], qos: int) -> Request[list[Pushed]]:
    """One push of items that are JSON already."""
    body = b'{"items":[' + b",".join(parts) + b'],"qos":%d}' % qos
    return Request(
        "POST",
        "/v1/messages",
        read_results,
        body,
        JSON_HEADERS,
        safe=True,
        expects=FAILURE_STATUSES,
    )


def read_results(response: Response) -> list[Pushed]:
    """The result of each item.

    When all of them failed because the broker cannot now, that is raised, so that the whole batch
    is tried again. Single failed items are never tried again: they would land behind later ones.
    """
    results = _reply_decoder.decode(response.body).each()
    if response.status >= 300:
        raise_if_all_transient(results)
    return results


def raise_if_all_transient(results: list[Pushed]) -> None:
    errors = [error_of(result.error) for result in results if result.error is not None]
    if errors and len(errors) == len(results) and all(error.transient for error in errors):
        raise errors[0]


def placed(batch: Batch, results: list[Pushed]) -> list[Pushed]:
    """The results with their index in the whole call instead of in the request."""
    for result in results:
        result.index += batch.start
    return results


def all_failed(batch: Batch, detail: ErrorDetail) -> list[Pushed]:
    """Results for a batch that never got an answer; the ids allow a safe repetition."""
    return [
        Pushed(index=batch.start + at, status="failed", transaction_id=tid, error=detail)
        for at, tid in enumerate(batch.transaction_ids)
    ]


def single(results: list[Pushed]) -> Pushed:
    """The only result of a push of one; its failure as an error."""
    result = results[0]
    if result.status == "failed":
        raise failure_of(result)
    return result


def failure_of(result: Pushed) -> SpillwayError:
    if result.error is None:
        return SpillwayError(f"item {result.index} failed without a reason")
    return error_of(result.error)
