"""Reading lines: batches without waiting, exact numbers for what is wrong, no end to no line."""

import io
import os
import threading
from pathlib import Path

import pytest
import typer

from spillway.cli import lines
from spillway.cli.lines import InputUnreadableError, LineReader


def reader(source, *, stop=lambda: False, **more):
    return LineReader(source, stop_asked=stop, **more)


def all_batches(source, most=1000):
    found = reader(source)
    return list(iter(lambda: found.batch(most), []))


@pytest.fixture
def pipe():
    """A pipe: (reading end, writing descriptor)."""
    read, write = os.pipe()
    with os.fdopen(read, "rb", buffering=0) as source:
        yield source, write
    os.close(write)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", []),
        (b"a", ["a"]),
        (b"a\nb\n", ["a", "b"]),
        (b"a\r\n\r\n\nb", ["a", "b"]),
        (b"\n\n\n", []),
        ("ä\u2028ö\n".encode(), ["ä\u2028ö"]),
    ],
)
def test_a_line_ends_with_a_newline_and_nothing_else(text, expected):
    """CR before it goes too; blank lines are none; the last needs no end."""
    assert [line for batch in all_batches(io.BytesIO(text)) for line in batch] == expected


def test_batches_are_no_larger_than_asked():
    """And lose nothing between them, whatever the chunks are."""
    source = io.BytesIO(b"".join(b"%d\n" % n for n in range(250_000)))
    batches = all_batches(source, most=1000)
    assert {len(batch) for batch in batches} == {1000}
    assert [line for batch in batches for line in batch] == [str(n) for n in range(250_000)]


def test_a_pipe_is_read_as_it_flows(pipe):
    """What is there is a batch: nobody waits for more."""
    source, write = pipe
    found = reader(source)
    os.write(write, b"a\nb\nhal")
    assert found.batch(1000) == ["a", "b"]
    os.write(write, b"f\n")
    assert found.batch(1000) == ["half"]


def test_a_wait_ends_when_it_is_told(pipe):
    """Though nothing comes."""
    source, _ = pipe
    stop = threading.Event()
    threading.Timer(0.05, stop.set).start()
    assert reader(source, stop=stop.is_set).batch(1000) == []


def test_a_line_that_is_no_text_is_named():
    """With its number, blank lines counted."""
    found = reader(io.BytesIO(b"a\n\nb\xff\n"))
    with pytest.raises(typer.BadParameter, match="line 3 is not UTF-8: invalid start byte at byte"):
        found.batch(1000)


def test_a_line_without_an_end_does_not_fill_the_memory(monkeypatch):
    """/dev/zero is no list of messages."""
    monkeypatch.setattr(lines, "LINE_BYTES_MAX", 1_000_000)
    with (
        Path("/dev/zero").open("rb") as zero,
        pytest.raises(InputUnreadableError, match="line 1 is lon"),
    ):
        reader(zero).batch(1000)


def test_what_cannot_be_read_is_told():
    """The reason of the system, not a traceback."""
    with (
        Path("/proc/self/mem").open("rb") as memory,
        pytest.raises(InputUnreadableError, match="Input/"),
    ):
        reader(memory).batch(1000)


def test_progress_counts_bytes():
    """All of them, as they are read."""
    seen = []
    reader(io.BytesIO(b"a\nbc\n"), on_bytes=seen.append).batch(1000)
    assert sum(seen) == 5
