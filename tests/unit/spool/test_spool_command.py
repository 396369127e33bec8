"""`spillway spool`: before a scripted broker, and in a folder without one."""

import json
from types import SimpleNamespace

import msgspec
import pytest

from spillway.cli import session as cli_session
from spillway.cli.draining import Draining, told
from spillway.cli.serve import _tell_start
from spillway.client.errors import BrokerUnreachableError
from spillway.client.scripted import refusal, reply
from spillway.settings import Settings
from spillway.spool import event
from spillway.spool import folder as disk
from spillway.spool.names import FAILOVER, Names
from spillway.spool.quarantine import Quarantine
from spillway.wire import SpoolReply

FREE = {"hold": None, "held": [], "stuck": [], "failed": 0, "bytes_max": 10**9}
FILE = {
    "file": "failover_1.buf", "stream": "failover", "state": "waiting", "events": 3, "left": 2,
    "bytes": 2048, "oldest_at": "2026-01-01T00:00:00Z",
}  # fmt: skip
EVENT = {
    "line": 1, "org": "default", "queue": "orders", "partition": "p", "key": "k",
    "payload": {"n": 1}, "transaction_id": "t-1", "accepted_at": "2026-01-01T00:00:00Z",
}  # fmt: skip
POISON = EVENT | {"error": {"code": "queue_not_found", "message": "no queue", "hint": "make it"}}
VERB = {"verb": "discard", "affected": 1, "remaining": 2}


@pytest.fixture
def status(spool_status):
    """A status as the client has it."""
    return lambda **changes: msgspec.convert(spool_status(**FREE | changes), SpoolReply)


# ---------------------------------------------------------------- status


def test_status_tells_what_waits_and_what_frees_it(run, spool_status):
    """Facts and queues on stdout, every trouble with its command on stderr."""
    result = run("spool status", reply(spool_status()))
    assert result.exit_code == 0
    for text in ("1200 events in 3 files, the oldest for 3m", "9 B of 10 B (90%)", "/spool"):
        assert text in result.stdout
    assert result.stdout.splitlines()[-1].split() == ["orders", "default", "1200"]
    for command in (
        "and 7 more queues",
        "failover_2.buf is passed over: it cannot be read",
        "mend the disk",
        "FILE_BUFFER_BYTES_MAX",
        "spillway spool release",
        "spillway queue update orders --max-depth N",
        "spillway spool list --failed",
    ):
        assert command in result.stderr


def test_status_of_what_is_still_counted(run, spool_status):
    """It says so: the figures are not the last ones."""
    told = run("spool status", reply(spool_status(**FREE, counting=True))).stdout
    assert "still counting: 1200 events in 3 files or more" in told


def test_status_of_a_database_that_is_away(run, spool_status):
    """What to start again."""
    away = spool_status(**FREE, database="disconnected", breaker="open")
    result = run("spool status", reply(away))
    assert "breaker      open" in result.stdout
    assert "start PostgreSQL again" in result.stderr


def test_status_of_what_is_being_replayed(run, spool_status):
    """Nothing is in its way: only a place to watch it."""
    result = run("spool status", reply(spool_status(**FREE, rate=1234.0)))
    assert "1,234/s" in result.stdout
    assert "spillway spool status --watch" in result.stderr


def test_status_in_json_is_one_document(run, spool_status):
    """Everything that the broker said."""
    assert json.loads(run("spool status --json", reply(spool_status())).stdout) == spool_status()


def test_the_lanes_that_are_passed_over_do_not_fill_the_screen(run, spool_status):
    """The first ones, and how many more there are."""
    held = [spool_status()["held"][0] | {"partition": f"p{n}"} for n in range(25)]
    told = run("spool status", reply(spool_status(held=held, stuck=[]))).stderr
    assert told.count("is passed over") == 10
    assert "15 more lanes passed over" in told


# ---------------------------------------------------------------- watching


