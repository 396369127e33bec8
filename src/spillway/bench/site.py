"""The broker under measurement: started here in a scratch folder, or running already."""

import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from os import environ, kill
from pathlib import Path

from spillway.bench import footprint
from spillway.bench.control import Address, is_ready
from spillway.bench.errors import BenchError
from spillway.log.embedded import EmbeddedPostgres

_START_S = 60.0
_STOP_S = 30.0
_POLL_S = 0.02
_LOG_TAIL_BYTES = 2_000


@dataclass(frozen=True, slots=True)
class Usage:
    """Processor seconds and memory of the broker and its PostgreSQL, as far as they can be seen."""

    broker_cpu_s: float = 0.0
    postgres_cpu_s: float = 0.0
    broker_rss_mb: float | None = None


class Site:
    """A broker that is running already: its processes are none of our business."""

    def __init__(self, address: Address, database_url: str | None) -> None:
        self.address = address
        self.database_url = database_url
        self.filesystem: str | None = None

    def usage(self) -> Usage:
        return Usage()


class OwnSite(Site):
    """A broker with an embedded PostgreSQL, which this process starts, kills and removes.

    With `postgres` the server is not the broker's own: it is given its address alone.
    """

    def __init__(
        self,
        scratch: Path,
        settings: Mapping[str, str],
        postgres: EmbeddedPostgres | None = None,
    ) -> None:
        super().__init__(Address("127.0.0.1", _free_port()), None)
        self.filesystem = _filesystem(scratch)
        self.postgres = postgres
        if postgres is not None:
            self.database_url = postgres.start()
            settings = {**settings, "SPILLWAY_DATABASE_URL": self.database_url}
        self._data = scratch / "data"
        self._log = scratch / "broker.log"
        self._environment = {**environ, **settings}
        self._process: subprocess.Popen[bytes] | None = None

    def spawn(self) -> float:
        """Start the broker process; the answer is when that was."""
        program = Path(sys.executable).with_name("spillway")
        command = [str(program), "serve", "--data", str(self._data)]
        command += ["--port", str(self.address.port)]
        started_at = time.perf_counter()
        with self._log.open("ab") as log:
            # A session of its own: Ctrl-C is ours to handle, the broker is stopped in order.
            self._process = subprocess.Popen(
                command, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )
        return started_at

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_S
        while not is_ready(self.address):
            self._check_alive()
            if time.monotonic() > deadline:
                raise BenchError(f"the broker is not ready after {_START_S:.0f} s")
            time.sleep(_POLL_S)
        if self.postgres is None:
            self.database_url = (self._data / "database-url").read_text().strip()

    def kill(self) -> None:
        """As a crash would: the broker has no time for anything."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self.kill()
        self._stop_postgres()

    def usage(self) -> Usage:
        assert self._process is not None
        postmaster = self._postmaster()
        broker = list(footprint.tree(self._process.pid, without=postmaster))
        postgres = footprint.tree(postmaster) if postmaster else iter(())
        return Usage(
            broker_cpu_s=sum(process.cpu_s for process in broker),
            postgres_cpu_s=sum(process.cpu_s for process in postgres),
            broker_rss_mb=round(sum(process.rss_mb for process in broker), 1),
        )

    def _check_alive(self) -> None:
        assert self._process is not None
        if self._process.poll() is not None:
            code = self._process.returncode
            raise BenchError(f"the broker ended with code {code}")

    def last_words(self) -> str:
        """The end of the broker's log."""
        with suppress(OSError):
            return self._log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
        return ""

    def _postmaster(self) -> int | None:
        if self.postgres is not None:
            return self.postgres.pid
        for cluster in (self._data / "postgres", self._data):
            with suppress(OSError, ValueError, IndexError):
                return int((cluster / "postmaster.pid").read_text().split()[0])
        return None

    def _stop_postgres(self) -> None:
        """It outlives a broker that was killed."""
        if self.postgres is not None:
            self.postgres.stop()
            return
        postmaster = self._postmaster()
        if postmaster is None:
            return
        for how in (signal.SIGINT, signal.SIGQUIT):
            with suppress(ProcessLookupError):
                kill(postmaster, how)
            deadline = time.monotonic() + _STOP_S
            while footprint.read(postmaster) is not None and time.monotonic() < deadline:
                time.sleep(_POLL_S)


@contextmanager
def own_site(
    parent: Path | None, settings: Mapping[str, str], *, own_postgres: bool = False
) -> Iterator[OwnSite]:
    """A broker in a scratch folder; both are gone at the end, whatever happens.

    With `own_postgres` the server is ours to stop and start, not the broker's.
    """
    scratch = Path(tempfile.mkdtemp(prefix="spillway-bench-", dir=parent))
    # PostgreSQL may run under another account, which has to pass through.
    scratch.chmod(0o755)
    postgres = EmbeddedPostgres(scratch / "database") if own_postgres else None
    site = OwnSite(scratch, settings, postgres)
    try:
        site.spawn()
        site.wait_until_ready()
        yield site
    except BenchError as error:
        error.message += f"\n{site.last_words()}"
        raise
    finally:
        site.stop()
        shutil.rmtree(scratch, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _filesystem(folder: Path) -> str | None:
    """A reader must know: on tmpfs fsync costs nothing."""
    best: tuple[str, str | None] = ("", None)
    with suppress(OSError):
        for line in Path("/proc/mounts").read_text().splitlines():
            _, point, kind, *_ = line.split()
            if folder.resolve().is_relative_to(point) and len(point) > len(best[0]):
                best = (point, kind)
    return best[1]
