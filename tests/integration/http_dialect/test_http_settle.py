"""Lease and settle over HTTP: fields, order, attempts, what happens when they are used up."""

import asyncio

import pytest

pytestmark = pytest.mark.asyncio(loop_scope="module")

LEASE_FIELDS = {
    "receipt", "queue", "partition", "version", "key", "payload", "headers", "attempt",
    "transaction_id", "enqueued_at", "priority", "trace_id",
}  # fmt: skip


async def reason(site, queue, **request):
    return (await site.ask("POST", f"/v1/queues/{queue}/lease", request)).get("reason")


async def test_a_lease_has_all_fields_and_no_reason(site, queue):
    """A lease without a body takes one message; `reason` is there only when nothing is."""
    await site.push(queue, 1, 2)
    reply = await site.ask("POST", f"/v1/queues/{queue}/lease")
    assert reply.keys() == {"messages"}
    (message,) = reply["messages"]
    assert message.keys() == LEASE_FIELDS
    assert await site.lease(queue) != []
    assert await reason(site, queue) == "empty"


async def test_settle_answers_in_the_order_ack_nack_extend(site, queue):
    """One result a receipt, in this order, whatever became of each; what is none is told so."""
    await site.push(queue, *range(5))
    held = [message["receipt"] for message in await site.lease(queue, max=5)]
    reply = await site.ask(
        "POST",
        "/v1/settle",
        {
            "extend": [{"receipt": held[4], "visibility_ms": 60_000}],
            "nack": [
                {"receipt": held[3], "park": True},
                {"receipt": held[2], "delay_ms": 0},
                {"receipt": "?"},
            ],
            "ack": [held[1], held[0], "no receipt", ""],
        },
    )
    assert [(result["receipt"], result["status"]) for result in reply["results"]] == [
        (held[1], "acked"),
        (held[0], "acked"),
        ("no receipt", "refused"),
        ("", "refused"),
        (held[3], "parked"),
        (held[2], "nacked"),
        ("?", "refused"),
        (held[4], "extended"),
    ]
    assert {r["error"]["code"] for r in reply["results"] if "error" in r} == {"invalid_receipt"}
    assert await site.counts(queue) == {"settled": 2, "parked": 1, "ready": 1, "leased": 1}


async def test_settle_and_lease_share_a_round_trip(site, queue):
    """What was nacked comes back in the same answer, and an empty queue says why."""
    await site.push(queue, "a", "b")
    await site.make(queue)
    held = await site.lease(queue, max=2)
    request = {
        "ack": [held[0]["receipt"]],
        "nack": [{"receipt": held[1]["receipt"], "delay_ms": 0}],
        "lease": {"queue": queue, "max": 5},
    }
    reply = await site.ask("POST", "/v1/settle", request)
    assert [result["status"] for result in reply["results"]] == ["acked", "nacked"]
    assert [(m["payload"], m["attempt"]) for m in reply["messages"]] == [("b", 2)]
    request = {"ack": [reply["messages"][0]["receipt"]], "lease": {"queue": queue}}
    reply = await site.ask("POST", "/v1/settle", request)
    assert (reply["messages"], reply["reason"]) == ([], "empty")


async def test_a_repeated_ack_is_fine_and_a_late_one_is_not(site, queue):
    """Acks repeat; after a nack or a park the receipt is stale for everything."""
    await site.push(queue, 1, 2)
    await site.make(queue, backoff_base_ms=60_000)
    done, back = await site.lease(queue, max=2)
    assert await site.ack(done) == await site.ack(done) == ["acked"]
    assert await site.nack(back) == ["nacked"]
    assert await site.ack(back) == ["refused"]
    assert await site.nack(back) == ["refused"]
    assert await site.settle(extend=[{"receipt": back["receipt"], "visibility_ms": 100}]) == [
        "refused"
    ]
    assert await site.nack(done) == ["refused"]


async def test_a_receipt_outlives_its_lease_in_vain(site, queue, eventually_async):
    """After the expiry another holder has the message; the first one can do nothing any more."""
    await site.make(queue)
    await site.push(queue, 1)
    (first,) = await site.lease(queue, visibility_ms=10)
    (second,) = await site.lease(queue, wait_ms=10_000)
    assert (first["attempt"], second["attempt"]) == (1, 2)
    assert await site.ack(first) == ["refused"]
    assert await site.ack(second) == ["acked"]