def test_a_watch_ends_when_the_spool_is_empty(run, spool_status):
    """A look at a time, with the rate; a broker that is started again does not end it."""
    looks = [spool_status(**FREE, pending=n, replayed=200 - n) for n in (200, 50)]
    answers = [*map(reply, looks), BrokerUnreachableError("no connection")]
    answers.append(reply(spool_status(**FREE, pending=0, replayed=50)))
    result = run("spool status --watch -i 0.1", *answers)
    assert (result.exit_code, len(result.sent)) == (0, 4)
    told = result.stderr.splitlines()
    assert told[0] == "200 waiting"
    assert told[1].startswith("50 waiting, ")
    assert "/s, " in told[1]
    assert "no connection" in told[2]
    assert told[-1] == "the spool is empty"


def test_a_watch_in_json_is_a_line_a_look(run, spool_status):
    """And nothing else on stdout."""
    looks = [reply(spool_status(**FREE, pending=n)) for n in (1, 0)]
    lines = run("spool status --watch --json -i 0.1", *looks).stdout.splitlines()
    assert [json.loads(line)["pending"] for line in lines] == [1, 0]


def test_a_watch_that_may_not_look_ends(run):
    """Only a broker that is away is waited for."""
    assert run("spool status --watch", refusal("forbidden", 403)).exit_code == 4


def test_the_rate_and_the_end_come_from_two_looks(status):
    """What was done since the first look, at the pace of the last ones."""
    draining = Draining()
    first = draining.look(status(pending=100, replayed=1000), 10.0)
    assert (first.done, first.total, first.rate, first.eta_s) == (0, 100, None, None)
    second = draining.look(status(pending=60, replayed=1040), 12.0)
    assert (second.done, second.total, second.rate, second.eta_s) == (40, 100, 20.0, 3.0)
    assert told(second) == "60 waiting, 20/s, 3.0s to go"
    faster = draining.look(status(pending=20, replayed=1080), 13.0)
    assert 20.0 < faster.rate < 40.0


def test_what_is_pushed_meanwhile_makes_it_longer(status):
    """The end goes away, nothing that was done is forgotten."""
    draining = Draining()
    draining.look(status(pending=100, replayed=0), 0.0)
    stage = draining.look(status(pending=150, replayed=50), 1.0)
    assert (stage.done, stage.total) == (50, 200)


def test_a_broker_that_was_started_again_counts_anew(status):
    """What it has done since is done too."""
    draining = Draining()
    draining.look(status(pending=100, replayed=500), 0.0)
    stage = draining.look(status(pending=90, replayed=10), 1.0)
    assert (stage.done, stage.total) == (10, 100)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"hold": {"actor": "a", "reason": None, "since": None}}, "held"),
        ({"breaker": "open"}, "PostgreSQL is away"),
        ({"database": "disconnected"}, "PostgreSQL is away"),
    ],
)
def test_what_stands_still_says_why(status, changes, why):
    """And makes no promise of an end."""
    draining = Draining()
    draining.look(status(pending=10, replayed=0), 0.0)
    stage = draining.look(status(**{"pending": 5, "replayed": 5} | changes), 1.0)
    assert told(stage) == f"5 waiting, 5/s, {why}"


# ---------------------------------------------------------------- files


def test_files_of_both_kinds_are_listed_page_by_page(run):
    """As far as is asked."""
    failed = FILE | {"state": "failed", "file": "failover_0.buf"}
    pages = [
        reply({"files": [FILE], "next": "failover_1.buf"}),
        reply({"files": [FILE | {"file": "failover_2.buf"}]}),
        reply({"files": [failed]}),
    ]
    result = run("spool list", *pages)
    assert [line.split()[:5] for line in result.stdout.splitlines()[1:]] == [
        ["failover_1.buf", "waiting", "failover", "3", "2"],
        ["failover_2.buf", "waiting", "failover", "3", "2"],
        ["failover_0.buf", "failed", "failover", "3", "2"],
    ]
    assert [sent.path for sent in result.sent] == [
        "/v1/spool/files?state=waiting&limit=100",
        "/v1/spool/files?state=waiting&after=failover_1.buf&limit=99",
        "/v1/spool/files?state=failed&limit=100",
    ]
    only = run("spool list --failed --json", reply({"files": [failed]}))
    assert json.loads(only.stdout) == failed


def test_no_files_are_said_not_shown(run):
    """An empty table is no answer."""
    empty = reply({"files": []})
    result = run("spool list", empty, empty)
    assert (result.stdout, "the spool is empty" in result.stderr) == ("", True)


