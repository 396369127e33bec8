"""HTTP/1.1 without IO: request bytes out, an answer parsed from whatever bytes arrive.

Both doors (sockets, asyncio) share it. The parser is llhttp, through httptools, as in the broker;
measured against httpx this costs a fifth of the CPU per call, which a busy worker feels.
"""

from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httptools

from spillway.client.errors import BadReplyError, ClientUsageError

RESPONSE_BYTES_MAX = 512 * 1024 * 1024
DEFAULT_PORT = 6632


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a broker listens."""

    host: str
    port: int
    prefix: str = ""
    tls: bool = False

    @property
    def url(self) -> str:
        scheme = "https" if self.tls else "http"
        return f"{scheme}://{self.netloc}{self.prefix}"

    @property
    def netloc(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def origin_of(url: str) -> Origin:
    """The origin an url names; a bare `host:port` is taken as http."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        port = parts.port
    except ValueError as error:
        raise ClientUsageError(f"the url {url!r} has a port that is no number") from error
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ClientUsageError(f"the url {url!r} is not http://HOST:PORT or https://HOST:PORT")
    tls = parts.scheme == "https"
    port = port or (443 if tls else DEFAULT_PORT)
    return Origin(parts.hostname, port, parts.path.rstrip("/"), tls)


@dataclass(frozen=True, slots=True)
class Response:
    """An answer: status, headers by lower-case name, body."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


def encode(
    origin: Origin, method: str, path: str, headers: dict[str, str], body: bytes | None
) -> bytes:
    """The bytes of a request."""
    lines = [f"{method} {origin.prefix}{path} HTTP/1.1", f"host: {origin.netloc}"]
    lines.extend(f"{name}: {value}" for name, value in headers.items())
    if body is not None:
        lines.append(f"content-length: {len(body)}")
    head = "\r\n".join(lines) + "\r\n\r\n"
    return head.encode("latin-1") + (body or b"")


class Exchange:
    """One request's answer: feed bytes until `response` is there."""

    __slots__ = ("_body", "_head_done", "_headers", "_parser", "_size", "response", "reusable")

    def __init__(self) -> None:
        self.response: Response | None = None
        self.reusable = False
        self._renew()

    def _renew(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._size = 0
        self._head_done = False

    def feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise BadReplyError(f"the answer is not HTTP/1.1: {error}") from error
        if self._size > RESPONSE_BYTES_MAX:
            raise BadReplyError(f"the answer is over {RESPONSE_BYTES_MAX} bytes")

    def feed_eof(self) -> None:
        """The peer closed: the end of an answer that names no length, or of none at all."""
        lengthless = "content-length" not in self._headers and "chunked" not in self._headers.get(
            "transfer-encoding", ""
        )
        if self.response is None and self._head_done and lengthless:
            self._finish()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._head_done = True

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < 200:  # 100 Continue and its kin precede the answer
            self._headers, self._head_done = {}, False
            return
        self.reusable = self._parser.should_keep_alive()
        self._finish()

    def _finish(self) -> None:
        status = self._parser.get_status_code()
        self.response = Response(status, b"".join(self._body), self._headers)
