"""push, lease, settle and tail: the way of a message, typed by hand."""

import contextlib
import json
import signal
import subprocess
from pathlib import Path

import pytest

MESSAGE = {
    "receipt", "queue", "partition", "version", "key", "payload", "headers", "attempt",
    "transaction_id", "enqueued_at", "priority", "trace_id",
}  # fmt: skip
BROWSED = {
    "partition", "version", "key", "payload", "headers", "transaction_id", "priority", "state",
    "enqueued_at", "deliver_at", "expires_at", "attempts",
}  # fmt: skip


def lease(cli, queue, *words):
    """The messages that a lease printed."""
    return cli("lease --json -n 100", queue, *words).lines


def payloads(cli, queue):
    """What is in the queue, in its order."""
    return [one["payload"] for one in cli("tail --json", queue).lines]


# ---------------------------------------------------------------- push


def test_a_pushed_message_says_where_it_went(cli, queue):
    """Talk on stderr; with --json a line for each result, and nothing else, on stdout."""
    said = cli("push", queue, '{"a":1}')
    assert (said.out, said.err) == ("", f"{queue}: 1 stored\n")
    results = cli("push --json", queue, '{"a":2}', "3").lines
    assert [(one["index"], one["status"], one["version"]) for one in results] == [
        (0, "stored", 2), (1, "stored", 3),
    ]  # fmt: skip


def test_everything_that_push_can_say_arrives(cli, queue):
    """Key, headers, partition, priority, ids: as they were given."""
    line = "push --partition eu -k k1 -H a=b -H c=d=e --transaction-id t1 --trace-id x"
    cli(line, queue, '{"n": 1.50}')
    (message,) = lease(cli, queue)
    assert set(message) == MESSAGE
    assert (message["partition"], message["key"]) == ("eu", "k1")
    assert message["headers"] == {"a": "b", "c": "d=e"}
    assert (message["transaction_id"], message["trace_id"]) == ("t1", "x")


def test_a_repeated_transaction_id_is_a_duplicate(cli, queue):
    """The second copy is answered with the version of the first, and is not stored."""
    cli("push --transaction-id t1", queue, "1")
    again = cli("push --json --transaction-id t1", queue, "1").lines
    assert [(one["status"], one["version"]) for one in again] == [("duplicate", 1)]
    assert "transaction_conflict" in cli("push --transaction-id t1", queue, "2", exits=1).err


def test_lines_of_stdin_and_of_a_file_are_messages(cli, queue, tmp_path):
    """Blank lines are none, CRLF is a line end, the last line needs no end."""
    cli("push", queue, stdin='{"n":1}\r\n\n{"n":2}')
    file = tmp_path / "orders.jsonl"
    file.write_text("".join(f'{{"n":{n}}}\n' for n in range(3, 2504)))
    assert cli("push --file", str(file), queue).err == f"{queue}: 2501 stored\n"
    assert payloads(cli, queue) == [{"n": n} for n in range(1, 2504)]


def test_json_travels_as_it_was_written(cli, queue):
    """No digit of a number is lost; a text stays a text."""
    numbers = ["12345678901234567890123", "0.1000", '{"a":1,"a":2}']
    cli("push", queue, *numbers)
    out = cli("tail --json", queue).out
    assert all(f'"payload":{text},' in out for text in numbers)
    cli("push --as text", queue, "17")
    assert lease(cli, queue)[-1]["payload"] == "17"


@pytest.mark.parametrize("text", ["{a:1}", "[1,", '"\\ud800"'])
def test_what_looks_like_json_but_is_not_is_said(cli, queue, text):
    """It is stored as a text, aloud; --as json refuses it."""
    said = cli("push", queue, text)
    assert f"it is not JSON: {text!r}" in said.err
    assert "--as json" in said.err
    assert payloads(cli, queue) == [text]
    assert "not JSON" in cli("push --as json", queue, text, exits=2).err


