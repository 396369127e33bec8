"""From method and path to a handler."""

import re

import pytest

from spillway.api.native import ROUTES
from spillway.core.errors import QueueNotFoundError

BODIES = {
    "/v1/messages": b'{"items":[{"queue":"q","payload":1}]}',
    "/v1/settle": b'{"ack":["r1"]}',
    "/v1/queues/{queue}/purge": b'{"what":"waiting"}',
    "/v1/queues/{queue}/seek": b'{"to":"latest"}',
    "/v1/spool/repair": b'{"file":"f","line":1,"accept":true}',
    "/v1/spool/discard": b'{"file":"f"}',
}
QUERIES = {"/v1/spool/events": "source=f"}
AMONG_BROKERS = {"x_spillway_secret": "among brokers"}
PARAMS = {"queue": "q", "group": "g", "partition": "p", "version": "7", "file": "f"}


def url_of(route):
    return re.sub(r"{(\w+)}", lambda found: PARAMS[found[1]], route.path)


@pytest.mark.parametrize("route", ROUTES, ids=lambda r: f"{r.method} {r.path}")
async def test_every_route_answers_as_it_documents(skin, route):
    """Each line of the table is reachable and answers with a status that it names."""
    body = BODIES.get(route.path, b"{}" if route.body else b"")
    url = f"{url_of(route)}?{query}" if (query := QUERIES.get(route.path)) else url_of(route)
    answer = await skin(route.method, url, body, **AMONG_BROKERS)
    assert answer.status in route.replies
    assert answer.headers["content-type"].startswith(route.media or "application/json")


@pytest.mark.parametrize("route", ROUTES, ids=lambda r: f"{r.method} {r.path}")
async def test_unknown_query_parameters_are_refused(skin, route):
    """No route swallows an option that it does not know."""
    body = BODIES.get(route.path, b"{}" if route.body else b"")
    query = "&".join([*filter(None, [QUERIES.get(route.path)]), "surprise=1"])
    answer = await skin(route.method, f"{url_of(route)}?{query}", body, **AMONG_BROKERS)
    assert (answer.status, answer.code) == (400, "unknown_option")


@pytest.mark.parametrize("route", [r for r in ROUTES if r.body], ids=lambda r: r.path)
async def test_an_empty_body_is_refused_where_one_is_needed(skin, route):
    """Where the table says optional, an empty body means the defaults."""
    answer = await skin(route.method, url_of(route))
    assert (answer.status == 400) is (not route.body_optional)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1",
        "/v2/queues",
        "/v1/queues/",
        "/v1/queues/q/",
        "/v1/queues//lease",
        "/v1/queues/q/messages/p",
        "/v1/queues/q/messages//1",
        "/v1%2Fmessages",
    ],
)
async def test_unknown_paths_are_not_found(skin, path):
    """Nothing is there, whatever the method."""
    answer = await skin("GET", path)
    assert (answer.status, answer.code) == (404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/messages", "POST"),
        ("POST", "/v1/queues/q", "DELETE, GET, HEAD, PATCH, PUT"),
        ("DELETE", "/v1/queues/q/groups", "GET, HEAD"),
        ("OPTIONS", "/health", "GET, HEAD"),
        ("HEAD", "/v1/settle", "POST"),
    ],
)
async def test_a_wrong_method_is_told_the_right_ones(skin, method, path, allow):
    """405 comes with Allow, read off the same table."""
    answer = await skin(method, path)
    assert (answer.status, answer.code) == (405, "method_not_allowed")
    assert answer.headers["allow"] == allow


@pytest.mark.parametrize("path", ["/health", "/v1/queues", "/v1/queues/q", "/metrics"])
async def test_head_asks_what_get_does(skin, broker, path):
    """Load balancers look with HEAD; OpenAPI, as is its way, does not list it."""
    asked, looked = await skin("GET", path), await skin("HEAD", path)
    assert (looked.status, looked.headers) == (asked.status, asked.headers)
    assert broker.calls[::2] == broker.calls[1::2]


async def test_path_segments_are_percent_decoded(skin, broker):
    """A partition may be any string, a slash in it included."""
    await skin("GET", "/v1/queues/q/messages/caf%C3%A9%2F%25%20x/12?group=g")
    assert broker.calls == [("story", ("default", "q", "café/% x", 12, "g"))]


@pytest.mark.parametrize("path", ["/v1/queues/%FF", "/v1/queues/q/messages/%C3/1"])
async def test_broken_utf8_in_the_path_is_refused(skin, path):
    """What does not decode is not guessed at."""
    assert (await skin("GET", path)).status == 400


@pytest.mark.parametrize("name", ["-x", "a%20b", "a%0A", "x" * 129, "%2e"])
async def test_a_queue_name_outside_the_pattern_is_refused(skin, broker, name):
    """The path is held to the same pattern as bodies."""
    answer = await skin("PUT", f"/v1/queues/{name}")
    assert (answer.status, answer.code) == (400, "invalid_name")
    assert broker.calls == []


@pytest.mark.parametrize("version", ["0", "-1", "x", "1.0", "%D9%A1", "9" * 19, "9" * 40])
async def test_a_version_counts_from_one(skin, version):
    """What is no version is refused, not rounded."""
    answer = await skin("GET", f"/v1/queues/q/messages/p/{version}")
    assert (answer.status, answer.code) == (400, "bad_request")


async def test_query_parameters_reach_the_broker_typed(skin, broker):
    """Filters arrive as what they mean."""
    url = "/v1/queues/q/messages?partition=a%26b&from_version=5&limit=2&state=ready&next=n"
    await skin("GET", url)
    (_, (org, queue, query)) = broker.calls[0]
    assert (org, queue) == ("default", "q")
    assert query == {
        "partition": "a&b",
        "from_version": 5,
        "limit": 2,
        "state": "ready",
        "group": "default",
        "next": "n",
    }


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=x",
        "limit=1001",
        "state=odd",
        "limit=1&limit=2",
        "partition=%FF",
        "from_version=0",
        "group=-",
        "&".join(f"a{n}=1" for n in range(60)),
    ],
)
async def test_unreadable_query_parameters_are_refused(skin, query):
    """Out of range, doubled, unknown or not UTF-8: all 400."""
    assert (await skin("GET", f"/v1/queues/q/messages?{query}")).status == 400


async def test_created_and_changed_are_told_apart(skin):
    """PUT answers 201 for a new thing and 200 for one that was there."""
    for noun in ("/v1/queues/{}", "/v1/queues/q/groups/{}"):
        assert (await skin("PUT", noun.format("new"))).status == 201
        assert (await skin("PUT", noun.format("old"))).status == 200


async def test_a_deletion_carries_its_reason(skin, broker):
    """The reason of the query and the actor of the header reach the audit."""
    await skin("DELETE", "/v1/queues/q?reason=too%20old", x_spillway_actor="ann")
    assert broker.calls == [("delete_queue", ("default", "q", "ann", "too old"))]


async def test_errors_of_the_broker_keep_their_code(skin, broker):
    """The code is the interface; the hint says the next step."""
    broker.error = QueueNotFoundError("queue 'q' does not exist")
    answer = await skin("GET", "/v1/queues/q")
    assert (answer.status, answer.code) == (404, "queue_not_found")
    assert answer.json["error"].keys() == {"code", "message", "hint"}
