"""What the HTTP skin may take, decided once at start."""

from dataclasses import dataclass

from spillway.core.errors import BadRequestError

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Ceilings of one request and of connections, and whether a key is needed at all."""

    request_bytes_max: int = 16 * MIB
    items_max: int = 10_000
    require_api_key: bool = False
    body_timeout_s: float = 30.0
    connections_max: int = 10_000


def check_count(count: int, items_max: int) -> None:
    """Refuse a request that carries too much at once."""
    if count > items_max:
        raise BadRequestError(
            f"{count} items, but a request may carry {items_max}", hint="send smaller batches"
        )
