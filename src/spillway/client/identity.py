"""Who calls: the headers that name the org, the key and the actor of every request."""

from spillway.client.errors import ClientUsageError

ACTOR_HEADER = "x-spillway-actor"
ORG_HEADER = "x-spillway-org"


def identity_headers(
    *, org: str | None = None, api_key: str | None = None, actor: str | None = None
) -> dict[str, str]:
    headers = {"user-agent": "spillway-python"}
    if org is not None:
        headers[ORG_HEADER] = _plain("org", org)
    if api_key is not None:
        headers["authorization"] = f"Bearer {_plain('api_key', api_key)}"
    if actor is not None:
        headers[ACTOR_HEADER] = _plain("actor", actor)
    return headers


def _plain(name: str, value: str) -> str:
    if not value.isascii() or not value.isprintable():
        raise ClientUsageError(f"{name} travels in a header: printable ASCII only")
    return value