async def test_an_extended_lease_lasts(site, queue, eventually_async):
    """Extend holds the message past its first deadline."""
    await site.push(queue, 1)
    (held,) = await site.lease(queue, visibility_ms=400)
    extend = [{"receipt": held["receipt"], "visibility_ms": 60_000}]
    assert await site.settle(extend=extend) == ["extended"]
    now_ms = site.broker.clock.now_ms
    over_ms = now_ms() + 400
    await eventually_async(lambda: now_ms() > over_ms)
    assert await site.lease(queue) == []
    assert await site.ack(held) == ["acked"]


@pytest.mark.parametrize("how", ["nack", "expiry"])
@pytest.mark.parametrize("attempts", [1, 3])
async def test_attempts_are_exactly_max_attempts(site, queue, how, attempts):
    """max_attempts = N means N deliveries, whether they are nacked or run out."""
    await site.make(queue, max_attempts=attempts)
    await site.push(queue, "poison")
    for attempt in range(1, attempts + 1):
        visibility_ms = 10 if how == "expiry" else 30_000
        (held,) = await site.lease(queue, wait_ms=10_000, visibility_ms=visibility_ms)
        assert held["attempt"] == attempt
        if how == "nack":
            assert await site.nack(held, error=f"no {attempt}") == [
                "parked" if attempt == attempts else "nacked"
            ]
    assert await site.lease(queue, wait_ms=100) == []
    dead = await site.ask("GET", f"/v1/queues/{queue}/dead")
    (letter,) = dead["dead"]
    assert (dead["total"], letter["payload"], letter["attempts"]) == (1, "poison", attempts)
    wanted = ("no " + str(attempts), "exhausted") if how == "nack" else ("lease expired", "expired")
    assert (letter["error"], letter["reason"]) == wanted


@pytest.mark.parametrize(
    ("on_exhausted", "left"),
    [("park", {"parked": 1, "ready": 1}), ("block", {"blocked": 1}), ("drop", {"dropped": 1})],
)
async def test_on_exhausted_is_obeyed(site, queue, on_exhausted, left):
    """Park, block or drop: the status of the queue says which, and the next message goes on."""
    await site.make(queue, max_attempts=1, on_exhausted=on_exhausted)
    await site.push(queue, "poison", "next")
    held = await site.lease(queue)
    assert await site.nack(*held) == ["parked" if on_exhausted == "park" else "nacked"]
    assert await site.counts(queue) == {"ready": 1} | left
    assert [message["payload"] for message in await site.lease(queue, max=9)] == ["next"]


async def test_the_delay_of_a_nack_is_kept(site, queue):
    """delay_ms of the nack wins over the queue's backoff, both ways."""
    await site.make(queue, backoff_base_ms=60_000, backoff_cap_ms=60_000)
    await site.push(queue, "now", "later")
    now, later = await site.lease(queue, max=2)
    assert await site.nack(now, delay_ms=0) == ["nacked"]
    assert await site.nack(later, delay_ms=60_000) == ["nacked"]
    assert [message["payload"] for message in await site.lease(queue, max=9)] == ["now"]
    assert await site.counts(queue) == {"leased": 1, "deferred": 1}


async def test_the_error_of_a_nack_is_stored_as_text(site, queue):
    """Whatever a consumer says is kept: bounded, and with NUL made visible."""
    await site.push(queue, 1)
    held = await site.lease(queue)
    assert await site.nack(*held, park=True, error="a\0b" + "x" * 10_000) == ["parked"]
    (letter,) = (await site.ask("GET", f"/v1/queues/{queue}/dead"))["dead"]
    assert letter["error"].startswith("a\ufffdbxxx")
    assert len(letter["error"]) == 2_000


async def test_order_none_lets_leases_run_side_by_side(site, queue):
    """A retry that waits holds back nobody."""
    await site.make(queue, backoff_base_ms=60_000, backoff_cap_ms=60_000)
    await site.push(queue, 1, 2, 3)
    (first,) = await site.lease(queue)
    (second,) = await site.lease(queue)
    await site.nack(first)
    assert [message["payload"] for message in await site.lease(queue)] == [3]
    assert second["payload"] == 2


