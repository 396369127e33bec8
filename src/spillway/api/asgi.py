"""The parts of ASGI that are used here, as types."""

from collections.abc import Awaitable, Callable
from typing import Any

Scope = dict[str, Any]
Event = dict[str, Any]
ASGIReceive = Callable[[], Awaitable[Event]]
ASGISend = Callable[[Event], Awaitable[None]]
ASGIApp = Callable[[Scope, ASGIReceive, ASGISend], Awaitable[None]]
