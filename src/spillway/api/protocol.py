"""uvicorn's HTTP protocol with house rules: bounds for request heads, for the wait
for what is missing of a request, and for connections; errors in our shape; one write an answer.
"""

import asyncio
import select
from http import HTTPStatus
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from spillway.api.asgi import HUNG_UP
from spillway.api.limits import Limits
from spillway.api.response import detail_of
from spillway.core.errors import (
    BadRequestError,
    BodyTimeoutError,
    OverloadedError,
    SpillwayError,
)
from spillway.wire import ErrorReply

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
    """Speaks HTTP/1.1; the parser itself would gather headers, and wait, without an end."""

    def __init__(self, *arguments: Any, limits: Limits, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._limits = limits
        self._in_head = True
        self._head_bytes = 0
        self._heard_s = 0.0
        self._watcher: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's
        self._answers = _Joining(transport)
        super().connection_made(self._answers)  # type: ignore[arg-type]  # all that uvicorn uses
        most = self._limits.connections_max
        if len(self.connections) > most:
            self._refuse(OverloadedError(f"there are {most} connections already"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._rest()
        super().connection_lost(exc)

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
        if self._in_head and not self._head_bytes:
            self._rest()
        else:
            self._watch()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self.scope[HUNG_UP] = self._is_hung_up  # type: ignore[literal-required]  # ours
        super().on_headers_complete()

    def _is_hung_up(self) -> bool:
        """Whether the other side has gone: the kernel knows before the loop has come to it."""
        if self.transport.is_closing():
            return True
        news = select.poll()
        news.register(self.transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
        return bool(news.poll(0))

    def on_message_complete(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_complete()

    # ---------------------------------------------------------------- requests that do not end

    def _watch(self) -> None:
        """A request is not whole: its rest may not take for ever. A whole one costs no timer."""
        self._heard_s = self.loop.time()
        if self._watcher is None and not self.transport.is_closing():
            self._watcher = self.loop.call_later(self._limits.body_timeout_s, self._look)

    def _rest(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None

    def _look(self) -> None:
        self._watcher = None
        silence_s = self._limits.body_timeout_s
        # Where it is us who do not read, the caller is not to blame.
        since_s = 0.0 if self.flow.read_paused else self.loop.time() - self._heard_s
        if since_s < silence_s:
            self._watcher = self.loop.call_later(silence_s - since_s, self._look)
        elif self._in_head or not self.cycle.response_started:
            self._refuse(BodyTimeoutError(f"nothing came of the request for {silence_s:g} s"))
        else:
            self.transport.close()

    # ---------------------------------------------------------------- refusals

    def send_400_response(self, msg: str) -> None:
        self._refuse(BadRequestError(msg, hint="send valid HTTP/1.1"))

    def _refuse(self, error: SpillwayError) -> None:
        if self.transport.is_closing():
            return
        body = msgspec.json.encode(ErrorReply(error=detail_of(error)))
        self.transport.write(
            b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n%b"
            % (error.status, HTTPStatus(error.status).phrase.encode(), len(body), body)
        )
        self.transport.close()
