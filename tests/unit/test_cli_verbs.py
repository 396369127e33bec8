"""Each command against a scripted broker: what it asks, what it prints, how it ends."""

import json
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from spillway.client.scripted import refusal, reply

COUNTS = {
    "depth": 3, "ready": 3, "deferred": 0, "leased": 0, "blocked": 0, "parked": 0, "dropped": 0,
    "settled": 7, "ack_hole_ranges": 0, "oldest_ready_at": None, "paused": False,
}  # fmt: skip
GROUP = {"group": "default", **COUNTS}
QUEUE = {
    "queue": "orders", "org": "default", "created_at": "2026-01-01T00:00:00Z", "paused": False,
    "options": {}, "lanes": 1, "tail": 10, "groups": [GROUP],
}  # fmt: skip
LETTER = {
    "id": 5, "group": "default", "partition": "Default", "version": 3, "key": None,
    "payload": {"n": 1}, "headers": None, "transaction_id": "t", "attempts": 5, "error": "boom",
    "reason": "exhausted", "enqueued_at": "2026-01-01T00:00:00Z", "dead_at": "2026-01-01T00:00:00Z",
}  # fmt: skip
MESSAGE = {
    "receipt": "r1", "queue": "orders", "partition": "Default", "version": 1, "key": None,
    "payload": {"n": 1}, "headers": None, "attempt": 1, "transaction_id": "t",
    "enqueued_at": "2026-01-01T00:00:00Z", "priority": 2,
}  # fmt: skip
VERB = {"verb": "redrive", "affected": 2}


def browsed(version, partition="Default", tid=None):
    return {
        "partition": partition, "version": version, "key": "k", "payload": version,
        "headers": None, "transaction_id": tid or f"t{version}", "priority": 2, "state": "ready",
        "enqueued_at": "2026-01-01T00:00:00Z", "deliver_at": None, "expires_at": None,
        "attempts": 0,
    }  # fmt: skip


def stored(sent):
    items = enumerate(sent.body["items"])
    results = [{"index": at, "status": "stored", "version": at + 1} for at, _ in items]
    return reply({"results": results}, 201)


# ---------------------------------------------------------------- options


def test_connection_options_stand_anywhere(run):
    """--url and its kin work before and after the command; the nearer one wins."""
    answer = reply({"queues": []})
    before = run("--url http://a queue list", answer).sessions[0]
    after = run("--url http://a queue list --url http://b --org acme", answer).sessions[0]
    assert (before.url, after.url, after.org) == ("http://a", "http://b", "acme")


def test_a_flag_outranks_its_variable(run):
    """Environment < flag at the root < flag at the command."""
    env, answer = {"SPILLWAY_URL": "http://env"}, reply({"queues": []})
    assert run("queue list", answer, env=env).sessions[0].url == "http://env"
    assert run("--url http://a queue list", answer, env=env).sessions[0].url == "http://a"
    assert run("queue list --url http://b", answer, env=env).sessions[0].url == "http://b"


# ---------------------------------------------------------------- messages


def test_push_arguments(run):
    """Payloads are JSON where they can be, text otherwise; options go to each."""
    result = run(
        ["push", "orders", '{"n": 1}', "hello", "-k", "k1", "-H", "a=b", "--delay", "5s"], stored
    )
    first, second = result.sent[0].body["items"]
    assert (first["payload"], second["payload"]) == ({"n": 1}, "hello")
    assert (first["key"], first["headers"], first["delay_ms"]) == ("k1", {"a": "b"}, 5000)
    assert result.exit_code == 0
    assert result.stderr == "orders: 2 stored\n"


def test_push_of_qos_0_says_what_it_is_worth(run):
    """Taken, and not on disk: so it is told, to people and to programs."""
    answer = reply({"results": [{"index": 0, "status": "buffered"}], "durable": False}, 201)
    result = run("push orders 1 --qos 0 --json", answer)
    assert result.sent[0].body["qos"] == 0
    assert result.stderr == "orders: 1 buffered and not on disk yet\n"
    assert json.loads(result.stdout) == {"index": 0, "status": "buffered", "durable": False}


def test_push_lines_from_stdin(run):
    """Each line is a message, blank ones are none; --json prints a result a line."""
    result = run("push orders --json", stored, stdin='{"n":1}\n\n{"n":2}\n')
    assert [one["payload"] for one in result.sent[0].body["items"]] == [{"n": 1}, {"n": 2}]
    assert [json.loads(line)["index"] for line in result.stdout.splitlines()] == [0, 1]


