"""Lines of a pipe, a terminal or a file in batches: it waits for a line, never for a full batch."""

import io
import os
import select
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import typer

from spillway.core.errors import SpillwayError

CHUNK_BYTES = 256 * 1024
LINE_BYTES_MAX = 64 * 1024 * 1024
LOOK_S = 0.2
"""How soon a wait notices that it shall stop."""


class InputUnreadableError(SpillwayError):
    """The input cannot be read."""

    code = "input_unreadable"
    hint = "what was read before it is pushed; look at the file, then push the rest"


class LineReader:
    """Reads ahead as little as it can; blank lines are no messages."""

    def __init__(
        self,
        source: BinaryIO,
        *,
        stop_asked: Callable[[], bool],
        on_bytes: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._source = source
        self._descriptor = _descriptor_of(source)
        self._stop_asked = stop_asked
        self._on_bytes = on_bytes
        self._lines: list[bytes] = []
        self._rest = bytearray()
        self._ended = False
        self._number = 0

    def batch(self, most: int) -> list[str]:
        """The next lines, up to `most`; none at the end, or when it was asked to stop."""
        texts: list[str] = []
        while not texts and not self._stop_asked():
            while len(self._lines) < most and self._ready(wait=not self._lines):
                self._read()
            if not self._lines and self._ended:
                break
            taken, self._lines = self._lines[:most], self._lines[most:]
            texts = [text for text in map(self._text, taken) if text]
        return texts

    def _ready(self, *, wait: bool) -> bool:
        if self._ended:
            return False
        if self._descriptor is None:
            return True
        while not self._stop_asked():
            if select.select([self._descriptor], [], [], LOOK_S if wait else 0)[0]:
                return True
            if not wait:
                return False
        return False

    def _read(self) -> None:
        chunk = self._chunk()
        self._on_bytes(len(chunk))
        self._ended = not chunk
        head, newline, tail = chunk.rpartition(b"\n")
        if newline:
            self._lines += (bytes(self._rest) + head).split(b"\n")
            self._rest.clear()
        self._rest += tail
        if len(self._rest) > LINE_BYTES_MAX:
            number = self._number + len(self._lines) + 1
            raise InputUnreadableError(f"line {number} is longer than {LINE_BYTES_MAX} bytes")
        if self._ended and self._rest:
            self._lines.append(bytes(self._rest))

    def _chunk(self) -> bytes:
        try:
            if self._descriptor is None:
                return self._source.read(CHUNK_BYTES)
            return os.read(self._descriptor, CHUNK_BYTES)
        except OSError as error:
            raise InputUnreadableError(f"the input cannot be read: {error.strerror}") from error

    def _text(self, line: bytes) -> str:
        self._number += 1
        try:
            return line.rstrip(b"\r").decode()
        except UnicodeDecodeError as error:
            raise typer.BadParameter(
                f"line {self._number} is not UTF-8: {error.reason} at byte {error.start}"
            ) from error


def _descriptor_of(source: BinaryIO) -> int | None:
    """None for what is no file of the system: it is read as it comes."""
    try:
        return source.fileno()
    except io.UnsupportedOperation:
        return None


def opened(file: Path) -> BinaryIO:
    try:
        return file.open("rb")
    except OSError as error:
        raise typer.BadParameter(f"{file} cannot be read: {error.strerror}") from error