async def test_order_partition_holds_the_lane(site, queue):
    """One lease at a time on each partition; a retry or a block holds back those behind it."""
    await site.make(queue, order="partition", max_attempts=2, on_exhausted="block")
    for partition in ("a", "b"):
        await site.push(queue, 1, 2, partition=partition)
    held = {m["partition"]: m for m in [*await site.lease(queue), *await site.lease(queue)]}
    assert held.keys() == {"a", "b"}
    assert await reason(site, queue) == "lane_busy"
    await site.nack(held["a"], delay_ms=60_000)
    assert await reason(site, queue, partitions=["a"]) == "retry_pending"
    await site.nack(held["b"], delay_ms=0)
    (again,) = await site.lease(queue)
    assert (again["partition"], again["payload"], again["attempt"]) == ("b", 1, 2)
    await site.nack(again)
    assert await reason(site, queue, partitions=["b"]) == "blocked"
    verb = f"/v1/queues/{queue}/unblock"
    assert (await site.ask("POST", verb, {"all": True, "action": "skip"}))["affected"] == 1
    assert [message["payload"] for message in await site.lease(queue)] == [2]


async def test_the_hole_cap_holds_back_new_messages_only(site, queue):
    """Above max_ack_holes a lease says `ack_hole_cap`; retries go on and drain it."""
    await site.make(queue, max_ack_holes=1, max_attempts=100)
    await site.push(queue, *range(6))
    held = await site.lease(queue, max=5)
    await site.ack(held[1], held[3])
    assert await reason(site, queue) == "ack_hole_cap"
    await site.nack(held[0], held[2], held[4])
    again = await site.lease(queue, max=9)
    assert [message["payload"] for message in again] == [0, 2, 4]
    await site.ack(*again)
    assert [message["payload"] for message in await site.lease(queue, max=9)] == [5]


async def test_a_queue_at_its_hole_cap_drains_after_all_consumers_died(
    open_site, database_url, queue
):
    """Their leases end, whoever waits gets what they held, and new messages follow; even twice."""
    async with open_site(database_url) as site:
        await site.make(queue, max_ack_holes=3)
        await site.push(queue, *range(20))
        for _ in range(4):
            held = await site.lease(queue, max=2)
            await site.ack(held[1])
        for attempt in (2, 3):
            assert await reason(site, queue, max=9) == "ack_hole_cap"
            poll = site.later("POST", f"/v1/queues/{queue}/lease", {"max": 9, "wait_ms": 30_000})
            await site.waiting(queue, 1)
            clock = site.broker.clock
            clock.set(clock.now_ms() / 1000 + 3_600)  # an hour passes
            got = (await poll)[0]["messages"]
            assert [(m["payload"], m["attempt"]) for m in got] == [
                (n, attempt) for n in (0, 2, 4, 6)
            ]
        drained = []
        while got:
            assert await site.ack(*got) == ["acked"] * len(got)
            drained += [message["payload"] for message in got]
            got = await site.lease(queue, max=9)
        assert drained == [0, 2, 4, 6, *range(8, 20)]
        assert await site.counts(queue) == {"settled": 20}


async def test_one_busy_partition_starves_no_other(site, queue):
    """Leases turn over the partitions: the quiet one is in the second lease at the latest."""
    await site.push(queue, *range(1_000), partition="busy")
    await site.push(queue, "quiet", partition="quiet")
    seen = [m["partition"] for _ in range(2) for m in await site.lease(queue, max=10)]
    assert "quiet" in seen
    await site.push(queue, "again", partition="quiet")
    seen = [m["partition"] for _ in range(2) for m in await site.lease(queue, max=10)]
    assert "quiet" in seen


async def test_a_lease_may_name_its_partitions(site, queue):
    """Only those are looked at; unknown ones are empty."""
    for partition in ("a", "b", "c"):
        await site.push(queue, partition, partition=partition)
    leased = await site.lease(queue, max=9, partitions=["c", "a", "unknown"])
    assert sorted(message["payload"] for message in leased) == ["a", "c"]
    assert await site.lease(queue, partitions=["unknown"]) == []


async def test_many_workers_share_without_overlap(site, queue):
    """Leases at once hand out each message once, and in order for each of them."""
    await site.push(queue, *range(200))
    batches = await asyncio.gather(*(site.lease(queue, max=10) for _ in range(25)))
    payloads = [[message["payload"] for message in batch] for batch in batches]
    assert sorted(payload for batch in payloads for payload in batch) == list(range(200))
    assert all(batch == sorted(batch) for batch in payloads)


async def test_a_settle_with_an_impossible_lease_says_so(site, queue):
    """The lease names an unknown queue: 404, and a repetition without it still settles."""
    await site.push(queue, 1)
    (held,) = await site.lease(queue)
    request = {"ack": [held["receipt"]], "lease": {"queue": "unknown"}}
    assert await site.refused("POST", "/v1/settle", request) == (404, "queue_not_found")
    assert await site.ack(held) == ["acked"]
