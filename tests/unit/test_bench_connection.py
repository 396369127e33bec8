"""The replies as the load reads them, however they are cut into packets."""

import pytest

from spillway.bench.connection import Connection

REPLY = b'HTTP/1.1 201 Created\r\nContent-Length: 11\r\nserver: x\r\n\r\n{"a":"bcd"}'


class Caller:
    def __init__(self):
        self.replies = []

    def replied(self, status, body):
        self.replies.append((status, body))


class Transport:
    aborted = False

    def abort(self):
        self.aborted = True

    def close(self):
        self.aborted = True


@pytest.fixture
def connection():
    made = Connection(lambda error: made.errors.append(str(error)))
    made.errors = []
    made.caller = Caller()
    made.connection_made(Transport())
    return made


@pytest.mark.parametrize("size", range(1, len(REPLY) + 1))
def test_a_reply_in_pieces_is_one_reply(connection, size):
    """TCP may cut anywhere, in the head too."""
    for _ in range(2):
        for start in range(0, len(REPLY), size):
            connection.data_received(REPLY[start : start + size])
    assert connection.caller.replies == [(201, b'{"a":"bcd"}')] * 2
    assert connection.errors == []


def test_an_empty_body_is_a_reply(connection):
    """204 and its like have no body to wait for."""
    connection.data_received(b"HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n")
    assert connection.caller.replies == [(204, b"")]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", "Content-Length"),
        (REPLY + b"more", "more bytes"),
        (b"x" * 70_000, "end of headers"),
    ],
)
def test_what_cannot_be_read_ends_the_load(connection, data, complaint):
    """A load that misreads replies would report nonsense: it stops instead."""
    connection.data_received(data)
    assert complaint in connection.errors[0]
    assert connection.caller.replies == []


def test_a_closed_connection_is_reported_unless_we_closed_it(connection):
    """The broker may not drop connections under load without anybody noticing."""
    connection.connection_lost(None)
    assert "closed a connection" in connection.errors[0]
    connection.close()
    connection.connection_lost(None)
    assert len(connection.errors) == 1
