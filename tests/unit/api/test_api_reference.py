"""The generated reference: valid, complete, and of this very table."""

import re

import jsonschema
import pytest
import schemathesis

from spillway import wire
from spillway.api.native import ROUTES
from spillway.api.openapi import document

DOCUMENT = document(ROUTES)
NOT_BODIES = {"Request", "Reply"}


def refs(node):
    if isinstance(node, dict):
        yield from ([node["$ref"]] if "$ref" in node else [])
        node = list(node.values())
    if isinstance(node, list):
        for child in node:
            yield from refs(child)


def operations():
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def test_every_route_is_described():
    """And nothing else is."""
    described = {(method.upper(), path) for path, method, _ in operations()}
    assert described == {(route.method, route.path) for route in ROUTES}


def test_every_reference_leads_somewhere():
    """No shape is named without being given."""
    for ref in refs(DOCUMENT):
        node = DOCUMENT
        for step in ref.removeprefix("#/").split("/"):
            node = node[step]


def test_every_shape_is_a_json_schema():
    """OpenAPI 3.1 schemas are JSON Schema 2020-12."""
    for schema in DOCUMENT["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_every_wire_shape_is_reachable():
    """A struct that no route speaks of is a forgotten one."""
    shapes = {
        name
        for name, kind in vars(wire).items()
        if isinstance(kind, type) and issubclass(kind, wire.Request | wire.Reply)
    }
    assert shapes - set(DOCUMENT["components"]["schemas"]) == NOT_BODIES | {"Selection"}


def test_operations_are_told_apart():
    """Generators make a function of each."""
    names = [operation["operationId"] for _, _, operation in operations()]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"\w+", name) for name in names)


def test_path_parameters_are_declared():
    """Each hole in a path is filled, and no other."""
    for path, _, operation in operations():
        holes = set(re.findall(r"{(\w+)}", path))
        declared = {p["name"] for p in operation["parameters"] if p.get("in") == "path"}
        assert declared == holes


def test_a_tool_of_others_reads_it():
    """Schemathesis finds every operation."""
    schema = schemathesis.openapi.from_dict(DOCUMENT)
    found = {
        (result.ok().method.upper(), result.ok().path) for result in schema.get_all_operations()
    }
    assert found == {(route.method, route.path) for route in ROUTES}


async def test_it_is_served(skin):
    """As JSON, whatever the medium asked for."""
    answer = await skin("GET", "/openapi.json", accept="application/msgpack")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json == DOCUMENT


async def test_the_page_needs_nothing_from_elsewhere(skin):
    """No script, no font, no address but its own."""
    answer = await skin("GET", "/docs")
    page = answer.body.decode()
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert not re.search(r"https?://|<script|<link|<img|@import|url\(", page)
    assert all(f"<code>{path}</code>" in page for path in DOCUMENT["paths"])


@pytest.mark.parametrize("target", ["#PushItem", "#QueueOptions", "#ErrorReply"])
async def test_links_on_the_page_lead_somewhere(skin, target):
    """Shapes are linked to where they are shown."""
    page = (await skin("GET", "/docs")).body.decode()
    assert f"href='{target}'" in page
    assert f"id='{target[1:]}'" in page
