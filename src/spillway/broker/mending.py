"""Mending: what a failed event becomes when a person gives it other fields, or takes it as it is.

It is tried again at the next retry, as if it had been spooled like this.
"""

import secrets
from typing import Any

from msgspec import UNSET
from msgspec.structs import asdict

from spillway.broker.buffering import named, payload_text
from spillway.broker.intake import PRIORITY_DEFAULT
from spillway.core.errors import BadRequestError, DamagedLineError, TransactionConflictError
from spillway.spool import event
from spillway.spool.event import DamagedLine, Event, Failed, FailedEvent, Trouble
from spillway.wire import SpoolMended


def mended(old: Failed, fields: SpoolMended, now_ms: int) -> FailedEvent:
    """A failed event with other fields; for a damaged line they must make a whole event."""
    given = {name: value for name, value in asdict(fields).items() if value is not UNSET}
    if not given:
        raise BadRequestError("no field is given", hint='name what changes: {"queue": "…"}')
    if "payload" in given:
        given["payload"] = payload_text(given["payload"])
    if isinstance(old, FailedEvent):
        return _failed(_values(old) | given, old)
    try:
        base = _copied(old)
    except DamagedLineError:
        base = _blank(given, now_ms)
    return _failed(base | given, old)


def accepted(old: Failed) -> FailedEvent:
    """A damaged line as it reads now, whatever its checksum says."""
    if isinstance(old, FailedEvent):
        raise BadRequestError(
            "the line is not damaged: there is nothing to accept",
            hint="give the fields that change, or retry it",
        )
    return _failed(_copied(old), old)


def _failed(values: dict[str, Any], old: Failed) -> FailedEvent:
    """With the reason for which it was set aside: that is gone when the retry says so."""
    namespace, task = named(values["queue"])
    values |= {"namespace": namespace, "task": task}
    new = event.failed(Event(**values), _reason(old.error), old.failed_at)
    if isinstance(old, FailedEvent):
        new.tried_at = old.tried_at
    return new


def _reason(error: Trouble) -> Trouble:
    """What waited for a person is tried again by itself, now that somebody has mended it."""
    if error.code not in {TransactionConflictError.code, DamagedLineError.code}:
        return error
    return Trouble("mended", f"mended by hand; before that: {error.message}", "")


def _values(one: Event) -> dict[str, Any]:
    return {name: getattr(one, name) for name in Event.__struct_fields__}


def _copied(old: DamagedLine) -> dict[str, Any]:
    """What a damaged line says. It may be a copy of one that waits in the same file: the number,
    by which what was set aside is known, stays with that one.
    """
    return _values(event.read_unchecked(old.damaged)) | {"seq": 0}


def _blank(given: dict[str, Any], now_ms: int) -> dict[str, Any]:
    """What an event is where nobody says otherwise."""
    if missing := [name for name in ("queue", "payload") if name not in given]:
        raise BadRequestError(
            f"the line cannot be read, and the new event has no {' and no '.join(missing)}",
            hint="give at least queue and payload; partition, key and the rest are optional",
        )
    return {
        "partition": None,
        "transaction_id": secrets.token_urlsafe(16),
        "trace_id": None,
        "org": "default",
        "key": None,
        "headers": None,
        "priority": PRIORITY_DEFAULT,
        "deliver_at": None,
        "expires_at": None,
        "accepted_at": event.moment(now_ms),
        "seq": 0,
    }
