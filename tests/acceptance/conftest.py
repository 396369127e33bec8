"""A `spillway serve` of one's own: started, stopped and killed as an operator (or fate) would."""

import asyncio
import contextlib
import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from spillway.log.embedded import EmbeddedPostgres

SPILLWAY = Path(sys.executable).with_name("spillway")
START_S = 60.0
POLL_S = 0.01
LISTENING = re.compile(rb"listening on (http://\S+)")


def free_port() -> int:
    """A port nobody listens on, to be the same over restarts."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Served:
    """One broker process on a data folder or a database URL. Its talk is in `log`."""

    def __init__(
        self, folder: Path, *arguments: str, port: int | None = None, **settings: object
    ) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / f"serve-{self.port}.log"
        self.starts = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._frozen: list[int] = []
        self._serve = ["serve", "--port", str(self.port), "--data", str(self.data), *arguments]
        given = {f"SPILLWAY_{name.upper()}": str(value) for name, value in settings.items()}
        kept = {k: v for k, v in os.environ.items() if not k.startswith("SPILLWAY_")}
        self._environment = {**kept, **given}

    def launch(self, at: str | None = None, nth: int = 1) -> None:
        """Start the process without waiting for anything; `at` is a place where it is to die."""
        command = [str(SPILLWAY)]
        if at is not None:
            command = [sys.executable, "-m", "spillway.testing.faults", "--at", at]
            command += ["--nth", str(nth), "--"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *self._serve],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.starts += 1

    def start(self, at: str | None = None, nth: int = 1) -> None:
        """Start, and wait until it says that it listens."""
        seen = self.log.stat().st_size if self.log.exists() else 0
        self.launch(at, nth)
        deadline = time.monotonic() + START_S
        while not LISTENING.search(self.log.read_bytes()[seen:]):
            assert self.process.poll() is None, self.talk()
            assert time.monotonic() < deadline, self.talk()
            threading.Event().wait(POLL_S)

    def talk(self) -> str:
        """The end of what it said."""
        return self.log.read_text(errors="replace")[-4000:]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the broker itself."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it by SIGKILL; nothing of it is left."""
        self.process.kill()
        self.process.wait(START_S)

    def kill_postmaster(self) -> None:
        """End its PostgreSQL by SIGKILL."""
        os.kill(self.postmaster, signal.SIGKILL)

    def wait(self, within_s: float = START_S) -> int:
        """Its exit code."""
        return self.process.wait(within_s)

    @property
    def spool(self) -> Path:
        """The folder of its spool."""
        return self.data / "spool"

    @property
    def database_url(self) -> str:
        """Where its embedded PostgreSQL listens."""
        return (self.data / "database-url").read_text()

    @property
    def postmaster(self) -> int:
        """The process id of its embedded PostgreSQL."""
        return int((self.data / "postgres/postmaster.pid").read_text().split()[0])

    def backends(self, name: str = "spillway shard%") -> list[int]:
        """The backends behind its writers."""
        with contextlib.suppress(psycopg.Error), psycopg.connect(self.database_url) as conn:
            query = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE %s ORDER BY 1"
            return [row[0] for row in conn.execute(query, (name,))]
        return []

    def freeze_postgres(self) -> None:
        """Stop its PostgreSQL by SIGSTOP, all of it."""
        self._frozen = freeze(self.postmaster)

    def thaw_postgres(self) -> None:
        """Let it go on where it was."""
        thaw(self._frozen)
        self._frozen = []

    def end(self) -> None:
        """End the broker, whatever it is doing."""
        self.thaw_postgres()
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()

    def end_postgres(self) -> None:
        """End what a broker that is gone left behind."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The number may be stale, and a stranger's by now.
            pid = self.postmaster
            if str(self.data) in Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGQUIT)
                wait_gone(pid)


def wait_gone(pid: int) -> None:
    """Wait until a process has ended and nothing of it is left."""
    deadline = time.monotonic() + START_S
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, f"process {pid} does not end"
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        threading.Event().wait(POLL_S)


def adopt_orphans(adopt: bool) -> None:
    """Be the one who buries what a killed broker leaves behind, when we say so and not before.

    Who else would do it, and how soon, differs from machine to machine.
    """
    pr_set_child_subreaper = 36
    ctypes.CDLL(None).prctl(pr_set_child_subreaper, int(adopt), 0, 0, 0)


def bury_orphans() -> None:
    """Reap every dead postgres that came to us."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            head, _, rest = stat.read_text().rpartition(")")
            state, parent = rest.split()[:2]
            if (state, int(parent)) == ("Z", os.getpid()) and head.endswith("(postgres"):
                os.waitpid(int(stat.parent.name), os.WNOHANG)


