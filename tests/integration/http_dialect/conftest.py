"""A real broker behind real HTTP, one for each test module; every test takes names of its own."""

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx
import msgspec
import psycopg
import pytest
import pytest_asyncio

from spillway.api.limits import Limits
from spillway.api.listener import listen
from spillway.api.server import make_app, serve
from spillway.broker.service import Broker
from spillway.log.embedded import EmbeddedPostgres
from spillway.settings import Settings
from spillway.wiring import running_broker

JSON = "application/json"
MSGPACK = "application/msgpack"
ENCODE = {JSON: msgspec.json.encode, MSGPACK: msgspec.msgpack.encode}
DECODE = {JSON: msgspec.json.decode, MSGPACK: msgspec.msgpack.decode}


@dataclass
class Answer:
    """What came back, decoded by its content type."""

    status: int
    headers: httpx.Headers
    content: bytes

    @property
    def body(self) -> Any:
        return DECODE[self.headers["content-type"]](self.content)

    @property
    def error(self) -> str:
        """The code of a refusal, whose shape is checked on the way."""
        detail = self.body["error"]
        assert sorted(detail) == ["code", "hint", "message"]
        assert all(isinstance(text, str) and text for text in detail.values())
        return detail["code"]


class Site:
    """A caller of the broker, with short words for what tests do all the time."""

    def __init__(self, broker: Broker, url: str, client: httpx.AsyncClient, database: str) -> None:
        self.broker = broker
        self.url = url
        self.client = client
        self.database = database
        self.address = urlsplit(url).hostname, urlsplit(url).port

    async def __call__(
        self, method: str, path: str, body: Any = None, *, media: str = JSON, **headers: str
    ) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        content = body if isinstance(body, bytes) else None if body is None else ENCODE[media](body)
        sent = {"accept": media} | ({} if content is None else {"content-type": media}) | named
        got = await self.client.request(method, path, content=content, headers=sent)
        return Answer(got.status_code, got.headers, got.content)

    async def ask(self, method: str, path: str, body: Any = None, **more: str) -> Any:
        """The decoded answer of a request that must succeed."""
        answer = await self(method, path, body, **more)
        assert answer.status in {200, 201}, answer.content
        return answer.body

    async def refused(self, method: str, path: str, body: Any = None, **more: str) -> Any:
        """The (status, code) of a request that must be refused."""
        answer = await self(method, path, body, **more)
        return answer.status, answer.error

    # ------------------------------------------------------------ messages

    async def make(self, queue: str, **options: Any) -> Any:
        fast = {"backoff_base_ms": 0}
        return await self.ask("PUT", f"/v1/queues/{queue}", fast | options)

    async def results(self, queue: str, *payloads: Any, **item: Any) -> list[Any]:
        items = [{"queue": queue, "payload": payload} | item for payload in payloads]
        return (await self("POST", "/v1/messages", {"items": items})).body["results"]

    async def push(self, queue: str, *payloads: Any, **item: Any) -> list[int]:
        return [result["version"] for result in await self.results(queue, *payloads, **item)]

    async def lease(self, queue: str, **request: Any) -> list[Any]:
        return (await self.ask("POST", f"/v1/queues/{queue}/lease", request))["messages"]

    async def settle(self, **request: Any) -> list[str]:
        """The statuses; `ack`, `nack` and `extend` take messages (or receipts, or whole shapes)."""
        reply = await self.ask("POST", "/v1/settle", request)
        return [result["status"] for result in reply["results"]]

    async def ack(self, *messages: Any) -> list[str]:
        return await self.settle(ack=[message["receipt"] for message in messages])

    async def nack(self, *messages: Any, **more: Any) -> list[str]:
        return await self.settle(nack=[{"receipt": m["receipt"]} | more for m in messages])

    async def counts(self, queue: str, group: str = "default") -> dict[str, int]:
        """Where the messages are; states without any are left out."""
        found = await self.ask("GET", f"/v1/queues/{queue}/groups/{group}")
        states = ("ready", "deferred", "leased", "blocked", "parked", "dropped", "settled")
        return {name: found[name] for name in states if found[name]}

    async def payloads(self, queue: str) -> list[Any]:
        """What is stored, in order, with proof that versions are dense."""
        found = (await self.ask("GET", f"/v1/queues/{queue}/messages?limit=1000"))["messages"]
        by_partition = itertools.groupby(found, key=lambda message: message["partition"])
        for versions in [[message["version"] for message in lane] for _, lane in by_partition]:
            assert versions == list(range(1, len(versions) + 1))
        return [message["payload"] for message in found]

    def later(self, method: str, path: str, body: Any = None, **more: str) -> asyncio.Task[Any]:
        """A request under way, with the loop's time at which it was answered."""

        async def timed() -> tuple[Any, float]:
            reply = await self.ask(method, path, body, **more)
            return reply, asyncio.get_running_loop().time()

        return asyncio.get_running_loop().create_task(timed())

    async def waiting(self, queue: str, count: int, group: str = "default") -> None:
        """Come back when so many long polls wait."""
        facts = self.broker.facts.cached_queue("default", queue)
        line = self.broker.dispatch.line
        for _ in range(5_000):
            if line(facts, group).waiting == count:
                return
            await asyncio.sleep(0.002)
        raise TimeoutError(f"{line(facts, group).waiting} wait, not {count}")


