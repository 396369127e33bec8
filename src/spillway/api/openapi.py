"""The OpenAPI 3.1 document, read off the route table and the structs that it names."""

import re
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

import msgspec

from spillway.api.media import JSON, MSGPACK
from spillway.api.routing import Route
from spillway.wire import NAME_PATTERN, ErrorReply, PartitionName, SpoolFileName, Version

Json = dict[str, Any]

DESCRIPTION = """A durable message queue on PostgreSQL.

Bodies are JSON or MessagePack, both ways and with the same shapes: Content-Type says what you send,
Accept what you get. A payload is any JSON value; bytes travel as {"payload_base64": "..."} in JSON
and as bin in MessagePack. Every error is {"error": {"code", "message", "hint"}}; those that are
worth a retry carry Retry-After."""

_NAME = {"type": "string", "pattern": NAME_PATTERN}
_PATH_SCHEMAS: dict[str, Json] = {
    "queue": _NAME,
    "group": _NAME,
    "partition": msgspec.json.schema(PartitionName),
    "version": msgspec.json.schema(Version),
    "file": msgspec.json.schema(SpoolFileName),
}
_HEADERS: dict[str, Json] = {
    "Org": {
        "name": "X-Spillway-Org",
        "in": "header",
        "description": "The org; without it the org of the API key, or `default`.",
        "schema": _NAME,
    },
    "Actor": {
        "name": "X-Spillway-Actor",
        "in": "header",
        "description": "Who is named in the audit of a change (the first 256 characters).",
        "schema": {"type": "string"},
    },
}


def document(routes: Sequence[Route]) -> Json:
    """Everything that these routes take and give."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Spillway", "version": version("spillway"), "description": DESCRIPTION},
        "paths": _paths(routes),
        "components": {
            "schemas": _schemas(routes),
            "parameters": _HEADERS,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _paths(routes: Iterable[Route]) -> Json:
    paths: dict[str, Json] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return paths


def _operation(route: Route) -> Json:
    operation: Json = {
        "operationId": re.sub(r"\W+", "_", f"{route.method.lower()}{route.path}").strip("_"),
        "summary": route.summary,
        "parameters": _parameters(route),
        "responses": _responses(route),
    }
    if route.body is not None:
        required = not route.body_optional
        operation["requestBody"] = {"required": required, "content": _content((route.body,))}
    if not route.is_open:
        operation["security"] = [{}, {"key": []}]
    return operation


# ---------------------------------------------------------------- parameters


def _parameters(route: Route) -> list[Json]:
    found = [_path_parameter(name) for name in re.findall(r"{(\w+)}", route.path)]
    if route.query is not None:
        found += _query_parameters(route.query)
    if not route.is_open:
        found += [{"$ref": f"#/components/parameters/{name}"} for name in _HEADERS]
    return found


def _path_parameter(name: str) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": _PATH_SCHEMAS[name]}


def _query_parameters(kind: type) -> list[Json]:
    (schema,) = msgspec.json.schema_components([kind])[1].values()
    return [
        {"name": name, "in": "query", "schema": _without_null(field)}
        | ({"required": True} if name in schema.get("required", ()) else {})
        for name, field in schema["properties"].items()
    ]


def _without_null(field: Json) -> Json:
    """A query parameter is left out, never null."""
    if "anyOf" not in field:
        return field
    (schema,) = (choice for choice in field["anyOf"] if choice != {"type": "null"})
    return dict(schema)


# ---------------------------------------------------------------- bodies


def _responses(route: Route) -> Json:
    responses = {str(status): _response(route, kinds) for status, kinds in route.replies.items()}
    error = {"description": "Refused, or failed", "content": _content((ErrorReply,))}
    return responses | {"default": error}


def _response(route: Route, kinds: tuple[Any, ...]) -> Json:
    if not kinds:
        return {"description": route.summary, "content": {route.media: {}}}
    what = " or ".join((kind.__doc__ or "").partition("\n")[0] for kind in kinds)
    return {"description": what, "content": _content(kinds)}


def _content(kinds: tuple[Any, ...]) -> Json:
    choices = [{"$ref": f"#/components/schemas/{kind.__name__}"} for kind in kinds]
    schema = choices[0] if len(choices) == 1 else {"anyOf": choices}
    return {media.content_type: {"schema": schema} for media in (JSON, MSGPACK)}


def _schemas(routes: Iterable[Route]) -> Json:
    kinds: set[type] = {ErrorReply}
    for route in routes:
        kinds.update(kind for group in route.replies.values() for kind in group)
        if route.body is not None:
            kinds.add(route.body)
    ordered = sorted(kinds, key=lambda kind: kind.__name__)
    return msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")[1]
