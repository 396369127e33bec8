"""Many pushes: cut into requests, answered in order, failures listed."""

import pytest

from spillway.client.async_client import AsyncClient
from spillway.client.batch import Item, batches
from spillway.client.errors import BrokerUnreachableError, ClientUsageError, PushFailedError
from spillway.client.scripted import AsyncScript, Script, refusal, reply
from spillway.client.sync_client import Client
from spillway.core.errors import DatabaseUnavailableError, InvalidItemError

BAD = {"code": "invalid_item", "message": "bad", "hint": "h"}
AWAY = {"code": "database_unavailable", "message": "away", "hint": "h"}


def stored(sent):
    results = [
        {
            "index": at,
            "status": "stored",
            "version": at + 1,
            "transaction_id": one["transaction_id"],
        }
        for at, one in enumerate(sent.body["items"])
    ]
    return reply({"results": results}, 201)


def failing_at(*places, detail=BAD, status=201):
    def answer(sent):
        results = [
            {"index": at, "status": "failed", "error": detail}
            if at in places
            else {"index": at, "status": "stored"}
            for at in range(len(sent.body["items"]))
        ]
        return reply({"results": results, "error": detail}, status)

    return answer


def test_items_are_cut_by_count_and_bytes():
    """No request is over the limits, and none is empty."""
    by_count = list(batches([Item("q", at) for at in range(7)], items_max=3))
    assert [(one.start, len(one.transaction_ids)) for one in by_count] == [(0, 3), (3, 3), (6, 1)]
    by_bytes = list(batches([Item("q", "x" * 100) for _ in range(4)], bytes_max=400))
    assert [len(one.transaction_ids) for one in by_bytes] == [2, 2]
    assert list(batches([])) == []


def test_an_item_over_the_bytes_goes_alone():
    """The broker judges an item that is too large; the client does not loop over it."""
    alone = list(batches([Item("q", "x" * 100), Item("q", 1)], bytes_max=50))
    assert [len(one.transaction_ids) for one in alone] == [1, 1]


def test_ids_of_a_call_share_their_prefix():
    """One random prefix a call, counted over all its requests."""
    ids = [tid for one in batches([Item("q", 1)] * 5, items_max=2) for tid in one.transaction_ids]
    assert len({tid.rpartition("-")[0] for tid in ids}) == 1
    assert [tid.rpartition("-")[2] for tid in ids] == ["0", "1", "2", "3", "4"]


def test_given_ids_stay():
    """A caller's own transaction id is never replaced."""
    (batch,) = batches([Item("q", 1, transaction_id="mine")])
    assert batch.transaction_ids == ["mine"]


def test_results_keep_the_order_of_the_call():
    """Indexes count over the whole call, mappings are taken as items."""
    script = Script(stored, repeat_last=True)
    results = Client(transport=script).push_many(
        {"queue": "q", "payload": at} for at in range(5001)
    )
    assert [result.index for result in results] == list(range(5001))
    assert len(script.sent) == 2


def test_failed_items_are_listed():
    """PushFailedError carries all results and the failed ones."""
    script = Script(failing_at(1))
    with pytest.raises(PushFailedError, match="1 of 3 messages failed; the first, #1: bad") as told:
        Client(transport=script).push_many([Item("q", at) for at in range(3)])
    assert [one.index for one in told.value.failed] == [1]
    assert len(told.value.results) == 3


def test_failed_items_may_be_returned():
    """With raise_on_failure=False the caller sorts it out."""
    script = Script(failing_at(0, 1, status=400))
    results = Client(transport=script).push_many(
        [Item("q", at) for at in range(2)], raise_on_failure=False
    )
    assert [result.status for result in results] == ["failed", "failed"]


def test_a_single_transient_failure_is_not_repeated():
    """Repeating one item of many would put it behind the later ones."""
    script = Script(failing_at(0, detail=AWAY))
    results = Client(transport=script).push_many(
        [Item("q", at) for at in range(2)], raise_on_failure=False
    )
    assert [result.status for result in results] == ["failed", "stored"]
    assert len(script.sent) == 1


def test_a_wholly_transient_failure_is_repeated():
    """When nothing could be stored for now, the whole batch is tried again, in its order."""
    script = Script(failing_at(0, 1, detail=AWAY, status=503), stored)
    client = Client(transport=script, sleep=lambda _: None)
    assert all(one.status == "stored" for one in client.push_many([Item("q", 1), Item("q", 2)]))
    script = Script(failing_at(0, detail=AWAY, status=503))
    with pytest.raises(DatabaseUnavailableError):
        Client(transport=script, retries=0).push_many([Item("q", 1)])


def test_losing_the_broker_halfway_is_told_by_item():
    """What was stored before is known; the rest has ids, so that it can be pushed again safely."""
    script = Script(stored, BrokerUnreachableError("gone", sent=True))
    client = Client(transport=script, retries=0)
    with pytest.raises(PushFailedError) as told:
        client.push_many([Item("q", at) for at in range(5003)])
    assert [one.index for one in told.value.failed] == [5000, 5001, 5002]
    assert all(one.transaction_id for one in told.value.failed)
    assert told.value.failed[0].error.code == "broker_unreachable"


def test_losing_the_broker_at_once_is_the_plain_error():
    """With nothing stored there is nothing to list."""
    client = Client(transport=Script(refusal("unauthorized", 401)))
    with pytest.raises(Exception, match="no"):
        client.push_many([Item("q", 1)])


def test_what_is_no_item_is_refused():
    """A mapping with an unknown field is refused before anything is sent."""
    with pytest.raises(ClientUsageError, match="colour"):
        Client(transport=Script()).push_many([{"queue": "q", "payload": 1, "colour": "red"}])
    with pytest.raises(InvalidItemError):
        Client(transport=Script()).push_many([Item("q", {1, 2}), Item("q", object())])


async def test_the_async_client_pushes_many_alike():
    """The same results behind the asyncio door."""
    client = AsyncClient(transport=AsyncScript(Script(failing_at(1))))
    with pytest.raises(PushFailedError):
        await client.push_many([Item("q", at) for at in range(2)])
