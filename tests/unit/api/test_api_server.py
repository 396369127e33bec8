"""The skin behind a real socket: what only a connection can show."""

import asyncio
import socket
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from spillway.api import server
from spillway.api.limits import Limits
from spillway.api.listener import listen, port_of
from spillway.api.protocol import HEAD_BYTES_MAX, BoundedProtocol
from spillway.api.server import make_app, serve
from spillway.core.errors import SettingsError

PUSH = b'{"items":[{"queue":"q","payload":1}]}'


@asynccontextmanager
async def serving(broker, grace_s=5, **more):
    """A server on a free port; leaving stops it."""
    stop, port = asyncio.Event(), asyncio.get_running_loop().create_future()
    limits = Limits(request_bytes_max=100_000, **more)
    serving = serve(
        make_app(broker, limits),
        listen("127.0.0.1", 0),
        stop=stop,
        limits=limits,
        on_listening=port.set_result,
        grace_s=grace_s,
    )
    task = asyncio.create_task(serving)
    try:
        yield await port
    finally:
        stop.set()
        await task


class Connection:
    """A raw HTTP/1.1 connection."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    async def send(self, data):
        self.writer.write(data)
        await self.writer.drain()

    async def post(self, path, body, *headers):
        lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers]
        await self.send("\r\n".join((*lines, "", "")).encode() + body)

    async def answer(self):
        head = await self.reader.readuntil(b"\r\n\r\n")
        lines = head.decode().lower().split("\r\n")
        length = next(int(line[16:]) for line in lines if line.startswith("content-length: "))
        return int(head.split()[1]), lines, await self.reader.readexactly(length)

    async def is_closed(self):
        return await self.reader.read(1) == b""


@pytest.fixture
async def connect():
    """Opens connections; the test's end closes them."""
    opened = []

    async def to(port):
        opened.append(Connection(*await asyncio.open_connection("127.0.0.1", port)))
        return opened[-1]

    yield to
    for caller in opened:
        caller.writer.transport.abort()
    await asyncio.sleep(0)


@pytest.fixture
def watched():
    """A connection in the middle of a head, with a clock that the test sets."""
    state = SimpleNamespace(now_s=0.0, waits=[], refusals=[])
    protocol = BoundedProtocol.__new__(BoundedProtocol)
    protocol._limits, protocol._watcher, protocol._in_head = Limits(), None, True
    protocol.flow = SimpleNamespace(read_paused=False)
    protocol.transport = SimpleNamespace(is_closing=lambda: False)
    protocol.loop = SimpleNamespace(
        time=lambda: state.now_s, call_later=lambda wait_s, _: state.waits.append(wait_s) or wait_s
    )
    protocol._refuse = lambda error: state.refusals.append(error.code)
    state.protocol = protocol
    return state


async def test_a_connection_serves_many_requests(broker, connect):
    """Port 0 is announced, and connections are kept."""
    async with serving(broker) as port:
        caller = await connect(port)
        for _ in range(3):
            await caller.post("/v1/messages", PUSH)
            status, _, body = await caller.answer()
            assert (status, body[:12]) == (201, b'{"results":[')


async def test_pipelined_requests_are_answered_in_order(broker, connect):
    """Two requests in one write."""
    async with serving(broker) as port:
        caller = await connect(port)
        await caller.send(
            b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\nGET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n"
        )
        assert [(await caller.answer())[0] for _ in range(2)] == [200, 404]


