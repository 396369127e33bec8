"""The calls about the spool of the broker that is asked."""

from spillway.client.protocol import Request, at, get, json_reply, send
from spillway.wire import SpoolHoldRequest, SpoolReply

_status = json_reply(SpoolReply)


def status() -> Request[SpoolReply]:
    """What waits in files, since when, and what stands in its way."""
    return get(at("spool"), _status)


def hold(*, reason: str | None = None) -> Request[SpoolReply]:
    """Route pushes to files on purpose, and replay nothing, until the release."""
    body = SpoolHoldRequest(reason=reason)
    return send("POST", at("spool", "hold"), body, _status, safe=True)


def release(*, reason: str | None = None) -> Request[SpoolReply]:
    """End the hold: replay, and let pushes through again."""
    body = SpoolHoldRequest(reason=reason)
    return send("POST", at("spool", "release"), body, _status, safe=True)
