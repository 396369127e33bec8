"""uvicorn's HTTP protocol with three house rules: bounded request heads, errors in our shape, and
one write an answer.
"""

import asyncio
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from spillway.core.errors import BadRequestError
from spillway.wire import ErrorDetail, ErrorReply

HEAD_BYTES_MAX = 64 * 1024
GO_ON = b"HTTP/1.1 100 "


class _Joining:
    """A transport that sends the head of an answer together with what follows it.

    uvicorn writes them one after the other; for a small answer the second system call costs a tenth
    of the request.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head: bytes | None = None
        self._begins = True

    def write(self, data: bytes) -> None:
        head, self._head = self._head, None
        if head is not None:
            self._transport.writelines((head, data))
        elif self._begins and not data.startswith(GO_ON):
            self._head, self._begins = data, False
        else:
            self._transport.write(data)

    def end(self) -> None:
        """The answer is complete; one to HEAD is without a body."""
        head, self._head, self._begins = self._head, None, True
        if head is not None:
            self._transport.write(head)

    def close(self) -> None:
        self.end()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (whatever a transport has)
        return getattr(self._transport, name)


class BoundedProtocol(HttpToolsProtocol):
    """Speaks HTTP/1.1; the parser itself would gather headers without an end."""

    _in_head = True
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._answers = _Joining(transport)
        super().connection_made(self._answers)  # type: ignore[arg-type]  # all that uvicorn uses

    def on_response_complete(self) -> None:
        self._answers.end()
        super().on_response_complete()

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            if self._head_bytes > HEAD_BYTES_MAX:
                self.send_400_response(f"the request head is over {HEAD_BYTES_MAX} bytes")
                return
            self._head_bytes += len(data)
        super().data_received(data)

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if self.transport.is_closing():
            return
        error = ErrorDetail(code=BadRequestError.code, message=msg, hint="send valid HTTP/1.1")
        body = msgspec.json.encode(ErrorReply(error=error))
        self.transport.write(
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(body), body)
        )
        self.transport.close()
