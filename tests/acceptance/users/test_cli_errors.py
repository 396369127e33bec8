"""The first minute: what a stranger gets wrong, and what the command line makes of it."""

import re
import subprocess

import pytest
from psycopg.conninfo import make_conninfo

NOWHERE = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("pusj orders 1", "Did you mean 'push'"),
        ("queue lst", "Did you mean 'list'"),
        ("push", "Missing argument"),
        ("push orders --fooo", "--fooo"),
        ("push orders 1 --file nosuch", "'nosuch' does not exist"),
        ("push orders 1 --delay soon", "'soon' is no span of time: write 500ms"),
        ("push orders 1 --priority 9", "less than or equal to 4"),
        ("push orders 1 -H novalue", "NAME=VALUE"),
        ("push orders 1 2 --transaction-id t", "give one payload"),
        ("push orders {a:1} --as json", "not JSON: '{a:1}'"),
        ("--url ftp://x queue list", "'ftp://x' is not http://HOST:PORT"),
        ("--url http://x:99999 queue list", "port"),
        ("--org 'a b' queue list", "'a b' is no name"),
        ("queue create x --partitions 0", "greater than or equal to 1"),
    ],
)
def test_wrong_usage_is_exit_code_2(cli, line, told):
    """What is wrong is quoted, and what would be right stands beside it."""
    assert told in cli(line, exits=2).err


COMMANDS = [
    "push orders 1", "lease orders", "settle ack 1~1~1~default~1", "tail orders", "queue list",
    "queue show orders", "queue create orders", "dead list orders", "dead redrive orders --all",
    "blocked list orders", "seek orders earliest", "audit", "top --once", "doctor",
]  # fmt: skip


@pytest.mark.parametrize("line", COMMANDS)
def test_no_broker_is_exit_code_3(terminal_of, line):
    """Every command says where it looked and asks the right question; none hangs."""
    said = terminal_of(NOWHERE)(line, exits=3)
    assert NOWHERE in said.err + said.out
    assert "is `spillway serve` running" in said.err + said.out


UNKNOWN = [
    "lease nosuch", "tail nosuch", "queue show nosuch", "queue update nosuch --retention 1h",
    "queue groups nosuch", "queue delete nosuch --yes", "dead list nosuch",
    "queue purge nosuch --all", "dead redrive nosuch --all", "blocked list nosuch",
    "seek nosuch latest", "queue pause nosuch",
]  # fmt: skip


@pytest.mark.parametrize("line", UNKNOWN)
def test_an_unknown_queue_is_exit_code_4(cli, line):
    """It is named, and so are the commands that list and make queues."""
    said = cli(line, exits=4).err
    assert "error[queue_not_found]: queue 'nosuch'" in said
    assert "spillway queue list" in said
    assert "spillway queue create" in said


def test_an_unknown_group_is_exit_code_4(cli, queue):
    """It is named, and so is the command that makes one."""
    said = cli("queue group-delete --yes", queue, "nosuch", exits=4).err
    assert "'nosuch'" in said
    assert "spillway queue group-create" in said


def test_a_name_no_queue_can_have_fails_with_the_pattern(cli):
    """The push failed: exit code 1, the name, and the pattern it should match."""
    said = cli("push", "or ders", "1", "2", exits=1).err
    assert "'or ders'" in said
    assert said.count("[A-Za-z0-9]") == 1  # once is enough


def test_push_to_an_unknown_queue_where_none_is_made(stand, database_url, terminal_of):
    """With auto-create off a typo is told, and nothing is made of it."""
    broker = stand("--database-url", database_url, auto_create_queues=False, num_shards=1)
    cli = terminal_of(broker.url)
    said = cli("push ordres 1", exits=1).err
    assert "'ordres'" in said
    assert "[queue_not_found]" in said
    assert "spillway queue create" in said
    assert cli("queue list --json").lines == []
    broker.stop()


@pytest.mark.parametrize(
    ("line", "code", "told"),
    [
        ("serve --port 99999999", 2, "99999999"),
        ("serve --port abc", 2, "--port"),
        ("serve --database-url bogus", 2, "postgresql://user:password@host"),
        ("serve orders", 2, "orders"),
    ],
)
def test_a_broker_that_cannot_start_says_why(cli, line, code, told):
    """At once, with the value that is wrong."""
    starting = cli.spawn(line)
    _, said = starting.communicate(timeout=30)
    assert starting.returncode == code
    assert told in said
    assert "Traceback" not in said


