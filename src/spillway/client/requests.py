"""The calls of the message path: push, lease, settle. Pure: arguments in, a Request out."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

import msgspec

from spillway.client.batch import (
    FAILURE_STATUSES,
    Item,
    encode_item,
    mint_prefix,
    push_request,
    read_results,
    single,
)
from spillway.client.protocol import JSON_HEADERS, Request, at, json_reply
from spillway.client.pushed import Pushed
from spillway.wire import (
    Consumer,
    Extend,
    LeaseReply,
    LeaseRequest,
    Nack,
    SettleLease,
    SettleReply,
    SettleRequest,
)

_encoder = msgspec.json.Encoder()
_lease_reply = json_reply(LeaseReply)
_settle_reply = json_reply(SettleReply)


def push(
    queue: str,
    payload: object,
    *,
    key: str | None = None,
    partition: str | None = None,
    transaction_id: str | None = None,
    headers: dict[str, str] | None = None,
    delay_ms: int | None = None,
    deliver_at: datetime | None = None,
    ttl_ms: int | None = None,
    trace_id: str | None = None,
    priority: int = 2,
    qos: Literal[0, 1] = 1,
) -> Request[Pushed]:
    """Store one message; returns when it is durable (unless `qos=0`)."""
    transaction_id = transaction_id or f"{mint_prefix()}-0"
    item = Item(
        queue,
        payload,
        key=key,
        partition=partition,
        transaction_id=transaction_id,
        headers=headers,
        delay_ms=delay_ms,
        deliver_at=deliver_at,
        ttl_ms=ttl_ms,
        trace_id=trace_id,
        priority=priority,
    )
    many = push_request([encode_item(item, transaction_id)], qos)
    return Request(
        many.method,
        many.path,
        lambda response: single(read_results(response)),
        many.body,
        JSON_HEADERS,
        safe=True,
        expects=FAILURE_STATUSES,
    )


def consumer_of(consumer: Consumer | str | None) -> Consumer | None:
    return Consumer(name=consumer) if isinstance(consumer, str) else consumer


def lease(
    queue: str,
    group: str = "default",
    *,
    max: int = 1,  # noqa: A002 (the wire's word)
    wait_ms: int = 0,
    visibility_ms: int | None = None,
    partitions: Sequence[str] | None = None,
    consumer: Consumer | str | None = None,
) -> Request[LeaseReply]:
    """Lease up to `max` messages, waiting up to `wait_ms` for the first."""
    asked = LeaseRequest(
        group=group,
        max=max,
        wait_ms=wait_ms,
        visibility_ms=visibility_ms,
        partitions=None if partitions is None else list(partitions),
        consumer=consumer_of(consumer),
    )
    body = _encoder.encode(asked)
    path = at("queues", queue, "lease")
    return Request("POST", path, _lease_reply, body, JSON_HEADERS, wait_s=wait_ms / 1000)


def settle(
    ack: Sequence[str] = (),
    *,
    nack: Sequence[Nack] = (),
    extend: Sequence[Extend] = (),
    lease: SettleLease | None = None,
) -> Request[SettleReply]:
    """Ack, nack and extend by receipt and, with `lease`, ask for more in the same round trip.

    Receipts are fenced, so settling may be repeated; a lease may not: it would hold messages twice.
    """
    asked = SettleRequest(ack=list(ack), nack=list(nack), extend=list(extend), lease=lease)
    return Request(
        "POST",
        "/v1/settle",
        _settle_reply,
        _encoder.encode(asked),
        JSON_HEADERS,
        safe=lease is None,
        wait_s=0.0 if lease is None else lease.wait_ms / 1000,
    )


def ack(*receipts: str) -> Request[SettleReply]:
    """Settle messages as handled.

    A receipt that is refused raises nothing: its result says so. `message.ack()` does raise.
    """
    return settle(receipts)


def nack(
    *receipts: str, error: str | None = None, delay_ms: int | None = None, park: bool = False
) -> Request[SettleReply]:
    """Give messages back for another attempt, or up (`park`).

    A receipt that is refused raises nothing: its result says so. `message.nack()` does raise.
    """
    given = [Nack(receipt=one, delay_ms=delay_ms, error=error, park=park) for one in receipts]
    return settle(nack=given)


def extend(*receipts: str, visibility_ms: int) -> Request[SettleReply]:
    """Hold leased messages for `visibility_ms` from now.

    A receipt that is refused raises nothing: its result says so. `message.extend()` does raise.
    """
    return settle(extend=[Extend(receipt=one, visibility_ms=visibility_ms) for one in receipts])
