"""The routing hash, written once more in SQL: whoever has SHA-256 can find a message's lane."""

import psycopg
import pytest

from spillway.core.routing import hash64

LEVELS = ("partition", "enqueue_shard", "shard")
VALUES = ["", "order-1", "Default", "Grüße 漢字 🚰", "x" * 1_000, *(f"key-{i}" for i in range(200))]

# The first 8 bytes of sha256('spillway.<level>.1' || 0x00 || value), big-endian, unsigned.
REFERENCE = r"""
SELECT (high + CASE WHEN high < 0 THEN 18446744073709551616 ELSE 0 END)::numeric
FROM unnest(%(values)s::text[]) WITH ORDINALITY AS v (value, i), LATERAL (
    SELECT ('x' || encode(substr(sha256(
        convert_to('spillway.' || %(level)s || '.1', 'UTF8') || '\x00'::bytea
        || convert_to(value, 'UTF8')
    ), 1, 8), 'hex'))::bit(64)::bigint::numeric AS high
) AS hashed ORDER BY i
"""


@pytest.mark.parametrize("level", LEVELS)
def test_postgresql_computes_the_same_hash(postgres, level):
    """Any text, at any level."""
    with psycopg.connect(postgres.url) as conn:
        rows = conn.execute(REFERENCE, {"level": level, "values": VALUES}).fetchall()
    assert [int(row[0]) for row in rows] == [hash64(level, value) for value in VALUES]
