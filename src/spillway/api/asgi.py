"""The parts of ASGI that are used here, as types."""

from collections.abc import Awaitable, Callable
from typing import Any

Scope = dict[str, Any]
Event = dict[str, Any]
ASGIReceive = Callable[[], Awaitable[Event]]
ASGISend = Callable[[Event], Awaitable[None]]
ASGIApp = Callable[[Scope, ASGIReceive, ASGISend], Awaitable[None]]

HUNG_UP = "spillway.hung_up"
"""Our own word in a scope: asks whether the caller has gone, of whoever has the connection."""