def test_a_broker_that_finds_no_database_asks_for_it(cli):
    """It serves from files, and says at once what to look at."""
    line = "serve --port 0 --database-url postgresql://x@127.0.0.1:1/x"
    starting = cli.spawn(line)
    said = ""
    while "hint:" not in said and (heard := starting.stderr.readline()):
        said += heard
    starting.terminate()
    starting.communicate(timeout=30)
    assert starting.returncode == 0
    assert "listening on" in said
    assert "PostgreSQL at 127.0.0.1:1, database x does not answer" in said
    assert "pushes go to files" in said
    assert "is PostgreSQL running" in said


def test_a_taken_port_is_told(cli, broker):
    """Two brokers on one port: the second says which port, and how to choose another."""
    starting = cli.spawn("serve --database-url", broker.database_url, "--port", broker.port)
    _, said = starting.communicate(timeout=30)
    assert starting.returncode != 0
    assert broker.port in said
    assert "choose another --port" in said
    assert "Traceback" not in said


def test_a_taken_port_is_told_before_anything_is_made(cli, broker, tmp_path):
    """No PostgreSQL is started for a broker that cannot listen."""
    starting = cli.spawn("serve --port", broker.port, "--data", str(tmp_path / "fresh"))
    starting.communicate(timeout=30)
    assert starting.returncode == 2
    assert not (tmp_path / "fresh").exists()


def test_a_url_that_is_none_is_told_before_anything_waits(cli):
    """Not as a database that is away."""
    starting = cli.spawn("serve --port 0 --database-url nonsense")
    _, said = starting.communicate(timeout=30)
    assert starting.returncode == 2
    assert "file buffer" not in said


def test_a_data_folder_that_is_a_file_is_told(cli, tmp_path):
    """In plain words, with what to do, though there is no log of PostgreSQL yet."""
    (tmp_path / "file").touch()
    starting = cli.spawn("serve --port 0 --data", str(tmp_path / "file"))
    _, said = starting.communicate(timeout=30)
    assert f"{tmp_path / 'file'} is a file, not a folder" in said
    assert "choose a data folder" in said


def test_a_database_that_does_not_exist_is_told(cli, database_url):
    """PostgreSQL's own reason, not the question whether it runs."""
    url = make_conninfo(database_url, dbname="nodb")
    starting = cli.spawn("serve --port 0 --database-url", url)
    said = ""
    while "hint:" not in said and (heard := starting.stderr.readline()):
        said += heard
    starting.terminate()
    starting.communicate(timeout=30)
    assert "warning: " in said
    assert 'database "nodb" does not exist; pushes go to files' in said
    assert "has no such database or role" in said


def test_a_second_broker_says_that_it_stands_by(cli, broker, terminal_of):
    """At its start, and to whoever asks the doctor: that is how it is meant."""
    starting = cli.spawn("serve --port 0 --database-url", broker.database_url)
    said = ""
    while "standby:" not in said and (heard := starting.stderr.readline()):
        said += heard
    url = re.search(r"listening on (\S+)", said)[1]
    told = terminal_of(url)("doctor")
    starting.terminate()
    starting.communicate(timeout=30)
    assert f"standby: another broker ({broker.url}) holds them" in told.out
    assert "FAIL" not in told.out


def test_a_name_of_a_partition_says_what_is_wrong(cli, queue):
    """Its length, or what it has; and the rule of partitions, not of queues."""
    said = cli("push --partition", "x" * 300, queue, "1", exits=1).err
    assert "has 300 bytes" in said
    assert "1 to 256 bytes" in said


def test_plain_curl_is_told_about_its_content_type(broker):
    """`curl -d` claims to send a form: the answer says what to write."""
    body = '{"items": [{"queue": "orders", "payload": 1}]}'
    command = ["curl", "-s", "-d", body, f"{broker.url}/v1/messages"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "application/x-www-form-urlencoded" in said
    assert "--json" in said
    assert "content-type: application/json" in said
