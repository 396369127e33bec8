# ruff: noqa: INP001 (scripts beside their pages, not a package)
"""The page of the HTTP dialect."""

import re
from collections.abc import Iterator
from typing import Any

from markdown import code, head, table

from spillway.api.native import ROUTES
from spillway.api.openapi import document

Json = dict[str, Any]

HTTP_HEAD = """\
The server is `http://127.0.0.1:6632` unless [settings](settings.md) say otherwise. The same facts
as OpenAPI 3.1 are at `/openapi.json`, as a page at `/docs`.

- **Bodies** are JSON, or MessagePack (`application/msgpack`) with the same shapes. `Content-Type`
  says what you send, `Accept` what you get. `payload` is any JSON value; bytes travel as
  `{"payload_base64": "…"}` in JSON and as bin in MessagePack.
- **Unknown fields and query parameters are refused** (400): an option that is accepted is in
  force. Replies may gain fields; ignore those you do not know.
- **Errors** are `{"error": {"code", "message", "hint"}}`. The [code](errors.md) is the interface,
  the text is not. What is worth a retry carries `Retry-After`. A push all of whose items failed
  is 400, or the status of the cause that they share from 409 on, or 503 where every cause is worth
  a retry.
- **HEAD** is answered wherever GET is.
- **Headers**: `X-Spillway-Org` names the org (`default` without it), `X-Spillway-Actor` who is
  named in the audit of a change, `Authorization: Bearer KEY` carries an API key.
- In the tables a star marks a field that must be there; `= value` is what holds when it is left
  out.
"""


def http() -> str:
    described = document(ROUTES)
    parts = [head("HTTP", "the route table in src/spillway/api/native.py"), HTTP_HEAD, "## Calls\n"]
    rows = []
    details = []
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            call = f"{method.upper()} {path}"
            rows.append((f"[`{call}`](#{_anchor(call)})", operation["summary"]))
            details.append(_call(call, operation))
    parts += [table(("call", "what it does"), rows), *details, "## Shapes\n"]
    for name, schema in described["components"]["schemas"].items():
        parts.append(f"### {name}\n\n{schema.get('description', '')}\n")
        if schema.get("properties"):
            parts.append(table(("field", "type"), _fields(schema)))
    return "\n".join(parts)


def _anchor(heading: str) -> str:
    """The anchor that a heading gets on a page of Markdown."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _call(call: str, operation: Json) -> str:
    rows = [
        (f"{parameter['in']} `{parameter['name']}`", _type(parameter["schema"]))
        for parameter in operation["parameters"]
        if "$ref" not in parameter
    ]
    body = operation.get("requestBody")
    if body is not None:
        rows.append(("body" + ("" if body["required"] else ", may be empty"), _content(body)))
    for status, reply in operation["responses"].items():
        rows.append(("any other status" if status == "default" else status, _content(reply)))
    return f"### {call}\n\n{operation['summary']}.\n\n{table(('part', 'shape'), rows)}"


def _content(body: Json) -> str:
    media, content = next(iter(body["content"].items()))
    return _type(content["schema"]) if content else code(media)


def _fields(schema: Json) -> Iterator[tuple[str, str]]:
    required = schema.get("required", ())
    for name, field in schema["properties"].items():
        yield code(name) + (" *" if name in required else ""), _type(field)


def _type(schema: Json) -> str:
    text = _bare_type(schema)
    names = (
        "minimum",
        "maximum",
        "exclusiveMaximum",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
    )
    bounds = [f"{name} {schema[name]}" for name in names if name in schema]
    if "pattern" in schema:
        bounds.append(f"pattern `{schema['pattern']}`")
    if bounds:
        text += f" ({', '.join(bounds)})"
    if schema.get("default") is not None:
        text += f" = {code(schema['default'])}"
    return text


def _bare_type(schema: Json) -> str:
    match schema:
        case {"$ref": ref}:
            name = ref.rpartition("/")[2]
            return f"[{name}](#{name.lower()})"
        case {"anyOf": choices}:
            return " or ".join(map(_type, choices))
        case {"enum": words}:
            return " or ".join(map(code, words))
        case {"type": "array", "items": items}:
            return f"list of {_type(items)}"
        case {"type": "object", "additionalProperties": dict(values)}:
            return f"object of {_type(values)}"
        case {"type": kind}:
            return str(schema.get("format", kind))
        case _:
            return "any value"
