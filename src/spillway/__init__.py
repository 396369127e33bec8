"""Spillway: a durable message queue on PostgreSQL, with a replayable log over the same records."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spillway.client.async_client import AsyncClient
    from spillway.client.batch import Item
    from spillway.client.errors import BrokerUnreachableError, PushFailedError
    from spillway.client.message import AsyncMessage, Message
    from spillway.client.payload import decode_payload
    from spillway.client.producer import AsyncProducer, Producer
    from spillway.client.retry import RetryPolicy
    from spillway.client.sync_client import Client
    from spillway.client.worker import Worker
    from spillway.core import errors
    from spillway.core.errors import SpillwayError

__all__ = [
    "AsyncClient",
    "AsyncMessage",
    "AsyncProducer",
    "BrokerUnreachableError",
    "Client",
    "Item",
    "Message",
    "Producer",
    "PushFailedError",
    "RetryPolicy",
    "SpillwayError",
    "Worker",
    "decode_payload",
    "errors",
]

# Looked up on first use: `import spillway` must cost nothing to those who want one room of it.
_HOMES = {
    "AsyncClient": "spillway.client.async_client",
    "AsyncMessage": "spillway.client.message",
    "AsyncProducer": "spillway.client.producer",
    "BrokerUnreachableError": "spillway.client.errors",
    "Client": "spillway.client.sync_client",
    "Item": "spillway.client.batch",
    "Message": "spillway.client.message",
    "Producer": "spillway.client.producer",
    "PushFailedError": "spillway.client.errors",
    "RetryPolicy": "spillway.client.retry",
    "SpillwayError": "spillway.core.errors",
    "Worker": "spillway.client.worker",
    "decode_payload": "spillway.client.payload",
}


def __getattr__(name: str) -> object:
    if name == "errors":
        return import_module("spillway.core.errors")
    if name not in _HOMES:
        raise AttributeError(f"module 'spillway' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
