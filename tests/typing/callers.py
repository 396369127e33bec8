"""What an application may write, and what its type checker makes of it. Checked by mypy, never run.

Where a line must not pass, it says which complaint is expected: one that no longer comes is an
unused ignore, and fails too.
"""

from collections.abc import Sequence
from typing import Any, assert_type

from spillway import (
    AsyncClient,
    AsyncMessage,
    AsyncProducer,
    Client,
    Item,
    Message,
    Producer,
    Worker,
    errors,
)
from spillway.client.pushed import Pushed
from spillway.wire import QueueReply, SettleReply, VerbReply


def blocking(client: Client) -> None:
    with client:
        assert_type(client.push("orders", {"order": 1}, key="customer-7"), Pushed)
        assert_type(
            client.push_many([Item("orders", 1), {"queue": "orders", "payload": 2}]),
            list[Pushed],
        )
        assert_type(client.create_queue("orders", max_attempts=5, on_exhausted="block"), QueueReply)
        assert_type(client.seek("orders", to="earliest"), VerbReply)
        for message in client.consume("orders", batch=10):
            assert_type(message, Message)
            assert_type(message.key, str | None)
            assert_type(message.payload, Any)
        leased = client.lease("orders", max=10, wait_ms=1_000)
        assert_type(leased[0], Message)
        assert_type(leased.reason, str | None)
        assert_type(client.ack(*[message.receipt for message in leased]), SettleReply)


async def awaiting(client: AsyncClient) -> None:
    async with client:
        assert_type(await client.push("orders", b"bytes too"), Pushed)
        async for message in client.consume("orders"):
            assert_type(message, AsyncMessage)
        async with AsyncProducer(client) as producer:
            assert_type(await producer.push("orders", 1, ttl_ms=60_000), Pushed)
        await Worker(client, "orders", handle).run()


async def handle(message: AsyncMessage) -> None:
    assert_type(message.headers, dict[str, str])


def gathering(client: Client, rows: Sequence[dict[str, object]]) -> None:
    try:
        with Producer(client) as producer:
            for row in rows:
                producer.push("orders", row)
    except errors.QueueFullError as error:
        assert_type(error.hint, str)


def mistaken(client: Client) -> None:
    client.push("orders", 1, prioritiy=1)  # type: ignore[call-arg]
    Producer(client).push("orders", 1, prioritiy=1)  # type: ignore[call-arg]
    client.push("orders", 1, qos=2)  # type: ignore[arg-type]
    client.lease("orders", max="10")  # type: ignore[arg-type]
    client.create_queue("orders", on_exhausted="explode")  # type: ignore[arg-type]
    client.consume("orders", batch=None)  # type: ignore[arg-type]
    client.queue(7)  # type: ignore[arg-type]
