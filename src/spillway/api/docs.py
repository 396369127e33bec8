"""The reference as one page: no script, no font, nothing from anywhere else."""

from collections.abc import Iterator
from html import escape
from typing import Any

Json = dict[str, Any]

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code { font: 13px ui-monospace, monospace; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); }
details { border: 1px solid var(--line); border-radius: 6px; margin: .5rem 0; padding: 0 .8rem; }
summary { padding: .5rem 0; cursor: pointer; }
summary b { display: inline-block; width: 4.5rem; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 1rem; }
td, th { text-align: left; vertical-align: top; padding: .25rem .6rem .25rem 0; }
tr + tr { border-top: 1px solid var(--line); }
p.about { white-space: pre-line; }
"""


def page(document: Json) -> str:
    """The HTML of an OpenAPI document."""
    info = document["info"]
    return "".join(
        (
            "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
            "<meta name='viewport' content='width=device-width'>",
            f"<title>{escape(info['title'])} API</title><style>{_STYLE}</style></head><body>",
            f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>",
            f"<p class='about'>{escape(info['description'])}</p>",
            "<p>For programs: <a href='/openapi.json'>/openapi.json</a>.</p>",
            "<h2>Calls</h2>",
            *_calls(document["paths"]),
            "<h2>Shapes</h2>",
            *_shapes(document["components"]["schemas"]),
            "</body></html>",
        )
    )


def _calls(paths: Json) -> Iterator[str]:
    for path, methods in paths.items():
        for method, operation in methods.items():
            yield (
                f"<details id='{operation['operationId']}'><summary><b>{method.upper()}</b>"
                f"<code>{escape(path)}</code> &mdash; {escape(operation['summary'])}</summary>"
            )
            yield _table(_parameter_rows(operation["parameters"]))
            yield _table(_body_rows(operation))
            yield "</details>"


def _parameter_rows(parameters: list[Json]) -> Iterator[tuple[str, str]]:
    for parameter in parameters:
        if "$ref" not in parameter:
            where = f"<code>{escape(parameter['name'])}</code> in the {parameter['in']}"
            yield where, _type(parameter["schema"])


def _body_rows(operation: Json) -> Iterator[tuple[str, str]]:
    if "requestBody" in operation:
        yield "body", _body(operation["requestBody"])
    for status, response in operation["responses"].items():
        yield ("otherwise" if status == "default" else status), _body(response)


def _body(body: Json) -> str:
    media, content = next(iter(body["content"].items()))
    return _type(content["schema"]) if content else escape(media)


def _shapes(schemas: Json) -> Iterator[str]:
    for name, schema in schemas.items():
        yield f"<h3 id='{name}'>{name}</h3><p>{escape(schema.get('description', ''))}</p>"
        yield _table(_field_rows(schema))


def _field_rows(schema: Json) -> Iterator[tuple[str, str]]:
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        star = " *" if name in required else ""
        yield f"<code>{escape(name)}</code>{star}", _type(field)


def _table(rows: Iterator[tuple[str, str]]) -> str:
    body = "".join(f"<tr><td>{left}</td><td>{right}</td></tr>" for left, right in rows)
    return f"<table>{body}</table>" if body else ""


# ---------------------------------------------------------------- types


def _type(schema: Json) -> str:
    text = _bare_type(schema)
    if schema.get("default") is not None:
        text += f" = <code>{escape(str(schema['default']))}</code>"
    return text + _bounds(schema)


def _bare_type(schema: Json) -> str:
    match schema:
        case {"$ref": ref}:
            name = ref.rpartition("/")[2]
            return f"<a href='#{name}'>{name}</a>"
        case {"anyOf": choices}:
            return " or ".join(map(_type, choices))
        case {"enum": words}:
            return " or ".join(f"<code>{escape(str(word))}</code>" for word in words)
        case {"type": "array", "items": items}:
            return f"list of {_type(items)}"
        case {"type": kind}:
            return escape(str(schema.get("format", kind)))
        case _:
            return "any value"


def _bounds(schema: Json) -> str:
    names = ("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "pattern")
    found = [f"{name} {schema[name]}" for name in names if name in schema]
    return f" ({escape(', '.join(found))})" if found else ""
