"""The baseline's rows in COPY's own formats."""

import pytest

from spillway.bench.baseline import copy_blocks

BODIES = [b'{"a":1}', rb'{"b":"x\ny"}', b'{"c":3}']


def test_text_rows_escape_what_copy_would_read():
    """A backslash of JSON must arrive as one."""
    assert copy_blocks(BODIES, "text", 2) == [
        b'0\t{"a":1}\n' + b'1\t{"b":"x\\\\ny"}\n',
        b'2\t{"c":3}\n',
    ]


@pytest.mark.parametrize("rows", [1, 2, 3, 100])
def test_binary_rows_name_their_lengths(rows):
    """Two fields a row: eight bytes of id, then the payload."""
    data = b"".join(copy_blocks(BODIES, "binary", rows))
    for number, body in enumerate(BODIES):
        head = b"\0\2\0\0\0\x08" + number.to_bytes(8, "big") + len(body).to_bytes(4, "big")
        assert data.startswith(head + body)
        data = data[len(head + body) :]
    assert data == b""
