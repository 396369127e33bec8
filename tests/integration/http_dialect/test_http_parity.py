"""Every route in JSON and in MessagePack, and the broker's pages about itself."""

import re

import jsonschema
import pytest

from spillway.api.native import ROUTES

pytestmark = pytest.mark.asyncio(loop_scope="module")

JSON = "application/json"
MSGPACK = "application/msgpack"
VARIES = {
    "receipt", "transaction_id", "org", "created_at", "enqueued_at", "dead_at", "blocked_at",
    "oldest_ready_at", "at", "id", "spillway-origin-transaction-id", "spillway-origin-dead-id",
    "uptime_s", "lease_until", "started_at", "seen_at", "commit_seq", "at_ms", "deadline_ms",
    "folder", "file", "since", "oldest_at", "oldest_s", "accepted_at", "seq", "disk_free",
    "disk_free_bytes", "accepted", "discarded", "bytes",
}  # fmt: skip
REFERENCE = {"/openapi.json", "/docs", "/metrics"}
BETWEEN_BROKERS = {"/v1/spool/events"}
"""It takes lines of files, from whoever knows the secret of this broker."""

# method, path, body; {receipt} is that of the first message leased so far and not used yet, {file}
# the buffer file that was listed last.
WALK = [
    ("PUT", "/v1/queues/w", {"max_attempts": 1, "on_exhausted": "block"}),
    ("PUT", "/v1/queues/w", {"max_attempts": 1, "on_exhausted": "block", "backoff_base_ms": 0}),
    ("PATCH", "/v1/queues/w", {"max_depth": 100}),
    ("GET", "/v1/queues/w", None),
    ("GET", "/v1/queues?limit=1", None),
    ("PUT", "/v1/queues/w/groups/g", {"start": "latest"}),
    ("GET", "/v1/queues/w/groups/g", None),
    ("GET", "/v1/queues/w/groups", None),
    ("POST", "/v1/messages", {
        "items": [
            {"queue": "w", "payload": {"n": [1, 2.5, None, True, "\u2603"]}, "key": "k"},
            {"queue": "w", "payload": 2**63, "headers": {"a": "b"}, "transaction_id": "t"},
            {"queue": "w", "payload": 3, "transaction_id": "t"},
            {"queue": "w", "payload": 4, "colour": "red"},
            {"queue": "w", "payload": 5, "trace_id": "trace", "partition": "p"},
        ],
        "qos": 1,
    }),
    ("POST", "/v1/queues/w/lease", {"max": 9, "consumer": {"name": "n", "plugin": "p"}}),
    ("POST", "/v1/settle", {
        "ack": ["{receipt}"],
        "nack": [{"receipt": "{receipt}", "error": "no"}],
        "extend": [{"receipt": "{receipt}", "visibility_ms": 60_000}],
        "lease": {"queue": "w"},
    }),
    ("GET", "/v1/queues/w/messages", None),
    ("GET", "/v1/queues/w/messages/Default/2", None),
    ("GET", "/v1/queues/w/blocked", None),
    ("POST", "/v1/queues/w/unblock", {"action": "park", "all": True}),
    ("GET", "/v1/queues/w/dead", None),
    ("POST", "/v1/queues/w/redrive", {"all": True, "reason": "again"}),
    ("POST", "/v1/queues/w/lease", None),
    ("POST", "/v1/queues/w/park", {"all": True, "dry_run": True}),
    ("POST", "/v1/queues/w/pause", {"reason": "lunch"}),
    ("POST", "/v1/queues/w/resume", {}),
    ("POST", "/v1/queues/w/seek", {"to": 1, "partition": "p"}),
    ("POST", "/v1/queues/w/purge", {"what": "waiting", "all": True}),
    ("POST", "/v1/spool/hold", {"reason": "walk"}),
    ("POST", "/v1/messages", {"items": [{"queue": "w", "payload": [2.5], "partition": "p"}]}),
    ("GET", "/v1/spool", None),
    ("GET", "/v1/spool/files?limit=1", None),
    ("GET", "/v1/spool/files/{file}", None),
    ("POST", "/v1/spool/verify", {"file": "{file}"}),
    ("POST", "/v1/spool/repair", {"file": "f", "line": 1, "event": {"payload": {"n": 1}}}),
    ("POST", "/v1/spool/retry", None),
    ("POST", "/v1/spool/discard", {"file": "{file}", "line": 1, "state": "waiting"}),
    ("POST", "/v1/spool/release", {}),
    ("DELETE", "/v1/queues/w/groups/g", None),
    ("DELETE", "/v1/queues/w?reason=done", None),
    ("GET", "/v1/queues/w", None),
    ("POST", "/v1/queues/w/lease", {"max": 0}),
    ("GET", "/health", None),
    ("GET", "/health/live", None),
    ("GET", "/health/ready", None),
    ("GET", "/v1/topology", None),
    ("GET", "/v1/audit", None),
]  # fmt: skip


def same(value):
    """A value without what differs from run to run; that it is there still counts."""
    if isinstance(value, dict):
        return {
            name: None if inner is None else "…" if name in VARIES else same(inner)
            for name, inner in value.items()
        }
    return [same(inner) for inner in value] if isinstance(value, list) else value


