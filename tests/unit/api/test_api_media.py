"""Which medium a request speaks and which one it wants back."""

import msgspec
import pytest

from spillway.api.media import JSON, MSGPACK, reply_media, request_media
from spillway.core.errors import UnsupportedMediaTypeError


@pytest.mark.parametrize(
    ("content_type", "media"),
    [
        (None, JSON),
        (b"application/json", JSON),
        (b"Application/JSON; charset=UTF-8", JSON),
        (b'application/json;charset="utf-8"', JSON),
        (b"application/msgpack", MSGPACK),
    ],
)
def test_two_media_are_understood(content_type, media):
    """JSON is the default."""
    assert request_media(content_type) is media


@pytest.mark.parametrize(
    "content_type",
    [b"text/plain", b"application/jsonp", b"application/json; charset=latin-1", b"", b"\xff"],
)
def test_other_media_are_refused(content_type):
    """A form or another charset is not guessed at."""
    with pytest.raises(UnsupportedMediaTypeError):
        request_media(content_type)


@pytest.mark.parametrize(
    ("accept", "sent", "media"),
    [
        (None, None, JSON),
        (None, b"application/msgpack", MSGPACK),
        (b"*/*", b"application/msgpack", MSGPACK),
        (b"application/json", b"application/msgpack", JSON),
        (b"application/msgpack", None, MSGPACK),
        (b"application/msgpack;q=0.5, application/json", None, JSON),
        (b"application/msgpack, */*;q=0.1", None, MSGPACK),
        (b"application/msgpack;q=0, */*", b"application/msgpack", JSON),
        (b"text/html,application/xhtml+xml,*/*;q=0.8", None, JSON),
        (b"text/html", b"application/msgpack", JSON),
        (b"application/msgpack;q=odd", None, JSON),
        (b",;", None, JSON),
    ],
)
def test_accept_decides_the_reply(accept, sent, media):
    """Without a wish the reply comes as the request came; with an unknown one, as JSON."""
    assert reply_media(accept, sent) is media


async def test_an_unknown_content_type_is_415(skin):
    """The error names what was sent and what is possible."""
    answer = await skin("POST", "/v1/messages", b"a=1", content_type="text/plain")
    assert (answer.status, answer.code) == (415, "unsupported_media_type")
    assert "text/plain" in answer.json["error"]["message"]


async def test_compressed_bodies_are_415(skin):
    """Nothing is unpacked, so nothing can blow up."""
    answer = await skin("POST", "/v1/messages", b"\x1f\x8b", content_encoding="gzip")
    assert (answer.status, answer.code) == (415, "unsupported_media_type")


async def test_both_media_have_the_same_shapes(skin):
    """A call in MessagePack is the same call, errors included."""
    pack = {"content_type": "application/msgpack"}
    body = msgspec.msgpack.encode({"partitions": 4, "order": "key"})
    made = await skin("PUT", "/v1/queues/q", body, **pack)
    assert made.status == 201
    assert made.headers["content-type"] == "application/msgpack"
    same = await skin("PUT", "/v1/queues/q", b'{"partitions":4,"order":"key"}')
    assert made.msgpack == same.json
    refused = await skin("PUT", "/v1/queues/q", b"\x81\xa1x\x01", **pack)
    assert (refused.status, refused.msgpack["error"]["code"]) == (400, "unknown_option")


async def test_the_reply_may_be_in_the_other_medium(skin):
    """Accept wins over Content-Type."""
    answer = await skin("PUT", "/v1/queues/q", b"{}", accept="application/msgpack")
    assert answer.msgpack["queue"] == "q"
