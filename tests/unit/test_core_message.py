"""A record batch: how it counts, when it is full, when it is plain."""

import pytest

from spillway.core.message import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX, RecordBatch


def batch(count: int, size: int = 0, **columns) -> RecordBatch:
    return RecordBatch(1, 5, 100, [f"t{i}" for i in range(count)], [b""] * count, **columns)


def test_versions_are_consecutive():
    """The last version follows from the first and the count; of an empty batch it is before it."""
    assert [(b.count, b.last_version) for b in (batch(0), batch(1), batch(3))] == [
        (0, 4),
        (1, 5),
        (3, 7),
    ]


def test_a_batch_is_cut_at_its_limits():
    """256 messages or 32 KiB of payload, whichever comes first."""
    assert (BATCH_MESSAGES_MAX, BATCH_BYTES_MAX) == (256, 32_768)
    assert [batch(255).is_full, batch(256).is_full] == [False, True]
    assert [batch(1, payload_bytes=size).is_full for size in (32_767, 32_768)] == [False, True]


@pytest.mark.parametrize(
    "column", ["keys", "headers", "content_types", "deliver_ms", "expires_ms", "trace_ids"]
)
def test_any_optional_column_ends_plainness(column):
    """A batch is plain until one of its optional columns begins."""
    assert batch(1).is_plain
    assert not batch(1, **{column: [None]}).is_plain


def test_batches_share_no_columns():
    """What is added to one batch is not in the next."""
    first = RecordBatch(1, 1, 0)
    first.payloads.append(b"{}")
    assert RecordBatch(1, 2, 0).payloads == []