Serve = Callable[..., Served]


@pytest.fixture
def serve(request: pytest.FixtureRequest) -> Iterator[Serve]:
    """Make brokers: `serve(num_shards=2)` on a folder of its own, not started yet."""
    made: list[Served] = []
    # Short, since a socket's path must be.
    top = Path(tempfile.mkdtemp(prefix="spillway-"))
    adopt_orphans(adopt=True)

    def make(*arguments: str, folder: Path | None = None, **settings: object) -> Served:
        place = folder or top / str(len(made))
        place.mkdir(exist_ok=True)
        made.append(Served(place, *arguments, **settings))
        return made[-1]

    yield make
    for served in made:
        served.end()
    for served in made:
        served.end_postgres()
    adopt_orphans(adopt=False)
    bury_orphans()
    shutil.rmtree(top, ignore_errors=True)


class Patience:
    """Waiting, in an event loop."""

    async def until(self, condition: Callable[[], object], within_s: float = 30.0) -> None:
        """Poll until the condition holds."""
        deadline = time.monotonic() + within_s
        while True:
            outcome = condition()
            if await outcome if asyncio.iscoroutine(outcome) else outcome:
                return
            assert time.monotonic() < deadline, f"not so within {within_s} s: {condition}"
            await asyncio.sleep(POLL_S)

    async def last(self, seconds: float) -> None:
        """How long something is to last that no condition ends: a pause, an outage."""
        await asyncio.sleep(seconds)


@pytest.fixture
def patience() -> Patience:
    """For tests that live in an event loop."""
    return Patience()


@pytest.fixture
def bury() -> Callable[[int], None]:
    """Wait until a killed process is gone for good: `bury(pid)`."""
    return wait_gone


# ---------------------------------------------------------------- a PostgreSQL that may be hurt


class Fragile:
    """A database on a PostgreSQL server that is hurt in many ways, and made well again."""

    OUTAGES = {  # noqa: RUF012 (a table)
        "stopped": ("stop", "start"),
        "killed": ("kill", "start"),
        "frozen": ("freeze", "thaw"),
        "read_only": ("forbid_writes", "allow_writes"),
        "crowded": ("crowd", "disperse"),
    }

    def __init__(self, server: EmbeddedPostgres, name: str) -> None:
        self.server = server
        self.name = name
        self.url = urlunsplit(urlsplit(server.url)._replace(path=f"/{name}"))
        self._frozen: list[int] = []
        self._crowd: list[psycopg.Connection] = []

    def begin(self, outage: str) -> None:
        """Hurt it in this way."""
        getattr(self, self.OUTAGES[outage][0])()

    def end(self, outage: str) -> None:
        """Make it well again."""
        getattr(self, self.OUTAGES[outage][1])()

    def heal(self) -> None:
        """Make it well, whatever was done to it."""
        self.thaw()
        self.disperse()
        self.start()
        self.allow_writes()

    def execute(self, statement: str) -> list[tuple]:
        """A statement of an administrator's."""
        with psycopg.connect(self.url, autocommit=True) as conn:
            conn.execute("SET default_transaction_read_only = off")
            cursor = conn.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def stop(self) -> None:
        """In order; clients are told."""
        self.server.stop()

    def start(self) -> None:
        """Start it, if it does not run."""
        self.server.start()

    def kill(self) -> None:
        """By SIGKILL: the postmaster, and with it everybody."""
        postmaster = self.server.pid
        os.kill(postmaster, signal.SIGKILL)
        wait_gone(postmaster)

    def freeze(self) -> None:
        """By SIGSTOP: connections stay open, and nobody answers. A network can do that too."""
        self._frozen = freeze(self.server.pid)

    def thaw(self) -> None:
        """Let them go on where they were."""
        thaw(self._frozen)
        self._frozen = []

    def forbid_writes(self) -> None:
        """As a standby that was not promoted."""
        self.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        self.execute("SELECT pg_reload_conf()")

    def allow_writes(self) -> None:
        """As the promotion of a standby does."""
        self.execute("ALTER SYSTEM RESET default_transaction_read_only")
        self.execute("SELECT pg_reload_conf()")

    def crowd(self) -> None:
        """Take every connection there is, those of the broker too."""
        theirs = "FROM pg_stat_activity WHERE application_name LIKE 'spillway%'"
        admin = psycopg.connect(self.url, autocommit=True)
        self._crowd = [admin]
        while True:
            with contextlib.suppress(psycopg.OperationalError):
                self._crowd.append(psycopg.connect(self.url))
                continue
            if not admin.execute(f"SELECT 1 {theirs}").fetchall():
                return
            admin.execute(f"SELECT pg_terminate_backend(pid) {theirs}")

    @contextlib.contextmanager
    def small_disk(self) -> Iterator["SmallDisk"]:
        """Keep the messages on a small disk of their own; only root may mount one."""
        mounted = self.server.data_dir / f"small-{self.name}"
        with SmallDisk.mounted(mounted, self.server.cluster) as disk:
            self.execute(f"CREATE TABLESPACE small LOCATION '{mounted}'")
            self.execute("ALTER TABLE spillway.message_batch SET TABLESPACE small")
            yield disk
            self.heal()
            self.execute("ALTER TABLE spillway.message_batch SET TABLESPACE pg_default")
            self.execute("DROP TABLESPACE small")

    def disperse(self) -> None:
        """Give the connections free."""
        while self._crowd:
            self._crowd.pop().close()


