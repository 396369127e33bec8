"""Whose request it is: the org, from the API key or from the header."""

from spillway.api.call import Call
from spillway.core.errors import ForbiddenError, InvalidNameError, UnauthorizedError
from spillway.wire import is_name


async def identify(call: Call) -> None:
    """Settle the org of the call, or refuse it."""
    headers = call.headers
    claimed = _claimed_org(headers.get(b"x-spillway-org"))
    key = _key(headers.get(b"authorization"))
    if key is not None:
        org, name = await call.broker.keys.authenticate(key)
        if claimed not in (None, org):
            raise ForbiddenError(f"the API key does not belong to org {claimed!r}")
        call.authenticated(org, name)
    elif call.limits.require_api_key:
        raise UnauthorizedError("an API key is needed")
    elif claimed is not None:
        call.org = claimed


def _claimed_org(header: bytes | None) -> str | None:
    if header is None:
        return None
    org = header.decode("latin-1")
    if not is_name(org):
        raise InvalidNameError(f"X-Spillway-Org {org!r} is no name of an org")
    return org


def _key(header: bytes | None) -> str | None:
    if header is None:
        return None
    scheme, _, key = header.decode("latin-1").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise UnauthorizedError("only `Authorization: Bearer KEY` is understood")
    return key.strip()
