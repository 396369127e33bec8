"""uvicorn's HTTP protocol with two house rules: bounded request heads, errors in our shape."""

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from spillway.core.errors import BadRequestError
from spillway.wire import ErrorDetail, ErrorReply

HEAD_BYTES_MAX = 64 * 1024


class BoundedProtocol(HttpToolsProtocol):
    """Speaks HTTP/1.1; the parser itself would gather headers without an end."""

    _in_head = True
    _head_bytes = 0

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
