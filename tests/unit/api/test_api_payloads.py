"""Payloads in both media: nothing is lost or changed on the way."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from spillway.api.media import JSON, MSGPACK
from spillway.api.payloads import dress, mark_half_pairs, received
from spillway.core.errors import InvalidItemError
from spillway.wire import BrowsedMessage

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def shown(payload, media):
    """The payload as a reply in this medium carries it."""
    message = msgspec.structs.replace(EMPTY, payload=payload)
    dress([message], media)
    return bytes(message.payload)


EMPTY = msgspec.convert(
    {
        "partition": "p",
        "version": 1,
        "key": None,
        "payload": Raw(b""),
        "headers": None,
        "transaction_id": "t",
        "enqueued_at": "",
        "priority": 2,
        "deliver_at": None,
        "expires_at": None,
        "state": "ready",
        "attempts": 0,
    },
    BrowsedMessage,
)


@given(json_values)
def test_a_value_survives_both_media(value):
    """MessagePack in, JSON inside, either out: the same value."""
    stored = received(MSGPACK, Raw(msgspec.msgpack.encode(value)))
    if isinstance(stored, bytes):
        assert set(value) == {"payload_base64"}
        return
    assert msgspec.json.decode(shown(stored, JSON)) == value
    assert msgspec.msgpack.decode(shown(stored, MSGPACK)) == value


@given(st.binary())
def test_bytes_survive_both_media(data):
    """A bin, or base64 under its name."""
    stored = received(MSGPACK, Raw(msgspec.msgpack.encode(data)))
    assert stored == data
    assert received(JSON, Raw(shown(stored, JSON))) == data
    assert msgspec.msgpack.decode(shown(stored, MSGPACK)) == data


@pytest.mark.parametrize(
    "packed",
    [
        b"\xd4\x05a",
        b"\xd6\xff\x00\x00\x00\x00",
        b"\x91\xc4\x01a",
        b"\x81\xa1a\xc4\x01a",
        b"\x81\x01\x02",
        b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00",
        b"\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00",
        b"\xa1\xff",
        b"\x91" * 300 + b"\xc0",
    ],
    ids=["ext", "timestamp", "bin in list", "bin in map", "int key", "nan", "inf", "utf8", "deep"],
)
def test_what_json_cannot_say_is_refused(packed):
    """Rather than stored as something else."""
    with pytest.raises(InvalidItemError):
        received(MSGPACK, Raw(packed))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"18446744073709551615", 2**64 - 1),
        (b"[18446744073709551616, 1.5]", ["18446744073709551616", 1.5]),
        (b'{"n":-9223372036854775809}', {"n": "-9223372036854775809"}),
        (b"1e999", "1e999"),
        (b"9" * 5000, "9" * 5000),
    ],
)
def test_numbers_beyond_messagepack_keep_their_digits(text, value):
    """JSON has no end of numbers, MessagePack stops at 64 bits."""
    assert shown(Raw(text), JSON) == text
    assert msgspec.msgpack.decode(shown(Raw(text), MSGPACK)) == value


# ---------------------------------------------------------------- half a surrogate pair

surrogates = st.sampled_from("\ud83d\ude00\udbff\udc00")


@given(st.lists(st.text(surrogates | st.sampled_from('\\ud8"\n😀'), max_size=6), min_size=1))
def test_half_pairs_are_marked_where_they_are(texts):
    """Exactly the texts that are none carry the mark; the others are as they came."""
    body = json.dumps(texts)
    marked, mark = mark_half_pairs(body.encode())
    found = [bytes(raw) for raw in msgspec.json.decode(marked, type=list[Raw])]
    broken = [any("\ud800" <= c <= "\udfff" for c in text) for text in json.loads(body)]
    assert [bool(mark) and mark in raw for raw in found] == broken
    whole = [raw for raw, is_broken in zip(found, broken, strict=True) if not is_broken]
    assert [msgspec.json.decode(raw) for raw in whole] == [
        text for text, is_broken in zip(json.loads(body), broken, strict=True) if not is_broken
    ]
