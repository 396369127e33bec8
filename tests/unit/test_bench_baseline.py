"""The baseline's rows in COPY's own formats."""

import pytest

from spillway.bench.baseline import copy_blocks
from spillway.bench.inserts import transaction_id as id_of

BODIES = [b'{"a":1}', rb'{"b":"x\ny"}', b'{"c":3}']


def test_text_rows_escape_what_copy_would_read():
    """A backslash of JSON must arrive as one."""
    assert copy_blocks(BODIES, "text", 2) == [
        b'0\t%b\t{"a":1}\n' % id_of(0) + b'1\t%b\t{"b":"x\\\\ny"}\n' % id_of(1),
        b'2\t%b\t{"c":3}\n' % id_of(2),
    ]


@pytest.mark.parametrize("rows", [1, 2, 3, 100])
def test_binary_rows_name_their_lengths(rows):
    """Three fields a row: eight bytes of id, the transaction id, then the payload."""
    data = b"".join(copy_blocks(BODIES, "binary", rows))
    for number, body in enumerate(BODIES):
        fields = (number.to_bytes(8, "big"), id_of(number), body)
        row = b"\0\3" + b"".join(len(field).to_bytes(4, "big") + field for field in fields)
        assert data.startswith(row)
        data = data[len(row) :]
    assert data == b""