async def test_chunked_bodies_work(broker, connect):
    """A body whose length nobody knows beforehand."""
    async with serving(broker) as port:
        caller = await connect(port)
        await caller.send(
            b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        for byte in (PUSH[:5], PUSH[5:]):
            await caller.send(b"%x\r\n%b\r\n" % (len(byte), byte))
        await caller.send(b"0\r\n\r\n")
        assert (await caller.answer())[0] == 201


async def test_an_endless_chunked_body_is_cut(broker, connect, monkeypatch):
    """413 while it streams; the answer arrives, then the connection ends."""
    monkeypatch.setattr(server, "LINGER_S", 0.05)
    async with serving(broker) as port:
        caller = await connect(port)
        await caller.send(
            b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        for _ in range(5):
            await caller.send(b"%x\r\n%b\r\n" % (50_000, b" " * 50_000))
        status, lines, _ = await caller.answer()
        assert (status, "connection: close" in lines) == (413, True)
        assert await caller.is_closed()
    assert broker.calls == []


async def test_a_large_declared_body_is_refused_before_it_is_sent(broker, connect):
    """And a caller that asks first is never told to continue."""
    async with serving(broker) as port:
        caller = await connect(port)
        await caller.send(
            b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
            b"Content-Length: 100001\r\n\r\n"
        )
        assert (await caller.answer())[0] == 413
        caller.writer.transport.abort()


async def test_a_caller_that_asks_first_is_told_to_go_on(broker, connect):
    """The 100 must not wait for the answer that follows it."""
    async with serving(broker) as port:
        caller = await connect(port)
        await caller.send(
            b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
            b"Content-Length: %d\r\n\r\n" % len(PUSH)
        )
        assert await caller.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await caller.send(PUSH)
        assert (await caller.answer())[0] == 201


async def test_an_answer_without_a_body_does_not_wait_for_one(broker, connect):
    """HEAD is answered by a head alone, and the connection is kept."""
    async with serving(broker) as port:
        caller = await connect(port)
        for _ in range(2):
            await caller.send(b"HEAD /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            head = await caller.reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            assert b"content-length: 0" not in head


@pytest.mark.parametrize(
    "junk",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
        b"CONNECT host:1 HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
async def test_what_is_not_http_gets_our_error(broker, connect, junk):
    """Errors have one shape, even this one."""
    async with serving(broker) as port:
        caller = await connect(port)
        await caller.send(junk)
        status, lines, body = await caller.answer()
        assert status in (400, 404, 405)
        assert "content-type: application/json" in lines
        assert body.startswith(b'{"error":{"code":')


async def flood(caller):
    for _ in range(10_000):
        await caller.send(b"x" * HEAD_BYTES_MAX)


async def test_an_endless_head_is_cut(broker, connect):
    """Headers are gathered in memory, so there is an end to them."""
    async with serving(broker) as port:
        caller = await connect(port)
        await caller.send(b"GET / HTTP/1.1\r\nHost: x\r\nX: ")
        with pytest.raises(ConnectionError):
            await flood(caller)


async def test_a_dropped_connection_cancels_a_long_poll(broker, connect, eventually_async):
    """From the socket down to the broker."""
    broker.hold = asyncio.Event()
    async with serving(broker) as port:
        caller = await connect(port)
        await caller.post("/v1/queues/q/lease", b'{"wait_ms":60000}')
        await broker.holding.wait()
        caller.writer.transport.abort()
        await eventually_async(lambda: broker.cancelled)


async def test_requests_in_flight_may_finish(broker, connect):
    """Stopping waits for them."""
    broker.hold = asyncio.Event()
    async with serving(broker) as port:
        caller = await connect(port)
        await caller.post("/v1/messages", PUSH)
        await broker.holding.wait()
        asyncio.get_running_loop().call_later(0.2, broker.hold.set)
    status, lines, _ = await caller.answer()
    assert (status, "connection: close" in lines) == (201, True)


async def test_requests_that_outlive_the_grace_are_told(broker, connect):
    """503 and when to come back, instead of a broken connection."""
    broker.hold = asyncio.Event()
    async with serving(broker, grace_s=0) as port:
        caller = await connect(port)
        await caller.post("/v1/queues/q/lease", b'{"wait_ms":60000}')
        await broker.holding.wait()
    status, lines, body = await caller.answer()
    assert (status, "retry-after: 1" in lines) == (503, True)
    assert b"shutting_down" in body
    assert broker.cancelled


def test_a_taken_port_is_named():
    """The error says which address and what to do."""
    sockets = listen("127.0.0.1", 0)
    try:
        with pytest.raises(SettingsError, match=f"127.0.0.1:{port_of(sockets)}.*in use") as raised:
            listen("127.0.0.1", port_of(sockets))
        assert "--port" in raised.value.hint
    finally:
        for made in sockets:
            made.close()


@pytest.mark.parametrize(
    ("host", "port"), [("192.0.2.1", 0), ("no such host", 0), ("127.0.0.1", 70_000)]
)
def test_an_impossible_address_is_named(host, port):
    """Not a stack, a sentence."""
    with pytest.raises(SettingsError, match="cannot listen on"):
        listen(host, port)


def test_every_address_of_a_host_gets_the_same_port():
    """`localhost` is two addresses on most machines."""
    sockets = listen("localhost", 0)
    try:
        assert len({made.getsockname()[1] for made in sockets}) == 1
        assert all(made.family in (socket.AF_INET, socket.AF_INET6) for made in sockets)
    finally:
        for made in sockets:
            made.close()


@pytest.mark.parametrize("sent", ["head", "body"])
async def test_a_request_that_does_not_end_is_given_up(broker, connect, sent):
    """Whoever falls silent in the middle is told, and cut off; one after another is served."""
    async with serving(broker, body_timeout_s=0.2) as port:
        connection = await connect(port)
        await connection.post("/v1/messages", PUSH)
        assert (await connection.answer())[0] == 201
        head = b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n"
        await connection.send(head[:20] if sent == "head" else head + PUSH)
        status, lines, body = await connection.answer()
        assert (status, b"body_timeout" in body) == (408, True)
        assert "connection: close" in lines
        assert await connection.is_closed()


def test_a_request_that_comes_slowly_is_waited_for(watched):
    """As long as something comes the wait begins anew; a whole request is not waited for."""
    watched.now_s = 0.0
    watched.protocol._watch()
    assert watched.waits == [30.0]
    watched.now_s = 20.0
    watched.protocol._watch()
    watched.now_s = 30.0
    watched.protocol._look()
    assert (watched.waits, watched.refusals) == ([30.0, 20.0], [])
    watched.now_s = 50.0
    watched.protocol._look()
    assert (watched.waits, watched.refusals) == ([30.0, 20.0], ["body_timeout"])


def test_who_is_not_read_is_not_late(watched):
    """We wait with reading while an earlier request is answered."""
    watched.protocol._watch()
    watched.protocol.flow.read_paused = True
    watched.now_s = 100.0
    watched.protocol._look()
    assert (watched.waits, watched.refusals) == ([30.0, 30.0], [])


async def test_more_connections_than_may_be_are_refused(broker, connect):
    """Those that are there go on; when one leaves there is room."""
    async with serving(broker, connections_max=1) as port:
        first, second = await connect(port), None
        await first.post("/v1/messages", PUSH)
        assert (await first.answer())[0] == 201
        second = await connect(port)
        status, _, body = await second.answer()
        assert (status, b"overloaded" in body) == (503, True)
        assert await second.is_closed()
        await first.post("/v1/messages", PUSH)
        assert (await first.answer())[0] == 201
