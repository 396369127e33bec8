"""The calls about the spool of the broker that is asked."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import msgspec

from spillway.client.batch import encode_payload
from spillway.client.errors import ClientUsageError
from spillway.client.protocol import Request, at, get, json_reply, query, send
from spillway.core.errors import BadRequestError, UnknownOptionError
from spillway.wire import (
    SpoolDiscardRequest,
    SpoolEventsReply,
    SpoolFilesReply,
    SpoolHoldRequest,
    SpoolMended,
    SpoolRepairRequest,
    SpoolReply,
    SpoolRetryReply,
    SpoolRetryRequest,
    SpoolVerifyReply,
    SpoolVerifyRequest,
    VerbReply,
)

CHECK_S = 600.0
"""A check reads every file."""
ALLOWED = {
    "org": "a name",
    "queue": "a name",
    "partition": "a text of 1 to 256 characters, or null",
    "key": "a text, or null",
    "headers": "an object of texts, or null",
    "transaction_id": "a text of at least one character, in quotes",
    "trace_id": "a text, or null",
    "priority": "a number from 1 to 4",
    "deliver_at": "a time as 2026-01-05T08:00:00Z, or null",
    "expires_at": "a time as 2026-01-05T08:00:00Z, or null",
}
"""What a mended field may be."""
RETRY_S = 30.0

_status = json_reply(SpoolReply)
_files = json_reply(SpoolFilesReply)
_events = json_reply(SpoolEventsReply)
_checks = json_reply(SpoolVerifyReply)
_verb = json_reply(VerbReply)
_retried = json_reply(SpoolRetryReply)

Place = Literal["waiting", "failed"]


def status() -> Request[SpoolReply]:
    """What waits in files, since when, and what stands in its way."""
    return get(at("spool"), _status)


def files(
    *, state: Place = "waiting", after: str | None = None, limit: int | None = None
) -> Request[SpoolFilesReply]:
    """A page of files, oldest first: those that wait, or those with events that failed."""
    fields = query(state=state, after=after, limit=limit)
    return get(at("spool", "files") + fields, _files)


def file(
    name: str,
    *,
    state: Place = "waiting",
    from_line: int | None = None,
    limit: int | None = None,
) -> Request[SpoolEventsReply]:
    """A page of the events of a file."""
    fields = query(state=state, from_line=from_line, limit=limit)
    return get(at("spool", "files", name) + fields, _events)


def verify(name: str | None = None) -> Request[SpoolVerifyReply]:
    """Check that every line of a file, or of all files, is as it was written."""
    body = SpoolVerifyRequest(file=name)
    request = send("POST", at("spool", "verify"), body, _checks, safe=True)
    return replace(request, wait_s=CHECK_S)


def repair(
    name: str,
    line: int,
    event: Mapping[str, Any] | None = None,
    *,
    accept: bool = False,
    reason: str | None = None,
) -> Request[VerbReply]:
    """Give a failed event other fields, or `accept` a damaged line as it reads now."""
    if accept == (event is not None):
        raise ClientUsageError("say either event, with the fields to set, or accept=True")
    mended = None if event is None else _mended(event)
    body = SpoolRepairRequest(file=name, line=line, event=mended, accept=accept, reason=reason)
    return send("POST", at("spool", "repair"), body, _verb, safe=True)


def _mended(event: Mapping[str, Any]) -> SpoolMended:
    """The fields as the wire's struct, checked before they travel."""
    plain = {name: value for name, value in event.items() if name != "payload"}
    try:
        mended = msgspec.convert(plain, SpoolMended)
    except msgspec.ValidationError as error:
        if "unknown field" in str(error):
            hint = f"the fields are {', '.join(SpoolMended.__struct_fields__)}"
            raise UnknownOptionError(str(error), hint=hint) from error
        _, _, field = str(error).partition("$.")
        allowed = ALLOWED.get(
            field.partition("`")[0].partition("[")[0], "see docs/reference/http.md"
        )
        raise BadRequestError(f"invalid value: {error}", hint=f"allowed is {allowed}") from error
    if "payload" in event:
        mended.payload = encode_payload(event["payload"])
    return mended


def retry(
    name: str | None = None, line: int | None = None, *, reason: str | None = None
) -> Request[SpoolRetryReply]:
    """Try failed events now and, unless a file is named, lanes that were passed over."""
    if line is not None and name is None:
        raise ClientUsageError("a line is a place in one file: name the file")
    body = SpoolRetryRequest(file=name, line=line, reason=reason)
    request = send("POST", at("spool", "retry"), body, _retried, safe=True)
    return replace(request, wait_s=RETRY_S)


def discard(
    name: str,
    line: int | None = None,
    *,
    state: Place = "failed",
    dry_run: bool = False,
    reason: str | None = None,
) -> Request[VerbReply]:
    """Throw away the events of a file, or one line of it, for good."""
    body = SpoolDiscardRequest(file=name, line=line, state=state, dry_run=dry_run, reason=reason)
    return send("POST", at("spool", "discard"), body, _verb)


def hold(*, reason: str | None = None) -> Request[SpoolReply]:
    """Route pushes to files on purpose, and replay nothing, until the release."""
    body = SpoolHoldRequest(reason=reason)
    return send("POST", at("spool", "hold"), body, _status, safe=True)


def release(*, reason: str | None = None) -> Request[SpoolReply]:
    """End the hold: replay, and let pushes through again."""
    body = SpoolHoldRequest(reason=reason)
    return send("POST", at("spool", "release"), body, _status, safe=True)
