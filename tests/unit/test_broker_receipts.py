"""Receipts: what the broker wrote it reads back; anything else is no receipt and no error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.broker.receipts import Receipts, prefix, sort

NUMBERS = st.integers(1, 10**18 - 1)
GROUPS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
GARBAGE = st.text(max_size=30) | st.from_regex(r"[0-9~+\-_ ٣²x]{0,25}", fullmatch=True)


def test_receipts_are_sorted_by_lease():
    """Each lease with its versions, and where each receipt stood in the request."""
    a, b = prefix(7, 3, 1, "billing"), prefix(7, 4, 1, "billing")
    leases, strange = sort([f"{a}10", f"{b}11", "nonsense", f"{a}12"])
    assert leases == [
        Receipts(7, 3, 1, "billing", [10, 12], [0, 3]),
        Receipts(7, 4, 1, "billing", [11], [1]),
    ]
    assert strange == [2]


def test_a_receipt_reads_as_it_was_given_out():
    """The form is opaque to clients, but those in the wild must stay good."""
    assert f"{prefix(7, 3, 1, 'billing')}10" == "7~3~1~billing~10"


def test_a_repeated_receipt_has_two_answers():
    """The same receipt twice in a request is kept twice, in the order of the request."""
    leases, strange = sort(["1~2~3~g~4", "1~2~3~g~4"])
    assert (leases, strange) == ([Receipts(1, 2, 3, "g", [4, 4], [0, 1])], [])


@pytest.mark.parametrize(
    "receipt",
    [
        "",
        "~",
        "~~~~",
        "1~2~3~4",
        "1~2~3~g~",
        "1~2~3~g~0",
        "1~2~3~g~04",
        "1~2~3~g~-4",
        "1~2~3~g~+4",
        "1~2~3~g~4.0",
        "1~2~3~g~ 4",
        "1~2~3~g~4\n",
        "1~2~3~g~٣",
        "1~2~3~g~²",
        "1~2~3~g~1_0",
        "0~2~3~g~4",
        "01~2~3~g~4",
        "x~2~3~g~4",
        "1~~3~g~4",
        "1~2~3~g~1000000000000000000",
        "9223372036854775808~2~3~g~4",
    ],
)
def test_what_the_broker_never_gave_out_is_no_receipt(receipt):
    """Numbers are positive, in plain digits, and fit PostgreSQL's bigint."""
    assert sort([receipt]) == ([], [0])


@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS, GROUPS, NUMBERS), max_size=20))
def test_every_receipt_comes_back(given_out):
    """Whatever is in the name of a group, each receipt is found once, under its own lease."""
    leases, strange = sort([f"{prefix(*lease)}{version}" for *lease, version in given_out])
    found = {
        index: (lease.lane_id, lease.lease_id, lease.group, version)
        for lease in leases
        for index, version in zip(lease.indexes, lease.versions, strict=True)
    }
    assert strange == []
    assert found == {
        i: (lane, lease, group, version)
        for i, (lane, lease, _, group, version) in enumerate(given_out)
    }


@given(st.lists(GARBAGE, max_size=20))
def test_garbage_is_sorted_out_and_never_raises(receipts):
    """Every place of the request is either in a lease or strange, never both, never neither."""
    leases, strange = sort(receipts)
    places = [i for lease in leases for i in lease.indexes] + strange
    assert sorted(places) == list(range(len(receipts)))
    assert all(0 < version < 10**18 for lease in leases for version in lease.versions)
