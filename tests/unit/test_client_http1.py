"""HTTP/1.1 without IO: what leaves, and what is read back from any cut of the bytes."""

import pytest

from spillway.client.errors import BadReplyError, ClientUsageError
from spillway.client.http1 import Exchange, Origin, encode, origin_of

ANSWER = b"HTTP/1.1 201 Created\r\ncontent-length: 5\r\nRetry-After: 3\r\n\r\nhello"


def test_encode_puts_length_and_host():
    """A request carries its host, its own headers and the length of its body."""
    data = encode(Origin("db", 80, "/q"), "POST", "/v1/settle", {"accept": "x"}, b"{}")
    head = b"POST /q/v1/settle HTTP/1.1\r\nhost: db:80\r\naccept: x\r\ncontent-length: 2\r\n\r\n"
    assert data == head + b"{}"


def test_encode_without_body_names_no_length():
    """A GET has neither body nor length."""
    assert b"content-length" not in encode(Origin("db", 80), "GET", "/health", {}, None)


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_answer_is_read_in_any_pieces(size):
    """However the bytes are cut, the same answer comes out."""
    exchange = Exchange()
    for start in range(0, len(ANSWER), size):
        exchange.feed(ANSWER[start : start + size])
    assert exchange.response is not None
    assert (exchange.response.status, exchange.response.body) == (201, b"hello")
    assert exchange.response.headers["retry-after"] == "3"
    assert exchange.reusable


def test_connection_close_is_not_reusable():
    """An answer that says `connection: close` ends its connection."""
    exchange = Exchange()
    exchange.feed(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
    assert exchange.response is not None
    assert not exchange.reusable


def test_chunked_answer():
    """Chunks are put together."""
    exchange = Exchange()
    exchange.feed(
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
    )
    assert exchange.response is not None
    assert exchange.response.body == b"abc"


def test_interim_answers_are_skipped():
    """100 Continue is not the answer."""
    exchange = Exchange()
    exchange.feed(b"HTTP/1.1 100 Continue\r\n\r\n" + ANSWER)
    assert exchange.response is not None
    assert exchange.response.status == 201


def test_answer_without_length_ends_with_the_connection():
    """Without a length the end of the connection is the end of the body."""
    exchange = Exchange()
    exchange.feed(b"HTTP/1.0 200 OK\r\nserver: old\r\n\r\nall of it")
    assert exchange.response is None
    exchange.feed_eof()
    assert exchange.response is not None
    assert exchange.response.body == b"all of it"


def test_torn_answer_stays_unanswered():
    """A connection that ends inside a body of known length is no answer."""
    exchange = Exchange()
    exchange.feed(ANSWER[:-1])
    exchange.feed_eof()
    assert exchange.response is None


def test_torn_head_stays_unanswered():
    """A connection that ends inside the headers is no answer."""
    exchange = Exchange()
    exchange.feed(b"HTTP/1.1 200 OK\r\nserver: x\r\nconten")
    exchange.feed_eof()
    assert exchange.response is None


def test_what_is_not_http_is_refused():
    """Another protocol on that port is named as such."""
    with pytest.raises(BadReplyError):
        Exchange().feed(b"SSH-2.0-OpenSSH_9.2\r\n")


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("http://127.0.0.1:6632", Origin("127.0.0.1", 6632)),
        ("localhost:7000", Origin("localhost", 7000)),
        ("http://broker", Origin("broker", 6632)),
        ("https://q.example.com/spill/", Origin("q.example.com", 443, "/spill", tls=True)),
        ("http://[::1]:80", Origin("::1", 80)),
    ],
)
def test_urls(url, origin):
    """An url names host, port, prefix and TLS."""
    assert origin_of(url) == origin


def test_ipv6_hosts_are_bracketed():
    """The host header of an IPv6 address has brackets."""
    assert Origin("::1", 80).netloc == "[::1]:80"


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:port", "unix:///tmp/s"])
def test_bad_urls_are_refused(url):
    """An url that cannot be a broker is refused before anything is sent."""
    with pytest.raises(ClientUsageError):
        origin_of(url)
