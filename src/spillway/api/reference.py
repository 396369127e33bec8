"""GET /openapi.json and /docs: made once from the route table, on first demand."""

from collections.abc import Sequence
from functools import cache

import msgspec

from spillway.api.call import Call
from spillway.api.docs import page
from spillway.api.openapi import document
from spillway.api.response import Headers, Response
from spillway.api.routing import Handler, Route

HTML = "text/html; charset=utf-8"
JSON = "application/json"

_SELF_CONTAINED: Headers = (
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'"),
)


def with_reference(routes: Sequence[Route]) -> tuple[Route, ...]:
    """The routes, and two more that describe them all."""

    async def openapi(_: Call) -> Response:
        return described()

    async def docs(_: Call) -> Response:
        return shown()

    @cache
    def described() -> Response:
        return Response(200, msgspec.json.encode(document(full)))

    @cache
    def shown() -> Response:
        return Response(200, page(document(full)).encode(), HTML, _SELF_CONTAINED)

    full = (
        *routes,
        _page("/openapi.json", openapi, "This reference, as OpenAPI 3.1", JSON),
        _page("/docs", docs, "This reference, as a page", HTML),
    )
    return full


def _page(path: str, handler: Handler, summary: str, media: str) -> Route:
    return Route("GET", path, handler, summary, {200: ()}, media=media, is_open=True)
