"""Both transports against a real socket: reuse, broken connections, time-outs, closing."""

import asyncio
import gc
import socket
import threading
from contextlib import suppress

import pytest

from spillway.client.errors import BrokerUnreachableError, ClientClosedError, RequestTimeoutError
from spillway.client.http1 import Origin
from spillway.client.loop_transport import LoopTransport
from spillway.client.socket_transport import SocketTransport

REQUEST = b"POST /x HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
SILENCE, HANG_UP = b"", None


class Server:
    """Accepts connections in a thread; answers the n-th request with the n-th line of a script."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.connections = 0
        self.hung_up = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._open = []
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def origin(self):
        return Origin("127.0.0.1", self.port)

    def _accept(self):
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with connection, suppress(OSError):  # closed from outside at the end of a test
            while connection.recv(65536):
                answer = self.answers.pop(0) if self.answers else HANG_UP
                if answer is HANG_UP:
                    break
                connection.sendall(answer)
                if b"connection: close" in answer:
                    break
        self.hung_up.set()

    def close(self):
        self._socket.close()
        for connection in self._open:
            connection.close()


@pytest.fixture
def serve():
    servers = []

    def start(*answers):
        servers.append(Server(*answers))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def nobody():
    """An address where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    return Origin("127.0.0.1", port)


def test_connections_are_reused(serve):
    """Three requests, one connection."""
    server = serve(OK, OK, OK)
    transport = SocketTransport(server.origin)
    assert [transport.send(REQUEST, 5).body for _ in range(3)] == [b"ok"] * 3
    assert server.connections == 1
    transport.close()


def test_a_connection_closed_while_idle_is_replaced(serve):
    """The broker may close idle connections: the next request finds out before it is sent."""
    server = serve(OK.replace(b"\r\n\r\n", b"\r\nx: connection: close\r\n\r\n"), OK)
    transport = SocketTransport(server.origin)
    transport.send(REQUEST, 5)
    assert server.hung_up.wait(5)
    assert transport.send(REQUEST, 5).body == b"ok"
    assert server.connections == 2
    transport.close()


def test_no_connection_was_not_sent(nobody):
    """Without a connection nothing can have happened."""
    with pytest.raises(BrokerUnreachableError) as told:
        SocketTransport(nobody).send(REQUEST, 5)
    assert not told.value.sent


def test_a_broken_connection_may_have_been_sent(serve):
    """A connection that ends without an answer leaves the outcome open."""
    with pytest.raises(BrokerUnreachableError) as told:
        SocketTransport(serve(HANG_UP).origin).send(REQUEST, 5)
    assert told.value.sent


def test_silence_times_out(serve):
    """No answer in time is an error, and its connection is not used again."""
    server = serve(SILENCE, OK)
    transport = SocketTransport(server.origin)
    with pytest.raises(RequestTimeoutError) as told:
        transport.send(REQUEST, 0.05)
    assert told.value.sent
    assert transport.send(REQUEST, 5).body == b"ok"
    assert server.connections == 2
    transport.close()


def test_an_early_refusal_is_read(serve):
    """A broker that answers before it has read everything is still heard."""
    early = b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    transport = SocketTransport(serve(early).origin)
    assert transport.send(REQUEST + b"x" * 1000, 5).status == 413
    transport.close()


def test_threads_share_a_transport(serve):
    """Each thread in flight has a connection of its own."""
    server = serve(*[OK] * 80)
    transport = SocketTransport(server.origin)
    bodies = []

    def work():
        bodies.extend(transport.send(REQUEST, 5).body for _ in range(10))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bodies == [b"ok"] * 80
    assert server.connections <= 8
    transport.close()


def test_a_closed_transport_refuses():
    """After close() nothing is sent."""
    transport = SocketTransport(Origin("127.0.0.1", 1))
    transport.close()
    with pytest.raises(ClientClosedError):
        transport.send(REQUEST, 1)


async def test_loop_reuses_connections(serve):
    """Three requests, one connection."""
    server = serve(OK, OK, OK)
    transport = LoopTransport(server.origin)
    assert [(await transport.send(REQUEST, 5)).body for _ in range(3)] == [b"ok"] * 3
    assert server.connections == 1
    await transport.close()


async def test_loop_bounds_its_connections(serve):
    """Many requests at once wait for one of few connections."""
    server = serve(*[OK] * 50)
    transport = LoopTransport(server.origin, connections_max=3)
    answers = await asyncio.gather(*[transport.send(REQUEST, 5) for _ in range(50)])
    assert len(answers) == 50
    assert server.connections <= 3
    await transport.close()


async def test_loop_counts_the_wait_for_a_connection(serve):
    """A call that finds none free in its time says so, and was not sent."""
    transport = LoopTransport(serve(SILENCE).origin, connections_max=1)
    first = asyncio.create_task(transport.send(REQUEST, 5))
    await asyncio.sleep(0)
    with pytest.raises(RequestTimeoutError, match="no free connection") as told:
        await transport.send(REQUEST, 0.05)
    assert not told.value.sent
    first.cancel()
    await asyncio.wait({first})
    await transport.close()


async def test_loop_failures(serve, nobody):
    """No connection, a broken one and a silent one are told apart."""
    with pytest.raises(BrokerUnreachableError) as told:
        await LoopTransport(nobody).send(REQUEST, 5)
    assert not told.value.sent
    with pytest.raises(BrokerUnreachableError) as told:
        await LoopTransport(serve(HANG_UP).origin).send(REQUEST, 5)
    assert told.value.sent
    with pytest.raises(RequestTimeoutError) as told:
        await LoopTransport(serve(SILENCE).origin).send(REQUEST, 0.05)
    assert told.value.sent


async def test_loop_drops_the_connection_of_a_cancelled_request(serve):
    """An answer nobody waits for any more cannot reach the next request."""
    server = serve(SILENCE, OK)
    transport = LoopTransport(server.origin)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await transport.send(REQUEST, 5)
    assert (await transport.send(REQUEST, 5)).body == b"ok"
    assert server.connections == 2
    await transport.close()


# The connections of a loop that is closed can only be left to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_loop_transport_moves_to_a_new_loop(serve):
    """A client used from asyncio.run twice opens new connections instead of hanging."""
    server = serve(OK, OK)
    transport = LoopTransport(server.origin)
    for _ in range(2):
        assert asyncio.run(transport.send(REQUEST, 5)).body == b"ok"
    assert server.connections == 2
    del transport
    gc.collect()


async def test_a_closed_loop_transport_refuses():
    """After close() nothing is sent."""
    transport = LoopTransport(Origin("127.0.0.1", 1))
    await transport.close()
    with pytest.raises(ClientClosedError):
        await transport.send(REQUEST, 1)