def test_push_a_file_in_batches(run, tmp_path):
    """A long file leaves in several requests, numbered through."""
    lines = tmp_path / "orders.jsonl"
    lines.write_text("\n".join(str(number) for number in range(1001)))
    result = run(["push", "orders", "--file", str(lines), "--json"], stored, stored)
    assert [len(sent.body["items"]) for sent in result.sent] == [1000, 1]
    assert json.loads(result.stdout.splitlines()[-1])["index"] == 1000


def test_push_failures_end_with_1(run):
    """Failed messages are told with their reason, and the exit code says so."""
    error = {"code": "invalid_item", "message": "too large", "hint": ""}
    failed = {"results": [{"index": 0, "status": "failed", "error": error}], "error": error}
    result = run("push orders x", reply(failed, 400))
    assert result.exit_code == 1
    assert "too large [invalid_item]" in result.stderr


@pytest.mark.parametrize(
    "line",
    [
        ["push", "orders", "x", "--as", "json"],
        ["push", "orders", "x", "-H", "novalue"],
        ["push", "orders", "x", "--delay", "soon"],
        ["push", "orders", "x", "y", "--transaction-id", "t"],
        ["settle", "ack"],
        ["queue", "update", "orders"],
        ["queue", "delete", "orders"],
        ["queue", "group-delete", "orders", "g"],
        ["queue", "purge", "orders"],
        ["dead", "redrive", "orders"],
        ["dead", "purge", "orders"],
        ["dead", "park", "orders"],
        ["blocked", "unblock", "orders"],
        ["dead", "park", "orders", "-m", "nonsense"],
        ["lease", "orders", "--wait", "2h"],
        ["lease", "orders", "--visibility", "0"],
        ["settle", "extend", "r", "--visibility", "1d"],
        ["queue", "create", "orders", "--max-attempts", "0"],
        ["queue", "create", "orders", "--order", "key"],
        ["queue", "update", "orders", "--retention", "400d"],
        ["seek", "orders", "7"],
        ["seek", "orders", "someday"],
        ["schema", "apply"],
        ["queue", "list", "--timeout", "0"],
        ["--timeout", "0", "queue", "list"],
    ],
)
def test_wrong_usage_is_2_and_asks_nobody(run, line):
    """What is clearly wrong, or too sweeping, is refused before the broker hears of it."""
    result = run(line, stdin="")
    assert result.exit_code == 2
    assert result.sent == []


def test_lease_prints_receipts(run):
    """What is leased is shown with its receipt, whole."""
    result = run("lease orders -n 5 --wait 2s", reply({"messages": [MESSAGE]}))
    assert (result.sent[0].body["max"], result.sent[0].body["wait_ms"]) == (5, 2000)
    assert "r1" in result.stdout
    assert '{"n":1}' in result.stdout


def test_lease_and_ack(run):
    """--ack settles after printing."""
    acked = reply({"results": [{"receipt": "r1", "status": "acked"}]})
    result = run("lease orders --ack --json", reply({"messages": [MESSAGE]}), acked)
    assert result.sent[1].body["ack"] == ["r1"]
    assert json.loads(result.stdout)["receipt"] == "r1"


def test_lease_of_nothing_says_why(run):
    """An empty lease is no failure, and the reason is told."""
    result = run("lease orders", reply({"messages": [], "reason": "paused"}))
    assert result.exit_code == 0
    assert result.stdout == ""
    assert "paused" in result.stderr


@pytest.mark.parametrize(
    ("line", "body"),
    [
        ("settle ack r1", {"ack": ["r1"]}),
        ("settle nack r1 --error boom --delay 2s",
         {"nack": [{"receipt": "r1", "error": "boom", "delay_ms": 2000}]}),
        ("settle park r1", {"nack": [{"receipt": "r1", "park": True}]}),
        ("settle extend r1 --visibility 1m",
         {"extend": [{"receipt": "r1", "visibility_ms": 60000}]}),
    ],
)  # fmt: skip
def test_settle(run, line, body):
    """Each way to settle asks for exactly that."""
    result = run(line, reply({"results": [{"receipt": "r1", "status": "acked"}]}))
    assert result.sent[0].body == body
    assert result.stderr == "1 settled, 0 refused\n"


def test_settle_refused_is_4(run):
    """A stale receipt is refused, and the exit code says so; receipts may come on stdin."""
    error = {"code": "stale_receipt", "message": "over", "hint": ""}
    refused = {"receipt": "r1", "status": "refused", "error": error}
    result = run("settle ack --json", reply({"results": [refused]}), stdin="r1\n")
    assert result.exit_code == 4
    assert json.loads(result.stdout)["status"] == "refused"


