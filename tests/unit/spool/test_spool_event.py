"""A line of a buffer file: it gives back what went in, or says that it cannot."""

import json
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from spillway.core.errors import DamagedLineError
from spillway.spool import event
from spillway.spool.event import Address, DamagedLine, Event, FailedEvent, Trouble

AT = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
TROUBLE = Trouble("queue_missing", "no such queue", "make it")

# What UTF-8 can hold: half a surrogate pair is refused at the door.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
MAYBE = st.none() | TEXTS
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS | st.sampled_from([',"crc":1}', "\n", "\r\n", "\u2028", '"', "\\"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
PAYLOADS = st.builds(
    lambda value, indent, plain: json.dumps(value, indent=indent, ensure_ascii=plain).encode(),
    JSON, st.sampled_from([None, 0, 2, "\t"]), st.booleans(),
).map(Raw)  # fmt: skip
TIMES = st.datetimes(min_value=datetime(1970, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 (they want it bare)
EVENTS = st.builds(
    Event,
    queue=TEXTS, partition=MAYBE, payload=PAYLOADS, transaction_id=TEXTS, trace_id=MAYBE,
    namespace=TEXTS, task=TEXTS, org=TEXTS, key=MAYBE,
    headers=st.none() | st.dictionaries(TEXTS, TEXTS, max_size=3),
    priority=st.integers(0, 9), deliver_at=st.none() | TIMES, expires_at=st.none() | TIMES,
    accepted_at=TIMES, seq=st.integers(0, 2**63 - 1), doubt=st.sampled_from([UNSET, True]),
)  # fmt: skip


def line_of(record) -> bytes:
    [line] = event.lines([record])
    return line


def plain(record: Event) -> dict:
    """All of it, the payload as what it means: its blanks may differ."""
    fields = {name: getattr(record, name) for name in record.__struct_fields__}
    return fields | {"payload": json.loads(bytes(record.payload))}


# ---------------------------------------------------------------- whole lines


@given(EVENTS)
def test_an_event_comes_back_as_it_was(record):
    """Whatever it holds, it is one line, one JSON object, and the same event."""
    line = line_of(record)
    assert line.index(b"\n") == len(line) - 1
    assert b"\r" not in line
    assert json.loads(line)["seq"] == record.seq
    assert plain(event.read(line)) == plain(record)


@given(EVENTS)
def test_a_failed_event_keeps_its_event(record):
    """With the reason beside it, and whole again when it is read."""
    kept = event.failed(record, TROUBLE, AT)
    line = line_of(kept)
    back = event.read_failed(line)
    assert isinstance(back, FailedEvent)
    assert plain(back) == plain(kept)
    assert (back.error, back.failed_at, json.loads(line)["error"]["code"]) == (
        TROUBLE,
        AT,
        "queue_missing",
    )
    assert plain(record).items() <= plain(back).items()


@given(st.binary())
def test_a_damaged_line_keeps_its_bytes(text):
    """Whatever they are, they come back out of `failed/`."""
    line = line_of(DamagedLine(text, TROUBLE, AT))
    assert json.loads(line)["error"]["message"] == "no such queue"
    assert event.read_failed(line) == DamagedLine(text, TROUBLE, AT)


def test_the_payload_keeps_its_digits(make_event):
    """Numbers that no float holds stay what they were."""
    payload = Raw(b'{"big":123456789012345678901234567890,"exact":0.10000000000000000000001}')
    assert bytes(event.read(line_of(make_event(payload=payload))).payload) == bytes(payload)


def test_a_payload_that_looks_like_the_end_of_a_line(make_event):
    """A checksum is what stands last, not what a payload calls one."""
    for payload in (b'",\\"crc\\":1}"', b'{"a":1,"crc":1}', b'{"a":{"b":1,"crc":1}}', b'"x\\n"'):
        line = line_of(make_event(payload=Raw(payload)))
        assert bytes(event.read(line).payload) == payload


def test_times_of_a_line_are_those_of_the_clock():
    """To the millisecond, in UTC."""
    for ms in (0, 1, 1_700_000_000_001, 4_102_444_799_999):
        assert round(event.moment(ms).timestamp() * 1000) == ms
    assert event.moment(1).tzinfo is UTC


# ---------------------------------------------------------------- damaged lines


def test_every_flipped_bit_is_noticed(make_event):
    """No bit of a line can change without the line being damaged."""
    payload = Raw(b'{"text":",\\"crc\\":1}","crc":1}')
    line = line_of(make_event(payload=payload, headers={"a": "b"}, key="\u00fc"))
    assert event.is_whole(line)
    missed = [
        bit
        for bit in range(8 * (len(line) - 1))
        if event.is_whole(
            line[: bit // 8] + bytes([line[bit // 8] ^ 1 << bit % 8]) + line[bit // 8 + 1 :]
        )
    ]
    assert missed == []


def test_a_shortened_line_is_damaged(make_event):
    """However much of it is missing; its line feed alone may be."""
    line = line_of(make_event())
    assert event.is_whole(line[:-1])
    assert not any(event.is_whole(line[:end]) for end in range(len(line) - 1))
    assert not any(event.is_whole(line[start:]) for start in range(1, len(line)))


def test_a_line_that_went_through_an_editor_is_whole(make_event):
    """Another kind of line end changes nothing of what stands before it."""
    assert event.is_whole(line_of(make_event())[:-1] + b"\r\n")


@pytest.mark.parametrize(
    "text",
    [b"", b"\n", b"{}", b"\0" * 40, b'{"a":1}', b'{"a":1,"crc":}', b'{"a":1,"crc":x}',
     b'{"a":1,"crc":-5}', b'{"a":1,"crc":99999999999}', b',"crc":0}', b"\xff\xfe"],
)  # fmt: skip
def test_garbage_is_no_event(text):
    """It is damaged, never an error of ours."""
    with pytest.raises(DamagedLineError):
        event.read(text)
    with pytest.raises(DamagedLineError):
        event.read_unchecked(text)
    shown = event.read_failed(text)
    assert isinstance(shown, DamagedLine)
    assert (shown.damaged, shown.error.code) == (text.rstrip(b"\n"), "damaged_line")


def test_a_whole_line_need_not_be_an_event():
    """Its checksum holds, and what it says is none."""
    with pytest.raises(DamagedLineError) as caught:
        event.read(line_of(DamagedLine(b"x", TROUBLE, AT)))
    assert "no event" in caught.value.message


def test_a_mended_line_is_read_without_its_checksum(make_event):
    """A person who changed a line is taken at their word, if it is an event."""
    mended = line_of(make_event()).replace(b'"orders"', b'"returns"')
    with pytest.raises(DamagedLineError):
        event.read(mended)
    assert event.read_unchecked(mended).queue == "returns"
    with pytest.raises(DamagedLineError):
        event.read_unchecked(mended.replace(b'"priority":0', b'"priority":"high"'))


def test_a_damaged_line_tells_nothing_about_whose_it_is(make_event):
    """It may name a lane that it does not belong to, and would be counted off there."""
    line = line_of(make_event(partition=None))
    assert event.address_of(line) == Address("default", "orders", None)
    damaged = line.replace(b'"priority":0', b'"priority":7')
    for text in (damaged, line[:-4], b"", b"\xff", b'{"queue":1}', b"[]"):
        assert event.address_of(text) is None


def test_a_damaged_line_of_failed_is_shown(make_event):
    """A failed event whose checksum does not hold is a damaged line with all its bytes."""
    line = line_of(event.failed(make_event(), TROUBLE, AT)).replace(b"orders", b"0rders")
    shown = event.read_failed(line)
    assert isinstance(shown, DamagedLine)
    assert shown.damaged == line[:-1]
    assert shown.error.code == "damaged_line"


def test_the_names_in_a_line_are_the_promised_ones(make_event):
    """Whoever reads the files with other tools counts on them."""
    promised = [
        "queue", "partition", "payload", "transaction_id", "trace_id", "namespace", "task", "org",
        "key", "headers", "priority", "deliver_at", "expires_at", "accepted_at", "seq",
    ]  # fmt: skip
    assert list(json.loads(line_of(make_event()))) == [*promised, "crc"]
    doubtful = msgspec.structs.replace(make_event(), doubt=True)
    assert list(json.loads(line_of(doubtful))) == [*promised, "doubt", "crc"]