def test_a_page_is_not_taken_for_all(run):
    """Where it goes on is said."""
    files = reply({"files": [FILE, FILE], "next": "failover_1.buf"})
    told = run("spool list --limit 2 --failed", files).stderr
    assert "and more: spillway spool list --limit 20" in told
    events = reply({"file": "f", "state": "waiting", "events": [EVENT], "next": 9})
    told = run("spool show f --limit 1", events).stderr
    assert "and more: spillway spool show f --from 9" in told


def test_a_file_that_does_not_wait_may_have_failed(run):
    """Its events are shown with what to do about them."""
    gone = refusal("spool_file_not_found", 404)
    shown = reply({"file": "f", "state": "failed", "events": [POISON]})
    result = run("spool show f", gone, shown)
    assert result.stdout.splitlines()[1].split() == [
        "1", "orders", "p", "k", "t-1", '{"n":1}', "queue_not_found",
    ]  # fmt: skip
    assert "spillway spool repair f --line 1 --event" in result.stderr
    assert "spillway spool retry f" in result.stderr
    [line] = run("spool show f --failed --json", shown).stdout.splitlines()
    assert json.loads(line)["payload"] == {"n": 1}


def test_a_file_that_is_nowhere_is_no_file(run):
    """Neither waiting nor failed: it does not say that one kind is missing."""
    answers = [refusal("spool_file_not_found", 404) for _ in range(2)]
    result = run("spool show nope", *answers)
    assert result.exit_code == 4
    assert "the spool has no file 'nope'" in result.stderr


def test_one_event_is_shown_whole(run):
    """The line that was named, or none."""
    shown = reply({"file": "f", "state": "waiting", "events": [POISON]})
    result = run("spool show f --line 1", shown)
    assert "no queue [queue_not_found]" in result.stdout
    assert "make it" in result.stdout
    other = reply({"file": "f", "state": "waiting", "events": [EVENT | {"line": 3}]})
    missing = run("spool show f --line 2", other)
    assert (missing.exit_code, "spool_line_not_found" in missing.stderr) == (4, True)


def test_a_damaged_line_is_shown_as_text(run):
    """What is left of it, in the place of a payload."""
    broken = {"line": 2, "damaged": "{oops", "error": POISON["error"]}
    result = run("spool show f", reply({"file": "f", "state": "waiting", "events": [broken]}))
    assert "{oops" in result.stdout


# ---------------------------------------------------------------- repairs


def test_a_discard_names_a_file_and_a_line_or_all(run):
    """Whoever says neither, or both, throws nothing away."""
    for words in ("spool discard", "spool discard f", "spool discard f --line 1 --all"):
        result = run(words)
        assert (result.exit_code, result.sent) == (2, []), words
    both = run("spool discard f --line 1 --all").stderr
    assert "both" in both
    assert "without a filter" not in both
    result = run("spool discard f --line 2 --dry-run --reason why", reply(VERB | {"dry_run": True}))
    assert result.sent[0].body == {"file": "f", "line": 2, "dry_run": True, "reason": "why"}
    assert "nothing changed" in result.stderr
    result = run("spool discard f --all --waiting --json", reply(VERB))
    assert result.sent[0].body == {"file": "f", "state": "waiting"}
    assert json.loads(result.stdout)["affected"] == 1


def test_a_repair_sets_fields_or_accepts(run):
    """And says that it is tried, and how to do it at once."""
    words = ["spool", "repair", "f", "--line", "3", "--event", '{"queue":"q","payload":[1]}']
    result = run(words, reply(VERB))
    assert result.sent[0].body == {"file": "f", "line": 3, "event": {"queue": "q", "payload": [1]}}
    assert "tried by itself within FILE_BUFFER_RETRY_INTERVAL (5 s)" in result.stderr
    assert "spillway spool retry f --line 3" in result.stderr
    result = run("spool repair f --line 3 --accept", reply(VERB))
    assert result.sent[0].body == {"file": "f", "line": 3, "accept": True}