def test_all_that_only_look_like_json_are_counted(cli, queue):
    """One is shown, the number of all is told."""
    said = cli("push", queue, '{"a":1', '{"b":NaN}', "[1,", "2").err
    assert said.count("it is not JSON") == 1
    assert "3 of them as texts" in said


@pytest.mark.parametrize("text", ["NaN", "1e999", "-Infinity"])
def test_what_json_does_not_know_stays_a_text(cli, queue, text):
    """A NaN does not turn into null."""
    cli("push", queue, "--", text)
    assert payloads(cli, queue) == [text]


def test_a_bad_line_is_named_and_what_was_pushed_is_told(cli, queue):
    """The batches before it are stored; the line has a number and a reason."""
    good = b"1\n" * 1000
    said = cli("push", queue, stdin=good + b"a\xffb\n", exits=2)
    assert f"{queue}: 1000 stored" in said.err
    assert "line 1001 is not UTF-8: invalid start byte at byte 1" in said.err


def test_a_message_over_the_limit_fails_alone(cli, queue):
    """Exit code 1, the limit and the next step; the others of the batch are stored."""
    said = cli("push", queue, stdin=f'1\n"{"x" * 1_100_000}"\n2\n', exits=1)
    assert f"{queue}: 2 stored, 1 failed" in said.err
    assert "the limit is 1048576 [invalid_item]" in said.err
    assert "hint:" in said.err


def test_a_slow_pipe_is_pushed_as_it_flows(cli, queue, client, eventually):
    """Nobody waits for a thousand lines: each is there at once."""
    pushing = cli.spawn("push", queue)
    for n in (1, 2):
        pushing.stdin.write(f"{n}\n")
        pushing.stdin.flush()
        eventually(lambda n=n: client.queue(queue).tail == n)
    _, said = pushing.communicate()
    assert (pushing.returncode, said) == (0, f"{queue}: 2 stored\n")


def test_ctrl_c_ends_a_waiting_push_at_once(cli, queue, client, eventually):
    """What came before is stored and told; the exit code is 130."""
    pushing = cli.spawn("push", queue)
    pushing.stdin.write("1\n")
    pushing.stdin.flush()
    eventually(lambda: client.queue(queue).tail == 1)
    pushing.send_signal(signal.SIGINT)
    _, said = pushing.communicate(timeout=5)
    assert pushing.returncode == 130
    assert f"{queue}: 1 stored" in said


# ---------------------------------------------------------------- lease, settle


def test_a_receipt_settles_once(cli, queue):
    """ack, then ack again (fine), then nack (too late: exit code 4)."""
    cli("push", queue, "1")
    (message,) = lease(cli, queue)
    assert cli("settle ack", message["receipt"]).err == "1 settled, 0 refused\n"
    (again,) = cli("settle ack --json", message["receipt"]).lines
    assert (again["receipt"], again["status"]) == (message["receipt"], "acked")
    late = cli("settle nack --json", message["receipt"], exits=4)
    assert late.lines[0]["error"]["code"] == "stale_receipt"
    assert "hint:" in late.err


def test_nack_gives_back_and_counts_the_attempt(cli, queue):
    """The second delivery is attempt 2; without a delay it is there at once."""
    cli("push", queue, "1")
    cli("settle nack --delay 0 --error oops", lease(cli, queue)[0]["receipt"])
    (again,) = lease(cli, queue)
    assert again["attempt"] == 2
    cli("settle nack --delay 1h", again["receipt"])  # max_attempts is 2: that was the last
    assert cli("dead list --json", queue).lines[0]["reason"] == "exhausted"


def test_park_and_extend_by_receipts_on_stdin(cli, queue):
    """Receipts may come down a pipe, one a line."""
    cli("push", queue, "1", "2")
    receipts = "\n".join(one["receipt"] for one in lease(cli, queue))
    extended = cli("settle extend --visibility 1m --json", stdin=receipts).lines
    assert [one["status"] for one in extended] == ["extended", "extended"]
    assert cli("settle park --error poison", stdin=receipts).err == "2 settled, 0 refused\n"
    assert [one["error"] for one in cli("dead list --json", queue).lines] == ["poison"] * 2
    assert "no receipts" in cli("settle ack", exits=2).err


