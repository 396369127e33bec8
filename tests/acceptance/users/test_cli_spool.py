"""spool: what an operator does about pushes that wait in files, or could not be replayed."""

import json

import pytest

from spillway import Client

NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"


@pytest.fixture(scope="module")
def own(stand):
    """A broker that may be held; nothing is tried again or made by itself."""
    return stand(file_buffer_retry_interval=3600, auto_create_queues=False)


@pytest.fixture
def cli(own, terminal_of):
    """The command line before it; afterwards nothing is held, and nothing is left."""
    terminal = terminal_of(own.url)
    yield terminal
    terminal.end()
    terminal("spool release")
    terminal("spool status --watch -i 0.1")


@pytest.fixture
def orders(cli, _queue_numbers) -> str:
    """A queue of the test's own."""
    name = f"spooled-{next(_queue_numbers)}"
    cli("queue create", name)
    return name


def held(cli, queue, *payloads) -> str:
    """Push into files; the name of the file."""
    cli("spool hold --reason maintenance")
    results = cli("push --json", queue, *payloads).lines
    assert {one["status"] for one in results} == {"buffered"}
    return next(one["file"] for one in cli("spool list --json").lines if one["state"] != "failed")


@pytest.fixture
def payloads(own):
    """What is stored in a queue, in its order."""

    def payloads(queue: str) -> list:
        with Client(own.url, retries=0) as client:
            return [json.loads(bytes(one.payload)) for one in client.browse(queue).messages]

    return payloads


def test_a_maintenance_from_the_hold_to_the_empty_spool(cli, orders, payloads):
    """Who holds it is told, with the way out; then a watch that ends by itself."""
    cli("push", orders, "1")
    file = held(cli, orders, "2", "3")
    status = cli("spool status --actor ann")
    assert "2 events in 1 file" in status.out
    assert "maintenance" in status.err
    assert "spillway spool release" in status.err
    now = cli("spool status --json").json
    assert (now["pending"], now["queues"][0]["queue"]) == (2, orders)
    assert "spillway spool status" in cli("doctor").out
    assert "held" in cli("top --once -i 0.1").err
    assert [one["payload"] for one in cli("spool show --json", file).lines] == [2, 3]
    assert cli("spool verify --json").json["sound"] is True
    watch = cli.spawn("spool status --watch -i 0.1")
    assert watch.stderr.readline() == "2 waiting, held\n"
    cli("spool release")
    _, told = watch.communicate(timeout=60)
    assert (watch.returncode, told.splitlines()[-1]) == (0, "the spool is empty")
    assert payloads(orders) == [1, 2, 3]


def test_a_failed_event_is_found_mended_and_retried(cli, orders, payloads):
    """Each command names the next one."""
    doomed = f"doomed-{orders}"
    cli("queue create", doomed)
    held(cli, doomed, "1", "2")
    cli("queue delete --yes", doomed)
    cli("spool release")
    cli("spool status --watch -i 0.1")
    assert "spillway spool list --failed" in cli("spool status").err
    listed = cli("spool list --failed")
    [file] = cli("spool list --failed --json").lines
    assert f"spillway spool show {file['file']}" in listed.err
    shown = cli("spool show", file["file"])
    assert "queue_not_found" in shown.out
    assert f"spillway spool repair {file['file']} --line 1" in shown.err
    event = json.dumps({"queue": orders, "payload": {"n": 1}})
    mended = cli(f"spool repair {file['file']} --line 1 --event", event)
    assert f"spillway spool retry {file['file']} --line 1" in mended.err
    assert cli(f"spool retry --json {file['file']} --line 1").json["affected"] == 1
    assert payloads(orders) == [{"n": 1}]
    assert cli(f"spool discard {file['file']} --all --dry-run --json").json["affected"] == 1
    cli(f"spool discard {file['file']} --all --reason done")
    assert cli("spool list --failed --json").lines == []


def test_a_line_that_waits_is_discarded(cli, orders, payloads):
    """By name alone; the others come."""
    file = held(cli, orders, "1", "2", "3")
    assert "--line N" in cli("spool discard", file, exits=2).err
    cli("spool discard --waiting --line 2", file)
    cli("spool discard --waiting --line 2", file.removesuffix(".tmp"), exits=4)
    cli("spool release")
    cli("spool status --watch -i 0.1")
    assert payloads(orders) == [1, 3]


def test_without_a_database_and_without_a_broker(stand, terminal_of):
    """Pushes are taken, the spool is looked after, and its folder is read when nobody runs."""
    alone = stand("--database-url", NOWHERE)
    cli = terminal_of(alone.url)
    assert [one["status"] for one in cli("push --json orders 1 2").lines] == ["buffered"] * 2
    status = cli("spool status")
    assert "disconnected" in status.out
    assert "PostgreSQL is away" in status.err
    assert "pushes go to files" in cli("doctor", exits=3).out
    assert "2 waiting" in cli("top --once", exits=3).err
    assert cli("spool retry", exits=3).err
    folder = cli("spool status --json").json["folder"]
    alone.kill()
    where = f"--folder {alone.folder / folder} --json"
    [file] = cli(f"spool list {where}").lines
    assert (file["state"], file["events"]) == ("open", 2)
    assert cli(f"spool verify {where}").json["sound"] is True
    assert [one["payload"] for one in cli(f"spool show {where}", file["file"]).lines] == [1, 2]
    path = alone.folder / folder / file["file"]
    path.write_bytes(path.read_bytes().replace(b'"payload":2', b'"payload":3'))
    assert "line 2" in cli(f"spool verify --folder {alone.folder / folder}", exits=1).out
