"""The account of lost, repeated and overtaken messages."""

from array import array

import pytest

from spillway.bench.ledger import Accepted, Account, account, steps_back
from spillway.bench.orders import Order


def ids(*names):
    return array("q", [Order(*name).id for name in names])


EVERYTHING = ids((0, 4, 0), (0, 4, 1), (1, 6, 0), (1, 6, 1))
ACCEPTED = [Accepted(batches=[4, 6], size=2)]


@pytest.mark.parametrize(
    ("streams", "expected"),
    [
        ([EVERYTHING], Account(0, 0, 0)),
        ([EVERYTHING[:2], EVERYTHING[2:]], Account(0, 0, 0)),
        ([EVERYTHING[1:]], Account(lost=1, duplicated=0, out_of_order=0)),
        ([EVERYTHING, EVERYTHING[3:]], Account(lost=0, duplicated=1, out_of_order=0)),
        ([EVERYTHING[:2][::-1], EVERYTHING[2:]], Account(lost=0, duplicated=0, out_of_order=1)),
        ([], Account(lost=4, duplicated=0, out_of_order=0)),
    ],
)
def test_every_difference_is_counted(streams, expected):
    """What is missing, what came twice and what came too late is told apart."""
    assert account(ACCEPTED, streams) == expected


def test_order_is_judged_producer_by_producer():
    """Producers run side by side: between them there is no order to keep."""
    assert steps_back(ids((0, 5, 0), (1, 4, 0), (0, 6, 0), (1, 5, 0))) == 0
    assert steps_back(ids((0, 5, 0), (0, 4, 0))) == 1