class SmallDisk:
    """A tmpfs of some MB."""

    SIZE_MB = 8

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    @classmethod
    @contextlib.contextmanager
    def mounted(cls, path: Path, like: Path | None = None) -> Iterator["SmallDisk"]:
        """Inside the block; owned as `like` is."""
        path.mkdir()
        size = f"size={cls.SIZE_MB}m"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(path)], check=True)
        try:
            if like is not None:
                shutil.chown(path, like.stat().st_uid, like.stat().st_gid)
                path.chmod(0o700)
            yield cls(path)
        finally:
            subprocess.run(["umount", "-l", str(path)], check=True)
            path.rmdir()

    def fill(self) -> None:
        """To the last byte."""
        with contextlib.suppress(OSError), self._filler.open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))

    def make_room(self) -> None:
        """Take away what fills it."""
        self._filler.unlink(missing_ok=True)

    def remount(self, *options: str) -> None:
        """With other options: `ro`, `rw`."""
        words = ["mount", "-o", ",".join(("remount", *options)), str(self.path)]
        subprocess.run(words, check=True)


@pytest.fixture
def small_disk_at() -> Callable[[Path], contextlib.AbstractContextManager[SmallDisk]]:
    """Mounts a few MB of disk; only for tests that are marked `root`."""
    return SmallDisk.mounted


def freeze(postmaster: int) -> list[int]:
    """Stop a postmaster and all its children by SIGSTOP; their process ids."""
    os.kill(postmaster, signal.SIGSTOP)  # first, so that it makes no more of them
    frozen = [postmaster, *children_of(postmaster)]
    for pid in frozen:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    return frozen


def thaw(frozen: list[int]) -> None:
    """Let them go on."""
    for pid in frozen:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def children_of(parent: int) -> list[int]:
    """The processes that a process has started and that still live."""
    children = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                children.append(int(stat.parent.name))
    return children


@pytest.fixture(scope="session")
def _fragile_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    settings = {"max_connections": "40"}  # so that a crowd is soon there
    with EmbeddedPostgres(tmp_path_factory.mktemp("fragile"), settings=settings) as server:
        yield server


@pytest.fixture(scope="session")
def _fragile_numbers() -> Iterator[int]:
    return count()


@pytest.fixture
def fragile(
    _fragile_server: EmbeddedPostgres, _fragile_numbers: Iterator[int]
) -> Iterator[Fragile]:
    """A database of this test's own, empty, whose server may be hurt."""
    name = f"fragile_{next(_fragile_numbers)}"
    with psycopg.connect(_fragile_server.url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} TEMPLATE template0")
    fragile = Fragile(_fragile_server, name)
    yield fragile
    fragile.heal()
    with psycopg.connect(_fragile_server.url, autocommit=True) as admin:
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Only root may mount a disk."""
    if os.geteuid() != 0:
        for item in items:
            if item.get_closest_marker("root"):
                item.add_marker(pytest.mark.skip(reason="only root may mount a disk"))