def filled(value, receipts, files):
    if value == "{receipt}":
        return receipts.pop(0)
    if value == "{file}":
        return files[-1]
    if isinstance(value, dict):
        return {name: filled(inner, receipts, files) for name, inner in value.items()}
    return [filled(one, receipts, files) for one in value] if isinstance(value, list) else value


async def walk(site, media):
    answers, receipts, files = [], [], []
    for method, path, body in WALK:
        sent = filled(body, receipts, files)
        url = path.replace("{file}", files[-1]) if files else path
        answer = await site(method, url, sent, media=media, x_spillway_org="walk")
        assert answer.headers["content-type"] == media
        told = answer.body
        if path.startswith("/v1/spool/files?"):
            files += [file["file"] for file in told["files"]]
        if path.endswith(("/lease", "/settle")) and answer.status == 200:
            receipts += [message["receipt"] for message in told["messages"]]
        answers.append((method, path, answer.status, told))
    return answers


async def test_both_media_tell_the_same(site):
    """The same walk over every route gives the same statuses and the same shapes."""
    spoken = await walk(site, JSON)
    packed = await walk(site, MSGPACK)
    for one, other in zip(spoken, packed, strict=True):
        if one[1] != "/v1/audit":  # the totals of the whole log have grown between both
            assert one[:3] == other[:3]
            assert same(one[3]) == same(other[3])
    statuses = [status for _, _, status, _ in spoken]
    assert statuses[:2] == [201, 200]
    assert statuses[-8:] == [200, 404, 400, 200, 200, 200, 200, 200]


async def test_the_walk_leaves_no_route_out(site):
    """Whoever adds a route adds it to the walk."""
    walked = {(method, path.partition("?")[0]) for method, path, _ in WALK}
    for route in ROUTES:
        pattern = re.compile(re.sub(r"{\w+}", "[^/]+", route.path) + "$")
        found = any(m == route.method and pattern.match(p) for m, p in walked)
        assert found or route.path in REFERENCE | BETWEEN_BROKERS, route


async def test_answers_are_what_the_document_says(site):
    """Every answer of the walk fits the schema of its status in /openapi.json."""
    document = await site.ask("GET", "/openapi.json")
    for method, path, status, told in await walk(site, JSON):
        (route,) = [
            route
            for route in ROUTES
            if route.method == method
            and re.fullmatch(re.sub(r"{\w+}", "[^/]+", route.path), path.partition("?")[0])
        ]
        responses = document["paths"][route.path][method.lower()]["responses"]
        schema = responses.get(str(status), responses["default"])["content"][JSON]["schema"]
        rooted = schema | {"components": document["components"]}
        errors = jsonschema.Draft202012Validator(rooted).iter_errors(told)
        assert [error.message for error in errors] == [], path


async def test_msgpack_out_and_json_in(site, queue):
    """Accept says what comes back, Content-Type what went in; without Accept both are one."""
    body = b'{"items":[{"queue":"%b","payload":1}]}' % queue.encode()
    mixed = await site("POST", "/v1/messages", body, content_type=JSON, accept=MSGPACK)
    assert (mixed.status, mixed.headers["content-type"]) == (201, MSGPACK)
    assert mixed.body["results"][0]["version"] == 1
    either = await site("GET", f"/v1/queues/{queue}", accept="text/html, */*;q=0.1")
    assert either.headers["content-type"] == JSON


async def test_health_is_ok_while_the_shards_are_held(site):
    """/health and /health/ready agree: everything is here."""
    for path in ("/health", "/health/ready"):
        told = await site.ask("GET", path)
        assert (told["status"], told["database"]) == ("ok", "connected")
        assert told["shards_owned"] == told["shards_total"] == 2
    assert await site.ask("GET", "/health/live") == {"status": "ok"}


async def test_metrics_speak_prometheus_and_json(site, queue):
    """The same numbers in the text and in the JSON, and a queue's gauges go with it."""
    await site.push(queue, 1, 2)
    text = await site("GET", "/metrics", accept="text/plain")
    assert text.headers["content-type"].startswith("text/plain")
    line = f'spillway_queue_depth{{org="default",queue="{queue}"}} 2'
    assert line in text.content.decode().splitlines()
    assert queue in str(await site.ask("GET", "/metrics"))
    await site.ask("DELETE", f"/v1/queues/{queue}")
    assert queue not in (await site("GET", "/metrics", accept="text/plain")).content.decode()


async def test_topology_names_the_owner_of_every_shard(site):
    """This broker owns both shards, and is alive."""
    told = await site.ask("GET", "/v1/topology")
    (broker,) = told["brokers"]
    assert (told["num_shards"], broker["alive"]) == (2, True)
    assert {shard["owner"] for shard in told["shards"]} == {broker["broker"]}
    assert all(shard["owned_here"] for shard in told["shards"])


async def test_the_reference_is_served(site):
    """/openapi.json and /docs know every route."""
    document = await site.ask("GET", "/openapi.json")
    docs = await site("GET", "/docs")
    assert docs.headers["content-type"].startswith("text/html")
    for route in ROUTES:
        assert route.method.lower() in document["paths"][route.path]
        assert route.path in docs.content.decode()
