"""The messages of the load and their renumbering in place."""

import json
import random

import pytest

from spillway.bench.orders import Order, PushRequest, Shape, payload, payloads, sequence_of


def shape(**changes):
    defaults = {"queue": "q", "batch": 3, "payload_bytes": 100, "transaction_ids": True}
    return Shape(**{**defaults, "host": "h:1", "seed": "5eed", **changes})


def items_of(request):
    head, _, body = bytes(request.encoded).partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in head
    return json.loads(body)["items"]


@pytest.mark.parametrize("size", [64, 100, 107, 1000])
def test_payload_is_json_of_exactly_the_asked_size(size):
    """Sizes are exact, so that rates in messages are rates in bytes."""
    made = payload(Order(1, 2, 3), size, random.Random(1))
    assert len(made) == size
    assert json.loads(made)["order_id"] == Order(1, 2, 3).id


def test_payloads_differ_from_message_to_message():
    """No two messages of the load are the same."""
    assert len(set(payloads(500, 100, 100, random.Random(1)))) == 500


@pytest.mark.parametrize("batch", [1, 3, 1000])
def test_renumbering_changes_every_item(batch):
    """After renumbering, order ids and transaction ids are those of the new batch."""
    request = PushRequest(shape(batch=batch), producer=7)
    for number in (0, 1, 99, 1_234_567, 5):
        request.number(number)
        items = items_of(request)
        ids = [item["payload"]["order_id"] for item in items]
        assert ids == [Order(7, number, i).id for i in range(batch)]
        prefixes = {item["transaction_id"].rpartition("-")[0] for item in items}
        assert len(prefixes) == 1
        assert prefixes.pop().endswith(f"{number:010d}")


def test_transaction_ids_look_like_those_of_the_client():
    """22 characters, a dash, the plain position."""
    request = PushRequest(shape(batch=101), producer=0)
    ids = [item["transaction_id"] for item in items_of(request)]
    assert [transaction_id.partition("-")[2] for transaction_id in ids[9:11]] == ["9", "10"]
    assert {len(transaction_id.partition("-")[0]) for transaction_id in ids} == {22}
    assert len(set(ids)) == 101


def test_transaction_ids_can_be_left_out():
    """Without them an item is queue and payload."""
    request = PushRequest(shape(transaction_ids=False), producer=0)
    assert all(set(item) == {"queue", "payload"} for item in items_of(request))


def test_order_ids_are_exact_in_a_double():
    """JSON readers that know only doubles see the same number."""
    largest = Order(999, 10**7 - 1, 9_999).id
    assert largest < 2**53
    assert sequence_of(largest) == (10**7 - 1, 9_999)