def test_tail_pages_through(run):
    """Every page is shown once, in order."""
    pages = [reply({"messages": [browsed(1)], "next": "c"}), reply({"messages": [browsed(2)]})]
    result = run("tail orders --json --from-version 1", reply(QUEUE), *pages)
    assert [json.loads(line)["version"] for line in result.stdout.splitlines()] == [1, 2]
    assert "next=c" in result.sent[2].path


def test_tail_follows_old_and_new_partitions(run):
    """New messages of known partitions come first; what is not explained is looked for."""
    result = run(
        "tail orders -f -n 3 --interval 0.05",
        reply({**QUEUE, "tail": 1}),
        reply({"messages": [browsed(1)]}),
        reply({**QUEUE, "tail": 3}),
        reply({**QUEUE, "tail": 3}),
        reply({"messages": [browsed(2)]}),
        reply({"messages": [browsed(1), browsed(2), browsed(1, "p1", "u1")]}),
    )
    shown = [line.split()[1] for line in result.stdout.splitlines()]
    assert shown == ["Default/1", "Default/2", "p1/1"]


# ---------------------------------------------------------------- queues and repairs


def test_queue_list(run):
    """A line a group, or a JSON line a queue, over all pages."""
    pages = [reply({"queues": [QUEUE], "next": "orders"}), reply({"queues": [QUEUE]})]
    result = run("queue list --json", *pages)
    assert len(result.stdout.splitlines()) == 2
    assert result.sent[1].path == "/v1/queues?after=orders"
    assert "orders  default" in run("queue list", reply({"queues": [QUEUE]})).stdout


def test_queue_show(run):
    """Options and groups of one queue."""
    result = run("queue show orders", reply(QUEUE))
    assert "max_attempts" in result.stdout
    assert json.loads(run("queue show orders --json", reply(QUEUE)).stdout)["tail"] == 10


def test_queue_create_and_update(run):
    """Only the options that were given travel; spans become milliseconds."""
    created = run(
        "queue create orders --order partition --partitions 8 --visibility 10s", reply(QUEUE)
    )
    assert created.sent[0].method == "PUT"
    assert created.sent[0].body == {"order": "partition", "partitions": 8, "visibility_ms": 10_000}
    updated = run("queue update orders --retention 2d", reply(QUEUE))
    assert (updated.sent[0].method, updated.sent[0].body) == (
        "PATCH",
        {"retention_ms": 172_800_000},
    )


def test_queue_story(run):
    """The message, then what happened to it, oldest first."""
    event = {
        "seq": 1, "at": "2026-01-01T00:00:00Z", "group": "default", "event": "Acked",
        "detail": {"ranges": [[1, 1]]},
    }  # fmt: skip
    told = reply({"message": browsed(1), "story": [event]})
    result = run("queue story orders Default 1 -g default", told)
    assert result.sent[0].call == "GET /v1/queues/orders/messages/Default/1?group=default"
    assert "transaction_id" in result.stdout
    assert "Acked  ranges=[[1, 1]]" in result.stdout
    told_json = json.loads(run("queue story orders Default 1 --json", told).stdout)
    assert told_json["story"] == [event]
    assert (
        "nothing happened"
        in run("queue story orders Default 1", reply({"message": browsed(1), "story": []})).stderr
    )


def test_queue_create_with_a_bad_option(run):
    """A value out of range is a usage error with the reason."""
    result = run("queue create orders --partitions 0")
    assert result.exit_code == 2
    assert "partitions" in result.stderr


@pytest.mark.parametrize(
    ("line", "call", "body"),
    [
        ("queue delete orders --yes --reason x", "DELETE /v1/queues/orders?reason=x", None),
        ("queue group-delete orders g --yes", "DELETE /v1/queues/orders/groups/g", None),
    ],
)
def test_deletes(run, line, call, body):
    """With --yes a delete is done."""
    result = run(line, reply({"deleted": "orders"}))
    assert (result.sent[0].call, result.sent[0].body) == (call, body)
    assert "deleted" in result.stderr


