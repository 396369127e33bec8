"""The embedded PostgreSQL comes up whatever happened to it, and to its owner, before."""

import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import psycopg
import pytest

from spillway.core.errors import EmbeddedPostgresError
from spillway.log import embedded, ending, host
from spillway.log.embedded import EmbeddedPostgres

OWNER = """
import signal, sys
from pathlib import Path
import psycopg
from spillway.log.embedded import EmbeddedPostgres
server = EmbeddedPostgres(Path(sys.argv[1]))
with psycopg.connect(server.start()) as connection:
    connection.execute("CREATE TABLE kept AS SELECT 42 AS value")
print(server.pid, flush=True)
signal.pause()
"""


@pytest.fixture
def server(tmp_path):
    """A server of the test's own, ended whatever the test did to it."""
    instance = EmbeddedPostgres(tmp_path / "data")
    yield instance
    instance.stop("immediate")


def query(url, sql):
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(sql)
        return cursor.fetchone()[0] if cursor.description else None


def keep_a_row(url):
    query(url, "CREATE TABLE kept AS SELECT 42 AS value")


def kept(url):
    return query(url, "SELECT value FROM kept")


def test_first_start_is_durable_private_and_not_root(server):
    """A first start gives a durable UTF-8 server that only its owner can reach."""
    url = server.start()
    for name, value in [("fsync", "on"), ("synchronous_commit", "on"), ("listen_addresses", "")]:
        assert query(url, f"SELECT current_setting('{name}')") == value
    assert query(url, "SELECT current_setting('server_encoding')") == "UTF8"
    assert query(url, "SELECT datcollate FROM pg_database WHERE datname = 'spillway'") == "C"
    socket_dir = host.Postmaster.read(server.cluster).socket.parent
    assert stat.S_IMODE(socket_dir.stat().st_mode) == 0o700
    owner = server.cluster.stat().st_uid
    assert owner != 0
    assert os.geteuid() in {0, owner}


def test_restart_keeps_the_rows(server):
    """What was committed is there after a stop and a start, by the same object and by another."""
    keep_a_row(server.start())
    server.stop()
    assert not server.is_running()
    assert kept(server.start()) == 42
    server.stop()
    with EmbeddedPostgres(server.data_dir) as other:
        assert kept(other.url) == 42
    assert not other.is_running()


def test_start_is_idempotent(server):
    """Starting a running server changes nothing."""
    first = server.start()
    pid = server.pid
    assert server.start() == first
    assert server.pid == pid


def test_attaches_to_the_server_of_a_killed_owner(server):
    """A killed -9 owner leaves its server running, and the next owner takes it over."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(server.data_dir)], stdout=subprocess.PIPE, text=True
    )
    with owner:
        pid = int(owner.stdout.readline())
        with pytest.raises(EmbeddedPostgresError, match=f"process {owner.pid} already runs"):
            server.start()
        owner.kill()
    assert kept(server.start()) == 42
    assert server.pid == pid
    server.stop()
    assert host.command_line(pid) == ""


def test_starts_after_the_postmaster_was_killed(server, eventually):
    """A killed -9 postmaster is replaced at once, with everything that was committed."""
    keep_a_row(server.start())
    killed = server.pid
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: not server.is_running())
    assert kept(server.start()) == 42
    assert server.pid != killed


def test_ends_the_busy_orphan_of_a_killed_postmaster(server, eventually, monkeypatch):
    """A backend too busy to notice that its postmaster is gone cannot keep the next one out."""
    monkeypatch.setattr(ending, "ORPHAN_GRACE_S", 0.2)
    url = server.start()
    keep_a_row(url)
    lost = []

    def be_busy():
        try:
            query(url, "SELECT count(*) FROM generate_series(1, 1e12)")
        except psycopg.OperationalError as error:
            lost.append(error)

    busy = threading.Thread(target=be_busy)
    busy.start()
    active = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%1e12)' AND state = 'active'"
    eventually(lambda: query(url, active) == 1)
    os.kill(server.pid, signal.SIGKILL)
    eventually(lambda: not server.is_running())
    assert kept(server.start()) == 42
    busy.join(timeout=10)
    assert lost


def test_survives_a_killed_backend(server, eventually):
    """A killed -9 backend makes PostgreSQL recover, and start() waits for that."""
    url = server.start()
    keep_a_row(url)
    pid = server.pid
    with psycopg.connect(url) as connection:
        os.kill(connection.info.backend_pid, signal.SIGKILL)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    assert kept(server.start()) == 42
    assert server.pid == pid


def test_a_second_owner_is_refused(server):
    """Two owners of one folder are impossible; the second learns who the first is."""
    server.start()
    second = EmbeddedPostgres(server.data_dir)
    with pytest.raises(EmbeddedPostgresError) as refusal:
        second.start()
    assert refusal.value.code == "embedded_postgres"
    assert f"process {os.getpid()} " in refusal.value.message
    assert "another data folder" in refusal.value.hint
    second.stop()
    assert server.is_running()


def test_a_long_path_gets_a_short_socket(tmp_path):
    """A data folder too deep for a socket's path works all the same, quotes and spaces included."""
    deep = tmp_path / ("d" * 80) / 'it\'s, "quoted" 100%'
    with EmbeddedPostgres(deep) as server:
        assert query(server.url, "SELECT 1") == 1
        socket_dir = host.Postmaster.read(server.cluster).socket.parent
        assert not socket_dir.is_relative_to(deep)
    assert not socket_dir.exists()