@pytest.mark.parametrize(
    "words",
    [
        ["--accept"],
        ["--line", "1"],
        ["--line", "0", "--accept"],
        ["--line", "1", "--accept", "--event", "{}"],
        ["--line", "1", "--event", "{queue}"],
        ["--line", "1", "--event", "[]"],
        ["--line", "1", "--event", '{"colour":"red"}'],
        ["--line", "1", "--event", '{"queue":7}'],
    ],
)
def test_a_repair_that_makes_no_sense_is_wrong_usage(run, words):
    """Nothing is sent."""
    result = run(["spool", "repair", "f", *words])
    assert (result.exit_code, result.sent) == (2, [])


def test_a_retry_is_of_all_of_a_file_or_of_a_line(run):
    """A line alone is nowhere."""
    assert run("spool retry --line 1").exit_code == 2
    verb = reply({"verb": "retry", "affected": 2, "remaining": 1})
    for words, body in (("", {}), ("f", {"file": "f"}), ("f --line 2", {"file": "f", "line": 2})):
        result = run(f"spool retry {words}", verb)
        assert result.sent[0].body == body
    assert "2 failed events went into the log, 1 failed event left" in result.stderr
    assert "the minute before" not in result.stderr


def test_a_retry_tells_what_had_gone_in_before(run):
    """The broker tries them by itself: whoever comes late is not to think that nothing did."""
    answer = reply({"verb": "retry", "affected": 0, "remaining": 26, "earlier": 2})
    result = run("spool retry f", answer)
    assert result.exit_code == 0
    assert "2 had gone in within the minute before" in result.stderr


def test_a_hold_says_how_it_ends(run, spool_status):
    """And a release what is left to do."""
    result = run("spool hold --reason disk", reply(spool_status()))
    assert result.sent[0].body == {"reason": "disk"}
    assert "spillway spool release" in result.stderr
    result = run("spool release", reply(spool_status()), reply(spool_status(hold=None)))
    assert "released: 1200 events to replay" in result.stderr
    assert "spillway spool status --watch" in result.stderr


def test_a_release_without_a_hold_says_so(run, spool_status):
    """Nothing was released: somebody else may have done it."""
    result = run("spool release", *[reply(spool_status(hold=None))] * 2)
    assert result.exit_code == 0
    assert "nobody held the spool" in result.stderr
    assert "released" not in result.stderr


@pytest.mark.parametrize(
    ("event", "code", "hint"),
    [
        ({"transaction_id": 7}, "bad_request", "at least one character, in quotes"),
        ({"priority": 9}, "bad_request", "from 1 to 4"),
        ({"headers": {"a": 1}}, "bad_request", "an object of texts"),
        ({"colour": "red"}, "unknown_option", "transaction_id"),
    ],
)
def test_a_field_that_cannot_be_is_told_with_what_is_allowed(run, event, code, hint):
    """An unknown one with those there are."""
    result = run(["spool", "repair", "f", "--line", "1", "--event", json.dumps(event)])
    assert result.exit_code == 2
    assert f"error[{code}]" in result.stderr
    assert hint in result.stderr


def test_a_hold_is_the_first_thing_to_end_when_the_spool_is_full(run, spool_status):
    """More room helps too, but later."""
    told = run("spool status", reply(spool_status())).stderr
    first = next(line for line in told.splitlines() if "→" in line)
    assert first.endswith("→ spillway spool release")
    assert "spillway spool release, or raise FILE_BUFFER_BYTES_MAX" in told
    freed = run("spool status", reply(spool_status(hold=None))).stderr
    assert "spillway spool release" not in freed
    assert "raise FILE_BUFFER_BYTES_MAX" in freed


def test_a_start_without_a_database_is_one_sentence(capsys):
    """Why, and what becomes of pushes."""
    ownership = SimpleNamespace(database_answers=False, trouble=None, stands_by=False)
    _tell_start(Settings(), SimpleNamespace(ownership=ownership), "here")
    told = capsys.readouterr().err
    assert "PostgreSQL does not answer; pushes go to files until it does" in told


# ---------------------------------------------------------------- a folder, no broker


@pytest.fixture
def alone(monkeypatch):
    """Nobody is asked."""

    def client(*_):
        raise AssertionError("a broker was asked")

    monkeypatch.setattr(cli_session.Session, "client", client)


