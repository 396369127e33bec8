"""From method and path to a handler: a lookup for plain paths, a walk for those with parameters."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_to_bytes

from spillway.api.call import Call
from spillway.api.response import Response, WrongMethodError
from spillway.core.errors import BadRequestError, InvalidNameError, NotFoundError
from spillway.wire import is_name

Handler = Callable[[Call], Awaitable[Response]]
Params = Mapping[str, str]

NAMES = ("queue", "group")
NO_PARAMS: Params = {}


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """One line of the route table; dispatch, the Allow header and OpenAPI all read it."""

    method: str
    path: str
    handler: Handler
    summary: str
    replies: Mapping[int, tuple[Any, ...]]
    body: type | None = None
    body_optional: bool = False
    query: type | None = None
    media: str | None = None
    is_open: bool = False


@dataclass(slots=True)
class _Node:
    routes: dict[str, Route] = field(default_factory=dict)
    children: dict[bytes, "_Node"] = field(default_factory=dict)
    parameter: tuple[str, "_Node"] | None = None


class Router:
    """Finds the route of a request."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._plain: dict[tuple[str, bytes], Route] = {}
        self._root = _Node()
        for route in routes:
            for method in _methods(route):
                if "{" not in route.path:
                    self._plain[method, route.path.encode()] = route
                self._node_for(route.path).routes[method] = route

    def find(self, method: str, raw_path: bytes) -> tuple[Route, Params]:
        """The route and its path parameters; raises what to answer if there is none."""
        route = self._plain.get((method, raw_path))
        if route is not None:
            return route, NO_PARAMS
        node, segments = self._walk(raw_path)
        if method not in node.routes:
            raise WrongMethodError(method, ", ".join(sorted(node.routes)))
        return node.routes[method], {name: _text(name, raw) for name, raw in segments}

    def _walk(self, raw_path: bytes) -> tuple[_Node, list[tuple[str, bytes]]]:
        node, found = self._root, []
        for segment in raw_path.split(b"/")[1:]:
            child = node.children.get(segment)
            if child is None and node.parameter is not None and segment:
                name, child = node.parameter
                found.append((name, segment))
            if child is None:
                raise _nothing_at(raw_path)
            node = child
        if not node.routes:
            raise _nothing_at(raw_path)
        return node, found

    def _node_for(self, path: str) -> _Node:
        node = self._root
        for segment in path.split("/")[1:]:
            if segment.startswith("{"):
                node.parameter = node.parameter or (segment[1:-1], _Node())
                node = node.parameter[1]
            else:
                node = node.children.setdefault(segment.encode(), _Node())
        return node


def _methods(route: Route) -> tuple[str, ...]:
    """HEAD asks what GET does; the server leaves the body out."""
    return ("GET", "HEAD") if route.method == "GET" else (route.method,)


def _nothing_at(raw_path: bytes) -> NotFoundError:
    return NotFoundError(f"there is nothing at {raw_path.decode('latin-1')[:200]!r}")


def _text(name: str, raw: bytes) -> str:
    try:
        text = unquote_to_bytes(raw).decode()
    except UnicodeDecodeError as error:
        raise BadRequestError(f"the {name} in the path is not UTF-8") from error
    if name in NAMES and not is_name(text):
        raise InvalidNameError(f"{text[:200]!r} is no name of a {name}")
    return text