def test_a_quoted_path_works(tmp_path):
    """Spaces, quotes and percent signs in the path of the socket mean nothing special."""
    with EmbeddedPostgres(tmp_path / "a 'b' \"c\" 5%") as server:
        assert query(server.url, "SELECT 1") == 1
        assert server._socket_dir().is_relative_to(server.data_dir)


@pytest.mark.parametrize(
    "content",
    ["", "garbage\n", f"{os.getpid()}\n/elsewhere\n1\n5432\n\n\n\nready\n"],
    ids=["empty", "garbage", "stranger"],
)
def test_a_misleading_pid_file_is_overcome(server, content):
    """A torn pid file, or one whose number now belongs to a stranger, does not stop a start."""
    keep_a_row(server.start())
    server.stop()
    (server.cluster / "postmaster.pid").write_text(content)
    assert kept(server.start()) == 42


def test_a_removed_socket_is_replaced(server):
    """When a cleaner of temp folders takes the socket, the next owner's start brings it back."""
    url = server.start()
    keep_a_row(url)
    host.Postmaster.read(server.cluster).socket.unlink()
    assert kept(server.start()) == 42


def test_a_half_made_cluster_is_never_used(server):
    """What a killed initdb left is removed, and a whole cluster is made."""
    half = server.data_dir / "postgres.new-killed"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    assert query(server.start(), "SELECT 1") == 1
    assert not half.exists()


def test_a_failed_start_tells_why_and_frees_the_folder(server):
    """The error carries PostgreSQL's own words, and the folder can be used again."""
    wrong = EmbeddedPostgres(server.data_dir, settings={"max_connections": "many"})
    with pytest.raises(
        EmbeddedPostgresError, match='invalid value for parameter "max_connections"'
    ):
        wrong.start()
    assert query(server.start(), "SELECT 1") == 1


def test_a_failed_initdb_tells_why(server, monkeypatch):
    """The error of a first start carries the last words of initdb, and nothing half-made stays."""
    monkeypatch.setattr(embedded, "ROLE", "pg_not_allowed")
    with pytest.raises(EmbeddedPostgresError, match=r"initdb failed:(.|\n)*superuser name"):
        server.start()
    assert {path.name for path in server.data_dir.iterdir()} <= {"spillway.lock", "socket"}


def test_the_log_is_bounded(server, monkeypatch):
    """A log that has grown too long is put aside at the next start."""
    server.start()
    server.stop()
    monkeypatch.setattr(embedded, "LOG_BYTES_MAX", 100)
    before = server.log_path.read_text()
    server.start()
    assert server.log_path.with_suffix(".log.1").read_text() == before
    assert before not in server.log_path.read_text()


def test_each_test_has_a_database_of_its_own(database_url):
    """The fixture of conftest gives an empty database on the shared server."""
    assert query(database_url, "SELECT current_database()").startswith("test_")
    assert query(database_url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == 0


def freeze(postmaster):
    """Stop a postmaster and all its children by SIGSTOP."""
    os.kill(postmaster, signal.SIGSTOP)
    for pid, line in host.processes():
        if line.startswith("postgres: ") and parent_of(pid) == postmaster:
            os.kill(pid, signal.SIGSTOP)


def parent_of(pid):
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(words[1])


def test_stopping_a_frozen_server_has_a_limit_and_loses_nothing(server):
    """One that heeds no signal is killed with all its children; the next start has every row."""
    keep_a_row(server.start())
    frozen = server.pid
    freeze(frozen)
    server.stop()
    assert not server.is_running()
    assert not [
        line for _, line in host.processes() if line.startswith(f"postgres: {name(server)}")
    ]
    assert kept(server.start()) == 42


def name(server):
    """What is in the titles of its processes."""
    return f"spillway-{embedded._digest(server.cluster)}"


def test_a_start_that_waits_for_a_frozen_server_can_be_hurried_off(server):
    """Whoever attaches to a frozen server is let go at once: it is killed under its hands."""
    keep_a_row(server.start())
    server._lock.release()  # as if its owner had been killed
    freeze(server.pid)
    other = EmbeddedPostgres(server.data_dir)
    starting = threading.Thread(target=pytest.raises, args=(EmbeddedPostgresError, other.start))
    starting.start()
    other.hurry()
    other.stop()
    starting.join(5)
    assert not starting.is_alive()
    assert kept(server.start()) == 42