def test_lease_for_people_and_for_groups(cli, queue):
    """Columns with the receipt whole; --ack settles at once; an empty lease says why."""
    cli("push", queue, "1", "2")
    table = cli("lease --visibility 1m --ack -n 2", queue)
    heading, *rows = table.out.splitlines()
    assert heading.split() == ["PARTITION", "VERSION", "ATTEMPT", "KEY", "PAYLOAD", "RECEIPT"]
    assert [row.split()[:3] for row in rows] == [["Default", "1", "1"], ["Default", "2", "1"]]
    assert table.err == "2 acked\n"
    assert "nothing to lease" in cli("lease", queue).err
    assert len(lease(cli, queue, "-g", "audit")) == 2


def test_lease_waits_for_a_push(cli, queue, client, eventually):
    """--wait is a long poll: the message is printed as soon as it is there."""
    waiting = cli.spawn("lease --json --wait 30s", queue)
    client.push(queue, {"n": 1})
    out, _ = waiting.communicate(timeout=20)
    assert (waiting.returncode, json.loads(out)["payload"]) == (0, {"n": 1})


def test_ctrl_c_ends_a_waiting_lease(cli, queue, eventually):
    """Exit code 130, and a word of it."""
    waiting = cli.spawn("lease --wait 30s", queue)
    eventually(lambda: "default" in cli("queue groups", queue).out)
    eventually(lambda: is_waiting(waiting.pid))
    waiting.send_signal(signal.SIGINT)
    _, said = waiting.communicate(timeout=5)
    assert (waiting.returncode, said) == (130, "interrupted\n")


def is_waiting(pid):
    """Whether a process has an open socket."""
    with contextlib.suppress(FileNotFoundError):  # it may be closed as we look
        opened = Path(f"/proc/{pid}/fd").iterdir()
        return any(str(one.readlink()).startswith("socket:") for one in opened)
    return False


# ---------------------------------------------------------------- tail


def test_tail_shows_every_state(cli, queue):
    """Nothing is consumed; --state and --from-version choose."""
    cli("push", queue, "1", "2", "3")
    lease(cli, queue, "-n", "1")
    shown = cli("tail --json", queue).lines
    assert set(shown[0]) == BROWSED
    assert [(one["version"], one["state"]) for one in shown] == [
        (1, "leased"), (2, "ready"), (3, "ready"),
    ]  # fmt: skip
    assert [one["version"] for one in cli("tail --json --state ready -n 1", queue).lines] == [2]
    assert [one["version"] for one in cli("tail --json --from-version 3", queue).lines] == [3]
    assert " Default/1 leased 1\n" in cli("tail", queue).out


def test_tail_follows_and_ends_with_ctrl_c(cli, queue):
    """What is pushed later is printed too, and the end is asked for: exit code 130."""
    cli("push", queue, "1")
    following = cli.spawn("tail --follow --json --interval 0.05", queue)
    for n in (1, 2, 3):
        assert json.loads(following.stdout.readline())["payload"] == n
        cli("push", queue, str(n + 1))
    following.send_signal(signal.SIGINT)
    following.communicate(timeout=5)
    assert following.returncode == 130


def test_a_reader_that_has_seen_enough_is_no_error(cli, queue):
    """`spillway tail | head -1` ends without a traceback."""
    cli("push", queue, stdin="1\n" * 3000)
    tailing = cli.spawn("tail --json", queue)
    with subprocess.Popen(["head", "-1"], stdin=tailing.stdout, stdout=subprocess.DEVNULL) as head:
        tailing.stdout.close()
        head.wait(10)
    said = tailing.stderr.read()
    assert tailing.wait(10) in (0, 1)
    assert said == ""
