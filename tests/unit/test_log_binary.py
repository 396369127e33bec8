"""PostgreSQL's binary forms, byte by byte; tests/integration asks PostgreSQL itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.log import binary as pg

TIMES_MS = st.integers(-62_135_596_800_000, 253_402_300_799_999)


def test_numbers_are_big_endian():
    """Two, four and eight bytes, signed."""
    assert [pg.int2(-2), pg.int4(258), pg.int8(-1)] == [
        b"\xff\xfe",
        b"\x00\x00\x01\x02",
        b"\xff" * 8,
    ]


@pytest.mark.parametrize(
    ("ms", "micros"),
    [(946_684_800_000, 0), (946_684_800_001, 1_000), (0, -946_684_800_000_000)],
)
def test_time_begins_in_2000(ms, micros):
    """Microseconds since then, negative before."""
    assert pg.timestamptz(ms) == pg.int8(micros)
    assert pg.ms_of(pg.int8(micros)) == ms


def test_microseconds_are_cut_off_downwards():
    """What PostgreSQL knows more precisely is never rounded into the future."""
    assert [pg.ms_of(pg.int8(n)) for n in (999, -1)] == [946_684_800_000, 946_684_799_999]


def test_an_array_has_a_head_and_its_values():
    """One dimension, whether there is a NULL, the type, the count, the lower bound 1."""
    assert pg.array(pg.TEXT, [b"ab", None]) == bytes.fromhex(
        "00000001 00000001 00000019 00000002 00000001 00000002 6162 ffffffff"
    )
    assert pg.array(pg.INT8, [pg.int8(1)])[:12] == bytes.fromhex("00000001 00000000 00000014")


def test_an_empty_array_has_no_dimension():
    """PostgreSQL's own form of '{}'."""
    assert pg.array(pg.TEXT, []) == bytes.fromhex("00000000 00000000 00000019")
    assert pg.elements(pg.array(pg.TEXT, [])) == []


def test_a_row_has_a_type_and_a_length_for_each_column():
    """NULL is a length of -1."""
    assert pg.composite([(pg.INT4, pg.int4(7)), (pg.TEXT, None)]) == bytes.fromhex(
        "00000002 00000017 00000004 00000007 00000019 ffffffff"
    )


def test_texts_are_utf_8():
    """The length counts bytes."""
    assert pg.elements(pg.texts(["ü", None, ""])) == [b"\xc3\xbc", None, b""]


def test_long_values_keep_their_length():
    """Around the lengths that are written from a table."""
    values = [bytes(n) for n in (0, 4_095, 4_096, 70_000)]
    assert pg.elements(pg.array(pg.BYTEA, values)) == values


@given(st.lists(st.none() | st.binary(max_size=40), max_size=40))
def test_an_array_comes_back_as_it_went_in(values):
    """NULL, nothing, NUL bytes and the NULL marker itself stay what they are."""
    assert pg.elements(pg.array(pg.BYTEA, values)) == values


@given(st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"])), max_size=20))
def test_texts_come_back_as_they_went_in(values):
    """Any text that PostgreSQL could hold."""
    back = pg.elements(pg.texts(values))
    assert [None if v is None else v.decode() for v in back] == values


@given(TIMES_MS)
def test_a_time_comes_back_to_the_millisecond(ms):
    """Every moment of the calendar."""
    assert pg.ms_of(pg.timestamptz(ms)) == ms