@asynccontextmanager
async def opened(
    database_url: str, settings: Settings | None = None, *, is_audited: bool = True
) -> AsyncIterator[Site]:
    """A broker that listens inside the block; behind it the books must balance."""
    settings = settings or Settings(num_shards=2)
    limits = Limits(settings.request_bytes_max, settings.items_max, settings.require_api_key)
    stop = asyncio.Event()
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    async with running_broker(database_url, settings) as broker, asyncio.TaskGroup() as group:
        app = make_app(broker, limits)
        group.create_task(
            serve(app, listen("127.0.0.1", 0), stop=stop, on_listening=port.set_result, grace_s=1)
        )
        url = f"http://127.0.0.1:{await port}"
        try:
            async with httpx.AsyncClient(base_url=url, timeout=60) as client:
                yield Site(broker, url, client, database_url)
                assert not is_audited or (await broker.insights.audit()).balanced
        finally:
            stop.set()


@pytest.fixture(scope="session")
def open_site() -> Callable[..., Any]:
    """A test that needs a broker with settings of its own opens it with this."""
    return opened


@pytest.fixture(scope="module")
def module_database_url(
    postgres: EmbeddedPostgres, _migrated: str, _database_numbers: Iterator[int]
) -> Iterator[str]:
    """A fresh, migrated database for all tests of a module."""
    name = f"http_{next(_database_numbers)}"
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} TEMPLATE {_migrated}")
        yield urlunsplit(urlsplit(postgres.url)._replace(path=f"/{name}"))
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(module_database_url: str) -> AsyncIterator[Site]:
    """The broker of this module."""
    async with opened(module_database_url) as site:
        yield site


@pytest.fixture(scope="session")
def _names() -> Iterator[str]:
    return (f"q{n}" for n in itertools.count())


@pytest.fixture
def queue(_names: Iterator[str]) -> str:
    """A name that no other test uses."""
    return next(_names)


# ---------------------------------------------------------------- for tests without a loop


class Stage:
    """A broker in a thread of its own, for generated tests, which cannot await."""

    def __init__(self, database_url: str) -> None:
        self._url = database_url
        self._ready: Future[tuple[str, asyncio.AbstractEventLoop]] = Future()
        self._done: asyncio.Event | None = None
        self._thread = threading.Thread(target=asyncio.run, args=[self._play()])

    async def _play(self) -> None:
        self._done = asyncio.Event()
        try:
            async with opened(self._url) as site:
                self._ready.set_result((site.url, asyncio.get_running_loop()))
                await self._done.wait()
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)

    def __enter__(self) -> httpx.Client:
        self._thread.start()
        url, self._loop = self._ready.result(timeout=30)
        self._client = httpx.Client(base_url=url, timeout=30)
        return self._client

    def __exit__(self, *_: object) -> None:
        self._client.close()
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join(timeout=30)
        assert not self._thread.is_alive()


@pytest.fixture(scope="module")
def stage(module_database_url: str) -> Iterator[httpx.Client]:
    """A client of a broker that runs beside the tests of this module."""
    with Stage(module_database_url) as client:
        yield client