@pytest.mark.parametrize(
    ("line", "path", "body"),
    [
        ("queue purge orders --all", "purge", {"what": "waiting", "all": True}),
        ("queue pause orders -g g", "pause", {"group": "g"}),
        ("queue resume orders", "resume", {}),
        ("dead redrive orders --id 1 --id 2", "redrive", {"ids": [1, 2]}),
        ("dead redrive orders --error boom --dry-run", "redrive",
         {"error_contains": "boom", "dry_run": True}),
        ("dead purge orders --all --limit 5", "purge", {"what": "dead", "all": True, "limit": 5}),
        ("dead park orders -m p1/7", "park", {"messages": [{"partition": "p1", "version": 7}]}),
        ("blocked unblock orders --key k --action skip", "unblock", {"action": "skip", "key": "k"}),
        ("seek orders latest -g g", "seek", {"to": "latest", "group": "g"}),
        ("seek orders 7 --partition p1", "seek", {"to": 7, "partition": "p1"}),
    ],
)  # fmt: skip
def test_verbs(run, line, path, body):
    """Each verb says exactly which messages it means."""
    result = run(f"{line} --json", reply(VERB))
    assert result.sent[0].call == f"POST /v1/queues/orders/{path}"
    assert {
        name: value for name, value in result.sent[0].body.items() if value != "default"
    } == body
    assert json.loads(result.stdout)["affected"] == 2
    assert "2 " in result.stderr


def test_seek_to_a_span_is_a_time(run):
    """`2h` means two hours ago."""
    sent = run("seek orders 2h", reply(VERB)).sent[0].body["to"]
    ago = datetime.now(UTC) - datetime.fromisoformat(sent)
    assert timedelta(hours=1, minutes=59) < ago < timedelta(hours=2, minutes=1)


def test_group_create(run):
    """A group starts where it is told to."""
    result = run("queue group-create orders g --start latest", reply(GROUP))
    assert (result.sent[0].call, result.sent[0].body) == (
        "PUT /v1/queues/orders/groups/g",
        {"start": "latest"},
    )


def test_dead_list_and_show(run):
    """Dead letters are listed with their error, and shown whole."""
    listed = run("dead list orders", reply({"dead": [LETTER], "total": 1}))
    assert "boom" in listed.stdout
    shown = run("dead show orders 5 --json", reply({"dead": [LETTER], "total": 1}))
    assert json.loads(shown.stdout)["id"] == 5
    assert "payload" in run("dead show orders 5", reply({"dead": [LETTER], "total": 1})).stdout


def test_dead_list_goes_on_to_its_limit(run):
    """Pages are fetched until the limit is reached."""
    page = reply({"dead": [LETTER], "total": 9, "next": 5})
    result = run("dead list orders -n 2 --json", page, page)
    assert len(result.stdout.splitlines()) == 2
    assert "after=5" in result.sent[1].path


def test_dead_show_of_another_is_4(run):
    """A dead letter that is not there is not found."""
    assert run("dead show orders 4", reply({"dead": [LETTER], "total": 1})).exit_code == 4


def test_blocked_list(run):
    """What is blocked is listed with the command that frees it."""
    blocked = {
        "group": "default", "partition": "p1", "version": 3, "attempts": 5, "error": "boom",
        "blocked_at": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    pages = [
        reply({"blocked": [blocked], "next": "c"}),
        reply({"blocked": [{**blocked, "version": 4}]}),
    ]
    result = run("blocked list orders", *pages)
    assert ("p1/3" in result.stdout, "p1/4" in result.stdout) == (True, True)
    assert "next=c" in result.sent[1].path
    assert "spillway blocked unblock orders" in result.stderr


def test_not_found_is_4(run):
    """What the broker does not know ends with 4, its code and its hint."""
    result = run("queue show nothing", refusal("queue_not_found", 404, "there is no queue nothing"))
    assert result.exit_code == 4
    assert "error[queue_not_found]: there is no queue nothing" in result.stderr


@pytest.mark.parametrize(
    ("line", "module"),
    [
        ("audit", "audit"),
        ("dead redrive orders --all", "dead"),
        ("dead purge orders --all", "dead"),
        ("dead park orders --all", "dead"),
        ("queue purge orders --all", "queue"),
        ("blocked unblock orders --all", "blocked"),
    ],
)
def test_what_may_take_long_shows_that_it_goes_on(run, monkeypatch, line, module):
    """One answer, perhaps after many seconds: a spinner turns meanwhile."""
    seen = []

    @contextmanager
    def noted(text):
        seen.append(text)
        yield

    monkeypatch.setattr(f"spillway.cli.{module}.spinning", noted)
    books = {"balanced": True, "lanes": 0, "groups": 0, "messages": 0, "totals": {}}
    run(line, reply(VERB | books | {"differences": []}))
    assert len(seen) == 1
