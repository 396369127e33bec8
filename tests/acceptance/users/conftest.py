"""Spillway as its users see it: the command line and the clients, before a broker that is real."""

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from spillway import Client
from spillway.cli.root import app

SPILLWAY = Path(sys.executable).with_name("spillway")
START_S = 60.0
LISTENING = re.compile(r"listening on (http://\S+)")


class Standing:
    """A `spillway serve`, from its start to its end; it may be killed and started again."""

    def __init__(self, folder: Path, *arguments: str, **settings: object) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.port = "0"
        self.url = ""
        self._log = folder / "serve.log"
        where = () if "--database-url" in arguments else ("--data", str(self.data))
        self._arguments = [*where, *arguments]
        given = {f"SPILLWAY_{name.upper()}": str(value) for name, value in settings.items()}
        self._environment = {**bare_environment(), **given}
        self.start()

    def start(self) -> None:
        command = [str(SPILLWAY), "serve", "--port", self.port, *self._arguments]
        self._log.write_bytes(b"")
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=self.folder, env=self._environment, stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_S
        while not (found := LISTENING.search(self._log.read_text())):
            assert self.process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            threading.Event().wait(0.01)
        self.url = found[1]
        self.port = self.url.rpartition(":")[2]

    @property
    def database_url(self) -> str:
        """Of its embedded PostgreSQL."""
        return (self.data / "database-url").read_text().strip()

    def kill(self) -> None:
        """With -9."""
        self.process.kill()
        self.process.wait(START_S)

    def stop(self) -> int:
        """In order, its PostgreSQL too; the exit code."""
        self.process.terminate()
        return self.process.wait(START_S)


def bare_environment() -> dict[str, str]:
    """Nothing of ours in it."""
    return {k: v for k, v in os.environ.items() if not k.startswith("SPILLWAY_")}


@pytest.fixture(scope="session")
def stand() -> Iterator[Callable[..., Standing]]:
    """Start brokers: `stand("--database-url", url, require_api_key=True)`."""
    made: list[Standing] = []
    top = Path(tempfile.mkdtemp(prefix="spillway-"))
    top.chmod(0o755)  # as root, PostgreSQL runs under another account, which passes through

    def make(*arguments: str, **settings: object) -> Standing:
        folder = top / str(len(made))
        folder.mkdir()
        made.append(Standing(folder, *arguments, **settings))
        return made[-1]

    yield make
    for one in made:
        with contextlib.suppress(ProcessLookupError):
            one.stop()
    shutil.rmtree(top, ignore_errors=True)


@pytest.fixture(scope="session")
def broker(stand: Callable[..., Standing]) -> Standing:
    """One for all tests that leave it as it was; each has a queue of its own."""
    return stand()


@pytest.fixture(scope="session")
def _queue_numbers() -> Iterator[int]:
    return count(1)


@pytest.fixture
def queue(broker: Standing, _queue_numbers: Iterator[int]) -> Iterator[str]:
    """A queue, fresh and without backoff."""
    name = f"orders-{next(_queue_numbers)}"
    with Client(broker.url, retries=0) as client:
        client.create_queue(name, backoff_base_ms=0, max_attempts=2)
    yield name
    with Client(broker.url, retries=0) as client:
        client.resume(name)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The document it printed."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """The documents it printed, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]


class Terminal:
    """Where commands are typed; SPILLWAY_URL leads to the broker."""

    def __init__(self, url: str, folder: Path) -> None:
        self.environment = {**bare_environment(), "SPILLWAY_URL": url}
        self._folder = folder

    def __call__(
        self, line: str, *more: str, stdin: str | bytes = "", exits: int = 0, **env: str
    ) -> Outcome:
        """Run in this process, which is fast; `line` is split as by a shell, `more` is not."""
        words = [*shlex.split(line), *more]
        environment = {"SPILLWAY_URL": self.environment["SPILLWAY_URL"], "COLUMNS": "300", **env}
        with contextlib.chdir(self._folder):
            result = CliRunner().invoke(app, words, input=stdin, env=environment)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        outcome = Outcome(result.exit_code, result.stdout, result.stderr)
        assert outcome.code == exits, outcome
        return outcome

    def spawn(self, line: str, *more: str, **options: Any) -> subprocess.Popen[str]:
        """Start a process of its own, as a shell does."""
        command = [str(SPILLWAY), *shlex.split(line), *more]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        process = subprocess.Popen(
            command, cwd=self._folder, env=self.environment, text=True, **{**pipes, **options}
        )
        self._spawned.append(process)
        return process

    _spawned: list[subprocess.Popen[str]] = []  # noqa: RUF012 (one terminal at a time)

    def end(self) -> None:
        """Nothing that was started outlives the test."""
        while self._spawned:
            with self._spawned.pop() as process:
                process.kill()


@pytest.fixture
def cli(broker: Standing, tmp_path: Path) -> Iterator[Terminal]:
    """The command line before the shared broker."""
    terminal = Terminal(broker.url, tmp_path)
    yield terminal
    terminal.end()


@pytest.fixture
def terminal_of(tmp_path: Path) -> Callable[[str], Terminal]:
    """The command line before another broker."""
    return lambda url: Terminal(url, tmp_path)


@pytest.fixture
def client(broker: Standing) -> Iterator[Client]:
    """A client of the shared broker."""
    with Client(broker.url, retries=0) as client:
        yield client