@pytest.fixture
def folder(tmp_path, make_event):
    """A spool folder with a complete file, an open one with a torn tail, and a failed event."""
    given = Names()
    done, opened = given.next(FAILOVER).removesuffix(".tmp"), given.next(FAILOVER)
    (tmp_path / done).write_bytes(b"".join(event.lines([make_event(1), make_event(2)])))
    (tmp_path / opened).write_bytes(event.lines([make_event(3)])[0] + b'{"torn')
    (tmp_path / disk.FAILED).mkdir()
    trouble = event.Trouble("queue_not_found", "no queue", "make it")
    failed = event.failed(make_event(4), trouble, make_event(4).accepted_at)
    Quarantine(tmp_path / disk.FAILED).add(done, [failed])
    return tmp_path


def test_a_folder_is_read_without_a_broker(run, alone, folder):
    """Files, events and their soundness; a torn tail is not there yet."""
    words = ["--folder", str(folder), "--json"]
    files = [json.loads(line) for line in run(["spool", "list", *words]).stdout.splitlines()]
    assert [(one["state"], one["events"]) for one in files] == [
        ("waiting", 2), ("open", 1), ("failed", 1),
    ]  # fmt: skip
    name = files[0]["file"]
    shown = run(["spool", "show", name, *words]).stdout.splitlines()
    assert [json.loads(line)["payload"] for line in shown] == [1, 2]
    failed = run(["spool", "show", name, "--failed", *words]).stdout
    assert json.loads(failed)["error"]["code"] == "queue_not_found"
    checked = run(["spool", "verify", *words])
    assert checked.exit_code == 0
    assert [one["events"] for one in json.loads(checked.stdout)["files"]] == [2, 1, 1]


def test_words_about_a_folder_name_it(run, alone, folder):
    """What is to be typed next works without a broker too."""
    listed = run(["spool", "list", "--folder", str(folder)])
    assert f"--folder {folder}" in listed.stderr
    name = next(folder.glob("*.buf")).name
    shown = run(["spool", "show", name, "--failed", "--folder", str(folder)])
    assert f"--line 1 --folder {folder}" in shown.stderr
    missing = run(["spool", "show", "nope", "--folder", str(folder)])
    assert missing.exit_code == 4
    assert "it does not wait" not in missing.stderr


def test_a_status_without_a_broker_tells_of_the_files(run):
    """They can be read all the same."""
    result = run("spool status", BrokerUnreachableError("no connection"))
    assert result.exit_code == 3
    assert "spillway spool list --folder DIR" in result.stderr


def test_damage_in_a_folder_is_exit_code_1(run, alone, folder):
    """The file, the line, and what to do."""
    path = next(folder.glob("*.buf"))
    path.write_bytes(path.read_bytes().replace(b'"payload":2', b'"payload":3'))
    result = run(["spool", "verify", "--folder", str(folder)])
    assert result.exit_code == 1
    assert f"{path.name}: line 2: the checksum of the line does not hold" in result.stdout
    assert "spillway spool list --failed" in result.stderr
    assert run(["spool", "verify", path.name, "--folder", str(folder)]).exit_code == 1


def test_a_folder_that_is_no_spool_is_wrong_usage(run, alone, tmp_path):
    """Nothing in it would be taken for all sound; the lock or a file of ours makes it a spool."""
    (tmp_path / "notes.txt").touch()
    for words in (["verify"], ["list"], ["show", "f"]):
        result = run(["spool", *words, "--folder", str(tmp_path)])
        assert (result.exit_code, result.stdout) == (2, "")
    (tmp_path / disk.LOCK).touch()
    result = run(["spool", "verify", "--folder", str(tmp_path)])
    assert (result.exit_code, "all sound" in result.stderr) == (0, True)


def test_a_torn_tail_is_told_and_is_no_damage(run, alone, folder):
    """With the bytes that the next start will cut off."""
    result = run(["spool", "verify", "--folder", str(folder)])
    assert result.exit_code == 0
    assert "cuts 6 bytes off" in result.stdout


def test_a_folder_that_is_not_there_is_wrong_usage(run, alone, tmp_path):
    """And a file that is not there is not found."""
    assert run(["spool", "list", "--folder", str(tmp_path / "none")]).exit_code == 2
    (tmp_path / disk.LOCK).touch()
    for words in (["show", "f"], ["verify", "../f"]):
        assert run(["spool", *words, "--folder", str(tmp_path)]).exit_code == 4
